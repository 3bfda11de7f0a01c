//! Plain threads that wait.

use super::{
    Extent, Rate, Rounds, Sample, blocks, percent,
    seats::Seats,
    subject::{Fifo, Governor, Reserving, Waiting},
    whole,
};
use crate::{
    harness::progress,
    table::{Table, figure},
};
use governor::clock::{Clock, DefaultClock};
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

const RATE: Rate = Rate { per_second: 1000, burst: 1 };
const THREADS: usize = 64;

/// A limiter, and the function by which a thread waits for it.
struct Row {
    name: &'static str,
    measure: fn(Duration) -> Result<Sample, String>,
}

/// Prints the table.
pub(super) fn run(extent: Extent) {
    println!("### Plain threads: {THREADS} of them at 1000/s, burst 1\n");
    println!(
        "If all were served in turn, each would wait {THREADS} ms. {:.1} s for each row and round.\n",
        extent.time.as_secs_f64()
    );
    let rows = rows();
    let rounds = Rounds::measure(&rows, extent, |row: &Row| {
        progress(&format!("threads: {}", row.name));
        (row.measure)(extent.time).map_err(|error| format!("{}: {error}", row.name))
    });
    progress("");
    let mut table = Table::new([
        "",
        "rate",
        "CPU us",
        "ratio",
        "grants per thread",
        "differ by",
        "longest wait ms",
        "overtaken",
        "blocks",
    ]);
    for (at, row) in rows.iter().enumerate() {
        let (least, most) = (rounds.least(at, |it| it.least), rounds.most(at, |it| it.most));
        table.line([
            row.name.to_owned(),
            percent(rounds.middle(at, |it| it.permits_per_second() / RATE.per_second as f64)),
            figure(rounds.middle(at, Sample::cpu_us_each)),
            figure(rounds.ratio(at, Sample::cpu_us_each)),
            format!("{} to {}", whole(least), whole(most)),
            whole(rounds.most(at, Sample::spread)),
            whole(rounds.most(at, Sample::longest_ms)),
            percent(rounds.most(at, |it| it.overtaken / it.grants)),
            blocks(rounds.middle(at, Sample::allocations_each)),
        ]);
    }
    println!("{table}");
    rounds.print_failures();
}

fn rows() -> Vec<Row> {
    vec![
        Row {
            name: "governor 0.10, check and sleep in a loop",
            measure: |time| measure(time, check_and_sleep),
        },
        Row {
            name: "governor 0.10, until_ready and park",
            measure: |time| measure(time, |limiter: &Governor| block_on(limiter.acquire(1))),
        },
        Row {
            name: "tollgate, reserve and one sleep",
            measure: |time| {
                measure(time, |limiter: &Reserving| {
                    thread::sleep(limiter.book(1)?);
                    Ok(())
                })
            },
        },
        Row {
            name: "tollgate, acquire and block",
            measure: |time| measure(time, Fifo::acquire_blocking),
        },
    ]
}

/// The loop of a thread whose limiter can only say when to retry.
fn check_and_sleep(limiter: &Governor) -> Result<(), String> {
    let clock = DefaultClock::default();
    while let Err(not_until) = limiter.0.check() {
        thread::sleep(not_until.wait_time_from(clock.now()));
    }
    Ok(())
}

/// Makes threads call a new limiter again and again and measures them.
fn measure<W: Waiting>(
    time: Duration,
    acquire: fn(&W) -> Result<(), String>,
) -> Result<Sample, String> {
    let limiter = W::new(RATE)?;
    let (seats, stop) = (Seats::new([1; THREADS]), AtomicBool::new(false));
    thread::scope(|scope| {
        let sit = |seat| {
            let (limiter, seats, stop) = (&limiter, &seats, &stop);
            move || {
                // ORDERING: Relaxed is enough: the flag publishes nothing, and one more call after
                // it does no harm.
                while !stop.load(Relaxed) {
                    let ask = seats.ask(seat);
                    acquire(limiter)?;
                    seats.served(ask);
                }
                Ok::<_, String>(())
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|seat| scope.spawn(sit(seat))).collect();
        while !seats.all_have_asked() {
            thread::sleep(Duration::from_millis(1));
        }
        let opening = seats.open();
        thread::sleep(time);
        let sample = seats.close(&opening);
        // ORDERING: Relaxed, as above.
        stop.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(sample)
    })
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for each thread, so that this harness does not allocate memory for each wait.
    static WAKER: Waker = Arc::new(Unpark(thread::current())).into();
}

/// Runs a future to its end on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    WAKER.with(|waker| {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return output;
            }
            thread::park();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn every_row_serves_its_threads_at_most_at_the_rate() {
        for row in rows() {
            let start = Instant::now();
            let sample = (row.measure)(Duration::from_millis(200)).unwrap();
            let most = start.elapsed().as_secs_f64() * 1000.0 + 1.0;
            let name = row.name;
            assert!(sample.grants > 0.0 && sample.permits <= most, "{name}: {sample:?}");
        }
    }
}
