//! GCRA in exact fractions.
//!
//! Time is counted in parts of a nanosecond, as many as the quota has permits in a period. So a permit
//! takes exactly as many parts as the period has nanoseconds, whatever the quota, and nothing is rounded.
//!
//! # The documented rounding
//!
//! A limiter answers as this bucket does at some moment from `late` before now to `early` after now.
//! [`Bucket::new`] has the values; all else in this file is exact. They are kept as parts.
//!
//! | | early | late |
//! |---|---|---|
//! | a bucket | nothing where a permit takes a whole number of ninths of a nanosecond, else two ninths | nothing |
//! | each time that a reservation gives back what time has not refilled | as much more | the same |
//! | a change of quota | what it was, at the new rate, and two ninths more of each; two more if it is proportional | the same, without the latter |
//! | a change to a budget that never refills | a permit more | the same |
//!
//! The rounding of give-backs and changes ends when the bucket is full.

use super::{left_after, scale};
use std::ops::RangeInclusive;
use tollgate::{Inherit, Quota, Tick};

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Parts of a nanosecond.
    count: i128,
    /// Parts that a permit takes.
    period: i128,
    capacity: i128,
    /// Up to when the bucket is booked.
    tat: i128,
    early: i128,
    late: i128,
}

/// A debt of less than four and a half years is never refused.
const DEBT_NS: i128 = 9 * 365 * 86_400 * 1_000_000_000 / 2;

impl Bucket {
    pub(super) fn new(quota: &Quota) -> Self {
        let (count, period) = (quota.count().into(), quota.period().as_nanos() as i128);
        let mut bucket =
            Self { count, period, capacity: quota.capacity().into(), tat: 0, early: 0, late: 0 };
        bucket.early = (bucket.rounding() - 1).max(0);
        bucket
    }

    /// Two ninths of a nanosecond, unless permits take a whole number of ninths.
    fn rounding(&self) -> i128 {
        let is_whole = self.count == 0 || 9 * self.period % self.count == 0;
        if is_whole { 0 } else { self.two_ninths() }
    }

    fn two_ninths(&self) -> i128 {
        (2 * self.count + 8) / 9
    }

    fn burst(&self) -> i128 {
        self.capacity * self.period
    }

    pub(super) fn time(&self, now: Tick) -> i128 {
        i128::from(now.min(Tick::HORIZON).as_nanos()) * self.count
    }

    pub(super) fn units(&self, permits: u64) -> i128 {
        i128::from(permits) * self.period
    }

    fn ahead(&self, now: Tick) -> i128 {
        (self.tat - self.time(now)).max(0)
    }

    pub(super) fn left(&self, now: Tick) -> RangeInclusive<u64> {
        let left = self.burst() - self.ahead(now);
        let whole = |left: i128| (left.clamp(0, self.burst()) / self.period) as u64;
        whole(left - self.late)..=whole(left + self.early)
    }

    pub(super) fn passes(&self, now: Tick, cost: u64) -> Option<bool> {
        self.by_now(self.ahead(now) + self.units(cost) - self.burst())
    }

    pub(super) fn is_full(&self, now: Tick) -> Option<bool> {
        self.by_now(self.tat - self.time(now))
    }

    /// Tells whether that much more time is no more time.
    fn by_now(&self, missing: i128) -> Option<bool> {
        match missing {
            missing if missing <= -self.late => Some(true),
            missing if missing > self.early => Some(false),
            _ => None,
        }
    }

    /// A budget that never refills can be overdrawn by as much as it holds, or 2^50.
    pub(super) fn may_refuse_debt(&self, now: Tick, cost: u64) -> bool {
        let most = match self.count {
            0 => (2 * self.capacity).min(1 << 50) * self.period,
            count => DEBT_NS * count,
        };
        self.ahead(now) + self.units(cost) + self.late > most
    }

    /// Becomes vague if the rounding decides whether a claim with `outstanding` left is over: a
    /// clock that goes back could show the difference.
    pub(super) fn doubt_if_unsure(&mut self, outstanding: i128) {
        if self.by_now(outstanding).is_none() {
            self.early = self.period + 1;
        }
    }

    pub(super) fn is_vague(&self) -> bool {
        self.early.max(self.late) > self.period
    }

