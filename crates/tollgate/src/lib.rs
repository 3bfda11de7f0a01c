#![doc = include_str!("docs/front.md")]

pub mod algorithm;
mod clock;
mod decision;
mod error;
mod keyed;
mod lease;
mod limiter;
mod quota;
mod reservation;
mod striped;
mod sync;
pub mod watch;

pub use algorithm::{Algorithm, Inherit, UnknownAlgorithm};
pub use clock::{Clock, ManualClock, Tick, TimerId};
pub use decision::{Decision, Denied, Outcome};
pub use error::QuotaError;
pub use keyed::{KeyedBuilder, KeyedError, KeyedLimiter, TopKey, TopKeys};
pub use lease::Lease;
pub use limiter::{Bypass, Limiter, LimiterBuilder};
pub use quota::{Initial, ParseQuotaError, Quota};
pub use reservation::{Refused, Reservation};
pub use striped::{Reach, StripedBuilder, StripedError, StripedLimiter};

/// The user's pages, compiled: their examples are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/keys.md")]
    struct Keys;
    #[doc = include_str!("../../../docs/watching.md")]
    struct Watching;
    #[doc = include_str!("../../../docs/striping.md")]
    struct Striping;
}
