//! An exact model of a limiter, for every algorithm and every verb, in wide integers.
//!
//! The model shares no code with the algorithms. It knows which results are exact, and where the
//! documentation allows a rounding ([`bucket`] has all of them in one place): there it accepts
//! either. So a test compares a decision with the model first, and then applies the limiter's
//! action to the model.

mod bucket;
mod windows;

use bucket::Bucket;
use std::{collections::BTreeMap, ops::RangeInclusive};
use tollgate::{Algorithm, Inherit, Initial, Quota, Tick};
use windows::Windows;

/// A limiter with its open reservations.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    quota: Quota,
    state: State,
    /// The rest that open reservations can still give back, in the order of their takes.
    claims: BTreeMap<u64, Claim>,
    next_id: u64,
}

#[derive(Clone, Debug)]
enum State {
    Bucket(Bucket),
    Windows(Windows),
}

/// One open reservation.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// For a bucket: up to when it was booked just after the take. For a window: which window.
    mark: i128,
    /// The most that can be given back, in the unit of the state.
    most: i128,
}

impl Model {
    /// `epoch_ns` lies between the Unix epoch and the clock's origin.
    pub(crate) fn new(algorithm: Algorithm, quota: Quota, epoch_ns: u64, now: Tick) -> Self {
        let mut state = match algorithm {
            Algorithm::Gcra => State::Bucket(Bucket::new(&quota)),
            _ => State::Windows(Windows::new(algorithm, &quota, epoch_ns)),
        };
        state.reset(&quota, now);
        Self { quota, state, claims: BTreeMap::new(), next_id: 0 }
    }

    pub(crate) fn limit(&self) -> u64 {
        if self.quota.is_unlimited() { u64::MAX } else { self.quota.capacity() }
    }

    /// Returns how many permits are free.
    pub(crate) fn left(&self, now: Tick) -> RangeInclusive<u64> {
        match &self.state {
            _ if self.quota.is_unlimited() => u64::MAX..=u64::MAX,
            State::Bucket(bucket) => bucket.left(now),
            State::Windows(windows) => windows.left(now)..=windows.left(now),
        }
    }

    /// Tells whether `cost` passes; `None` if the documented rounding allows either.
    pub(crate) fn passes(&self, now: Tick, cost: u64) -> Option<bool> {
        match &self.state {
            _ if cost > self.limit() => Some(false),
            _ if self.quota.is_unlimited() => Some(true),
            State::Bucket(bucket) => bucket.passes(now, cost),
            State::Windows(windows) => Some(windows.passes(now, cost)),
        }
    }

    /// Tells whether `tick` may be the first at which `cost` passes.
    pub(crate) fn is_first(&self, tick: Tick, cost: u64) -> bool {
        let before = Tick::from_nanos(tick.as_nanos() - 1);
        self.passes(tick, cost) != Some(false) && self.passes(before, cost) != Some(true)
    }

    /// Tells whether everything is free; `None` if the documented rounding allows either.
    pub(crate) fn is_full(&self, now: Tick) -> Option<bool> {
        match &self.state {
            _ if self.quota.is_unlimited() => Some(true),
            State::Bucket(bucket) => bucket.is_full(now),
            State::Windows(windows) => Some(windows.used(now) == 0),
        }
    }

    /// Tells whether a limiter may refuse to book `cost` beyond what is free.
    pub(crate) fn may_refuse_debt(&self, now: Tick, cost: u64) -> bool {
        match &self.state {
            _ if self.quota.is_unlimited() => false,
            State::Bucket(bucket) => bucket.may_refuse_debt(now, cost),
            State::Windows(windows) => windows.may_refuse_debt(now, cost),
        }
    }

    /// Tells whether the documentation leaves the state open: a test then starts from the
    /// beginning.
    ///
    /// Changes of quota may have rounded by more than a permit.
    pub(crate) fn is_vague(&self) -> bool {
        match &self.state {
            State::Bucket(bucket) => bucket.is_vague(),
            State::Windows(_) => false,
        }
    }

    /// Charges `cost`, free or not.
    pub(crate) fn take(&mut self, now: Tick, cost: u64) {
        if cost == 0 || self.quota.is_unlimited() {
            return;
        }
        match &mut self.state {
            State::Bucket(bucket) => bucket.take(now, cost, self.claims.is_empty()),
            State::Windows(windows) => windows.take(now, cost.into()),
        }
    }

    /// Charges `cost`, with the right to give it back. A reservation of zero has no such right.
    pub(crate) fn reserve(&mut self, now: Tick, cost: u64) -> Option<u64> {
        self.take(now, cost);
        if cost == 0 || self.quota.is_unlimited() {
            return None;
        }
        let (mark, most) = match &mut self.state {
            State::Bucket(bucket) => {
                // Refilled permits are final as soon as another reservation comes.
                for claim in self.claims.values() {
                    bucket.doubt_if_unsure(claim.mark - bucket.time(now));
                }
                self.claims.retain(|_, claim| claim.mark > bucket.time(now));
                (bucket.mark(), bucket.units(cost))
            }
            State::Windows(windows) => (windows.mark(now), cost.into()),
        };
        self.next_id += 1;
        // A reservation ends the claims of entries that have left, also for a clock that goes back.
        if let State::Windows(windows) = &self.state {
            let oldest = windows.oldest_mark(now);
            self.claims.retain(|_, claim| claim.mark >= oldest);
        }
        self.claims.insert(self.next_id, Claim { mark, most });
        Some(self.next_id)
    }

