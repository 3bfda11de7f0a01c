//! A rate, and then a place in flight: all or nothing.

use std::time::Duration;
use tollgate::{
    Algorithm, Concurrency, Entrance, Limiter, ManualClock, NotAdmitted, Quota, Refused, Tick,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

struct Scene {
    hand: ManualClock,
    rate: Limiter,
    room: Concurrency,
    door: Entrance,
}

/// Ten in a second, `burst` of them at once; `limit` in flight, and `waiting` in the queue.
fn scene(burst: u64, limit: u64, waiting: u64) -> Scene {
    let hand = ManualClock::new();
    let quota = Quota::per_second(10).burst(burst);
    let rate = Limiter::builder(quota).clock(hand.clock()).build().unwrap();
    let room = Concurrency::builder(limit).max_waiting(waiting).build().unwrap();
    let door = Entrance::new(&rate, &room);
    Scene { hand, rate, room, door }
}

#[test]
fn a_call_passes_both_or_takes_nothing() {
    let Scene { rate, room, door, .. } = scene(5, 2, 0);
    let first = door.try_acquire().unwrap();
    let second = door.try_acquire_n(2).unwrap();
    assert_eq!((rate.available(), room.in_flight()), (2, 2));
    // The room refuses: the rate is as before.
    let refused = door.try_acquire_n(2).unwrap_err();
    assert!(refused.is_room() && !refused.is_rate());
    assert_eq!((rate.available(), room.in_flight()), (2, 2));
    assert_eq!(refused.to_string(), "2 of 2 permits are in flight; retry cost 1 after a release");
    // The rate refuses: the room is not asked.
    drop((first, second));
    let refused = door.try_acquire_n(3).unwrap_err();
    assert!(matches!(refused, NotAdmitted::Rate(Refused::TooLong { .. })), "{refused:?}");
    assert_eq!((rate.available(), room.in_flight()), (2, 0));
    let refused = door.try_acquire_n(6).unwrap_err();
    assert!(matches!(refused, NotAdmitted::Rate(Refused::Never(_))), "{refused:?}");
    let clone = door.clone();
    let _permit = clone.try_acquire_n(2).unwrap();
    assert_eq!((rate.available(), room.in_flight()), (0, 1));
}

#[test]
fn other_algorithms_admit_what_passes_now() {
    let hand = ManualClock::new();
    let rate = Limiter::builder(Quota::per_second(2))
        .algorithm(Algorithm::FixedWindow)
        .clock(hand.clock())
        .build()
        .unwrap();
    let room = Concurrency::new(1).unwrap();
    let door = Entrance::new(&rate, &room);
    let permit = door.try_acquire().unwrap();
    assert!(door.try_acquire().unwrap_err().is_room());
    assert_eq!(rate.available(), 1);
    drop(permit);
    drop(door.acquire_blocking(1, ms(500)).unwrap());
    let refused = door.acquire_blocking(1, ms(500)).unwrap_err();
    assert!(matches!(refused, NotAdmitted::Rate(Refused::OnlyNow(_))), "{refused:?}");
}

#[test]
fn a_thread_waits_for_the_rate_and_then_for_a_place() {
    let Scene { hand, rate, room, door } = scene(1, 1, 1);
    let first = door.acquire_blocking(1, ms(0)).unwrap();
    let refused = door.acquire_blocking(1, ms(99)).unwrap_err();
    assert!(refused.is_rate(), "{refused}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| door.acquire_blocking(1, ms(100)));
        // It sleeps until its time has come, by a timer of the hand.
        while hand.next_timer().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(hand.next_timer(), Some(Tick::from_millis(100)));
        assert_eq!(room.waiting(), 0);
        hand.advance(ms(100));
        while room.waiting() == 0 {
            std::thread::yield_now();
        }
        drop(first);
        drop(waits.join().unwrap().unwrap());
    });
    assert_eq!((rate.available(), room.in_flight()), (0, 0));
    hand.advance(ms(100));
    assert_eq!(rate.available(), 1);
}

