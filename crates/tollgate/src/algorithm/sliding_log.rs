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
//! never more entries than permits in the limit; the ring is allocated once, at that size. It grows only if reservations
//! are cancelled: such an entry costs nothing from then on, and leaves with its window, or when there are a
//! quarter as many as others.
//!
//! Sums count from the first entry of a block of 512, and each block has the sum before it. So a cancel changes the
//! younger sums of one block, and those of the younger blocks.
//!
//! # Costs above the limit
//!
//! A cost that is booked whatever is free (`force`) may exceed what the log can hold. The excess is *owed*,
//! as one number: whenever an entry leaves, owed permits take its place, for another window. So at most one
//! limit is paid per window, nothing else passes meanwhile, and the entries leave in the same order again and
//! again: the n-th permit that leaves from now on is found without going through the windows between.
//!
//! ```text
//! 10/s, 4 taken at 0.0 s, 21 booked at 0.4 s: entries 4 and 6, 15 owed
//! 1.0 s: 4 leave, 11 owed    1.4 s: 6 leave, 5 owed    2.0 s: 4 leave, 1 owed    2.4 s: 6 leave, 5 free
//! ```
//!
//! Owed permits can be given back, before all entries. They are at most what takes 4.5 years to pay off; more is
//! refused. A limit of zero owes nothing: what is booked there leaves after one window.
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
//! cancel changes at most 512 sums of entries, and one for each younger block.
//!
//! Source: the textbook log. Departures: (1) weighted entries, as prefix sums; (2) refused events leave
//! no entry; (3) the boundary is half-open; textbooks differ.

use super::{
    Algorithm, Idle, Inherit, PARAMETERS, Step, Succeed, share,
    window::{COUNT_MAX, Window},
};
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
    /// INVARIANT: ticks rise strictly, and the newest cost is positive.
    entries: VecDeque<Entry>,
    /// What the sums of each block are added to. INVARIANT: there is one for each block that has an entry.
    blocks: VecDeque<u64>,
    /// Entries of the first block that have left.
    skipped: usize,
    /// At least as many entries have no cost any more.
    cancelled: usize,
    /// The sum before the first entry.
    before: u64,
    /// Permits booked beyond the entries. INVARIANT: if there is any, there are entries, and all of them were
    /// inside one window when the log was last written.
    owed: u64,
}

/// Entries of a block: a cancel in a log of a million changes about as many sums of entries as of blocks.
const BLOCK: usize = 512;

