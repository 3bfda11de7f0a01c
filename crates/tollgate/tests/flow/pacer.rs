//! The leaky bucket as a queue, on a manual clock.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{
    ConfigError, Driver, Initial, Late, ManualClock, OnDrop, Overflow, Paced, Pacer, PacerBuilder,
    Queued, Quota, Rejected, Slot, Tick,
};

fn ms(ms: u64) -> Tick {
    Tick::from_millis(ms)
}

const fn wait_ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn builder(hand: &ManualClock, quota: Quota, capacity: u64) -> PacerBuilder {
    Pacer::builder(quota).capacity(capacity).driver(Driver::manual(hand))
}

/// A pacer of 10/s, the handle of its clock, and a log of the jobs that ran.
fn ten(capacity: u64) -> (Pacer, ManualClock, Log) {
    let hand = ManualClock::new();
    let pacer = builder(&hand, Quota::per_second(10), capacity).start().unwrap();
    (pacer, hand.clone(), Log { hand, ran: Arc::default() })
}

#[derive(Clone)]
struct Log {
    hand: ManualClock,
    ran: Arc<Mutex<Vec<(u64, u32)>>>,
}

impl Log {
    /// A job that records the time in milliseconds and its name.
    fn job(&self, name: u32) -> impl FnOnce() + Send + 'static + use<> {
        let log = self.clone();
        move || {
            let now = log.hand.now().as_nanos() / 1_000_000;
            log.ran.lock().unwrap().push((now, name));
        }
    }

    fn take(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.ran.lock().unwrap())
    }
}

#[test]
fn types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    shared::<Pacer>();
    shared::<PacerBuilder>();
    shared::<Slot>();
    shared::<Paced>();
    shared::<Late>();
    shared::<Queued>();
    error::<Overflow>();
    error::<ConfigError>();
    error::<Rejected<fn()>>();
}

#[test]
fn refuses_nonsense_and_says_what_to_do() {
    let second = Quota::per_second(10);
    for (quota, capacity, text) in [
        (
            second.burst(5),
            10,
            "a pacer cannot have the burst 5, because it admits one at a time; remove the burst, \
             or use a limiter to allow bursts",
        ),
        (
            second.burst(0),
            10,
            "a pacer cannot have the burst 0, because it admits one at a time; remove the burst, \
             or use a limiter to allow bursts",
        ),
        (
            Quota::per_second(0),
            10,
            "a rate of zero grants no slot; give a count of at least 1, for example one_every",
        ),
        (
            Quota::unlimited(),
            10,
            "an unlimited quota leaves an algorithm nothing to count; use a limiter, or give a rate",
        ),
        (
            second.initial(Initial::Empty),
            10,
            "a pacer saves nothing up, so there is no initial fill; remove it, or use a limiter",
        ),
        (
            Quota::per_day(1),
            5_000,
            "a queue of 5000 at 1/day takes longer than 11.4 years, the range of the clock; lower \
             the capacity, or raise the rate",
        ),
        (
            Quota::per(5, Duration::ZERO),
            10,
            "5 permits per zero time is not a rate; give a period of at least 1 ns, or use \
             unlimited",
        ),
    ] {
        let error = Pacer::builder(quota).capacity(capacity).start().unwrap_err();
        assert_eq!(error.to_string(), text);
        // A change of a running pacer's rate is checked by the same rules.
        let pacer = Pacer::builder(second).capacity(capacity).start().unwrap();
        assert_eq!(pacer.set_rate(quota), Err(error));
        assert_eq!(pacer.rate(), second);
    }
    assert!(Pacer::builder(second.burst(1)).start().is_ok());
}

#[test]
fn the_example_of_the_seed_comes_out() {
    // Rate 10/s, queue of 20: ten at 0 s leave at 0, 0.1 .. 0.9 s. Of thirty at 1 s, those leave
    // that fit, the last of them after capacity / rate. One passes at once, and twenty queue.
    let (pacer, hand, log) = ten(20);
    for name in 0..10 {
        pacer.run(log.job(name)).unwrap();
    }
    hand.set(ms(1_000));
    let expected: Vec<_> = (0..10).map(|k| (u64::from(k) * 100, k)).collect();
    assert_eq!(log.take(), expected);
    let taken = (0..30).filter(|name| pacer.run(log.job(*name)).is_ok()).count();
    assert_eq!((taken, pacer.queued()), (21, 20));
    assert_eq!(pacer.max_delay(), wait_ms(2_000));
    hand.set(ms(10_000));
    let expected: Vec<_> = (0..21).map(|k| (1_000 + u64::from(k) * 100, k)).collect();
    assert_eq!(log.take(), expected);
    assert_eq!((pacer.queued(), hand.timers()), (0, 0));
}

