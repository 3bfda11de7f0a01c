//! The rate limit information that clients receive: headers, bodies and gRPC statuses.
//!
//! A [`Verdict`] is the outcome of a decision: its time, the limits that took part, and the state
//! of each of them. Everything here is written from the verdict alone: nothing reads a clock, and
//! no response repeats anything that the client has sent.
//!
//! | what | by | standard |
//! |---|---|---|
//! | `RateLimit`, `RateLimit-Policy` | [`Headers::draft`] | draft-ietf-httpapi-ratelimit-headers, revision named by [`Draft`] |
//! | `RateLimit-Limit`, `-Remaining`, `-Reset` | [`Headers::three_fields`] | revisions 00 to 06 of it |
//! | `X-RateLimit-*` | [`Headers::legacy`] | none: everybody's own |
//! | `Retry-After` | always on refusals | RFC 9110, section 10.2.3 |
//! | `application/problem+json` | [`Body::Problem`] | RFC 9457 |
//! | gRPC status with details | [`Headers::grpc_response`] | `google.rpc.Status` |
//!
//! # Times
//!
//! All times are rounded up, so that a client that retries at the reported time is admitted, unless
//! another client came first (`tests/layers/response/retry.rs`). A refusal reports at least one
//! second. If no wait can help, the response has no time. All times of one response agree:
//! `Retry-After` and `t` of `RateLimit` are the same number on a refusal, jitter included.
//!
//! # Examples
//!
//! Writing the response to a refused request:
//!
//! ```
//! use tollgate::{Clock, Limiter, Quota};
//! use tollgate_tower::answer::{Body, Headers, Label, Told, Verdict};
//!
//! let (clock, _hand) = Clock::manual();
//! let quota = Quota::per_minute(2);
//! let limiter = Limiter::builder(quota).clock(clock.clone()).build()?;
//! let label = Label::new("per-user", quota)?;
//!
//! let _both = (limiter.try_acquire(), limiter.try_acquire());
//! let parts = [Told::new(&label, limiter.try_acquire())];
//! let verdict = Verdict::new(&clock, limiter.now(), &parts);
//! let response = Headers::new().response(&verdict, Body::Problem);
//! assert_eq!(response.status(), 429);
//! assert_eq!(response.headers()["retry-after"], "30");
//! assert_eq!(response.headers()["ratelimit"], r#""per-user";r=0;t=30"#);
//! assert_eq!(response.headers()["ratelimit-policy"], r#""per-user";q=2;w=60"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body;
mod date;
mod field;
mod grpc;
mod header;
mod jitter;
mod label;
mod list;
#[doc(hidden)]
pub mod proto;
mod text;

pub use body::{Body, Refusal};
pub use header::{Draft, Headers, Legacy, OnSuccess};
pub use jitter::{Jitter, JitterError};
pub use label::{Label, LabelBuilder, LabelError, Partition, Unit};

/// The functions that write single fields, for the other crates of this workspace. Not part of the
/// API.
#[doc(hidden)]
pub mod raw {
    pub use crate::calendar::civil;

    pub use super::{
        body::push_problem,
        date::Date,
        field::{
            Allowance, LIST_MAX, POLICIES_MAX, millis, push_left, push_parameter, push_policy,
            retry_seconds, seconds,
        },
        proto,
        text::{FIELD_MAX, push_number, push_text},
    };
}

use std::time::Duration;
use tollgate::{Algorithm, Clock, Decision, Reason, Tick};

/// A limit and its decision about the request.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    label: &'a Label,
    decision: Decision,
    partition: Option<Partition>,
    is_shadow: bool,
}

impl<'a> Told<'a> {
    /// Returns the decision of a limit.
    #[must_use]
    pub const fn new(label: &'a Label, decision: Decision) -> Self {
        Self { label, decision, partition: None, is_shadow: false }
    }

