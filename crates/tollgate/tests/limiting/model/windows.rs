//! The window algorithms, as a list of admissions with their times. Nothing is rounded.
//!
//! The cost that was forced beyond the limit is carried, less one limit per window. A counter's
//! window then holds more than the limit: [`Windows::as_of`] moves the rest into the window in
//! force. A log owes the rest, which takes the places of entries that leave.

use super::left_after;
use tollgate::{Algorithm, Inherit, Quota, Tick};

/// All admissions that were not given back.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    algorithm: Algorithm,
    limit: i128,
    length: i128,
    /// Time since the Unix epoch at the clock's origin.
    epoch: i128,
    /// (when, how much), oldest first. Never zero.
    passed: Vec<(i128, i128)>,
    /// For a log, the debt that waits for places in it.
    owed: i128,
    /// For a counter, whether the latest window holds more than the limit by which it was written.
    is_carried: bool,
}

/// A debt that is paid off within this time is not refused: four and a half years.
const DEBT_NS: i128 = 9 * 365 * 86_400 * 1_000_000_000 / 2;

impl Windows {
    pub(super) fn new(algorithm: Algorithm, quota: &Quota, epoch_ns: u64) -> Self {
        Self {
            algorithm,
            limit: quota.count().into(),
            length: quota.period().as_nanos() as i128,
            epoch: epoch_ns.into(),
            passed: Vec::new(),
            owed: 0,
            is_carried: false,
        }
    }

    /// Returns the same state in the window that is in force.
    fn as_of(&self, now: Tick) -> Self {
        let mut next = self.clone();
        match self.algorithm {
            Algorithm::SlidingLog => next.pay(self.at(now)),
            Algorithm::SlidingCounter => next.carry(now),
            _ => {}
        }
        next
    }

    /// Moves the debt into the places of entries that have left a log.
    fn pay(&mut self, at: i128) {
        while self.owed > 0 && self.passed[0].0 + self.length <= at {
            let all: i128 = self.passed.iter().map(|(_, cost)| cost).sum();
            let rounds = ((at - self.passed[0].0) / self.length - 1).min(self.owed / all);
            self.owed -= rounds * all;
            self.passed.iter_mut().for_each(|(entry, _)| *entry += rounds * self.length);
            if self.owed > 0 && rounds == 0 {
                let (entry, cost) = self.passed.remove(0);
                let part = cost.min(self.owed);
                self.owed -= part;
                self.passed.push((entry + self.length, part));
            }
        }
    }

    /// Moves a window of a counter that holds more than the limit to that of `now`: later, it has
    /// paid one limit per window; earlier, the windows between count as full.
    fn carry(&mut self, now: Tick) {
        let Some(begun) = self.begun() else { return };
        let (held, before) = (self.sum(begun, i128::MAX), self.sum(begun - self.length, begun));
        let wall = i128::from(now.min(Tick::HORIZON).as_nanos()) + self.epoch;
        let start = wall - wall % self.length;
        let windows = (start - begun) / self.length;
        let left = held - windows * self.limit;
        if windows == 0 || !self.is_carried {
            return;
        }
        self.is_carried = left > self.limit;
        // While it is being paid off, the window before counts as it did.
        let previous = match left {
            left if left > self.limit => before,
            left => self.limit.min(self.limit + left).max(0),
        };
        self.passed = vec![(start - self.length, previous), (start, left)];
        self.passed.retain(|(_, cost)| *cost > 0);
    }

    /// Moves the debt into the free places of a log.
    fn place(&mut self, at: i128) {
        let free = self.limit - self.sum(at - self.length + 1, i128::MAX);
        let part = if self.limit == 0 { self.owed } else { self.owed.min(free).max(0) };
        self.owed -= part;
        if part > 0 {
            self.push(at, part);
        }
    }

    /// Returns when the latest window that counts began, or the time of the latest entry of a log.
    fn begun(&self) -> Option<i128> {
        let (first, last) = (self.passed.first()?.0, self.passed.last()?.0);
        Some(match self.algorithm {
            Algorithm::SlidingLog => last,
            Algorithm::AnchoredWindow => first,
            _ => last - last % self.length,
        })
    }

    /// Returns the time that counts: it does not go back behind what is counted.
    fn at(&self, now: Tick) -> i128 {
        let wall = i128::from(now.min(Tick::HORIZON).as_nanos()) + self.epoch;
        self.begun().map_or(wall, |begun| wall.max(begun))
    }

