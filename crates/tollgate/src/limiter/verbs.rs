//! The verbs of [`Limiter`] that decide.

use super::{EXACT, INSTRUMENTED, Limiter, OBSERVED, SPECIAL, Shared, cell::Cell, word::WordCell};
use crate::{Decision, Tick, algorithm::Gcra, clock::Reading, observe::Verb, verbs::StateRef};

impl Limiter {
    /// Takes one permit if it is free now. Never waits.
    #[inline(always)]
    #[doc(alias = "allow")]
    #[doc(alias = "check")]
    #[doc(alias = "tryConsume")]
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits if all of them are free now. Never waits.
    ///
    /// A cost above the burst is denied as [never](Decision::is_never). A cost of zero passes
    /// unless the limiter is in debt.
    #[inline(always)]
    #[doc(alias = "allow_n")]
    #[doc(alias = "check_n")]
    pub fn try_acquire_n(&self, cost: u64) -> Decision {
        let mode = self.mode();
        match &self.shared.cell {
            Cell::Gcra(cell) if mode & (SPECIAL | INSTRUMENTED) == 0 => {
                self.decide_now(cell, mode, cost)
            }
            // The same once more: a look at the count would cost others 0.7 to 1.5 ns.
            Cell::Gcra(cell) if mode & SPECIAL == 0 => {
                let decision = self.decide_now(cell, mode, cost);
                self.count(&decision);
                decision
            }
            _ => self.general_now(mode, cost).taken_apart(),
        }
    }

    /// Decides by the clock that the mode names, and by the exact one if that does not suffice.
    #[inline(always)]
    fn decide_now(&self, cell: &WordCell<Gcra>, mode: u8, cost: u64) -> Decision {
        let Shared { clock, early, .. } = &*self.shared;
        let begin = early.read_or(mode & EXACT == 0, || clock.now());
        let decided = cell.decide(begin, || clock.now(), cost);
        // Next time, begin with the reading that would have been the right one this time.
        if decided.is_misread(begin.is_early) {
            self.prefer(!begin.is_early);
        }
        decided.decision()
    }