    /// Adds the key that the decision is about, as a hash.
    #[must_use]
    pub const fn partition(mut self, partition: Partition) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Marks the limit as being in shadow mode: it refuses no request, and responses do not show
    /// it.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Returns the label of the policy.
    #[must_use]
    pub const fn label(&self) -> &'a Label {
        self.label
    }

    /// Returns the decision.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Tells whether this limit refuses the request.
    #[must_use]
    pub const fn is_refusing(&self) -> bool {
        self.decision.is_denied() && !self.is_shadow
    }

    /// Returns why it refuses: for a quota, the reason that its policy gives.
    fn refusal(&self) -> Refusal {
        match Refusal::of(self.decision.reason()) {
            Refusal::QuotaExceeded => self.label.refusal(),
            other => other,
        }
    }

    /// Tells whether headers report this limit.
    fn has_figures(&self) -> bool {
        !self.is_shadow && !self.label.quota().is_unlimited()
    }

    /// A store decides later than the request arrived: waits are counted from the decision.
    fn since(&self, now: Tick) -> Tick {
        now.max(self.decision.at())
    }

    fn wait(&self, now: Tick) -> Wait {
        // A request that waits for a slot, or for a store to recover, waits for an event of unknown
        // date.
        let has_no_date = *self.label.unit() == Unit::ConcurrentRequests
            || matches!(self.decision.reason(), Reason::Saturated | Reason::Degraded);
        match self.decision.retry_after(self.since(now)) {
            Some(wait) => Wait::After(wait),
            None if has_no_date => Wait::Unknown,
            None => Wait::Never,
        }
    }

    /// Returns when more permits come back, after a request that has passed.
    fn more_after(&self, now: Tick) -> Option<Duration> {
        let decision = &self.decision;
        let full = decision.reset_after(self.since(now))?;
        if decision.remaining() > 0 {
            return Some(full);
        }
        let quota = self.label.quota();
        let is_known =
            self.label.algorithm() == Algorithm::Gcra && decision.limit() == quota.capacity();
        if !is_known {
            return Some(full);
        }
        // Permits come one by one: the next call of this cost passes when all but those above its
        // cost are back.
        let above = decision.limit().saturating_sub(decision.cost().max(1));
        let ns = quota.period().as_nanos().checked_mul(u128::from(above));
        let ns = ns.and_then(|ns| ns.checked_div(u128::from(quota.count())));
        let later = ns.and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos);
        Some(full.saturating_sub(later.unwrap_or_default()))
    }
}

/// How long a refused client has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// For this long.
    After(Duration),
    /// Unknown: another request has to finish, or an operator has to act.
    Unknown,
    /// No wait helps.
    Never,
}

impl Wait {
    /// Returns the longer one.
    fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(one), Self::After(other)) => Self::After(one.max(other)),
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::After(known), _) | (_, Self::After(known)) => Self::After(known),
            _ => Self::Unknown,
        }
    }
}

/// The decision about a request, by all its limits together.
#[must_use = "a verdict does nothing until it is written"]
#[derive(Clone, Copy, Debug)]
pub struct Verdict<'a> {
    now: Tick,
    /// The time now, since the Unix epoch.
    wall: Duration,
    parts: &'a [Told<'a>],
    /// The limit that headers report first.
    binding: Option<usize>,
    /// The limit that refuses for the longest time.
    cause: Option<usize>,
    refusal: Option<Refusal>,
    /// Only read if there is a refusal.
    wait: Wait,
    jitter: Duration,
}

impl<'a> Verdict<'a> {
    /// Returns the verdict of several limits: refused if one of them refuses.
    ///
    /// Responses report the binding limit in the most detail: among limits that refuse, the one
    /// with the longest wait, otherwise the one with the fewest permits left. Limits that count
    /// different units are compared by the share that is left.
    pub fn new(clock: &Clock, now: Tick, parts: &'a [Told<'a>]) -> Self {
        let wall = clock.to_wall(now);
        if let [told] = parts
            && !told.is_refusing()
        {
            // The usual case, without the search for the binding limit.
            let (binding, wait) = (told.has_figures().then_some(0), Wait::Unknown);
            let (cause, refusal, jitter) = (None, None, Duration::ZERO);
            return Self { now, wall, parts, binding, cause, refusal, wait, jitter };
        }
        let cause = cause(parts, now);
        let refusal = cause.map(|at| parts[at].refusal());
        // A limit that refuses although it is unlimited (its key is on a deny list) has no figures.
        let binding = cause.filter(|at| parts[*at].has_figures()).or_else(|| scarcest(parts));
        let waits = parts.iter().filter(|told| told.is_refusing()).map(|told| told.wait(now));
        let wait = waits.reduce(Wait::max).unwrap_or(Wait::Unknown);
        Self { now, wall, parts, binding, cause, refusal, wait, jitter: Duration::ZERO }
    }

    /// Refuses, for this reason and whatever the limits say.
    pub const fn refused(mut self, why: Refusal) -> Self {
        self.refusal = Some(why);
        self
    }

    /// Makes a refused client wait at least this long, unless no wait helps. Use it for an
    /// overload, whose end no limit knows.
    pub fn wait_at_least(mut self, wait: Duration) -> Self {
        self.wait = self.wait.max(Wait::After(wait));
        self
    }

    /// Makes a refused client wait a little longer than it has to, so that clients do not all come
    /// back at once. `random` is called only if there is a wait to lengthen, and returns any
    /// number.
    pub fn jittered(mut self, jitter: Jitter, random: impl FnOnce() -> u64) -> Self {
        if let (Some(_), Wait::After(wait)) = (self.refusal, self.wait) {
            let window = self.binding().and_then(|told| {
                let decision = told.decision;
                told.label.allowance(decision.limit()).window()
            });
            self.jitter = jitter.of(window.unwrap_or(wait), random);
        }
        self
    }

    /// Tells whether the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns why it is refused, if it is.
    #[must_use]
    pub const fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns how long to wait, jitter included; `None` if the request may pass.
    #[must_use]
    pub fn wait(&self) -> Option<Wait> {
        self.refusal.map(|_| match self.wait {
            Wait::After(wait) => Wait::After(wait.saturating_add(self.jitter)),
            other => other,
        })
    }

    /// Returns how long to wait, if it is refused and a wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            // No client waits for a time that no header can express.
            Some(Wait::After(wait)) => field::seconds(wait).map(|_| wait),
            _ => None,
        }
    }

    /// Returns the binding limit, if headers can report it.
    #[must_use]
    pub fn binding(&self) -> Option<&'a Told<'a>> {
        self.binding.map(|at| &self.parts[at])
    }

    /// Returns all limits that took part.
    #[must_use]
    pub const fn parts(&self) -> &'a [Told<'a>] {
        self.parts
    }

    /// Returns the limit that refuses for the longest time, if one does.
    fn cause(&self) -> Option<&'a Told<'a>> {
        self.cause.map(|at| &self.parts[at])
    }

    /// Returns the limits that headers report, the binding one first.
    fn policies(&self) -> impl Iterator<Item = &'a Told<'a>> + use<'a> {
        each_once(self.parts, self.binding, Told::has_figures)
    }

    /// Returns the limits that refuse, the one with the longest wait first.
    fn refusing(&self) -> impl Iterator<Item = &'a Told<'a>> + use<'a> {
        each_once(self.parts, self.cause, Told::is_refusing)
    }

    /// Returns when all permits of a limit are back: never before a refused client may retry.
    fn reset_after(&self, told: &Told<'_>) -> Option<Duration> {
        let reset = told.decision.reset_after(told.since(self.now))?;
        Some(reset.saturating_add(self.jitter).max(self.retry_after().unwrap_or_default()))
    }

    /// Returns the `t` of the binding limit, in seconds.
    fn told_seconds(&self, told: &Told<'_>) -> Option<u64> {
        match (self.refusal, self.retry_after()) {
            (None, _) => field::seconds(told.more_after(self.now)?),
            (Some(_), Some(wait)) => Some(field::retry_seconds(wait)),
            (Some(_), None) if self.wait == Wait::Never => None,
            (Some(_), None) => field::seconds(self.reset_after(told)?),
        }
    }
}

