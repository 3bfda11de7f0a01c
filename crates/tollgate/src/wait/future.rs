//! Waiting: the future, and its twin for plain threads.

use super::{
    NoRuntime, Sleeper,
    limiter_queue::{self, Entered, Grant, Keeps, WaitResult},
    parked::block_until,
    queue::{Request, Ticket},
};
use crate::{
    Clock, Decision, Limiter, Refused, Tick, keyed::WaitedKey, observe::Verb, verbs::StateRef,
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

pin_project! {
    /// Waits its turn for permits; made by [`Limiter::acquire`] and
    /// [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire).
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Self::block) a thread. It takes its place
    /// in the queue when it is polled first.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time. Its place goes to the next, and permits that were set aside
    /// for it go back, as far as time has not refilled them already (`tests/flow/waiting_cancel.rs`). A
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

/// How long a caller wants to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Within(Duration),
    Until(Tick),
}

/// The place of a caller in a queue; leaves it when dropped.
struct Place {
    source: Source,
    /// The budget that takes the place of a key for which there is no room.
    shared: Option<Limiter>,
    is_task: bool,
    since: Tick,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Outside,
    Waits(Ticket),
    /// Permits are taken, and a little jitter is to pass.
    Holds(Ticket, Tick),
}

/// The state that a caller waits for.
pub(crate) enum Source {
    Limiter(Limiter),
    Key(WaitedKey),
}

/// Runs the same code for either.
macro_rules! on_source {
    ($place:expr, $name:ident => $body:expr) => {
        match ($place.shared.as_ref(), &$place.source) {
            (Some($name), _) | (None, Source::Limiter($name)) => $body,
            (None, Source::Key($name)) => $body,
        }
    };
}

impl Source {
    /// Runs `work` on the state that is waited for.
    const fn state_ref(&self) -> StateRef<'_> {
        match self {
            Self::Limiter(limiter) => StateRef::Limiter(limiter),
            Self::Key(key) => key.state_ref(),
        }
    }

    fn level_at(&self, now: Tick) -> Decision {
        self.state_ref().state(now).read(|entry| entry.peek(now, 0))
    }
}

impl Wait {
    pub(crate) const fn new(source: Source, cost: u64) -> Self {
        let (since, stage) = (Tick::ZERO, Stage::Outside);
        let is_task = cfg!(feature = "tokio");
        let place = Place { source, shared: None, is_task, since, stage };
        Self { cost, patience: Patience::Until(Tick::MAX), jitter: 0, place, sleeper: Sleeper::ANY }
    }

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
    /// The longer the backlog, the longer the wait, and the wider the spread. A call that does not
    /// wait is not delayed.
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
        self.place.is_task = false;
        self.sleeper = Sleeper::thread();
        let clock = self.place.clock().clone();
        let mut this = pin!(self);
        block_until(&clock, |context| this.as_mut().poll_turn(context))
    }

    /// Returns the result, or else until when a thread may sleep unless it is woken.
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
                    let keeps = if *this.jitter == 0 { Keeps::Nothing } else { Keeps::Grant };
                    let (poll, until) = place.fetch((ticket, keeps), context.waker().clone());
                    let Poll::Ready(answer) = poll else { return Err(until) };
                    match answer {
                        Some(Ok(grant)) if keeps == Keeps::Grant => {
                            let until = place.pause(&grant, *this.jitter, *this.patience);
                            place.stage = Stage::Holds(ticket, until);
                        }
                        answer => return Ok(place.end(answer)),
                    }
                }
                Stage::Holds(ticket, until) => {
                    let pause = this.sleeper.as_mut().poll_until(place.clock(), until, context);
                    if pause.is_pending() {
                        return Err(Some(until));
                    }
                    debug_assert_eq!(pause, Poll::Ready(Ok::<(), NoRuntime>(())));
                    let (poll, _) = place.fetch((ticket, Keeps::Nothing), Waker::noop().clone());
                    let answer = if let Poll::Ready(answer) = poll { answer } else { None };
                    return Ok(place.end(answer));
                }
            }
        }
    }
}

impl Place {
    fn clock(&self) -> &Clock {
        self.source.state_ref().clock()
    }

