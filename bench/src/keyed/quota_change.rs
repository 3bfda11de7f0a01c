//! The cost of a decision while the quota of a million keys changes ten times a second.
//!
//! Phases of a fifth of a second alternate on one table: without changes of the quota, and with
//! another thread that makes them. A phase counts by its mean, because the cost of a change may
//! fall on a few calls only.

use super::{Answers, KEYS, child::Figures, keys, store::Loops};
use crate::{machine, peers::keyed::quota, stats};
use std::{
    hint::black_box,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tollgate::{KeyedLimiter, Quota};

/// How long a phase lasts: two changes.
const PHASE: Duration = Duration::from_millis(200);
/// Time between two changes.
const CHANGE: Duration = Duration::from_millis(100);
/// Calls between two readings of the time.
const PART: usize = 1000;

/// Returns nanoseconds per call with changes and without, and the median of their ratios, over this
/// many pairs of phases.
pub(super) fn child(pairs: &str) -> Option<Figures> {
    let pairs = pairs.parse().ok()?;
    let keys = keys::shuffled::<u64>(0..KEYS);
    let limiter = KeyedLimiter::builder(quotas()[0]).build().ok()?;
    limiter.fill(&keys, 1);
    // Takes the keys in another order than they were inserted.
    let asked = keys::Spread::Uniform.order(KEYS).into_iter().map(u64::from).collect::<Vec<_>>();
    let found = measure(&limiter, &asked, (pairs, PHASE));
    std::mem::forget(limiter);
    Some(found)
}

/// The two quotas that alternate: none of them refuses a call.
fn quotas() -> [Quota; 2] {
    let setup = Answers::Allowed.setup(KEYS);
    [quota(&setup), Quota::one_every(setup.every * 2).burst(u64::from(setup.burst))]
}

fn measure(
    limiter: &KeyedLimiter<u64>,
    asked: &[u64],
    (pairs, time): (usize, Duration),
) -> Figures {
    let (mut changing, mut quiet) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        quiet.push(phase(limiter, asked, (time, false)));
        changing.push(phase(limiter, asked, (time, true)));
    }
    let ratio = stats::median_ratio(&changing, &quiet);
    vec![stats::median(changing), stats::median(quiet), ratio]
}

/// Returns the mean nanoseconds per call of a phase.
fn phase(
    limiter: &KeyedLimiter<u64>,
    asked: &[u64],
    (time, changes): (Duration, bool),
) -> Option<f64> {
    let (barrier, done) = (Barrier::new(2), AtomicBool::new(false));
    let ask = || {
        machine::pin(0);
        barrier.wait();
        let start = Instant::now();
        let found = machine::own_time_ns(|| {
            let (mut calls, mut parts) = (0, asked.chunks(PART).cycle());
            while start.elapsed() < time
                && let Some(part) = parts.next()
            {
                black_box(limiter.take_all(part));
                calls += part.len();
            }
            calls
        });
        // ORDERING: Relaxed is enough: the flag publishes nothing.
        done.store(true, Relaxed);
        found
    };
    let change = || {
        machine::pin(1);
        barrier.wait();
        let mut quotas = quotas().into_iter().cycle();
        // ORDERING: as above.
        while changes && !done.load(Relaxed) {
            let changed = quotas.next().map(|quota| limiter.set_quota(quota));
            assert!(changed.is_some_and(|changed| changed.is_ok()), "both quotas make sense");
            thread::sleep(CHANGE.min(time));
        }
    };
    let found = thread::scope(|scope| {
        let caller = scope.spawn(ask);
        scope.spawn(change);
        caller.join().ok()
    });
    found.map(|(ns, calls)| ns as f64 / calls as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_passes_while_quotas_change() {
        let limiter = KeyedLimiter::builder(quotas()[0]).build().unwrap();
        let asked: Vec<u64> = (0..2000).collect();
        let found = measure(&limiter, &asked, (2, Duration::from_millis(5)));
        assert!(found.len() == 3 && found.iter().all(Option::is_some), "{found:?}");
        assert_eq!(limiter.take_all(&asked), asked.len());
    }
}
