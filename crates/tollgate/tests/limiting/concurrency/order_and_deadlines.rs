//! The order of service, deadlines, and which waiter leaves a full queue.

use super::host::{Host, Waiter};
use std::{task::Poll, time::Duration};
use tollgate::{
    Acquire, Clock, Concurrency, KeyedConcurrency, Limiter, ManualClock, Permit, Priority, Quota,
    Tick,
};

const KEY: &str = "alice";

/// A limit of one, or a key of one, with a queue of three, on a manual clock.
fn hosts(newest_first: bool) -> [(Host, ManualClock); 2] {
    let hands = [ManualClock::new(), ManualClock::new()];
    let mut single = Concurrency::builder(1).max_waiting(3).clock(hands[0].clock()).counted();
    let mut keyed = KeyedConcurrency::builder(1).max_waiting(3).clock(hands[1].clock()).counted();
    if newest_first {
        (single, keyed) = (single.newest_first(), keyed.newest_first());
    }
    let [first, second] = hands;
    [(Host::Single(single.build().unwrap()), first), (Host::Keyed(keyed.build().unwrap()), second)]
}

fn acquire(host: &Host) -> Acquire {
    match host {
        Host::Single(limit) => limit.acquire(),
        Host::Keyed(limit) => limit.acquire(KEY),
    }
}

fn waiter(host: &Host, urgency: u8) -> Waiter {
    Waiter::new(acquire(host).priority(Priority::new(urgency).unwrap())).queued()
}

/// Serves all waiters, one after the other, and returns their order.
fn order(held: Permit, mut waiters: Vec<Waiter>) -> Vec<usize> {
    let (mut held, mut served) = (Some(held), Vec::new());
    while served.len() < waiters.len() {
        drop(held.take());
        let next = waiters.iter_mut().enumerate().find_map(|(index, waiter)| {
            let is_new = !served.contains(&index);
            match is_new.then(|| waiter.poll()) {
                Some(Poll::Ready(answer)) => Some((index, answer.unwrap())),
                _ => None,
            }
        });
        let (index, permit) = next.expect("somebody is served");
        served.push(index);
        held = Some(permit);
    }
    served
}

#[test]
fn the_most_urgent_is_served_first_and_equals_in_turn() {
    // urgency of each waiter; the order of service: oldest first, newest first
    let rows: [(&[u8], &[usize], &[usize]); 4] = [
        (&[3, 3, 3], &[0, 1, 2], &[2, 1, 0]),
        (&[7, 3, 0], &[2, 1, 0], &[2, 1, 0]),
        (&[3, 0, 3], &[1, 0, 2], &[1, 2, 0]),
        (&[5, 5, 1], &[2, 0, 1], &[2, 1, 0]),
    ];
    for (urgencies, oldest, newest) in rows {
        for (newest_first, expected) in [(false, oldest), (true, newest)] {
            for (host, _hand) in hosts(newest_first) {
                let held = host.try_acquire_n(1).unwrap();
                let waiters = urgencies.iter().map(|urgency| waiter(&host, *urgency)).collect();
                assert_eq!(order(held, waiters), expected, "{urgencies:?} {newest_first}");
                host.assert_idle(1, "served");
            }
        }
    }
}

#[test]
fn a_full_queue_makes_room_for_somebody_more_urgent() {
    for (host, _hand) in hosts(false) {
        let held = host.try_acquire_n(1).unwrap();
        let mut queue = [waiter(&host, 3), waiter(&host, 5), waiter(&host, 5)];
        for urgency in [5, 7] {
            let mut late = Waiter::new(acquire(&host).priority(Priority::new(urgency).unwrap()));
            assert!(late.answer().unwrap_err().is_queue_full(), "{urgency} is not more urgent");
        }
        let critical = waiter(&host, 0);
        let full = queue[2].answer().unwrap_err();
        assert!(full.is_displaced() && queue[2].wakes() == 1);
        assert_eq!(
            full.to_string(),
            "1 of 1 permits are in flight, and a more urgent call took the place of cost 1 in the full \
             queue; retry later, or raise max_waiting"
        );
        let [normal, low, _] = queue;
        assert_eq!(order(held, vec![normal, low, critical]), [2, 0, 1]);
        host.assert_idle(1, "displaced");
        assert_eq!((host.counts().refused, host.counts().admitted), (3, 4));
    }
}