    /// What [`try_acquire_n`](Self::try_acquire_n) does for every algorithm and mode. Not inlined:
    /// it is large.
    #[inline(never)]
    fn general_now(&self, mode: u8, cost: u64) -> Decision {
        match &self.shared.cell {
            Cell::Gcra(cell) if mode & SPECIAL == OBSERVED => {
                let decision = self.decide_now(cell, mode, cost);
                self.report(Verb::TryAcquire, &decision);
                decision
            }
            _ => self.general(self.now(), cost),
        }
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    ///
    /// For callers that have read the clock already, and for simulation. A `now` that lies behind
    /// an earlier one decides as of then: it can only refuse more.
    #[inline(always)]
    pub fn try_acquire_at(&self, now: Tick, cost: u64) -> Decision {
        match &self.shared.cell {
            Cell::Gcra(cell) if self.mode() & SPECIAL == 0 => {
                let decision = cell.decide(Reading::exact(now), || now, cost).decision();
                self.count(&decision);
                decision
            }
            _ => self.general(now, cost).taken_apart(),
        }
    }

    /// Decides for every algorithm and mode. Not inlined: it is large.
    #[inline(never)]
    fn general(&self, now: Tick, cost: u64) -> Decision {
        if self.mode() & SPECIAL != 0 {
            return StateRef::Limiter(self).ask(Verb::TryAcquire, now, cost);
        }
        let decision = self.shared.cell.decide(now, cost);
        self.report(Verb::TryAcquire, &decision);
        decision
    }

    /// Notes which reading to begin with: the early one if the last decision was clear of borders.
    #[cold]
    fn prefer(&self, early: bool) {
        if self.shared.early.margin() == Tick::ZERO {
            return;
        }
        // A hint: either clock leads to the same decision.
        self.shared.mode.set(EXACT, !early);
    }

    /// Takes as many permits as are free now, at most `most`.
    ///
    /// [`Decision::cost`] says how many. If none is free, the answer is the denial of one.
    #[doc(alias = "tryConsumeAsMuchAsPossible")]
    pub fn up_to(&self, most: u64) -> Decision {
        self.up_to_at(self.now(), most)
    }

    /// [`up_to`](Self::up_to) as of `now`.
    pub fn up_to_at(&self, now: Tick, most: u64) -> Decision {
        StateRef::Limiter(self).ask(Verb::UpTo, now, most)
    }

    /// Takes `cost` permits if at least one of them is free now, and books the others into debt. Never
    /// waits.
    ///
    /// For costs that are known only roughly or exceed the burst, such as the tokens of a language model:
    /// one call may overshoot, and the next one waits until that is paid off. It passes when
    /// [`try_acquire`](Self::try_acquire) would, and then books all of `cost`, even beyond the burst. A
    /// permit is free only if nothing is owed. So at most burst + rate x w and the debt of one call pass
    /// in an interval w.
    ///
    /// A denial books nothing, and [`retry_after`](Decision::retry_after) is exact: the first tick at
    /// which the debt is paid off and one permit is free. In windows that is when so much has left the
    /// window that fewer permits than the limit count. A cost of zero passes unless the limiter is in
    /// debt. A debt beyond what the state can hold is denied as [never](Decision::is_never), as by
    /// [`force`](Self::force).
    ///
    /// # Examples
    ///
    /// Let a prompt overshoot a budget of tokens:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter, Quota};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let tokens = Limiter::builder(Quota::per_second(100).burst(1000)).clock(clock).build()?;
    /// assert!(tokens.try_acquire_on_credit(1500).is_allowed()); // now 500 are owed
    /// let denied = tokens.try_acquire_on_credit(20);
    /// assert_eq!(denied.retry_after(tokens.now()), Some(Duration::from_millis(5010)));
    /// hand.advance(Duration::from_millis(5010));
    /// assert!(tokens.try_acquire_on_credit(20).is_allowed());
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    pub fn try_acquire_on_credit(&self, cost: u64) -> Decision {
        self.try_acquire_on_credit_at(self.now(), cost)
    }

    /// [`try_acquire_on_credit`](Self::try_acquire_on_credit) as of `now`.
    pub fn try_acquire_on_credit_at(&self, now: Tick, cost: u64) -> Decision {
        StateRef::Limiter(self).ask(Verb::OnCredit, now, cost)
    }

    /// Books `cost` permits even if they are not free: for a cost that is known only afterwards.
    ///
    /// Later calls, even of a cost of zero, wait until the debt is paid off:
    ///
    /// | algorithm | how a debt is paid off | largest debt |
    /// |---|---|---|
    /// | GCRA | at its rate | 4.5 years, burst included |
    /// | sliding counter, sliding log | one limit per window | 4.5 years |
    /// | fixed window | forgotten with its window | at least the limit once more: 1.8 x 10^9 at 1 s, 9 x 10^10 at 1 min |
    ///
    /// The answer is allowed, unless the debt would exceed that: then nothing is booked and the answer is
    /// [never](Decision::is_never). An anchored window counts a two-hundredth of a fixed one.
    ///
    /// # Examples
    ///
    /// Book what a call has used, far above the limit:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, Clock, Limiter, Quota};
    ///
    /// let quota = Quota::per_minute(1000);
    /// let tokens = Limiter::builder(quota).algorithm(Algorithm::SlidingLog).clock(Clock::manual().0).build()?;
    /// assert!(tokens.force(50_000).is_allowed());
    /// let refused = tokens.try_acquire();
    /// assert_eq!(refused.retry_after(tokens.now()), Some(Duration::from_secs(50 * 60)));
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    #[doc(alias = "consumeIgnoringRateLimits")]
    pub fn force(&self, cost: u64) -> Decision {
        self.force_at(self.now(), cost)
    }

    /// [`force`](Self::force) as of `now`.
    pub fn force_at(&self, now: Tick, cost: u64) -> Decision {
        StateRef::Limiter(self).ask(Verb::Force, now, cost)
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing.
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.peek_at(self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    pub fn peek_at(&self, now: Tick, cost: u64) -> Decision {
        StateRef::Limiter(self).peek(now, cost)
    }

    /// Returns how many whole permits are free now; `u64::MAX` if there is no limit.
    #[must_use]
    #[doc(alias = "tokens")]
    pub fn available(&self) -> u64 {
        self.available_at(self.now())
    }

    /// [`available`](Self::available) as of `now`.
    #[must_use]
    pub fn available_at(&self, now: Tick) -> u64 {
        match self.exempt(now, 0) {
            Some(_) => u64::MAX,
            None if self.behind(now, 1).is_some() => 0,
            None => self.shared.cell.update(|entry| entry.available(now)),
        }
    }

    /// Gives back up to `cost` permits of what is outstanding. Returns the number of permits; one that has
    /// refilled in part is given back for the rest, and counts.
    ///
    /// For callers that kept nothing of their take. The limiter cannot know whose permits these
    /// are, so it holds to two rules: never above full, and what it gives back lowers the claims
    /// of open reservations. Admitted minus refunded cost stays within burst + rate x w in every
    /// interval. To give back *your* take, exactly and no more, [`reserve`](Self::reserve) it and
    /// [`cancel`](crate::Reservation::cancel).
    #[doc(alias = "addTokens")]
    #[doc(alias = "reward")]
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund(&self, cost: u64) -> u64 {
        self.refund_at(self.now(), cost)
    }

    /// [`refund`](Self::refund) as of `now`.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund_at(&self, now: Tick, cost: u64) -> u64 {
        if self.is_unlimited() {
            return 0;
        }
        StateRef::Limiter(self).refund(now, cost, None)
    }

    /// Forgets what was taken, as if the limiter were new. Open reservations become final.
    pub fn reset(&self) {
        self.reset_at(self.now());
    }

    /// [`reset`](Self::reset) as of `now`.
    pub fn reset_at(&self, now: Tick) {
        let mut book = self.book();
        self.unbook_all(&mut book, now);
        self.shared.cell.update(|entry| entry.reset(now));
        book.forget_claims(&self.shared);
        // Waiting callers are booked again.
        self.release(book);
    }
}
