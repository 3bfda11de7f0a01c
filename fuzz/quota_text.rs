//! Feeds any text to the quota parser: it must not panic, and what it accepts must round-trip and
//! build or be refused in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{Algorithm, Limiter, Quota, Tick};

fuzz_target!(|text: &str| {
    let Ok(quota) = text.parse::<Quota>() else { return };
    assert_eq!(quota.to_string().parse(), Ok(quota), "{text:?} prints as {quota}");
    for algorithm in Algorithm::ALL {
        match Limiter::builder(quota).algorithm(algorithm).build() {
            Ok(limiter) => {
                let decision = limiter.try_acquire_at(Tick::from_secs(1), 1);
                assert!(decision.remaining() <= decision.limit());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
