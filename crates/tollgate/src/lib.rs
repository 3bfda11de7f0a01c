#![doc = include_str!("docs/front.md")]

pub mod algorithm;
mod clock;
mod decision;
mod error;
mod lease;
mod limiter;
mod quota;
mod reservation;
mod sync;
pub mod watch;

pub use algorithm::{Algorithm, Inherit};
pub use clock::{Clock, ManualClock, Tick, TimerId};
pub use decision::{Decision, Denied, Outcome};
pub use error::QuotaError;
pub use lease::Lease;
pub use limiter::{Bypass, Limiter, LimiterBuilder};
pub use quota::{Initial, ParseQuotaError, Quota};
pub use reservation::{Refused, Reservation};
