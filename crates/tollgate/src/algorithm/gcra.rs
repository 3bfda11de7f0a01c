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
//! One word: `tat` as a position on the [`Timeline`], that is, in permits with `f` fraction bits
//! since the clock's origin. A permit is exactly 2^f positions. `f` is as large as rate and burst
//! leave room for: 30 for 3/s, 2 for 10^9/s. Zero is the state of a limiter never used.
//!
//! # Exact and approximate
//!
//! - Permits add up exactly; the long-run rate is the quota's to one part in 2^63.
//! - In every interval `w`: admitted cost <= burst + rate x w + 2^(1-f). The last term is the
//!   rounding of `now` to a position: less than a nanosecond's worth unless the burst is huge.
//! - `retry` and `full` are the first ticks whose position reaches the needed one: exact.
//!
//! # Time
//!
//! Standing still: nothing refills. Backwards: decides as of the earlier time, so it can only
//! refuse more, and nothing is lost. Far ahead: full, and no more than full.
//!
//! # Cost
//!
//! 8 bytes; one multiplication to place `now`, then additions and comparisons.
//!
//! Source: ITU-T I.371, the virtual scheduling form, with `burst` in place of the tolerance
//! (tolerance = burst - 1 permit). Departures: (1) the unit is permits, not time; (2) several
//! permits at once; (3) `tat` may be booked beyond the burst by `force` and `reserve`.

mod booking;

pub(crate) use booking::Booked;

use super::{
    Idle, Inherit, Packed, Step, Succeed,
    inherit::{FRACTION, used_after},
    share,
    timeline::{BURST_SPAN, DEBT_SPAN, PER_NANO_MAX, Timeline},
};
use crate::{
    Quota, QuotaError, Tick,
    decision::{Decision, Level},
};
use std::time::Duration;

/// GCRA with its parameters. The state is the word described in the module's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    timeline: Timeline,
    /// A permit is 2^fraction positions.
    fraction: u8,
    burst: u64,
    initial: u64,
    /// How far the clock's early reading may lag, in positions; zero if it has none.
    margin: u64,
}

/// What can be said of an event, perhaps of a time known only to lie in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Denied, at both ends of the interval.
    Denied,
    /// Allowed at both ends, and this is the new word whatever the time is.
    Allowed(u64),
    /// It depends on the time.
    Open,
}

