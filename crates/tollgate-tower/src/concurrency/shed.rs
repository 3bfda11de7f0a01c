//! Load shedding: under pressure the least urgent requests are refused first.

use super::ConcurrencyLayerError;
use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tollgate::{Priority, Tick};

/// The rules for refusing the least urgent requests although there are slots.
///
/// The layer looks at the pressure once per [`every`](Self::every). Above the threshold it serves
/// one priority fewer, the least urgent first; below [`recover_at`](Self::recover_at) times the
/// threshold it serves one more; in between nothing changes, so that it does not flap.
/// [`Priority::CRITICAL`] is never shed. After eight periods without a request all are served
/// again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::Shedding;
///
/// # fn cpu_share() -> f64 { 0.5 }
/// let cpu = Shedding::load(cpu_share, 0.9);
/// let queue = Shedding::queue_delay(Duration::from_millis(20)).every(Duration::from_millis(100));
/// # let _ = (cpu, queue);
/// ```
#[doc(alias = "LoadShed")]
#[must_use = "settings do nothing until a layer is built with them"]
pub struct Shedding {
    signal: Signal,
    recover_at: f64,
    every: Duration,
}

enum Signal {
    Load { read: Box<dyn Fn() -> f64 + Send + Sync>, above: f64 },
    QueueDelay { above: Duration },
}

impl Shedding {
    /// Sheds while a load, such as the used share of the CPU, is above `above`.
    ///
    /// `read` is called once per period, from a request, so it must not block. While it returns
    /// NaN nothing changes.
    pub fn load(read: impl Fn() -> f64 + Send + Sync + 'static, above: f64) -> Self {
        Self::new(Signal::Load { read: Box::new(read), above })
    }

    /// Sheds while every request that is served in a period has waited for its slot longer than
    /// `above`.
    ///
    /// That is CoDel's measure: the *shortest* wait of a period tells a standing queue from a
    /// burst. It needs [`max_wait`](super::ConcurrencyLayerBuilder::max_wait).
    #[doc(alias = "codel")]
    pub fn queue_delay(above: Duration) -> Self {
        Self::new(Signal::QueueDelay { above })
    }

    const fn new(signal: Signal) -> Self {
        Self { signal, recover_at: 0.8, every: Duration::from_secs(1) }
    }

    /// Sets below which share of the threshold more priorities are served again, by default 0.8.
    pub const fn recover_at(mut self, share: f64) -> Self {
        self.recover_at = share;
        self
    }

    /// Sets how often the layer looks at the pressure, by default once a second: from all eight
    /// priorities to critical ones alone takes seven periods.
    pub const fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    pub(super) const fn needs_queue(&self) -> bool {
        matches!(self.signal, Signal::QueueDelay { .. })
    }

    pub(super) fn check(&self) -> Result<(), ConcurrencyLayerError> {
        let rule = match &self.signal {
            Signal::Load { above, .. } if !(above.is_finite() && *above > 0.0) => {
                "the threshold must be a positive number"
            }
            Signal::QueueDelay { above } if above.is_zero() => {
                "the delay must be longer than 0 s: a queue always takes a moment"
            }
            _ if self.every.is_zero() => "`every` must be longer than 0 s",
            _ if !(self.recover_at > 0.0 && self.recover_at < 1.0) => {
                "`recover_at` must be above 0 and below 1, or shedding would flap or never end"
            }
            _ => return Ok(()),
        };
        Err(ConcurrencyLayerError::Shedding { rule })
    }
}

impl fmt::Debug for Shedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Shedding");
        match &self.signal {
            Signal::Load { above, .. } => out.field("load_above", above),
            Signal::QueueDelay { above } => out.field("queue_delay_above", above),
        };
        out.field("recover_at", &self.recover_at).field("every", &self.every).finish()
    }
}

/// The priorities that are served now.
pub(super) struct Shedder {
    rules: Shedding,
    state: Mutex<ShedState>,
}

struct ShedState {
    /// The urgency of the least urgent requests that are served.
    lowest: u8,
    next_at: Tick,
    waits: Waits,
}

/// The waits that have ended in a period.
#[derive(Default)]
struct Waits {
    shortest_served: Option<Duration>,
    /// Counts only if none was served: a request that was displaced, or had little time, says
    /// nothing about the others.
    longest_refused: Duration,
}

/// Every priority is served.
const ALL: u8 = Priority::LEVELS as u8 - 1;

impl Shedder {
    pub(super) fn new(rules: Shedding, now: Tick) -> Self {
        let next_at = now.saturating_add(rules.every);
        let state = Mutex::new(ShedState { lowest: ALL, next_at, waits: Waits::default() });
        Self { rules, state }
    }