impl Log {
    /// Returns the memory of the entries.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.blocks.capacity() * size_of::<u64>()
    }

    /// Returns the cost of the first `count` entries.
    fn cost_of(&self, count: usize) -> u64 {
        let Some(last) = count.checked_sub(1) else { return 0 };
        // OVERFLOW: sums wrap, but their differences are at most 2^60.
        let sum = self.blocks[(self.skipped + last) / BLOCK].wrapping_add(self.entries[last].sum);
        sum.wrapping_sub(self.before)
    }

    /// Returns the cost of all entries, expired ones included.
    fn total(&self) -> u64 {
        self.cost_of(self.entries.len())
    }

    /// Returns (tick, cost) of each entry that has a cost but the first `skipped`.
    fn iter(&self, skipped: usize) -> impl Iterator<Item = (Tick, u64)> {
        let cost = |index| self.cost_of(index + 1) - self.cost_of(index);
        let entries =
            (skipped..self.entries.len()).map(move |index| (self.entries[index].tick, cost(index)));
        entries.filter(|(_, cost)| *cost > 0)
    }

    /// Returns how many entries come before the first that is not `old`, given its index. As a rule few are, so it
    /// doubles its steps before it bisects.
    fn count_while(&self, old: impl Fn(usize) -> bool) -> usize {
        let (mut end, len) = (1, self.entries.len());
        while end <= len && old(end - 1) {
            end *= 2;
        }
        let (mut from, mut to) = (end / 2, len.min(end - 1));
        while from < to {
            let middle = usize::midpoint(from, to);
            match old(middle) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    /// Adds an entry behind the newest, or adds to that.
    fn push(&mut self, tick: Tick, cost: u64, is_new: bool) {
        let total = self.before.wrapping_add(self.total());
        if is_new {
            if (self.skipped + self.entries.len()) / BLOCK == self.blocks.len() {
                self.blocks.push_back(total);
            }
            self.entries.push_back(Entry { tick, sum: 0 });
        }
        let last = self.skipped + self.entries.len() - 1;
        // OVERFLOW: see `cost_of`.
        let sum = total.wrapping_add(cost).wrapping_sub(self.blocks[last / BLOCK]);
        self.entries.back_mut().into_iter().for_each(|newest| *newest = Entry { tick, sum });
    }

    /// Removes the first `count` entries. Returns what they cost.
    fn drop_first(&mut self, count: usize) -> u64 {
        let cost = self.cost_of(count);
        self.entries.drain(..count);
        self.blocks.drain(..(self.skipped + count) / BLOCK);
        self.skipped = (self.skipped + count) % BLOCK;
        self.before = self.before.wrapping_add(cost);
        cost
    }

    /// Takes up to `most` from the entry at `index`.
    fn take_from(&mut self, index: usize, most: u64) -> u64 {
        let cost = self.cost_of(index + 1) - self.cost_of(index);
        let (amount, block) = (most.min(cost), (self.skipped + index) / BLOCK);
        let end = self.entries.len().min((block + 1) * BLOCK - self.skipped);
        let younger = self.entries.range_mut(index..end);
        younger.for_each(|entry| entry.sum = entry.sum.wrapping_sub(amount));
        let younger = self.blocks.range_mut(block + 1..);
        younger.for_each(|sum| *sum = sum.wrapping_sub(amount));
        self.cancelled += usize::from(amount == cost);
        while !self.entries.is_empty() && self.cost_of(self.entries.len() - 1) == self.total() {
            self.entries.pop_back();
            self.cancelled -= 1;
        }
        if self.cancelled > self.entries.len() / 4 + BLOCK {
            self.compact();
        }
        amount
    }

    /// Drops the entries that have no cost any more.
    fn compact(&mut self) {
        let (live, entries) = (self.iter(0).collect::<Vec<_>>(), std::mem::take(&mut self.entries));
        *self = Self { entries, owed: self.owed, ..Self::default() };
        self.entries.clear();
        live.into_iter().for_each(|(tick, cost)| self.push(tick, cost, true));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tick: Tick,
    /// Of the costs of this entry and those before it in its block, modulo 2^64.
    sum: u64,
}

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
        Log { entries: VecDeque::with_capacity(self.room()), ..Log::default() }
    }

    fn leaves_at(&self, entry: &Entry) -> Tick {
        ns_later(entry.tick, self.window.length_ns)
    }

    /// Time does not go back behind the newest entry, nor beyond the horizon, after which no entry
    /// could leave any more.
    fn clamp(log: &Log, now: Tick) -> Tick {
        let now = now.min(Tick::HORIZON);
        log.entries.back().map_or(now, |newest| now.max(newest.tick))
    }

    /// Returns how many entries have left, and their cost.
    fn expired(&self, log: &Log, now: Tick) -> (usize, u64) {
        let gone = log.count_while(|index| self.leaves_at(&log.entries[index]) <= now);
        (gone, log.cost_of(gone))
    }

    /// Returns how many permits have left since the log was written, those included whose place was taken by
    /// owed ones.
    fn freed(&self, log: &Log, now: Tick) -> u64 {
        let Some(first) = log.entries.front().filter(|_| log.owed > 0) else {
            return self.expired(log, now).1;
        };
        let since_ns = now.as_nanos().checked_sub(self.leaves_at(first).as_nanos());
        // The entries leave again and again, a window later each time.
        let Some(turns) = since_ns.map(|ns| ns / self.window.length_ns) else { return 0 };
        let earlier = Tick::from_nanos(now.as_nanos() - turns * self.window.length_ns);
        log.total().saturating_mul(turns).saturating_add(self.expired(log, earlier).1)
    }

    /// Returns the entries that are still inside, at most `most`, and what is owed. If there are more entries,
    /// neighbours are folded together and leave with the later one.
    pub(crate) fn live(&self, log: &Log, now: Tick, most: usize) -> (Vec<(Tick, u64)>, u64) {
        let (now, mut log) = (Self::clamp(log, now), log.clone());
        self.advance(&mut log, now);
        let live: Vec<_> = log.iter(self.expired(&log, now).0).collect();
        let group = live.len().div_ceil(most).max(1);
        let fold = |group: &[(Tick, u64)]| {
            let last = group.last().map_or(Tick::ZERO, |(tick, _)| *tick);
            (last, group.iter().map(|(_, cost)| cost).sum())
        };
        (live.chunks(group).map(fold).collect(), log.owed)
    }

    /// Returns a log of such entries; `None` if all have left.
    pub(crate) fn rebuilt(
        &self,
        (entries, owed): (impl Iterator<Item = (Tick, u64)>, u64),
        now: Tick,
    ) -> Option<Log> {
        let mut log = Log::default();
        for (tick, cost) in entries {
            let in_order = log.entries.back().is_none_or(|newest| newest.tick <= tick);
            if cost > 0 && in_order && log.total().saturating_add(cost) <= COUNT_MAX {
                self.push(&mut log, tick.min(Tick::HORIZON), cost);
            }
        }
        let newest = Self::clamp(&log, Tick::ZERO);
        self.drop_expired(&mut log, newest);
        if log.total() > 0 {
            log.owed = owed.min(COUNT_MAX);
        }
        let now = Self::clamp(&log, now);
        self.advance(&mut log, now);
        self.drop_expired(&mut log, now);
        (log.total() > 0).then_some(log)
    }

    fn used(&self, log: &Log, now: Tick) -> u64 {
        // OVERFLOW: both at most 2^60.
        (log.total() + log.owed).saturating_sub(self.freed(log, now))
    }

    /// Returns when `permits` have left since the log was written.
    fn tick_until_freed(&self, log: &Log, permits: u64) -> Tick {
        let last = permits.saturating_sub(1);
        let Some(turns) = last.checked_div(log.total()) else { return Tick::ZERO };
        let place = last % log.total();
        let entry = &log.entries[log.count_while(|index| log.cost_of(index + 1) <= place)];
        ns_later(self.leaves_at(entry), turns.saturating_mul(self.window.length_ns))
    }

    fn push(&self, log: &mut Log, tick: Tick, cost: u64) {
        let is_full = log.entries.len() >= self.room() + log.cancelled;
        let is_new = log.entries.back().is_none_or(|newest| newest.tick != tick && !is_full);
        if cost > 0 {
            log.push(tick, cost, is_new);
        }
    }

    fn drop_expired(&self, log: &mut Log, now: Tick) {
        log.drop_first(self.expired(log, now).0);
    }

    /// Lets owed permits take the places of those that have left by `now`.
    fn advance(&self, log: &mut Log, now: Tick) {
        if let Some(first) = log.entries.front().filter(|_| log.owed > 0) {
            let turns = now.since(self.leaves_at(first)).as_nanos() as u64 / self.window.length_ns;
            let turns = turns.min(log.owed / log.total());
            log.owed -= turns * log.total();
            let later_ns = turns * self.window.length_ns;
            let later = |entry: &mut Entry| entry.tick = ns_later(entry.tick, later_ns);
            log.entries.iter_mut().for_each(later);
        }
        while log.owed > 0
            && let Some(tick) = log.entries.front().map(|first| self.leaves_at(first))
            && tick <= now
        {
            let part = log.drop_first(1).min(log.owed);
            log.owed -= part;
            self.push(log, tick, part);
        }
    }

    /// Lets owed permits take the place of what is free.
    fn place_owed(&self, log: &mut Log, now: Tick) {
        let free = match self.window.limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(log.total()),
        };
        let part = free.min(log.owed);
        log.owed -= part;
        self.push(log, now, part);
    }
}