    /// `is_unclaimed` if there are no open reservations.
    pub(super) fn take(&mut self, now: Tick, cost: u64, is_unclaimed: bool) {
        if is_unclaimed && self.is_full(now) == Some(true) {
            (self.early, self.late) = ((self.rounding() - 1).max(0), 0);
        }
        self.tat = self.tat.max(self.time(now)) + self.units(cost);
    }

    /// Time does not go back before a change of quota, except for a ninth of a nanosecond.
    pub(super) fn begin(&mut self, now: Tick) {
        if self.tat <= self.time(now) {
            self.tat = self.time(now);
            self.early = self.early.max(self.rounding() + (self.count + 8) / 9);
        }
    }

    pub(super) fn mark(&self) -> i128 {
        self.tat
    }

    /// Returns the amount that is given back, and how many whole permits it is.
    pub(super) fn give_back(
        &mut self,
        now: Tick,
        mark: i128,
        most: i128,
    ) -> (i128, RangeInclusive<u64>) {
        let outstanding = (mark - self.time(now)).max(0);
        let is_rounded = self.late > 0 || outstanding < most + self.early;
        if outstanding > 0 && is_rounded {
            self.early += self.rounding();
            self.late += self.rounding();
        }
        let amount = outstanding.min(most);
        self.tat -= amount;
        (amount, self.whole(amount, is_rounded))
    }

    pub(super) fn refund(&mut self, now: Tick, cost: u64) -> (i128, RangeInclusive<u64>) {
        let (outstanding, most) = (self.ahead(now), self.units(cost));
        let is_rounded = outstanding < most + self.early + self.late;
        let amount = outstanding.min(most);
        self.tat -= amount;
        (amount, self.touched(amount, is_rounded))
    }

    /// A permit that has refilled in part counts: the give-back completes it.
    fn touched(&self, amount: i128, is_rounded: bool) -> RangeInclusive<u64> {
        let rounding = if is_rounded { self.early + self.late } else { 0 };
        let permits = |amount: i128| ((amount + self.period - 1) / self.period) as u64;
        permits((amount - rounding).max(0))..=permits(amount + rounding)
    }

    fn whole(&self, amount: i128, is_rounded: bool) -> RangeInclusive<u64> {
        let rounding = if is_rounded { self.early + self.late } else { 0 };
        let least = (amount - rounding).max(0) / self.period;
        least as u64..=((amount + rounding) / self.period) as u64
    }

    /// Returns false if the limiter starts from the beginning.
    pub(super) fn change(&mut self, now: Tick, quota: &Quota, how: Inherit) -> bool {
        if how == Inherit::Reset {
            return false;
        }
        let mut next = Self::new(quota);
        next.tat = next.time(now) + self.carry(self.ahead(now), &next, how);
        let [early, late] = [self.early, self.late].map(|rounding| {
            // A debt is not scaled, so it is not rounded less by a smaller burst.
            let grows = how == Inherit::Proportional && next.capacity > self.capacity;
            let is_share = grows && self.capacity > 0;
            let (times, by) = if is_share { (next.capacity, self.capacity) } else { (1, 1) };
            let carried = scale(rounding + self.two_ninths(), times, by) + 1;
            let carried = scale(carried, next.period, self.period);
            match (self.count, next.count) {
                // A rounded value may lie on either side of a whole permit.
                (1.., 0) => carried + next.period,
                _ => carried + 2 + next.two_ninths(),
            }
        });
        // A share is rounded in favour of the caller, by less than two ninths.
        let favour = if how == Inherit::Proportional { next.two_ninths() } else { 0 };
        (next.early, next.late) = (early + favour, late);
        *self = next;
        true
    }

    /// Returns how far ahead `next` is booked if this bucket is booked `ahead`, both as parts.
    pub(super) fn carry(&self, ahead: i128, next: &Self, how: Inherit) -> i128 {
        let capacities = [self.capacity, next.capacity];
        let left = left_after(how, self.burst() - ahead, capacities, self.period);
        let used = next.capacity * self.period - left.unwrap_or_default();
        // Rounded up, as the used permits are. A budget that never refills counts whole ones.
        let ahead = -scale(-used, next.period, self.period);
        match next.count {
            0 => (ahead + next.period - 1) / next.period * next.period,
            _ => ahead,
        }
    }
}
