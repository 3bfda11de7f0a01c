//! Waiting: the one module that sleeps.
//!
//! The idea: everything that depends on time is a **pure machine** (events and the time in, jobs and
//! the next deadline out). A machine knows no timer. This module gives machines their time:
//!
//! - a [`Driver`] runs what is due: a thread, a tokio task, or the hand of a manual clock;
//! - the engine connects a machine, its action and a driver; debouncers, throttles, coalescers and
//!   pacers are such machines;
//! - a limiter queue holds the callers who wait for a limiter or a key, and a queue timer serves them;
//! - the sleeper wakes one future, or one thread, at a tick of a clock.
//!
//! No background task lives while there is nothing to wait for, but for a second after.

mod action;
pub(crate) mod bookings;
mod completion;
mod deadline_heap;
mod driver;
mod engine;
mod future;
mod key_index;
pub(crate) mod limiter_queue;
mod options;
mod parked;
pub(crate) mod queue;
pub(crate) mod queue_timer;
mod random;
mod sleeper;
mod wakers;

pub use action::Panicked;
pub use completion::{StillRunning, StopAndWait};
pub use driver::{Driver, NoRuntime, OnDrop};
pub use future::{Passed, Wait};
pub(crate) use future::{Patience, Source};

#[cfg(feature = "tokio")]
pub(crate) use action::Running;
pub(crate) use action::{Action, Reporter, guarded};
pub(crate) use deadline_heap::{DeadlineHeap, shrink};
pub(crate) use engine::{Engine, Machine, WeakEngine};
pub(crate) use key_index::KeyIndex;
pub(crate) use options::ActionOptions;
pub(crate) use parked::{block_for, block_until};
pub(crate) use random::{Random, fraction, mix, random_up_to};
pub(crate) use sleeper::{Sleeper, park_until};
pub(crate) use wakers::{WakeList, Wakers};
