//! Waiting at a limiter: its queue, under the lock of the book (`wait/limiter_queue.rs` has the idea).

use super::{Book, Limiter, QUEUED, WAITED, cell::Cell};
use crate::{
    Algorithm, Clock, Decision, Quota, Tick,
    algorithm::{AnyRule, Rule},
    multi::locks::ResolvedState,
    observe::Verb,
    reservation::ledger::Ledger,
    sync::MutexGuard,
    wait::{
        Source, Wait, WakeList,
        limiter_queue::{LimiterQueue, LockedQueue, LockedState, QueueHost, QueueRules},
        queue_timer::QueueTimer,
    },
};
#[cfg(feature = "tokio")]
use {crate::wait::queue_timer::RuntimeId, std::time::Duration};

impl Limiter {
    /// Waits for one permit, in turn.
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Wait::block) a thread. The first to come
    /// is the first to pass, and one timer serves all who wait: see [`Wait`].
    ///
    /// # Errors
    ///
    /// [`Refused`](crate::Refused) at once, if no wait can help, if it does not fit the deadline, or
    /// if as many wait as may.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_second(100).burst(1))?;
    /// for _ in 0..3 {
    ///     let passed = limiter.acquire().block()?; // or `.await`
    ///     println!("waited {:?}", passed.waited());
    /// }
    ///
    /// let slow = Limiter::new(Quota::per_hour(1))?;
    /// let _first = slow.try_acquire();
    /// let refused = slow.acquire().within(Duration::from_secs(5)).block();
    /// assert!(refused.is_err()); // at once, because it would take an hour
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "until_ready")]
    #[doc(alias = "wait")]
    pub fn acquire(&self) -> Wait {
        self.acquire_n(1)
    }

    /// Waits for `cost` permits, in turn. A cost of zero takes nothing, so it passes.
    ///
    /// A large cost is not starved by small ones: nobody overtakes.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "until_n_ready")]
    #[doc(alias = "WaitN")]
    pub fn acquire_n(&self, cost: u64) -> Wait {
        Wait::new(Source::Limiter(self.clone()), cost)
    }

    /// Returns how many wait at this moment.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.book().queue.as_ref().map_or(0, |queue| queue.waiting.len())
    }

    /// Takes one permit if it is free now, ahead of everybody who waits.
    pub fn try_overtake(&self) -> Decision {
        self.try_overtake_n(1)
    }

    /// Takes `cost` permits if all of them are free now, ahead of everybody who waits.
    ///
    /// [`try_acquire_n`](Self::try_acquire_n) comes after them. Those who wait pass so much later;
    /// if that is beyond their deadline, they are refused when it comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tollgate::{Clock, Limiter, Quota};
    /// # use std::{pin::pin, task::{Context, Waker}};
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let limiter = Limiter::builder(Quota::per_second(1).burst(10)).clock(clock).build().unwrap();
    /// let _nine_left = limiter.try_acquire();
    /// let mut all = pin!(limiter.acquire_n(10)); // waits for a second
    /// # let _ = all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// assert!(limiter.try_acquire().is_denied());
    /// assert!(limiter.try_overtake().is_allowed());
    /// # }
    /// ```
    pub fn try_overtake_n(&self, cost: u64) -> Decision {
        let overtake = || {
            self.with_queue(|locked| {
                locked.settle();
                let decision = locked.overtake(cost);
                let decision = decision.unwrap_or_else(|| self.level_at(locked.now));
                (decision, locked.settle())
            })
        };
        let decision = self.exempt(self.now(), cost).unwrap_or_else(overtake);
        self.report(Verb::TryAcquire, &decision);
        decision
    }

    /// Tells whether no caller waits, and there is nothing more to do than to decide.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_special() && self.mode() & QUEUED == 0
    }

    /// Returns the refusal of a caller who may not overtake those who wait for a window; `None` if none
    /// waits.
    pub(crate) fn behind(&self, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() & WAITED == 0 {
            return None;
        }
        self.with_queue(|locked| {
            let target = locked.settle();
            (locked.behind(now, target, cost), target)
        })
    }

    /// Takes everything that is booked for the queue out of the state, before that changes.
    pub(super) fn unbook_all(&self, book: &mut Book, now: Tick) {
        let Book { quota, ledger, queue, timer } = book;
        if let Some(queue) = queue {
            let state = LockedLimiter { limiter: self, quota, ledger, timer };
            LockedQueue { queue, state, now, wakers: &mut WakeList::new() }.unbook_all();
            queue.forget_claims();
        }
    }

    /// Serves the callers that a change lets pass, and unlocks the book.
    pub(crate) fn release(&self, book: MutexGuard<'_, Book>) {
        if book.queue.is_some() {
            self.with_queue_of(book, |locked| ((), locked.settle()));
        }
    }

    fn with_queue_of<R>(
        &self,
        mut book: MutexGuard<'_, Book>,
        work: impl FnOnce(&mut LockedQueue<'_, LockedLimiter<'_>>) -> (R, Option<Tick>),
    ) -> R {
        let mut wakers = WakeList::new();
        let Book { quota, ledger, queue, timer } = &mut *book;
        let order = self.shared.queue_rules.order;
        let queue = queue.get_or_insert_with(|| Box::new(LimiterQueue::new(order)));
        let state = LockedLimiter { limiter: self, quota, ledger, timer: &mut *timer };
        let mut locked = LockedQueue { queue, state, now: self.now(), wakers: &mut wakers };
        let (done, target) = work(&mut locked);
        timer.set(&self.shared.clock, target, &mut wakers, || {
            let limiter = self.clone();
            move |_| limiter.timer_fired()
        });
        wakers.push(target.and_then(|target| queue.thread_to_wake(target)));
        let flag = if matches!(self.shared.cell, Cell::Gcra(_)) { QUEUED } else { WAITED };
        // The flag only sends others to the lock, under which it is set.
        self.shared.mode.set(flag, !queue.waiting.is_empty());
        drop(book);
        wakers.fire();
        done
    }

    /// Serves the queue when the timer of a manual clock fires.
    fn timer_fired(&self) {
        let mut book = self.book();
        book.timer.fired();
        self.release(book);
    }
}

