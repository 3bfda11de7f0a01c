//! Sliding window log: remembers every event of the last window, and is exact.
//!
//! # The idea
//!
//! Keep the tick and the cost of each event that passed. An event may pass if the costs of the
//! last window and its own stay within the limit. Windows are half-open, `(t - W, t]`: an event is
//! outside exactly one window after it happened.
//!
//! ```text
//! used = sum of costs with tick > now - W        allowed if  used + cost <= limit
//! ```
//!
//! # State and units
//!
//! A ring of (tick, sum of costs so far), 16 bytes each. Events of one tick share an entry, so there are
//! never more entries than permits in the limit; the ring is allocated once, at that size. What is
//! forced beyond a full ring is folded into its newest entry, which then counts from now and can no
//! longer be given back.
//!
//! # Exact and approximate
//!
//! - At most `limit` in **every** window of length W. Nothing is approximated.
//! - `retry` is the tick at which enough of the oldest entries leave: exact. `full` is when the
//!   newest one leaves.
//!
//! # Time
//!
//! Standing still: nothing leaves. Backwards: counts as the tick of the newest entry. Far ahead:
//! full.
//!
//! # Cost
//!
//! 16 bytes per permit of the limit, which is therefore at most 2^20; amortised one entry written
//! and one removed per event, behind a short lock. Sums let a denial find its wait by bisection. A
//! cancel changes the sums of all younger entries, or of all older ones if they are fewer.
//!
//! Source: the textbook log. Departures: (1) weighted entries, as prefix sums; (2) refused events leave
//! no entry; (3) the boundary is half-open; textbooks differ.

use super::{Algorithm, Idle, Inherit, PARAMETERS, Step, Succeed, share, window::Window};
use crate::{Quota, QuotaError, Tick, decision::Decision};
use std::collections::VecDeque;

/// A sliding window log with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    pub(super) window: Window,
}

/// The state of a [`SlidingLog`]: what passed in the last window, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// INVARIANT: ticks rise strictly and costs are positive, so sums rise strictly.
    entries: VecDeque<Entry>,
    /// The sum before the first entry.
    before: u64,
}

impl Log {
    /// Returns the memory of the entries.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the cost of the first `count` entries.
    fn cost_of(&self, count: usize) -> u64 {
        // OVERFLOW: sums wrap, but their differences are at most 2^60.
        count.checked_sub(1).map_or(0, |last| self.entries[last].sum.wrapping_sub(self.before))
    }

    /// Returns the cost of all entries, expired ones included.
    fn total(&self) -> u64 {
        self.cost_of(self.entries.len())
    }

    /// Returns (tick, cost) of each entry but the first `skipped`.
    fn iter(&self, skipped: usize) -> impl Iterator<Item = (Tick, u64)> {
        let cost = |index| self.cost_of(index + 1) - self.cost_of(index);
        (skipped..self.entries.len()).map(move |index| (self.entries[index].tick, cost(index)))
    }

