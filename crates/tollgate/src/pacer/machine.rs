//! Who has which slot: a pure state machine.
//!
//! Every place in the queue is a slot of the [`Plan`] that lies ahead, whoever holds it: a caller
//! who was told, somebody who waits, or a job. The rules:
//!
//! 1. A slot that was given out never moves.
//! 2. A request gets the next slot of the plan, or the first hole that fits.
//! 3. It is refused if its last slot lies further ahead than `capacity` intervals, or if more than
//!    `capacity` would be queued. By one rate both say the same; the first bounds the delay after
//!    the rate was raised, the second the memory after it was lowered, or when jobs are late.
//! 4. What is given back at the end of the plan shortens it. What is given back before the end
//!    leaves a *hole*, which goes to the next request of the same cost, if that comes in time.
//!
//! So no two slots are closer than an interval, whatever is given back. O(log n) each.

use super::{
    Late,
    error::{Overflow, Why},
    holes::Holes,
    plan::{Plan, Rate},
};
use crate::{
    Quota, Tick,
    wait::{Machine, Wakers},
    watch::WaitHistogram,
};
use std::{collections::BTreeMap, task::Waker, time::Duration};

#[derive(Debug)]
pub(super) struct Pace<J> {
    pub(super) quota: Quota,
    plan: Plan,
    pub(super) capacity: u64,
    late: Late,
    /// Slots ahead that callers were told, or wait for, with their costs.
    told: BTreeMap<Tick, u64>,
    /// Who waits for one of them.
    waiting: BTreeMap<Tick, Waker>,
    pub(super) jobs: BTreeMap<Tick, Queued<J>>,
    holes: Holes,
    /// The latest place that was used: its slot has come, or its job has started.
    used: Option<(Tick, u64)>,
    /// INVARIANT: the cost of all that is told or a job.
    held: u64,
    /// By [`Late::KeepGap`], the earliest start of the next job.
    not_before: Tick,
    /// While it drains, the last slot that somebody waits for.
    drains_until: Option<Tick>,
    pub(super) refused: u64,
    /// How long those who were let in have to wait.
    pub(super) waits: WaitHistogram,
}

#[derive(Debug)]
pub(super) struct Queued<J> {
    cost: u64,
    job: J,
}

impl<J> Pace<J> {
    pub(super) fn new(quota: Quota, capacity: u64, late: Late) -> Self {
        Self {
            quota,
            plan: Plan::new(Rate::new(&quota)),
            capacity,
            late,
            told: BTreeMap::new(),
            waiting: BTreeMap::new(),
            jobs: BTreeMap::new(),
            holes: Holes::default(),
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
        self.plan.rate.span(self.capacity)
    }

    /// Returns how much is queued.
    pub(super) fn queued(&self, now: Tick) -> u64 {
        let come: u64 = self.told.range(..=now).map(|(_, cost)| cost).sum();
        self.held.saturating_sub(come).saturating_sub(self.head(now).unwrap_or(0))
    }

    /// Returns the cost of the job whose turn it is. It does not queue any more, whether its worker
    /// has woken yet or not.
    fn head(&self, now: Tick) -> Option<u64> {
        let (at, queued) = self.jobs.first_key_value()?;
        (*at <= now).then_some(queued.cost)
    }

    /// Gives out the first of `cost` slots.
    pub(super) fn tell(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        let at = self.admit(now, cost)?;
        self.told.insert(at, cost);
        Ok(at)
    }

    /// Takes a job out of its place, if there is one, and queues it.
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
        // As for slots: what has passed is no hole any more, whoever asks first.
        self.pass(now);
        let Queued { cost, job } = self.jobs.remove(&at)?;
        self.free(now, at, cost);
        Some(job)
    }

    /// Takes a slot back that was told and not used; tells whether that was of use to anybody.
    pub(super) fn cancel_slot(&mut self, now: Tick, at: Tick) -> bool {
        self.pass(now);
        if let Some(cost) = self.told.remove(&at) {
            self.free(now, at, cost);
            return true;
        }
        match self.used {
            // It has come, but nothing came after it.
            Some((used, cost)) if used == at && self.last() == self.used => {
                self.used = None;
                self.plan.give_back(at, cost);
                true
            }
            _ => false,
        }
    }

    /// Notes who waits for a slot. Returns the waker that is of no use, to be dropped elsewhere.
    pub(super) fn watch(&mut self, at: Tick, waker: Waker) -> Option<Waker> {
        match self.waiting.get(&at) {
            Some(old) if old.will_wake(&waker) => Some(waker),
            _ => self.waiting.insert(at, waker),
        }
    }

    /// Forgets who waits for a slot. Returns the waker.
    pub(super) fn unwatch(&mut self, at: Tick) -> Option<Waker> {
        let waker = self.waiting.remove(&at);
        if self.drains_until.is_some() {
            self.drains_until = self.last_waiting();
        }
        waker
    }

    /// Changes the rate for all slots that are not given out yet.
    pub(super) fn set_rate(&mut self, now: Tick, quota: Quota) {
        self.pass(now);
        // Holes lie by the old rate. Without them there are never more than fit into the queue.
        self.holes = Holes::default();
        let last = self.last();
        self.plan.set_rate(Rate::new(&quota), last);
        self.quota = quota;
    }