#[test]
fn a_wait_ends_at_its_deadline_and_not_before() {
    type Set = fn(Acquire) -> Acquire;
    let rows: [(Set, u64); 4] = [
        (|acquire| acquire, 10_000_000_000),
        (|acquire| acquire.within(Duration::from_millis(3)), 3_000_000),
        (|acquire| acquire.until(Tick::from_nanos(77)), 77),
        (|acquire| acquire.within(Duration::from_secs(60)), 60_000_000_000),
    ];
    for (set, deadline) in rows {
        for (host, hand) in hosts(false) {
            let held = host.try_acquire_n(1).unwrap();
            let mut waiter = Waiter::new(set(acquire(&host))).queued();
            hand.set(Tick::from_nanos(deadline - 1));
            assert!(waiter.poll().is_pending() && waiter.wakes() == 0);
            hand.advance(Duration::from_nanos(1));
            assert_eq!(waiter.wakes(), 1, "the timer woke it");
            let full = waiter.answer().unwrap_err();
            assert!(full.is_timed_out() && !full.is_never() && !full.is_queue_full());
            assert_eq!(host.level(), (1, 0, 0));
            drop(held);
            host.assert_idle(1, "late");
            assert_eq!(hand.timers(), 0, "nobody is waited for");
        }
    }
}

#[test]
fn who_must_not_wait_is_refused_at_once_and_passes_if_it_fits() {
    for (host, hand) in hosts(false) {
        hand.set(Tick::from_secs(5));
        let in_time: [fn(Acquire) -> Acquire; 3] = [
            |acquire| acquire.within(Duration::ZERO),
            |acquire| acquire.until(Tick::from_secs(5)),
            |acquire| acquire.until(Tick::ZERO),
        ];
        for set in in_time {
            let held = Waiter::new(set(acquire(&host))).answer().unwrap();
            assert!(Waiter::new(set(acquire(&host))).answer().unwrap_err().is_timed_out());
            drop(held);
        }
        host.assert_idle(1, "at once");
    }
}

#[test]
fn those_who_are_late_make_way_for_those_behind_them() {
    for (host, hand) in hosts(false) {
        host.set_limit(2);
        let held = host.try_acquire_n(1).unwrap();
        let big = |host: &Host| match host {
            Host::Single(limit) => limit.acquire_n(2),
            Host::Keyed(limit) => limit.acquire_n(KEY, 2),
        };
        let mut first = Waiter::new(big(&host).within(Duration::from_secs(1))).queued();
        let mut second = Waiter::new(acquire(&host)).queued();
        assert!(host.try_acquire_n(1).is_err(), "nobody overtakes");
        hand.advance(Duration::from_secs(1));
        assert!(first.answer().unwrap_err().is_timed_out());
        drop((second.answer().unwrap(), held));
        host.assert_idle(2, "made way");
    }
}

#[test]
fn a_slot_that_comes_with_the_deadline_is_not_lost() {
    for (host, hand) in hosts(false) {
        let held = host.try_acquire_n(1).unwrap();
        let mut waiter = Waiter::new(acquire(&host).within(Duration::from_secs(1))).queued();
        drop(held);
        hand.advance(Duration::from_secs(2));
        drop(waiter.answer().unwrap());
        host.assert_idle(1, "granted before");
    }
}

#[test]
fn a_newcomer_passes_ahead_of_less_urgent_ones_if_it_fits() {
    for (host, _hand) in hosts(false) {
        host.set_limit(3);
        let held = host.try_acquire_n(2).unwrap();
        let big = match &host {
            Host::Single(limit) => limit.acquire_n(3),
            Host::Keyed(limit) => limit.acquire_n(KEY, 3),
        };
        let mut big = Waiter::new(big).queued();
        let urgent = Waiter::new(acquire(&host).priority(Priority::HIGH)).answer().unwrap();
        assert_eq!(host.level(), (3, 1, 0));
        drop((held, urgent));
        drop(big.answer().unwrap());
        host.assert_idle(3, "urgent");
    }
}

#[test]
fn threads_that_wait_are_refused_at_their_deadline() {
    for (host, hand) in hosts(false) {
        let held = host.try_acquire_n(1).unwrap();
        let answer = std::thread::scope(|scope| {
            let waits = scope.spawn(|| acquire(&host).within(Duration::from_secs(1)).block());
            while host.waiting() == 0 {
                std::thread::yield_now();
            }
            hand.advance(Duration::from_secs(1));
            waits.join().unwrap()
        });
        assert!(answer.unwrap_err().is_timed_out());
        drop(held);
        host.assert_idle(1, "thread");
    }
    // On a real clock the thread wakes up by itself.
    let limit = Concurrency::builder(1).max_waiting(1).build().unwrap();
    let _held = limit.try_acquire().unwrap();
    let refused = limit.acquire().within(Duration::from_millis(1)).block();
    assert!(refused.is_err_and(|full| full.is_timed_out()));
}

