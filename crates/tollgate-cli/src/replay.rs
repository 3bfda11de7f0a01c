//! Runs events through one limiter, on a manual clock.

use std::time::Duration;
use tollgate::{Algorithm, Clock, Decision, Limiter, Quota, QuotaError, Tick};

/// The events for a limiter.
#[derive(Debug)]
pub(crate) struct Events {
    /// The text that describes the ticks.
    pub(crate) arrivals: String,
    /// In order of time, and at least one.
    pub(crate) ticks: Vec<Tick>,
    /// Permits that each event asks for.
    pub(crate) cost: u64,
}

/// The decisions of a limiter, event by event.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    pub(crate) decisions: Vec<Decision>,
}

impl Replay {
    /// Builds a limiter and puts every event before it.
    pub(crate) fn run(
        quota: Quota,
        algorithm: Algorithm,
        events: &Events,
    ) -> Result<Self, QuotaError> {
        let (clock, hand) = Clock::manual();
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock).build()?;
        let decide = |tick: &Tick| {
            hand.set(*tick);
            limiter.try_acquire_n(events.cost)
        };
        Ok(Self { quota, algorithm, decisions: events.ticks.iter().map(decide).collect() })
    }

    /// Returns how many events passed.
    pub(crate) fn allowed(&self) -> usize {
        self.decisions.iter().filter(|d| d.is_allowed()).count()
    }

    /// Returns how many events can never pass.
    pub(crate) fn never(&self) -> usize {
        self.decisions.iter().filter(|d| d.is_never()).count()
    }

    /// Returns the most cost that passed in any window of this length, `(t - length, t]`.
    pub(crate) fn most_in_any(&self, length: Duration) -> u64 {
        let allowed = || self.decisions.iter().filter(|d| d.is_allowed());
        let mut oldest = allowed().peekable();
        let (mut sum, mut most) = (0_u64, 0_u64);
        for newest in allowed() {
            sum = sum.saturating_add(newest.cost());
            while let Some(left) = oldest.next_if(|d| newest.at().since(d.at()) >= length) {
                sum = sum.saturating_sub(left.cost());
            }
            most = most.max(sum);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals;

    fn replay(quota: Quota, algorithm: Algorithm, arrivals: &str) -> Replay {
        let events = Events {
            arrivals: arrivals.to_owned(),
            ticks: arrivals::parse(arrivals).unwrap(),
            cost: 1,
        };
        Replay::run(quota, algorithm, &events).unwrap()
    }

    #[test]
    fn an_event_one_window_old_is_outside() {
        let unlimited = replay(Quota::unlimited(), Algorithm::Gcra, "0s x3, 1s x2, 1500ms");
        for (millis, most) in [(1, 3), (500, 3), (501, 3), (1000, 3), (1001, 5), (2000, 6)] {
            let length = Duration::from_millis(millis);
            assert_eq!(unlimited.most_in_any(length), most, "{millis} ms");
        }
    }

    /// The table of [docs/choosing.md], "The same 400 arrivals".
    ///
    /// [docs/choosing.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/choosing.md
    #[test]
    fn four_hundred_arrivals_through_every_algorithm() {
        let arrivals = "every 10ms for 1s, 2s every 1ms for 100ms, 3s every 5ms for 1s";
        let second = Duration::from_secs(1);
        // algorithm, passed, most in any second, first refusal and its wait in nanoseconds
        for (algorithm, passed, most, refused_at_ms, wait_ns) in [
            (Algorithm::Gcra, 399, 199, 3_995, 5_000_000),
            (Algorithm::FixedWindow, 300, 100, 3_500, 500_000_000),
            (Algorithm::AnchoredWindow, 300, 100, 3_500, 500_000_000),
            (Algorithm::SlidingCounter, 300, 100, 3_005, 5_000_000),
            (Algorithm::SlidingLog, 300, 100, 3_500, 500_000_000),
        ] {
            let replay = replay(Quota::per_second(100), algorithm, arrivals);
            assert_eq!(replay.decisions.len(), 400);
            assert_eq!(replay.allowed(), passed, "{algorithm}");
            assert_eq!(replay.most_in_any(second), most, "{algorithm}");
            let refused = replay.decisions.iter().find(|d| d.is_denied()).unwrap();
            assert_eq!(refused.at(), Tick::from_millis(refused_at_ms), "{algorithm}");
            let wait = refused.retry_after(refused.at());
            assert_eq!(wait, Some(Duration::from_nanos(wait_ns)), "{algorithm}");
        }
    }
}