const fn ns_later(tick: Tick, ns: u64) -> Tick {
    Tick::from_nanos(tick.as_nanos().saturating_add(ns))
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
        let all = log.total() + log.owed;
        let full = |taken| match (used + taken, taken) {
            (0, _) => 0,
            (_, 1..) => at.as_nanos().saturating_add(self.window.length_ns),
            (_, 0) => self.tick_until_freed(log, all).as_nanos(),
        };
        let retry = || self.tick_until_freed(log, all + cost - self.window.limit).as_nanos();
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
        self.advance(log, now);
        self.drop_expired(log, now);
        log.owed += cost;
        self.place_owed(log, now);
        true
    }

    fn chargeable(&self, log: &Log, now: Tick) -> u64 {
        let most = self.window.debt_max().unwrap_or(COUNT_MAX);
        most.saturating_sub(self.used(log, Self::clamp(log, now)))
    }

    /// One more than the tick, so that nothing has passed before the first window of a clock is over.
    fn mark(&self, log: &Log, now: Tick) -> u64 {
        Self::clamp(log, now).as_nanos() + 1
    }

    fn passed(&self, log: &Log, now: Tick) -> u64 {
        self.mark(log, now).saturating_sub(self.window.length_ns)
    }

    /// Removes the entry, or a part of it, if it is still inside the window, and the part of it that is owed.
    fn give_back(&self, log: &mut Log, now: Tick, mark: u64, most: u64) -> u64 {
        let (now, tick) = (Self::clamp(log, now), Tick::from_nanos(mark.saturating_sub(1)));
        if ns_later(tick, self.window.length_ns) <= now {
            return 0;
        }
        self.advance(log, now);
        let found = log.entries.binary_search_by_key(&tick, |entry| entry.tick);
        let taken = found.map_or(0, |index| log.take_from(index, most));
        let unpaid = log.owed.min(most - taken);
        log.owed -= unpaid;
        self.place_owed(log, now);
        taken + unpaid
    }

    /// Takes from what is owed first, and then from the newest entries: these would stay longest.
    fn refund(&self, log: &mut Log, now: Tick, cost: u64) -> u64 {
        let now = Self::clamp(log, now);
        self.advance(log, now);
        let unpaid = log.owed.min(cost);
        log.owed -= unpaid;
        let mut left = cost - unpaid;
        while let Some(newest) = log.entries.back()
            && left > 0
            && self.leaves_at(newest) > now
        {
            left -= log.take_from(log.entries.len() - 1, left);
        }
        cost - left
    }
}

impl Idle for SlidingLog {
    fn burden(&self, log: &Log, now: Tick) -> u64 {
        share(self.used(log, Self::clamp(log, now)), self.window.limit)
    }
}

impl Succeed for SlidingLog {
    /// Keeps the entries and what is owed. What the change adds to the used permits counts from now; what
    /// it removes, it removes from the oldest.
    fn succeed(&self, old: &Self, log: &Log, now: Tick, how: Inherit) -> Log {
        let (now, mut log) = (Self::clamp(log, now), log.clone());
        old.advance(&mut log, now);
        let used = old.used(&log, now);
        let Some(after) = self.window.carry(&old.window, used, how) else {
            return self.initial(now);
        };
        let mut next = self.empty();
        let mut dropped = used.saturating_sub(after);
        for (tick, cost) in log.iter(old.expired(&log, now).0) {
            let cut = dropped.min(cost);
            dropped -= cut;
            if cost > cut {
                self.push(&mut next, tick, cost - cut);
            }
        }
        self.drop_expired(&mut next, now);
        next.owed = log.owed - dropped + after.saturating_sub(used);
        self.place_owed(&mut next, now);
        next
    }
}
