//! For tests of stacks: a dependency that misbehaves on demand.

mod chaos;
mod fault;

pub use chaos::{
    Chaos, ChaosBuilder, ChaosCounts, ChaosError, ChaosFuture, ChaosHandle, ChaosLayer, MakeError,
    NoErrors,
};
pub use fault::Fault;
