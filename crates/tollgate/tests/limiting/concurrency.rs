//! Limits on calls in flight. The tests poll the futures; nothing sleeps.

mod host;
mod keyed;
mod model;
mod order_and_deadlines;
mod threads;

use host::{Host, Waiter, hosts};
use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Wake, Waker},
};
use tollgate::{
    Acquire, Concurrency, ConcurrencyBuilder, ConcurrencyCounts, ConcurrencyError, Full,
    KeyedConcurrency, KeyedConcurrencyBuilder, Permit,
};

#[test]
fn types_are_shareable_printable_and_small() {
    fn shared<T: Send + Sync + Debug + 'static>() {}
    fn value<T: Copy + Send + Sync + Debug + Eq>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    shared::<Concurrency>();
    shared::<ConcurrencyBuilder>();
    shared::<KeyedConcurrency<str>>();
    shared::<KeyedConcurrencyBuilder<str>>();
    shared::<Permit>();
    shared::<Acquire>();
    value::<Full>();
    value::<ConcurrencyCounts>();
    value::<ConcurrencyError>();
    error::<Full>();
    error::<ConcurrencyError>();
    assert_eq!(size_of::<Concurrency>(), 8);
    assert_eq!(size_of::<KeyedConcurrency<str>>(), 8);
}

#[test]
fn admits_up_to_the_limit_and_takes_back() {
    for host in hosts(5, 0) {
        let mut held: Vec<Permit> = Vec::new();
        // the cost to take (or the place of a permit to give back), and the expected calls in
        // flight after it
        enum Do {
            Take(u64),
            Back(usize),
        }
        use Do::{Back, Take};
        let rows = [
            (Take(0), Ok(0)),
            (Take(2), Ok(2)),
            (Take(3), Ok(5)),
            (Take(1), Err("5 of 5 permits are in flight; retry cost 1 after a release")),
            (Take(0), Ok(5)),
            (Back(1), Ok(3)),
            (Take(3), Err("3 of 5 permits are in flight; retry cost 3 after a release")),
            (
                Take(6),
                Err(
                    "cost 6 is above the limit of 5 in flight, so no release helps; ask for less, \
                     or raise the limit",
                ),
            ),
            (
                Take(u64::MAX),
                Err("cost 18446744073709551615 is above the limit of 5 in flight, so no release \
                     helps; ask for less, or raise the limit"),
            ),
            (Take(2), Ok(5)),
        ];
        for (row, (step, expected)) in rows.into_iter().enumerate() {
            let before = host.level();
            let seen = match step {
                Back(place) => {
                    held.remove(place).release();
                    Ok(host.level().0)
                }
                Take(cost) => match host.try_acquire_n(cost) {
                    Ok(permit) => {
                        assert_eq!(permit.cost(), cost);
                        held.push(permit);
                        Ok(host.level().0)
                    }
                    Err(full) => {
                        assert_eq!(host.level(), before, "row {row}: a refusal changes nothing");
                        assert_eq!((full.limit(), full.in_flight()), (5, before.0), "row {row}");
                        assert_eq!((full.cost(), full.waiting()), (cost, 0), "row {row}");
                        assert_eq!(full.is_never(), cost > 5, "row {row}");
                        Err(full.to_string())
                    }
                },
            };
            assert_eq!(seen, expected.map_err(String::from), "row {row}");
        }
        drop(held);
        host.assert_idle(5, "after all");
    }
}

#[test]
fn a_limit_of_zero_lets_nothing_pass_until_raised() {
    for host in hosts(0, 3) {
        assert!(host.try_acquire_n(1).unwrap_err().is_never());
        assert!(host.acquire_n(1).answer().unwrap_err().is_never());
        assert!(host.try_acquire_n(0).is_ok(), "a cost of nothing passes");
        host.set_limit(1);
        assert!(host.try_acquire_n(1).is_ok());
        host.assert_idle(1, "after all");
    }
}