    /// Takes a place in the queue, unless the answer is there at once.
    fn enter(
        &mut self,
        cost: u64,
        patience: Patience,
        context: &Context<'_>,
    ) -> Option<Result<Passed, Refused>> {
        self.shared = None;
        let at_once = match &self.source {
            Source::Limiter(limiter) if limiter.is_free() => Some(limiter.try_acquire_n(cost)),
            Source::Limiter(_) => None,
            Source::Key(key) => key.try_acquire(cost),
        };
        if let Some(decision) = at_once.filter(Decision::is_allowed) {
            return Some(Ok(Passed::at_once(decision)));
        }
        let now = self.clock().now();
        if cost == 0 {
            let decision = self.source.level_at(now).forced(0);
            self.report(&decision);
            return Some(Ok(Passed::at_once(decision)));
        }
        let (deadline, is_task) = (patience.deadline(now), self.is_task);
        let request = Request { cost, deadline, since: now, is_task, ..Request::default() };
        let mut waker = context.waker().clone();
        let mut entered = on_source!(self, host => limiter_queue::enter(host, request, &mut waker));
        if let (Entered::NoRoom, Source::Key(key)) = (&entered, &self.source) {
            self.shared = key.shared_budget();
            entered = match &self.shared {
                Some(shared) => limiter_queue::enter(shared, request, &mut waker),
                None => Entered::Refused(key.refusal_without_room(now, &request)),
            };
        }
        match entered {
            Entered::Passed(decision) => {
                self.report(&decision);
                Some(Ok(Passed::at_once(decision)))
            }
            Entered::Refused(refused) => Some(Err(self.refused(refused))),
            Entered::Waits(ticket) => {
                (self.since, self.stage) = (now, Stage::Waits(ticket));
                None
            }
            // A limiter has room for its state.
            Entered::NoRoom => {
                debug_assert!(false, "the state has no room");
                None
            }
        }
    }

    /// Fetches the result, or returns until when a thread may sleep.
    fn fetch(
        &mut self,
        ticket: (Ticket, Keeps),
        mut waker: Waker,
    ) -> (Poll<Option<WaitResult>>, Option<Tick>) {
        on_source!(self, host => limiter_queue::fetch(host, ticket, &mut waker))
    }

    /// The wait is over.
    fn end(&mut self, answer: Option<WaitResult>) -> Result<Passed, Refused> {
        self.stage = Stage::Outside;
        match answer {
            Some(Ok(grant)) => Ok(self.granted(&grant)),
            Some(Err(refused)) => Err(self.refused(refused)),
            // INVARIANT: a ticket has an answer until it is fetched.
            None => {
                debug_assert!(false, "the place is gone");
                let now = self.clock().now();
                Err(Refused::Late(self.source.level_at(now).blocked(0, now)))
            }
        }
    }

    /// Returns until when to hold on to permits that are granted.
    fn pause(&self, grant: &Grant, percent: u8, patience: Patience) -> Tick {
        let wait = grant.due.since(self.since);
        let most = wait.saturating_mul(percent.into()) / 100;
        let most = most.min(patience.deadline(self.since).since(grant.due));
        grant.due.saturating_add(crate::wait::random_up_to(most))
    }

    fn granted(&self, grant: &Grant) -> Passed {
        let waited = self.clock().now().since(self.since);
        if let Some(instruments) = self.source.state_ref().instruments() {
            instruments.waits.add(waited);
        }
        self.report(&grant.decision);
        Passed { decision: grant.decision, waited }
    }

    fn report(&self, decision: &Decision) {
        match &self.source {
            Source::Limiter(limiter) => limiter.report(Verb::Acquire, decision),
            Source::Key(key) => key.report(decision),
        }
    }

    /// Counts and reports the decision. A refusal for the key's own sake also counts against the key.
    fn refused(&self, mut refused: Refused) -> Refused {
        match &mut refused {
            Refused::Never(decision)
            | Refused::TooLong { decision, .. }
            | Refused::BookedUp(decision) => {
                *decision = self.source.state_ref().report(Verb::Acquire, *decision);
            }
            other => self.report(&other.decision()),
        }
        refused
    }
}

impl Patience {
    pub(crate) fn deadline(self, now: Tick) -> Tick {
        match self {
            Self::Within(longest) => now.saturating_add(longest),
            Self::Until(deadline) => deadline,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.stage {
            Stage::Outside => {}
            Stage::Waits(ticket) | Stage::Holds(ticket, _) => {
                on_source!(self, host => limiter_queue::leave(host, ticket));
            }
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
