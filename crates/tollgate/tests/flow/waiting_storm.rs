//! Threads and the tasks of two runtimes wait at one limiter, while all of its settings change: no
//! call is lost.
#![cfg(feature = "tokio")]

use fastrand::Rng;
use std::{
    pin::Pin,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use tollgate::{Algorithm, Bypass, Clock, Inherit, Limiter, Quota, Wait};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a quota of `rate` in a second, for `burst` at once. A window has its limit for a burst.
fn quota(algorithm: Algorithm, rate: u32, burst: u32) -> Quota {
    match algorithm {
        Algorithm::Gcra => Quota::per_second(rate.into()).burst(burst.into()),
        _ => Quota::per(burst.into(), SECOND * burst / rate),
    }
}

fn micros(random: &mut Rng, below: u64) -> Duration {
    Duration::from_micros(random.u64(..below))
}

fn wait_as_a_thread(limiter: &Limiter, seed: u64) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..150 {
        let wait = limiter.acquire_n(1 + random.u64(..8));
        let wait = match random.u64(..3) {
            0 => wait.within(micros(&mut random, 3_000)),
            _ => wait,
        };
        // Calls with little patience are refused.
        let _either = wait.block();
    }
}

async fn wait_as_a_task(limiter: Limiter, seed: u64) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..15 {
        let wait = limiter.acquire_n(1 + random.u64(..8));
        match random.u64(..4) {
            // Dropped at any time.
            0 => drop(tokio::time::timeout(micros(&mut random, 2_500), wait).await),
            1 => drop(wait.jitter(50).await),
            2 => drop(wait.within(micros(&mut random, 4_000)).await),
            _ => drop(wait.await),
        }
    }
}

fn wait_as_tasks(limiter: &Limiter, seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..10)
            .map(|task| tokio::spawn(wait_as_a_task(limiter.clone(), seed * 100 + task)))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Makes all other kinds of calls on a limiter.
fn disturb(limiter: &Limiter, is_over: &AtomicBool) {
    let mut random = Rng::with_seed(9);
    // ORDERING: Relaxed. The flag stands for itself.
    while !is_over.load(Relaxed) {
        let (rate, burst) = (10_000 + random.u64(..20_000), 8 + random.u64(..30));
        match random.u64(..8) {
            0 => {
                let quota = quota(limiter.algorithm(), rate as u32, burst as u32);
                limiter.set_quota(quota, Inherit::AsIs).unwrap();
            }
            1 => limiter.reset(),
            2 => limiter.bypass(Bypass::On),
            3 | 4 => limiter.bypass(Bypass::Off),
            5 => drop(limiter.reserve(3).map(tollgate::Reservation::cancel)),
            6 => assert!(limiter.lease(4, MS).try_acquire().cost() > 0),
            _ => assert!(limiter.try_overtake_n(2).cost() > 0 && limiter.refund(2) <= 2),
        }
        thread::park_timeout(Duration::from_micros(200));
    }
    limiter.bypass(Bypass::Off);
}

