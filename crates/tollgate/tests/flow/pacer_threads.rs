//! A pacer and real threads.

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use tollgate::{Late, Pacer, Queued, Quota};

const LONG: Duration = Duration::from_secs(20);

fn fast(capacity: u64) -> Pacer {
    Pacer::builder(Quota::per_second(20_000)).capacity(capacity).start().unwrap()
}

#[test]
fn threads_that_wait_have_slots_of_their_own_and_never_come_early() {
    let pacer = fast(1_000);
    let slots = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let slot = pacer.wait().block().unwrap();
                    assert!(pacer.clock().now() >= slot);
                    slots.lock().unwrap().push(slot);
                }
            });
        }
    });
    let mut slots = slots.into_inner().unwrap();
    slots.sort_unstable();
    assert_eq!(slots.len(), 1_600);
    for pair in slots.windows(2) {
        assert!(pair[1].since(pair[0]) >= Duration::from_micros(50), "{pair:?}");
    }
    assert_eq!(pacer.queued(), 0);
}

#[test]
fn jobs_of_many_threads_all_run_and_none_before_its_slot() {
    let pacer = fast(10_000);
    let (sender, receiver) = mpsc::channel();
    let slots = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            let (pacer, sender, slots) = (&pacer, sender.clone(), &slots);
            scope.spawn(move || {
                for _ in 0..300 {
                    let (sender, clock) = (sender.clone(), pacer.clock().clone());
                    let job = pacer.run(move || sender.send(clock.now()).unwrap()).unwrap();
                    slots.lock().unwrap().push(job.at());
                }
            });
        }
    });
    pacer.stop_and_wait(Queued::Drain, LONG).block().unwrap();
    let ran: Vec<_> = receiver.try_iter().collect();
    let mut slots = slots.into_inner().unwrap();
    slots.sort_unstable();
    assert_eq!((ran.len(), slots.len()), (1_200, 1_200));
    // They run in the order of their slots, so the k-th that ran is the one of the k-th slot.
    for (ran, slot) in ran.iter().zip(&slots) {
        assert!(ran >= slot, "ran at {ran}, slot at {slot}");
    }
    for pair in slots.windows(2) {
        assert!(pair[1].since(pair[0]) >= Duration::from_micros(50), "{pair:?}");
    }
}

#[test]
fn a_kept_gap_holds_after_a_job_that_took_long() {
    let gap = Duration::from_micros(500);
    let pacer = Pacer::builder(Quota::per_second(2_000)).late(Late::KeepGap).start().unwrap();
    let (release, released) = mpsc::channel::<()>();
    pacer.run(move || released.recv().unwrap()).unwrap();
    let (sender, receiver) = mpsc::channel();
    for _ in 0..20 {
        let (sender, clock) = (sender.clone(), pacer.clock().clone());
        pacer.run(move || sender.send(clock.now()).unwrap()).unwrap();
    }
    // All their slots pass while the first job runs.
    pacer.wait().block().unwrap();
    let begin = pacer.clock().now();
    release.send(()).unwrap();
    pacer.stop_and_wait(Queued::Drain, LONG).block().unwrap();
    let ran: Vec<_> = receiver.try_iter().collect();
    assert_eq!(ran.len(), 20);
    for (ran, gaps) in ran.iter().zip(0..) {
        assert!(ran.since(begin) >= gap * gaps, "{gaps}: {:?}", ran.since(begin));
    }
}

#[test]
fn after_the_end_no_job_runs() {
    for round in 0..50 {
        let pacer = fast(1_000);
        let stopped = Arc::new(AtomicBool::new(false));
        let late = Arc::new(AtomicU64::new(0));
        for _ in 0..20 {
            let (stopped, late) = (Arc::clone(&stopped), Arc::clone(&late));
            // ORDERING: SeqCst, so that all threads agree on one order of events.
            let job = move || {
                late.fetch_add(u64::from(stopped.load(Ordering::SeqCst)), Ordering::SeqCst);
            };
            pacer.run(job).unwrap();
        }
        pacer.stop_and_wait(Queued::Drop, LONG).block().unwrap();
        stopped.store(true, Ordering::SeqCst);
        drop(pacer);
        assert_eq!(late.load(Ordering::SeqCst), 0, "round {round}");
    }
}

#[test]
fn a_stop_wakes_threads_that_wait() {
    let pacer = Pacer::builder(Quota::per_hour(1)).start().unwrap();
    pacer.wait().block().unwrap();
    let ready = Barrier::new(4);
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    ready.wait();
                    pacer.wait().block()
                })
            })
            .collect();
        ready.wait();
        while pacer.queued() < 3 {
            thread::yield_now();
        }
        pacer.stop(Queued::Drop);
        for wait in waits {
            assert!(wait.join().unwrap().unwrap_err().is_stopped());
        }
    });
}

#[test]
fn a_panic_leaves_the_worker_alive() {
    let pacer = fast(100);
    let (sender, receiver) = mpsc::channel();
    for k in 0..10 {
        let sender = sender.clone();
        let job = move || {
            assert!(k % 2 == 1, "even jobs panic");
            sender.send(k).unwrap();
        };
        pacer.run(job).unwrap();
    }
    pacer.stop_and_wait(Queued::Drain, LONG).block().unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
    assert_eq!(pacer.panics(), 5);
}

#[test]
fn cancelling_and_running_at_once_conserves_jobs() {
    let pacer = fast(10_000);
    let ran = Arc::new(AtomicU64::new(0));
    let cancelled = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for k in 0..250 {
                    let ran = Arc::clone(&ran);
                    // ORDERING: Relaxed; the joins and the wait for the end publish the counts.
                    let job = move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                    };
                    let job = pacer.run(job).unwrap();
                    if k % 3 == 0 {
                        cancelled.fetch_add(u64::from(job.cancel()), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    pacer.stop_and_wait(Queued::Drain, LONG).block().unwrap();
    // ORDERING: as above.
    let (ran, cancelled) = (ran.load(Ordering::Relaxed), cancelled.load(Ordering::Relaxed));
    assert_eq!((ran + cancelled, pacer.queued()), (1_000, 0));
}
