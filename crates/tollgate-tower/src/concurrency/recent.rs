//! The recent decisions of a layer: for the hook of a degraded service, and for the header that
//! names the lowest priority served.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tollgate::{Priority, Tick};

/// A layer begins, or ceases, to refuse more than half of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Degradation {
    /// For a minute the layer has refused more than half of its requests.
    Began,
    /// For a minute it has served at least half of them, or none came.
    Ended,
}

/// Receives each change.
pub(super) type DegradationHook = Arc<dyn Fn(Degradation) + Send + Sync>;

/// The time over which a service counts as degraded.
const DEGRADED_FOR: Duration = Duration::from_secs(60);
/// The time over which the lowest priority served is found: short, since clients act on it.
const LOWEST_OVER: Duration = Duration::from_secs(1);

/// Counts decisions in windows.
pub(super) struct Recent {
    hook: Option<DegradationHook>,
    state: Mutex<RecentState>,
}

struct RecentState {
    minute: Window,
    second: Window,
    is_degraded: bool,
    lowest_served: Option<Priority>,
}

/// The decisions of one window.
#[derive(Clone, Copy)]
struct Window {
    since: Tick,
    served: u64,
    refused: u64,
    /// The least urgent request that was served.
    lowest: Priority,
}

impl Recent {
    pub(super) fn new(hook: Option<DegradationHook>, now: Tick) -> Self {
        let (minute, second) = (Window::new(now), Window::new(now));
        let state = RecentState { minute, second, is_degraded: false, lowest_served: None };
        Self { hook, state: Mutex::new(state) }
    }

    /// Counts a decision.
    pub(super) fn count(&self, now: Tick, priority: Priority, is_served: bool) {
        let change = self.lock().count(now, priority, is_served);
        if let (Some(change), Some(hook)) = (change, &self.hook) {
            hook(change);
        }
    }

    /// Returns the lowest priority served in the last window; `None` if no request was refused.
    pub(super) fn lowest_served(&self) -> Option<Priority> {
        self.lock().lowest_served
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RecentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentState {
    fn count(&mut self, now: Tick, priority: Priority, is_served: bool) -> Option<Degradation> {
        if let Some(second) = self.second.roll(now, LOWEST_OVER) {
            self.lowest_served = (second.refused > 0).then_some(second.lowest);
        }
        let minute = self.minute.roll(now, DEGRADED_FOR);
        for window in [&mut self.second, &mut self.minute] {
            window.count(priority, is_served);
        }
        let is_degraded = minute.map(|minute| minute.refused > minute.served)?;
        let was_degraded = std::mem::replace(&mut self.is_degraded, is_degraded);
        match (was_degraded, is_degraded) {
            (false, true) => Some(Degradation::Began),
            (true, false) => Some(Degradation::Ended),
            _ => None,
        }
    }
}

impl Window {
    const fn new(since: Tick) -> Self {
        Self { since, served: 0, refused: 0, lowest: Priority::CRITICAL }
    }

    fn count(&mut self, priority: Priority, is_served: bool) {
        if !is_served {
            self.refused += 1;
            return;
        }
        self.served += 1;
        if self.lowest.is_above(priority) {
            self.lowest = priority;
        }
    }

    /// If this window is over, begins a new one and returns the window right before the new one: an
    /// empty window if no request came for a whole window.
    fn roll(&mut self, now: Tick, length: Duration) -> Option<Self> {
        let age = now.since(self.since);
        if age < length {
            return None;
        }
        let old = std::mem::replace(self, Self::new(now));
        Some(if age < length * 2 { old } else { Self::new(now) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_degraded_when_it_refuses_more_than_half_for_a_minute() {
        let mut state = Recent::new(None, Tick::ZERO).state.into_inner().unwrap();
        // from second, refused of ten each second, for seconds
        let mut changes = Vec::new();
        for (from, refused, seconds) in
            [(0, 5, 60), (60, 6, 60), (120, 10, 60), (180, 0, 60), (240, 9, 60), (600, 9, 1)]
        {
            for second in from..from + seconds {
                for number in 0..10 {
                    let now = Tick::from_millis(second * 1_000 + number * 100);
                    let change = state.count(now, Priority::NORMAL, number >= refused);
                    changes.extend(change.map(|change| (second, change)));
                }
            }
        }
        use Degradation::{Began, Ended};
        // The minute with 9 of 10 is followed by silence, so it is not known to have lasted.
        assert_eq!(changes, [(120, Began), (240, Ended)]);
    }

    #[test]
    fn the_lowest_priority_is_that_of_the_last_second_in_which_one_was_refused() {
        let recent = Recent::new(None, Tick::ZERO);
        let decide = |at_ms: u64, urgency: u8, is_served: bool| {
            let priority = Priority::new(urgency).unwrap();
            recent.count(Tick::from_millis(at_ms), priority, is_served);
            recent.lowest_served().map(Priority::urgency)
        };
        assert_eq!(decide(0, 5, true), None);
        assert_eq!(decide(100, 2, true), None);
        assert_eq!(decide(200, 6, false), None, "the second is not over");
        assert_eq!(decide(1_000, 7, true), Some(5));
        assert_eq!(decide(2_000, 0, false), None, "none was refused");
        assert_eq!(decide(3_000, 3, true), Some(0), "none was served");
        assert_eq!(decide(9_000, 3, true), None, "no request came for long");
    }
}