#[test]
fn configuration_is_judged_by_build() {
    let most = Concurrency::LIMIT_MAX;
    assert_eq!(Concurrency::new(most).unwrap().available(), most);
    let all = Concurrency::new(most).unwrap();
    let permit = all.try_acquire_n(most).unwrap();
    assert_eq!(all.in_flight(), most);
    assert!(!all.try_acquire().unwrap_err().is_never());
    drop(permit);
    let error = Concurrency::new(most + 1).unwrap_err();
    assert_eq!(error, ConcurrencyError::LimitTooLarge { limit: most + 1 });
    assert_eq!(
        error.to_string(),
        "limit 1000000001 is above 1000000000 in flight; lower it, or count in larger units"
    );
    assert_eq!(all.set_limit(u64::MAX).unwrap_err(), {
        ConcurrencyError::LimitTooLarge { limit: u64::MAX }
    });
    assert_eq!(all.limit(), most, "the old limit stays in force");
    assert_eq!(
        Concurrency::builder(1).max_waiting(u64::MAX).build().unwrap_err().to_string(),
        "max_waiting 18446744073709551615 is above 1000000000; lower it to what memory can hold"
    );
    let named = Concurrency::builder(3).name("db").max_waiting(7).build().unwrap();
    assert_eq!((named.name(), named.max_waiting(), named.limit()), ("db", 7, 3));
    assert_eq!(
        format!("{named:?}"),
        "Concurrency { name: \"db\", limit: 3, in_flight: 0, waiting: 0, closed: false }"
    );
    assert_eq!(named.counts(), ConcurrencyCounts::default(), "not counted unless asked for");
}

#[test]
fn waiters_are_served_in_order_and_nobody_overtakes() {
    for host in hosts(2, 10) {
        let held = [host.try_acquire_n(1).unwrap(), host.try_acquire_n(1).unwrap()];
        let mut waiters: Vec<Waiter> = (0..4).map(|_| host.acquire_n(1).queued()).collect();
        assert_eq!(host.level(), (2, 4, 0));
        for (place, held) in held.into_iter().enumerate() {
            drop(held);
            let woken: Vec<usize> = waiters.iter().map(Waiter::wakes).collect();
            let expected: Vec<usize> = (0..4).map(|at| usize::from(at <= place)).collect();
            assert_eq!(woken, expected, "release {place} wakes exactly the next");
            assert_eq!(host.level(), (2, 3 - place as u64, 0), "its permit is set aside");
            let full = host.try_acquire_n(1).unwrap_err();
            assert_eq!(full.waiting(), 3 - place as u64);
        }
        let first = waiters[0].answer().unwrap();
        assert!(waiters[2].poll().is_pending() && waiters[3].poll().is_pending());
        drop(first);
        drop(waiters[1].answer().unwrap());
        drop((waiters[2].answer().unwrap(), waiters[3].answer().unwrap()));
        host.assert_idle(2, "after all");
        assert_eq!((host.counts().admitted, host.counts().waited), (6, 4));
    }
}

#[test]
fn a_big_request_is_not_starved() {
    for host in hosts(4, 10) {
        let mut small = vec![host.try_acquire_n(1).unwrap(), host.try_acquire_n(1).unwrap()];
        let mut big = host.acquire_n(4).queued();
        let mut behind = host.acquire_n(1).queued();
        assert_eq!(host.level(), (2, 2, 0), "two are free, but not for those behind");
        assert_eq!(
            host.try_acquire_n(1).unwrap_err().to_string(),
            "2 of 4 permits are in flight and 2 wait ahead; retry cost 1 later, or wait with \
             acquire"
        );
        small.pop();
        assert!(big.poll().is_pending() && behind.poll().is_pending());
        small.pop();
        let big = big.answer().unwrap();
        assert!(behind.poll().is_pending());
        drop(big);
        drop(behind.answer().unwrap());
        host.assert_idle(4, "after all");
    }
}

#[test]
fn the_queue_is_bounded() {
    for host in hosts(1, 2) {
        let held = host.try_acquire_n(1).unwrap();
        let waiters = [host.acquire_n(1).queued(), host.acquire_n(1).queued()];
        let full = host.acquire_n(1).answer().unwrap_err();
        assert!(full.is_queue_full() && !full.is_never() && !full.is_closed());
        assert_eq!(
            full.to_string(),
            "1 of 1 permits are in flight and 2 wait, the maximum of max_waiting; retry cost 1 \
             later, or raise max_waiting"
        );
        assert!(host.acquire_n(2).answer().unwrap_err().is_never(), "never comes first");
        assert_eq!(host.level(), (1, 2, 0));
        let [first, second] = waiters;
        drop(first);
        let third = host.acquire_n(1).queued();
        drop((held, second, third));
        host.assert_idle(1, "after all");
    }
    for host in hosts(1, 0) {
        let _held = host.try_acquire_n(1).unwrap();
        let full = host.acquire_n(1).answer().unwrap_err();
        assert!(full.is_queue_full());
        assert_eq!(
            full.to_string(),
            "1 of 1 permits are in flight and waiting is off; retry cost 1 after a release, or set \
             max_waiting"
        );
    }
}

/// The event before the victim is dropped.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// The holder gives back, so the head, and more if they fit, are granted.
    Release,
    /// The limit falls to 1: a call of cost 2 is refused.
    Lower,
    Raise,
    Close,
}

