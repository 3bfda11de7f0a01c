//! The time by which a request has to be answered: a value in its extensions, and two headers
//! between processes.

use crate::info::is_grpc;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use tollgate::{Clock, Tick};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");

/// The time by which a request has to be answered; a value for the request's extensions.
///
/// [`TimeoutLayer`](crate::TimeoutLayer) sets it, shortens it, and exchanges it with other processes
/// by `grpc-timeout` and `x-envoy-expected-rq-timeout-ms`. Other layers read it:
///
/// * a [`ConcurrencyLayer`](crate::ConcurrencyLayer) or [`AdaptiveLayer`](crate::AdaptiveLayer) that
///   lets requests wait keeps such a request in its queue for at most half of the time that is left,
///   so that the rest remains for the work. (If requests are served until the last moment, all of
///   them are served at the last moment, and a third comes too late.)
/// * a [`RetryLayer`](crate::client::RetryLayer) makes no attempt that would start after it.
///
/// It has a clock of its own, so that layers with different clocks agree on the time that is left.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tollgate::Clock;
/// use tollgate_tower::Deadline;
///
/// let deadline = Deadline::after(&Clock::monotonic(), Duration::from_millis(200));
/// let request = Request::get("/").extension(deadline).body(())?;
/// # let _ = request;
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Tick,
    clock: Clock,
}

impl Deadline {
    /// Returns the deadline at a tick of a clock.
    #[must_use]
    pub fn new(clock: &Clock, at: Tick) -> Self {
        Self { at, clock: clock.clone() }
    }

    /// Returns the deadline after this time.
    #[must_use]
    pub fn after(clock: &Clock, time: Duration) -> Self {
        Self::new(clock, clock.now().saturating_add(time))
    }

    /// Returns the time that is left; zero from the deadline on.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.at.since(self.clock.now())
    }

    /// Returns its tick on another clock.
    pub(crate) fn on(&self, clock: &Clock) -> Tick {
        clock.now().saturating_add(self.left())
    }

    /// Reads `grpc-timeout` and `x-envoy-expected-rq-timeout-ms`; the earlier one counts, and
    /// malformed ones do not. `None` if there is none.
    ///
    /// `grpc-timeout` is 1 to 8 digits and a unit (`H`, `M`, `S`, `m`, `u`, `n`); the other is a
    /// number of milliseconds, where 0 means that there is no deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, HeaderValue};
    /// use tollgate::Clock;
    /// use tollgate_tower::Deadline;
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let headers = HeaderMap::from_iter([(
    ///     "grpc-timeout".parse()?,
    ///     HeaderValue::from_static("1500m"),
    /// )]);
    /// let deadline = Deadline::read(&clock, &headers).ok_or("it has a deadline")?;
    /// assert_eq!(deadline.left(), Duration::from_millis(1500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read(clock: &Clock, headers: &HeaderMap) -> Option<Self> {
        let grpc = headers.get_all(GRPC_TIMEOUT).into_iter();
        let grpc = grpc.filter_map(|value| grpc_timeout(value.as_bytes()));
        let envoy = headers.get_all(ENVOY_TIMEOUT).into_iter();
        let envoy = envoy.filter_map(|value| envoy_timeout(value.as_bytes()));
        grpc.chain(envoy).min().map(|left| Self::after(clock, left))
    }

    /// Writes the time that is left: to `grpc-timeout` if these are the headers of a call of gRPC,
    /// else to `x-envoy-expected-rq-timeout-ms`.
    ///
    /// It is rounded down to a time that the header can express, so that the other side does not
    /// work in vain; less than 1 ms is written as 1 ms where 0 would mean no deadline.
    pub fn write(&self, headers: &mut HeaderMap) {
        let left = self.left();
        if is_grpc(headers) {
            headers.insert(GRPC_TIMEOUT, grpc_value(left));
        } else {
            let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            headers.insert(ENVOY_TIMEOUT, ms.max(1).into());
        }
    }
}

/// The units of `grpc-timeout` and their nanoseconds, the finest first.
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// The largest number that `grpc-timeout` can have.
const GRPC_MOST: u128 = 99_999_999;

fn grpc_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let (_, unit_ns) = UNITS.iter().find(|(name, _)| name == unit)?;
    if digits.len() > 8 {
        return None;
    }
    let count = u32::try_from(number(digits)?).ok()?;
    // OVERFLOW: 99,999,999 hours are 11,000 years, and a `Duration` holds 584 billion.
    Some(Duration::from_nanos(*unit_ns).saturating_mul(count))
}

