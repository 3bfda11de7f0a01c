//! Waiting for a limiter: which calls pass when, and which are refused at once.
#![cfg(feature = "tokio")]

use crate::queued::{poll, queued, times};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tollgate::{
    Algorithm, Bypass, Clock, Inherit, Limiter, LimiterBuilder, Limits, ManualClock, Quota,
    Refused, Tick,
};

const MS: Duration = Duration::from_millis(1);

/// One permit each millisecond, `burst` at most, and full.
fn built(
    burst: u64,
    with: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
) -> (Limiter, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder(Quota::per_second(1000).burst(burst)).clock(clock);
    (with(builder).build().unwrap(), hand)
}

fn limiter(burst: u64) -> (Limiter, ManualClock) {
    built(burst, |builder| builder)
}

#[test]
fn first_come_first_served_at_the_exact_time() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..4).map(|_| queued(limiter.acquire())).collect();
    assert_eq!(limiter.waiting(), 4);
    assert_eq!(hand.timers(), 1, "one timer, for the head");
    assert_eq!(times(&hand, &mut waits), [1, 2, 3, 4]);
    assert_eq!((limiter.waiting(), hand.timers()), (0, 0));
}

#[test]
fn what_is_free_passes_at_once() {
    let (limiter, _hand) = limiter(3);
    for cost in [2, 0, 1, 0] {
        assert!(poll(&mut Box::pin(limiter.acquire_n(cost))).is_ready());
    }
    assert_eq!(limiter.available(), 0);
}

#[test]
fn a_call_for_no_permit_is_counted_as_that_of_any_other_verb() {
    let (limiter, _hand) = built(3, LimiterBuilder::counted);
    assert!(poll(&mut Box::pin(limiter.acquire_n(0))).is_ready());
    let _ = limiter.try_acquire_n(0);
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.allowed_cost), (2, 0));
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let (limiter, hand) = limiter(10);
    let _used = limiter.try_acquire_n(5);
    let mut waits = vec![queued(limiter.acquire_n(10))];
    waits.extend((0..3).map(|_| queued(limiter.acquire())));
    // Five permits are free, but they are saved for the head.
    assert!(limiter.try_acquire().is_denied());
    assert_eq!(limiter.available(), 0);
    assert_eq!(times(&hand, &mut waits), [5, 6, 7, 8]);
}

#[test]
fn a_denial_says_when_it_would_pass_behind_the_queue() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..5).map(|_| queued(limiter.acquire())).collect();
    let denied = limiter.try_acquire();
    assert_eq!(denied.retry_at(), Some(Tick::from_millis(6)));
    hand.set(Tick::from_nanos(5_999_999));
    assert!(limiter.try_acquire().is_denied());
    hand.set(Tick::from_millis(6));
    assert!(limiter.try_acquire().is_allowed());
    assert!(waits.iter_mut().all(|wait| poll(wait).is_ready()));
}

#[test]
fn newest_first_serves_the_last_comer() {
    let (limiter, hand) = built(1, LimiterBuilder::newest_first);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..3).map(|_| queued(limiter.acquire())).collect();
    hand.advance(MS);
    assert_eq!(limiter.waiting(), 2);
    waits.push(queued(limiter.acquire()));
    assert_eq!(times(&hand, &mut waits), [4, 3, 1, 2]);
}

#[test]
fn newest_first_with_mixed_costs_wastes_nothing() {
    let (limiter, hand) = built(10, LimiterBuilder::newest_first);
    let _all = limiter.try_acquire_n(10);
    let mut waits = vec![queued(limiter.acquire_n(7)), queued(limiter.acquire_n(2))];
    hand.advance(MS);
    waits.push(queued(limiter.acquire_n(4)));
    // 4 at 4 ms, then 2 at 6 ms, then 7 at 13 ms: every permit is used as it comes.
    assert_eq!(times(&hand, &mut waits), [13, 6, 4]);
}

