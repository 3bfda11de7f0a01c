//! How to use the calls that are left.

use super::lane::share;
use std::time::Duration;

/// How to use the calls that the server says are left. No variant uses more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spend {
    /// At once. When nothing is left, calls wait.
    Burst,
    /// Evenly over the time it has to last.
    Even,
    /// At once while more than this percentage of the limit is left, then evenly. Evenly from the
    /// start if the server does not report its limit.
    EvenBelow(u8),
}

impl Default for Spend {
    /// Evenly below half of the limit: short runs are not slowed down, long ones do not stop and go.
    fn default() -> Self {
        Self::EvenBelow(50)
    }
}

impl Spend {
    /// Returns the time from start to start if `left` calls have to last for `time`.
    pub(super) fn interval(self, left: u64, limit: Option<u64>, time: Duration) -> Duration {
        let is_even = match self {
            Self::Burst => false,
            Self::Even => true,
            Self::EvenBelow(percent) => limit.is_none_or(|limit| {
                u128::from(left) * 100 <= u128::from(limit) * u128::from(percent)
            }),
        };
        if is_even && left > 0 { share(time, left) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_used_at_once_or_evenly() {
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        for (spend, left, limit, expected) in [
            (Spend::Burst, 10, Some(100), zero),
            (Spend::Even, 10, Some(100), second),
            (Spend::Even, 0, Some(100), zero),
            (Spend::Even, u64::MAX, None, Duration::from_nanos(1)),
            (Spend::EvenBelow(50), 51, Some(100), zero),
            (Spend::EvenBelow(50), 50, Some(100), second / 5),
            (Spend::EvenBelow(50), 10, None, second),
            (Spend::EvenBelow(100), 100, Some(100), second / 10),
            (Spend::EvenBelow(0), 1, Some(100), zero),
        ] {
            let found = spend.interval(left, limit, 10 * second);
            assert_eq!(found, expected, "{spend:?} {left} {limit:?}");
        }
    }
}
