//! Who may enter, and what the others are told.

use crate::{
    Info, Key, NotRun,
    answer::{Body, Headers, Label, Refusal, Told, Verdict},
    key::{Found, KeyBytes},
    misuse::Hints,
    timer::{self, NoTimers},
    watch::Watch,
};
use bytes::Bytes;
use http::Response;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::Timeout;
use tollgate::{
    Acquire, Answer, Clock, Concurrency, Decision, Full, KeyedConcurrency, Outcome, Permit, Tick,
    watch::Verb,
};

/// Changes the response to a refused request.
pub(super) type Hook = Arc<dyn Fn(&Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// The slots that are taken.
pub(super) enum Slots {
    All(Concurrency),
    Each(KeyedConcurrency<[u8]>, Key),
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(limit) => limit.fmt(f),
            Self::Each(limit, key) => {
                f.debug_tuple("Each").field(&limit.limit()).field(key).finish()
            }
        }
    }
}

/// What all services of a layer share.
pub(super) struct SharedLimit {
    pub(super) slots: Slots,
    pub(super) label: Label,
    pub(super) max_wait: Option<Duration>,
    pub(super) retry_after: Option<Duration>,
    pub(super) refusal: Refusal,
    pub(super) headers: Headers,
    pub(super) body: Body,
    pub(super) hook: Option<Hook>,
    pub(super) clock: Clock,
    pub(super) watch: Watch,
    pub(super) hints: Hints,
}

/// What came of asking for a slot.
pub(super) enum Entered {
    /// There is one; none if the request is not counted.
    Inside(Option<Permit>),
    Waits(Waiting),
    Refused(Why),
}

/// Somebody in the queue.
pub(super) struct Waiting {
    turn: Pin<Box<Timeout<Acquire>>>,
    /// The limit when it came.
    limit: u64,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    /// Nobody knows whom to count.
    NoKey,
    /// So many may be in flight, and are.
    Full { limit: u64 },
    /// There is no room for anybody new, whoever it is: too many are in use.
    TooManyKeys { limit: u64 },
    /// Nobody comes in any more.
    Closed { limit: u64 },
}

impl From<Full> for Why {
    fn from(full: Full) -> Self {
        let limit = full.limit();
        match (full.is_too_many_keys(), full.is_closed()) {
            (_, true) => Self::Closed { limit },
            (true, false) => Self::TooManyKeys { limit },
            (false, false) => Self::Full { limit },
        }
    }
}

impl Waiting {
    /// Is ready when there is a slot, or the time is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Permit, Why>> {
        self.turn.as_mut().poll(context).map(|answer| match answer {
            Ok(answer) => answer.map_err(Why::from),
            Err(_) => Err(Why::Full { limit: self.limit }),
        })
    }
}

impl SharedLimit {
    /// Takes a slot, or a place in the queue.
    pub(super) fn enter(&self, info: &Info<'_>) -> Entered {
        match &self.slots {
            Slots::All(limit) => {
                let entered = match self.max_wait {
                    None => at_once(limit.try_acquire()),
                    Some(longest) => queue(limit.acquire(), longest, || limit.limit()),
                };
                self.entered(entered, || (limit.limit(), limit.available()))
            }
            Slots::Each(limit, key) => {
                self.hints.look(std::iter::once(key), info);
                let mut bytes = KeyBytes::new();
                match key.find(info, &mut bytes) {
                    Found::Skip => return Entered::Inside(None),
                    Found::Refuse | Found::Ambiguous => {
                        self.watch.no_key(0);
                        return Entered::Refused(Why::NoKey);
                    }
                    Found::Known | Found::Anonymous => {}
                }
                let key = bytes.as_bytes();
                let entered = match self.max_wait {
                    None => at_once(limit.try_acquire(key)),
                    Some(longest) => queue(limit.acquire(key), longest, || limit.key_limit(key)),
                };
                self.entered(entered, || (limit.key_limit(key), limit.available(key)))
            }
        }
    }

    /// Tells what came of asking; the limit and what is left of it are worked out if somebody wants
    /// to know.
    fn entered(&self, entered: Entered, level: impl FnOnce() -> (u64, u64)) -> Entered {
        if self.watch.is_idle() {
            return entered;
        }
        match &entered {
            Entered::Inside(_) => {
                let (limit, remaining) = level();
                self.passed(limit, remaining);
            }
            Entered::Refused(why) => self.refused(*why),
            Entered::Waits(_) => {}
        }
        entered
    }

