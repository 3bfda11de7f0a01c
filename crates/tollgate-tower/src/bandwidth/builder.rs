//! How a layer is put together, and what is wrong with it.

use super::{
    BandwidthLayer, Pipes,
    body::{Each, Kind as Kept, Source},
};
use std::{fmt, sync::Arc};
use tollgate::{Clock, Limiter, Quota, QuotaError};

/// How fast bodies are: each for itself, or all together.
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
    /// Gives each body a quota of its own, in bytes. It starts with a whole burst, which without
    /// [`Quota::burst`] is that of the whole period.
    #[must_use]
    pub const fn each(quota: Quota) -> Self {
        Self { kind: Kind::Each(quota, None) }
    }

    /// [`each`](Self::each) on another clock than the monotonic one: for tests.
    #[must_use]
    pub const fn each_by(quota: Quota, clock: Clock) -> Self {
        Self { kind: Kind::Each(quota, Some(clock)) }
    }

    /// Lets all bodies together, and whoever else uses this limiter, have its permits: one for each
    /// byte, in the order in which pieces are asked for.
    ///
    /// Its `max_waiting` should be above the number of bodies. A body beyond it is not refused, but
    /// asks again every 250 ms, and has no place in the order meanwhile.
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

/// Builds a [`BandwidthLayer`]. Nothing is judged before [`build`](Self::build).
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

    /// Shapes the bodies of requests, by default not.
    pub fn request(mut self, shaping: Shaping) -> Self {
        self.request = Some(shaping);
        self
    }

    /// Shapes the bodies of responses, by default not.
    pub fn response(mut self, shaping: Shaping) -> Self {
        self.response = Some(shaping);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`BandwidthError`] names what is wrong and a way out.
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

/// What is wrong with a [`BandwidthLayer`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BandwidthError {
    /// Neither requests nor responses are shaped.
    Nothing,
    /// The quota makes no sense.
    Quota {
        /// Which bodies: `request` or `response`.
        way: &'static str,
        /// What is wrong with it.
        error: QuotaError,
    },
    /// The quota does not come back, so a longer body would never end.
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

    /// Returns where the documentation tells more.
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
