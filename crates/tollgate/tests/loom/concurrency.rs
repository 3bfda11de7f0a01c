//! Interleavings of limits on calls in flight, by loom: all of them, or all with at most three
//! preemptions where three parties or a queue take part.
//!
//! A lost wake-up shows as a deadlock, which loom reports. A waiting thread parks by loom's means.

use crate::explore;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Acquire, CallOutcome, Concurrency, KeyedConcurrency,
    adaptive::{AdaptiveConcurrency, law::Aimd},
};

fn limit(limit: u64) -> Concurrency {
    Concurrency::builder(limit).max_waiting(2).max_wait(Duration::MAX).build().unwrap()
}

fn keyed(limit: u64) -> KeyedConcurrency<u64> {
    KeyedConcurrency::builder(limit).max_waiting(2).max_wait(Duration::MAX).build().unwrap()
}

/// Polls once, for a waiter whose wake-ups do not matter.
fn poll(future: &mut Acquire) -> Poll<Result<tollgate::Permit, tollgate::Full>> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn two_threads_one_slot_exactly_one() {
    loom::model(|| {
        let mine = limit(1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire());
        let first = mine.try_acquire();
        let second = other.join().unwrap();
        assert!(first.is_ok() ^ second.is_ok());
        assert_eq!(mine.in_flight(), 1);
        drop((first, second));
        assert_eq!(mine.in_flight(), 0);
    });
}

#[test]
fn two_threads_two_slots_both() {
    loom::model(|| {
        let mine = limit(2);
        let theirs = mine.clone();
        let other = thread::spawn(move || drop(theirs.try_acquire().unwrap()));
        drop(mine.try_acquire().unwrap());
        other.join().unwrap();
        assert_eq!(mine.in_flight(), 0);
    });
}

#[test]
fn a_release_racing_with_a_waiter_wakes_it() {
    loom::model(|| {
        let mine = limit(1);
        let held = mine.try_acquire().unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || drop(theirs.acquire().block().unwrap()));
        drop(held);
        other.join().unwrap();
        assert_eq!((mine.in_flight(), mine.waiting()), (0, 0));
    });
}

/// Adds one in two relaxed steps: loom lets them read old numbers unless something orders them.
fn visit(number: &AtomicU64) {
    // ORDERING: Relaxed. The permit that is held meanwhile has to provide the ordering.
    let seen = number.load(Relaxed);
    number.store(seen + 1, Relaxed);
}

#[test]
fn a_holder_sees_what_the_one_before_did() {
    loom::model(|| {
        let mine = limit(1);
        let number = Arc::new(AtomicU64::new(0));
        let (theirs, shared) = (mine.clone(), Arc::clone(&number));
        let other = thread::spawn(move || {
            let _permit = theirs.acquire().block().unwrap();
            visit(&shared);
        });
        let mine = mine.try_acquire().map(|_permit| visit(&number));
        other.join().unwrap();
        // ORDERING: Relaxed. The join orders it.
        assert_eq!(number.load(Relaxed), 1 + u64::from(mine.is_ok()));
    });
}

#[test]
fn a_holder_sees_what_was_done_before_a_release_with_a_queue() {
    loom::model(|| {
        let mine = limit(1);
        let number = Arc::new(AtomicU64::new(0));
        let held = mine.try_acquire().unwrap();
        let mut future = mine.acquire();
        assert!(poll(&mut future).is_pending());
        let (theirs, shared) = (mine, Arc::clone(&number));
        let other = thread::spawn(move || theirs.try_acquire().map(|_permit| visit(&shared)));
        visit(&number);
        drop(held); // to the waiter in the queue
        drop(future); // and free
        let theirs = other.join().unwrap();
        // ORDERING: Relaxed. The join orders it.
        assert_eq!(number.load(Relaxed), 1 + u64::from(theirs.is_ok()));
    });
}

#[test]
fn a_waiter_dropped_during_a_release_loses_no_permit() {
    loom::model(|| {
        let mine = limit(1);
        let held = mine.try_acquire().unwrap();
        let mut future = mine.acquire();
        assert!(poll(&mut future).is_pending());
        // Whether it was granted by then or not, its permit comes back.
        let other = thread::spawn(move || drop(future));
        drop(held);
        other.join().unwrap();
        assert_eq!((mine.in_flight(), mine.waiting()), (0, 0));
        assert!(mine.try_acquire().is_ok());
    });
}

