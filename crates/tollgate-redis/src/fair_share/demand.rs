//! Measures how much a process could use, from the calls to its limiter.
//!
//! ```text
//! wants = the larger of
//!   n + max(n / 4, 3 sqrt n)   per second, of the n permits asked for in the last refresh
//!   (m - sqrt m) x 5 / 4       per second, of the m asked for since the limiter ran short
//! ```
//!
//! The mean over a refresh counts: a report may follow the previous one by milliseconds, and the
//! calls in between are no rate. The process wants a quarter more, or three standard deviations of
//! random arrivals if that is more, so that a steady load is not denied when a few more calls
//! arrive than usual. The mean shows a fall one refresh later.
//!
//! A limiter that runs short wakes the task, which then measures for a quarter of a refresh. It
//! subtracts a standard deviation, so that chance does not count as a rise.

use super::Rate;
use std::{collections::VecDeque, time::Duration};
use tollgate::{Tick, observe::Counts};

/// The most samples: five a quarter of a window apart, and some from when the limiter ran short.
const SAMPLES_MAX: usize = 16;

/// Measures the demand for the limiter's permits.
#[derive(Debug)]
pub(super) struct Demand {
    least: Rate,
    /// The time of the mean: the shortest refresh that jitter can make.
    window: Duration,
    /// Oldest first; only the first is older than a window. Most are a quarter of a window apart.
    samples: VecDeque<Sample>,
}

/// The permits asked for up to a time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Tick,
    asked: u64,
}

impl Demand {
    pub(super) fn new(least: Rate, refresh: Duration, now: Tick) -> Self {
        let samples = VecDeque::from([Sample { at: now, asked: 0 }]);
        Self { least, window: refresh.mul_f64(0.9), samples }
    }

    /// Records that the limiter has run short: a rise is measured from here.
    pub(super) fn ran_short(&mut self, now: Tick, counts: &Counts) {
        // Keeps the latest counts, however often a caller changes its demand between two reports.
        self.samples.truncate(SAMPLES_MAX - 1);
        self.samples.push_back(Sample::new(now, counts));
    }

    /// Returns the wanted rate, given the decisions so far.
    pub(super) fn measure(&mut self, now: Tick, counts: &Counts) -> Rate {
        let latest = Sample::new(now, counts);
        while self.samples.get(1).is_some_and(|next| now.since(next.at) >= self.window) {
            self.samples.pop_front();
        }
        let apart = self.window / 4;
        let is_apart = |sample: &&Sample| now.since(sample.at) >= apart;
        let mean = self.samples.front().map_or(0, |first| first.usual(&latest, self.window));
        let rise = self.samples.iter().rfind(is_apart).map_or(0, |last| last.surely(&latest));
        if self.samples.back().as_ref().is_none_or(is_apart) {
            self.samples.push_back(latest);
        }
        Rate::from_micros(mean.max(rise)).max(self.least).min(Rate::MAX)
    }
}

impl Sample {
    fn new(at: Tick, counts: &Counts) -> Self {
        let asked = counts.allowed_cost.saturating_add(counts.denied_cost);
        Self { at, asked: asked.saturating_sub(counts.refunded) }
    }

    /// Returns the rate up to a later sample, with its margin, over at least `window`.
    fn usual(&self, later: &Self, window: Duration) -> u64 {
        let asked = later.asked.saturating_sub(self.asked);
        let margin = (asked / 4).max(asked.isqrt().saturating_mul(3));
        per_second(asked.saturating_add(margin), later.at.since(self.at).max(window))
    }

    /// Returns the rate up to a later sample, less the part that may be chance, plus a quarter.
    fn surely(&self, later: &Self) -> u64 {
        let asked = later.asked.saturating_sub(self.asked);
        let surely = asked.saturating_sub(asked.isqrt());
        per_second(surely.saturating_add(surely / 4), later.at.since(self.at))
    }
}