    /// Returns when the window in force began; an anchored window begins now if the last is over.
    fn start(&self, at: i128) -> i128 {
        match (self.algorithm, self.begun()) {
            (Algorithm::AnchoredWindow, Some(begun)) if at < self.anchored_end(begun) => begun,
            (Algorithm::AnchoredWindow, _) => at,
            (Algorithm::SlidingLog, _) => at - self.length + 1,
            _ => at - at % self.length,
        }
    }

    /// An anchored window lasts until a round time: 1, 2 or 5 x 10^k, at most a 1000th of its
    /// length.
    fn anchored_end(&self, begun: i128) -> i128 {
        let decades = (0..18).map(|digits| 10_i128.pow(digits));
        let grains = decades.flat_map(|decade| [decade, 2 * decade, 5 * decade]);
        let grain = grains.filter(|grain| *grain <= self.length / 1000).max().unwrap_or(1);
        let end = begun + self.length;
        end + (grain - end % grain) % grain
    }

    fn sum(&self, from: i128, to: i128) -> i128 {
        let inside = self.passed.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, cost)| cost).sum()
    }

    pub(super) fn used(&self, now: Tick) -> i128 {
        self.as_of(now).used_now(now)
    }

    fn used_now(&self, now: Tick) -> i128 {
        let at = self.at(now);
        let start = self.start(at);
        let current = self.sum(start, i128::MAX) + self.owed;
        if self.algorithm != Algorithm::SlidingCounter {
            return current;
        }
        let previous = self.sum(start - self.length, start);
        // One entry that the share has touched has left: an entry exactly one window old is
        // outside.
        let share = previous * (self.length - (at - start));
        current + (share + self.length - 1).div_euclid(self.length).max(1) - 1
    }

    pub(super) fn left(&self, now: Tick) -> u64 {
        (self.limit - self.used(now)).max(0) as u64
    }

    /// A debt refuses a cost of zero, too.
    pub(super) fn passes(&self, now: Tick, cost: u64) -> bool {
        self.used(now) + i128::from(cost) <= self.limit
    }

    /// A window counts at least twice its limit, and a debt that is carried is paid off within years.
    pub(super) fn may_refuse_debt(&self, now: Tick, cost: u64) -> bool {
        let windows = match self.algorithm {
            Algorithm::SlidingCounter | Algorithm::SlidingLog => DEBT_NS / self.length - 1,
            _ => 2,
        };
        self.used(now) + i128::from(cost) > windows * self.limit
    }

    pub(super) fn take(&mut self, now: Tick, cost: i128) {
        *self = self.as_of(now);
        let at = self.at(now);
        let start = self.start(at);
        // A counter's previous window still counts.
        let is_counter = self.algorithm == Algorithm::SlidingCounter;
        let oldest = if is_counter { start - self.length } else { start };
        self.passed.retain(|(entry, _)| *entry >= oldest);
        if self.algorithm == Algorithm::SlidingLog {
            self.owed += cost;
            self.place(at);
        } else {
            self.push(at, cost);
        }
        self.written(now);
    }

    fn written(&mut self, now: Tick) {
        let held = self.sum(self.start(self.at(now)), i128::MAX);
        let is_counter = self.algorithm == Algorithm::SlidingCounter;
        self.is_carried = is_counter && 0 < self.limit && self.limit < held;
    }

    /// A log has one entry per permit of its limit: a change of quota folds more into the newest.
    fn push(&mut self, at: i128, cost: i128) {
        let is_log = self.algorithm == Algorithm::SlidingLog;
        let is_crowded = is_log && self.passed.len() as i128 >= self.limit.max(1);
        match self.passed.last_mut() {
            Some(newest) if newest.0 == at || is_crowded => *newest = (at, newest.1 + cost),
            _ => self.passed.push((at, cost)),
        }
    }

    /// The position of a take just made, for [`give_back`](Self::give_back).
    pub(super) fn mark(&self, now: Tick) -> i128 {
        let at = self.as_of(now).at(now);
        if self.algorithm == Algorithm::SlidingLog { at } else { self.start(at) }
    }

    /// Returns since when a take can still be given back.
    pub(super) fn oldest_mark(&self, now: Tick) -> i128 {
        let current = self.as_of(now);
        current.start(current.at(now))
    }

    /// Gives back within the same window; a log removes the entry if it is still inside.
    pub(super) fn give_back(&mut self, now: Tick, mark: i128, most: i128) -> i128 {
        let mut next = self.as_of(now);
        let at = next.at(now);
        let start = next.start(at);
        let given = if self.algorithm != Algorithm::SlidingLog {
            if start == mark { next.remove(most, |at| at >= start) } else { 0 }
        } else if mark < start {
            // Too late: nothing changes, also for a clock that goes back.
            return 0;
        } else {
            let taken = next.remove(most, |at| at == mark);
            let unpaid = next.owed.min(most - taken);
            next.owed -= unpaid;
            next.place(at);
            taken + unpaid
        };
        self.adopt(now, next, given)
    }

    pub(super) fn refund(&mut self, now: Tick, cost: i128) -> i128 {
        let mut next = self.as_of(now);
        let start = next.start(next.at(now));
        let unpaid = next.owed.min(cost);
        next.owed -= unpaid;
        let given = unpaid + next.remove(cost - unpaid, |at| at >= start);
        self.adopt(now, next, given)
    }

    /// A counter that gave nothing back stays as it was, also for a clock that goes back.
    fn adopt(&mut self, now: Tick, next: Self, given: i128) -> i128 {
        if given > 0 || self.algorithm == Algorithm::SlidingLog {
            *self = next;
            self.written(now);
        }
        given
    }

    /// Removes up to `most` of the matching entries, from the newest on.
    fn remove(&mut self, most: i128, which: impl Fn(i128) -> bool) -> i128 {
        let mut left = most;
        for (_, cost) in self.passed.iter_mut().rev().filter(|(at, _)| which(*at)) {
            let part = left.min(*cost);
            (*cost, left) = (*cost - part, left - part);
        }
        self.passed.retain(|(_, cost)| *cost > 0);
        most - left
    }

    pub(super) fn reset(&mut self, quota: &Quota, now: Tick, missing: i128) {
        *self = Self { epoch: self.epoch, ..Self::new(self.algorithm, quota, 0) };
        if missing > 0 {
            self.take(now, missing);
        }
    }

    /// Returns false if the limiter starts from the beginning.
    ///
    /// A window continues if those of both quotas have one length; otherwise the used permits count
    /// from now. A counter keeps its previous window if it can. A log keeps its entries: permits
    /// that the change adds count from now, and permits that it removes are removed from the
    /// oldest.
    pub(super) fn change(&mut self, now: Tick, quota: &Quota, how: Inherit) -> bool {
        *self = self.as_of(now);
        let (at, used) = (self.at(now), self.used(now));
        let start = self.start(at);
        let limit = i128::from(quota.count());
        let limits = [self.limit, limit];
        let Some(left) = left_after(how, self.limit - used, limits, 1) else { return false };
        let (after, length) = (limit - left, quota.period().as_nanos() as i128);
        let is_same = length == self.length;
        (self.limit, self.length) = (limit, length);
        if self.algorithm == Algorithm::SlidingLog {
            self.change_log(start, at, (used, after));
            return true;
        }
        let is_counter = self.algorithm == Algorithm::SlidingCounter;
        let kept = if is_counter { self.sum(start, i128::MAX) + after - used } else { after };
        if is_same && kept >= 0 {
            let before = start - length..start;
            self.passed.retain(|(entry, _)| is_counter && before.contains(entry));
            self.begin(start, kept);
        } else {
            self.passed.clear();
            self.begin(self.start(self.at(now)), after);
        }
        self.written(now);
        true
    }

    /// Makes the window that begins at `start` hold `used` from the beginning.
    fn begin(&mut self, start: i128, used: i128) {
        if used > 0 {
            self.push(start, used);
        }
    }

    fn change_log(&mut self, start: i128, at: i128, (used, after): (i128, i128)) {
        let mut dropped = (used - after).max(0);
        for (entry, cost) in std::mem::take(&mut self.passed) {
            if entry < start {
                continue;
            }
            let cut = dropped.min(cost);
            dropped -= cut;
            if cost > cut {
                self.push(entry, cost - cut);
            }
        }
        self.passed.retain(|(entry, _)| *entry > at - self.length);
        self.owed += (after - used).max(0) - dropped;
        self.place(at);
    }
}
