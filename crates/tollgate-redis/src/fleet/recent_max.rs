//! The highest count of a while.

use std::{collections::VecDeque, time::Duration};
use tollgate::Tick;

/// The highest count of the last `span`. Holds only counts that can still become the highest, so at
/// most one for each answer within the span.
#[derive(Debug)]
pub(super) struct RecentMax {
    span: Duration,
    /// Counts fall from front to back.
    seen: VecDeque<(Tick, u32)>,
}

impl RecentMax {
    pub(super) fn new(span: Duration) -> Self {
        Self { span, seen: VecDeque::new() }
    }

    /// Adds a count and returns the highest.
    pub(super) fn add(&mut self, now: Tick, count: u32) -> u32 {
        while self.seen.back().is_some_and(|(_, older)| *older <= count) {
            self.seen.pop_back();
        }
        self.seen.push_back((now, count));
        while self.seen.front().is_some_and(|(at, _)| now.since(*at) > self.span) {
            self.seen.pop_front();
        }
        self.seen.front().map_or(count, |(_, highest)| *highest)
    }

    /// Nobody was there to ask until now: what was the highest is so as of now.
    pub(super) fn resume(&mut self, now: Tick) {
        if let Some((_, highest)) = self.seen.front().copied() {
            self.seen.clear();
            self.seen.push_back((now, highest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_falls_only_after_the_span() {
        let mut recent_max = RecentMax::new(Duration::from_secs(5));
        for (row, (at, count, expected)) in [
            (0, 1, 1),
            (1, 10, 10),
            (2, 1, 10), // the set was lost
            (3, 7, 10),
            (4, 9, 10),
            (6, 9, 10),
            (7, 9, 9), // one has left
            (12, 4, 9),
            (13, 4, 4),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(recent_max.add(Tick::from_secs(at), count), expected, "row {row}");
        }
        assert!(recent_max.seen.len() <= 6, "{recent_max:?}");
    }

    #[test]
    fn an_outage_does_not_count() {
        let mut recent_max = RecentMax::new(Duration::from_secs(5));
        assert_eq!(recent_max.add(Tick::from_secs(0), 10), 10);
        recent_max.resume(Tick::from_secs(100));
        assert_eq!(recent_max.add(Tick::from_secs(100), 1), 10);
        assert_eq!(recent_max.add(Tick::from_secs(106), 3), 3);
    }
}
