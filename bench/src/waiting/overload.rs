//! More callers than permits, for ever: which callers are served, and after how long?
//!
//! Callers come at a steady pace, half as many again as the rate allows, and leave when they have
//! waited too long. In the order of arrival every caller waits until almost too late. Newest first
//! serves most callers at once, and the callers that leave are those that would have left anyway. A
//! limiter that books time for callers that left serves no caller in the end.

use super::{
    Extent, NewestFirst, Rate, Rounds, Row, all, crowd::runtime, percent, subject::Waiting, whole,
};
use crate::{
    harness::progress,
    machine::{monotonic_ns, process_cpu_ns},
    stats::quantile,
    table::{Table, figure},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval, timeout};

const RATE: Rate = Rate { per_second: 1000, burst: 1 };
const CALLERS_PER_SECOND: f64 = 1500.0;
const PATIENCE: Duration = Duration::from_millis(500);
/// After this time the queue has its final length.
const WARM_UP: Duration = Duration::from_millis(1500);

/// The results of one measurement.
pub(super) struct Served {
    seconds: f64,
    cpu_us: f64,
    served: f64,
    /// Waits of the callers that were served; NaN if none was.
    half_ms: f64,
    slow_ms: f64,
    slowest_ms: f64,
}

/// Prints the table.
pub(super) fn run(extent: Extent) {
    println!("### Overload: 1500 callers a second at 1000/s, burst 1\n");
    println!(
        "Callers leave after {PATIENCE:?}. Waits are those of callers that were served; {:.1} s for \
         each row and round, after {WARM_UP:?} in which the queue grows.\n",
        extent.time.as_secs_f64()
    );
    let mut rows = all();
    rows.push(Row::of::<NewestFirst>("tollgate, acquire, newest first"));
    let rounds = Rounds::measure(&rows, extent, |row: &Row| {
        progress(&format!("overload: {}", row.name));
        (row.overload)(extent.time).map_err(|error| format!("{}: {error}", row.name))
    });
    progress("");
    let mut table =
        Table::new(["", "rate", "CPU us", "ratio", "half wait ms", "99 % wait ms", "longest ms"]);
    for (at, row) in rows.iter().enumerate() {
        let rate = |it: &Served| it.served / it.seconds / RATE.per_second as f64;
        let cpu_us = |it: &Served| it.cpu_us / it.served;
        table.line([
            row.name.to_owned(),
            percent(rounds.middle(at, rate)),
            figure(rounds.middle(at, cpu_us)),
            figure(rounds.ratio(at, cpu_us)),
            figure(rounds.middle(at, |it| it.half_ms)),
            whole(rounds.middle(at, |it| it.slow_ms)),
            whole(rounds.most(at, |it| it.slowest_ms)),
        ]);
    }
    println!("{table}");
    rounds.print_failures();
}

/// Sends callers to a new limiter.
pub(super) fn measure<W: Waiting>(time: Duration) -> Result<Served, String> {
    runtime()?.block_on(watch::<W>(time))
}

/// When callers were served and how long they had waited, in nanoseconds; or the error.
type Log = Mutex<Result<Vec<(u64, u64)>, String>>;

async fn watch<W: Waiting>(time: Duration) -> Result<Served, String> {
    let limiter = Arc::new(W::new(RATE)?);
    let room = CALLERS_PER_SECOND * (WARM_UP + time).as_secs_f64() * 2.0;
    let log: Arc<Log> = Arc::new(Mutex::new(Ok(Vec::with_capacity(room as usize))));
    send(&limiter, &log, WARM_UP).await;
    let (start_ns, cpu_ns) = (monotonic_ns(), process_cpu_ns());
    send(&limiter, &log, time).await;
    let (end_ns, cpu_ns) = (monotonic_ns(), process_cpu_ns() - cpu_ns);
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let log = log.as_mut().map_err(|error| error.clone())?;
    let within = log.iter().filter(|(at_ns, _)| (start_ns..=end_ns).contains(at_ns));
    let mut waits: Vec<f64> = within.map(|(_, wait_ns)| *wait_ns as f64 / 1e6).collect();
    let mut wait = |share| quantile(&mut waits, share).unwrap_or(f64::NAN);
    let (half_ms, slow_ms, slowest_ms) = (wait(0.5), wait(0.99), wait(1.0));
    Ok(Served {
        seconds: (end_ns - start_ns) as f64 / 1e9,
        cpu_us: cpu_ns as f64 / 1e3,
        served: waits.len() as f64,
        half_ms,
        slow_ms,
        slowest_ms,
    })
}

/// Sends callers at their pace for this time.
async fn send<W: Waiting>(limiter: &Arc<W>, log: &Arc<Log>, time: Duration) {
    let (start, mut sent) = (Instant::now(), 0);
    let mut pace = interval(Duration::from_millis(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while start.elapsed() < time {
        pace.tick().await;
        let due = (start.elapsed().min(time).as_secs_f64() * CALLERS_PER_SECOND) as u64;
        while sent < due {
            sent += 1;
            let (limiter, log) = (limiter.clone(), log.clone());
            tokio::spawn(async move {
                let asked_ns = monotonic_ns();
                let Ok(served) = timeout(PATIENCE, limiter.acquire(1)).await else { return };
                let now_ns = monotonic_ns();
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                match (served, &mut *log) {
                    (Ok(()), Ok(waits)) => waits.push((now_ns, now_ns - asked_ns)),
                    (Err(error), log) => *log = Err(error),
                    (Ok(()), Err(_)) => {}
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::subject::Governor, *};

    #[test]
    fn callers_are_served_or_leave_when_they_have_waited_too_long() {
        let start = Instant::now();
        let served = measure::<Governor>(Duration::from_millis(100)).unwrap();
        let most = start.elapsed().as_secs_f64() * RATE.per_second as f64 + 1.0;
        assert!(served.served > 0.0 && served.served <= most, "{} of {most}", served.served);
        assert!(served.half_ms <= served.slow_ms && served.slow_ms <= served.slowest_ms);
    }
}
