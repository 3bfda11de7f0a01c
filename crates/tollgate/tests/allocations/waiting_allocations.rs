//! Waiting allocates no memory once the queue is warm.
#![cfg(feature = "tokio")]

use crate::counting::blocks_so_far as blocks;
use std::time::Duration;
use tollgate::{Clock, Limiter, Quota};

/// Everything runs on this thread: the tasks, the driver of the queue and tokio's timers.
#[tokio::test(start_paused = true, flavor = "current_thread")]
async fn tasks_that_wait_ask_for_no_memory() {
    let build = || Limiter::builder(Quota::per_second(1000).burst(3)).clock(Clock::tokio());
    let newest_first = build().newest_first().build().unwrap();
    for limiter in [build().build().unwrap(), newest_first] {
        let tasks: Vec<_> = (0..50u64)
            .map(|number| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let (mut before, patience) = (0, Duration::from_secs(60));
                    for turn in 0..100 {
                        if turn == 30 {
                            before = blocks();
                        }
                        let wait = limiter.acquire_n(number % 3 + 1).within(patience).jitter(1);
                        wait.await.unwrap();
                    }
                    blocks() - before
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 0);
        }
    }
}

#[test]
fn threads_that_wait_ask_for_no_memory() {
    let limiter = Limiter::new(Quota::per_second(20_000).burst(1)).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..50 {
                        limiter.acquire().block().unwrap();
                    }
                    let before = blocks();
                    for _ in 0..200 {
                        limiter.acquire().block().unwrap();
                    }
                    blocks() - before
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 0);
        }
    });
}