    /// Makes a reservation final.
    pub(crate) fn forget(&mut self, id: u64) {
        self.claims.remove(&id);
    }

    /// Gives back `permits` of a reservation of `cost`, as far as they have not refilled: at most
    /// `mark - now - refunds since then of takes older than this one`. Returns how many whole
    /// permits that is.
    pub(crate) fn give_back(
        &mut self,
        now: Tick,
        id: u64,
        (permits, cost): (u64, u64),
    ) -> RangeInclusive<u64> {
        let Some(Claim { mark, most }) = self.claims.remove(&id) else { return 0..=0 };
        let most = scale(most, permits.into(), cost.into());
        match &mut self.state {
            State::Bucket(bucket) => {
                let (amount, whole) = bucket.give_back(now, mark, most);
                self.claims.range_mut(id..).for_each(|(_, younger)| younger.mark -= amount);
                whole
            }
            State::Windows(windows) => {
                let amount = windows.give_back(now, mark, most) as u64;
                amount..=amount
            }
        }
    }

    /// Gives back up to `cost` outstanding permits, at the expense of all open reservations.
    /// Returns how many permits that is.
    pub(crate) fn refund(&mut self, now: Tick, cost: u64) -> RangeInclusive<u64> {
        match &mut self.state {
            _ if self.quota.is_unlimited() => 0..=0,
            State::Bucket(bucket) => {
                let (amount, whole) = bucket.refund(now, cost);
                self.claims.values_mut().for_each(|claim| claim.mark -= amount);
                whole
            }
            State::Windows(windows) => {
                let amount = windows.refund(now, cost.into());
                let lower = |claim: &mut Claim| claim.most = (claim.most - amount).max(0);
                self.claims.values_mut().for_each(lower);
                amount as u64..=amount as u64
            }
        }
    }

    pub(crate) fn reset(&mut self, now: Tick) {
        self.claims.clear();
        self.state.reset(&self.quota, now);
    }

    pub(crate) fn change(&mut self, now: Tick, quota: Quota, how: Inherit) {
        let old = std::mem::replace(&mut self.quota, quota);
        if quota.is_unlimited() {
            return self.claims.clear();
        }
        let how = if old.is_unlimited() { Inherit::Reset } else { how };
        match &mut self.state {
            State::Bucket(bucket) => {
                let before = bucket.clone();
                let is_kept = bucket.change(now, &quota, how);
                for claim in self.claims.values_mut().filter(|_| is_kept) {
                    // Both ends move with the state.
                    let ahead = (claim.mark - before.time(now)).max(0);
                    let [upper, lower] = [ahead, (ahead - claim.most).max(0)]
                        .map(|end| before.carry(end, bucket, how));
                    *claim = Claim { mark: bucket.time(now) + upper, most: upper - lower };
                }
                if !is_kept {
                    self.claims.clear();
                    self.state.reset(&quota, now);
                }
                self.state.begin(now);
            }
            State::Windows(windows) => {
                let is_kept = windows.change(now, &quota, how);
                self.claims.clear();
                if !is_kept {
                    self.state.reset(&quota, now);
                }
            }
        }
    }
}

impl State {
    /// Nothing of a new quota is free before it came into force.
    fn begin(&mut self, now: Tick) {
        if let Self::Bucket(bucket) = self {
            bucket.begin(now);
        }
    }

    /// The state of a limiter that was never used.
    fn reset(&mut self, quota: &Quota, now: Tick) {
        let missing = match quota.initial_fill() {
            Initial::Empty => quota.capacity(),
            Initial::Permits(permits) => quota.capacity() - permits,
            _ => 0,
        };
        match self {
            Self::Bucket(bucket) => {
                *bucket = Bucket::new(quota);
                if missing > 0 {
                    bucket.take(now, missing, true);
                }
            }
            Self::Windows(windows) => windows.reset(quota, now, missing.into()),
        }
    }
}

/// Returns the remaining permits after a change of the limit from `old` to `new` permits, by the
/// table of [`Inherit`]: `left` and the result count a permit as `unit`. `None` if the limiter
/// starts from the beginning.
fn left_after(how: Inherit, left: i128, [old, new]: [i128; 2], unit: i128) -> Option<i128> {
    match how {
        Inherit::Reset => None,
        Inherit::AsIs => Some(left.min(new * unit)),
        Inherit::Additive => Some(left + (new - old) * unit),
        // Debt stays debt.
        _ if left <= 0 || old == 0 => Some(left.min(0)),
        _ => Some(scale(left, new, old)),
    }
}

/// Returns amount x times / by, rounded down: in two parts, because the product may not fit.
fn scale(amount: i128, times: i128, by: i128) -> i128 {
    amount.div_euclid(by) * times + (amount.rem_euclid(by) * times).div_euclid(by)
}
