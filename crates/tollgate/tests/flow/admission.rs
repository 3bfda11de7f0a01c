//! A rate, a breaker and a concurrency limit as one decision: all or nothing, within one deadline.

use std::time::Duration;
use tollgate::{
    Admission, AdmissionError, Algorithm, Breaker, BreakerState, CallOutcome, Concurrency, Limiter,
    ManualClock, Quota, Refused, Tick, Trip,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

struct Scene {
    hand: ManualClock,
    rate: Limiter,
    breaker: Breaker,
    limit: Concurrency,
    admission: Admission,
}

/// Ten in a second, `burst` of them at once; `limit` in flight, and `waiting` in the queue. One
/// failure opens the breaker for a second, then one trial decides.
fn scene(burst: u64, limit: u64, waiting: u64) -> Scene {
    let hand = ManualClock::new();
    let quota = Quota::per_second(10).burst(burst);
    let rate = Limiter::builder(quota).clock(hand.clock()).build().unwrap();
    let breaker = Breaker::builder()
        .trip(Trip::consecutive(1))
        .open_for(ms(1_000))
        .jitter(0)
        .trials(1)
        .clock(hand.clock())
        .build()
        .unwrap();
    let limit = Concurrency::builder(limit).max_waiting(waiting).clock(hand.clock());
    let limit = limit.build().unwrap();
    let admission = Admission::new().rate(&rate).breaker(&breaker).concurrency(&limit);
    Scene { hand, rate, breaker, limit, admission }
}

#[test]
fn a_call_passes_every_part_or_takes_nothing() {
    let Scene { rate, limit, admission, breaker, .. } = scene(5, 2, 0);
    let first = admission.try_acquire().unwrap();
    let second = admission.try_acquire_n(2).unwrap();
    assert!(first.holds_slot() && !first.is_trial());
    assert_eq!((rate.available(), limit.in_flight()), (2, 2));
    // The concurrency limit refuses: the rate is as before.
    let refused = admission.try_acquire_n(2).unwrap_err();
    assert_eq!((refused.part(), refused.retry_at()), ("concurrency", None));
    assert_eq!(refused.to_string(), "2 of 2 permits are in flight; retry cost 1 after a release");
    assert_eq!((rate.available(), limit.in_flight()), (2, 2));
    // The rate refuses: no slot is taken.
    drop((first, second));
    let refused = admission.try_acquire_n(3).unwrap_err();
    assert!(matches!(refused, AdmissionError::Rate(Refused::TooLong { .. })), "{refused:?}");
    assert_eq!(refused.retry_after(Tick::ZERO), Some(ms(100)));
    assert_eq!((rate.available(), limit.in_flight()), (2, 0));
    let never = admission.try_acquire_n(6).unwrap_err();
    assert!(matches!(never, AdmissionError::Rate(Refused::Never(_))), "{never:?}");
    assert_eq!(never.retry_at(), None);
    let _permit = admission.clone().try_acquire_n(2).unwrap();
    assert_eq!((rate.available(), limit.in_flight()), (0, 1));
    assert_eq!(breaker.counts().ended, 0, "dropped permits count nothing");
}

#[test]
fn every_part_is_optional() {
    let Scene { rate, breaker, limit, .. } = scene(5, 2, 0);
    let empty = Admission::new();
    assert!(!empty.try_acquire().unwrap().holds_slot());
    assert!(empty.acquire(Duration::ZERO).block().is_ok());
    drop(Admission::new().rate(&rate).acquire(ms(0)).block().unwrap());
    assert_eq!(rate.available(), 4);
    Admission::new().breaker(&breaker).try_acquire().unwrap().end(CallOutcome::Success);
    assert_eq!(breaker.counts().ended, 1);
    let permit = Admission::new().concurrency(&limit).acquire(ms(0)).block().unwrap();
    assert_eq!(limit.in_flight(), 1);
    permit.end(CallOutcome::Failure);
    assert_eq!((limit.in_flight(), breaker.counts().failed), (0, 0));
}

#[test]
fn an_open_breaker_refuses_and_leaves_the_limiter_as_it_was() {
    let Scene { hand, rate, breaker, limit, admission } = scene(5, 2, 4);
    admission.try_acquire().unwrap().end(CallOutcome::Failure);
    let level = (rate.snapshot(), rate.peek());
    for _ in 0..100 {
        let refused = admission.try_acquire().unwrap_err();
        assert_eq!(
            (refused.part(), refused.retry_at()),
            ("breaker", Some(Tick::from_millis(1_000)))
        );
        assert_eq!(refused.to_string(), breaker.peek().unwrap_err().to_string());
        assert_eq!(admission.acquire(ms(5_000)).block().unwrap_err(), refused, "it does not wait");
    }
    assert_eq!((rate.snapshot(), rate.peek()), level);
    assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
    assert_eq!(breaker.counts().refused, 200);
    // At the time that the refusal named, one call is the trial; others are refused.
    hand.set(Tick::from_millis(1_000));
    let trial = admission.try_acquire().unwrap();
    assert!(trial.is_trial());
    assert_eq!(admission.try_acquire().unwrap_err().part(), "breaker");
    assert_eq!(rate.available(), 4);
    // A trial that is dropped counts nothing, and its place is free again.
    drop(trial);
    let trial = admission.try_acquire().unwrap();
    assert!(trial.is_trial());
    trial.end(CallOutcome::Success);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn the_time_that_a_dependency_names_opens_the_breaker() {
    let Scene { rate, admission, .. } = scene(5, 2, 0);
    let until = Tick::from_millis(7_000);
    admission.try_acquire().unwrap().end_until(CallOutcome::Overload, until);
    assert_eq!(admission.try_acquire().unwrap_err().retry_at(), Some(until));
    assert_eq!(rate.available(), 4);
}

#[test]
fn a_call_without_a_rate_or_a_slot_reserves_no_trial() {
    let Scene { hand, breaker, limit, admission, .. } = scene(1, 1, 0);
    admission.try_acquire().unwrap().end(CallOutcome::Failure);
    hand.set(Tick::from_millis(1_000));
    let slot = limit.try_acquire().unwrap();
    assert_eq!(admission.try_acquire().unwrap_err().part(), "concurrency");
    drop(slot);
    assert_eq!(admission.try_acquire_n(2).unwrap_err().part(), "rate");
    assert_eq!(breaker.counts().trials, 0);
    assert!(admission.try_acquire().unwrap().is_trial());
}

#[test]
fn other_algorithms_admit_what_passes_now() {
    let rate = Limiter::builder(Quota::per_second(2))
        .algorithm(Algorithm::FixedWindow)
        .clock(ManualClock::new().clock())
        .build()
        .unwrap();
    let admission = Admission::new().rate(&rate).concurrency(&Concurrency::new(1).unwrap());
    let permit = admission.try_acquire().unwrap();
    assert_eq!(admission.try_acquire().unwrap_err().part(), "concurrency");
    assert_eq!(rate.available(), 1);
    drop(permit);
    drop(admission.acquire(ms(500)).block().unwrap());
    let refused = admission.acquire(ms(500)).block().unwrap_err();
    assert!(matches!(refused, AdmissionError::Rate(Refused::OnlyNow(_))), "{refused:?}");
}

/// Runs `call` on a thread, and `meanwhile` when it waits until `due` by a timer of the clock.
fn blocked<R: Send>(
    hand: &ManualClock,
    call: impl FnOnce() -> R + Send,
    due: &[u64],
    meanwhile: impl FnOnce(),
) -> R {
    std::thread::scope(|scope| {
        let waits = scope.spawn(call);
        for due in due {
            let due = Tick::from_millis(*due);
            while hand.next_timer() != Some(due) {
                std::thread::yield_now();
            }
            if due == Tick::from_millis(100) {
                hand.set(due);
            }
        }
        meanwhile();
        waits.join().unwrap()
    })
}

#[test]
fn a_thread_waits_for_the_rate_and_then_for_a_slot() {
    let Scene { hand, rate, limit, admission, .. } = scene(1, 1, 1);
    let first = admission.acquire(ms(0)).block().unwrap();
    let refused = admission.acquire(ms(99)).block().unwrap_err();
    assert_eq!(refused.part(), "rate", "{refused}");
    // The rate admits it at 100 ms; from then on it waits for a slot until 150 ms.
    let call = || admission.acquire(ms(150)).block();
    let permit = blocked(&hand, call, &[100, 150], || drop(first)).unwrap();
    assert_eq!((rate.available(), limit.in_flight()), (0, 1));
    drop(permit);
}

#[test]
fn one_deadline_bounds_both_waits_of_a_thread() {
    let Scene { hand, rate, limit, admission, .. } = scene(1, 1, 1);
    let _holder = admission.acquire(ms(0)).block().unwrap();
    let call = || admission.acquire(ms(150)).block();
    let refused = blocked(&hand, call, &[100, 150], || hand.set(Tick::from_millis(150)));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, AdmissionError::Concurrency(full) if full.is_timed_out()));
    assert_eq!((limit.in_flight(), limit.waiting()), (1, 0));
    // The permit of the rate went back, unless it had refilled already.
    assert_eq!(rate.available(), 1);
}