#[test]
fn what_does_not_fit_the_deadline_is_refused_at_once() {
    let (limiter, _hand) = limiter(1);
    let _first = limiter.try_acquire();
    let _two = [queued(limiter.acquire()), queued(limiter.acquire())];
    for (wait, fits) in [(3, true), (2, false), (0, false)] {
        let mut asked = Box::pin(limiter.acquire().within(wait * MS));
        match poll(&mut asked) {
            Poll::Pending => assert!(fits, "{wait}"),
            Poll::Ready(Err(Refused::TooLong { decision, max_wait })) => {
                assert!(!fits, "{wait}");
                assert_eq!(
                    (decision.retry_at(), max_wait),
                    (Some(Tick::from_millis(3)), wait * MS)
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let mut asked = Box::pin(limiter.acquire().until(Tick::from_micros(2_999)));
    assert!(matches!(poll(&mut asked), Poll::Ready(Err(Refused::TooLong { .. }))));
    assert_eq!(limiter.waiting(), 2, "whoever is refused leaves nothing");
}

#[test]
fn more_than_the_burst_never_passes_and_says_so_at_once() {
    let (limiter, _hand) = limiter(3);
    let refused = poll(&mut Box::pin(limiter.acquire_n(4)));
    assert!(matches!(refused, Poll::Ready(Err(Refused::Never(_)))));
    let once = Limiter::new(Quota::once(1)).unwrap();
    assert!(once.acquire().block().is_ok());
    assert!(matches!(once.acquire().block(), Err(Refused::Never(_))));
}

#[test]
fn the_queue_is_bounded() {
    let (limiter, hand) = built(1, |builder| builder.max_waiting(2));
    let _first = limiter.try_acquire();
    let mut two = [queued(limiter.acquire()), queued(limiter.acquire())];
    let mut third = Box::pin(limiter.acquire());
    let Poll::Ready(Err(refused)) = poll(&mut third) else { panic!("there is no room") };
    assert!(matches!(refused, Refused::QueueFull { max_waiting: 2, .. }));
    assert_eq!(
        refused.to_string(),
        "cost 1 has to wait, but 2 are already waiting, the maximum; try again later, or raise \
         `max_waiting`"
    );
    hand.advance(MS);
    assert!(poll(&mut two[0]).is_ready());
    assert!(poll(&mut third).is_pending(), "a place is free again");
    let (none, _hand) = built(1, |builder| builder.max_waiting(0));
    assert!(none.acquire().block().is_ok());
    assert!(matches!(none.acquire().block(), Err(Refused::QueueFull { .. })));
}

#[test]
fn a_reservation_comes_behind_the_queue_and_its_cancel_moves_up_whoever_is_behind_it() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let before = queued(limiter.acquire());
    let reservation = limiter.reserve(1).unwrap();
    assert_eq!(reservation.act_at(), Tick::from_millis(2));
    let mut waits = vec![before, queued(limiter.acquire()), queued(limiter.acquire())];
    assert_eq!(reservation.cancel(), 1);
    assert_eq!(times(&hand, &mut waits), [1, 2, 3]);
}

#[test]
fn a_reservation_that_stays_keeps_its_time() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits = vec![queued(limiter.acquire()), queued(limiter.acquire())];
    let reservation = limiter.reserve(1).unwrap();
    waits.push(queued(limiter.acquire()));
    assert_eq!(reservation.act_at(), Tick::from_millis(3));
    // The first is dropped: the others move up, but not into the time of the reservation.
    drop(waits.remove(0));
    assert_eq!(times(&hand, &mut waits), [1, 2]);
    reservation.keep();
}

#[test]
fn a_refund_moves_everybody_up_but_gives_back_only_what_was_spent() {
    let (limiter, hand) = limiter(4);
    let _all = limiter.try_acquire_n(4);
    let mut waits: Vec<_> = (0..6).map(|_| queued(limiter.acquire_n(2))).collect();
    assert_eq!(limiter.refund(100), 4, "what is booked for those who wait is not spent");
    assert_eq!(times(&hand, &mut waits), [0, 0, 2, 4, 6, 8]);
}

#[test]
fn others_may_be_let_ahead() {
    let (limiter, hand) = limiter(10);
    let _used = limiter.try_acquire_n(5);
    let mut all = vec![queued(limiter.acquire_n(10))];
    let mut hasty = queued(limiter.acquire_n(1).within(6 * MS));
    assert!(limiter.try_overtake_n(3).is_allowed());
    assert!(limiter.try_overtake_n(3).is_denied());
    assert_eq!(times(&hand, &mut all), [8]);
    let late = poll(&mut hasty);
    assert!(matches!(late, Poll::Ready(Err(Refused::Late(_)))), "{late:?}");
}

#[test]
fn a_new_quota_books_everybody_anew() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..3).map(|_| queued(limiter.acquire())).collect();
    let mut hasty = queued(limiter.acquire().within(4 * MS));
    limiter.set_quota(Quota::per_second(500).burst(1), Inherit::AsIs).unwrap();
    let refused = poll(&mut hasty);
    assert!(matches!(refused, Poll::Ready(Err(Refused::TooLong { .. }))), "{refused:?}");
    assert_eq!(times(&hand, &mut waits), [2, 4, 6]);

    let (wide, hand) = self::limiter(10);
    let _all = wide.try_acquire_n(10);
    let mut waits = vec![queued(wide.acquire_n(2))];
    let mut large = queued(wide.acquire_n(8));
    wide.set_quota(Quota::per_second(1000).burst(5), Inherit::AsIs).unwrap();
    assert!(matches!(poll(&mut large), Poll::Ready(Err(Refused::Never(_)))));
    times(&hand, &mut waits);
    assert!(wide.set_quota(Quota::per_second(0).burst(0), Inherit::AsIs).is_ok());
}

