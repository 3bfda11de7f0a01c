//! The holder of each slot: a pure state machine.
//!
//! Every entry of the queue is a slot of the [`Schedule`] that lies ahead. Its holder is a job, or a caller: one that
//! waits for it, or one that has a [`Slot`](super::Slot). The rules:
//!
//! 1. A slot that was given out never moves.
//! 2. A request gets the next slot of the schedule, or the first free slot of its cost.
//! 3. It is refused if its last slot lies further ahead than `capacity` intervals, or if more than
//!    `capacity` would be queued. At one rate both say the same; the first bounds the delay after
//!    the rate was raised, the second the memory after it was lowered, or when jobs are late.
//! 4. A slot that is given back at the end of the schedule shortens it. One that is given back before the end
//!    is a *free slot*, which goes to the next request of the same cost, if that comes in time.
//!
//! So no two slots are closer than an interval, whichever slots are given back. O(log n) each.

use super::{
    Late,
    error::{Overflow, OverflowKind},
    free_slots::FreeSlots,
    schedule::Schedule,
};
use crate::{
    Quota, Tick,
    observe::WaitHistogram,
    wait::{Machine, Wakers},
};
use std::{collections::BTreeMap, task::Waker, time::Duration};

#[derive(Debug)]
pub(super) struct PacerMachine<J> {
    pub(super) schedule: Schedule,
    pub(super) capacity: u64,
    late: Late,
    /// The costs of the slots ahead that callers hold.
    reserved: BTreeMap<Tick, u64>,
    /// The wakers of callers that wait for one of them.
    waiting: BTreeMap<Tick, Waker>,
    pub(super) jobs: BTreeMap<Tick, Queued<J>>,
    free_slots: FreeSlots,
    /// The latest slot that was used: its time has come, or its job has started.
    used: Option<(Tick, u64)>,
    /// INVARIANT: the cost of all reserved slots and jobs.
    held: u64,
    /// With [`Late::KeepGap`], the earliest start of the next job.
    not_before: Tick,
    /// While it drains, the last slot that a caller waits for.
    drains_until: Option<Tick>,
    pub(super) refused: u64,
    /// The waits of admitted calls.
    pub(super) waits: WaitHistogram,
}

#[derive(Debug)]
pub(super) struct Queued<J> {
    cost: u64,
    job: J,
}

impl<J> PacerMachine<J> {
    pub(super) fn new(quota: Quota, capacity: u64, late: Late) -> Self {
        Self {
            schedule: Schedule::new(quota),
            capacity,
            late,
            reserved: BTreeMap::new(),
            waiting: BTreeMap::new(),
            jobs: BTreeMap::new(),
            free_slots: FreeSlots::default(),
            used: None,
            held: 0,
            not_before: Tick::ZERO,
            drains_until: None,
            refused: 0,
            waits: WaitHistogram::default(),
        }
    }

    /// Returns how long a full queue takes.
    pub(super) fn max_delay(&self) -> Duration {
        self.schedule.span(self.capacity)
    }

    /// Returns how much is queued.
    pub(super) fn queued(&self, now: Tick) -> u64 {
        let come: u64 = self.reserved.range(..=now).map(|(_, cost)| cost).sum();
        self.held.saturating_sub(come).saturating_sub(self.head(now).unwrap_or(0))
    }

    /// Returns the cost of the first job if its slot has come. It is not queued any more, whether its worker
    /// has woken yet or not.
    fn head(&self, now: Tick) -> Option<u64> {
        let (at, queued) = self.jobs.first_key_value()?;
        (*at <= now).then_some(queued.cost)
    }

    /// Reserves `cost` slots for a caller and returns the first.
    pub(super) fn reserve(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        let at = self.admit(now, cost)?;
        self.reserved.insert(at, cost);
        Ok(at)
    }

    /// Queues the job that `job` returns.
    pub(super) fn queue(
        &mut self,
        now: Tick,
        cost: u64,
        job: impl FnOnce() -> Option<J>,
    ) -> Result<Tick, Overflow> {
        let at = self.admit(now, cost)?;
        match job() {
            Some(job) => drop(self.jobs.insert(at, Queued { cost, job })),
            None => self.free(now, at, cost),
        }
        Ok(at)
    }