#[test]
fn a_thread_waits_on_a_real_clock() {
    let rate = Limiter::new(Quota::per_second(500).burst(1)).unwrap();
    let room = Concurrency::new(1).unwrap();
    let door = Entrance::new(&rate, &room);
    let began = rate.now();
    for _ in 0..5 {
        drop(door.acquire_blocking(1, ms(10_000)).unwrap());
    }
    assert!(rate.now().since(began) >= ms(8), "four waits of 2 ms");
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };
    use tollgate::Enter;

    fn poll(enter: Pin<&mut Enter>) -> Poll<Result<tollgate::Permit, NotAdmitted>> {
        enter.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_future_dropped_at_any_point_gives_everything_back() {
        // Where it is dropped: before the first poll, while it waits for the rate, when that has
        // come, while it waits for a place, when there is one for it, and once it is in.
        for stage in 0..6 {
            let Scene { hand, rate, room, door } = scene(2, 1, 1);
            let holder = door.try_acquire().unwrap();
            let _spent = rate.try_acquire();
            assert_eq!(rate.available(), 0);
            let mut enter = Box::pin(door.acquire(2, ms(1_000)));
            if stage >= 1 {
                assert!(poll(enter.as_mut()).is_pending());
                assert_eq!(rate.peek_n(1).retry_at(), Some(Tick::from_millis(300)));
            }
            if stage >= 2 {
                hand.advance(ms(200));
            }
            if stage >= 3 {
                assert!(poll(enter.as_mut()).is_pending());
                assert_eq!(room.waiting(), 1);
            }
            let mut holder = Some(holder);
            if stage >= 4 {
                drop(holder.take());
                assert_eq!((room.in_flight(), room.waiting()), (1, 0));
            }
            if stage >= 5 {
                let Poll::Ready(Ok(permit)) = poll(enter.as_mut()) else { panic!("it is in") };
                drop(enter);
                assert_eq!((rate.available(), room.in_flight()), (0, 1));
                drop(permit);
                continue;
            }
            drop(enter);
            let held = u64::from(holder.is_some());
            assert_eq!((room.in_flight(), room.waiting()), (held, 0), "stage {stage}");
            // As if it had never been there.
            let expected = if stage >= 2 { 2 } else { 0 };
            assert_eq!(rate.available(), expected, "stage {stage}");
            if stage < 2 {
                assert_eq!(rate.peek_n(1).retry_at(), Some(Tick::from_millis(100)), "{stage}");
            }
        }
    }

    #[test]
    fn no_place_in_the_queue_gives_the_rate_back() {
        let Scene { hand, rate, door, .. } = scene(2, 1, 0);
        let _holder = door.try_acquire().unwrap();
        let mut enter = pin!(door.acquire(2, ms(1_000)));
        assert!(poll(enter.as_mut()).is_pending());
        hand.advance(ms(100));
        let Poll::Ready(Err(refused)) = poll(enter.as_mut()) else { panic!("there is no queue") };
        assert!(refused.is_room(), "{refused}");
        assert_eq!(rate.available(), 2);
    }

    #[test]
    fn outside_a_runtime_it_says_so_and_gives_back() {
        let rate = Limiter::new(Quota::one_every(Duration::from_secs(3_600)).burst(1)).unwrap();
        let room = Concurrency::new(1).unwrap();
        let door = Entrance::new(&rate, &room);
        drop(door.try_acquire().unwrap());
        let retry_at = rate.peek().retry_at();
        let mut enter = pin!(door.acquire(1, Duration::MAX));
        let Poll::Ready(Err(refused)) = poll(enter.as_mut()) else { panic!("no runtime") };
        assert_eq!(refused, NotAdmitted::NoRuntime(tollgate::NoRuntime));
        assert_eq!(rate.peek().retry_at(), retry_at);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_enter_at_the_rate_and_never_more_than_fit() {
        let rate = Limiter::builder(Quota::per_second(10).burst(1))
            .clock(tollgate::Clock::tokio())
            .build()
            .unwrap();
        let room = Concurrency::builder(2).max_waiting(100).build().unwrap();
        let door = Entrance::new(&rate, &room);
        let began = rate.now();
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (door, room, rate) = (door.clone(), room.clone(), rate.clone());
                tokio::spawn(async move {
                    let permit = door.acquire(1, ms(10_000)).await.unwrap();
                    let at = rate.now();
                    assert!(room.in_flight() <= 2);
                    // Each holds its place for a quarter of a second, so places are the limit.
                    let _held = tokio::time::timeout(ms(250), std::future::pending::<()>()).await;
                    drop(permit);
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
        assert_eq!((room.in_flight(), room.waiting()), (0, 0));
    }
}
