//! Waiting: the future, and its twin for plain threads.

use super::{By, Entered, Wish};
use crate::{
    Decision, Limiter, Refused, Tick,
    limiter::line::{Answer, Grant},
    wait::{NoRuntime, Sleeper, parked, queue::Ticket},
    watch::Verb,
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

pin_project! {
    /// Waits its turn for permits; made by [`Limiter::acquire`].
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Self::block) a thread. It takes its place
    /// in the queue when it is polled first.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time. Its place goes to the next, and permits that were set aside
    /// for it go back, as far as time has not refilled them already (`tests/waiting_cancel.rs`). A
    /// future that nobody polls any more holds up nobody else.
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct Wait {
        cost: u64,
        patience: Patience,
        jitter: u8,
        place: Place,
        #[pin]
        sleeper: Sleeper,
    }
}

/// The end of a [`Wait`]: the permits are taken, and it is time to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    decision: Decision,
    waited: Duration,
}

impl Passed {
    const fn at_once(decision: Decision) -> Self {
        Self { decision, waited: Duration::ZERO }
    }

    /// Returns the decision that let it pass, with what is left.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns how long that took; zero if there was no wait.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.waited
    }
}

/// How long somebody wants to wait.
#[derive(Clone, Copy, Debug)]
enum Patience {
    Endless,
    Within(Duration),
    Until(Tick),
}

/// Where somebody stands; leaves when dropped.
struct Place {
    limiter: Limiter,
    by: By,
    since: Tick,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Outside,
    Waits(Ticket),
    /// Permits are taken, and a little jitter is to pass.
    Holds(Grant, Tick),
}

impl Limiter {
    /// Waits for one permit, in turn.
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Wait::block) a thread. The first to come
    /// is the first to pass, and one timer serves all who wait: see [`Wait`].
    ///
    /// # Errors
    ///
    /// [`Refused`] at once, if no wait can help, if it does not fit the deadline, or if as many wait
    /// as may.
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
        let stage = Stage::Outside;
        let place = Place { limiter: self.clone(), by: By::ANY, since: Tick::ZERO, stage };
        let sleeper = Sleeper::ANY;
        Wait { cost, patience: Patience::Endless, jitter: 0, place, sleeper }
    }
}

impl Wait {
    /// Waits for at most `longest`, counted from the first poll. If that does not suffice it is
    /// refused at once, without waiting.
    ///
    /// A window's queue may be longer than it looks: then the refusal comes when the time is over.
    pub const fn within(mut self, longest: Duration) -> Self {
        self.patience = Patience::Within(longest);
        self
    }

    /// Waits at most until `deadline` on the limiter's clock; as [`within`](Self::within).
    pub const fn until(mut self, deadline: Tick) -> Self {
        self.patience = Patience::Until(deadline);
        self
    }

    /// Passes up to `percent` of the wait later, at random, but never beyond the deadline: so that
    /// those who were held up by one backlog do not go on in step.
    ///
    /// The longer the backlog, the longer the wait, and the wider the spread. Who does not wait is
    /// not delayed.
    pub const fn jitter(mut self, percent: u8) -> Self {
        self.jitter = percent;
        self
    }

    /// Returns the cost.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Waits on this thread.
    ///
    /// # Errors
    ///
    /// As [`Limiter::acquire`].
    pub fn block(mut self) -> Result<Passed, Refused> {
        self.place.by = By::Thread;
        self.sleeper = Sleeper::thread();
        let clock = self.place.limiter.clock().clone();
        let waker = parked::waker();
        let mut context = Context::from_waker(&waker);
        let mut this = pin!(self);
        loop {
            match this.as_mut().poll_turn(&mut context) {
                Ok(answer) => return answer,
                // On a manual clock somebody else wakes this thread.
                Err(until) => {
                    let until = until.filter(|_| clock.hand().is_none());
                    parked::park(until.map(|until| until.since(clock.now())));
                }
            }
        }
    }

