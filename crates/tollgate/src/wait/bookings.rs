//! What a queue has booked on a limiter: a pure list of spans.
//!
//! The idea: whoever joins the queue books its cost at the end of the timeline at once, so every
//! other verb of the limiter (`try_acquire`, `reserve`, several limits in one decision) comes after
//! the queue by itself, and its answer is exact. But the bookings belong to the queue, not to their
//! makers: whoever is served next takes the front, and whoever leaves gives back the rear. So those
//! behind move up, whatever the order of service, and a booking never has to be moved.
//!
//! Spans are half-open, in the places of the limiter's GCRA. They touch unless somebody else
//! booked between two of them; then there is a gap, which stays where it is. As a rule there is one
//! span. The sum of their lengths is the sum of the costs of those who wait.
//!
//! Why this never admits too much: whoever acts at a time a with permits that all lie in
//! [a, a + burst] takes part in a set of disjoint pieces of the timeline, and those of everybody who
//! acts in [s, t] lie in [s, t + burst]. Where a gap makes the front too old for that, the old part
//! is given up for as much at the rear (`line/serve.rs`).

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Bookings {
    spans: VecDeque<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

impl Bookings {
    /// Adds `[start, end)`, which lies behind all others.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        debug_assert!(self.spans.back().is_none_or(|last| last.end <= start) && start < end);
        match self.spans.back_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.spans.push_back(Span { start, end }),
        }
    }

    /// Returns the position at which the first `length` end; `None` if there is not so much.
    pub(crate) fn front_end(&self, length: u64) -> Option<u64> {
        let mut left = length;
        for span in &self.spans {
            let has = span.end - span.start;
            if left <= has {
                return Some(span.start + left);
            }
            left -= has;
        }
        None
    }

    /// Takes the first `length` away: they are somebody's.
    pub(crate) fn take_front(&mut self, length: u64) {
        let mut left = length;
        while left > 0 {
            let Some(span) = self.spans.front_mut() else { break };
            let taken = left.min(span.end - span.start);
            span.start += taken;
            left -= taken;
            if span.start == span.end {
                self.spans.pop_front();
            }
        }
    }

    /// Takes up to `length` of the last span away, and returns where it ended and how much that was.
    /// More may be left to take.
    pub(crate) fn take_rear(&mut self, length: u64) -> Option<(u64, u64)> {
        let span = self.spans.back_mut()?;
        let (end, taken) = (span.end, length.min(span.end - span.start));
        span.end -= taken;
        if span.start == span.end {
            self.spans.pop_back();
        }
        Some((end, taken))
    }

    /// Somebody who booked up to `position` gave back `amount`: all that is behind moves up.
    pub(crate) fn lower_behind(&mut self, position: u64, amount: u64) {
        for span in self.spans.iter_mut().filter(|span| span.start >= position) {
            // At the origin of the clock it cannot move up all the way, but must not get shorter.
            let up = amount.min(span.start);
            span.start -= up;
            span.end -= up;
        }
    }

    /// Returns where the first one starts, and its length.
    pub(crate) fn front(&self) -> Option<(u64, u64)> {
        self.spans.front().map(|first| (first.start, first.end - first.start))
    }

    /// Returns where the last one ends.
    pub(crate) fn end(&self) -> Option<u64> {
        self.spans.back().map(|last| last.end)
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
    }

    /// Returns the sum of all lengths.
    pub(crate) fn length(&self) -> u64 {
        self.spans.iter().map(|span| span.end - span.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(bookings: &Bookings) -> Vec<(u64, u64)> {
        bookings.spans.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn what_touches_is_one() {
        let mut bookings = Bookings::default();
        bookings.add(10, 15);
        bookings.add(15, 20);
        bookings.add(25, 30);
        assert_eq!(spans(&bookings), [(10, 20), (25, 30)]);
        assert_eq!(bookings.length(), 15);
    }

    #[test]
    fn the_front_is_taken_across_gaps() {
        let mut bookings = Bookings::default();
        bookings.add(10, 20);
        bookings.add(25, 30);
        for (length, end) in [(1, Some(11)), (10, Some(20)), (11, Some(26)), (16, None)] {
            assert_eq!(bookings.front_end(length), end, "{length}");
        }
        bookings.take_front(12);
        assert_eq!(spans(&bookings), [(27, 30)]);
    }

    #[test]
    fn the_rear_is_given_back_span_by_span() {
        let mut bookings = Bookings::default();
        bookings.add(10, 20);
        bookings.add(25, 30);
        assert_eq!(bookings.take_rear(7), Some((30, 5)));
        assert_eq!(bookings.take_rear(2), Some((20, 2)));
        assert_eq!(spans(&bookings), [(10, 18)]);
    }

    #[test]
    fn a_gift_moves_up_only_what_is_behind() {
        let mut bookings = Bookings::default();
        bookings.add(10, 20);
        bookings.add(25, 30);
        bookings.lower_behind(25, 5);
        assert_eq!(spans(&bookings), [(10, 20), (20, 25)]);
        bookings.lower_behind(0, 15);
        assert_eq!(bookings.length(), 15, "whoever waits keeps what is booked");
    }
}
