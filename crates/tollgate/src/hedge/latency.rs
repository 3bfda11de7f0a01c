//! The percentile of recent latencies.
//!
//! Two histograms: one of the current half of the window, and one of that half and the one before.
//! So the percentile covers between a half of the window and all of it. It is computed anew at most
//! once in a hundredth of the window: that reads the whole histogram. 15 KiB.
//!
//! The histogram is off by at most 1/64.

use crate::{Tick, adaptive::window::Histogram};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct LatencyWindow {
    percent: f64,
    min_calls: u64,
    length: Duration,
    /// The current half of the window.
    current: Histogram,
    /// The current half and the one before.
    both: Histogram,
    /// When the current half is over.
    half_ends: Tick,
    /// The percentile, and when it is computed anew.
    computed: Option<(Duration, Tick)>,
}

impl LatencyWindow {
    pub(super) const fn percent(&self) -> f64 {
        self.percent
    }

    pub(super) fn new(percent: f64, min_calls: u64, length: Duration) -> Self {
        Self {
            percent,
            min_calls,
            length,
            current: Histogram::new(),
            both: Histogram::new(),
            half_ends: Tick::ZERO,
            computed: None,
        }
    }

    pub(super) fn add(&mut self, now: Tick, latency: Duration) {
        self.advance(now);
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.current.add(nanos);
        self.both.add(nanos);
    }

    /// Returns the percentile; `None` if there are too few calls for one.
    pub(super) fn percentile(&mut self, now: Tick) -> Option<Duration> {
        self.advance(now);
        if self.both.total() < self.min_calls {
            return None;
        }
        if let Some((percentile, valid_until)) = self.computed
            && now < valid_until
        {
            return Some(percentile);
        }
        let nanos = self.both.percentile(self.percent)?;
        let percentile = Duration::from_nanos(nanos as u64);
        self.computed = Some((percentile, now.saturating_add(self.length / 100)));
        Some(percentile)
    }

    /// Begins a new half if the current one is over. Time that goes backwards stands still.
    fn advance(&mut self, now: Tick) {
        if now < self.half_ends {
            return;
        }
        let half = self.length / 2;
        std::mem::swap(&mut self.both, &mut self.current);
        self.current.clear();
        if now >= self.half_ends.saturating_add(half) {
            self.both.clear();
        }
        self.half_ends = now.saturating_add(half);
        self.computed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn follows_the_recent_calls_and_forgets_the_old_ones() {
        let mut window = LatencyWindow::new(90.0, 10, ms(1000));
        let near = |found: Option<Duration>, expected: u64| {
            let found = found.unwrap().as_secs_f64() * 1000.0;
            assert!((found / expected as f64 - 1.0).abs() < 1.0 / 64.0, "{found} ms, {expected}");
        };
        let at = |at_ms| Tick::ZERO.saturating_add(ms(at_ms));
        (1..10).for_each(|count| window.add(at(0), ms(count)));
        assert_eq!(window.percentile(at(0)), None, "9 calls");
        window.add(at(0), ms(10));
        near(window.percentile(at(0)), 9);
        (0..90).for_each(|_| window.add(at(1), ms(100)));
        near(window.percentile(at(9)), 9);
        near(window.percentile(at(10)), 100);
        // The next half: both count, and then only the later one.
        (0..1000).for_each(|_| window.add(at(500), ms(5)));
        near(window.percentile(at(999)), 5);
        (0..10).for_each(|_| window.add(at(1000), ms(50)));
        near(window.percentile(at(1499)), 5);
        near(window.percentile(at(1500)), 50);
        assert_eq!(window.percentile(at(2500)), None, "nothing for a window");
        window.add(at(0), ms(1));
        assert_eq!(window.both.total(), 1, "time that goes backwards");
        window.add(Tick::MAX, Duration::MAX);
        window.add(Tick::MAX, Duration::MAX);
    }
}
