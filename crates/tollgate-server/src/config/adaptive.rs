//! A descriptor's `adaptive`: the signal that the rate follows, and the range of the rate.

use super::{Place, Rate};
use std::{ops::RangeInclusive, time::Duration};
use tollgate::adaptive::{
    law::LawError,
    rate::{AimdRate, CpuRate, RateLaw},
};

/// How the rate of a limit moves: a descriptor's `adaptive`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptive {
    /// Its place in the file.
    pub at: Place,
    /// The signal that the rate follows.
    pub follow: Follow,
    /// The lowest rate, in permits per second.
    pub min: f64,
    /// The highest rate, in permits per second.
    pub max: f64,
    /// How often the rate moves.
    pub period: Duration,
}

/// The signal that a rate follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Follow {
    /// The CPU load of the host or container.
    Cpu {
        /// The load to keep, in percent.
        target: u8,
    },
    /// The reports of callers: `/v1/report` and `TG.REPORT`.
    Reports {
        /// Successes that take longer count as bad.
        slow_above: Option<Duration>,
    },
}

impl Follow {
    /// Returns the word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            Self::Reports { .. } => "reports",
        }
    }

    /// Returns the period if the file names none: the load is measured often, reports must come in.
    #[must_use]
    pub const fn usual_period(self) -> Duration {
        match self {
            Self::Cpu { .. } => Duration::from_millis(250),
            Self::Reports { .. } => Duration::from_secs(1),
        }
    }
}

impl Adaptive {
    /// The CPU load to keep if the file names none, in percent.
    pub const DEFAULT_TARGET: u8 = 70;

    /// The lowest and the highest load to keep, in percent.
    pub const TARGETS: RangeInclusive<u8> = 5..=95;

    /// The shortest and the longest period.
    pub const PERIODS: RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_secs(60);

    /// Tells whether another moves a rate in the same way, wherever it stands.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let parts = |it: &Self| (it.follow, it.min, it.max, it.period);
        parts(self) == parts(other)
    }

    /// Returns the law that moves the rate, from `initial` permits per second.
    pub(crate) fn law(&self, initial: f64) -> Result<Box<dyn RateLaw>, LawError> {
        let bounds = self.min..=self.max;
        Ok(match self.follow {
            Follow::Cpu { target } => {
                let law = CpuRate::builder(bounds).target(f64::from(target) / 100.0);
                Box::new(law.initial(initial).build()?)
            }
            Follow::Reports { slow_above } => {
                let law = AimdRate::builder(bounds).initial(initial);
                let law = slow_above.map_or(law.clone(), |latency| law.slow_above(latency));
                Box::new(law.build()?)
            }
        })
    }
}

impl Rate {
    /// Returns the permits per second; `None` if it is unlimited or lets nothing pass.
    #[must_use]
    pub fn per_second(&self) -> Option<f64> {
        match *self {
            Self::Counted { count: count @ 1.., per, .. } => Some(count as f64 / per.as_secs_f64()),
            _ => None,
        }
    }
}
