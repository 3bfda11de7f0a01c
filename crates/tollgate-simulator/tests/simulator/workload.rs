//! Arrivals come when they should, and limits see them at these times.

use std::time::Duration;
use tollgate::{Algorithm, Clock, Limiter, Quota, Tick};
use tollgate_simulator::Workload;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at_ms(workload: &Workload) -> Vec<f64> {
    workload.arrivals(1).map(|at| at.as_nanos() as f64 / 1e6).collect()
}

#[test]
fn even_patterns_come_at_exact_times() {
    assert_eq!(at_ms(&Workload::new().constant(4.0, ms(1000))), [0.0, 250.0, 500.0, 750.0]);
    let pauses = Workload::new().on_off(100.0, ms(20), ms(80), ms(200));
    assert_eq!(at_ms(&pauses), [0.0, 10.0, 100.0, 110.0]);
    let after = Workload::new().silence(ms(500)).constant(10.0, ms(200));
    assert_eq!(at_ms(&after), [500.0, 600.0]);
}

#[test]
fn a_ramp_has_the_mean_of_its_ends() {
    for (from, to) in [(0.0, 200.0), (200.0, 0.0), (50.0, 150.0)] {
        let times = at_ms(&Workload::new().ramp(from, to, ms(10_000)));
        assert_eq!(times.len(), 1000, "{from} to {to}");
        let first_half = times.iter().filter(|at| **at < 5000.0).count() as f64;
        // The mean rate of the first half is a quarter of the way.
        let expected = 5.0 * (0.75 * from + 0.25 * to);
        assert!((first_half - expected).abs() <= 1.0, "{from} to {to}: {first_half}");
    }
}

#[test]
fn poisson_arrivals_have_their_rate_and_spread() {
    let workload = Workload::new().poisson(1000.0, ms(100_000));
    let times: Vec<Tick> = workload.arrivals(3).collect();
    assert!((99_000..101_000).contains(&times.len()), "{}", times.len());
    let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() * 1000.0);
    // An exponential gap exceeds its mean with probability 1/e.
    let long = gaps.filter(|gap| *gap > 1.0).count() as f64 / times.len() as f64;
    assert!((0.358..0.378).contains(&long), "{long}");
    assert!(times.iter().eq(workload.arrivals(3).collect::<Vec<_>>().iter()));
    assert!(!times.iter().copied().eq(workload.arrivals(4)));
}

/// 100 per second with a burst of 100: the decisions of the algorithms in the four phases.
#[test]
fn the_four_phases_show_the_algorithms_apart() {
    let workload = Workload::four_phases();
    assert_eq!((workload.arrivals(0).count(), workload.length()), (400, ms(4000)));
    let admitted = |algorithm| {
        let (clock, hand) = Clock::manual();
        let quota = Quota::per_second(100).burst(100);
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock).build().unwrap();
        let passes = |at| {
            hand.set(at);
            limiter.try_acquire().is_allowed()
        };
        workload.arrivals(0).filter(|at| passes(*at)).count()
    };
    let gcra = admitted(Algorithm::Gcra);
    assert!((390..=400).contains(&gcra), "{gcra}");
    assert_eq!(admitted(Algorithm::FixedWindow), 300);
    let counter = admitted(Algorithm::SlidingCounter);
    assert!((290..=310).contains(&counter), "{counter}");
}