impl Gcra {
    /// Returns the algorithm for a quota.
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`].
    pub const fn new(quota: &Quota) -> Result<Self, QuotaError> {
        if let Err(error) = quota.check_countable() {
            return Err(error);
        }
        let (count, period_ns) = (quota.count(), quota.period_ns());
        let burst = quota.capacity();
        let by_burst = BURST_SPAN / (if burst == 0 { 1 } else { burst });
        let by_rate = match count {
            0 => u128::MAX,
            count => PER_NANO_MAX * period_ns as u128 / count as u128,
        };
        // OVERFLOW: by_burst >= 2^58 / 10^15 > 1 and by_rate >= 4, so both have a logarithm, which
        // is at most 58.
        let fraction = if by_burst as u128 <= by_rate { by_burst.ilog2() } else { by_rate.ilog2() };
        Ok(Self {
            timeline: Timeline::new(count, fraction, period_ns),
            fraction: fraction as u8,
            burst,
            initial: quota.initial_permits(),
            margin: 0,
        })
    }

    /// OVERFLOW: at most [`BURST_SPAN`] for `permits <= burst`, which every caller ensures.
    #[inline(always)]
    const fn span(&self, permits: u64) -> u64 {
        permits << self.fraction
    }

    /// Returns the span of a cost that may exceed the burst, if it fits a debt.
    const fn debt_span(&self, permits: u64) -> Option<u64> {
        if permits > DEBT_SPAN >> self.fraction { None } else { Some(self.span(permits)) }
    }

    #[inline(always)]
    pub(crate) const fn position(&self, now: Tick) -> u64 {
        self.timeline.position(now)
    }

    /// Prepares for a clock whose early reading lags by up to `margin`.
    pub(crate) const fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = match margin {
            Duration::ZERO => 0,
            // Rounded up, because both ends of the interval are rounded down.
            margin => self.timeline.position(Tick::ZERO.saturating_add(margin)) + 1,
        };
        self
    }

    /// Judges an event at `position`. If `early` is set, the exact time is only known to lie between
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
        // OVERFLOW: below 2^61, see the table in `timeline`; the margin is some milliseconds.
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

    /// Answers as of `now` for a word that is already decided upon: allowed if `after` is given.
    #[inline(always)]
    pub(crate) const fn answer(
        &self,
        before: u64,
        after: Option<u64>,
        (now, position): (Tick, u64),
        cost: u64,
    ) -> Decision {
        let booked = match after {
            Some(after) => after,
            None => before,
        };
        let ahead = booked.saturating_sub(position);
        let remaining = self.span(self.burst).saturating_sub(ahead) >> self.fraction;
        let level = Level { at: now, limit: self.burst, remaining, full: booked };
        if after.is_some() {
            Decision::allowed(self.timeline, level, cost)
        } else if cost > self.burst {
            Decision::never(self.timeline, level, cost)
        } else {
            // The call passes once tat + cost - now <= burst. Here tat + cost > burst, or it would
            // have passed.
            let retry = (before + self.span(cost)).saturating_sub(self.span(self.burst));
            Decision::later(self.timeline, level, cost, retry)
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
        // OVERFLOW: below 2^61 for debts of some years, see the table in `timeline`.
        let most = position + (self.span(self.burst) + debt).min(DEBT_SPAN);
        let booked = self.debt_span(cost).map_or(most, |span| (*tat).max(position) + span);
        // What is booked further already, by an earlier quota, stays so.
        *tat = booked.min(most).max(*tat);
    }

    /// Returns how far this limiter is booked ahead if it was `ahead` under `old`; `None` if it
    /// starts anew.
    pub(crate) fn carry(&self, old: &Self, ahead: u64, how: Inherit) -> Option<u64> {
        // OVERFLOW: at most 2^60 positions of 2^-f permits, f >= 2, so below 2^122.
        let used = u128::from(ahead) << (FRACTION - u32::from(old.fraction));
        let used = used_after(how, used, old.burst, self.burst)?;
        let ahead = used.div_ceil(1 << (FRACTION - u32::from(self.fraction)));
        Some(ahead.min(u128::from(DEBT_SPAN)) as u64)
    }

    /// Returns how far ahead of `now` a word is booked, in 2^-64 permits.
    pub(crate) fn ahead(&self, tat: u64, now: Tick) -> u128 {
        // OVERFLOW: as in `carry`.
        u128::from(tat.saturating_sub(self.position(now))) << (FRACTION - u32::from(self.fraction))
    }

    /// Returns the word that was booked `ahead` some time ago; zero if that has refilled.
    pub(crate) fn booked(&self, ahead: u128, elapsed: Duration, now: Tick) -> u64 {
        let ahead = ahead.div_ceil(1 << (FRACTION - u32::from(self.fraction)));
        let ahead = ahead.min(u128::from(DEBT_SPAN)) as u64;
        let refilled = self.position(Tick::ZERO.saturating_add(elapsed));
        match ahead.saturating_sub(refilled) {
            0 => 0,
            left => self.position(now) + left,
        }
    }

    /// [`Step::decide`] with the position of `now` at hand.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: a decision is too large to be copied")]
    pub(crate) const fn decide_at(
        &self,
        tat: u64,
        now: Tick,
        position: u64,
        cost: u64,
    ) -> (Decision, u64) {
        let Judged::Allowed(next) = self.judge(tat, position, false, cost) else {
            return (self.answer(tat, None, (now, position), cost), tat);
        };
        // OVERFLOW: what passes is booked from now on, and not beyond the burst.
        let remaining = (self.span(self.burst) - (next - position)) >> self.fraction;
        let level = Level { at: now, limit: self.burst, remaining, full: next };
        let decision = Decision::allowed(self.timeline, level, cost);
        // A cost of nothing must leave an idle word as it is.
        (decision, if cost > 0 { next } else { tat })
    }
}

impl Step for Gcra {
    type State = u64;

    fn initial(&self, now: Tick) -> u64 {
        let missing = self.burst - self.initial;
        if missing == 0 { 0 } else { self.position(now) + self.span(missing) }
    }

    #[inline]
    fn peek(&self, tat: &u64, now: Tick, cost: u64) -> Decision {
        self.decide_at(*tat, now, self.position(now), cost).0
    }

    fn available(&self, tat: &u64, now: Tick) -> u64 {
        let ahead = tat.saturating_sub(self.position(now));
        self.span(self.burst).saturating_sub(ahead) >> self.fraction
    }

    fn charge(&self, tat: &mut u64, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let position = self.position(now);
        let base = (*tat).max(position);
        let next = self.debt_span(cost).map(|span| base + span);
        let fits = next.filter(|next| next - position <= DEBT_SPAN);
        if let Some(next) = fits {
            *tat = next;
        }
        fits.is_some()
    }

    fn chargeable(&self, tat: &u64, now: Tick) -> u64 {
        let ahead = tat.saturating_sub(self.position(now));
        DEBT_SPAN.saturating_sub(ahead) >> self.fraction
    }

    #[inline]
    fn decide(&self, tat: &mut u64, now: Tick, cost: u64) -> Decision {
        let (decision, next) = self.decide_at(*tat, now, self.position(now), cost);
        *tat = next;
        decision
    }

    fn mark(&self, tat: &u64, _now: Tick) -> u64 {
        *tat
    }

    fn passed(&self, _tat: &u64, now: Tick) -> u64 {
        self.position(now)
    }

    /// Gives back `clamp(mark - now, 0, most)`: what time has not refilled yet. The host has
    /// lowered `mark` by every refund since of a charge older than this one.
    fn give_back(&self, tat: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        let amount = mark.saturating_sub(self.position(now)).min(most).min(*tat);
        *tat -= amount;
        amount
    }

    fn units(&self, permits: u64) -> u64 {
        self.debt_span(permits).unwrap_or(DEBT_SPAN)
    }

    fn whole_permits(&self, units: u64) -> u64 {
        units >> self.fraction
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

    fn to_words(self) -> [u64; 4] {
        let (multiplier, shift) = self.timeline.to_words();
        // OVERFLOW: the burst is below 2^50, the fraction below 2^6 and the shift below 2^7.
        let small = self.initial << 13 | u64::from(shift) << 6 | u64::from(self.fraction);
        [multiplier, small, self.burst, self.margin]
    }

    #[inline(always)]
    fn from_words([multiplier, small, burst, margin]: [u64; 4]) -> Self {
        let (fraction, shift) = (small as u8 & 0x3f, (small >> 6) as u8 & 0x7f);
        let timeline = Timeline::from_words(multiplier, shift);
        Self { timeline, fraction, burst, initial: small >> 13, margin }
    }
}

impl Idle for Gcra {
    fn is_idle(&self, tat: &u64, now: Tick) -> bool {
        *tat <= self.position(now)
    }

    fn burden(&self, tat: &u64, now: Tick) -> u64 {
        share(tat.saturating_sub(self.position(now)), self.span(self.burst))
    }
}

impl Succeed for Gcra {
    fn succeed(&self, old: &Self, tat: &u64, now: Tick, how: Inherit) -> u64 {
        let position = self.position(now);
        match self.carry(old, tat.saturating_sub(old.position(now)), how) {
            None => self.initial(now).max(position),
            Some(ahead) => position + ahead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gcra(text: &str) -> Gcra {
        Gcra::new(&text.parse().unwrap()).unwrap()
    }

    #[test]
    fn leaves_as_many_fraction_bits_as_there_is_room_for() {
        for (text, fraction) in [
            ("1000000000/s burst 1", 2),
            ("700M/s burst 1", 2),
            ("3/s", 30),
            ("1/month", 53),
            ("1/month burst 1000000000000000", 8),
            ("0/s burst 1", 58),
        ] {
            assert_eq!(gcra(text).fraction, fraction, "{text}");
        }
    }

    #[test]
    fn the_largest_word_leaves_the_hosts_bits_free() {
        for text in ["1000000000/s burst 1000000000000000", "1/month burst 1000000000000000"] {
            let gcra = gcra(text);
            let mut tat = 0;
            while gcra.charge(&mut tat, Tick::MAX, 1_000_000_000_000) {}
            assert!(tat < 1 << (64 - super::super::timeline::HOST_BITS), "{text}");
        }
    }

    #[test]
    fn an_early_judgement_agrees_with_the_exact_one_at_both_ends() {
        let margin_ns = 12_000_000;
        let gcra = gcra("1000/s burst 50").with_margin(Duration::from_nanos(margin_ns));
        for early_ms in 0..200 {
            for used in 0..60 {
                let early = Tick::from_millis(1000 + early_ms);
                let tat = gcra.position(Tick::from_millis(1100)) + gcra.span(used);
                let ends = [0, margin_ns].map(|ns| {
                    let now = Tick::from_nanos(early.as_nanos() + ns);
                    gcra.decide_at(tat, now, gcra.position(now), 1)
                });
                match gcra.judge(tat, gcra.position(early), true, 1) {
                    Judged::Denied => {
                        assert!(ends.iter().all(|(decision, _)| decision.is_denied()));
                    }
                    Judged::Allowed(next) => {
                        assert!(ends.iter().all(|(decision, _)| decision.is_allowed()));
                        assert!(ends.iter().all(|(_, word)| *word == next));
                    }
                    Judged::Open => {}
                }
            }
        }
    }
}
