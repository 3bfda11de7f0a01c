//! A call that stops waiting for a key, in any way and at any point, keeps no permit; and tasks,
//! threads and runtimes that come and go.
#![cfg(feature = "tokio")]

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use tollgate::{Algorithm, Clock, KeyedLimiter, ManualClock, Quota, Refused, Wait};

const MS: Duration = Duration::from_millis(1);

fn limiter(algorithm: Algorithm, newest_first: bool) -> (KeyedLimiter<usize>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let quota = match algorithm {
        Algorithm::Gcra => Quota::per_second(1000).burst(4),
        _ => Quota::per(4, 10 * MS),
    };
    let builder = KeyedLimiter::builder(quota).clock(clock).algorithm(algorithm);
    let builder = if newest_first { builder.newest_first() } else { builder };
    (builder.build().unwrap(), hand)
}

fn poll(wait: &mut Pin<Box<Wait>>) -> bool {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap).is_ready()
}

/// Keys and costs of calls that come one after the other, half a millisecond apart.
const COMERS: [(usize, u64); 9] =
    [(0, 4), (1, 4), (0, 2), (1, 3), (0, 3), (0, 1), (1, 2), (0, 4), (1, 1)];

/// Plays the scenario, and polls every call each half millisecond. The `leaving` call is polled
/// this many times and then dropped. Returns when each call passed.
fn play(
    (algorithm, newest_first): (Algorithm, bool),
    leaving: Option<(usize, usize)>,
    jitter: u8,
) -> Vec<(usize, u64)> {
    let (limiter, hand) = limiter(algorithm, newest_first);
    let mut waits: Vec<Option<Pin<Box<Wait>>>> = Vec::new();
    let (mut passed, mut polls) = (Vec::new(), 0);
    for step in 0..140u64 {
        if let Some((key, cost)) = COMERS.get(step as usize) {
            waits.push(Some(Box::pin(limiter.acquire_n(key, *cost).jitter(jitter))));
        }
        for (who, place) in waits.iter_mut().enumerate() {
            let Some(wait) = place else { continue };
            if leaving == Some((who, polls)) {
                *place = None;
                continue;
            }
            polls += usize::from(leaving.is_some_and(|(leaver, _)| leaver == who));
            if poll(wait) {
                *place = None;
                passed.push((who, step));
            }
        }
        hand.advance(MS / 2);
        if waits.len() == COMERS.len() && waits.iter().all(Option::is_none) {
            break;
        }
    }
    assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
    hand.advance(100 * MS);
    assert_eq!((limiter.available(&0), limiter.available(&1)), (4, 4), "all of it is there again");
    passed
}

