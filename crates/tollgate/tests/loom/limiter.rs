//! Interleavings of the lock-free paths, by loom: all of them, or all with at most one or two preemptions
//! where a change of quota or a lease takes part.
//!
//! Times are passed in, so that loom explores only the word, its parameter slots and the ledger.

use crate::explore;
use loom::thread;
use std::time::Duration;
use tollgate::{Algorithm, Bypass, Clock, Inherit, Limiter, Quota, Tick};

const NOW: Tick = Tick::from_secs(1);

fn limiter(algorithm: Algorithm, quota: Quota) -> Limiter {
    let (clock, _hand) = Clock::manual();
    Limiter::builder(quota).algorithm(algorithm).clock(clock).build().unwrap()
}

/// Algorithms whose state is one word.
const WORDS: [Algorithm; 4] =
    [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingCounter];

#[test]
fn two_threads_one_permit_exactly_one_winner() {
    for algorithm in WORDS {
        loom::model(move || {
            let mine = limiter(algorithm, Quota::per_minute(1));
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_allowed());
            let first = mine.try_acquire_at(NOW, 1).is_allowed();
            assert!(first ^ other.join().unwrap());
            assert_eq!(mine.available_at(NOW), 0);
        });
    }
}

#[test]
fn two_threads_two_permits_both_win() {
    for algorithm in WORDS {
        loom::model(move || {
            let mine = limiter(algorithm, Quota::per_minute(2));
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_allowed());
            assert!(mine.try_acquire_at(NOW, 1).is_allowed());
            assert!(other.join().unwrap());
            assert_eq!(mine.available_at(NOW), 0);
        });
    }
}

#[test]
fn a_cancel_racing_with_an_acquire_conserves_the_permit() {
    for algorithm in WORDS {
        loom::model(move || {
            let mine = limiter(algorithm, Quota::per_minute(1));
            let reservation = mine.reserve_at(NOW, 1, Duration::ZERO).unwrap();
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_allowed());
            assert_eq!(reservation.cancel_at(NOW), 1);
            let taken = u64::from(other.join().unwrap());
            assert_eq!(mine.available_at(NOW), 1 - taken);
        });
    }
}

#[test]
fn two_cancels_give_back_both() {
    loom::model(|| {
        let mine = limiter(Algorithm::Gcra, Quota::per_minute(5));
        let first = mine.reserve_at(NOW, 2, Duration::ZERO).unwrap();
        let second = mine.reserve_at(NOW, 3, Duration::ZERO).unwrap();
        let other = thread::spawn(move || first.cancel_at(NOW));
        let back = second.cancel_at(NOW) + other.join().unwrap();
        assert_eq!((back, mine.available_at(NOW)), (5, 5));
    });
}

/// Two quotas of very different scale: a word of one read with the parameters of the other would
/// be nonsense.
fn scales(algorithm: Algorithm) -> (Quota, Quota) {
    match algorithm {
        Algorithm::Gcra => (Quota::per_hour(10), Quota::per_second(1_000_000_000).burst(10)),
        _ => (Quota::per_hour(10), Quota::per(10, Duration::from_millis(7))),
    }
}

#[test]
fn a_change_of_quota_racing_with_an_acquire_pairs_no_old_quota_with_a_new_word() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        explore(1, move || {
            let (slow, fast) = scales(algorithm);
            let mine = limiter(algorithm, slow);
            assert!(mine.try_acquire_at(NOW, 4).is_allowed());
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1));
            mine.set_quota_at(NOW, fast, Inherit::AsIs).unwrap();
            let decision = other.join().unwrap();
            assert!(decision.is_allowed());
            assert_eq!((decision.limit(), decision.remaining()), (10, 5));
            assert_eq!(mine.available_at(NOW), 5, "one charge, whichever came first");
        });
    }
}

#[test]
fn a_change_racing_with_a_denial_is_seen_by_it() {
    explore(1, || {
        let (slow, fast) = scales(Algorithm::Gcra);
        let mine = limiter(Algorithm::Gcra, slow);
        assert!(mine.try_acquire_at(NOW, 10).is_allowed());
        let theirs = mine.clone();
        // A denial writes nothing, so it must check that its parameters were current: with the
        // word of one quota and the parameters of the other, the limiter would look full.
        let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_denied());
        mine.set_quota_at(NOW, fast, Inherit::AsIs).unwrap();
        assert!(other.join().unwrap());
        assert_eq!(mine.available_at(NOW), 0);
    });
}

#[test]
fn a_refund_and_a_reset_racing_with_an_acquire() {
    loom::model(|| {
        let mine = limiter(Algorithm::Gcra, Quota::per_minute(2));
        assert!(mine.try_acquire_at(NOW, 2).is_allowed());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_allowed());
        assert_eq!(mine.refund_at(NOW, 1), 1);
        let taken = u64::from(other.join().unwrap());
        assert_eq!(mine.available_at(NOW), 1 - taken);
    });
    loom::model(|| {
        let mine = limiter(Algorithm::Gcra, Quota::per_minute(1));
        assert!(mine.try_acquire_at(NOW, 1).is_allowed());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1).is_allowed());
        mine.reset_at(NOW);
        let taken = u64::from(other.join().unwrap());
        assert_eq!(mine.available_at(NOW), 1 - taken);
    });
}

#[test]
fn bypass_on_and_off_charges_at_most_what_was_not_bypassed() {
    loom::model(|| {
        let mine = limiter(Algorithm::Gcra, Quota::per_minute(1));
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(NOW, 1));
        mine.bypass(Bypass::On);
        mine.bypass(Bypass::Off);
        let decision = other.join().unwrap();
        assert!(decision.is_allowed());
        assert_eq!(mine.available_at(NOW), u64::from(decision.is_bypassed()));
    });
}

#[test]
fn two_leases_on_three_permits_share_them_and_give_back_the_rest() {
    explore(2, || {
        let mine = limiter(Algorithm::Gcra, Quota::once(3));
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            let mut lease = theirs.lease(2, Duration::from_secs(1));
            u64::from(lease.try_acquire().is_allowed())
        });
        let mut lease = mine.lease(2, Duration::from_secs(1));
        let first = u64::from(lease.try_acquire().is_allowed());
        drop(lease);
        let used = first + other.join().unwrap();
        assert_eq!(used, 2, "two of three permits are enough for both");
        assert_eq!(mine.available_at(NOW), 3 - used);
    });
}