    /// Returns how many entries come before the first that is not `old`. As a rule few are, so it
    /// doubles its steps before it bisects.
    fn count_while(&self, old: impl Fn(&Entry) -> bool) -> usize {
        let mut end = 1;
        while self.entries.get(end - 1).is_some_and(&old) {
            end *= 2;
        }
        let (mut from, mut to) = (end / 2, self.entries.len().min(end - 1));
        while from < to {
            let middle = usize::midpoint(from, to);
            match old(&self.entries[middle]) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tick: Tick,
    /// Of the costs of this entry and all before, modulo 2^64.
    sum: u64,
}

/// Costs are kept below this, so that no sum overflows.
const TOTAL_MAX: u64 = 1 << 60;

impl SlidingLog {
    /// The largest limit: 2^20 permits, a ring of 16 MiB.
    pub const LIMIT_MAX: u64 = 1 << 20;

    /// Returns the log for a quota.
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`]; also if the quota has a burst, or a limit above
    /// [`LIMIT_MAX`](Self::LIMIT_MAX).
    pub fn new(quota: &Quota) -> Result<Self, QuotaError> {
        let algorithm = Algorithm::SlidingLog;
        let window = Window::new(quota, algorithm)?;
        let (limit, most) = (window.limit, Self::LIMIT_MAX);
        if limit > most {
            return Err(QuotaError::LimitTooLarge { limit, most, algorithm });
        }
        Ok(Self { window })
    }

    pub(crate) const fn to_words(self) -> [u64; PARAMETERS] {
        let Window { length_ns, limit, initial } = self.window;
        [length_ns, limit, initial, 0, 0, 0, 0, 0]
    }

    pub(crate) const fn from_words([length_ns, limit, initial, ..]: [u64; PARAMETERS]) -> Self {
        Self { window: Window { length_ns, limit, initial } }
    }

    /// Tells whether nothing is used in a fresh log.
    pub(crate) const fn starts_empty(&self) -> bool {
        self.window.starts_empty()
    }

    /// Room in the ring: one entry per permit, and one for what is forced on a limit of zero.
    fn room(&self) -> usize {
        // OVERFLOW: at most 2^20.
        self.window.limit.max(1) as usize
    }

    fn empty(&self) -> Log {
        Log { entries: VecDeque::with_capacity(self.room()), before: 0 }
    }

    fn leaves_at(&self, entry: &Entry) -> Tick {
        Tick::from_nanos(entry.tick.as_nanos().saturating_add(self.window.length_ns))
    }

    /// Time does not go back behind the newest entry, nor beyond the horizon, after which no entry
    /// could leave any more.
    fn clamp(log: &Log, now: Tick) -> Tick {
        let now = now.min(Tick::HORIZON);
        log.entries.back().map_or(now, |newest| now.max(newest.tick))
    }

    /// Returns how many entries have left, and their cost.
    fn expired(&self, log: &Log, now: Tick) -> (usize, u64) {
        let gone = log.count_while(|entry| self.leaves_at(entry) <= now);
        (gone, log.cost_of(gone))
    }

    /// Returns the entries that are still inside, at most `most`: if there are more, neighbours are
    /// folded together and leave with the later one.
    pub(crate) fn live(&self, log: &Log, now: Tick, most: usize) -> Vec<(Tick, u64)> {
        let (gone, _) = self.expired(log, Self::clamp(log, now));
        let live: Vec<_> = log.iter(gone).collect();
        let group = live.len().div_ceil(most).max(1);
        let fold = |group: &[(Tick, u64)]| {
            let last = group.last().map_or(Tick::ZERO, |(tick, _)| *tick);
            (last, group.iter().map(|(_, cost)| cost).sum())
        };
        live.chunks(group).map(fold).collect()
    }

    /// Returns a log of such entries; `None` if all have left.
    pub(crate) fn rebuilt(
        &self,
        entries: impl Iterator<Item = (Tick, u64)>,
        now: Tick,
    ) -> Option<Log> {
        let mut log = Log::default();
        for (tick, cost) in entries {
            let in_order = log.entries.back().is_none_or(|newest| newest.tick <= tick);
            if cost > 0 && in_order && log.total().saturating_add(cost) <= TOTAL_MAX {
                self.push(&mut log, tick.min(Tick::HORIZON), cost);
            }
        }
        let now = Self::clamp(&log, now);
        self.drop_expired(&mut log, now);
        (log.total() > 0).then_some(log)
    }

    fn used(&self, log: &Log, now: Tick) -> u64 {
        log.total() - self.expired(log, now).1
    }

    /// Returns when the oldest live entries that cost `needed` together have left.
    fn tick_until_freed(&self, log: &Log, now: Tick, needed: u64) -> Tick {
        // OVERFLOW: what is used, a cost and a limit: at most 2^62.
        let freed = self.expired(log, now).1 + needed;
        let is_before = |entry: &Entry| entry.sum.wrapping_sub(log.before) < freed;
        let last = log.entries.get(log.entries.partition_point(is_before));
        last.map_or(now, |entry| self.leaves_at(entry))
    }

    fn push(&self, log: &mut Log, tick: Tick, cost: u64) {
        let full = log.entries.len() >= self.room();
        // OVERFLOW: see `cost_of`.
        let sum = log.before.wrapping_add(log.total()).wrapping_add(cost);
        match log.entries.back_mut() {
            Some(newest) if newest.tick == tick || full => *newest = Entry { tick, sum },
            _ => log.entries.push_back(Entry { tick, sum }),
        }
    }

    fn drop_expired(&self, log: &mut Log, now: Tick) {
        let (gone, cost) = self.expired(log, now);
        log.entries.drain(..gone);
        log.before = log.before.wrapping_add(cost);
    }

    /// Takes up to `most` from the entry at `index`.
    fn take_from(log: &mut Log, index: usize, most: u64) -> u64 {
        let cost = log.cost_of(index + 1) - log.cost_of(index);
        let amount = most.min(cost);
        // Only differences matter: all sums behind it fall, or all before it rise, whichever are fewer.
        if index < log.entries.len() / 2 {
            log.before = log.before.wrapping_add(amount);
            let older = log.entries.range_mut(..index);
            older.for_each(|entry| entry.sum = entry.sum.wrapping_add(amount));
        } else {
            let younger = log.entries.range_mut(index..);
            younger.for_each(|entry| entry.sum = entry.sum.wrapping_sub(amount));
        }
        if amount == cost {
            log.entries.remove(index);
        }
        amount
    }
}

impl Step for SlidingLog {
    type State = Log;

    fn initial(&self, now: Tick) -> Log {
        let mut log = self.empty();
        match self.window.limit - self.window.initial {
            0 => {}
            missing => self.push(&mut log, now.min(Tick::HORIZON), missing),
        }
        log
    }

    fn peek(&self, log: &Log, now: Tick, cost: u64) -> Decision {
        let at = Self::clamp(log, now);
        let used = self.used(log, at);
        let full = |taken| match (used + taken, taken) {
            (0, _) => 0,
            (_, 1..) => at.as_nanos().saturating_add(self.window.length_ns),
            (_, 0) => log.entries.back().map_or(at, |newest| self.leaves_at(newest)).as_nanos(),
        };
        let retry = || self.tick_until_freed(log, at, used + cost - self.window.limit).as_nanos();
        self.window.answer((now, cost), used, full, retry)
    }

    fn available(&self, log: &Log, now: Tick) -> u64 {
        self.window.limit.saturating_sub(self.used(log, Self::clamp(log, now)))
    }

    fn charge(&self, log: &mut Log, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        if cost > self.chargeable(log, now) {
            return false;
        }
        let now = Self::clamp(log, now);
        self.drop_expired(log, now);
        self.push(log, now, cost);
        true
    }

    fn chargeable(&self, log: &Log, now: Tick) -> u64 {
        TOTAL_MAX.saturating_sub(self.used(log, Self::clamp(log, now)))
    }

    fn mark(&self, log: &Log, now: Tick) -> u64 {
        Self::clamp(log, now).as_nanos()
    }

    fn passed(&self, log: &Log, now: Tick) -> u64 {
        Self::clamp(log, now).as_nanos().saturating_sub(self.window.length_ns)
    }

    /// Removes the entry, or a part of it, if it is still inside the window and was not folded into
    /// a forced one.
    fn give_back(&self, log: &mut Log, now: Tick, mark: u64, most: u64) -> u64 {
        let now = Self::clamp(log, now);
        let found = log.entries.binary_search_by_key(&mark, |entry| entry.tick.as_nanos());
        match found {
            Ok(index) if self.leaves_at(&log.entries[index]) > now => {
                Self::take_from(log, index, most)
            }
            _ => 0,
        }
    }

    /// Takes from the newest entries first, which would stay longest.
    fn refund(&self, log: &mut Log, now: Tick, cost: u64) -> u64 {
        let now = Self::clamp(log, now);
        let mut left = cost;
        while let Some(newest) = log.entries.back()
            && left > 0
            && self.leaves_at(newest) > now
        {
            left -= Self::take_from(log, log.entries.len() - 1, left);
        }
        cost - left
    }
}

impl Idle for SlidingLog {
    fn is_idle(&self, log: &Log, now: Tick) -> bool {
        self.used(log, Self::clamp(log, now)) == 0
    }

    fn burden(&self, log: &Log, now: Tick) -> u64 {
        share(self.used(log, Self::clamp(log, now)), self.window.limit)
    }
}

impl Succeed for SlidingLog {
    /// Keeps the entries. What the change adds to the used permits counts from now; what it
    /// removes, it removes from the oldest.
    fn succeed(&self, old: &Self, log: &Log, now: Tick, how: Inherit) -> Log {
        let now = Self::clamp(log, now);
        let used = old.used(log, now);
        let Some(after) = self.window.carry(&old.window, used, how) else {
            return self.initial(now);
        };
        let (gone, _) = old.expired(log, now);
        let mut next = self.empty();
        let mut dropped = used.saturating_sub(after);
        for (tick, cost) in log.iter(gone) {
            let cut = dropped.min(cost);
            dropped -= cut;
            if cost > cut {
                self.push(&mut next, tick, cost - cut);
            }
        }
        if after > used {
            self.push(&mut next, now, after - used);
        }
        next
    }
}
