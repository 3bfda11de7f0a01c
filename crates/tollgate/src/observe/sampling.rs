//! One denial in so many.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Picks one event in so many: the first, and every `one_in`-th after it. By default each.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// 0 and 1 pick each.
    one_in: u64,
    /// Events so far, if they are sampled.
    seen: AtomicU64,
}

impl Sampling {
    pub(super) const fn one_in(count: u64) -> Self {
        Self { one_in: count, seen: AtomicU64::new(0) }
    }

    /// Counts an event, and tells whether it is one of the sample.
    pub(super) fn picks(&self) -> bool {
        // ORDERING: Relaxed. Each event takes a number; nothing else is published with it.
        self.one_in <= 1 || self.seen.fetch_add(1, Relaxed).is_multiple_of(self.one_in)
    }
}
