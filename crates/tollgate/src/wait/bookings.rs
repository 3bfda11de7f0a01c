//! What a queue has booked on a limiter: a pure list of spans.
//!
//! The idea: a caller who joins the queue books its cost at the end of the timeline at once, so every
//! other verb of the limiter (`try_acquire`, `reserve`, several limits in one decision) comes after
//! the queue by itself, and its answer is exact. But the bookings belong to the queue, not to their
//! makers: the caller who is served next takes the front, and a caller who leaves gives back the rear.
//! So the callers behind move up, whatever the order of service, and a booking never has to move.
//!
//! Spans are half-open, in the places of the limiter's GCRA. They touch unless another
//! caller booked between two of them; then there is a gap, which stays where it is. Usually there is one
//! span. The sum of their lengths is the sum of the costs of the waiting callers.
//!
//! Why this never admits too much: callers hold disjoint pieces of the timeline. The piece of a caller
//! who acts at a time a lies in [a, a + burst], so the pieces of all callers who act in [s, t] lie in
//! [s, t + burst]. Where a gap makes the front too old for that, the old part
//! is given up for as much at the rear (`limiter_queue/serve.rs`).

use crate::reservation::fenwick::FenwickList;

#[derive(Debug, Default)]
pub(crate) struct Bookings {
    /// The lengths of the spans, at the places where they start.
    spans: FenwickList,
    /// INVARIANT: the sum of all lengths.
    pub(crate) length: u64,
}

impl Bookings {
    fn span(&self, index: usize) -> (u64, u64) {
        (self.spans.place(index), self.spans.value(index))
    }

    /// Adds `[start, end)`, which lies behind all others.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        debug_assert!(self.end().is_none_or(|last| last <= start) && start < end);
        let length = end - start;
        self.length += length;
        match self.spans.last() {
            Some(last) if self.end() == Some(start) => {
                self.spans.set_value(last, self.spans.value(last) + length);
            }
            _ => {
                self.spans.warm_up();
                self.spans.push(start, length);
            }
        }
    }

    /// Returns the position at which the first `length` end; `None` if there is not so much.
    pub(crate) fn front_end(&self, length: u64) -> Option<u64> {
        let mut left = length;
        for (start, has) in self.spans.indices().map(|index| self.span(index)) {
            if left <= has {
                return Some(start + left);
            }
            left -= has;
        }
        None
    }

    /// Takes the first `length` away, for a caller who is served.
    pub(crate) fn take_front(&mut self, length: u64) {
        let mut left = length;
        while left > 0 {
            let Some(first) = self.spans.first() else { break };
            let (start, has) = self.span(first);
            let taken = left.min(has);
            left -= taken;
            self.spans.set_place(first, start + taken);
            self.shorten(first, taken);
        }
    }

    /// Takes up to `length` of the last span away, and returns where it ended and how much that was.
    /// More may be left to take.
    pub(crate) fn take_rear(&mut self, length: u64) -> Option<(u64, u64)> {
        let last = self.spans.last()?;
        let (start, has) = self.span(last);
        let taken = length.min(has);
        self.shorten(last, taken);
        Some((start + has, taken))
    }

    /// Takes `length` from a span, which goes if nothing is left of it.
    fn shorten(&mut self, index: usize, length: u64) {
        self.length -= length;
        match self.spans.value(index) - length {
            0 => _ = self.spans.remove(index),
            left => self.spans.set_value(index, left),
        }
    }

    /// Moves up all spans behind `position`, because `amount` before it was given back. At the origin of
    /// the clock they cannot move up all the way, but do not get shorter.
    pub(crate) fn lower_behind(&mut self, position: u64, amount: u64) {
        let first = position.checked_sub(1).map_or(0, |before| self.spans.first_behind(before));
        self.spans.lower_from(first, amount);
    }

    /// Returns where the first one starts, and its length.
    pub(crate) fn front(&self) -> Option<(u64, u64)> {
        self.spans.first().map(|first| self.span(first))
    }

    /// Returns where the last one ends.
    pub(crate) fn end(&self) -> Option<u64> {
        self.spans.last().map(|last| self.span(last)).map(|(start, length)| start + length)
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.length = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(bookings: &Bookings) -> Vec<(u64, u64)> {
        let spans = bookings.spans.indices().map(|index| bookings.span(index));
        spans.map(|(start, length)| (start, start + length)).collect()
    }

    #[test]
    fn what_touches_is_one() {
        let mut bookings = Bookings::default();
        bookings.add(10, 15);
        bookings.add(15, 20);
        bookings.add(25, 30);
        assert_eq!(spans(&bookings), [(10, 20), (25, 30)]);
        assert_eq!(bookings.length, 15);
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
        assert_eq!(bookings.length, 15, "a waiting caller keeps what is booked");
    }
}