/// Without a timer a late caller is refused when it is polled, or when it would be served.
#[test]
fn without_a_timer_nobody_passes_late() {
    let clock = Clock::monotonic();
    let limit = Concurrency::builder(1).max_waiting(3).clock(clock.clone()).build().unwrap();
    let held = limit.try_acquire().unwrap();
    let waits = |longest| Waiter::new(limit.acquire().within(longest)).queued();
    let soon = Duration::from_nanos(1);
    let mut polled = waits(soon);
    let begun = clock.now();
    while clock.now() <= begun.saturating_add(soon) {}
    assert!(polled.answer().unwrap_err().is_timed_out());
    let (mut passed_over, mut served) = (waits(soon), waits(Duration::MAX));
    // The coarse reading of the clock is then a few milliseconds old.
    let begun = clock.now();
    while clock.now() <= begun.saturating_add(Duration::from_millis(50)) {}
    drop(held);
    assert!(passed_over.answer().unwrap_err().is_timed_out());
    drop(served.answer().unwrap());
    assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::*;
    use tollgate::Full;

    fn limit(clock: Clock) -> (Concurrency, KeyedConcurrency<str>) {
        let single = Concurrency::builder(1).max_waiting(9).clock(clock.clone()).build().unwrap();
        let keyed = KeyedConcurrency::builder(1).max_waiting(9).clock(clock).build().unwrap();
        (single, keyed)
    }

    #[tokio::test(start_paused = true)]
    async fn one_timer_ends_the_waits_of_all_tasks() {
        let clock = Clock::tokio();
        let (single, keyed) = limit(clock.clone());
        let _held = (single.try_acquire().unwrap(), keyed.try_acquire("a"), keyed.try_acquire("b"));
        let begun = clock.now();
        let wait = async |acquire: Acquire, secs: u64| {
            let full = acquire.within(Duration::from_secs(secs)).await.unwrap_err();
            assert!(full.is_timed_out());
            clock.now().since(begun).as_secs()
        };
        let waited = tokio::join!(
            wait(single.acquire(), 3),
            wait(single.acquire(), 1),
            wait(keyed.acquire("a"), 2),
            wait(keyed.acquire("b"), 4),
            wait(keyed.acquire("a"), 7),
        );
        assert_eq!(waited, (3, 1, 2, 4, 7));
        assert_eq!((single.waiting(), keyed.total_waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_in_time_serves_and_a_drop_gives_up_its_place() {
        let (single, _) = limit(Clock::tokio());
        let held = single.try_acquire().unwrap();
        let first = tokio::time::timeout(Duration::from_secs(1), single.acquire());
        let second = single.acquire().within(Duration::from_secs(3));
        let release = async {
            let never = std::future::pending::<()>();
            assert!(tokio::time::timeout(Duration::from_secs(2), never).await.is_err());
            drop(held);
        };
        let (first, second, ()) = tokio::join!(first, second, release);
        assert!(first.is_err() && second.is_ok());
    }

    fn full(answer: Result<Permit, Full>) -> Full {
        answer.expect_err("it is full")
    }

    #[test]
    fn a_runtime_without_timers_waits_and_is_not_disturbed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (single, _) = limit(Clock::monotonic());
        let held = single.try_acquire().unwrap();
        runtime.block_on(async {
            for _ in 0..3 {
                let release = async {
                    tokio::task::yield_now().await;
                    single.set_limit(2).unwrap();
                };
                let (served, ()) = tokio::join!(single.acquire(), release);
                drop(served.unwrap());
                single.set_limit(1).unwrap();
            }
        });
        assert!(full(single.try_acquire()).in_flight() == 1);
        drop(held);
    }

    #[test]
    fn a_runtime_that_shuts_down_leaves_the_tasks_of_others_their_timer() {
        let build = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (single, _) = limit(Clock::monotonic());
        let _held = single.try_acquire().unwrap();
        let gone = build();
        gone.spawn(single.acquire());
        gone.block_on(tokio::task::yield_now());
        assert_eq!(single.waiting(), 1);
        let late = build().block_on(async {
            let wait = tokio::spawn(single.acquire().within(Duration::from_millis(5)));
            tokio::task::yield_now().await;
            gone.shutdown_background();
            wait.await.unwrap()
        });
        assert!(full(late).is_timed_out());
        assert_eq!(single.waiting(), 0, "the task of the runtime that is gone has left");
    }
}

/// A thread remembers for how long it trusts the coarse reading of the system's clock. Other clocks
/// have no such reading.
#[test]
fn a_manual_clock_is_not_taken_for_that_of_the_system() {
    let system = Limiter::new(Quota::per_second(1000)).unwrap();
    for (host, _hand) in hosts(false) {
        assert!(system.try_acquire().is_allowed(), "the thread has read the system's clock");
        let held = host.try_acquire_n(1).unwrap();
        let mut queued = waiter(&host, 3);
        drop(held);
        assert!(queued.answer().is_ok(), "nobody moved the clock, so nobody is late");
    }
}