#[test]
fn dropping_a_future_anywhere_conserves_everything() {
    let happenings = [Then::Nothing, Then::Release, Then::Lower, Then::Raise, Then::Close];
    for then in happenings {
        for victim in 0..4 {
            for (polls_before, polls_after) in (0..4).flat_map(|k| (0..2).map(move |l| (k, l))) {
                for host in hosts(2, 10) {
                    let row = format!("{then:?}, victim {victim}, {polls_before}+{polls_after}");
                    drop_one(&host, then, victim, (polls_before, polls_after), &row);
                }
            }
        }
    }
}

fn drop_one(host: &Host, then: Then, victim: usize, polls: (usize, usize), row: &str) {
    let mut holder = Some(host.try_acquire_n(2).unwrap());
    let mut waiters: Vec<Waiter> = [1, 2, 1, 1].map(|cost| host.acquire_n(cost)).into();
    for (place, waiter) in waiters.iter_mut().enumerate() {
        let polls = if place == victim { polls.0 } else { 1 };
        (0..polls).for_each(|_| assert!(waiter.poll().is_pending(), "{row}"));
    }
    let available = match then {
        Then::Nothing => 2,
        Then::Release => {
            holder = None;
            2
        }
        Then::Lower => {
            host.set_limit(1);
            1
        }
        Then::Raise => {
            host.set_limit(3);
            3
        }
        Then::Close => {
            host.close();
            0
        }
    };
    let mut gone = waiters.remove(victim);
    // The permits that it has received are dropped with it.
    let fetched: Vec<_> = (0..polls.1).map(|_| gone.poll()).collect();
    drop((gone, fetched));
    drop(holder);
    // The others, first come first served, one after the other; each was woken for its answer.
    for waiter in &mut waiters {
        assert!(waiter.wakes() > 0, "{row}: nobody sleeps on");
        match waiter.answer() {
            Ok(permit) => drop(permit),
            Err(full) => assert!(full.is_never() || full.is_closed(), "{row}: {full}"),
        }
    }
    host.assert_idle(available, row);
    let counts = host.counts();
    let ended = 4 + u64::from(polls != (0, 0));
    assert_eq!(counts.admitted + counts.refused + counts.cancelled, ended, "{row}: {counts:?}");
}

#[test]
fn a_waiter_that_leaves_the_head_lets_the_next_pass() {
    for host in hosts(3, 10) {
        let _held = host.try_acquire_n(1).unwrap();
        let big = host.acquire_n(3).queued();
        let mut small = host.acquire_n(2).queued();
        assert_eq!(small.wakes(), 0);
        drop(big);
        assert_eq!(small.wakes(), 1, "two are free");
        drop(small.answer().unwrap());
        assert_eq!(host.counts().cancelled, 1);
    }
}

#[test]
fn a_panic_gives_back() {
    for host in hosts(1, 1) {
        let held = AssertUnwindSafe(&host);
        let outcome = catch_unwind(|| {
            let _permit = held.try_acquire_n(1).unwrap();
            std::panic::resume_unwind(Box::new("the holder fails"));
        });
        assert!(outcome.is_err());
        host.assert_idle(1, "after the panic");
    }
}

#[test]
fn a_waker_that_panics_does_not_stop_the_others() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("the waker fails"));
        }
    }
    for host in hosts(2, 10) {
        let held = host.try_acquire_n(2).unwrap();
        let mut bad = host.acquire_n(1).into_future();
        let waker = Waker::from(Arc::new(Bad));
        let pinned = std::pin::Pin::new(&mut bad);
        assert!(pinned.poll(&mut Context::from_waker(&waker)).is_pending());
        let mut good = host.acquire_n(1).queued();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(held))).is_err());
        assert_eq!(good.wakes(), 1);
        drop((good.answer().unwrap(), bad));
        host.assert_idle(2, "after all");
    }
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    for host in hosts(1, 1) {
        let held = host.try_acquire_n(1).unwrap();
        let mut waiter = host.acquire_n(1).queued();
        let old = waiter.replace_waker();
        assert!(waiter.poll().is_pending());
        drop(held);
        assert_eq!((old(), waiter.wakes()), (0, 1));
    }
}

#[test]
fn a_waker_may_call_back() {
    /// Takes everything while it is woken: if a lock were held then, this would deadlock.
    struct Curious(Host);
    impl Wake for Curious {
        fn wake(self: Arc<Self>) {
            let (.., available) = self.0.level();
            assert_eq!(self.0.try_acquire_n(1).is_ok(), available > 0);
            self.0.set_limit(2);
        }
    }
    for host in hosts(1, 10) {
        let held = host.try_acquire_n(1).unwrap();
        let waker = Waker::from(Arc::new(Curious(host.clone())));
        let mut context = Context::from_waker(&waker);
        let mut futures = [host.acquire_n(1).into_future(), host.acquire_n(1).into_future()];
        for future in &mut futures {
            assert!(std::pin::Pin::new(future).poll(&mut context).is_pending());
        }
        drop(held);
        drop(futures);
        host.assert_idle(2, "after all");
    }
}

