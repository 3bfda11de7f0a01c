//! The cost of a slot of a concurrency limit, compared with tokio's semaphore.

use crate::{
    Options,
    harness::progress,
    stats::{median, median_ratio},
    table::{Table, figure},
};
use std::{
    collections::VecDeque,
    hint::black_box,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tollgate::{CallOutcome, Concurrency, adaptive::AdaptiveConcurrency};

const CALLS: u32 = 100_000;
const CROWD: usize = 100;

/// Nanoseconds of each call.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn time(mut call: impl FnMut()) -> Option<f64> {
    let begun = Instant::now();
    (0..CALLS).for_each(|_| call());
    Some(begun.elapsed().as_nanos() as f64 / f64::from(CALLS))
}

/// A slot goes to the first of many waiters, which then waits again.
fn granted<H, P, F: Future<Output = P>>(first: H, acquire: impl Fn() -> F) -> Option<f64> {
    let mut context = Context::from_waker(Waker::noop());
    let mut crowd = VecDeque::new();
    for _ in 0..CROWD {
        let mut waits = Box::pin(acquire());
        if waits.as_mut().poll(&mut context).is_pending() {
            crowd.push_back(waits);
        }
    }
    let (mut first, mut held) = (Some(first), None);
    time(|| {
        drop((first.take(), held.take()));
        let Some(mut waits) = crowd.pop_front() else { return };
        if let Poll::Ready(permit) = waits.as_mut().poll(&mut context) {
            held = Some(permit);
        }
        Pin::set(&mut waits, acquire());
        drop(waits.as_mut().poll(&mut context));
        crowd.push_back(waits);
    })
}

fn semaphore_granted() -> Option<f64> {
    let semaphore = Arc::new(Semaphore::new(1));
    let first = Arc::clone(&semaphore).try_acquire_owned();
    granted(first, || Arc::clone(&semaphore).acquire_owned())
}

fn concurrency_granted(max_wait: Duration) -> Option<f64> {
    let limit = Concurrency::builder(1).max_waiting(1000).max_wait(max_wait).build().ok()?;
    granted(limit.try_acquire(), || limit.acquire())
}

fn semaphore_free() -> Option<f64> {
    let semaphore = Arc::new(Semaphore::new(10));
    time(|| drop(black_box(Arc::clone(&semaphore).try_acquire_owned())))
}

fn concurrency_free() -> Option<f64> {
    let limit = Concurrency::new(10).ok()?;
    time(|| drop(black_box(limit.try_acquire())))
}

fn adaptive_free() -> Option<f64> {
    let limit = AdaptiveConcurrency::new();
    time(|| limit.try_acquire().into_iter().for_each(|call| call.end(CallOutcome::Success)))
}

type Row = (&'static str, fn() -> Option<f64>);

/// Prints the cost of a free slot, and of one with many waiters.
pub(crate) fn run(options: &Options) {
    println!("\n## slots: one slot of a concurrency limit\n");
    println!(
        "Nanoseconds for a slot taken and given back, one thread; beside tokio's semaphore in the same round. \
         In the lower rows {CROWD} futures wait, and each that is served asks anew."
    );
    let tables: [[Row; 3]; 2] = [
        [
            ("tokio Semaphore, free", semaphore_free),
            ("Concurrency, free", concurrency_free),
            ("AdaptiveConcurrency, free, measured", adaptive_free),
        ],
        [
            ("tokio Semaphore, waited for", semaphore_granted),
            ("Concurrency, waited for, no deadline", || concurrency_granted(Duration::MAX)),
            ("Concurrency, waited for, 10 s", || concurrency_granted(Duration::from_secs(10))),
        ],
    ];
    let mut table = Table::new(["slot", "ns", "ratio"]);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
        return;
    };
    for rows in tables {
        let mut times = rows.map(|_| Vec::new());
        for round in 0..options.rounds() {
            progress(&format!("slots {round}"));
            for ((_, measure), times) in rows.iter().zip(&mut times) {
                let measured = tokio::task::unconstrained(async { measure() });
                times.push(runtime.block_on(measured));
            }
        }
        for ((name, _), own) in rows.iter().zip(&times) {
            let ratio = median_ratio(own, &times[0]);
            table.line([(*name).to_owned(), figure(median(own.iter().copied())), figure(ratio)]);
        }
    }
    println!("\n{table}");
}