fn envoy_timeout(text: &[u8]) -> Option<Duration> {
    number(text).filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// Reads a number of digits and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Writes a timeout in the finest unit in which it fits.
fn grpc_value(left: Duration) -> HeaderValue {
    let counts = UNITS.iter().map(|(name, unit_ns)| (name, left.as_nanos() / u128::from(*unit_ns)));
    let fitting = counts.clone().find(|(_, count)| *count <= GRPC_MOST);
    let (name, count) = fitting.unwrap_or((&b'H', GRPC_MOST));
    let text = format!("{count}{}", char::from(*name));
    // INVARIANT: digits and a letter are a valid header value.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("0n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn grpc_timeout_is_read_as_grpc_writes_it() {
        for (text, expected) in [
            ("1S", Some(SECOND)),
            ("0n", Some(Duration::ZERO)),
            ("1n", Some(Duration::from_nanos(1))),
            ("1500u", Some(Duration::from_micros(1500))),
            ("00000100m", Some(Duration::from_millis(100))),
            ("2M", Some(SECOND * 120)),
            ("99999999S", Some(SECOND * 99_999_999)),
            ("99999999H", Some(SECOND * 3_600 * 99_999_999)),
            ("100000000n", None), // nine digits
            ("000000001S", None),
            ("S", None),
            ("1", None),
            ("", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
            ("1 S", None),
            (" 1S", None),
            ("1S ", None),
            ("1s", None),
            ("1h", None),
            ("1µ", None),
        ] {
            assert_eq!(grpc_timeout(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn envoys_timeout_is_a_number_of_milliseconds() {
        for (text, expected) in [
            ("1", Some(Duration::from_millis(1))),
            ("15000", Some(SECOND * 15)),
            ("18446744073709551615", Some(Duration::from_millis(u64::MAX))),
            ("18446744073709551616", None),
            ("0", None), // Envoy writes 0 for none
            ("-1", None),
            ("1.5", None),
            ("1000 ", None),
            ("", None),
        ] {
            assert_eq!(envoy_timeout(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_timeout_is_written_in_the_finest_unit_with_room() {
        for (left, expected) in [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_millis(100), "100000u"),
            (Duration::from_micros(99_999_999), "99999999u"),
            (SECOND * 100, "100000m"),
            (SECOND * 86_400, "86400000m"),
            (SECOND * 100_000, "100000S"),
            (SECOND * 100_000_000, "1666666M"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(grpc_value(left), expected, "{left:?}");
        }
    }

    #[test]
    fn the_earlier_of_several_deadlines_counts() {
        let (clock, _hand) = Clock::manual();
        for (lines, expected_ms) in [
            (&[][..], None),
            (&[(GRPC_TIMEOUT, "2S"), (ENVOY_TIMEOUT, "1500")], Some(1_500)),
            (&[(GRPC_TIMEOUT, "2S"), (GRPC_TIMEOUT, "1S")], Some(1_000)),
            (&[(GRPC_TIMEOUT, "soon"), (ENVOY_TIMEOUT, "1500")], Some(1_500)),
            (&[(GRPC_TIMEOUT, "soon")], None),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(name, HeaderValue::from_static(value));
            }
            let left = Deadline::read(&clock, &headers).map(|deadline| deadline.left());
            assert_eq!(left, expected_ms.map(Duration::from_millis), "{lines:?}");
        }
    }

    proptest! {
        /// A written deadline is read back, never later, and earlier by less than a part in
        /// 100,000.
        #[test]
        fn no_time_is_won_on_the_wire(ns in 1_u64.., is_grpc: bool) {
            let (clock, _hand) = Clock::manual();
            let left = Duration::from_nanos(ns);
            let mut headers = HeaderMap::new();
            if is_grpc {
                let kind = HeaderValue::from_static("application/grpc");
                headers.insert(http::header::CONTENT_TYPE, kind);
            }
            Deadline::after(&clock, left).write(&mut headers);
            let read = Deadline::read(&clock, &headers).unwrap().left();
            let at_most = if is_grpc { left } else { left.max(Duration::from_millis(1)) };
            prop_assert!(read <= at_most, "{read:?}");
            let lost = if is_grpc { left / 100_000 } else { Duration::from_millis(1) };
            prop_assert!(read + lost >= left, "{read:?}");
        }
    }
}