#[test]
fn all_styles_share_one_plan_and_one_bound() {
    let (pacer, hand, log) = ten(3);
    let slot = pacer.slot().unwrap();
    assert_eq!((slot.at(), slot.delay(hand.now())), (ms(0), Duration::ZERO));
    let job = pacer.run(log.job(1)).unwrap();
    assert_eq!((job.at(), job.delay(ms(40)), job.is_queued()), (ms(100), wait_ms(60), true));
    assert_eq!(pacer.slot().unwrap().at(), ms(200));
    assert_eq!(pacer.run(log.job(2)).unwrap().at(), ms(300));
    let refused = pacer.slot().unwrap_err();
    assert_eq!((refused.capacity(), refused.queued(), refused.cost()), (3, 3, 1));
    assert_eq!(refused.retry_after(), Some(wait_ms(100)));
    assert!(refused.is_full() && !refused.is_never() && !refused.is_stopped());
    assert_eq!(
        refused.to_string(),
        "3 of 3 are queued, so cost 1 does not fit; retry after 100ms, or raise the capacity"
    );
    let rejected = pacer.run(log.job(3)).unwrap_err();
    assert_eq!(rejected.overflow(), &refused);
    // The error returns the job, which can be tried again.
    hand.advance(wait_ms(100));
    assert_eq!(pacer.run(rejected.into_job()).unwrap().at(), ms(400));
    hand.advance(wait_ms(1_000));
    assert_eq!(log.take(), [(100, 1), (300, 2), (400, 3)]);
    assert!(!job.is_queued());
}

#[test]
fn after_idle_time_the_first_passes_at_once_and_nothing_is_saved_up() {
    let (pacer, hand, _) = ten(10);
    // at_ms, slot_ms
    for (row, (at, slot)) in
        [(0, 0), (0, 100), (150, 200), (250, 300), (5_000, 5_000), (5_000, 5_100), (5_199, 5_200)]
            .into_iter()
            .enumerate()
    {
        hand.set(ms(at));
        assert_eq!(pacer.slot().unwrap().at(), ms(slot), "row {row}, at {at} ms");
    }
}

#[test]
fn with_no_queue_only_those_pass_whose_slot_is_now() {
    let (pacer, hand, log) = ten(0);
    // at_ms, passes
    for (row, (at, passes)) in
        [(0, true), (0, false), (99, false), (100, true), (350, true), (449, false), (450, true)]
            .into_iter()
            .enumerate()
    {
        hand.set(ms(at));
        assert_eq!(pacer.run(log.job(0)).is_ok(), passes, "row {row}, at {at} ms");
    }
    assert_eq!(pacer.max_delay(), Duration::ZERO);
    assert_eq!(log.take().len(), 4);
}

#[test]
fn a_cost_takes_that_many_slots() {
    let (pacer, hand, log) = ten(5);
    for (row, (cost, slot_ms)) in
        [(2, Some(0)), (1, Some(200)), (3, Some(300)), (1, None)].into_iter().enumerate()
    {
        let at = pacer.slot_n(cost).ok().map(|slot| slot.at());
        assert_eq!(at, slot_ms.map(ms), "row {row}");
    }
    hand.set(ms(10_000));
    // The whole queue, and one slot that is due.
    assert_eq!(pacer.run_n(6, log.job(0)).unwrap().at(), ms(10_000));
    let never = pacer.slot_n(7).unwrap_err();
    assert!(never.is_never() && never.retry_after().is_none());
    assert_eq!(
        never.to_string(),
        "cost 7 is more than a queue of 5 can ever hold; ask for at most 6, or raise the capacity"
    );
    let nothing = pacer.run_n(0, log.job(0)).unwrap_err();
    assert!(nothing.overflow().is_never());
    assert_eq!(nothing.to_string(), "cost 0 takes no slot; ask for at least 1");
    assert_eq!(pacer.slot().unwrap_err().retry_after(), Some(wait_ms(100)));
}

