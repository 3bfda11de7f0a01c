//! GCRA, the generic cell rate algorithm: also the token bucket, and the leaky bucket as a meter.
//!
//! # The idea
//!
//! A limiter is booked up to some point in time, the *theoretical arrival time* `tat`. An event
//! books the time its cost takes to refill. It may pass if, afterwards, the limiter is not booked
//! further ahead than the burst. A limiter that is booked up to the past is full.
//!
//! ```text
//! tat' = max(tat, now) + cost          allowed if  tat' - now <= burst
//! ```
//!
//! # One machine, three names
//!
//! | name | looks at | which is |
//! |---|---|---|
//! | token bucket | the tokens left | burst - (tat - now) |
//! | leaky bucket as a meter | the water in it | tat - now |
//! | GCRA | the theoretical arrival time | tat |
//!
//! With rate 10/s and burst 5, an idle start, and calls of cost 1:
//!
//! | at | tokens before | water after | tat after | answer |
//! |---|---|---|---|---|
//! | 0 ms, five calls | 5, 4, 3, 2, 1 | 1 .. 5 | 100 .. 500 ms | allowed |
//! | 0 ms | 0 | 5 | 500 ms | denied, retry at 100 ms |
//! | 99 ms | 0.99 | 4.01 | 500 ms | denied, retry at 100 ms |
//! | 100 ms | 1 | 5 | 600 ms | allowed |
//! | 800 ms | 5 (full) | 1 | 900 ms | allowed |
//!
//! # State and units
//!
//! One word: `tat` in ninths of a nanosecond since the clock's origin. The word does not depend on the
//! quota: whatever the next call's rate and burst are, it goes on from the same `tat`. Zero is the
//! state of a limiter never used, and a `tat` in the past is as good. Where a permit lasts a whole
//! number of ninths, permits are added to that time; elsewhere a step goes through places
//! (`scale.rs`), so that no rounding adds up. A budget that never refills counts what is used, above
//! all times.
//!
//! # Exact and approximate
//!
//! - Permits add up exactly, and the long-run rate is exact.
//! - In every interval `w`: admitted cost <= burst + rate x w, and a place more where a permit does not
//!   last a whole number of ninths: at most two ninths of a nanosecond.
//! - `retry` and `full` are the first ticks at which the word says so: exact.
//! - Under another quota a word may lie within a place; it then counts as the start of that place.
//!
//! # Time
//!
//! Standing still: nothing refills. Backwards: decides as of the earlier time, so it can only
//! refuse more, and nothing is lost. Far ahead: full, and no more than full.
//!
//! # Cost
//!
//! 8 bytes; additions and comparisons, and four multiplications more in places. All that is booked
//! ahead, burst and debt, refills within 4.5 years.
//!
//! Source: ITU-T I.371, the virtual scheduling form, with `burst` in place of the tolerance
//! (tolerance = burst - 1 permit). Departures: (1) several permits at once; (2) `tat` may be booked
//! beyond the burst by `force` and `reserve`; (3) the time between two permits is not rounded.

mod booking;
mod quota_change;
mod scale;

pub(crate) use booking::Booked;

use super::{
    Idle, PARAMETERS, Packed, Step, share,
    word_time::{self, AHEAD_MAX, OWED},
};
use crate::{
    Initial, Quota, QuotaError, Tick,
    decision::{Decision, Level},
    table::Hint,
};
use scale::{BUDGET_MAX, Scale};
use std::time::Duration;

/// GCRA with its parameters. The state is the word described in the module's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    scale: Scale,
    burst: u64,
    initial: u64,
    /// How far the clock's early reading may lag, in places; zero if it has none.
    margin: u64,
    /// How long it takes to refill, for tables; that of a share if it never does.
    hint: Hint,
}

/// What can be said of an event, perhaps of a time known only to lie in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Denied, at both ends of the interval.
    Denied,
    /// Allowed at both ends, and this is the new place whatever the time is.
    Allowed(u64),
    /// It depends on the time.
    Open,
}

