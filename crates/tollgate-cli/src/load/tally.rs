//! What came back, counted.

use hdrhistogram::Histogram;
use serde::Serialize;

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Allowed, because no limit of the server fits the request.
    Unmatched,
    Denied,
    /// An error of the server, or an answer that was not expected.
    Error,
}

/// The longest latency that is told apart: one hour. Longer ones count as this long.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Counts of one thread. Requests of the warm-up are left out; errors never are.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) errors: u64,
    pub(crate) reconnects: u64,
    /// Connections that were made at the start.
    pub(crate) connected: u64,
    /// All answers, those of the warm-up too: shows that the server is alive.
    pub(crate) answers: u64,
    /// Answers to requests that count.
    pub(crate) measured: u64,
    /// Answers by a limit, those of the warm-up too.
    pub(crate) decided: u64,
    /// Answers without a limit, those of the warm-up too.
    pub(crate) unmatched: u64,
    /// When the last answer that counts came.
    pub(crate) last_ns: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    /// Starts at zero. Takes about 260 KiB, however long the run.
    pub(crate) fn new() -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self {
            sent: 0,
            allowed: 0,
            denied: 0,
            errors: 0,
            reconnects: 0,
            connected: 0,
            answers: 0,
            measured: 0,
            decided: 0,
            unmatched: 0,
            last_ns: 0,
            first_error: None,
            latency: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
        })
    }

    /// Counts an answer to a request that counts.
    pub(crate) fn answer(&mut self, verdict: Verdict, latency_ns: u64) {
        self.warm_answer(verdict);
        self.measured += 1;
        self.latency.saturating_record(latency_ns.max(1));
        match verdict {
            Verdict::Allowed | Verdict::Unmatched => self.allowed += 1,
            Verdict::Denied => self.denied += 1,
            Verdict::Error => {}
        }
    }

    /// Counts an answer to a request of the warm-up.
    pub(crate) fn warm_answer(&mut self, verdict: Verdict) {
        self.answers += 1;
        match verdict {
            Verdict::Allowed | Verdict::Denied => self.decided += 1,
            Verdict::Unmatched => self.unmatched += 1,
            Verdict::Error => self.errors += 1,
        }
    }

    /// Tells whether answers came, and none of them by a limit: to go on would measure nothing.
    pub(crate) const fn is_in_vain(&self, max_errors: u64) -> bool {
        self.answers > 0 && self.decided == 0 && (self.unmatched > 0 || self.errors > max_errors)
    }

    /// Keeps the first text of all.
    pub(crate) fn explain(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Counts something that went wrong outside of an answer.
    pub(crate) fn fail(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.explain(text);
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.errors += other.errors;
        self.reconnects += other.reconnects;
        self.connected += other.connected;
        self.answers += other.answers;
        self.measured += other.measured;
        self.decided += other.decided;
        self.unmatched += other.unmatched;
        self.last_ns = self.last_ns.max(other.last_ns);
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        // Both histograms have the same bounds, so no value of one is out of range for the other.
        let added = self.latency.add(&other.latency);
        debug_assert!(added.is_ok());
    }

    /// Returns how many requests that count were never answered.
    pub(crate) fn unanswered(&self) -> u64 {
        self.sent.saturating_sub(self.measured)
    }

    /// Returns percentiles in milliseconds.
    pub(crate) fn latency_ms(&self) -> LatencyMs {
        let at = |share: f64| self.latency.value_at_quantile(share) as f64 / 1e6;
        LatencyMs {
            mean: self.latency.mean() / 1e6,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.latency.max() as f64 / 1e6,
        }
    }
}

/// Latency in milliseconds. All zero if nothing was answered.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LatencyMs {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}
