//! How much a process could use, from what it was asked for.

use super::Rate;
use tollgate::{Tick, watch::Counts};

/// Measures the arrivals between two reports: the average of the last ones, each half as heavy as the
/// next, or the latest if that is higher; and a quarter more, so that a share can be seen to be too
/// small before it is.
#[derive(Debug)]
pub(super) struct Demand {
    least: Rate,
    at: Tick,
    arrived: u64,
    average: u64,
}

impl Demand {
    pub(super) fn new(least: Rate, now: Tick) -> Self {
        Self { least, at: now, arrived: 0, average: 0 }
    }

    /// Returns what is wanted, given what was decided so far.
    pub(super) fn measure(&mut self, now: Tick, counts: &Counts) -> Rate {
        let all = counts.allowed_cost.saturating_add(counts.denied_cost);
        let arrived = all.saturating_sub(counts.refunded);
        let elapsed = now.since(self.at).as_nanos();
        // Millionths of a permit per second from permits and nanoseconds.
        let millionths = u128::from(arrived.saturating_sub(self.arrived)) * 1_000_000_000_000_000;
        if let Some(latest) = millionths.checked_div(elapsed) {
            let latest = latest.min(u128::from(Rate::MAX.as_micros())) as u64;
            self.average = (self.average + latest) / 2;
            (self.at, self.arrived) = (now, arrived);
            self.average = self.average.max(latest);
        }
        // OVERFLOW: averages are at most 10^15.
        let wants = Rate::from_micros(self.average + self.average / 4);
        wants.max(self.least).min(Rate::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_a_rise_at_once_and_a_fall_by_halves() {
        let mut demand = Demand::new(Rate::per_second(1), Tick::ZERO);
        let mut counts = Counts::default();
        for (row, (at, arrived, expected)) in
            [(2, 160, 100), (4, 160, 50), (6, 160, 25), (6, 160, 25), (8, 480, 200), (60, 480, 100)]
                .into_iter()
                .enumerate()
        {
            counts.denied_cost = arrived / 2;
            counts.allowed_cost = arrived / 2;
            let wants = demand.measure(Tick::from_secs(at), &counts);
            assert_eq!(wants, Rate::per_second(expected), "row {row}");
        }
        for step in 0..20 {
            demand.measure(Tick::from_secs(70 + step), &counts);
        }
        assert_eq!(demand.measure(Tick::from_secs(100), &counts), Rate::per_second(1));
        counts.denied_cost = u64::MAX;
        assert_eq!(demand.measure(Tick::from_secs(101), &counts), Rate::MAX, "no nonsense");
    }
}
