//! Waiting at a limiter: its line, under the lock of the book (`wait/line.rs` has the idea).

use super::{Book, Limiter, QUEUED, SPECIAL, WAITED, cell::Cell};
use crate::{
    Algorithm, Clock, Decision, Quota, Tick,
    algorithm::{AnyRule, Rule},
    limits::locks::State,
    reservation::ledger::Ledger,
    sync::{MutexGuard, Ordering::Relaxed},
    wait::{
        Wait, Wakes,
        alarm::Alarm,
        line::{At, Host, Line, LineRules, Post},
    },
    watch::{Verb, Watch},
};
#[cfg(feature = "tokio")]
use {crate::wait::alarm::RuntimeId, std::time::Duration};

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
    /// let refused = limiter.acquire().within(Duration::from_micros(1)).block();
    /// assert!(refused.is_err()); // at once, because it would take ten milliseconds
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "until_ready")]
    #[doc(alias = "wait")]
    pub fn acquire(&self) -> Wait {
        self.acquire_n(1)
    }

    /// Waits for `cost` permits, in turn. Nothing is asked for with a cost of zero, so it passes.
    ///
    /// A large cost is not starved by small ones: nobody overtakes.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "until_n_ready")]
    #[doc(alias = "WaitN")]
    pub fn acquire_n(&self, cost: u64) -> Wait {
        Wait::at_limiter(self.clone(), cost)
    }

    /// Returns how many wait at this moment.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.book().line.as_ref().map_or(0, |line| line.len())
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
            self.at_line(|line, post, mut at| {
                line.settle(post, &mut at);
                let decision = line.overtake(post, at.now, cost);
                let decision = decision.unwrap_or_else(|| self.level_at(at.now));
                (decision, line.settle(post, &mut at))
            })
        };
        let decision = self.exempt(self.now(), cost).unwrap_or_else(overtake);
        self.report(Verb::TryAcquire, &decision);
        decision
    }

    /// Tells whether nobody waits, and there is nothing more to do than to decide.
    pub(crate) fn is_free(&self) -> bool {
        self.mode() & (SPECIAL | QUEUED) == 0
    }

    /// The answer to somebody who may not overtake those who wait for a window; `None` if nobody
    /// waits.
    pub(crate) fn behind(&self, now: Tick, cost: u64) -> Option<Decision> {
        // ORDERING: Relaxed. Under the lock it is what it is.
        if self.shared.mode.load(Relaxed) & WAITED == 0 {
            return None;
        }
        self.at_line(|line, post, mut at| {
            let target = line.settle(post, &mut at);
            (line.behind(post, (now, target), cost), target)
        })
    }

    /// Takes everything that is booked for the queue out of the state, before that changes.
    pub(super) fn unbook_all(&self, book: &mut Book, now: Tick) {
        let Book { quota, ledger, line, alarm } = book;
        if let Some(line) = line {
            line.unbook_all(&mut LimiterPost { limiter: self, quota, ledger, alarm }, now);
            line.forget_claims();
        }
    }

    /// Serves whom a change lets pass, and unlocks the book.
    pub(crate) fn release(&self, book: MutexGuard<'_, Book>) {
        if book.line.is_some() {
            self.with_line(book, |line, post, mut at| ((), line.settle(post, &mut at)));
        }
    }

    fn with_line<R>(
        &self,
        mut book: MutexGuard<'_, Book>,
        work: impl FnOnce(&mut Line, &mut LimiterPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R {
        let mut wakes = Wakes::new();
        let Book { quota, ledger, line, alarm } = &mut *book;
        let order = self.shared.line_rules.order;
        let line = line.get_or_insert_with(|| Box::new(Line::new(order)));
        let at = At { now: self.now(), wakes: &mut wakes };
        let mut post = LimiterPost { limiter: self, quota, ledger, alarm: &mut *alarm };
        let (done, target) = work(line, &mut post, at);
        alarm.set(&self.shared.clock, target, &mut wakes, || {
            let limiter = self.clone();
            move |_| limiter.ring()
        });
        wakes.push(target.and_then(|target| line.thread_to_wake(target)));
        let flag = if matches!(self.shared.cell, Cell::Gcra(_)) { QUEUED } else { WAITED };
        // ORDERING: Relaxed. The flag only sends others to the lock, under which it is set.
        match line.len() {
            0 => self.shared.mode.fetch_and(!flag, Relaxed),
            _ => self.shared.mode.fetch_or(flag, Relaxed),
        };
        drop(book);
        wakes.fire();
        done
    }

    /// The timer of a manual clock has come.
    fn ring(&self) {
        let mut book = self.book();
        book.alarm.rang();
        self.release(book);
    }
}

impl Host for Limiter {
    type Post<'a> = LimiterPost<'a>;

    fn at_line<R>(
        &self,
        work: impl FnOnce(&mut Line, &mut LimiterPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R {
        self.with_line(self.book(), work)
    }

    fn start_driver(&self) {
        #[cfg(feature = "tokio")]
        crate::wait::alarm::start(self);
    }
}

#[cfg(feature = "tokio")]
impl crate::wait::alarm::Driven for Limiter {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn drive(&self, runtime: RuntimeId, waker: &std::task::Waker) -> Option<Tick> {
        let mut book = self.book();
        let old = book.alarm.awake(runtime);
        let target = self.with_line(book, |line, post, mut at| {
            let target = line.settle(post, &mut at);
            post.alarm.asleep(runtime, waker, target);
            // In tests time is exact.
            let is_exact = self.shared.clock.is_of_tests();
            let slack = |target| if is_exact { Duration::ZERO } else { line.slack(target) };
            (target.map(|target| target.saturating_add(slack(target))), target)
        });
        drop(old);
        target
    }

    fn dismiss(&self, runtime: RuntimeId) -> bool {
        let mut book = self.book();
        let is_over = book.line.as_ref().is_none_or(|line| line.len() == 0);
        let old = if is_over { book.alarm.gone(runtime) } else { None };
        drop(book);
        drop(old);
        is_over
    }

    fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
        let mut book = self.book();
        let (is_lost, old) = book.alarm.abandoned(runtime, has_panicked);
        self.with_line(book, |line, post, at| ((), line.abandon(post, at, is_lost)));
        drop(old);
    }
}

/// The state of a limiter, with what is in its book.
pub(crate) struct LimiterPost<'a> {
    limiter: &'a Limiter,
    quota: &'a Quota,
    ledger: &'a mut Ledger,
    alarm: &'a mut Alarm,
}

impl Post for LimiterPost<'_> {
    fn rules(&self) -> LineRules {
        self.limiter.shared.line_rules
    }

    fn has_room(&mut self, waiting: usize) -> bool {
        waiting < self.rules().max_waiting
    }

    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        self.limiter.exempt(now, cost)
    }

    /// Whoever changes the quota of a limiter takes the bookings out before: so what counts is
    /// whether there can be any.
    fn rule(&self, _now: Tick) -> AnyRule {
        AnyRule::Word(match &self.limiter.shared.cell {
            Cell::Gcra(cell) => Rule::Gcra(cell.update(|gcra, _| *gcra)),
            _ => Rule::Unlimited,
        })
    }

    fn quota(&self, _now: Tick) -> Quota {
        *self.quota
    }

    fn algorithm(&self) -> Algorithm {
        self.limiter.algorithm()
    }

    fn state(&self, _now: Tick) -> State<'_> {
        State::of_limiter(self.limiter)
    }

    fn state_by(&self, _rule: &AnyRule, now: Tick) -> State<'_> {
        self.state(now)
    }

    fn lower_behind(&mut self, mark: u64, units: u64) {
        self.ledger.lower_behind(mark, units);
        self.limiter.shared.note_refund(units);
    }

    fn watch(&self) -> Option<&Watch> {
        self.limiter.watch()
    }

    fn changes_at(&self, _now: Tick) -> Option<Tick> {
        None
    }

    fn without_room(&self, now: Tick, cost: u64) -> Decision {
        self.read(now, |entry| entry.peek(now, cost))
    }

    fn with_timer<R>(&mut self, work: impl FnOnce(&mut Alarm, &Clock) -> R) -> R {
        work(self.alarm, &self.limiter.shared.clock)
    }
}

impl Book {
    /// Returns how much is booked for those who wait, in units.
    pub(crate) fn waiting_units(&self) -> u64 {
        self.line.as_ref().map_or(0, |line| line.booked())
    }
}