#[test]
fn a_waiter_dropped_during_a_release_passes_its_turn_on() {
    explore(3, || {
        let mine = limit(1);
        let held = mine.try_acquire().unwrap();
        let mut future = mine.acquire();
        assert!(poll(&mut future).is_pending());
        let theirs = mine.clone();
        let next = thread::spawn(move || drop(theirs.acquire().block().unwrap()));
        let leaver = thread::spawn(move || drop(future));
        drop(held);
        leaver.join().unwrap();
        next.join().unwrap();
        assert_eq!((mine.in_flight(), mine.waiting()), (0, 0));
    });
}

#[test]
fn a_try_racing_with_a_change_is_not_refused_for_it() {
    loom::model(|| {
        let mine = limit(1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire().is_ok());
        mine.set_limit(2).unwrap();
        assert!(other.join().unwrap(), "it fits under either limit");
        assert_eq!((mine.in_flight(), mine.limit()), (0, 2));
    });
}

#[test]
fn a_lower_limit_is_never_exceeded_by_a_try_that_comes_after_it() {
    loom::model(|| {
        let mine = limit(2);
        let held = mine.try_acquire().unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire());
        mine.set_limit(1).unwrap();
        // From here on nothing above the limit is admitted: the calls in flight can only fall.
        let after = mine.in_flight();
        let second = other.join().unwrap();
        assert_eq!(mine.in_flight(), after);
        assert_eq!(second.is_ok(), after == 2);
        drop((held, second));
        assert_eq!(mine.in_flight(), 0);
    });
}

#[test]
fn a_higher_limit_racing_with_a_waiter_admits_it() {
    loom::model(|| {
        let mine = limit(1);
        let _held = mine.try_acquire().unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || drop(theirs.acquire().block().unwrap()));
        mine.set_limit(2).unwrap();
        other.join().unwrap();
        assert_eq!((mine.in_flight(), mine.waiting()), (1, 0));
    });
}

#[test]
fn a_close_racing_with_a_waiter_refuses_it() {
    loom::model(|| {
        let mine = limit(1);
        let _held = mine.try_acquire().unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.acquire().block().unwrap_err());
        mine.close();
        assert!(other.join().unwrap().is_closed());
        assert_eq!((mine.in_flight(), mine.waiting()), (1, 0));
    });
}

#[test]
fn a_queue_that_is_seen_to_be_empty_is_not_found_full() {
    loom::model(|| {
        let mine = Concurrency::builder(2).max_waiting(1).build().unwrap();
        let _held = mine.try_acquire().unwrap();
        let mut future = mine.acquire_n(2);
        assert!(poll(&mut future).is_pending());
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            if theirs.available() == 1 {
                assert!(poll(&mut theirs.acquire_n(2)).is_pending(), "the queue has a place");
            }
        });
        drop(future);
        other.join().unwrap();
        assert_eq!((mine.in_flight(), mine.waiting()), (1, 0));
    });
}

#[test]
fn a_key_wakes_its_waiter_and_is_forgotten() {
    explore(3, || {
        let mine = keyed(1);
        let held = mine.try_acquire(&7).unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || drop(theirs.acquire(&7).block().unwrap()));
        drop(held);
        other.join().unwrap();
        assert_eq!((mine.len(), mine.total_in_flight(), mine.total_waiting()), (0, 0, 0));
    });
}

#[test]
fn the_bound_on_keys_holds_between_threads() {
    explore(3, || {
        let mine: KeyedConcurrency<u64> = KeyedConcurrency::builder(1).max_keys(1).build().unwrap();
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire(&1));
        let first = mine.try_acquire(&2);
        let second = other.join().unwrap();
        assert!(first.is_ok() ^ second.is_ok());
        assert_eq!(mine.len(), 1);
    });
}

/// A guard that ends, and so lowers the limit, against one that enters and is dropped.
#[test]
fn a_call_that_lowers_the_limit_racing_with_another_loses_no_slot() {
    explore(3, || {
        let law = Aimd::builder().initial(2).min(1).max(2).backoff(0.5).build().unwrap();
        let mine = AdaptiveConcurrency::over(limit(0), law);
        let theirs = mine.clone();
        let held = mine.try_acquire().unwrap();
        let other = thread::spawn(move || drop(theirs.try_acquire()));
        held.end(CallOutcome::Overload);
        other.join().unwrap();
        let report = mine.report();
        assert_eq!((report.in_flight, report.waiting, report.limit), (0, 0, 1));
        let _one = mine.try_acquire().unwrap();
        assert!(mine.try_acquire().is_err());
    });
}
