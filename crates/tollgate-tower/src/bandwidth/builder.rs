//! The builder of the layer, and its errors.

use super::{
    BandwidthLayer, Pipes,
    body::{Each, Kind as Kept, Source},
};
use std::{fmt, sync::Arc};
use tollgate::{Clock, Limiter, Quota, QuotaError};

/// Whether each body has its own rate, or all bodies share one.
#[derive(Clone, Debug)]
pub struct Shaping {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Each(Quota, Option<Clock>),
    Shared(Limiter),
}

impl Shaping {
    /// Gives each body a quota of its own, in bytes. It starts with a full burst: by default,
    /// without [`Quota::burst`], the permits of the whole period.
    #[must_use]
    pub const fn each(quota: Quota) -> Self {
        Self { kind: Kind::Each(quota, None) }
    }

    /// [`each`](Self::each) on another clock than the monotonic one: for tests.
    #[must_use]
    pub const fn each_by(quota: Quota, clock: Clock) -> Self {
        Self { kind: Kind::Each(quota, Some(clock)) }
    }

    /// Makes all bodies share the permits of this limiter with its other users: one permit for each
    /// byte, in the order of the requests for permits.
    ///
    /// Its `max_waiting` should be above the number of bodies. If the queue is full, a body is not
    /// refused, but tries again every 250 ms, without a place in the queue meanwhile.
    #[must_use]
    pub const fn shared(limiter: Limiter) -> Self {
        Self { kind: Kind::Shared(limiter) }
    }

    fn source(self, way: &'static str) -> Result<Source, BandwidthError> {
        let kind = match self.kind {
            Kind::Shared(limiter) => Kept::Shared(limiter),
            Kind::Each(quota, clock) => {
                let clock = clock.unwrap_or_else(Clock::monotonic);
                let sample = Limiter::builder(quota).clock(clock.clone()).build();
                let sample = sample.map_err(|error| BandwidthError::Quota { way, error })?;
                Kept::Each(Arc::new(Each { quota, clock, sample }))
            }
        };
        let quota = match &kind {
            Kept::Shared(limiter) => limiter.quota(),
            Kept::Each(each) => each.quota,
        };
        if !quota.is_unlimited() && (quota.count() == 0 || quota.capacity() == 0) {
            return Err(BandwidthError::NoRefill { way });
        }
        Ok(Source { kind, counters: Arc::default() })
    }
}

/// Builds a [`BandwidthLayer`]. Settings are validated by [`build`](Self::build) only.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct BandwidthBuilder {
    request: Option<Shaping>,
    response: Option<Shaping>,
}

impl BandwidthBuilder {
    pub(super) const fn new() -> Self {
        Self { request: None, response: None }
    }

    /// Shapes the bodies of requests. By default they are not shaped.
    pub fn request(mut self, shaping: Shaping) -> Self {
        self.request = Some(shaping);
        self
    }

    /// Shapes the bodies of responses. By default they are not shaped.
    pub fn response(mut self, shaping: Shaping) -> Self {
        self.response = Some(shaping);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`BandwidthError`] names the fault and a way out.
    pub fn build(self) -> Result<BandwidthLayer, BandwidthError> {
        if self.request.is_none() && self.response.is_none() {
            return Err(BandwidthError::Nothing);
        }
        let source = |shaping: Option<Shaping>, way| shaping.map(|it| it.source(way)).transpose();
        let request = source(self.request, "request")?;
        let response = source(self.response, "response")?;
        Ok(BandwidthLayer { pipes: Arc::new(Pipes { request, response }) })
    }
}

/// An invalid setting of a [`BandwidthLayer`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BandwidthError {
    /// Neither requests nor responses are shaped.
    Nothing,
    /// The quota is invalid.
    Quota {
        /// Which bodies: `request` or `response`.
        way: &'static str,
        /// The fault of the quota.
        error: QuotaError,
    },
    /// The quota never refills, so a longer body would never end.
    NoRefill {
        /// Which bodies: `request` or `response`.
        way: &'static str,
    },
}

impl BandwidthError {
    /// Returns the code, which never changes: `TG-B01`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Nothing => "TG-B01",
            Self::Quota { .. } => "TG-B02",
            Self::NoRefill { .. } => "TG-B03",
        }
    }

    /// Returns where the documentation explains it.
    #[must_use]
    pub const fn docs(&self) -> &'static str {
        match self {
            Self::Nothing => docs!("http.md#tg-b01"),
            Self::Quota { .. } => docs!("http.md#tg-b02"),
            Self::NoRefill { .. } => docs!("http.md#tg-b03"),
        }
    }
}

impl fmt::Display for BandwidthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str(
                "the layer shapes neither requests nor responses; call `request` or `response`",
            )?,
            Self::Quota { way, error } => write!(f, "{way} bodies: {error}")?,
            Self::NoRefill { way } => write!(
                f,
                "{way} bodies: the quota never refills, so a longer body would never end; use a \
                 rate in bytes"
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for BandwidthError {}
