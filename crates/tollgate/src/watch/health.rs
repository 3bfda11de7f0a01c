//! Is a limiter doing its work, or denying nearly everything?

use super::Counts;
use crate::Tick;
use std::time::Duration;

/// How long is "a while".
const SPAN: Duration = Duration::from_secs(10);
/// Fewer decisions than this say nothing.
const DECISIONS_MIN: u64 = 20;
/// From this share of denials on, in percent, a limiter denies nearly everything.
const DENIED_PERCENT: u64 = 95;

/// Whether a limiter works as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", tag = "health"))]
#[non_exhaustive]
pub enum Health {
    /// Not counted, or too few decisions in the last 10 s or more to tell.
    Unknown,
    /// Events pass.
    Healthy,
    /// At least 95 of 100 events were denied over at least 10 s.
    Denying {
        /// Share of denials in percent, rounded down.
        denied_percent: u64,
    },
}

impl Health {
    /// Tells whether there is reason to worry.
    #[must_use]
    pub const fn is_unhealthy(self) -> bool {
        matches!(self, Self::Denying { .. })
    }
}

/// What the last look saw.
#[derive(Debug, Default)]
pub(super) struct HealthCheck {
    since: Option<Tick>,
    seen: Counts,
    last: Option<Health>,
}

impl HealthCheck {
    /// Judges what came since the last look at least [`SPAN`] ago; before that, says what it said.
    pub(super) fn look(&mut self, now: Tick, counts: Counts) -> Health {
        let Some(since) = self.since else {
            *self = Self { since: Some(now), seen: counts, last: None };
            return Health::Unknown;
        };
        if now.since(since) < SPAN {
            return self.last.unwrap_or(Health::Unknown);
        }
        let decided = counts.decided() - self.seen.decided();
        let denied = counts.denied() - self.seen.denied();
        let denied_percent = (denied * 100).checked_div(decided).unwrap_or(0);
        let health = match decided {
            ..DECISIONS_MIN => Health::Unknown,
            _ if denied_percent >= DENIED_PERCENT => Health::Denying { denied_percent },
            _ => Health::Healthy,
        };
        *self = Self { since: Some(now), seen: counts, last: Some(health) };
        health
    }
}
