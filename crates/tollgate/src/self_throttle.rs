//! Adaptive throttling in the client: send less to a server that refuses for overload.
//!
//! A refusal costs an overloaded server almost as much as a cheap answer. A client that counts how
//! many of its calls the server accepts can refuse the rest itself, before they are sent (Google,
//! "Site Reliability Engineering", chapter 21: client-side throttling).
//!
//! With `requests` and `accepts` of a moving window, a call is refused with the probability
//!
//! ```text
//! p = max(0, (requests - k x accepts) / (requests + 1)), at most max_refusal
//! ```
//!
//! `requests` has the calls that were refused here, too. So the server gets about k times what it
//! accepts: with k = 2, one refusal for each call that it serves. If callers want four times what the server
//! can do, half of the calls end here; with k = 1.1, it is 72.5 %.
//!
//! Departures from the book:
//!
//! 1. A call is counted when it ends, and only if it ended: calls in flight and cancelled calls
//!    are no refusals.
//! 2. `p` has a bound below 1. Without calls that get through, nothing would show that the server
//!    has recovered.
//! 3. Below `min_calls` in the window nothing is refused.
//! 4. `p` fades once the server accepts everything. By the rule alone, the share `a` of calls that get through
//!    after a recovery is k times its mean over the window, so it grows as `e^(g t)` with `g = k (1 - e^-g)`
//!    (t in windows): to 4.9 times as much in a window at k = 2, but by a fifth at k = 1.1, which takes 7 windows from
//!    27.5 % to all. So when a tenth of a window has passed since the server last refused a call, and it has accepted
//!    enough calls since then, `p` falls to zero over the next half of the window; the next refusal ends that.
//!    "Enough" is `ln 1000 / ln k`: of a server that is overloaded, 1/k of the calls are accepted, so that many in a
//!    row come once in a thousand times. `p` is never above the rule's, and while the server refuses it is the rule's.
//!
//! Each [`Priority`] has a window of its own, ten buckets of two counters: a server that refuses
//! batches first does not make the client refuse payments. Time that goes backwards counts as
//! standing still, and after a window without calls nothing is refused. 2 KiB; a decision sums up ten buckets.

mod builder;

pub use builder::SelfThrottleBuilder;

use crate::{
    CallOutcome, Clock, Priority, Tick,
    breaker::window::{CallWindow, Mark, Totals},
    observe::{Collector, Samples, WeakCollector, family},
    sync::{Arc, AtomicU64, Ordering::Relaxed},
    wait::fraction,
};
use std::{fmt, time::Duration};

/// Refuses a share of the calls to a server that refuses many of them; clones share it.
///
/// | I want to | use |
/// |---|---|
/// | call the server | [`try_pass`](Self::try_pass), then [`ThrottlePass::end`] |
/// | see which share is refused | [`refusal_probability`](Self::refusal_probability) |
/// | refuse earlier, or later | [`k`](SelfThrottleBuilder::k) |
///
/// A [`Breaker`](crate::Breaker) stops all calls to a server that is down. This reduces calls to a
/// server that is overloaded, in steps too small to notice. They go well together.
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, Priority, self_throttle::SelfThrottle};
///
/// let throttle = SelfThrottle::builder().seed(1).build()?;
/// for _ in 0..100 {
///     if let Ok(pass) = throttle.try_pass(Priority::NORMAL) {
///         pass.end(CallOutcome::Overload); // the server says 503 to everything
///     }
/// }
/// assert!(throttle.refusal_probability(Priority::NORMAL) > 0.89);
/// assert_eq!(throttle.refusal_probability(Priority::CRITICAL), 0.0); // no such call was refused
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
#[doc(alias = "AdaptiveThrottle")]
#[doc(alias = "adaptive throttling")]
#[doc(alias = "admission control")]
pub struct SelfThrottle {
    shared: Arc<Shared>,
}

struct Shared {
    rules: Rules,
    levels: [LevelCalls; Priority::LEVELS],
    clock: Clock,
    seed: u64,
    /// How many random numbers were drawn.
    drawn: AtomicU64,
    refused: AtomicU64,
}

/// The law: from counts to a probability. Pure.
#[derive(Clone, Debug, PartialEq)]
struct Rules {
    /// By level of priority.
    k: [f64; Priority::LEVELS],
    max_refusal: f64,
    min_calls: u64,
    window: Duration,
}

