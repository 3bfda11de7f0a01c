//! A line in the log now and then: never a flood.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tollgate::Tick;

/// Lets one of many pass each second, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// From when on the next may pass.
    next_ns: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    const EVERY: Duration = Duration::from_secs(1);

    /// Returns how many were left out before this one; `None` if it is to be left out itself.
    pub(crate) fn is_due(&self, now: Tick) -> Option<u64> {
        let now_ns = now.as_nanos();
        // ORDERING: Relaxed. The exchange makes one thread the writer, and the count is for people.
        let next_ns = self.next_ns.load(Relaxed);
        let later_ns = now.saturating_add(Self::EVERY).as_nanos();
        if now_ns >= next_ns
            && self.next_ns.compare_exchange(next_ns, later_ns, Relaxed, Relaxed).is_ok()
        {
            return Some(self.left_out.swap(0, Relaxed));
        }
        self.left_out.fetch_add(1, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_each_second_and_the_others_are_counted() {
        let seldom = Seldom::default();
        let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
        let seen = [0, 1, 500, 999, 1000, 1001, 9000].map(|ms| seldom.is_due(at(ms)));
        assert_eq!(seen, [Some(0), None, None, None, Some(3), None, Some(1)]);
    }
}
