//! The builder of the layer.

use super::{Counts, SharedTimeouts, TimeoutLayer};
use crate::{
    coded::coded,
    key::{KeyError, Trust},
};
use std::{fmt, sync::Arc, time::Duration};
use tollgate::Clock;

/// Builds a [`TimeoutLayer`]. Settings are validated by [`build`](Self::build) only.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct TimeoutLayerBuilder {
    attempt: Option<Duration>,
    head: Option<Duration>,
    body_idle: Option<Duration>,
    total: Option<Duration>,
    trust: Option<Trust>,
    sends_deadline: bool,
    clock: Option<Clock>,
}

impl TimeoutLayerBuilder {
    pub(super) const fn new() -> Self {
        Self {
            attempt: None,
            head: None,
            body_idle: None,
            total: None,
            trust: None,
            sends_deadline: false,
            clock: None,
        }
    }

    /// Bounds one attempt, from the call to the end of its body; by default unbounded.
    pub fn attempt(mut self, longest: Duration) -> Self {
        self.attempt = Some(longest);
        self
    }

    /// Bounds the wait for the head of the response; by default unbounded.
    pub fn head(mut self, longest: Duration) -> Self {
        self.head = Some(longest);
        self
    }

    /// Bounds the wait for each frame of the body; by default unbounded.
    ///
    /// Only time in which the reader waits for a frame counts: a slow reader is not held against
    /// the service.
    pub fn body_idle(mut self, longest: Duration) -> Self {
        self.body_idle = Some(longest);
        self
    }

    /// Bounds the whole call, to the end of its body; by default unbounded. The sender's deadline
    /// counts if it is earlier: a [`Deadline`](crate::Deadline) in the request's extensions, or a
    /// header that is [believed](Self::trust_deadline).
    pub fn total(mut self, longest: Duration) -> Self {
        self.total = Some(longest);
        self
    }

    /// Believes `grpc-timeout` and `x-envoy-expected-rq-timeout-ms` of these peers; for servers. By
    /// default no header is read. A header can shorten [`total`](Self::total), not lengthen it.
    pub fn trust_deadline(mut self, trust: Trust) -> Self {
        self.trust = Some(trust);
        self
    }

    /// Sends the time that is left with each call; for clients.
    ///
    /// Calls of gRPC get `grpc-timeout`, others `x-envoy-expected-rq-timeout-ms`. A request that has
    /// such a header already keeps the shorter time.
    pub fn send_deadline(mut self) -> Self {
        self.sends_deadline = true;
        self
    }

    /// Sets the clock, by default [`Clock::monotonic`]. Timeouts use tokio's timers, so another
    /// clock must run as fast as they do: [`Clock::tokio`] does, a manual one does not.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`TimeoutLayerError`] names the fault and a way out.
    pub fn build(self) -> Result<TimeoutLayer, TimeoutLayerError> {
        self.check()?;
        let shared = SharedTimeouts {
            attempt: self.attempt,
            head: self.head,
            body_idle: self.body_idle,
            total: self.total,
            trust: self.trust,
            sends_deadline: self.sends_deadline,
            clock: self.clock.unwrap_or_else(Clock::monotonic),
            counts: Counts::default(),
        };
        Ok(TimeoutLayer { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<(), TimeoutLayerError> {
        // From the inside out: each must not be longer than those after it.
        let phases = [
            ("head", self.head),
            ("body_idle", self.body_idle),
            ("attempt", self.attempt),
            ("total", self.total),
        ];
        let set = || phases.iter().filter_map(|(name, limit)| Some((*name, (*limit)?)));
        if set().next().is_none() && self.trust.is_none() && !self.sends_deadline {
            return Err(TimeoutLayerError::Nothing);
        }
        if let Some((setting, _)) = set().find(|(_, limit)| limit.is_zero()) {
            return Err(TimeoutLayerError::Zero { setting });
        }
        for (outer, most) in set().filter(|(name, _)| matches!(*name, "attempt" | "total")) {
            let is_longer = |(inner, limit): &(&str, Duration)| {
                let is_inside = *inner != outer && *inner != "total";
                is_inside && *limit > most
            };
            if let Some((inner, limit)) = set().find(is_longer) {
                return Err(TimeoutLayerError::Inverted { inner, limit, outer, most });
            }
        }
        self.trust
            .as_ref()
            .map_or(Ok(()), |trust| trust.check("grpc-timeout".into()))
            .map_err(TimeoutLayerError::Trust)
    }
}

/// An invalid setting of a [`TimeoutLayer`].
#[derive(Debug)]
#[non_exhaustive]
pub enum TimeoutLayerError {
    /// `TG-T01`: nothing is bounded, and no deadline is passed on.
    Nothing,
    /// `TG-T02`: a bound is zero.
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// `TG-T03`: a bound is longer than one that contains it.
    Inverted {
        /// The setting that is too long.
        inner: &'static str,
        /// Its value.
        limit: Duration,
        /// The setting that contains it.
        outer: &'static str,
        /// The value of the outer setting.
        most: Duration,
    },
    /// The trust in peers cannot be used.
    Trust(KeyError),
}

coded!(TimeoutLayerError, "TG-T01");

impl TimeoutLayerError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::Nothing => ("TG-T01", docs!("resilience.md#tg-t01")),
            Self::Zero { .. } => ("TG-T02", docs!("resilience.md#tg-t02")),
            Self::Inverted { .. } => ("TG-T03", docs!("resilience.md#tg-t03")),
            Self::Trust(error) => (error.code(), error.docs()),
        }
    }
}

impl fmt::Display for TimeoutLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str(
                "no timeout is set, and no deadline is read or sent; set `head`, `body_idle`, \
                 `attempt` or `total`",
            )?,
            Self::Zero { setting } => {
                write!(
                    f,
                    "`{setting}` is 0 s, so no call could succeed; raise it, or leave it out"
                )?;
            }
            Self::Inverted { inner, limit, outer, most } => write!(
                f,
                "`{inner}` of {limit:?} is longer than `{outer}` of {most:?}, which ends the call \
                 first; lower `{inner}`, or leave it out"
            )?,
            Self::Trust(error) => return error.fmt(f),
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for TimeoutLayerError {}