/// The calls of one priority.
struct LevelCalls {
    window: CallWindow,
    /// When the server last refused one.
    refused_ns: AtomicU64,
    /// How many it has accepted since then; not counted further than needed.
    accepts: AtomicU64,
}

impl LevelCalls {
    fn add(&self, now: Tick, is_accepted: bool) {
        self.window.add(now, Mark { failed: !is_accepted, slow: false });
    }
}

impl Rules {
    /// How many accepted calls in a row show that a server is not overloaded.
    fn enough(&self, level: usize) -> u64 {
        // OVERFLOW: a cast from a float saturates.
        ((1000_f64.ln() / self.k[level].ln()).ceil() as u64).max(self.min_calls)
    }

    /// Returns what is left of the probability when the server has accepted every call for so long.
    fn fade(&self, accepting_for: Duration) -> f64 {
        let windows = accepting_for.as_secs_f64() / self.window.as_secs_f64();
        ((0.6 - windows) / 0.5).clamp(0.0, 1.0)
    }

    fn probability(&self, level: usize, seen: Totals) -> f64 {
        // Requests that are not accepted count as failures of the window, refused here or there.
        let (requests, accepts) = (seen.calls, seen.calls.saturating_sub(seen.failures));
        if requests < self.min_calls {
            return 0.0;
        }
        let excess = requests as f64 - self.k[level] * accepts as f64;
        (excess / (requests as f64 + 1.0)).clamp(0.0, self.max_refusal)
    }
}

impl SelfThrottle {
    /// Starts a throttle. [`SelfThrottleBuilder`] lists the defaults.
    pub fn builder() -> SelfThrottleBuilder {
        SelfThrottleBuilder::new()
    }

    /// Lets a call pass, or refuses it at random. Never waits.
    ///
    /// # Errors
    ///
    /// [`Throttled`] says with which probability. The refusal counts as a request that the server
    /// did not accept.
    pub fn try_pass(&self, priority: Priority) -> Result<ThrottlePass, Throttled> {
        self.try_pass_at(self.shared.clock.now(), priority)
    }

    /// [`try_pass`](Self::try_pass) at a time of the caller's.
    ///
    /// # Errors
    ///
    /// As [`try_pass`](Self::try_pass).
    pub fn try_pass_at(&self, now: Tick, priority: Priority) -> Result<ThrottlePass, Throttled> {
        let shared = &self.shared;
        let probability = self.refusal_probability_at(now, priority);
        if probability > 0.0 {
            // ORDERING: Relaxed. Each call takes a number of its own; which one does not matter.
            let place = shared.drawn.fetch_add(1, Relaxed);
            if fraction(shared.seed, place) < probability {
                shared.level(priority).add(now, false);
                // ORDERING: Relaxed. Statistics.
                shared.refused.fetch_add(1, Relaxed);
                return Err(Throttled { priority, probability });
            }
        }
        Ok(ThrottlePass { throttle: self.clone(), priority })
    }

    /// Returns the probability, 0 to 1, with which a call of this priority is refused now; changes
    /// nothing.
    #[must_use]
    pub fn refusal_probability(&self, priority: Priority) -> f64 {
        self.refusal_probability_at(self.shared.clock.now(), priority)
    }

    /// [`refusal_probability`](Self::refusal_probability) at a time of the caller's.
    #[must_use]
    pub fn refusal_probability_at(&self, now: Tick, priority: Priority) -> f64 {
        let (shared, level) = (&self.shared, priority.level());
        let calls = shared.level(priority);
        let probability = shared.rules.probability(level, calls.window.seen(now));
        // ORDERING: Relaxed. Each number stands for itself; a stale one is that of a moment ago.
        if calls.accepts.load(Relaxed) < shared.rules.enough(level) {
            return probability;
        }
        let refused_at = Tick::from_nanos(calls.refused_ns.load(Relaxed));
        probability * shared.rules.fade(now.since(refused_at))
    }

