//! Tasks that call again as soon as they are served.

use super::{
    seats::{Sample, Seats},
    subject::{Waiting, text},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Threads of the runtime.
pub(super) const WORKERS: usize = 2;
/// Longer than any number of tasks needs for one call each, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The rate of a limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) per_second: u64,
    pub(super) burst: u64,
}

/// The waiting tasks, and their demands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) tasks: usize,
    pub(super) rate: Rate,
    pub(super) time: Duration,
    /// The cost of each task, by its number.
    pub(super) cost: fn(usize) -> u64,
    /// Each call gives up after a random time up to this one.
    pub(super) patience: Option<Duration>,
}

impl Case {
    /// Returns how long a task waits if all are served in turn.
    pub(super) fn turn_ms(&self) -> f64 {
        let permits: u64 = (0..self.tasks).map(self.cost).sum();
        permits as f64 * 1e3 / self.rate.per_second as f64
    }

    /// Returns the granted permits, as a share of the rate.
    pub(super) fn achieved(&self, sample: &Sample) -> f64 {
        sample.permits_per_second() / self.rate.per_second as f64
    }
}

/// Makes the runtime that every row runs on.
pub(super) fn runtime() -> Result<Runtime, String> {
    Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().map_err(text)
}

/// Starts the tasks with a new limiter and measures them.
pub(super) fn run<W: Waiting>(case: &Case) -> Result<Sample, String> {
    runtime()?.block_on(watch::<W>(*case))
}

async fn watch<W: Waiting>(case: Case) -> Result<Sample, String> {
    let limiter = Arc::new(W::new(case.rate)?);
    let seats = Arc::new(Seats::new((0..case.tasks).map(case.cost)));
    let failure = Arc::new(Mutex::new(None));
    let mut tasks = JoinSet::new();
    for seat in 0..case.tasks {
        let (limiter, seats, failure) = (limiter.clone(), seats.clone(), failure.clone());
        tasks.spawn(async move {
            if let Err(error) = sit(&*limiter, &seats, (seat, case.patience)).await {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
    }
    let started = Instant::now();
    while !seats.all_have_asked() {
        if started.elapsed() > PATIENCE {
            return Err(format!("not all of {} tasks asked within {PATIENCE:?}", case.tasks));
        }
        sleep(Duration::from_millis(1)).await;
    }
    let opening = seats.open();
    sleep(case.time).await;
    let mut sample = seats.close(&opening);
    tasks.shutdown().await;
    if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    sample.next_ms = next_ms(&*limiter).await;
    Ok(sample)
}

/// Calls again and again, for one seat.
async fn sit<W: Waiting>(
    limiter: &W,
    seats: &Seats,
    (seat, patience): (usize, Option<Duration>),
) -> Result<(), String> {
    let (cost, mut random) = (seats.cost(seat), Random(seat as u64));
    loop {
        let ask = seats.ask(seat);
        match patience {
            None => limiter.acquire(cost).await?,
            Some(most) => {
                match timeout(most.mul_f64(random.share()), limiter.acquire(cost)).await {
                    Ok(served) => served?,
                    Err(_) => {
                        seats.gave_up(ask);
                        continue;
                    }
                }
            }
        }
        seats.served(ask);
    }
}

/// Returns how long one more call waits when all tasks have left; at most [`PATIENCE`].
async fn next_ms<W: Waiting>(limiter: &W) -> f64 {
    let start = Instant::now();
    let _late = timeout(PATIENCE, limiter.acquire(1)).await;
    start.elapsed().as_secs_f64() * 1e3
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number from 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{super::subject::Reserving, *};

    const CASE: Case = Case {
        tasks: 20,
        rate: Rate { per_second: 1000, burst: 1 },
        time: Duration::from_millis(200),
        cost: |_| 1,
        patience: None,
    };

    #[test]
    fn a_turn_is_the_sum_of_the_costs_over_the_rate() {
        assert_eq!(CASE.turn_ms(), 20.0);
        assert_eq!(Case { cost: |task| 1 + task as u64 % 10, ..CASE }.turn_ms(), 110.0);
    }

    #[test]
    fn a_crowd_is_served_at_most_at_the_rate() {
        let start = Instant::now();
        let sample = run::<Reserving>(&CASE).unwrap();
        // Late grants from the time before the measurement may be among them.
        let most = start.elapsed().as_secs_f64() * 1000.0 + 1.0;
        assert!(sample.grants > 0.0 && sample.permits <= most, "{sample:?}");
    }

    #[test]
    fn a_crowd_without_patience_gives_up() {
        let case = Case { patience: Some(Duration::from_millis(5)), ..CASE };
        assert!(run::<Reserving>(&case).unwrap().gave_up > 0.0);
    }

    #[test]
    fn a_limiter_that_refuses_is_an_error() {
        // A burst of one never lets a cost of two pass.
        let refused = run::<Reserving>(&Case { cost: |_| 2, ..CASE });
        assert!(refused.is_err_and(|error| error.contains('2')));
    }

    #[test]
    fn random_numbers_are_shares() {
        let mut random = Random(7);
        let shares: Vec<f64> = (0..1000).map(|_| random.share()).collect();
        let mean = shares.iter().sum::<f64>() / 1000.0;
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
