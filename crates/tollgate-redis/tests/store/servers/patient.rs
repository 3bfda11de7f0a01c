//! A link that waits however busy the machine is: for tests that are not about deadlines.

use std::time::Duration;
use tollgate_redis::{Link, Settings};

/// Opens a link whose calls may take long.
#[allow(dead_code, reason = "not every test needs both")]
pub(crate) fn patient(url: &str) -> Link {
    patient_by(url.parse().unwrap())
}

/// The same, with settings at hand.
pub(crate) fn patient_by(settings: Settings) -> Link {
    let long = Duration::from_secs(60);
    Link::open(settings.deadline(long).connect_timeout(long)).unwrap()
}