#[test]
fn a_thread_that_waited_meets_the_breaker_as_it_is_now() {
    let Scene { hand, rate, limit, admission, breaker, .. } = scene(1, 1, 1);
    let first = admission.acquire(ms(0)).block().unwrap();
    let call = || admission.acquire(ms(150)).block();
    let refused = blocked(&hand, call, &[100, 150], || first.end(CallOutcome::Failure));
    assert_eq!(refused.unwrap_err().part(), "breaker");
    assert_eq!((limit.in_flight(), limit.waiting(), rate.available()), (0, 0, 1));
    assert_eq!(breaker.counts().refused, 1);
}

#[test]
fn a_thread_waits_on_a_real_clock() {
    let rate = Limiter::new(Quota::per_second(500).burst(1)).unwrap();
    let limit = Concurrency::builder(1).max_waiting(1).build().unwrap();
    let admission = Admission::new().rate(&rate).concurrency(&limit);
    let began = rate.now();
    for _ in 0..5 {
        drop(admission.acquire(ms(10_000)).block().unwrap());
    }
    assert!(rate.now().since(began) >= ms(8), "four waits of 2 ms");
    let _holder = limit.try_acquire().unwrap();
    let refused = admission.acquire(ms(5)).block().unwrap_err();
    assert_eq!(refused.part(), "concurrency", "{refused}");
}