#[test]
fn a_higher_limit_admits_waiters_at_once_and_in_order() {
    for host in hosts(1, 10) {
        let held = host.try_acquire_n(1).unwrap();
        let mut waiters: Vec<Waiter> = (0..4).map(|_| host.acquire_n(1).queued()).collect();
        host.set_limit(3);
        assert_eq!(waiters.iter().map(Waiter::wakes).collect::<Vec<_>>(), [1, 1, 0, 0]);
        assert_eq!(host.level(), (3, 2, 0));
        let taken = [waiters[0].answer().unwrap(), waiters[1].answer().unwrap()];
        host.set_limit(100);
        assert_eq!(host.level(), (5, 0, 95));
        drop((taken, held, waiters));
        host.assert_idle(100, "after all");
        assert_eq!(host.counts().peak_in_flight, 5);
    }
}

#[test]
fn a_lower_limit_revokes_nothing_and_tells_those_who_can_never_pass() {
    for host in hosts(4, 10) {
        let mut held: Vec<Permit> = (0..4).map(|_| host.try_acquire_n(1).unwrap()).collect();
        let mut small = host.acquire_n(2).queued();
        let mut big = host.acquire_n(3).queued();
        let mut last = host.acquire_n(1).queued();
        host.set_limit(2);
        assert_eq!(host.level(), (4, 2, 0), "above the limit until they finish");
        assert_eq!((small.wakes(), big.wakes(), last.wakes()), (0, 1, 0));
        let full = big.answer().unwrap_err();
        assert!(full.is_never());
        assert_eq!((full.limit(), full.in_flight(), full.waiting(), full.cost()), (2, 4, 2, 3));
        for left in (2..4).rev() {
            held.pop();
            assert_eq!(host.level(), (left, 2, 0));
            assert_eq!(small.wakes(), 0);
        }
        held.pop();
        assert_eq!(small.wakes(), 0, "one of two is free, and the head wants both");
        held.pop();
        let small = small.answer().unwrap();
        assert!(last.poll().is_pending());
        drop(small);
        drop(last.answer().unwrap());
        host.assert_idle(2, "after all");
    }
}

#[test]
fn a_closed_limit_refuses_all_and_lets_what_is_in_flight_finish() {
    for host in hosts(2, 10) {
        let held = host.try_acquire_n(2).unwrap();
        let mut waiter = host.acquire_n(1).queued();
        host.close();
        assert!(host.is_closed() && waiter.wakes() == 1);
        let full = waiter.answer().unwrap_err();
        assert!(full.is_closed() && !full.is_never() && !full.is_queue_full());
        assert_eq!(full.to_string(), "the limit is closed and grants no permits; build a new one");
        assert_eq!(host.level(), (2, 0, 0));
        drop(held);
        assert!(host.try_acquire_n(0).unwrap_err().is_closed());
        assert!(host.acquire_n(9).answer().unwrap_err().is_closed(), "closed comes first");
        host.set_limit(50);
        assert!(host.try_acquire_n(1).unwrap_err().is_closed(), "there is no way back");
        host.assert_idle(0, "after all");
        assert_eq!(host.counts().refused, 4);
    }
}

#[test]
fn permits_split_and_merge() {
    for host in hosts(5, 1) {
        let mut all = host.try_acquire_n(5).unwrap();
        assert!(all.split(6).is_none());
        let mut part = all.split(2).unwrap();
        let nothing = part.split(0).unwrap();
        assert_eq!((all.cost(), part.cost(), nothing.cost(), host.level().0), (3, 2, 0, 5));
        drop(nothing);
        let other = Concurrency::new(9).unwrap().try_acquire_n(4).unwrap();
        assert_eq!(part.merge(other).unwrap_err().cost(), 4, "of another limit");
        drop(part.split(1));
        assert_eq!(host.level().0, 4);
        all.merge(part).unwrap();
        assert_eq!((all.cost(), host.level().0), (4, 4));
        drop(all);
        host.assert_idle(5, "after all");
    }
}

#[test]
fn a_future_that_is_polled_after_its_answer_asks_anew() {
    for host in hosts(1, 1) {
        let mut waiter = host.acquire_n(1);
        drop(waiter.answer().unwrap());
        let permit = waiter.answer().unwrap();
        assert!(waiter.poll().is_pending());
        drop((permit, waiter));
        host.assert_idle(1, "after all");
    }
}
