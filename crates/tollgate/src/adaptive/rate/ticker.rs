//! Comes due once per period: for signals that come without calls.

use crate::{
    Tick,
    wait::{Machine, Random},
};
use std::time::Duration;

/// A machine with one job per period, give or take a tenth, from its start on.
#[derive(Debug)]
pub(super) struct Ticker {
    period: Duration,
    jitter: Random,
    due: Option<Tick>,
}

impl Ticker {
    pub(super) fn new(period: Duration, seed: u64) -> Self {
        Self { period, jitter: Random::new(seed), due: None }
    }

    pub(super) fn start(&mut self, now: Tick) {
        self.due = Some(now.saturating_add(self.jitter.around(self.period)));
    }
}

impl Machine for Ticker {
    type Job = ();

    fn due(&self) -> Option<Tick> {
        self.due
    }

    fn next(&mut self, now: Tick) -> Option<()> {
        self.due.filter(|due| now >= *due)?;
        // From now on, and not from when it was due: a worker that was late does not hurry.
        self.start(now);
        Some(())
    }

    fn finish(&mut self, _now: Tick) {
        self.due = None;
    }

    fn clear(&mut self) -> impl Sized + use<> {
        self.due = None;
    }
}