impl Gcra {
    /// Returns the algorithm for a quota.
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`], or if the burst takes more than 4.5 years to refill.
    pub const fn new(quota: &Quota) -> Result<Self, QuotaError> {
        if let Err(error) = quota.check_countable() {
            return Err(error);
        }
        let (count, period_ns, burst) = (quota.count(), quota.period_ns(), quota.capacity());
        let (scale, initial) = (Scale::new(count, period_ns), quota.initial_permits());
        let mut gcra = Self { scale, burst, initial, margin: 0, hint: Hint::of_share(u64::MAX) };
        // OVERFLOW: 10^15 < 2^50 permits of less than 2^58.
        if burst as u128 * scale.per_permit as u128 > gcra.ahead_max() as u128 {
            return Err(QuotaError::RefillTooLong { burst, count, period: quota.period() });
        }
        if let Some(time) = gcra.refill() {
            gcra.hint = Hint::of_refill(time);
        }
        Ok(gcra)
    }

    /// Returns the most places that a limiter may be booked ahead, burst and debt together.
    const fn ahead_max(&self) -> u64 {
        if self.scale.is_budget() { BUDGET_MAX } else { self.scale.place(AHEAD_MAX) }
    }

    /// OVERFLOW: at most [`AHEAD_MAX`] for `permits <= burst`, which every caller ensures.
    #[inline(always)]
    const fn span(&self, permits: u64) -> u64 {
        permits * self.scale.per_permit
    }

    /// Returns the span of a cost that may exceed the burst, if it fits a debt.
    const fn debt_span(&self, permits: u64) -> Option<u64> {
        if permits > self.ahead_max() / self.scale.per_permit {
            None
        } else {
            Some(self.span(permits))
        }
    }

    /// Returns the whole permits in a number of places.
    #[inline(always)]
    const fn permits(&self, places: u64) -> u64 {
        places / self.scale.per_permit
    }

    /// Returns the permits in a number of places, those of which only a part is in it included.
    pub(crate) const fn touched_permits(&self, places: u64) -> u64 {
        places.div_ceil(self.scale.per_permit)
    }

    /// Returns the place of `now`.
    #[inline(always)]
    pub(crate) const fn position(&self, now: Tick) -> u64 {
        self.place(word_time::from_tick(now))
    }

    /// Returns the place up to which a word is booked.
    #[inline(always)]
    pub(crate) const fn place(&self, word: u64) -> u64 {
        self.scale.place(word)
    }

    /// Returns the word that is booked up to a place.
    #[inline(always)]
    pub(crate) const fn word(&self, place: u64) -> u64 {
        self.scale.word(place)
    }

    /// Books a word up to a place, if it is not booked further already.
    pub(crate) fn raise(&self, tat: &mut u64, place: u64) {
        if self.place(*tat) < place {
            *tat = self.word(place);
        }
    }

    /// Prepares for a clock whose early reading lags by up to `margin`.
    #[inline(always)]
    pub(crate) const fn with_margin(mut self, margin: Tick) -> Self {
        // Rounded up, because both ends of the interval are rounded down.
        self.margin = self.position(margin) + (margin.as_nanos() > 0) as u64;
        self
    }

    /// Judges an event at `position`, for a limiter booked up to the place `tat`. If `early` is set, the exact time is only known to lie between
    /// `position` and the clock's margin later. Reading it costs more than the rest of a decision, and
    /// two cases do not need it:
    ///
    /// - (a) the event is denied even at the later end: then it is denied now;
    /// - (b) the limiter is booked beyond the later end, so `max(tat, now)` is `tat` whatever the
    ///   time, and the event passes even at the earlier end: then it passes now.
    #[inline(always)]
    pub(crate) const fn judge(&self, tat: u64, position: u64, early: bool, cost: u64) -> Judged {
        if cost > self.burst {
            return Judged::Denied;
        }
        // OVERFLOW: below 2^63, see the table in `word_time`; the margin is some milliseconds.
        let late = if early { position + self.margin } else { position };
        let (span, full) = (self.span(cost), self.span(self.burst));
        // With tat <= now the limiter is full, and then every cost up to the burst passes.
        if tat + span > late + full {
            return Judged::Denied;
        }
        if tat > late {
            // The same at both ends, if it passes at the earlier one.
            let next = tat + span;
            return if next <= position + full { Judged::Allowed(next) } else { Judged::Open };
        }
        if early { Judged::Open } else { Judged::Allowed(position + span) }
    }

    /// Tells whether [`judge`](Self::judge) would have decided about `cost` at the exact
    /// `position`, however much the early reading lags.
    #[inline(always)]
    pub(crate) const fn is_clear(&self, tat: u64, position: u64, cost: u64) -> bool {
        if self.margin == 0 || cost > self.burst {
            return false;
        }
        let (next, late) = (tat + self.span(cost), position + self.margin);
        let full = self.span(self.burst);
        next > late + full || (tat > late && next + self.margin <= position + full)
    }

    /// Answers as of `now` for a limiter already decided upon: allowed if `after` is given. Both are a
    /// place with its word.
    #[inline(always)]
    pub(crate) const fn answer(
        &self,
        before: (u64, u64),
        after: Option<(u64, u64)>,
        (now, position): (Tick, u64),
        cost: u64,
    ) -> Decision {
        let (booked, full) = match after {
            Some(after) => after,
            None => before,
        };
        let ahead = booked.saturating_sub(position);
        let remaining = self.permits(self.span(self.burst).saturating_sub(ahead));
        let level = Level { at: now, limit: self.burst, remaining, full };
        if after.is_some() {
            Decision::allowed(level, cost)
        } else if cost > self.burst || self.scale.is_budget() {
            Decision::never(level, cost)
        } else {
            // The call passes once tat + cost - now <= burst. Here tat + cost > burst, or it would
            // have passed.
            let retry = (booked + self.span(cost)).saturating_sub(self.span(self.burst));
            Decision::later(level, cost, self.word(retry))
        }
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    /// Books `cost` whether it is free or not, up to a debt of what `debt` refills: what goes
    /// beyond is forgiven.
    pub(crate) fn charge_within(&self, tat: &mut u64, now: Tick, cost: u64, debt: Duration) {
        if cost == 0 {
            return;
        }
        let position = self.position(now);
        let debt = self.position(Tick::ZERO.saturating_add(debt));
        // OVERFLOW: below 2^63 for debts of some years, see the table in `word_time`.
        let most = position + (self.span(self.burst) + debt).min(self.ahead_max());
        let base = self.place(*tat).max(position);
        let booked = self.debt_span(cost).map_or(most, |span| base + span);
        // A booking by an earlier quota that reaches further stays.
        self.raise(tat, booked.min(most));
    }

    /// Returns the state that a word of a table stands for, by a quota that is in force since `since`; `hint` is
    /// that of the quota by which it was written. A longer quota may have left more than the burst: nobody stays
    /// denied by it for longer than this one takes to refill.
    pub(crate) fn current(&self, word: u64, hint: Hint, since: Tick) -> u64 {
        let time = word & (OWED - 1);
        let is_left_over = if word_time::is_budget(word) {
            !self.scale.is_budget()
        } else {
            // A later word is not shortened: else two quotas in turn would free each other's keys.
            word < OWED
                && hint.is_longer_than(self.hint)
                && time.saturating_sub(hint.refill_most()) <= word_time::from_tick(since)
        };
        if !is_left_over {
            return time;
        }
        let (place, full) = (self.place(time), self.span(self.burst));
        let end = self.position(since) + full;
        // Less than a permit beyond is what an adaptive rate leaves, whose burst is rounded: to cut it would be a gain.
        // Neither case depends on the time now: else a wait that was named would not hold.
        if place < end + self.span(1) { time } else { self.word(end) }
    }

    /// The hint of the words that this quota writes; of a budget one that none has.
    #[inline]
    pub(crate) const fn hint(&self) -> Hint {
        self.hint
    }

    /// Returns the word of a table for a state.
    pub(crate) const fn marked(&self, tat: u64, now: Tick) -> u64 {
        let is_owed = self.place(tat) > self.position(now) + self.span(self.burst);
        if is_owed && !self.scale.is_budget() { tat | OWED } else { tat }
    }

    /// Returns how long an empty bucket takes to refill, as a word holds it; `None` for a budget.
    pub(crate) const fn refill(&self) -> Option<u64> {
        if self.scale.is_budget() { None } else { Some(self.word(self.span(self.burst))) }
    }

    /// Returns the quota, or one that means the same.
    pub(crate) fn quota(&self) -> Quota {
        let (count, period_ns) = self.scale.rate();
        let quota = match count {
            0 => Quota::once(self.burst),
            count => Quota::per(count, Duration::from_nanos(period_ns)).burst(self.burst),
        };
        quota.initial(Initial::Permits(self.initial))
    }

    /// Tells whether a place is a time.
    pub(crate) const fn is_budget(&self) -> bool {
        self.scale.is_budget()
    }

    /// [`Step::decide`] with the position of `now` at hand.
    #[inline(always)]
    pub(crate) const fn decide_at(
        &self,
        tat: u64,
        now: Tick,
        position: u64,
        cost: u64,
    ) -> (Decision, u64) {
        let before = self.place(tat);
        let Judged::Allowed(next) = self.judge(before, position, false, cost) else {
            return (self.answer((before, tat), None, (now, position), cost), tat);
        };
        // A cost of nothing must leave an idle word as it is.
        let word = if cost > 0 { self.word(next) } else { tat };
        (self.answer((before, tat), Some((next, word)), (now, position), cost), word)
    }
}

impl Step for Gcra {
    type State = u64;

    fn initial(&self, now: Tick) -> u64 {
        let missing = self.burst - self.initial;
        if missing == 0 { 0 } else { self.word(self.position(now) + self.span(missing)) }
    }

    #[inline]
    fn peek(&self, tat: &u64, now: Tick, cost: u64) -> Decision {
        self.decide_at(*tat, now, self.position(now), cost).0
    }

    fn available(&self, tat: &u64, now: Tick) -> u64 {
        let ahead = self.place(*tat).saturating_sub(self.position(now));
        self.permits(self.span(self.burst).saturating_sub(ahead))
    }

    fn charge(&self, tat: &mut u64, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let position = self.position(now);
        let base = self.place(*tat).max(position);
        let next = self.debt_span(cost).map(|span| base + span);
        let fits = next.filter(|next| next - position <= self.ahead_max());
        if let Some(next) = fits {
            *tat = self.word(next);
        }
        fits.is_some()
    }

    fn chargeable(&self, tat: &u64, now: Tick) -> u64 {
        let ahead = self.place(*tat).saturating_sub(self.position(now));
        self.permits(self.ahead_max().saturating_sub(ahead))
    }

    #[inline]
    fn decide(&self, tat: &mut u64, now: Tick, cost: u64) -> Decision {
        let (decision, next) = self.decide_at(*tat, now, self.position(now), cost);
        *tat = next;
        decision
    }

    /// Marks and amounts are places, so they mean something only to calls by the same quota.
    fn mark(&self, tat: &u64, _now: Tick) -> u64 {
        self.place(*tat)
    }

    fn passed(&self, _tat: &u64, now: Tick) -> u64 {
        self.position(now)
    }

    /// Gives back `clamp(mark - now, 0, most)`: what time has not refilled yet. The host has
    /// lowered `mark` by every refund since of a charge older than this one.
    fn give_back(&self, tat: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        let booked = self.place(*tat);
        let amount = mark.saturating_sub(self.position(now)).min(most).min(booked);
        if amount > 0 {
            *tat = self.word(booked - amount);
        }
        amount
    }

    fn units(&self, permits: u64) -> u64 {
        self.debt_span(permits).unwrap_or_else(|| self.ahead_max())
    }

    fn whole_permits(&self, units: u64) -> u64 {
        self.permits(units)
    }
}

impl Packed for Gcra {
    #[inline]
    fn pack(&self, tat: &u64) -> u64 {
        *tat
    }

    #[inline]
    fn unpack(&self, word: u64) -> u64 {
        word
    }

    fn to_words(self) -> [u64; PARAMETERS] {
        let Scale { ninths, places, per_permit, by_ninths, by_places } = self.scale;
        // The margin is some milliseconds.
        let small = self.margin << 8 | self.hint.bits();
        [ninths, per_permit, self.burst, small, self.initial, places, by_ninths, by_places]
    }

    #[inline(always)]
    fn from_words(words: [u64; PARAMETERS]) -> Self {
        let [ninths, per_permit, burst, small, initial, places, by_ninths, by_places] = words;
        let scale = Scale { ninths, places, per_permit, by_ninths, by_places };
        Self { scale, burst, initial, margin: small >> 8, hint: Hint::from_bits(small) }
    }
}

impl Gcra {
    /// What [`from_words`](Packed::from_words) returns if a permit lasts a whole time.
    #[inline(always)]
    pub(crate) fn whole_from_words([a, b, c, d]: [u64; 4]) -> Option<Self> {
        Self::from_words([a, b, c, d, 0, 0, 0, 0]).whole()
    }

    /// Returns these parameters if a permit lasts a whole time, as the compiler then knows it.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Option<Self> {
        self.scale.whole().map(|scale| Self { scale, ..*self })
    }
}

impl Idle for Gcra {
    fn burden(&self, tat: &u64, now: Tick) -> u64 {
        share(self.place(*tat).saturating_sub(self.position(now)), self.span(self.burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gcra(text: &str) -> Gcra {
        Gcra::new(&text.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_largest_word_leaves_the_hosts_bits_free() {
        for text in ["1000000000/s burst 1", "700M/s", "7/min burst 9", "1/month", "0/s burst 10"] {
            let gcra = gcra(text);
            let mut tat = 0;
            for cost in [1_u64 << 60, 1 << 50, 1 << 40, 1 << 30, 1 << 20, 1 << 10, 1] {
                while gcra.charge(&mut tat, Tick::MAX, cost) {}
            }
            assert_eq!(gcra.chargeable(&tat, Tick::MAX), 0, "{text}");
            assert!(tat < OWED, "{text}: {tat}");
        }
    }

    #[test]
    fn an_early_judgement_agrees_with_the_exact_one_at_both_ends() {
        let margin_ns = 12_000_000;
        let gcra = gcra("1000/s burst 50").with_margin(Tick::from_nanos(margin_ns));
        for early_ms in 0..200 {
            for used in 0..60 {
                let early = Tick::from_millis(1000 + early_ms);
                let place = gcra.position(Tick::from_millis(1100)) + gcra.span(used);
                let tat = gcra.word(place);
                let ends = [0, margin_ns].map(|ns| {
                    let now = Tick::from_nanos(early.as_nanos() + ns);
                    gcra.decide_at(tat, now, gcra.position(now), 1)
                });
                match gcra.judge(place, gcra.position(early), true, 1) {
                    Judged::Denied => {
                        assert!(ends.iter().all(|(decision, _)| decision.is_denied()));
                    }
                    Judged::Allowed(next) => {
                        assert!(ends.iter().all(|(decision, _)| decision.is_allowed()));
                        assert!(ends.iter().all(|(_, word)| *word == gcra.word(next)));
                    }
                    Judged::Open => {}
                }
            }
        }
    }
}