#[test]
fn the_types_are_shared_between_threads() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<Admission>();
    shared::<tollgate::Admit>();
    shared::<tollgate::AdmissionPermit>();
    shared::<AdmissionError>();
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };
    use tollgate::{AdmissionPermit, Admit, Clock, Priority};

    fn poll(admit: Pin<&mut Admit>) -> Poll<Result<AdmissionPermit, AdmissionError>> {
        admit.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_future_dropped_at_any_point_gives_everything_back() {
        // The stage of the drop: before the first poll, while it waits for the rate, when the rate
        // has admitted it, while it waits for a slot, when there is one for it, and once it is
        // admitted.
        for stage in 0..6 {
            let Scene { hand, rate, limit, admission, breaker, .. } = scene(2, 1, 1);
            let holder = admission.try_acquire().unwrap();
            let _spent = rate.try_acquire();
            assert_eq!(rate.available(), 0);
            let mut admit = Box::pin(admission.acquire_n(2, ms(1_000)));
            if stage >= 1 {
                assert!(poll(admit.as_mut()).is_pending());
                assert_eq!(rate.peek_n(1).retry_at(), Some(Tick::from_millis(300)));
            }
            if stage >= 2 {
                hand.advance(ms(200));
            }
            if stage >= 3 {
                assert!(poll(admit.as_mut()).is_pending());
                assert_eq!(limit.waiting(), 1);
            }
            let mut holder = Some(holder);
            if stage >= 4 {
                drop(holder.take());
                assert_eq!((limit.in_flight(), limit.waiting()), (1, 0));
            }
            if stage >= 5 {
                let Poll::Ready(Ok(permit)) = poll(admit.as_mut()) else { panic!("admitted") };
                drop(admit);
                assert_eq!((rate.available(), limit.in_flight()), (0, 1));
                permit.end(CallOutcome::Success);
                assert_eq!((limit.in_flight(), breaker.counts().ended), (0, 1));
                continue;
            }
            drop(admit);
            let held = u64::from(holder.is_some());
            assert_eq!((limit.in_flight(), limit.waiting()), (held, 0), "stage {stage}");
            // As if the call had never been made.
            let expected = if stage >= 2 { 2 } else { 0 };
            assert_eq!(rate.available(), expected, "stage {stage}");
            if stage < 2 {
                assert_eq!(rate.peek_n(1).retry_at(), Some(Tick::from_millis(100)), "{stage}");
            }
        }
    }

    #[test]
    fn one_deadline_bounds_both_waits_of_a_task() {
        let Scene { hand, rate, limit, admission, .. } = scene(1, 1, 1);
        let _holder = admission.try_acquire().unwrap();
        let mut admit = pin!(admission.acquire(ms(150)));
        assert!(poll(admit.as_mut()).is_pending());
        hand.advance(ms(100));
        assert!(poll(admit.as_mut()).is_pending());
        hand.advance(Duration::from_nanos(49_999_999));
        assert!(poll(admit.as_mut()).is_pending());
        hand.advance(Duration::from_nanos(1));
        let Poll::Ready(Err(AdmissionError::Concurrency(full))) = poll(admit.as_mut()) else {
            panic!("the deadline is at 150 ms")
        };
        assert!(full.is_timed_out(), "{full}");
        assert_eq!((limit.in_flight(), limit.waiting(), rate.available()), (1, 0, 1));
    }

    #[test]
    fn no_place_in_the_queue_gives_the_rate_back() {
        let Scene { hand, rate, admission, .. } = scene(2, 1, 0);
        let _holder = admission.try_acquire().unwrap();
        let mut admit = pin!(admission.acquire_n(2, ms(1_000)));
        assert!(poll(admit.as_mut()).is_pending());
        hand.advance(ms(100));
        let Poll::Ready(Err(refused)) = poll(admit.as_mut()) else { panic!("there is no queue") };
        assert_eq!(refused.part(), "concurrency", "{refused}");
        assert_eq!(rate.available(), 2);
    }

    #[test]
    fn urgent_calls_get_the_slot_first() {
        let Scene { limit, admission, .. } = scene(5, 1, 2);
        let holder = admission.try_acquire().unwrap();
        let mut batch = pin!(admission.acquire(ms(50)).priority(Priority::BACKGROUND));
        let mut urgent = pin!(admission.acquire(ms(50)).priority(Priority::CRITICAL));
        assert!(poll(batch.as_mut()).is_pending() && poll(urgent.as_mut()).is_pending());
        drop(holder);
        assert!(poll(batch.as_mut()).is_pending());
        assert!(matches!(poll(urgent.as_mut()), Poll::Ready(Ok(_))));
        assert_eq!(limit.waiting(), 0, "the urgent one is done, the other has the slot");
    }

    #[test]
    fn outside_a_runtime_it_says_so_and_gives_back() {
        let rate = Limiter::new(Quota::one_every(Duration::from_secs(3_600)).burst(1)).unwrap();
        let admission = Admission::new().rate(&rate);
        drop(admission.try_acquire().unwrap());
        let retry_at = rate.peek().retry_at();
        let mut admit = pin!(admission.acquire(Duration::MAX));
        let Poll::Ready(Err(refused)) = poll(admit.as_mut()) else { panic!("no runtime") };
        assert!(matches!(refused, AdmissionError::Rate(Refused::NoRuntime(_))), "{refused}");
        assert_eq!(rate.peek().retry_at(), retry_at);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_admitted_at_the_rate_and_never_more_than_fit() {
        let clock = Clock::tokio();
        let quota = Quota::per_second(10).burst(1);
        let rate = Limiter::builder(quota).clock(clock.clone()).build().unwrap();
        let limit = Concurrency::builder(2).max_waiting(100).clock(clock).build().unwrap();
        let admission = Admission::new().rate(&rate).concurrency(&limit);
        let began = rate.now();
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (admission, limit, rate) = (admission.clone(), limit.clone(), rate.clone());
                tokio::spawn(async move {
                    let permit = admission.acquire(ms(10_000)).await.unwrap();
                    let at = rate.now();
                    assert!(limit.in_flight() <= 2);
                    // Each holds its slot for a quarter of a second, so slots are the bottleneck.
                    let _held = tokio::time::timeout(ms(250), std::future::pending::<()>()).await;
                    permit.end(CallOutcome::Success);
                    at
                })
            })
            .collect();
        let mut entered = Vec::new();
        for task in tasks {
            entered.push(task.await.unwrap());
        }
        entered.sort_unstable();
        for pair in entered.windows(3) {
            assert!(pair[2].since(pair[0]) >= ms(250), "three at once: {pair:?}");
        }
        let all = entered[19].since(began);
        assert!((ms(2_250)..ms(2_500)).contains(&all), "9 rounds of two, 250 ms each: {all:?}");
        assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
    }
}
