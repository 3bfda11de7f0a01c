//! A link that waits however busy the machine is: for tests that are not about deadlines.

use std::time::Duration;
use tollgate_redis::{Link, Settings};

/// Opens a link whose calls may take long.
pub(crate) fn patient(url: &str) -> Link {
    let settings: Settings = url.parse().unwrap();
    let long = Duration::from_secs(60);
    Link::open(settings.deadline(long).connect_timeout(long)).unwrap()
}
