//! Is a limiter doing its work, or denying nearly everything?

use super::Counts;
use crate::{
    Tick,
    sync::{Mutex, lock},
};
use std::time::Duration;

/// How long is "a while".
const SPAN: Duration = Duration::from_secs(10);
/// Fewer decisions than this say nothing.
const DECISIONS_MIN: u64 = 100;
/// From this share of denials on, in percent, a limiter denies nearly everything.
const DENIED_PERCENT: u64 = 95;

/// Whether a limiter works as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", tag = "health"))]
#[non_exhaustive]
pub enum Health {
    /// Decisions are not counted, or there were fewer than 100 in the last 10 s or more.
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

/// Judges counts of decisions: at least 100 over at least 10 s, of which 95 % were denied, are
/// [`Denying`](Health::Denying).
///
/// Limiters have one inside ([`Limiter::health`](crate::Limiter::health)). A layer or a program that
/// counts decisions itself keeps one beside its counts.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Tick, observe::{Counts, Health, HealthCheck}};
///
/// let (check, mut counts) = (HealthCheck::default(), Counts::default());
/// assert_eq!(check.judge(Tick::ZERO, &counts), Health::Unknown);
/// (counts.allowed, counts.denied_later) = (4, 96);
/// let health = check.judge(Tick::from_secs(10), &counts);
/// assert_eq!(health, Health::Denying { denied_percent: 96 });
/// ```
#[derive(Debug, Default)]
pub struct HealthCheck {
    last: Mutex<Option<LastCheck>>,
}

/// The last judgement, and the counts at that time.
#[derive(Clone, Copy, Debug)]
struct LastCheck {
    at: Tick,
    counts: Counts,
    health: Health,
}

impl HealthCheck {
    /// Judges the decisions since the last judgement, at least 10 s ago; before that, repeats its answer.
    ///
    /// `counts` are totals since the start. Counts that went backwards begin anew.
    #[must_use]
    pub fn judge(&self, now: Tick, counts: &Counts) -> Health {
        let mut last = lock(&self.last);
        let Some(previous) = *last else {
            *last = Some(LastCheck { at: now, counts: *counts, health: Health::Unknown });
            return Health::Unknown;
        };
        if now.since(previous.at) < SPAN {
            return previous.health;
        }
        let decided = counts.decided().saturating_sub(previous.counts.decided());
        let denied = counts.denied().saturating_sub(previous.counts.denied());
        let denied_percent = denied.saturating_mul(100).checked_div(decided).unwrap_or(0);
        let health = match decided {
            ..DECISIONS_MIN => Health::Unknown,
            _ if denied_percent >= DENIED_PERCENT => Health::Denying { denied_percent },
            _ => Health::Healthy,
        };
        *last = Some(LastCheck { at: now, counts: *counts, health });
        health
    }
}