    /// Is answered, or says until when a thread may sleep unless it is woken.
    fn poll_turn(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Result<Result<Passed, Refused>, Option<Tick>> {
        let mut this = self.project();
        let place = &mut *this.place;
        loop {
            match place.stage {
                Stage::Outside => {
                    let patience = *this.patience;
                    if let Some(answer) = place.enter(*this.cost, patience, context) {
                        return Ok(answer);
                    }
                }
                Stage::Waits(ticket) => {
                    let mut waker = context.waker().clone();
                    let (poll, until) = place.limiter.fetch(ticket, &mut waker, place.by);
                    let Poll::Ready(answer) = poll else { return Err(until) };
                    place.stage = Stage::Outside;
                    match answer {
                        Some(Answer::Granted(grant)) => {
                            let until = place.pause(&grant, *this.jitter, *this.patience);
                            place.stage = Stage::Holds(grant, until);
                        }
                        Some(Answer::Refused(refused)) => return Ok(place.refused(refused)),
                        // INVARIANT: a ticket has an answer until it is fetched.
                        None => debug_assert!(false, "the place is gone"),
                    }
                }
                Stage::Holds(grant, until) => {
                    let clock = &place.limiter.shared.clock;
                    let pause = this.sleeper.as_mut().poll_until(clock, until, context);
                    if pause.is_pending() {
                        return Err(Some(until));
                    }
                    debug_assert_eq!(pause, Poll::Ready(Ok::<(), NoRuntime>(())));
                    place.stage = Stage::Outside;
                    return Ok(Ok(place.granted(&grant)));
                }
            }
        }
    }
}

impl Place {
    /// Takes a place in the queue, unless the answer is there at once.
    fn enter(
        &mut self,
        cost: u64,
        patience: Patience,
        context: &Context<'_>,
    ) -> Option<Result<Passed, Refused>> {
        let limiter = &self.limiter;
        if limiter.is_free() {
            let decision = limiter.try_acquire_n(cost);
            if decision.is_allowed() {
                return Some(Ok(Passed::at_once(decision)));
            }
        }
        let now = limiter.now();
        let wish = Wish { cost, deadline: patience.deadline(now) };
        if cost == 0 {
            return Some(Ok(Passed::at_once(limiter.level_at(now).forced(0))));
        }
        let mut waker = context.waker().clone();
        match limiter.enter(wish, &mut waker, self.by) {
            Entered::Passed(decision) => {
                limiter.report(Verb::Acquire, &decision);
                Some(Ok(Passed::at_once(decision)))
            }
            Entered::Refused(refused) => Some(self.refused(refused)),
            Entered::Waits(ticket) => {
                (self.since, self.stage) = (now, Stage::Waits(ticket));
                None
            }
        }
    }

    /// Returns until when to hold on to permits that are granted.
    fn pause(&self, grant: &Grant, percent: u8, patience: Patience) -> Tick {
        if percent == 0 {
            return Tick::ZERO;
        }
        let wait = grant.due.since(self.since);
        let most = wait.saturating_mul(percent.into()) / 100;
        let most = most.min(patience.deadline(self.since).since(grant.due));
        grant.due.saturating_add(crate::wait::random_up_to(most))
    }

    fn granted(&self, grant: &Grant) -> Passed {
        let waited = self.limiter.now().since(self.since);
        if let Some(watch) = self.limiter.watch() {
            watch.waits(waited);
        }
        self.limiter.report(Verb::Acquire, &grant.decision);
        Passed { decision: grant.decision, waited }
    }

    fn refused(&self, refused: Refused) -> Result<Passed, Refused> {
        self.limiter.report(Verb::Acquire, &refused.decision());
        Err(refused)
    }
}

impl Patience {
    fn deadline(self, now: Tick) -> Tick {
        match self {
            Self::Endless => Tick::MAX,
            Self::Within(longest) => now.saturating_add(longest),
            Self::Until(deadline) => deadline,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.stage {
            Stage::Outside => {}
            Stage::Waits(ticket) => self.limiter.leave(ticket, self.by),
            Stage::Holds(grant, _) => self.limiter.return_grant(&grant),
        }
    }
}

#[cfg(feature = "tokio")]
impl Future for Wait {
    type Output = Result<Passed, Refused>;

    /// Once it was ready, another poll asks anew.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.poll_turn(context) {
            Ok(answer) => Poll::Ready(answer),
            Err(_) => Poll::Pending,
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("cost", &self.cost)
            .field("patience", &self.patience)
            .field("waits", &!matches!(self.place.stage, Stage::Outside))
            .finish_non_exhaustive()
    }
}