#[test]
fn a_slot_that_is_given_back_goes_to_the_next_in_time() {
    // Slots at 0, 100, 200, 300 ms. Which is given back, when, whether that helps, and what the
    // next two get then.
    for (index, at, helps, next) in [
        (3, 50, true, [300, 400]),   // the last
        (1, 50, true, [100, 400]),   // in the middle, ahead
        (1, 99, true, [100, 400]),   // just so
        (1, 100, false, [400, 500]), // it has come
        (0, 0, false, [400, 500]),   // so has the first
        (3, 300, true, [300, 400]),  // the last, even though it has come
        (3, 350, true, [350, 450]),  // no slot lies in the past
        (3, 900, true, [900, 1_000]),
    ] {
        let (pacer, hand, _) = ten(10);
        let mut slots: Vec<_> = (0..4).map(|_| pacer.slot().unwrap()).collect();
        hand.set(ms(at));
        let row = format!("slot {index} at {at} ms");
        assert_eq!(slots.remove(index).cancel(), helps, "{row}");
        let got = [(); 2].map(|()| pacer.slot().unwrap().at());
        assert_eq!(got, next.map(ms), "{row}");
    }
}

#[test]
fn holes_at_the_end_close_up() {
    let (pacer, _hand, log) = ten(10);
    let mut jobs: Vec<_> = (0..5).map(|name| pacer.run(log.job(name)).unwrap()).collect();
    assert!(jobs.remove(2).cancel());
    assert!(jobs.remove(2).cancel());
    assert_eq!(pacer.queued(), 2);
    // 200 and 300 ms are holes before 400 ms; with that gone they are at the end.
    assert!(jobs.remove(2).cancel());
    assert_eq!(pacer.queued(), 1);
    // If they were not removed from the end, two slots in a row would not be available there.
    assert_eq!(pacer.slot_n(2).unwrap().at(), ms(200));
}

#[test]
fn a_hole_is_for_the_same_cost_only() {
    let (pacer, hand, log) = ten(10);
    let _now = pacer.slot().unwrap();
    let two = pacer.run_n(2, log.job(1)).unwrap();
    pacer.run(log.job(2)).unwrap();
    assert!(two.cancel());
    assert_eq!(pacer.run(log.job(3)).unwrap().at(), ms(400));
    assert_eq!(pacer.run_n(2, log.job(4)).unwrap().at(), ms(100));
    hand.advance(wait_ms(2_000));
    assert_eq!(log.take(), [(100, 4), (300, 2), (400, 3)]);
}

#[test]
fn a_cancelled_job_is_dropped_and_never_runs() {
    let (pacer, hand, log) = ten(10);
    pacer.run(log.job(0)).unwrap();
    let owned = Arc::new(());
    let held = Arc::clone(&owned);
    let job = pacer.run(move || drop(held)).unwrap();
    assert_eq!(Arc::strong_count(&owned), 2);
    assert!(job.cancel());
    assert_eq!((Arc::strong_count(&owned), pacer.queued()), (1, 0));
    hand.advance(wait_ms(1_000));
    assert_eq!(log.take(), [(0, 0)]);
    // Too late.
    let job = pacer.run(log.job(1)).unwrap();
    assert!(!job.cancel());
    assert_eq!(log.take(), [(1_000, 1)]);
}

#[test]
fn a_drop_that_calls_back_finds_no_lock() {
    struct Back(Pacer);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = self.0.queued();
            drop(self.0.slot());
        }
    }
    let (pacer, _hand, log) = ten(10);
    pacer.run(log.job(0)).unwrap();
    let back = Back(pacer.clone());
    assert!(pacer.run(move || drop(back)).unwrap().cancel());
    let back = Back(pacer.clone());
    pacer.run(move || drop(back)).unwrap();
    pacer.stop(Queued::Drop);
    let back = Back(pacer.clone());
    assert!(pacer.run(move || drop(back)).is_err());
}