fn storm(limiter: &Limiter, is_disturbed: bool) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut all = Vec::new();
        for seed in 0..3 {
            all.push(scope.spawn(move || wait_as_a_thread(limiter, seed)));
        }
        for seed in 3..5 {
            all.push(scope.spawn(move || wait_as_tasks(limiter, seed)));
        }
        if is_disturbed {
            scope.spawn(|| disturb(limiter, &is_over));
        }
        let ended: Vec<_> = all.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // ORDERING: as in `disturb`.
        is_over.store(true, Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn nobody_is_forgotten() {
    use Algorithm::{FixedWindow, Gcra, SlidingCounter, SlidingLog};
    for algorithm in [Gcra, FixedWindow, SlidingCounter, SlidingLog] {
        for (newest_first, is_cached, is_disturbed) in
            [(false, false, false), (true, false, true), (false, true, true)]
        {
            let clock = if is_cached { Clock::cached().unwrap() } else { Clock::monotonic() };
            let builder = Limiter::builder(quota(algorithm, 20_000, 20));
            let builder = builder.algorithm(algorithm).clock(clock);
            let builder = if newest_first { builder.newest_first() } else { builder };
            let limiter = builder.build().unwrap();
            let (sender, ended) = mpsc::channel();
            thread::spawn(move || {
                storm(&limiter, is_disturbed);
                sender.send(()).unwrap_or(());
            });
            let row = format!("{algorithm:?}, {newest_first}, {is_cached}, {is_disturbed}");
            ended.recv_timeout(10 * SECOND).expect(&row);
        }
    }
}

/// Waiting calls of cost 2 each.
struct Crowd(Vec<Pin<Box<Wait>>>);

impl Crowd {
    fn new(limiter: &Limiter, count: usize) -> Self {
        while limiter.try_acquire().is_allowed() {}
        let mut crowd = Self((0..count).map(|_| Box::pin(limiter.acquire_n(2))).collect());
        assert_eq!(crowd.answers(), (0, 0), "all of them wait");
        crowd
    }

    /// Returns how many have passed, and how many were refused.
    fn answers(&mut self) -> (usize, usize) {
        let (mut context, mut answers) = (Context::from_waker(Waker::noop()), (0, 0));
        self.0.retain_mut(|wait| match wait.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                answers.0 += usize::from(answer.is_ok());
                answers.1 += usize::from(answer.is_err());
                false
            }
        });
        answers
    }
}

#[test]
fn a_change_while_thousands_wait_holds_for_all_of_them() {
    use Algorithm::{FixedWindow, Gcra, SlidingCounter, SlidingLog};
    for algorithm in [Gcra, FixedWindow, SlidingCounter, SlidingLog] {
        let (clock, hand) = Clock::manual();
        hand.advance(1_000 * SECOND);
        let usual = quota(algorithm, 1_000, 10);
        let limiter = Limiter::builder(usual).algorithm(algorithm).clock(clock).build().unwrap();
        let mut crowd = Crowd::new(&limiter, 3_000);
        limiter.set_quota(quota(algorithm, 2_000, 10), Inherit::AsIs).unwrap();
        hand.advance(SECOND);
        let (passed, refused) = crowd.answers();
        assert!((990..=1_010).contains(&passed), "{algorithm:?}: {passed} at twice the rate");
        limiter.bypass(Bypass::On);
        assert_eq!((refused, crowd.answers()), (0, (3_000 - passed, 0)), "{algorithm:?}: bypass");
        limiter.bypass(Bypass::Off);

        let mut crowd = Crowd::new(&limiter, 3_000);
        limiter.reset();
        assert_eq!(crowd.answers(), (5, 0), "{algorithm:?}: reset");
        limiter.set_quota(Quota::unlimited(), Inherit::AsIs).unwrap();
        assert_eq!(crowd.answers(), (2_995, 0), "{algorithm:?}: no limit");

        limiter.set_quota(usual, Inherit::AsIs).unwrap();
        let mut crowd = Crowd::new(&limiter, 3_000);
        limiter.set_quota(quota(algorithm, 1_000, 1), Inherit::AsIs).unwrap();
        assert_eq!(crowd.answers(), (0, 3_000), "{algorithm:?}: no wait can help");
        assert_eq!((limiter.waiting(), hand.timers()), (0, 0), "{algorithm:?}");
    }
}

#[test]
fn a_refund_beside_a_reservation_forgets_nobody_at_the_origin_of_the_clock() {
    let (clock, hand) = Clock::manual();
    let quota = Quota::per_second(1_000).burst(4);
    let limiter = Limiter::builder(quota).clock(clock).build().unwrap();
    let mut crowd = Crowd::new(&limiter, 4);
    let booked = limiter.reserve(4).unwrap();
    assert_eq!(limiter.refund(100), 8);
    hand.advance(SECOND);
    crowd.answers();
    assert!(crowd.0.is_empty(), "everybody has passed");
    booked.keep();
}
