//! How even the output of a pacer is.

use crate::{Options, harness::progress, stats, table::Table};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{Driver, Late, Pacer, Queued, Quota, Tick};

/// The measured rates, and the duration of each row.
const RATES: [u64; 4] = [100, 1_000, 10_000, 100_000];
const SECONDS: u64 = 1;
/// A kept gap loses so much of a high rate that the jobs of a whole second would take minutes.
const GAPS: u64 = 1_000;

/// The results of one run. Times in microseconds.
struct Shown {
    rate: f64,
    p50: f64,
    p99: f64,
    max: f64,
    /// The most jobs that started within one interval: 1, or 2 at its edges, if all is even.
    batch: f64,
}

/// Runs a queue of empty jobs, and compares when they started with their slots.
fn measure(driver: Driver, rate: u64, late: Late) -> Option<Shown> {
    let most = if late == Late::KeepGap { GAPS } else { u64::MAX };
    let jobs = (rate * SECONDS).min(most);
    let lead = (rate / 4).max(2);
    let pacer = Pacer::builder(Quota::per_second(rate))
        .capacity(lead + jobs)
        .driver(driver)
        .late(late)
        .start()
        .ok()?;
    // The queue is filled before the first job is due, so that filling does not disturb the jobs.
    drop(pacer.slot_n(lead).ok()?);
    let starts = Arc::new(Mutex::new(Vec::with_capacity(jobs as usize)));
    let mut slots = Vec::with_capacity(jobs as usize);
    for _ in 0..jobs {
        let (starts, clock) = (Arc::clone(&starts), pacer.clock().clone());
        let job = move || {
            let now = clock.now();
            starts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(now);
        };
        slots.push(pacer.run(job).ok()?.at());
    }
    pacer.stop_and_wait(Queued::Drain, Duration::from_secs(60)).block().ok()?;
    let starts = std::mem::take(&mut *starts.lock().ok()?);
    show(&slots, &starts, rate)
}

fn show(slots: &[Tick], starts: &[Tick], rate: u64) -> Option<Shown> {
    let micros = |(start, slot): (&Tick, &Tick)| start.since(*slot).as_nanos() as f64 / 1e3;
    let mut late: Vec<f64> = starts.iter().zip(slots).map(micros).collect();
    let took = starts.last()?.since(*starts.first()?);
    let interval = Duration::from_nanos(1_000_000_000 / rate);
    let mut first = 0;
    let mut batch = 0;
    for (index, start) in starts.iter().enumerate() {
        while start.since(starts[first]) >= interval {
            first += 1;
        }
        batch = batch.max(index - first + 1);
    }
    Some(Shown {
        rate: (starts.len() - 1) as f64 / took.as_secs_f64(),
        p50: stats::quantile(&mut late, 0.5)?,
        p99: stats::quantile(&mut late, 0.99)?,
        max: stats::quantile(&mut late, 1.0)?,
        batch: batch as f64,
    })
}

/// The tokio driver runs on a thread of its own, so that this one can wait.
fn in_runtime(rate: u64, late: Late) -> Option<Shown> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    let driver = Driver::on(runtime.handle().clone());
    let (done, until) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || runtime.block_on(until).unwrap_or(()));
    let shown = measure(driver, rate, late);
    done.send(()).ok()?;
    thread.join().ok()?;
    shown
}

/// Prints how far from their slots jobs start.
pub(crate) fn run(options: &Options) {
    println!("\n## pacer: how even the output is\n");
    println!(
        "Empty jobs, queued for {SECONDS} s at each rate (with kept gaps {GAPS} at most). How long \
         after its slot a job starts, in microseconds, and the most jobs that start within one \
         interval: 1 or 2 if all is even, and never more than a worker gets through in that time, \
         which hides how large a batch is at the highest rate. Medians over rounds, the maximum too."
    );
    let headings =
        ["driver, late", "rate asked", "rate got", "p50 us", "p99 us", "max us", "batch"];
    let mut table = Table::new(headings);
    for rate in RATES {
        for (name, late) in [("KeepPace", Late::KeepPace), ("KeepGap", Late::KeepGap)] {
            for is_tokio in [false, true] {
                let driver = if is_tokio { "tokio" } else { "thread" };
                progress(&format!("pacer {rate}/s {driver} {name}"));
                let once = |_| {
                    if is_tokio {
                        in_runtime(rate, late)
                    } else {
                        measure(Driver::thread(), rate, late)
                    }
                };
                let all: Vec<_> = (0..options.rounds()).filter_map(once).collect();
                let middle = |of: fn(&Shown) -> f64| {
                    let value = stats::median(all.iter().map(|shown| Some(of(shown))));
                    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
                };
                table.line([
                    format!("{driver}, {name}"),
                    rate.to_string(),
                    middle(|shown| shown.rate),
                    middle(|shown| shown.p50),
                    middle(|shown| shown.p99),
                    middle(|shown| shown.max),
                    middle(|shown| shown.batch),
                ]);
            }
        }
    }
    println!("\n{table}");
}