    /// Returns the settings in one line, for logs and `explain` output.
    ///
    /// # Examples
    ///
    /// ```
    /// let throttle = tollgate::self_throttle::SelfThrottle::builder().build()?;
    /// assert_eq!(
    ///     throttle.summary(),
    ///     "lets 2 calls through for each that the server accepts, judged from 10 calls in the last \
    ///      120s; refuses at most 90 %"
    /// );
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        let Rules { k, max_refusal, min_calls, .. } = &self.shared.rules;
        let (k, percent) = (k[Priority::NORMAL.level()], max_refusal * 100.0);
        let window = self.shared.level(Priority::NORMAL).window.summary(*min_calls);
        format!(
            "lets {k} calls through for each that the server accepts, {window}; refuses at most \
             {percent:.0} %"
        )
    }

    /// Returns what happened to calls of all priorities since it was built.
    #[must_use]
    pub fn counts(&self) -> SelfThrottleCounts {
        // ORDERING: Relaxed. Statistics. Read first: a refusal is in its window before it is here.
        let refused = self.shared.refused.load(Relaxed);
        let mut counts = SelfThrottleCounts { refused, ..SelfThrottleCounts::default() };
        for level in &self.shared.levels {
            let Totals { calls, failures, .. } = level.window.all();
            counts.accepted += calls.saturating_sub(failures);
            counts.overloaded += failures;
        }
        counts.overloaded = counts.overloaded.saturating_sub(refused);
        counts
    }

    /// Returns the clock it goes by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

impl Shared {
    fn level(&self, priority: Priority) -> &LevelCalls {
        // INVARIANT: a level is below `Priority::LEVELS`.
        &self.levels[priority.level()]
    }

    /// Counts the answer of the server.
    fn answered(&self, now: Tick, priority: Priority, is_accepted: bool) {
        let calls = self.level(priority);
        calls.add(now, is_accepted);
        // ORDERING: Relaxed, as in `refusal_probability_at`. A call that another thread ends just now counts as
        // before or after this one.
        if !is_accepted {
            calls.accepts.store(0, Relaxed);
            calls.refused_ns.fetch_max(now.as_nanos(), Relaxed);
        } else if calls.accepts.load(Relaxed) < self.rules.enough(priority.level()) {
            calls.accepts.fetch_add(1, Relaxed);
        }
    }
}

impl fmt::Debug for SelfThrottle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfThrottle")
            .field("rules", &self.shared.rules)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// The permission to make one call. End it with how the call went.
///
/// A plain drop counts as [`CallOutcome::Ignore`]: a cancelled call is neither a request nor an
/// accept.
#[derive(Debug)]
#[must_use = "end it with the outcome of the call; dropping it counts for nothing"]
pub struct ThrottlePass {
    throttle: SelfThrottle,
    priority: Priority,
}

impl ThrottlePass {
    /// Ends the call. The server has accepted it unless the outcome is [`CallOutcome::Overload`];
    /// a failure for another reason is accepted work.
    pub fn end(self, outcome: CallOutcome) {
        let now = self.throttle.clock().now();
        self.end_at(now, outcome);
    }

    /// [`end`](Self::end) at a time of the caller's.
    pub fn end_at(self, now: Tick, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Success | CallOutcome::Failure => {
                self.throttle.shared.answered(now, self.priority, true);
            }
            CallOutcome::Overload => self.throttle.shared.answered(now, self.priority, false),
            CallOutcome::Ignore => {}
        }
    }
}

/// The answer of a [`SelfThrottle`] that refuses a call: a value, not a fault.
///
/// It names no time for a retry: the next call may pass, and a refusal at random has no end. If all
/// callers retried at one time, they would make the next overload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttled {
    priority: Priority,
    probability: f64,
}

impl Throttled {
    /// Returns the priority of the call.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// Returns the probability with which it was refused.
    #[must_use]
    pub const fn probability(&self) -> f64 {
        self.probability
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server is overloaded, so this client does not send {:.0} % of its calls of \
             priority {}; retry later, or fall back",
            self.probability * 100.0,
            self.priority
        )
    }
}

impl std::error::Error for Throttled {}

/// What happened to the calls of a [`SelfThrottle`]. Cancelled calls and calls in flight are in none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SelfThrottleCounts {
    /// Calls that the server accepted.
    pub accepted: u64,
    /// Calls that the server refused for overload.
    pub overloaded: u64,
    /// Calls that were refused here.
    pub refused: u64,
}

impl Collector for SelfThrottle {
    fn collect(&self, samples: &mut Samples) {
        let counts = self.counts();
        samples.kind("self_throttle");
        // OVERFLOW: counts of events.
        samples.calls(counts.accepted + counts.overloaded, counts.refused);
        samples.count(&family::OVERLOADED, counts.overloaded);
        let probability = self.refusal_probability(Priority::NORMAL);
        samples.gauge(&family::REFUSAL_PROBABILITY, probability);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}