    /// Takes a job back.
    pub(super) fn cancel_job(&mut self, now: Tick, at: Tick) -> Option<J> {
        // As for slots: a slot that has passed is not free any more.
        self.remove_past(now);
        let Queued { cost, job } = self.jobs.remove(&at)?;
        self.free(now, at, cost);
        Some(job)
    }

    /// Takes back a slot that its caller did not use. Returns whether another caller can have it.
    pub(super) fn cancel_slot(&mut self, now: Tick, at: Tick) -> bool {
        self.remove_past(now);
        if let Some(cost) = self.reserved.remove(&at) {
            self.free(now, at, cost);
            return true;
        }
        match self.used {
            // It has come, but nothing came after it.
            Some((used, cost)) if used == at && self.last() == self.used => {
                self.used = None;
                self.schedule.give_back(at, cost);
                true
            }
            _ => false,
        }
    }

    /// Sets the waker of a slot. Returns the one that is not needed, to be dropped elsewhere.
    pub(super) fn set_waker(&mut self, at: Tick, waker: Waker) -> Option<Waker> {
        match self.waiting.get(&at) {
            Some(old) if old.will_wake(&waker) => Some(waker),
            _ => self.waiting.insert(at, waker),
        }
    }

    /// Removes and returns the waker of a slot.
    pub(super) fn remove_waker(&mut self, at: Tick) -> Option<Waker> {
        let waker = self.waiting.remove(&at);
        if self.drains_until.is_some() {
            self.drains_until = self.last_waiting();
        }
        waker
    }

    /// Changes the rate for all slots that are not given out yet.
    pub(super) fn set_rate(&mut self, now: Tick, quota: Quota) {
        self.remove_past(now);
        // Free slots have the times of the old rate. Without them there are never more than fit into the queue.
        self.free_slots = FreeSlots::default();
        let last = self.last();
        self.schedule.set_rate(quota, last);
    }

    /// Finds a slot by the rules above, and counts.
    fn admit(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        let admitted = self.find_slot(now, cost);
        match &admitted {
            Ok(at) => self.waits.add(at.since(now)),
            Err(_) => self.refused += 1, // OVERFLOW: a count of events.
        }
        admitted
    }

    fn find_slot(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        self.remove_past(now);
        match cost {
            0 => return Err(self.overflow(now, cost, OverflowKind::Nothing)),
            cost if cost - 1 > self.capacity => {
                return Err(self.overflow(now, cost, OverflowKind::TooLarge));
            }
            _ => {}
        }
        let free = self.free_slots.first(now, cost);
        let (schedule, at, wait) = match (free, self.schedule.book(now, cost)) {
            (Some(at), _) => (self.schedule, at, Duration::ZERO),
            (None, Some((schedule, first, last))) => {
                let most = now.saturating_add(self.max_delay());
                (schedule, first, last.since(most))
            }
            (None, None) => (self.schedule, Tick::MAX, Duration::MAX),
        };
        let wait = wait.max(self.wait_for_room(now, at, cost));
        if wait > Duration::ZERO {
            return Err(self.overflow(now, cost, OverflowKind::Full { retry_after: wait }));
        }
        self.schedule = schedule;
        if free.is_some() {
            self.free_slots.remove(at, cost);
        }
        self.held += cost; // OVERFLOW: at most twice the capacity and one.
        Ok(at)
    }

    pub(super) fn overflow(&self, now: Tick, cost: u64, kind: OverflowKind) -> Overflow {
        Overflow { capacity: self.capacity, queued: self.queued(now), cost, kind }
    }