#[test]
fn a_job_may_run_jobs_and_stop_its_pacer() {
    let (pacer, hand, log) = ten(10);
    let (again, inner) = (pacer.clone(), log.clone());
    pacer
        .run(move || {
            for name in 1..4 {
                again.run(inner.job(name)).unwrap();
            }
            let last = again.clone();
            again.run(move || last.stop(Queued::Drop)).unwrap();
            again.run(inner.job(9)).unwrap();
            let ended = again.stop_and_wait(Queued::Drain, Duration::ZERO).block();
            assert!(ended.unwrap_err().is_inside());
        })
        .unwrap();
    hand.advance(wait_ms(1_000));
    assert_eq!(log.take(), [(100, 1), (200, 2), (300, 3)]);
    assert_eq!((pacer.panics(), hand.timers()), (0, 0));
}

#[test]
fn a_panic_is_reported_and_the_next_job_runs() {
    let hand = ManualClock::new();
    let log = Log { hand: hand.clone(), ran: Arc::default() };
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    let pacer = builder(&hand, Quota::per_second(10), 10)
        .on_panic(move |panicked| tells.lock().unwrap().push(panicked.message().to_owned()))
        .start()
        .unwrap();
    pacer.run(log.job(0)).unwrap();
    pacer.run(|| panic!("no stamp")).unwrap();
    pacer.run(log.job(2)).unwrap();
    hand.advance(wait_ms(1_000));
    assert_eq!(log.take(), [(0, 0), (200, 2)]);
    assert_eq!(
        (pacer.panics(), told.lock().unwrap().as_slice()),
        (1, &["no stamp".to_owned()][..])
    );
}

#[test]
fn a_stop_drains_or_drops() {
    for (queued, ran) in [(Queued::Drain, 4), (Queued::Drop, 1)] {
        let (pacer, hand, log) = ten(10);
        let jobs: Vec<_> = (0..4).map(|name| pacer.run(log.job(name)).unwrap()).collect();
        pacer.stop(queued);
        assert!(pacer.is_stopped());
        let refused = pacer.run(log.job(9)).unwrap_err();
        assert!(refused.overflow().is_stopped());
        assert_eq!(refused.to_string(), "the pacer is stopped; start a new one");
        assert!(pacer.slot().unwrap_err().is_stopped());
        assert!(pacer.wait().block().unwrap_err().is_stopped());
        let text = "the pacer is stopped; start a new one".to_owned();
        assert_eq!(
            pacer.set_rate(Quota::per_second(1)).map_err(|error| error.to_string()),
            Err(text)
        );
        assert_eq!(jobs[3].is_queued(), queued == Queued::Drain);
        hand.advance(wait_ms(1_000));
        let expected: Vec<_> = (0..ran).map(|k| (u64::from(k) * 100, k)).collect();
        assert_eq!(log.take(), expected, "{queued:?}");
        assert_eq!((hand.timers(), pacer.queued()), (0, 0), "{queued:?}");
        assert_eq!(pacer.stop_and_wait(queued, Duration::ZERO).block(), Ok(()), "{queued:?}");
    }
}

#[test]
fn what_drains_can_be_cancelled_and_dropped() {
    let (pacer, hand, log) = ten(10);
    let mut jobs: Vec<_> = (0..4).map(|name| pacer.run(log.job(name)).unwrap()).collect();
    pacer.stop(Queued::Drain);
    assert!(jobs.remove(3).cancel());
    hand.advance(wait_ms(100));
    pacer.stop(Queued::Drop);
    hand.advance(wait_ms(1_000));
    assert_eq!(log.take(), [(0, 0), (100, 1)]);

    // With the last job gone there is nothing to drain, and the pacer ends at once.
    let (pacer, hand, log) = ten(10);
    let mut jobs: Vec<_> = (0..2).map(|name| pacer.run(log.job(name)).unwrap()).collect();
    pacer.stop(Queued::Drain);
    assert!(jobs.remove(1).cancel());
    assert_eq!(hand.timers(), 0);
    assert_eq!(pacer.stop_and_wait(Queued::Drain, Duration::ZERO).block(), Ok(()));
}

