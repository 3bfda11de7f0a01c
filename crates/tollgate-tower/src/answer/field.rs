//! The items of `RateLimit` and `RateLimit-Policy`, and the seconds in them.
//!
//! The form is that of revisions 08 to 11 of draft-ietf-httpapi-ratelimit-headers: lists of
//! strings with parameters, in the grammar of structured fields (RFC 9651).

use super::text::{FIELD_MAX, Out, push_name, push_number};
use std::time::Duration;

/// The most policies in one response. A decision can have 64; the binding one comes first.
pub const POLICIES_MAX: usize = 16;

/// The longest list of policies, in bytes; policies beyond it are left out. Clients need not accept
/// more than 8 KiB of headers, and these are not the only ones.
pub const LIST_MAX: usize = 2048;

/// Returns whole seconds, rounded up; `None` for times that no client will see.
#[must_use]
pub fn seconds(time: Duration) -> Option<u64> {
    let up = time.as_secs().checked_add(u64::from(time.subsec_nanos() > 0))?;
    (up <= FIELD_MAX).then_some(up)
}

/// Returns the seconds of `Retry-After` on a refusal: rounded up, and one at least, or a client
/// would come back at once.
#[must_use]
pub fn retry_seconds(wait: Duration) -> u64 {
    seconds(wait).unwrap_or(FIELD_MAX).max(1)
}

/// Returns whole milliseconds, rounded up; `None` for times that no client will see.
#[must_use]
pub fn millis(time: Duration) -> Option<u64> {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok()
}

/// How many permits per time: the part of a policy that `RateLimit-Policy` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How many pass in `per`.
    pub count: u64,
    /// The time in which they pass.
    pub per: Duration,
    /// How many can pass at once: the burst, or else the count.
    pub capacity: u64,
}

impl Allowance {
    /// Returns the time in which the whole capacity comes back: 2 s, for 10/s with a burst of 20.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        if self.capacity == self.count {
            return Some(self.per);
        }
        let ns = self.per.as_nanos().checked_mul(u128::from(self.capacity))?;
        let ns = ns.checked_div(u128::from(self.count))?;
        Some(Duration::from_nanos(u64::try_from(ns).ok()?))
    }

    /// Returns the window if it is a whole number of seconds. The draft has no other windows, so a
    /// window of 100 ms is omitted rather than misreported.
    #[must_use]
    pub fn window_seconds(&self) -> Option<u64> {
        let window = self.window().filter(|window| window.subsec_nanos() == 0)?;
        seconds(window).filter(|window| *window > 0)
    }
}

/// Appends a policy: `"name";q=100;w=60`.
pub fn push_policy(out: &mut Vec<u8>, name: &str, allowance: &Allowance) {
    push_name(out, name);
    push_parameter(out, b";q=", allowance.capacity);
    if let Some(window) = allowance.window_seconds() {
        push_parameter(out, b";w=", window);
    }
}

/// Appends the remaining permits of a policy: `"name";r=50;t=30`.
pub fn push_left(out: &mut Vec<u8>, name: &str, remaining: u64, seconds: Option<u64>) {
    push_name(out, name);
    push_parameter(out, b";r=", remaining);
    if let Some(seconds) = seconds {
        push_parameter(out, b";t=", seconds);
    }
}

/// Appends a parameter. A number above the largest that a structured field can hold is written as
/// the largest.
pub fn push_parameter(out: &mut impl Out, key: &[u8], value: u64) {
    out.put(key);
    push_number(out, value.min(FIELD_MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        // nanoseconds, seconds, seconds to wait, milliseconds
        for (nanos, secs, wait, ms) in [
            (0, 0, 1, 0),
            (1, 1, 1, 1),
            (1_000_000, 1, 1, 1),
            (1_000_001, 1, 1, 2),
            (999_999_999, 1, 1, 1000),
            (1_000_000_000, 1, 1, 1000),
            (1_000_000_001, 2, 2, 1001),
            (60_000_000_000, 60, 60, 60_000),
        ] {
            let time = Duration::from_nanos(nanos);
            let told = (seconds(time), retry_seconds(time), millis(time));
            assert_eq!(told, (Some(secs), wait, Some(ms)), "{nanos} ns");
        }
        assert_eq!((seconds(Duration::MAX), millis(Duration::MAX)), (None, None));
        assert_eq!(seconds(Duration::from_secs(FIELD_MAX)), Some(FIELD_MAX));
        assert_eq!(seconds(Duration::new(FIELD_MAX, 1)), None);
    }

    #[test]
    fn a_policy_with_a_burst_is_told_as_what_comes_back_in_its_window() {
        let second = Duration::from_secs(1);
        // count, per, capacity, expected
        for (count, per, capacity, expected) in [
            (5, 60 * second, 5, "\"p\";q=5;w=60"),
            (10, second, 20, "\"p\";q=20;w=2"),
            (100, second, 10, "\"p\";q=10"),
            (0, second, 1, "\"p\";q=1"),
            (1, second / 2, 1, "\"p\";q=1"),
            (10, second, u64::MAX, "\"p\";q=999999999999999"),
        ] {
            let mut out = Vec::new();
            push_policy(&mut out, "p", &Allowance { count, per, capacity });
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