#[test]
fn a_quota_that_makes_no_sense_leaves_the_queue_as_it_is() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..3).map(|_| queued(limiter.acquire())).collect();
    assert!(limiter.set_quota(Quota::per(1, Duration::ZERO), Inherit::AsIs).is_err());
    assert_eq!(times(&hand, &mut waits), [1, 2, 3]);
}

#[test]
fn a_reset_starts_anew_for_those_who_wait_too() {
    let (limiter, hand) = limiter(2);
    let _all = limiter.try_acquire_n(2);
    let mut waits: Vec<_> = (0..4).map(|_| queued(limiter.acquire())).collect();
    limiter.reset();
    assert_eq!(times(&hand, &mut waits), [0, 0, 1, 2]);
}

#[test]
fn bypass_and_no_limit_let_everybody_pass_and_charge_nobody() {
    for unlimited in [false, true] {
        let (limiter, hand) = limiter(2);
        let _all = limiter.try_acquire_n(2);
        let mut waits: Vec<_> = (0..4).map(|_| queued(limiter.acquire())).collect();
        match unlimited {
            true => limiter.set_quota(Quota::unlimited(), Inherit::AsIs).unwrap(),
            false => limiter.bypass(Bypass::On),
        }
        assert!(waits.iter_mut().all(|wait| poll(wait).is_ready()));
        limiter.bypass(Bypass::Off);
        if !unlimited {
            hand.advance(2 * MS);
            assert_eq!(limiter.available(), 2);
        }
    }
}

#[test]
fn several_limits_in_one_decision_do_not_overtake_either() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        let (clock, _hand) = Clock::manual();
        let build = |algorithm| {
            let quota = Quota::per_second(10);
            Limiter::builder(quota).clock(clock.clone()).algorithm(algorithm).build().unwrap()
        };
        let (waited, other) = (build(algorithm), build(Algorithm::Gcra));
        let _some = waited.try_acquire_n(5);
        let _wait = queued(waited.acquire_n(10));
        let charges = [waited.charge(1), other.charge(1)];
        let decision = Limits::new(&charges).unwrap().try_acquire();
        assert!(decision.is_denied() && decision.is_refused_by(0), "{algorithm}");
        assert_eq!(other.available(), 10);
    }
}

