//! How long calls take: a queueing model of a server.

use crate::workload::exponential;
use fastrand::Rng;
use std::{f64::consts::TAU, time::Duration};
use tollgate::Tick;

/// A server: workers behind one queue, first in first out.
///
/// It works on every call that it has admitted, also on those that are late and that no client
/// waits for any more, as most servers do.
///
/// # Examples
///
/// A server that loses half of its workers after a minute and gets slower with the number of its
/// calls:
///
/// ```
/// use std::time::Duration;
/// use tollgate::Tick;
/// use tollgate_simulator::{Server, ServiceTime};
///
/// let server = Server::new(20, ServiceTime::Constant(Duration::from_millis(20)))
///     .workers_at(Tick::from_secs(60), 10)
///     .contention(40, 0.01);
/// assert_eq!(server.capacity(Tick::from_secs(30)), 1000.0);
/// assert_eq!(server.capacity(Tick::from_secs(90)), 500.0);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Server {
    workers: usize,
    service: ServiceTime,
    max_queue: usize,
    /// Above this many calls in the server, each further one makes a call slower by this share.
    contention: (usize, f64),
    /// How long a worker is busy with a refusal.
    refusal: Duration,
    changes: Vec<(Tick, Change)>,
}

/// A scripted change of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Workers(usize),
    Slowdown(f64),
    Failing(f64),
}

impl Server {
    /// Returns a server that never changes.
    pub fn new(workers: usize, service: ServiceTime) -> Self {
        Self {
            workers,
            service,
            max_queue: usize::MAX,
            contention: (0, 0.0),
            refusal: Duration::ZERO,
            changes: Vec::new(),
        }
    }

    /// Sets how many calls may wait for a worker, by default any number. Others are refused.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Makes calls slower by `share` for each call in the server above `above`: locks, caches,
    /// memory. Such contention makes a server collapse instead of merely queueing.
    pub fn contention(mut self, above: usize, share: f64) -> Self {
        self.contention = (above, share);
        self
    }

    /// Changes the number of workers at a time; 0 is an outage. Running calls end as usual.
    pub fn workers_at(mut self, at: Tick, workers: usize) -> Self {
        self.changes.push((at, Change::Workers(workers)));
        self
    }

    /// Multiplies all service times from a time on; 1 ends it.
    pub fn slowdown_at(mut self, at: Tick, factor: f64) -> Self {
        self.changes.push((at, Change::Slowdown(factor)));
        self
    }

    /// Makes a share of all calls fail from a time on, between 0 and 1; they take as long as
    /// others.
    pub fn failing_at(mut self, at: Tick, share: f64) -> Self {
        self.changes.push((at, Change::Failing(share)));
        self
    }

    /// Sets for how long a worker is busy with a call that the limit refuses: reading, parsing and
    /// authenticating it. By default a refusal costs nothing.
    pub fn refusal_time(mut self, time: Duration) -> Self {
        self.refusal = time;
        self
    }

    /// Returns how many calls a second it can finish at a time, without contention.
    #[must_use]
    pub fn capacity(&self, at: Tick) -> f64 {
        let (mut workers, mut slowdown) = (self.workers, 1.0);
        for (_, change) in self.changes.iter().filter(|(since, _)| *since <= at) {
            match *change {
                Change::Workers(now) => workers = now,
                Change::Slowdown(now) => slowdown = now,
                Change::Failing(_) => {}
            }
        }
        workers as f64 / (self.service.mean().as_secs_f64() * slowdown)
    }

    pub(crate) fn changes(&self) -> &[(Tick, Change)] {
        &self.changes
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    pub(crate) fn is_full(&self, waiting: usize) -> bool {
        waiting >= self.max_queue
    }

    pub(crate) fn refusal(&self) -> Duration {
        self.refusal
    }

    /// Draws the duration of a call that starts while `inside` calls are in the server.
    pub(crate) fn draw(&self, inside: usize, slowdown: f64, random: &mut Rng) -> Duration {
        let (above, share) = self.contention;
        let contention = 1.0 + share * inside.saturating_sub(above) as f64;
        Duration::from_secs_f64(self.service.draw(random) * slowdown * contention)
    }
}

/// How long a worker needs for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServiceTime {
    /// Always the same.
    Constant(Duration),
    /// Exponential, with this mean.
    Exponential(Duration),
    /// Lognormal: most calls are fast, some take long.
    LogNormal {
        /// The mean.
        mean: Duration,
        /// The spread of the logarithm: 0.1 is narrow, 1 wide.
        sigma: f64,
    },
    /// Lognormal, and a share of calls takes `factor` times as long: a long tail.
    LongTail {
        /// The mean of the others.
        mean: Duration,
        /// The spread of the logarithm.
        sigma: f64,
        /// The share of slow ones, between 0 and 1.
        slow_share: f64,
        /// How many times as long they take.
        factor: f64,
    },
    /// Fast calls, and a share of slow ones.
    Bimodal {
        /// The time of most calls.
        fast: Duration,
        /// The time of the others.
        slow: Duration,
        /// The share of slow ones, between 0 and 1.
        slow_share: f64,
    },
}

impl ServiceTime {
    /// Returns the mean.
    #[must_use]
    pub fn mean(self) -> Duration {
        match self {
            Self::Constant(mean) | Self::Exponential(mean) | Self::LogNormal { mean, .. } => mean,
            Self::LongTail { mean, slow_share, factor, .. } => {
                mean.mul_f64(1.0 + slow_share * (factor - 1.0))
            }
            Self::Bimodal { fast, slow, slow_share } => {
                fast.mul_f64(1.0 - slow_share) + slow.mul_f64(slow_share)
            }
        }
    }

    /// Draws a time in seconds.
    fn draw(self, random: &mut Rng) -> f64 {
        match self {
            Self::Constant(mean) => mean.as_secs_f64(),
            Self::Exponential(mean) => mean.as_secs_f64() * exponential(random),
            Self::LogNormal { mean, sigma } => {
                // Box and Muller: a normal number from two uniform ones.
                let normal = (2.0 * exponential(random)).sqrt() * (TAU * random.f64()).cos();
                mean.as_secs_f64() * (sigma * normal - sigma * sigma / 2.0).exp()
            }
            Self::LongTail { mean, sigma, slow_share, factor } => {
                let drawn = Self::LogNormal { mean, sigma }.draw(random);
                if random.f64() < slow_share { drawn * factor } else { drawn }
            }
            Self::Bimodal { fast, slow, slow_share } => match random.f64() < slow_share {
                true => slow.as_secs_f64(),
                false => fast.as_secs_f64(),
            },
        }
    }
}
