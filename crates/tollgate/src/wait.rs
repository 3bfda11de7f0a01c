//! Everything that waits: the one place that sleeps.
//!
//! The idea: whatever has to do with time is a **pure machine** (events and the time in, jobs and
//! the next deadline out). A machine knows no timer. This module gives machines their time:
//!
//! - [`Driver`] says who runs what is due: a thread, a tokio task, or the hand of a manual clock;
//! - the engine puts a machine, its action and a driver together; debouncers, throttles,
//!   coalescers and pacers are such machines;
//! - the sleeper wakes one future, or one thread, at a tick of a clock.
//!
//! No background task lives while there is nothing to wait for.

mod action;
pub(crate) mod alarm;
pub(crate) mod bookings;
mod deadline_heap;
mod driver;
mod end;
mod engine;
mod future;
mod key_index;
pub(crate) mod line;
mod options;
mod parked;
pub(crate) mod queue;
mod random;
mod sleeper;
mod wakes;

pub use action::Panicked;
pub use driver::{Driver, NoRuntime, OnDrop};
pub use end::{StillRunning, StopAndWait};
pub(crate) use future::Patience;
pub use future::{Passed, Wait};

#[cfg(feature = "tokio")]
pub(crate) use action::Running;
pub(crate) use action::{Action, Reporter, guarded};
pub(crate) use deadline_heap::{DeadlineHeap, shrink};
pub(crate) use engine::{Engine, Machine, WeakEngine};
pub(crate) use key_index::KeyIndex;
pub(crate) use options::ActionOptions;
pub(crate) use parked::block_until;
pub(crate) use random::{fraction, mix, random_up_to};
#[cfg(feature = "tokio")]
pub(crate) use sleeper::SleepUntil;
pub(crate) use sleeper::{Sleeper, park_until};
pub(crate) use wakes::{Wakers, Wakes};
