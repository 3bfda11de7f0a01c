//! Counts of responses.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The meaning of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Allowed, because no limit of the server fits the request.
    Unmatched,
    Denied,
    /// An error of the server, or an unexpected response.
    Error,
}

/// The longest latency that the histogram resolves: one hour. Longer ones count as one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The counts of one thread. Requests of the warm-up are not measured, but errors always count.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) errors: u64,
    pub(crate) reconnects: u64,
    /// Connections that were made at the start.
    pub(crate) connected: u64,
    /// All responses, including the warm-up: shows that the server is alive.
    pub(crate) answers: u64,
    /// Responses to measured requests.
    pub(crate) measured: u64,
    /// Responses by a limit, including the warm-up.
    pub(crate) decided: u64,
    /// Responses without a limit, including the warm-up.
    pub(crate) unmatched: u64,
    /// When the last response to a measured request arrived.
    pub(crate) last_ns: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    /// Starts at zero. Takes about 260 KiB, regardless of the length of the run.
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

    /// Counts a response to a measured request.
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

    /// Counts a response to a request of the warm-up.
    pub(crate) fn warm_answer(&mut self, verdict: Verdict) {
        self.answers += 1;
        match verdict {
            Verdict::Allowed | Verdict::Denied => self.decided += 1,
            Verdict::Unmatched => self.unmatched += 1,
            Verdict::Error => self.errors += 1,
        }
    }

    /// Tells whether responses arrived, but none of them by a limit: the run would measure nothing.
    pub(crate) const fn is_in_vain(&self, max_errors: u64) -> bool {
        self.answers > 0 && self.decided == 0 && (self.unmatched > 0 || self.errors > max_errors)
    }

    /// Keeps the first text only.
    pub(crate) fn explain(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Counts an error outside of a response.
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

    /// Returns how many measured requests got no response.
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

/// Latency in milliseconds. All zero if there was no response.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LatencyMs {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}
