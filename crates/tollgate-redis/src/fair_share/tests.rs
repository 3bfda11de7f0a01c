//! Fleets in virtual time. In `servers`, every report goes to a real server, with the time as an
//! argument, and to the model of the script, `model.rs`, and the answers must be the same. In
//! `load.rs`, whole processes measure the demand of simulated loads and report to the model.

mod load;
mod model;
#[cfg(feature = "test-servers")]
mod servers {
    mod random;
    mod scenario;
    mod sim;
}

use super::{Rate, task::quota};
use std::time::Duration;
use tollgate::{Clock, Inherit, Limiter};

#[test]
fn a_share_is_a_quota_to_the_millionth() {
    let second = Duration::from_secs(1);
    for (micros, secs, expected) in [
        (500_000, 1_000_000, 500_000),
        (69_690_721, 100_000, 6_969_072),
        (1, 10_000_000, 10),
        (333_333, 3_000_000, 999_999),
        (0, 1_000_000, 0),
    ] {
        let share = Rate::from_micros(micros);
        let (clock, hand) = Clock::manual();
        // From a share of nothing, so that there is no burst to begin with.
        let limiter = Limiter::builder(quota(Rate::ZERO, second)).clock(clock).build().unwrap();
        limiter.set_quota(quota(share, second), Inherit::AsIs).unwrap();
        assert_eq!(limiter.available(), 0, "a share that grows brings no permits with it");
        let whole = quota(share, Duration::from_secs(86_400));
        limiter.set_quota(whole, Inherit::AsIs).unwrap();
        let (mut passed, steps) = (0, 1_000);
        for _ in 0..steps {
            hand.advance(Duration::from_secs(secs / steps));
            let decision = limiter.up_to(1 << 40);
            passed += if decision.is_allowed() { decision.cost() } else { 0 };
        }
        assert_eq!(passed, expected, "{share} for {secs} s");
    }
    assert_eq!(quota(Rate::MAX, second).check(), Ok(()));
    assert_eq!(quota(Rate::MAX, Duration::from_secs(86_400)).check(), Ok(()));
    assert_eq!(quota(Rate::from_micros(1), second).capacity(), 1, "one permit at least");
}
