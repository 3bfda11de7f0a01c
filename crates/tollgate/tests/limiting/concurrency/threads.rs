//! Many threads: never above the limit, and nothing is lost.

use super::host::{Waiter, hosts};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    thread,
};
use tollgate::{KeyedConcurrency, Permit};

const THREADS: u64 = 64;
const ROUNDS: u64 = 500;

/// Counts the permits in use, and remembers the maximum.
#[derive(Default)]
struct Room {
    inside: AtomicU64,
    most: AtomicU64,
}

impl Room {
    fn visit(&self, permit: Permit) {
        let inside = self.inside.fetch_add(permit.cost(), SeqCst) + permit.cost();
        self.most.fetch_max(inside, SeqCst);
        thread::yield_now();
        self.inside.fetch_sub(permit.cost(), SeqCst);
        drop(permit);
    }
}

/// Runs `work` on all threads at once.
fn hammer(work: impl Fn(u64) + Sync) {
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(index);
            });
        }
    });
}

#[test]
fn tries_and_waits_of_many_threads_stay_within_the_limit() {
    for host in hosts(7, THREADS) {
        let room = Room::default();
        hammer(|index| {
            for round in 0..ROUNDS {
                let cost = 1 + (index + round) % 3;
                match (index + round) % 4 {
                    0 => drop(host.try_acquire_n(cost).map(|permit| room.visit(permit))),
                    1 => {
                        // A future that is dropped in any state.
                        let mut waiter = host.acquire_n(cost);
                        if let Poll::Ready(Ok(permit)) = waiter.poll() {
                            room.visit(permit);
                        }
                    }
                    _ => room.visit(host.acquire_blocking_n(cost).unwrap()),
                }
            }
        });
        assert!(room.most.into_inner() <= 7);
        host.assert_idle(7, "after all");
        let counts = host.counts();
        assert!(counts.peak_in_flight <= 7);
        assert_eq!(counts.admitted + counts.refused + counts.cancelled, THREADS * ROUNDS);
    }
}

#[test]
fn a_limit_that_changes_under_load_loses_nothing() {
    for host in hosts(1, THREADS) {
        let room = Room::default();
        let busy = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| {
                for step in 0_u64.. {
                    host.set_limit(1 + step % 5);
                    thread::yield_now();
                    if !busy.load(SeqCst) {
                        break;
                    }
                }
            });
            hammer(|_| {
                for _ in 0..100 {
                    room.visit(host.acquire_blocking_n(1).unwrap());
                }
            });
            busy.store(false, SeqCst);
        });
        assert!(room.most.into_inner() <= 5);
        host.set_limit(3);
        host.assert_idle(3, "after all");
        assert_eq!(host.counts().admitted, THREADS * 100);
    }
}

#[test]
fn threads_that_wait_are_served_in_order() {
    for host in hosts(1, THREADS) {
        let served = std::sync::Mutex::new(Vec::new());
        let held = host.try_acquire_n(1).unwrap();
        thread::scope(|scope| {
            for index in 0..8 {
                let (host, served) = (&host, &served);
                scope.spawn(move || {
                    let _permit = host.acquire_blocking_n(1).unwrap();
                    served.lock().unwrap().push(index);
                });
                // The next one starts when this one is in the queue.
                while host.waiting() <= index {
                    thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(served.into_inner().unwrap(), (0..8).collect::<Vec<u64>>());
    }
}

#[test]
fn a_close_wakes_every_thread_that_waits() {
    for host in hosts(1, THREADS) {
        let held = host.try_acquire_n(1).unwrap();
        thread::scope(|scope| {
            let host = &host;
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(move || host.acquire_blocking_n(1))).collect();
            while host.waiting() < 8 {
                thread::yield_now();
            }
            host.close();
            for thread in threads {
                assert!(thread.join().unwrap().unwrap_err().is_closed());
            }
        });
        drop(held);
        host.assert_idle(0, "after all");
    }
}

#[test]
fn holders_that_panic_on_threads_give_back() {
    for host in hosts(2, THREADS) {
        hammer(|_| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _permit = host.acquire_blocking_n(1).unwrap();
                std::panic::resume_unwind(Box::new("the holder fails"));
            }));
            assert!(outcome.is_err());
        });
        host.assert_idle(2, "after all");
    }
}

#[test]
fn many_keys_from_many_threads_leave_nothing_behind() {
    let limit: KeyedConcurrency<u64> =
        KeyedConcurrency::builder(2).max_keys(40).max_waiting(THREADS).counted().build().unwrap();
    let rooms: Vec<Room> = (0..60).map(|_| Room::default()).collect();
    hammer(|index| {
        for round in 0..ROUNDS {
            let key = (index * 7 + round * 13) % 60;
            let most = limit.len();
            assert!(most <= 40, "{most} keys");
            match round % 3 {
                0 => drop(Waiter::new(limit.acquire(&key)).poll()),
                1 => drop(limit.try_acquire(&key).map(|permit| rooms[key as usize].visit(permit))),
                _ => match limit.acquire(&key).block() {
                    Ok(permit) => rooms[key as usize].visit(permit),
                    Err(full) => assert!(full.is_too_many_keys(), "{full}"),
                },
            }
        }
    });
    assert!(rooms.into_iter().all(|room| room.most.into_inner() <= 2));
    assert_eq!((limit.len(), limit.total_in_flight(), limit.total_waiting()), (0, 0, 0));
    assert!(limit.counts().peak_in_flight <= 2);
}

#[test]
fn what_a_holder_did_is_seen_by_the_next() {
    // A plain number, read and written in two steps: lost updates would show. Loom checks the
    // orderings; this only checks that one permit excludes others.
    for host in hosts(1, THREADS) {
        let number = AtomicU64::new(0);
        hammer(|_| {
            for _ in 0..100 {
                let _permit = host.acquire_blocking_n(1).unwrap();
                let seen = number.load(SeqCst);
                thread::yield_now();
                number.store(seen + 1, SeqCst);
            }
        });
        assert_eq!(number.into_inner(), THREADS * 100);
    }
}