/// Returns millionths of a permit per second, at most [`Rate::MAX`].
fn per_second(permits: u64, time: Duration) -> u64 {
    // OVERFLOW: 2^64 x 10^15 is below 2^114.
    let millionths = u128::from(permits) * 1_000_000_000_000_000;
    let rate = millionths.checked_div(time.as_nanos()).unwrap_or_default();
    u64::try_from(rate).unwrap_or(u64::MAX).min(Rate::MAX.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row: the time, the permits asked for by then, and the wanted rate.
    fn measure(rows: &[(u64, u64, f64)]) {
        let (refresh, mut counts) = (Duration::from_secs(10), Counts::default());
        let mut demand = Demand::new(Rate::per_second(1), refresh, Tick::ZERO);
        for (row, (at_ms, asked, expected)) in rows.iter().enumerate() {
            (counts.denied_cost, counts.allowed_cost) = (asked / 2, asked / 2);
            let wants = demand.measure(Tick::from_millis(*at_ms), &counts);
            assert_eq!(wants.as_f64(), *expected, "row {row}, at {at_ms} ms");
        }
    }

    #[test]
    fn a_steady_load_is_wanted_with_a_quarter_more() {
        measure(&[
            (0, 0, 1.0),
            (10_000, 800, 100.0),
            (20_000, 1_600, 100.0),
            (29_000, 2_320, 100.0),
        ]);
    }

    #[test]
    fn a_report_right_after_another_is_no_rate() {
        // 80/s; ten of them at once in the last two milliseconds, or none.
        for late in [0, 10] {
            let mut demand = Demand::new(Rate::ZERO, Duration::from_secs(10), Tick::ZERO);
            let mut counts = Counts::default();
            for at in [10, 20, 30] {
                counts.allowed_cost = 80 * at;
                demand.measure(Tick::from_secs(at), &counts);
            }
            counts.allowed_cost += late;
            let wants = demand.measure(Tick::from_millis(30_002), &counts).as_f64();
            assert!((99.0..=102.0).contains(&wants), "{late} more: {wants}");
        }
    }

    #[test]
    fn a_fall_is_seen_after_a_refresh_and_a_rise_before() {
        measure(&[
            (10_000, 800, 100.0),
            (20_000, 800, 1.0),
            // A rise to 400/s, and a report 3 s after it: 1200 less a deviation, a quarter more.
            (30_000, 800, 1.0),
            (33_000, 2_000, 485.666_666),
            (40_000, 4_800, 500.0),
            (50_000, 8_800, 500.0),
        ]);
    }

    #[test]
    fn a_rise_is_measured_from_when_the_limiter_ran_short() {
        let mut demand = Demand::new(Rate::ZERO, Duration::from_secs(10), Tick::ZERO);
        let mut counts = Counts::default();
        // at_ms, asked, whether it ran short, wants
        for (row, (at_ms, asked, is_short, expected)) in [
            (10_000, 100, false, 13.0),
            (19_000, 190, true, 0.0),
            (21_500, 1_190, false, 484.4), // 1000 in 2.5 s: 1000 - 31, and a quarter more
            (21_502, 1_190, false, 484.0), // the report that confirms
        ]
        .into_iter()
        .enumerate()
        {
            (counts.allowed_cost, counts.denied_cost) = (asked, 0);
            let now = Tick::from_millis(at_ms);
            if is_short {
                demand.ran_short(now, &counts);
            } else {
                let wants = demand.measure(now, &counts).as_f64();
                assert!((wants - expected).abs() < 0.1, "row {row}: {wants}");
            }
        }
    }

    #[test]
    fn a_few_arrivals_are_given_room_for_chance() {
        // Sixteen in ten seconds, and three deviations of four each.
        measure(&[(10_000, 16, 2.8), (20_000, 32, 2.8)]);
    }

    #[test]
    fn nonsense_is_bounded() {
        let most = Rate::MAX.as_f64();
        measure(&[(10_000, u64::MAX, most), (10_000, u64::MAX, most)]);
        let mut demand = Demand::new(Rate::ZERO, Duration::from_millis(10), Tick::ZERO);
        for at in 0..10_000 {
            demand.measure(Tick::from_nanos(at * 100_000), &Counts::default());
            assert!(demand.samples.len() <= 6, "{}", demand.samples.len());
        }
        (0..100).for_each(|at| demand.ran_short(Tick::from_secs(2 + at), &Counts::default()));
        assert_eq!(demand.samples.len(), SAMPLES_MAX);
    }
}
