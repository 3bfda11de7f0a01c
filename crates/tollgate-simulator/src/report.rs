//! The results of a simulation, second by second.

use std::{fmt, ops::Range, time::Duration};
use tollgate::Tick;

/// How often a moment is recorded.
const TRACE: Duration = Duration::from_millis(100);

/// The results of a simulation, second by second.
#[derive(Clone, Debug)]
pub struct Report {
    seconds: Vec<Second>,
    /// Ten each second.
    trace: Vec<Moment>,
    /// How many good calls each second could have had: the server's capacity, at most the calls
    /// that arrived.
    capacity: Vec<f64>,
    /// The second of each end, and how long the call took, in microseconds.
    latencies: Vec<(u32, u32)>,
}

/// One moment of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The limit in front of the server; all limits together.
    pub limit: u64,
    /// Attempts in the server.
    pub in_flight: u64,
    /// Callers that wait for an answer, or for the next attempt.
    pub callers: u64,
}

/// One second of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Calls that arrived.
    pub offered: u64,
    /// Attempts that were sent to the server: calls and their repetitions.
    pub attempts: u64,
    /// Attempts that a gate of their client refused.
    pub not_sent: u64,
    /// Attempts that a limit or a full queue of the server refused.
    pub refused: u64,
    /// Calls that ended within their deadline.
    pub good: u64,
    /// Calls that ended later.
    pub late: u64,
    /// Attempts that the server failed.
    pub failed: u64,
}

impl Report {
    pub(crate) fn new(length: Duration, capacity: impl Fn(Tick) -> f64) -> Self {
        let seconds = length.as_secs_f64().ceil() as usize;
        let middle = |second| Tick::from_millis(second as u64 * 1000 + 500);
        Self {
            seconds: vec![Second::default(); seconds],
            trace: Vec::new(),
            capacity: (0..seconds).map(|second| capacity(middle(second))).collect(),
            latencies: Vec::new(),
        }
    }

    pub(crate) fn second(&mut self, now: Tick) -> &mut Second {
        &mut self.seconds[(now.as_nanos() / 1_000_000_000) as usize]
    }

    pub(crate) fn end(&mut self, now: Tick, took: Duration, is_good: bool) {
        let second = self.second(now);
        match is_good {
            true => second.good += 1,
            false => second.late += 1,
        }
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.latencies.push(((now.as_nanos() / 1_000_000_000) as u32, took));
    }

    /// Records the state before the event at `now`.
    pub(crate) fn trace_until(&mut self, now: Tick, current: impl Fn() -> Moment) {
        while Tick::ZERO.saturating_add(TRACE * self.trace.len() as u32) < now {
            self.trace.push(current());
        }
    }

    /// Returns each second.
    #[must_use]
    pub fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    /// Returns ten moments of each second.
    #[must_use]
    pub fn trace(&self) -> &[Moment] {
        &self.trace
    }

    /// Returns good calls as a share of the ideal: the calls that arrived, at most the server's
    /// capacity.
    #[must_use]
    pub fn goodput(&self, seconds: Range<usize>) -> f64 {
        let ideal =
            seconds.clone().map(|it| self.capacity[it].min(self.seconds[it].offered as f64));
        let ideal: f64 = ideal.sum();
        self.sum(seconds, |second| second.good) / ideal
    }

    /// Returns good calls as a share of those that arrived.
    #[must_use]
    pub fn served(&self, seconds: Range<usize>) -> f64 {
        let offered = self.sum(seconds.clone(), |second| second.offered);
        self.sum(seconds, |second| second.good) / offered
    }

    /// Returns how many callers waited for an answer, or for the next attempt, on average.
    #[must_use]
    pub fn waiting(&self, seconds: Range<usize>) -> f64 {
        let moments = &self.trace[10 * seconds.start..10 * seconds.end];
        moments.iter().map(|moment| moment.callers).sum::<u64>() as f64 / moments.len() as f64
    }

    /// Returns attempts that the server refused as a share of those that were sent.
    #[must_use]
    pub fn refused(&self, seconds: Range<usize>) -> f64 {
        let attempts = self.sum(seconds.clone(), |second| second.attempts);
        self.sum(seconds, |second| second.refused) / attempts
    }

    /// Returns attempts sent per call: 1 if all calls are sent once.
    #[must_use]
    pub fn load(&self, seconds: Range<usize>) -> f64 {
        let offered = self.sum(seconds.clone(), |second| second.offered);
        self.sum(seconds, |second| second.attempts) / offered
    }

    /// Returns the latency that `percent` of the calls that ended do not exceed, to a microsecond.
    #[must_use]
    pub fn latency(&self, seconds: Range<usize>, percent: f64) -> Option<Duration> {
        let ended = self.latencies.iter().filter(|(at, _)| seconds.contains(&(*at as usize)));
        let mut took: Vec<u32> = ended.map(|(_, took)| *took).collect();
        took.sort_unstable();
        let rank = (took.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
        Some(Duration::from_micros((*took.get(rank - 1)?).into()))
    }

    fn sum(&self, seconds: Range<usize>, of: impl Fn(&Second) -> u64) -> f64 {
        self.seconds[seconds].iter().map(of).sum::<u64>() as f64
    }
}

impl fmt::Display for Report {
    /// Writes one line for each second, with the limit and the calls in the server at its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "second,offered,not_sent,attempts,refused,good,late,failed,limit,in_flight")?;
        for (number, second) in self.seconds.iter().enumerate() {
            let Second { offered, not_sent, attempts, refused, good, late, failed, .. } = second;
            let last = self.trace.len().min(10 * (number + 1));
            let moment = self.trace[..last].last().copied().unwrap_or_default();
            let Moment { limit, in_flight, .. } = moment;
            write!(f, "{number},{offered},{not_sent},{attempts},{refused},{good},{late},{failed}")?;
            writeln!(f, ",{limit},{in_flight}")?;
        }
        Ok(())
    }
}
