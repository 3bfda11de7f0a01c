//! The permits that keys get while their rate moves, and the cost of a change of the rate.

use super::adaptive_rate::{Script, keyed, ms};
use proptest::prelude::*;
use tollgate::{Clock, KeyedLimiter, Quota, adaptive::rate::AdaptiveRate};

/// 10/s and 1/s in turn, a second each: a key gets the integral of the rate, and one burst.
#[test]
fn a_rate_that_swings_admits_its_integral() {
    for burst in [10, 50] {
        let (limiter, hand) = keyed(Quota::per_second(10).burst(burst));
        let law = Script::new(1.0..=10.0, vec![10.0, 1.0]);
        // Periods end before each second, and the test decides when a decision is made.
        let rate = AdaptiveRate::of_keys(&limiter, law).period(ms(500)).build().unwrap();
        let mut admitted = 0_u64;
        for milli in 0..=60_000_u64 {
            while limiter.try_acquire("key").is_allowed() {
                admitted += 1;
            }
            if milli > 0 && milli % 1000 == 0 {
                rate.tick();
                let expected = if milli % 2000 == 0 { 10.0 } else { 1.0 };
                assert_eq!(rate.report().rate, expected, "at {milli} ms");
            }
            hand.advance(ms(1));
        }
        // 30 s of 10/s and 30 s of 1/s.
        assert!((330..=330 + burst).contains(&admitted), "burst {burst}: {admitted}");
    }
}

/// A change leaves the words of all keys as they are.
#[test]
fn a_change_touches_no_key() {
    let (limiter, hand) = keyed(Quota::per_second(100).burst(100));
    let law = Script::new(1.0..=100.0, vec![100.0, 50.0, 25.0, 1.0]);
    let rate = AdaptiveRate::of_keys(&limiter, law).period(ms(1)).build().unwrap();
    let keys: Vec<String> = (0..1000).map(|it| it.to_string()).collect();
    for (index, key) in keys.iter().enumerate() {
        assert!(limiter.try_acquire_n(key, 1 + index as u64 % 100).is_allowed());
    }
    let full = || keys.iter().map(|key| limiter.peek_n(key, 0).full_at()).collect::<Vec<_>>();
    let (before, counts) = (full(), (limiter.len(), limiter.bytes(), limiter.table_counts()));
    for _ in 0..3 {
        hand.advance(ms(2));
        rate.tick();
    }
    assert_eq!(rate.report().rate, 1.0);
    for ((key, after), before) in keys.iter().zip(full()).zip(before) {
        assert_eq!(after, before, "key {key}");
    }
    assert_eq!((limiter.len(), limiter.bytes(), limiter.table_counts()), counts);
}

/// Ten changes take as long over a million keys as over ten: no walk. Measured only where the build
/// is optimised: `TOLLGATE_LONG=1 cargo test --profile flood -p tollgate --test limiting a_million -- --nocapture`.
#[test]
fn a_million_keys_take_ten_changes_a_second() {
    if std::env::var_os("TOLLGATE_LONG").is_none() {
        return;
    }
    let stopwatch = Clock::monotonic();
    let changes = 1000_u32;
    let cost = |keys: u64| {
        let (clock, hand) = Clock::manual();
        let limiter: KeyedLimiter<u64> =
            KeyedLimiter::builder(Quota::per_hour(3600)).clock(clock).build().unwrap();
        let law = Script::new(0.1..=1.0, vec![1.0, 0.5, 0.25, 0.125]);
        let rate = AdaptiveRate::of_keys(&limiter, law).period(ms(1)).build().unwrap();
        for key in 0..keys {
            assert!(limiter.try_acquire(&key).is_allowed());
        }
        assert_eq!(limiter.len() as u64, keys);
        let begun = stopwatch.now();
        for _ in 0..changes {
            hand.advance(ms(2));
            rate.tick();
        }
        stopwatch.now().since(begun) / changes
    };
    let (few, many) = (cost(10), cost(1_000_000));
    println!("a change over ten keys: {few:?}, over a million: {many:?}");
    assert!(many < ms(1), "{many:?}");
}

/// The highest rate below, and the lowest.
const TOP: f64 = 40.0;
const BOTTOM: f64 = 1.0;

/// The result of a key that took all it could while the rate moved.
#[derive(Debug, Default)]
struct Greedy {
    admitted: u64,
    /// The integral of the rate.
    integral: f64,
    /// How long the admitted permits take, each at the rate at which it passed.
    worth: f64,
    elapsed: f64,
    /// The sum of new / old over all rises.
    rises: f64,
}

fn greedy(burst_seconds: u64, moves: &[(f64, u64)]) -> Greedy {
    let (limiter, hand) = keyed(Quota::per_second(40).burst(40 * burst_seconds));
    let rates = [TOP].into_iter().chain(moves.iter().map(|(rate, _)| *rate)).collect();
    let law = Script::new(BOTTOM..=TOP, rates);
    let rate = AdaptiveRate::of_keys(&limiter, law).period(ms(1)).build().unwrap();
    let mut got = Greedy::default();
    for (_, millis) in moves {
        let (now, seconds) = (rate.report().rate, *millis as f64 / 1000.0);
        for _ in 0..*millis {
            while limiter.try_acquire("key").is_allowed() {
                got.admitted += 1;
                got.worth += 1.0 / now;
            }
            hand.advance(ms(1));
        }
        got.integral += now * seconds;
        got.elapsed += seconds;
        rate.tick();
        let next = rate.report().rate;
        got.rises += if next > now { next / now } else { 0.0 };
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However the rate moves, permits never pass faster than at the rate in force, plus one burst.
    #[test]
    fn permits_are_worth_the_time_that_passed(
        burst_seconds in 1..6_u64,
        moves in prop::collection::vec(((10..=400_u32).prop_map(|it| f64::from(it) / 10.0), 2..1500_u64), 1..20),
    ) {
        let got = greedy(burst_seconds, &moves);
        let whole = got.elapsed + burst_seconds as f64;
        prop_assert!(got.worth <= whole + 1e-6, "{got:?}");
        // One permit of the lowest rate, and the rounding of the burst.
        prop_assert!(got.worth >= whole - 2.0 / BOTTOM, "{got:?}");
        // A rise carries over the fraction of a permit that had come back at the lower rate, as a
        // share: less than two permits of that rate, one for the permit and one for the burst,
        // which is rounded down.
        let most = got.integral + TOP * burst_seconds as f64 + 2.0 * got.rises;
        prop_assert!(got.admitted as f64 <= most, "{got:?}");
    }
}