/// Polled k times and dropped, for every k: no other call is later because of it, calls for another
/// key are not affected, and all permits are conserved.
#[test]
fn dropped_after_every_number_of_polls() {
    for algorithm in Algorithm::ALL {
        for newest_first in [false, true] {
            let host = (algorithm, newest_first);
            let with = play(host, None, 0);
            assert_eq!(with.len(), COMERS.len());
            let at = |who: usize| with.iter().find(|known| known.0 == who).unwrap().1;
            for (leaver, (own, _)) in COMERS.iter().enumerate() {
                for most in (0..14).chain([17, 21, 26, 32]) {
                    let passed = play(host, Some((leaver, most)), 0);
                    let has_passed = passed.iter().any(|known| known.0 == leaver);
                    let others = COMERS.len() - usize::from(!has_passed);
                    assert_eq!(passed.len(), others, "{host:?}: everybody else passes");
                    for &(who, step) in &passed {
                        match COMERS[who].0 == *own {
                            false => assert_eq!(step, at(who), "{host:?}: another key"),
                            // With the newest first, permits go to another call.
                            true if newest_first => {}
                            true => assert!(step <= at(who), "{host:?}: nobody is later"),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn dropped_while_it_holds_for_jitter() {
    for algorithm in Algorithm::ALL {
        for leaver in 0..COMERS.len() {
            for most in [1, 4, 9, 16, 25] {
                play((algorithm, false), Some((leaver, most)), 90);
            }
        }
    }
}

/// The permits of a grant are not given back twice, whatever happens to the state while it is held.
#[test]
fn a_grant_that_is_held_gives_back_nothing_of_a_new_state() {
    for change in 0..2 {
        let (limiter, hand) = limiter(Algorithm::Gcra, false);
        let _all = limiter.try_acquire_n(&0, 4);
        let mut wait = Box::pin(limiter.acquire_n(&0, 4).jitter(255));
        assert!(!poll(&mut wait));
        hand.advance(4 * MS);
        assert!(!poll(&mut wait), "granted, and held for a while");
        match change {
            0 => limiter.reset(&0),
            _ => limiter.clear(),
        }
        assert!(limiter.try_acquire_n(&0, 4).is_allowed());
        drop(wait);
        assert_eq!(limiter.available(&0), 0, "that was somebody else's");
    }
}

#[test]
fn a_waker_that_panics_holds_up_nobody() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("as a test");
        }
    }
    let (limiter, hand) = limiter(Algorithm::Gcra, false);
    let bomb = Waker::from(Arc::new(Bomb));
    let mut waits: Vec<_> = (0..3)
        .map(|key| {
            let _all = limiter.try_acquire_n(&key, 4);
            let mut wait = Box::pin(limiter.acquire(&key));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&bomb)).is_pending());
            wait
        })
        .collect();
    let _all = limiter.try_acquire_n(&9, 4);
    let mut last = Box::pin(limiter.acquire(&9));
    assert!(!poll(&mut last));
    // Two panics at once would end the process: the other waiters are woken one at a time.
    waits.truncate(1);
    assert!(catch_unwind(AssertUnwindSafe(|| hand.advance(MS))).is_err());
    assert!(poll(&mut waits[0]) && poll(&mut last));
    assert_eq!((limiter.waiting_total(), hand.timers()), (0, 0));
}

fn per_second(rate: u64, clock: Clock) -> KeyedLimiter<usize> {
    KeyedLimiter::builder(Quota::per_second(rate).burst(1)).clock(clock).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn tasks_wait_in_paused_time_each_for_its_key() {
    let limiter = per_second(10, Clock::tokio());
    let begin = limiter.now();
    let tasks: Vec<_> = (0..60)
        .map(|number| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                limiter.acquire(&(number % 3)).await.unwrap();
                limiter.now()
            })
        })
        .collect();
    for (number, task) in (0u64..).zip(tasks) {
        let at = task.await.unwrap().since(begin);
        let due = Duration::from_millis(100 * (number / 3));
        assert!(at >= due && at <= due + 2 * MS, "number {number} at {at:?}");
    }
    assert_eq!(limiter.waiting_total(), 0);
    // The task that served them ends, and another one starts.
    for _ in 0..3 {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    limiter.acquire(&7).await.unwrap();
    limiter.acquire(&7).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_earlier_key_wakes_the_driver() {
    let limiter = per_second(1, Clock::tokio());
    limiter.override_quota(&1, Quota::per_second(100).burst(1), None).unwrap();
    let begin = limiter.now();
    let (_slow, _fast) = (limiter.try_acquire(&0), limiter.try_acquire(&1));
    let slow = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&0).await.map(|_| limiter.now()) }
    });
    tokio::task::yield_now().await;
    tokio::time::advance(5 * MS).await;
    limiter.acquire(&1).await.unwrap();
    assert!(limiter.now().since(begin) < 13 * MS);
    assert!(slow.await.unwrap().unwrap().since(begin) >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_nobody_polls_holds_up_nobody_else() {
    let limiter = per_second(10, Clock::tokio());
    let _first = (limiter.try_acquire(&0), limiter.try_acquire(&1));
    let mut forgotten = (Box::pin(limiter.acquire(&0)), Box::pin(limiter.acquire(&1)));
    poll_fn(|context| {
        assert!(forgotten.0.as_mut().poll(context).is_pending());
        assert!(forgotten.1.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    let begin = limiter.now();
    limiter.acquire(&0).await.unwrap();
    let took = limiter.now().since(begin);
    assert!(took >= Duration::from_millis(200) && took < Duration::from_millis(203), "{took:?}");
}

#[test]
fn a_runtime_that_shuts_down_leaves_nothing_and_others_go_on() {
    let limiter = per_second(1000, Clock::monotonic());
    for key in 0..3 {
        let _debt = limiter.force(&key, 200);
    }
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let others: Vec<_> = (0..6)
        .map(|number| {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.acquire(&(number % 3)).block().map(drop))
        })
        .collect();
    let first = runtime();
    first.block_on(async {
        for number in 0..9 {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire(&(number % 3)).await.map(drop) });
        }
        // Lets them start to wait.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    });
    let (sender, told) = mpsc::channel();
    let elsewhere = thread::spawn({
        let limiter = limiter.clone();
        move || {
            runtime().block_on(async {
                let mut wait = pin!(limiter.acquire(&1));
                poll_fn(|context| {
                    assert!(wait.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                sender.send(()).unwrap();
                wait.await.map(drop)
            })
        }
    });
    told.recv().unwrap();
    assert!(limiter.waiting_total() >= 10);
    // The driver of the queues goes with the runtime; the other calls still pass.
    drop(first);
    for other in others {
        assert_eq!(other.join().unwrap(), Ok(()));
    }
    assert_eq!(elsewhere.join().unwrap(), Ok(()));
    assert_eq!(limiter.waiting_total(), 0);
}

#[test]
fn without_a_runtime_or_its_timers_a_task_is_refused_and_a_thread_is_not() {
    let limiter = per_second(1000, Clock::monotonic());
    let _used = limiter.force(&0, 3);
    let mut context = Context::from_waker(Waker::noop());
    let refused = Box::pin(limiter.acquire(&0)).as_mut().poll(&mut context);
    assert!(matches!(refused, Poll::Ready(Err(Refused::NoRuntime(_)))), "{refused:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(async { limiter.acquire(&0).await });
    assert!(matches!(refused, Err(Refused::NoRuntime(_))), "{refused:?}");
    assert_eq!(limiter.waiting_total(), 0);
    limiter.acquire(&0).block().unwrap();
}

#[test]
fn threads_and_tasks_wait_for_the_same_keys() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        let quota = match algorithm {
            Algorithm::Gcra => Quota::per_second(2000).burst(1),
            _ => Quota::per(4, MS),
        };
        let limiter = KeyedLimiter::builder(quota).algorithm(algorithm).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let threads: Vec<_> = (0..4usize)
            .map(|number| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    for round in 0..25 {
                        limiter.acquire(&((number + round) % 3)).block().unwrap();
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..4usize)
                .map(|number| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        for round in 0..25 {
                            limiter.acquire(&((number + round) % 3)).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(limiter.waiting_total(), 0);
        assert!(limiter.try_overtake(&9).is_allowed());
    }
}

/// Changes from any thread: no waiting call is lost, and nothing is left over.
#[test]
fn changes_from_all_sides_lose_nobody() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog] {
        let quota = |rate: u64| match algorithm {
            Algorithm::Gcra => Quota::per_second(1000 * rate).burst(2),
            _ => Quota::per(2 * rate, 2 * MS),
        };
        let builder = KeyedLimiter::builder(quota(2)).algorithm(algorithm).max_waiting(5);
        let limiter = builder.tier("tier", quota(1)).build().unwrap();
        let threads: Vec<_> = (0..6usize)
            .map(|number| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_time()
                        .build()
                        .unwrap();
                    for round in 0..40 {
                        let wait = limiter.acquire_n(&((number + round) % 4), 1).within(50 * MS);
                        // Refused or not, it ends.
                        let _ = match number % 2 {
                            0 => wait.block(),
                            _ => runtime.block_on(wait),
                        };
                    }
                })
            })
            .collect();
        let mut round = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            let key = round % 4;
            match round % 9 {
                0 => limiter.set_quota(quota(1 + round as u64 % 3)).unwrap(),
                1 => limiter.override_quota(&key, quota(3), Some(MS)).unwrap(),
                2 => limiter.assign(&key, "tier", None).unwrap(),
                3 => drop(limiter.clear_override(&key)),
                4 => limiter.block(&key, MS).unwrap(),
                5 => drop(limiter.unblock(&key)),
                6 => limiter.reset(&key),
                7 => drop(limiter.refund(&key, 1)),
                _ => limiter.clear(),
            }
            round += 1;
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(limiter.waiting_total(), 0);
        (0..4).for_each(|key| assert_eq!(limiter.waiting(&key), 0));
    }
}

#[derive(Debug)]
struct Kept(Arc<()>);

impl tollgate::observe::Observer for Kept {
    fn decided(&self, _event: &tollgate::observe::Event<'_>) {
        assert!(Arc::strong_count(&self.0) > 1);
    }
}

/// A finished wait does not keep the limiter alive.
#[test]
fn nothing_is_kept_alive() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        let ((clock, hand), token) = (Clock::manual(), Arc::new(()));
        let limiter = KeyedLimiter::<usize>::builder(Quota::per(1, MS))
            .algorithm(algorithm)
            .clock(clock)
            .observer(Kept(Arc::clone(&token)))
            .max_waiting(2)
            .build()
            .unwrap();
        let _first = limiter.try_acquire(&0);
        let mut waits = [Box::pin(limiter.acquire(&0)), Box::pin(limiter.acquire(&0))];
        assert!(!waits.iter_mut().any(poll));
        assert!(limiter.acquire(&0).block().is_err(), "as many wait as may");
        hand.advance(MS);
        assert!(poll(&mut waits[0]));
        drop(limiter);
        assert_eq!((Arc::strong_count(&token), hand.timers()), (2, 1));
        drop(waits);
        assert_eq!((Arc::strong_count(&token), hand.timers()), (1, 0));
    }
}
