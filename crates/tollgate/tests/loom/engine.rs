//! Interleavings of the engine's guarantees, by loom, with the worker as a thread: all of them, or
//! all with at most three preemptions where three threads take part.
//!
//! Loom has no time. The delays here are hours, so no timer ever falls due: only a leading edge, or
//! a flush, runs. A lost wake-up shows as a deadlock, which loom reports.

use crate::explore;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};
use std::time::Duration;
use tollgate::{Debouncer, DebouncerBuilder, OnDrop};

const HOUR: Duration = Duration::from_secs(3_600);
/// No clock reaches it.
const EVER: Duration = Duration::MAX;

/// The record of the action. ORDERING: `SeqCst` throughout, because the test checks which event
/// came first; the guarantees themselves rest on the lock of the engine.
#[derive(Clone)]
struct Log {
    runs: Arc<AtomicU64>,
    last: Arc<AtomicU64>,
    is_inside: Arc<AtomicBool>,
    may_start: Arc<AtomicBool>,
}

impl Log {
    fn new() -> Self {
        Self {
            runs: Arc::new(AtomicU64::new(0)),
            last: Arc::new(AtomicU64::new(0)),
            is_inside: Arc::new(AtomicBool::new(false)),
            may_start: Arc::new(AtomicBool::new(true)),
        }
    }

    fn start(&self, builder: DebouncerBuilder) -> Debouncer<u64> {
        let log = self.clone();
        builder
            .start(move |fired: tollgate::Fired<u64>| {
                assert!(log.may_start.load(SeqCst), "it started after the stop");
                assert!(!log.is_inside.swap(true, SeqCst), "two at once");
                log.last.store(fired.into_value(), SeqCst);
                log.runs.fetch_add(1, SeqCst);
                assert!(log.is_inside.swap(false, SeqCst), "two at once");
            })
            .unwrap()
    }

    fn runs(&self) -> u64 {
        self.runs.load(SeqCst)
    }
}

#[test]
fn after_a_stop_the_action_never_starts() {
    loom::model(|| {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR).leading());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.trigger(1));
        mine.stop();
        // A running action may continue; so only runs that have not started by now are forbidden.
        if !mine.is_running() {
            log.may_start.store(false, SeqCst);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_wait_for_the_end_never_misses_a_run() {
    loom::model(|| {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR).leading());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.trigger(1));
        assert_eq!(mine.stop_and_wait(EVER).block(), Ok(()));
        assert!(!log.is_inside.load(SeqCst), "it still runs");
        let runs = log.runs();
        log.may_start.store(false, SeqCst);
        other.join().unwrap();
        assert_eq!(log.runs(), runs);
    });
}

#[test]
fn when_the_end_is_told_the_action_is_released() {
    loom::model(|| {
        struct Captured(Arc<AtomicBool>);
        impl Drop for Captured {
            fn drop(&mut self) {
                // ORDERING: SeqCst, as above.
                self.0.store(true, SeqCst);
            }
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        let captured = Captured(Arc::clone(&is_dropped));
        let mine = Debouncer::builder(HOUR)
            .leading()
            .start(move |_| assert!(!captured.0.load(SeqCst)))
            .unwrap();
        mine.trigger(());
        assert_eq!(mine.stop_and_wait(EVER).block(), Ok(()));
        assert!(is_dropped.load(SeqCst));
    });
}

#[test]
fn two_who_wait_for_the_end_are_both_told() {
    explore(3, || {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR).leading());
        mine.trigger(1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.stop_and_wait(EVER).block());
        assert_eq!(mine.stop_and_wait(EVER).block(), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_trigger_that_meets_the_exit_of_the_worker_is_not_lost() {
    loom::model(|| {
        let log = Log::new();
        // A leading edge alone leaves no deadline, so its worker ends at once.
        let mine = log.start(Debouncer::builder(HOUR).leading());
        assert!(mine.trigger(1));
        mine.cancel();
        assert!(mine.trigger(2));
        assert_eq!(mine.finish_and_wait(EVER).block(), Ok(()));
        assert_eq!(log.last.load(SeqCst), 2);
        assert!((1..=2).contains(&log.runs()));
    });
}

#[test]
fn a_flush_wakes_a_worker_that_goes_to_sleep() {
    loom::model(|| {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR));
        assert!(mine.trigger(1));
        assert!(mine.flush());
        // Only the worker can end this.
        assert_eq!(mine.finish_and_wait(EVER).block(), Ok(()));
        assert_eq!((log.runs(), log.last.load(SeqCst)), (1, 1));
    });
}

#[test]
fn what_is_triggered_before_the_finish_runs_by_the_end() {
    explore(3, || {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR));
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.trigger(1));
        assert_eq!(mine.finish_and_wait(EVER).block(), Ok(()));
        let is_taken = other.join().unwrap();
        assert_eq!(log.runs(), u64::from(is_taken));
    });
}

#[test]
fn triggers_and_flushes_of_two_threads_lose_nothing() {
    explore(3, || {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR));
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            theirs.trigger(1);
            theirs.flush();
        });
        mine.trigger(2);
        other.join().unwrap();
        assert_eq!(mine.finish_and_wait(EVER).block(), Ok(()));
        let (runs, last) = (log.runs(), log.last.load(SeqCst));
        assert!((1..=2).contains(&runs) && (1..=2).contains(&last), "{runs} runs, last {last}");
    });
}

#[test]
fn a_stop_that_meets_a_flush_ends_the_worker() {
    explore(3, || {
        let log = Log::new();
        let mine = log.start(Debouncer::builder(HOUR));
        mine.trigger(1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.flush());
        assert_eq!(mine.stop_and_wait(EVER).block(), Ok(()));
        log.may_start.store(false, SeqCst);
        other.join().unwrap();
    });
}

#[test]
fn dropping_the_last_handle_ends_the_worker_and_runs_what_is_pending_if_told_to() {
    use std::sync::{Arc, atomic::AtomicU64};
    for (on_drop, runs_each) in [(OnDrop::Cancel, 0), (OnDrop::Flush, 1)] {
        // Not of loom: they count over all interleavings. Loom waits for the worker in each.
        let (models, runs) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (of_model, of_action) = (Arc::clone(&models), Arc::clone(&runs));
        loom::model(move || {
            of_model.fetch_add(1, SeqCst);
            let counted = Arc::clone(&of_action);
            let mine = Debouncer::builder(HOUR)
                .on_drop(on_drop)
                .start(move |_| assert!(counted.fetch_add(1, SeqCst) < u64::MAX))
                .unwrap();
            mine.trigger(1);
            let theirs = mine.clone();
            let other = thread::spawn(move || drop(theirs));
            drop(mine);
            other.join().unwrap();
        });
        assert_eq!(runs.load(SeqCst), runs_each * models.load(SeqCst), "{on_drop:?}");
    }
}

#[test]
fn a_run_that_triggers_again_and_a_drop_of_the_last_handle_meet() {
    explore(3, || {
        let myself = Arc::new(std::sync::OnceLock::<tollgate::WeakDebouncer<u64>>::new());
        let again = Arc::clone(&myself);
        let mine = Debouncer::builder(HOUR)
            .both_edges()
            .start(move |fired: tollgate::Fired<u64>| {
                if let Some(again) = again.get() {
                    again.trigger(fired.into_value() + 1);
                }
            })
            .unwrap();
        assert!(myself.set(mine.downgrade()).is_ok());
        mine.trigger(1);
        drop(mine);
    });
}
