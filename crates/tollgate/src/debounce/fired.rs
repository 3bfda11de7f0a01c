//! The argument of an action.

use crate::Tick;

/// One run of a debouncer's or throttle's action: the last value, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired<T> {
    pub(crate) value: T,
    pub(crate) first_at: Tick,
    pub(crate) at: Tick,
    pub(crate) count: u64,
    pub(crate) edge: Edge,
}

/// Why an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Edge {
    /// The first trigger after silence.
    Leading,
    /// Silence has lasted for the delay.
    Trailing,
    /// The triggers did not stop, and the longest wait is over.
    MaxWait,
    /// A caller has flushed it, or the debouncer has ended.
    Flush,
}

impl<T> Fired<T> {
    /// Returns the last value that was triggered with.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// Returns the last value that was triggered with.
    #[must_use]
    pub const fn value(&self) -> &T {
        &self.value
    }

    /// Returns the time of the last trigger: not that of the run, which is later.
    #[must_use]
    pub const fn triggered_at(&self) -> Tick {
        self.at
    }

    /// Returns the time of the first trigger since the last run.
    #[must_use]
    pub const fn first_triggered_at(&self) -> Tick {
        self.first_at
    }

    /// Returns how many triggers this run stands for.
    #[must_use]
    pub const fn triggers(&self) -> u64 {
        self.count
    }

    /// Returns why the action runs.
    #[must_use]
    pub const fn edge(&self) -> Edge {
        self.edge
    }
}