    /// Tells whether requests of this priority are refused now.
    pub(super) fn sheds(&self, priority: Priority, now: Tick) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now < state.next_at {
            return priority.urgency() > state.lowest;
        }
        let periods_late = now.since(state.next_at).as_nanos() / self.rules.every.as_nanos();
        // One request measures the pressure; the others keep the old level meanwhile.
        state.next_at = now.saturating_add(self.rules.every);
        let waits = std::mem::take(&mut state.waits);
        let lowest = state.lowest;
        drop(state);
        let lowest = if periods_late >= Priority::LEVELS as u128 {
            ALL
        } else {
            next_lowest(lowest, self.pressure(&waits), self.rules.recover_at)
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lowest = lowest;
        priority.urgency() > lowest
    }

    /// Notes how long a request has waited for its slot, or for its refusal.
    pub(super) fn waited(&self, wait: Duration, is_served: bool) {
        if self.rules.needs_queue() {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Waits { shortest_served, longest_refused } = &mut state.waits;
            if is_served {
                *shortest_served = Some(shortest_served.map_or(wait, |other| other.min(wait)));
            } else {
                *longest_refused = wait.max(*longest_refused);
            }
        }
    }

    /// Returns the load as a share of the threshold.
    fn pressure(&self, waits: &Waits) -> f64 {
        match &self.rules.signal {
            Signal::Load { read, above } => read() / above,
            Signal::QueueDelay { above } => {
                let delay = waits.shortest_served.unwrap_or(waits.longest_refused);
                delay.as_secs_f64() / above.as_secs_f64()
            }
        }
    }
}

/// Returns the urgency of the least urgent requests to serve in the next period.
fn next_lowest(lowest: u8, pressure: f64, recover_at: f64) -> u8 {
    if pressure > 1.0 {
        lowest.saturating_sub(1)
    } else if pressure < recover_at {
        (lowest + 1).min(ALL)
    } else {
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    fn lowest(shedder: &Shedder, at_ms: u64) -> u8 {
        let now = Tick::from_millis(at_ms);
        let served = (0..=ALL).rev().find(|urgency| {
            Priority::new(*urgency).is_some_and(|priority| !shedder.sheds(priority, now))
        });
        served.unwrap()
    }

    #[test]
    fn priorities_go_and_come_back_level_by_level() {
        let load = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&load);
        // ORDERING: one thread.
        let rules = Shedding::load(move || f64::from_bits(read.load(SeqCst)), 0.9);
        let shedder = Shedder::new(rules, Tick::ZERO);
        for (row, (at_ms, now, expected)) in [
            (0, 0.95, 7),
            (999, 0.95, 7), // not yet due
            (1_000, 0.95, 6),
            (1_500, 0.95, 6),
            (2_000, 0.95, 5),
            (3_000, 0.90, 5), // the threshold itself is not above it
            (4_000, 0.73, 5), // between 0.72 and 0.9 nothing changes
            (5_000, f64::NAN, 5),
            (6_000, 0.71, 6),
            (7_000, 0.71, 7),
            (8_000, 0.0, 7),
            (9_000, 5.0, 6),
            (10_000, 5.0, 5),
            (11_000, 5.0, 4),
            (12_000, 5.0, 3),
            (13_000, 5.0, 2),
            (14_000, 5.0, 1),
            (15_000, 5.0, 0),
            (16_000, 5.0, 0), // critical requests are never shed
            (30_000, 5.0, 7), // no request came for a long time
        ]
        .into_iter()
        .enumerate()
        {
            load.store(f64::to_bits(now), SeqCst);
            assert_eq!(lowest(&shedder, at_ms), expected, "row {row}, at {at_ms} ms, load {now}");
        }
    }

    #[test]
    fn only_a_standing_queue_is_pressure() {
        let shedder = Shedder::new(Shedding::queue_delay(Duration::from_millis(20)), Tick::ZERO);
        // at, waits of served requests, waits of refused ones, the lowest priority served
        for (row, (at_s, served_ms, refused_ms, expected)) in [
            (1, &[30, 50][..], &[][..], 6),
            (2, &[30, 0, 500], &[], 7), // one found a slot at once: a burst
            (3, &[21], &[1], 6),        // the refused one was displaced
            (4, &[18], &[], 6),
            (5, &[], &[5, 30], 5), // nothing moves
            (6, &[], &[], 6),
        ]
        .into_iter()
        .enumerate()
        {
            for (waits_ms, is_served) in [(served_ms, true), (refused_ms, false)] {
                for ms in waits_ms {
                    shedder.waited(Duration::from_millis(*ms), is_served);
                }
            }
            assert_eq!(lowest(&shedder, at_s * 1_000), expected, "row {row}");
        }
    }
}