impl QueueHost for Limiter {
    type State<'a> = LockedLimiter<'a>;

    fn with_queue<R>(
        &self,
        work: impl FnOnce(&mut LockedQueue<'_, LockedLimiter<'_>>) -> (R, Option<Tick>),
    ) -> R {
        self.with_queue_of(self.book(), work)
    }

    fn start_timer_task(&self) {
        #[cfg(feature = "tokio")]
        crate::wait::queue_timer::start(self);
    }
}

#[cfg(feature = "tokio")]
impl crate::wait::queue_timer::TimerHost for Limiter {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn serve(&self, runtime: RuntimeId, waker: &std::task::Waker) -> Option<Tick> {
        let mut book = self.book();
        let old = book.timer.awake(runtime);
        let target = self.with_queue_of(book, |locked| {
            let target = locked.settle();
            locked.state.timer.asleep(runtime, waker, target);
            // In tests time is exact.
            let is_exact = self.shared.clock.is_of_tests();
            let slack = |target| if is_exact { Duration::ZERO } else { locked.queue.slack(target) };
            (target.map(|target| target.saturating_add(slack(target))), target)
        });
        drop(old);
        target
    }

    fn remove_if_idle(&self, runtime: RuntimeId) -> bool {
        let mut book = self.book();
        let is_over = book.queue.as_ref().is_none_or(|queue| queue.waiting.is_empty());
        let old = if is_over { book.timer.remove(runtime) } else { None };
        drop(book);
        drop(old);
        is_over
    }

    fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
        let mut book = self.book();
        let (is_lost, old) = book.timer.abandoned(runtime, has_panicked);
        self.with_queue_of(book, |locked| ((), locked.abandon(is_lost)));
        drop(old);
    }
}

/// The state of a limiter, with what is in its book.
pub(crate) struct LockedLimiter<'a> {
    limiter: &'a Limiter,
    quota: &'a Quota,
    ledger: &'a mut Ledger,
    timer: &'a mut QueueTimer,
}

impl LockedState for LockedLimiter<'_> {
    fn rules(&self) -> QueueRules {
        self.limiter.shared.queue_rules
    }

    fn has_room(&mut self, waiting: usize) -> bool {
        waiting < self.rules().max_waiting
    }

    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        self.limiter.exempt(now, cost)
    }

    /// A change of the quota takes the bookings out before: so it matters only whether there can be
    /// any.
    fn rule(&self, _now: Tick) -> AnyRule {
        AnyRule::Word(match &self.limiter.shared.cell {
            Cell::Gcra(cell) => Rule::Gcra(cell.update(|gcra, _| *gcra)),
            _ => Rule::Unlimited,
        })
    }

    fn quota(&self, _now: Tick) -> (Quota, Algorithm) {
        (*self.quota, self.limiter.algorithm())
    }

    fn state(&self, _now: Tick) -> ResolvedState<'_> {
        ResolvedState::of_limiter(self.limiter)
    }

    fn state_by(&self, _rule: &AnyRule, now: Tick) -> ResolvedState<'_> {
        self.state(now)
    }

    fn lower_behind(&mut self, mark: u64, units: u64) {
        self.ledger.lower_behind(mark, units);
        self.limiter.shared.count_refund(units);
    }

    fn changes_at(&self, _now: Tick) -> Option<Tick> {
        None
    }

    fn without_room(&self, now: Tick, cost: u64) -> Decision {
        self.state(now).read(|entry| entry.peek(now, cost))
    }

    fn with_timer<R>(&mut self, work: impl FnOnce(&mut QueueTimer, &Clock) -> R) -> R {
        work(self.timer, &self.limiter.shared.clock)
    }
}

impl Book {
    /// Returns how much is booked for the waiting callers, in units.
    pub(crate) fn waiting_units(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.bookings.length)
    }
}
