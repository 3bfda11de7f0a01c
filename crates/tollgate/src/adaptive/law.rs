//! The laws that ship, each with a builder.
//!
//! | law | signal | decides | take it when |
//! |---|---|---|---|
//! | [`ProbingGradient`] | latency against a measured baseline | per window | no target latency is known: the default |
//! | [`DampedAimd`] | share of calls slower than half the target | per window | a target latency (SLO) is known |
//! | [`Gradient2`] | short against long average of latency | per sample | inside [`Windowed`], to compare with Netflix |
//! | [`Vegas`] | estimated queue | per sample | inside [`Windowed`], latencies vary little |
//! | [`Aimd`] | overloads and a timeout | per sample | inside [`Windowed`], or to compare |
//! | [`Windowed`] | one sample made of a window of them | per window | around one of the three above |
//!
//! A per-sample law under overload hears one late call after the other and moves once for each of
//! them, long after it has already reacted. So none of them is a default.

mod aimd;
mod damped;
mod error;
mod gradient2;
mod probing;
mod vegas;
mod windowed;

pub use aimd::{Aimd, AimdBuilder};
pub use damped::{DampedAimd, DampedAimdBuilder};
pub use error::LawError;
pub use gradient2::{Gradient2, Gradient2Builder};
pub use probing::{ProbingGradient, ProbingGradientBuilder};
pub use vegas::{Vegas, VegasBuilder};
pub use windowed::{Measure, Windowed, WindowedBuilder};

use super::LimitReason;
use crate::Concurrency;

/// Where a limit starts, and how far it may move.
#[derive(Clone, Copy, Debug)]
struct Range {
    initial: u64,
    min: u64,
    max: u64,
}

impl Range {
    fn build(self) -> Result<BoundedLimit, LawError> {
        let Self { initial, min, max } = self;
        if min == 0 {
            return Err(LawError::MinIsZero);
        }
        if max > Concurrency::LIMIT_MAX {
            return Err(LawError::MaxTooLarge { max });
        }
        if !(min..=max).contains(&initial) {
            return Err(LawError::OutOfOrder { min, initial, max });
        }
        Ok(BoundedLimit {
            value: initial as f64,
            min: min as f64,
            max: max as f64,
            reason: LimitReason::Starting,
        })
    }
}

/// A limit that moves between its bounds, and the reason for its last decision.
///
/// INVARIANT: `min <= value <= max`, all finite. Wanted values are finite: products of at most 10^9
/// by a checked factor, or by a ratio of round trips that are each at least 1 ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundedLimit {
    pub(super) value: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) reason: LimitReason,
}

impl BoundedLimit {
    pub(super) fn move_to(&mut self, wanted: f64, reason: LimitReason) {
        debug_assert!(wanted.is_finite(), "{wanted}");
        let value = wanted.clamp(self.min, self.max);
        self.reason = if value != self.value {
            reason
        } else if wanted < self.min {
            LimitReason::AtMin
        } else if wanted > self.max {
            LimitReason::AtMax
        } else {
            reason
        };
        self.value = value;
    }

    /// Tells whether `in_flight` is less than half of the limit.
    fn is_application_limited(&self, in_flight: u64) -> bool {
        2.0 * (in_flight as f64) < self.value
    }

    fn whole(&self) -> u64 {
        self.value as u64
    }
}

/// The setters of a builder's `range`, with its defaults in their docs.
macro_rules! range_setters {
    (initial: $initial:literal, min: $min:literal, max: $max:literal) => {
        #[doc = concat!("Sets the first limit, by default ", $initial, ".")]
        pub fn initial(mut self, initial: u64) -> Self {
            self.range.initial = initial;
            self
        }

        #[doc = concat!("Sets the lowest limit, by default ", $min, ". At least 1: a limit of 0")]
        /// would end all samples, and so could never rise again.
        pub fn min(mut self, min: u64) -> Self {
            self.range.min = min;
            self
        }

        #[doc = concat!("Sets the highest limit, by default ", $max, ".")]
        pub fn max(mut self, max: u64) -> Self {
            self.range.max = max;
            self
        }
    };
}
use range_setters;