    /// Tells what came of waiting.
    pub(super) fn waited(&self, waiting: &Waiting, answer: &Result<Permit, Why>) {
        if !self.watch.is_idle() {
            match answer {
                // It has the slot that came free.
                Ok(_) => self.passed(waiting.limit, 0),
                Err(why) => self.refused(*why),
            }
        }
    }

    fn passed(&self, limit: u64, remaining: u64) {
        self.tell(Outcome::Allowed, limit, remaining);
    }

    fn refused(&self, why: Why) {
        match why {
            // That was no decision.
            Why::NoKey => {}
            Why::Full { limit } | Why::TooManyKeys { limit } => self.tell(Outcome::Later, limit, 0),
            Why::Closed { limit } => self.tell(Outcome::Never, limit, 0),
        }
    }

    fn tell(&self, outcome: Outcome, limit: u64, remaining: u64) {
        let at = self.clock.now();
        // Nobody knows when a slot comes free, unless it was said.
        let retry_at = at.saturating_add(self.retry_after.unwrap_or_default());
        let answer = Answer { outcome, at, cost: 1, limit, remaining, retry_at, full_at: None };
        let verb = if self.max_wait.is_some() { Verb::Acquire } else { Verb::TryAcquire };
        self.watch.decided(0, verb, &Decision::answered(answer), true);
    }

    /// Returns the response to a refused request.
    pub(super) fn refusal(&self, why: Why, is_grpc: bool) -> Response<Bytes> {
        let now = self.clock.now();
        let told = |limit| [Told::new(&self.label, full(now, limit))];
        let mut response = match why {
            Why::NoKey => {
                let verdict = Verdict::new(&self.clock, now, &[]).refused(Refusal::Unidentified);
                self.write(&verdict, is_grpc)
            }
            Why::Full { limit } => self.write_full(&told(limit), self.refusal, is_grpc),
            Why::TooManyKeys { limit } | Why::Closed { limit } => {
                self.write_full(&told(limit), Refusal::ReducedCapacity, is_grpc)
            }
        };
        // A hook may have made another response: it did not run either.
        response.extensions_mut().insert(NotRun);
        response
    }

    fn write_full(&self, told: &[Told<'_>], refusal: Refusal, is_grpc: bool) -> Response<Bytes> {
        let mut verdict = Verdict::new(&self.clock, self.clock.now(), told).refused(refusal);
        if let Some(wait) = self.retry_after {
            verdict = verdict.wait_at_least(wait);
        }
        self.write(&verdict, is_grpc)
    }

    fn write(&self, verdict: &Verdict<'_>, is_grpc: bool) -> Response<Bytes> {
        let response = if is_grpc {
            self.headers.grpc_response(verdict).map(|()| Bytes::new())
        } else {
            self.headers.response(verdict, self.body)
        };
        match &self.hook {
            Some(hook) => hook(verdict, response),
            None => response,
        }
    }
}

fn at_once(answer: Result<Permit, Full>) -> Entered {
    match answer {
        Ok(permit) => Entered::Inside(Some(permit)),
        Err(full) => Entered::Refused(full.into()),
    }
}

/// Takes a slot, or a place in the queue in the order of calls, whoever is polled first.
fn queue(mut acquire: Acquire, longest: Duration, limit: impl FnOnce() -> u64) -> Entered {
    // Whoever has to wait is polled again with a waker of its own.
    match Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => at_once(answer),
        Poll::Pending => match timer::timeout(longest, acquire) {
            Ok(turn) => Entered::Waits(Waiting { turn: Box::pin(turn), limit: limit() }),
            // Without timers nobody would end the wait.
            Err(NoTimers) => Entered::Refused(Why::Full { limit: limit() }),
        },
    }
}

/// The decision of a limit that is full. Its end has no date: somebody has to finish.
fn full(at: Tick, limit: u64) -> Decision {
    let outcome = Outcome::Never;
    Decision::answered(Answer {
        outcome,
        at,
        cost: 1,
        limit,
        remaining: 0,
        retry_at: at,
        full_at: None,
    })
}