    /// Returns how long it takes until `cost` more may be queued.
    fn wait_for_room(&self, now: Tick, at: Tick, cost: u64) -> Duration {
        // The call whose slot is now does not queue: the first job, or else this call.
        let head = self.head(now);
        let passes = u64::from(head.is_none() && at <= now);
        let wanted = self.queued(now).saturating_add(cost - passes);
        let mut excess = wanted.saturating_sub(self.capacity);
        let mut reserved = self.reserved.iter().map(|(at, cost)| (*at, *cost)).peekable();
        let jobs = self.jobs.iter().map(|(at, queued)| (*at, queued.cost));
        let mut jobs = jobs.skip(usize::from(head.is_some())).peekable();
        let mut wait = Duration::ZERO;
        while excess > 0 {
            let is_job = match (reserved.peek(), jobs.peek()) {
                (Some((reserved, _)), Some((job, _))) => job < reserved,
                (reserved, _) => reserved.is_none(),
            };
            let next = if is_job { jobs.next() } else { reserved.next() };
            // Only the head is left if there is none.
            let (at, cost) = next.unwrap_or((now, excess));
            excess = excess.saturating_sub(cost);
            // The start of a late job is unknown.
            wait = if at > now { at.since(now) } else { self.schedule.span(1) };
        }
        wait
    }

    /// Removes the slots of callers that have come, and free slots that have passed.
    fn remove_past(&mut self, now: Tick) {
        while let Some(entry) = self.reserved.first_entry().filter(|entry| *entry.key() <= now) {
            let (at, cost) = entry.remove_entry();
            self.mark_used(at, cost);
        }
        self.free_slots.remove_before(now);
    }

    /// Marks a slot as used.
    fn mark_used(&mut self, at: Tick, cost: u64) {
        self.held = self.held.saturating_sub(cost);
        self.used = self.used.max(Some((at, cost)));
    }

    /// Returns the last slot that was given out.
    fn last(&self) -> Option<(Tick, u64)> {
        let reserved = self.reserved.last_key_value().map(|(at, cost)| (*at, *cost));
        let job = self.jobs.last_key_value().map(|(at, queued)| (*at, queued.cost));
        reserved.max(job).max(self.used)
    }

    /// Takes back a slot that was not used and is not in the queue any more.
    fn free(&mut self, now: Tick, at: Tick, cost: u64) {
        self.held = self.held.saturating_sub(cost);
        let last = self.last().map(|(last, _)| last);
        if last.is_some_and(|last| at < last) {
            if at >= now {
                self.free_slots.insert(at, cost);
            }
            return;
        }
        self.schedule.give_back(at, cost);
        // Free slots that are at the end now are part of the schedule again.
        while let Some((free, cost)) = self.free_slots.last().filter(|(free, _)| Some(*free) > last)
        {
            self.free_slots.remove(free, cost);
            self.schedule.give_back(free, cost);
        }
    }

    fn job_due(&self) -> Option<Tick> {
        let (at, _) = self.jobs.first_key_value()?;
        Some(match self.late {
            Late::KeepPace => *at,
            Late::KeepGap => (*at).max(self.not_before),
        })
    }

    fn last_waiting(&self) -> Option<Tick> {
        self.waiting.last_key_value().map(|(at, _)| *at)
    }
}

impl<J: Send + 'static> Machine for PacerMachine<J> {
    type Job = J;

    fn due(&self) -> Option<Tick> {
        [self.job_due(), self.drains_until].into_iter().flatten().min()
    }

    fn next(&mut self, now: Tick) -> Option<J> {
        self.remove_past(now);
        self.drains_until = self.drains_until.filter(|until| *until > now);
        self.job_due().filter(|due| *due <= now)?;
        let (at, Queued { cost, job }) = self.jobs.pop_first()?;
        self.mark_used(at, cost);
        self.not_before = now.saturating_add(self.schedule.span(cost));
        Some(job)
    }

    /// Queued jobs and callers keep their slots.
    fn finish(&mut self, now: Tick) {
        self.drains_until = self.last_waiting().filter(|until| *until > now);
    }

    fn clear(&mut self) -> impl Sized + use<J> {
        let new = Self::new(self.schedule.quota, self.capacity, self.late);
        let Self { jobs, waiting, .. } = std::mem::replace(self, new);
        // Wakes first, and drops the jobs then.
        (Wakers(waiting.into_values().collect()), jobs)
    }
}
