//! The lowest rate of a fleet, in one key of Redis for each rule.
//!
//! The key holds the process with the lowest rate, and that rate, for [`LIFE`]. Each process reads it once a
//! second. It writes its own rate if the key is gone, if the key is its own, or if its own rate is lower. So the
//! holder keeps the key current, also upwards, until another process has a lower rate; and the key of a process
//! that died ends by itself.
//!
//! Reading and writing are two commands. If two processes write at once, the higher rate may stand until the
//! lower process reads again: one second.

use std::time::Duration;
use tollgate_redis::{Command, Link, LinkError, Reply, Route, slot_of};

/// How long a rate counts after it was written: a few rounds may be lost.
const LIFE: Duration = Duration::from_secs(5);

/// Returns the lowest rate of the fleet, of which this process, called `name`, has `own`.
pub(super) async fn lowest_rate(
    link: &Link,
    key: &str,
    (name, own): (&str, f64),
) -> Result<f64, LinkError> {
    let route = || Route::Slot(slot_of(key.as_bytes()));
    let mut get = Command::new("GET", 1);
    get.push(key.as_bytes());
    let stored = match link.call(route(), get).await? {
        Reply::Bytes(text) => String::from_utf8(text).ok(),
        _ => None,
    };
    if let Some(lower) = stored.as_deref().and_then(|stored| lower_than(stored, name, own)) {
        return Ok(lower);
    }
    let mut set = Command::new("SET", 4);
    set.push(key.as_bytes());
    set.push(format!("{name} {own}").as_bytes());
    set.push(b"PX");
    // OVERFLOW: five seconds.
    set.push_number(LIFE.as_millis() as u64);
    link.call(route(), set).await?;
    Ok(own)
}

/// Returns the rate of another process if it is lower than `own`. Ignores unreadable values.
fn lower_than(stored: &str, name: &str, own: f64) -> Option<f64> {
    let (holder, rate) = stored.split_once(' ')?;
    let rate: f64 = rate.parse().ok()?;
    (holder != name && rate > 0.0 && rate < own).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::lower_than;

    #[test]
    fn the_lower_rate_of_another_process_counts() {
        for (stored, expected) in [
            ("b 20", Some(20.0)),
            ("b 12.5", Some(12.5)),
            ("b 50", None),
            ("b 60", None),
            ("a 20", None),
            ("b 0", None),
            ("b -1", None),
            ("b NaN", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(lower_than(stored, "a", 50.0), expected, "{stored}");
        }
    }
}