#[test]
fn a_window_is_waited_for_in_turn() {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder(Quota::per(3, 10 * MS)).algorithm(Algorithm::FixedWindow);
    let limiter = builder.clock(clock).build().unwrap();
    let _two = limiter.try_acquire_n(2);
    let mut waits = vec![queued(limiter.acquire_n(3))];
    // One is free in this window, but the head needs three.
    let denied = limiter.try_acquire();
    assert_eq!((denied.is_denied(), denied.retry_at()), (true, Some(Tick::from_millis(10))));
    assert_eq!(limiter.peek().retry_at(), Some(Tick::from_millis(10)));
    assert!(matches!(limiter.reserve(1), Err(Refused::OnlyNow(_))));
    assert!(limiter.up_to(3).is_denied());
    assert!(limiter.try_overtake().is_allowed());
    waits.push(queued(limiter.acquire_n(2)));
    waits.push(queued(limiter.acquire_n(2)));
    // At most three pass in each window of 10 ms: the fourth cannot pass before 40 ms.
    let refused = poll(&mut Box::pin(limiter.acquire_n(3).within(39 * MS)));
    assert!(matches!(refused, Poll::Ready(Err(Refused::TooLong { .. }))), "{refused:?}");
    assert_eq!(times(&hand, &mut waits), [10, 20, 30]);
}

#[test]
fn jitter_spreads_in_proportion_to_the_wait_and_keeps_the_deadline() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let mut waits: Vec<_> = (0..100).map(|_| queued(limiter.acquire().jitter(50))).collect();
    let mut strict = [queued(limiter.acquire().jitter(50).within(101 * MS))];
    let passed = times(&hand, &mut waits);
    for (due, at) in (1u64..).zip(passed) {
        assert!(at >= due && at <= due + due / 2 + 1, "due at {due}, passed at {at}");
    }
    assert!(poll(&mut strict[0]).is_ready());
    let (idle, _hand) = self::limiter(1);
    assert!(poll(&mut Box::pin(idle.acquire().jitter(100))).is_ready());
}

#[test]
fn counts_and_waits_are_told_when_the_wait_is_over() {
    let (limiter, hand) = built(1, LimiterBuilder::counted);
    let mut waits = [Box::pin(limiter.acquire()), Box::pin(limiter.acquire())];
    let _ = (poll(&mut waits[0]), poll(&mut waits[1]));
    let _ = poll(&mut Box::pin(limiter.acquire().within(MS)));
    times(&hand, &mut waits[1..]);
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.denied_later), (2, 1));
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn only_those_who_pass_are_woken() {
    let (limiter, hand) = limiter(1);
    let _first = limiter.try_acquire();
    let woken: Vec<_> = (0..10).map(|_| Arc::new(Woken::default())).collect();
    let mut waits: Vec<_> = (0..10).map(|_| Box::pin(limiter.acquire())).collect();
    for (wait, woken) in waits.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    hand.advance(3 * MS);
    let counts: Vec<_> = woken.iter().map(|woken| woken.0.load(SeqCst)).collect();
    assert_eq!(counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn tasks_wait_in_paused_time() {
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).clock(Clock::tokio()).build().unwrap();
    let begin = limiter.now();
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                limiter.acquire().await.unwrap();
                limiter.now()
            })
        })
        .collect();
    for (number, task) in (0u64..).zip(tasks) {
        let at = task.await.unwrap().since(begin);
        let due = Duration::from_millis(100 * number);
        assert!(at >= due && at <= due + 2 * MS, "number {number} at {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beyond_the_horizon_is_none() {
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).clock(Clock::tokio()).build().unwrap();
    limiter.acquire().within(Duration::MAX).await.unwrap();
    limiter.acquire().within(Duration::MAX).await.unwrap();
    limiter.acquire().until(Tick::MAX).await.unwrap();
}

#[test]
fn without_a_runtime_a_task_is_refused_and_a_thread_is_not() {
    let limiter = Limiter::new(Quota::per_second(1000).burst(1)).unwrap();
    let _first = limiter.try_acquire();
    let refused = poll(&mut Box::pin(limiter.acquire()));
    assert!(matches!(refused, Poll::Ready(Err(Refused::NoRuntime(_)))), "{refused:?}");
    assert_eq!(limiter.waiting(), 0);
    limiter.acquire().block().unwrap();
}
