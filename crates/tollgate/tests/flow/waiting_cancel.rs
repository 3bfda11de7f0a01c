//! A call that stops waiting, in any way and at any point, keeps no permit (G5).
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
use tollgate::{Algorithm, Clock, KeyedLimiter, Limiter, ManualClock, Quota, Refused, Wait};

const MS: Duration = Duration::from_millis(1);

fn limiter(algorithm: Algorithm, newest_first: bool) -> (Limiter, ManualClock) {
    let (clock, hand) = Clock::manual();
    let quota = match algorithm {
        Algorithm::Gcra => Quota::per_second(1000).burst(4),
        _ => Quota::per(4, 10 * MS),
    };
    let builder = Limiter::builder(quota).clock(clock).algorithm(algorithm);
    let builder = if newest_first { builder.newest_first() } else { builder };
    (builder.build().unwrap(), hand)
}

fn poll(wait: &mut Pin<Box<Wait>>) -> bool {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap).is_ready()
}

/// Costs of calls that come one after the other, half a millisecond apart.
const COSTS: [u64; 8] = [4, 2, 3, 1, 4, 1, 2, 3];

/// Plays the scenario without the calls in `missing`, and polls every call each half millisecond.
/// The `leaving` call is polled this many times and then dropped. Returns when each call passed.
fn play(
    (algorithm, newest_first): (Algorithm, bool),
    leaving: Option<(usize, usize)>,
    missing: Option<usize>,
) -> Vec<(usize, u64)> {
    let (limiter, hand) = limiter(algorithm, newest_first);
    let mut waits: Vec<Option<Pin<Box<Wait>>>> = Vec::new();
    let (mut passed, mut polls) = (Vec::new(), 0);
    for step in 0..120u64 {
        if let Some(cost) = COSTS.get(step as usize) {
            let is_there = missing != Some(step as usize);
            waits.push(is_there.then(|| Box::pin(limiter.acquire_n(*cost))));
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
    }
    assert_eq!((limiter.waiting(), hand.timers()), (0, 0));
    hand.advance(100 * MS);
    assert_eq!(limiter.available(), 4, "all of it is there again");
    passed
}

/// Polled k times and dropped, for every k: if the call had not passed by then, every other call
/// passes no later, from the drop on, than without it, and all permits are conserved.
#[test]
fn dropped_after_every_number_of_polls() {
    for algorithm in Algorithm::ALL {
        for newest_first in [false, true] {
            let host = (algorithm, newest_first);
            for leaver in 0..COSTS.len() {
                let with = play(host, None, None);
                let without = play(host, None, Some(leaver));
                let own = with.iter().find(|known| known.0 == leaver).unwrap().1;
                for most in 0..40 {
                    let passed = play(host, Some((leaver, most)), None);
                    let has_passed = passed.iter().any(|known| known.0 == leaver);
                    if has_passed {
                        assert_eq!(passed, with, "{host:?}: it stayed as long as it takes");
                        continue;
                    }
                    assert!(most as u64 <= own.saturating_sub(leaver as u64), "{host:?}");
                    let others: Vec<_> = passed.iter().map(|known| known.0).collect();
                    let expected: Vec<_> = without.iter().map(|known| known.0).collect();
                    if !newest_first {
                        assert_eq!(others, expected, "{host:?}: the order stays");
                    }
                    assert_eq!(others.len(), expected.len(), "{host:?}: everybody passes");
                    for (who, step) in &passed {
                        let at = |list: &[(usize, u64)]| {
                            list.iter().find(|known| known.0 == *who).unwrap().1
                        };
                        // With the newest first, permits go to other calls than without it.
                        if newest_first {
                            continue;
                        }
                        assert!(*step <= at(&with), "{host:?}: nobody is later for it");
                        if most == 0 {
                            assert_eq!(*step, at(&without), "{host:?}: never polled, never there");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn permits_that_were_set_aside_go_to_the_next_at_once() {
    for algorithm in Algorithm::ALL {
        let (limiter, hand) = limiter(algorithm, false);
        let _all = limiter.try_acquire_n(4);
        let mut waits: Vec<_> = (0..2).map(|_| Box::pin(limiter.acquire_n(4))).collect();
        assert!(!waits.iter_mut().any(poll));
        while limiter.waiting() == 2 {
            hand.advance(MS);
        }
        // The first has its permits, and is never polled again.
        assert!(!poll(&mut waits[1]), "{algorithm}");
        drop(waits.remove(0));
        assert!(poll(&mut waits[0]), "{algorithm}");
    }
}

#[test]
fn a_grant_dropped_at_its_instant_gives_back_all_of_it() {
    let (limiter, hand) = limiter(Algorithm::Gcra, false);
    let _all = limiter.try_acquire_n(4);
    let mut wait = Box::pin(limiter.acquire_n(3));
    assert!(!poll(&mut wait));
    hand.advance(3 * MS);
    assert_eq!((limiter.waiting(), limiter.available()), (0, 0), "granted, not fetched");
    drop(wait);
    assert_eq!(limiter.available(), 3);
}

#[test]
fn a_grant_dropped_later_gives_back_only_what_time_has_not() {
    let (limiter, hand) = limiter(Algorithm::Gcra, false);
    let _all = limiter.try_acquire_n(4);
    let mut wait = Box::pin(limiter.acquire_n(3));
    assert!(!poll(&mut wait));
    hand.advance(5 * MS);
    assert_eq!(limiter.available(), 2);
    drop(wait);
    assert_eq!(limiter.available(), 4, "three back, and never above full");
}

#[test]
fn dropped_while_it_holds_for_jitter() {
    let (limiter, hand) = limiter(Algorithm::Gcra, false);
    let _all = limiter.try_acquire_n(4);
    let mut waits: Vec<_> = (0..20).map(|_| Box::pin(limiter.acquire_n(4).jitter(255))).collect();
    assert!(!waits.iter_mut().any(poll));
    for _ in 0..200 {
        hand.advance(MS);
        waits.retain_mut(|wait| !poll(wait));
        if waits.len() == 10 {
            break;
        }
    }
    drop(waits);
    hand.advance(4 * MS);
    assert_eq!((limiter.available(), limiter.waiting(), hand.timers()), (4, 0, 0));
}

/// It once gave back permits of a call that came after the reset.
#[test]
fn a_grant_that_is_held_gives_back_nothing_of_a_new_state() {
    for algorithm in Algorithm::ALL {
        let (limiter, hand) = limiter(algorithm, false);
        let _all = limiter.try_acquire_n(4);
        let mut wait = Box::pin(limiter.acquire_n(4).jitter(255));
        assert!(!poll(&mut wait));
        while limiter.waiting() > 0 {
            hand.advance(MS);
        }
        if poll(&mut wait) {
            continue; // a jitter of zero
        }
        limiter.reset();
        assert!(limiter.try_acquire_n(4).is_allowed());
        drop(wait);
        assert_eq!(limiter.available(), 0, "{algorithm}: that was somebody else's");
    }
}

#[test]
fn a_panic_beside_a_wait_is_a_drop() {
    let (limiter, hand) = limiter(Algorithm::Gcra, false);
    let _all = limiter.try_acquire_n(4);
    let mut next = Box::pin(limiter.acquire_n(2));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut wait = Box::pin(limiter.acquire_n(2));
        assert!(!poll(&mut wait));
        assert!(!poll(&mut next));
        panic!("as a test");
    }));
    assert!(panicked.is_err());
    hand.advance(2 * MS);
    assert!(poll(&mut next));
    assert_eq!(limiter.waiting(), 0);
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
    let _all = limiter.try_acquire_n(4);
    let bomb = Waker::from(Arc::new(Bomb));
    let mut first = Box::pin(limiter.acquire());
    assert!(first.as_mut().poll(&mut Context::from_waker(&bomb)).is_pending());
    let mut second = Box::pin(limiter.acquire());
    assert!(!poll(&mut second));
    assert!(catch_unwind(AssertUnwindSafe(|| hand.advance(MS))).is_err());
    hand.advance(MS);
    assert!(poll(&mut first) && poll(&mut second));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_nobody_polls_holds_up_nobody_else() {
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).clock(Clock::tokio()).build().unwrap();
    let _first = limiter.try_acquire();
    // Two calls at the head, polled once and never again.
    let mut forgotten = (Box::pin(limiter.acquire()), Box::pin(limiter.acquire()));
    poll_fn(|context| {
        assert!(forgotten.0.as_mut().poll(context).is_pending());
        assert!(forgotten.1.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    let begin = limiter.now();
    limiter.acquire().await.unwrap();
    let took = limiter.now().since(begin);
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(303), "{took:?}");
}

#[test]
fn a_runtime_that_shuts_down_leaves_nothing_and_others_go_on() {
    let limiter = Limiter::new(Quota::per_second(1000).burst(1)).unwrap();
    let _first = limiter.force(200);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let others: Vec<_> = (0..5)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.acquire().block().map(drop))
        })
        .collect();
    let (sender, told) = mpsc::channel();
    let elsewhere = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let mut wait = pin!(limiter.acquire());
                poll_fn(|context| {
                    assert!(wait.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                sender.send(()).unwrap();
                wait.await.map(drop)
            })
        })
    };
    runtime.block_on(async {
        for _ in 0..10 {
            tokio::spawn({
                let limiter = limiter.clone();
                async move { limiter.acquire().await.map(drop) }
            });
        }
        // Lets them start to wait.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    });
    told.recv().unwrap();
    assert!(limiter.waiting() >= 11);
    drop(runtime);
    // The driver of the queue may have gone with the runtime; the other calls still pass.
    for other in others {
        assert_eq!(other.join().unwrap(), Ok(()));
    }
    assert_eq!(elsewhere.join().unwrap(), Ok(()));
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn a_runtime_that_nobody_drives_holds_up_no_other() {
    let current = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limiter = Limiter::new(Quota::per_second(1000).burst(1)).unwrap();
    let keyed = KeyedLimiter::<u64>::new(Quota::per_second(1000).burst(1)).unwrap();
    let (first, second) = (current(), current());
    for runtime in [&first, &second] {
        runtime.block_on(async {
            for _ in 0..3 {
                limiter.acquire().await.unwrap();
                keyed.acquire(&7).await.unwrap();
            }
        });
    }
}

#[test]
fn a_runtime_that_nobody_drives_holds_up_no_thread() {
    for threads_before in [0, 1] {
        let limiter = Limiter::new(Quota::per_second(1000).burst(1)).unwrap();
        let _first = limiter.force(300);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (sender, ended) = mpsc::channel();
        let block = || {
            let (limiter, sender) = (limiter.clone(), sender.clone());
            thread::spawn(move || {
                let waits = limiter.acquire().within(Duration::from_secs(5));
                sender.send(waits.block().map(drop)).unwrap();
            });
        };
        (0..threads_before).for_each(|_| block());
        while limiter.waiting() < threads_before {
            thread::yield_now();
        }
        // A task, polled once in a runtime that does not run.
        let mut forgotten = Box::pin(limiter.acquire());
        let inside = runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        assert!(forgotten.as_mut().poll(&mut context).is_pending());
        drop(inside);
        block();
        for _ in 0..=threads_before {
            let end = ended.recv_timeout(Duration::from_secs(20));
            assert_eq!(end, Ok(Ok(())), "{threads_before} threads before the task");
        }
    }
}

#[test]
fn a_runtime_without_timers_is_served_by_another_that_has_them() {
    let limiter = Limiter::new(Quota::per_second(100).burst(1)).unwrap();
    let _first = limiter.force(30);
    let good = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (limits, (sender, told)) = (limiter.clone(), mpsc::channel());
    let crowd = thread::spawn(move || {
        good.block_on(async {
            let mut waits = (Box::pin(limits.acquire()), Box::pin(limits.acquire()));
            poll_fn(|context| {
                assert!(waits.0.as_mut().poll(context).is_pending());
                assert!(waits.1.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            sender.send(()).unwrap();
            let first = waits.0.await.is_ok();
            first && waits.1.await.is_ok()
        })
    });
    told.recv().unwrap();
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let served = bare.block_on(async { limiter.acquire().within(Duration::from_secs(9)).await });
    assert!(crowd.join().unwrap(), "nobody of the good runtime is refused for the bad one");
    // The other runtime served it, or it was refused because that runtime was gone.
    assert!(served.is_ok() || matches!(served, Err(Refused::NoRuntime(_))), "{served:?}");
}

#[test]
fn a_runtime_without_timers_is_told_so() {
    let limiter = Limiter::new(Quota::per_second(1).burst(1)).unwrap();
    let _first = limiter.try_acquire();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(async { limiter.acquire().await });
    assert!(matches!(refused, Err(Refused::NoRuntime(_))), "{refused:?}");
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn threads_and_tasks_wait_in_one_queue() {
    let limiter = Limiter::new(Quota::per_second(2000).burst(1)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || {
                for _ in 0..25 {
                    limiter.acquire().block().unwrap();
                }
            })
        })
        .collect();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    for _ in 0..25 {
                        limiter.acquire().await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn permits_of_a_call_that_left_before_it_passed_count_as_neither_allowed_nor_refunded() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let (clock, hand) = Clock::manual();
        let builder = Limiter::builder(Quota::per_second(2)).clock(clock).algorithm(algorithm);
        let limiter = builder.counted().build().unwrap();
        let _used = limiter.try_acquire_n(2);
        let mut wait = Box::pin(limiter.acquire_n(2));
        assert!(!poll(&mut wait), "{algorithm:?}");
        // It has its permits, and leaves before it is polled again.
        hand.advance(Duration::from_secs(1));
        assert!(limiter.try_acquire().is_denied(), "{algorithm:?}");
        drop(wait);
        assert_eq!(limiter.available(), 2, "{algorithm:?}");
        let counts = limiter.counts();
        assert_eq!((counts.allowed_cost, counts.refunded), (2, 0), "{algorithm:?}");
    }
}