/// Returns the limits for which `is_meant` holds, number `first` before the others, each policy
/// once, and at most [`field::POLICIES_MAX`].
fn each_once<'a>(
    parts: &'a [Told<'a>],
    first: Option<usize>,
    is_meant: fn(&Told<'a>) -> bool,
) -> impl Iterator<Item = &'a Told<'a>> {
    let first = first.map(|at| &parts[at]);
    let rest = parts.iter().enumerate().filter(move |(at, told)| {
        let earlier = parts[..*at].iter().filter(|told| is_meant(told));
        let mut before = first.into_iter().chain(earlier);
        is_meant(told) && !before.any(|other| other.label.name() == told.label.name())
    });
    first.into_iter().chain(rest.map(|(_, told)| told)).take(field::POLICIES_MAX)
}

/// Returns which of the refusing limits has the longest wait.
fn cause(parts: &[Told<'_>], now: Tick) -> Option<usize> {
    let rank = |told: &Told<'_>| match told.wait(now) {
        Wait::Unknown => (0, Duration::ZERO),
        Wait::After(wait) => (1, wait),
        Wait::Never => (2, Duration::ZERO),
    };
    let mut longest: Option<(usize, _)> = None;
    for (at, told) in parts.iter().enumerate().filter(|(_, told)| told.is_refusing()) {
        let rank = rank(told);
        if longest.is_none_or(|(_, other)| rank > other) {
            longest = Some((at, rank));
        }
    }
    longest.map(|(at, _)| at)
}

/// Returns which limit is nearest to exhaustion: of those that count the same unit, the one with
/// the fewest permits left; of these, the one with the smallest share left.
fn scarcest(parts: &[Told<'_>]) -> Option<usize> {
    if let [told] = parts {
        return told.has_figures().then_some(0);
    }
    let told = || parts.iter().enumerate().filter(|(_, told)| told.has_figures());
    let is_least = |one: &Told<'_>| {
        let less = |other: &Told<'_>| other.decision.remaining() < one.decision.remaining();
        !told().any(|(_, other)| less(other) && other.label.unit() == one.label.unit())
    };
    let least = told().filter(|(_, one)| is_least(one));
    let (at, _) = least.reduce(|one, next| if has_less(next.1, one.1) { next } else { one })?;
    Some(at)
}

/// Tells whether a smaller share of one limit is left than of the other.
fn has_less(one: &Told<'_>, other: &Told<'_>) -> bool {
    let (a, b) = (&one.decision, &other.decision);
    let product = |left: u64, limit: u64| u128::from(left) * u128::from(limit);
    product(a.remaining(), b.limit()) < product(b.remaining(), a.limit())
}