#[test]
fn dropping_the_last_handle_cancels_or_flushes() {
    for (on_drop, ran) in [(OnDrop::Cancel, 1), (OnDrop::Flush, 3)] {
        let hand = ManualClock::new();
        let log = Log { hand: hand.clone(), ran: Arc::default() };
        let pacer = builder(&hand, Quota::per_second(10), 10).on_drop(on_drop).start().unwrap();
        let jobs: Vec<_> = (0..3).map(|name| pacer.run(log.job(name)).unwrap()).collect();
        let slot = pacer.slot().unwrap();
        let clone = pacer.clone();
        drop(pacer);
        assert!(jobs[1].is_queued());
        drop(clone);
        // Neither a slot nor the handle of a job keeps the pacer alive.
        assert!(!slot.cancel() && !jobs[1].is_queued());
        hand.advance(wait_ms(1_000));
        assert_eq!(log.take().len(), ran, "{on_drop:?}");
        assert_eq!(Arc::strong_count(&log.ran), 1, "{on_drop:?}: all is released");
    }
}

#[test]
fn a_new_rate_is_for_slots_that_are_not_told() {
    let (pacer, hand, _) = ten(10);
    let told: Vec<_> = (0..3).map(|_| pacer.slot().unwrap()).collect();
    pacer.set_rate(Quota::per_second(100)).unwrap();
    assert_eq!((pacer.rate(), pacer.max_delay()), (Quota::per_second(100), wait_ms(100)));
    // The next would be at 210 ms, which is further ahead than a queue of ten takes now.
    let refused = pacer.slot().unwrap_err();
    assert_eq!(refused.retry_after(), Some(wait_ms(110)));
    hand.advance(wait_ms(110));
    assert_eq!(pacer.slot().unwrap().at(), ms(210));
    pacer.set_rate(Quota::per_second(1)).unwrap();
    assert_eq!(pacer.slot().unwrap().at(), ms(1_210));
    assert_eq!(told[2].at(), ms(200));
    // A slower rate does not let more in than the queue holds.
    let more = (0..20).filter(|_| pacer.slot().is_ok()).count();
    assert_eq!((more, pacer.queued()), (7, 10));
}

#[test]
fn odd_rates_come_out_even_over_long_runs() {
    for (quota, jobs) in
        [(Quota::per_second(700), 2_100), (Quota::per(3, Duration::from_secs(7)), 900)]
    {
        let hand = ManualClock::new();
        let pacer = builder(&hand, quota, 10).start().unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..jobs {
            let (hand_, ran) = (hand.clone(), Arc::clone(&ran));
            let job = move || ran.lock().unwrap().push(hand_.now().as_nanos());
            if let Err(rejected) = pacer.run(job) {
                hand.advance(rejected.overflow().retry_after().unwrap());
                pacer.run(rejected.into_job()).unwrap();
            }
        }
        hand.advance(pacer.max_delay());
        let (count, period) = (u128::from(quota.count()), quota.period().as_nanos());
        let exact = |k: usize| u64::try_from((k as u128 * period).div_ceil(count)).unwrap();
        let expected: Vec<_> = (0..jobs).map(exact).collect();
        assert_eq!(*ran.lock().unwrap(), expected, "{quota}");
    }
}

#[test]
fn a_slow_job_delays_the_next_by_its_choice() {
    // The job at 100 ms takes until 350 ms: the test moves the clock while it runs.
    for (late, expected) in [
        (Late::KeepPace, [(0, 0), (350, 2), (350, 3), (400, 4), (500, 5)]),
        (Late::KeepGap, [(0, 0), (350, 2), (450, 3), (550, 4), (650, 5)]),
    ] {
        let hand = ManualClock::new();
        let log = Log { hand: hand.clone(), ran: Arc::default() };
        let pacer = builder(&hand, Quota::per_second(10), 10).late(late).start().unwrap();
        pacer.run(log.job(0)).unwrap();
        let slow = hand.clone();
        pacer.run(move || slow.set(ms(350))).unwrap();
        for name in 2..6 {
            pacer.run(log.job(name)).unwrap();
        }
        hand.set(ms(100));
        hand.set(ms(350));
        hand.set(ms(2_000));
        assert_eq!(log.take(), expected, "{late:?}");
    }
}

#[test]
fn prints_what_matters() {
    let (pacer, _hand, log) = ten(10);
    pacer.run(log.job(0)).unwrap();
    pacer.run(log.job(1)).unwrap();
    assert_eq!(
        format!("{pacer:?}"),
        "Pacer { rate: 10/s, capacity: 10, queued: 1, due: Some(Tick(100000000)), .. }"
    );
}