    /// Finds a place by the rules above, and counts.
    fn admit(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        let admitted = self.place(now, cost);
        match &admitted {
            Ok(at) => self.waits.add(at.since(now)),
            Err(_) => self.refused += 1, // OVERFLOW: a count of events.
        }
        admitted
    }

    fn place(&mut self, now: Tick, cost: u64) -> Result<Tick, Overflow> {
        self.pass(now);
        match cost {
            0 => return Err(self.overflow(now, cost, Why::Nothing)),
            cost if cost - 1 > self.capacity => {
                return Err(self.overflow(now, cost, Why::TooLarge));
            }
            _ => {}
        }
        let hole = self.holes.first(now, cost);
        let (plan, at, wait) = match (hole, self.plan.book(now, cost)) {
            (Some(at), _) => (self.plan, at, Duration::ZERO),
            (None, Some((plan, first, last))) => {
                let most = now.saturating_add(self.max_delay());
                (plan, first, last.since(most))
            }
            (None, None) => (self.plan, Tick::MAX, Duration::MAX),
        };
        let wait = wait.max(self.wait_for_room(now, at, cost));
        if wait > Duration::ZERO {
            return Err(self.overflow(now, cost, Why::Full { retry_after: wait }));
        }
        self.plan = plan;
        if hole.is_some() {
            self.holes.remove(at, cost);
        }
        self.held += cost; // OVERFLOW: at most twice the capacity and one.
        Ok(at)
    }

    fn overflow(&self, now: Tick, cost: u64, why: Why) -> Overflow {
        Overflow { capacity: self.capacity, queued: self.queued(now), cost, why }
    }

    /// Returns how long it takes until `cost` more may be queued.
    fn wait_for_room(&self, now: Tick, at: Tick, cost: u64) -> Duration {
        // One whose turn it is does not queue: the first job, or else the one that asks.
        let head = self.head(now);
        let passes = u64::from(head.is_none() && at <= now);
        let wanted = self.queued(now).saturating_add(cost - passes);
        let mut excess = wanted.saturating_sub(self.capacity);
        let mut told = self.told.iter().map(|(at, cost)| (*at, *cost)).peekable();
        let jobs = self.jobs.iter().map(|(at, queued)| (*at, queued.cost));
        let mut jobs = jobs.skip(usize::from(head.is_some())).peekable();
        let mut wait = Duration::ZERO;
        while excess > 0 {
            let is_job = match (told.peek(), jobs.peek()) {
                (Some((told, _)), Some((job, _))) => job < told,
                (told, _) => told.is_none(),
            };
            let next = if is_job { jobs.next() } else { told.next() };
            // Only the head is left if there is none.
            let (at, cost) = next.unwrap_or((now, excess));
            excess = excess.saturating_sub(cost);
            // Nobody knows when a job that is late starts.
            wait = if at > now { at.since(now) } else { self.plan.rate.span(1) };
        }
        wait
    }

    /// Lets pass what has come.
    fn pass(&mut self, now: Tick) {
        while let Some(entry) = self.told.first_entry().filter(|entry| *entry.key() <= now) {
            let (at, cost) = entry.remove_entry();
            self.leaves(at, cost);
        }
        self.holes.pass(now);
    }

    /// Notes that a place was used.
    fn leaves(&mut self, at: Tick, cost: u64) {
        self.held = self.held.saturating_sub(cost);
        self.used = self.used.max(Some((at, cost)));
    }

    /// Returns the last place that was given out.
    fn last(&self) -> Option<(Tick, u64)> {
        let told = self.told.last_key_value().map(|(at, cost)| (*at, *cost));
        let job = self.jobs.last_key_value().map(|(at, queued)| (*at, queued.cost));
        told.max(job).max(self.used)
    }

    /// Takes a place back that was not used and is not in the queue any more.
    fn free(&mut self, now: Tick, at: Tick, cost: u64) {
        self.held = self.held.saturating_sub(cost);
        let last = self.last().map(|(last, _)| last);
        if last.is_some_and(|last| at < last) {
            if at >= now {
                self.holes.insert(at, cost);
            }
            return;
        }
        self.plan.give_back(at, cost);
        // Holes that are at the end now are part of the plan again.
        while let Some((hole, cost)) = self.holes.last().filter(|(hole, _)| Some(*hole) > last) {
            self.holes.remove(hole, cost);
            self.plan.give_back(hole, cost);
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

impl<J: Send + 'static> Machine for Pace<J> {
    type Job = J;

    fn due(&self) -> Option<Tick> {
        [self.job_due(), self.drains_until].into_iter().flatten().min()
    }

    fn next(&mut self, now: Tick) -> Option<J> {
        self.pass(now);
        self.drains_until = self.drains_until.filter(|until| *until > now);
        self.job_due().filter(|due| *due <= now)?;
        let (at, Queued { cost, job }) = self.jobs.pop_first()?;
        self.leaves(at, cost);
        self.not_before = now.saturating_add(self.plan.rate.span(cost));
        Some(job)
    }

    /// What is queued keeps its slots.
    fn finish(&mut self, now: Tick) {
        self.drains_until = self.last_waiting().filter(|until| *until > now);
    }

    fn clear(&mut self) -> impl Sized + use<J> {
        let new = Self::new(self.quota, self.capacity, self.late);
        let Self { jobs, waiting, .. } = std::mem::replace(self, new);
        // Wakes first, and drops the jobs then.
        (Wakers(waiting.into_values().collect()), jobs)
    }
}
