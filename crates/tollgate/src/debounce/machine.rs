//! When a debouncer fires: a pure state machine.
//!
//! The idea is lodash's, and so is every answer but one. A burst begins with a trigger after
//! silence. While it lasts there is one timer. When that falls due, either silence has lasted for
//! the delay (or the longest wait is over), and the burst ends with the trailing edge; or the timer
//! is set anew for what is missing. The longest wait counts from the last run, and the beginning of
//! a burst counts as one: so it is armed on the first trigger of every burst.
//!
//! The one difference: a trigger that comes when the timer is overdue, because its worker was late,
//! ends the old burst first and begins a new one. Lodash would prolong the old burst. Here the
//! silence was long enough, so the result does not depend on which thread was quicker.
//!
//! While the action is busy a fire waits for its turn, and a later one takes its place: one value,
//! the last. Without a trailing edge no value is held and nothing has to happen at the end of a
//! burst, so there is no deadline: the next trigger finds out that the burst is over.
//!
//! State: three ticks, the last value, and at most one fire that waits for its turn. O(1) each.
//! Time that stands still prolongs a burst; time far ahead ends it.

use super::{Edge, Fired};
use crate::{ConfigError, Tick};
use std::time::Duration;

/// When to fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) delay: Duration,
    /// At least the delay.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) leading: bool,
    pub(crate) trailing: bool,
    /// Keeps a leading edge away from the run before it by the longest wait, as lodash does not: a
    /// burst may begin soon after the end of the last one, since silence counts from the last
    /// trigger and not from the last run.
    pub(crate) spaced: bool,
}

impl Rules {
    /// Waits for silence of `delay`.
    pub(crate) const fn debounce(delay: Duration) -> Self {
        Self { delay, max_wait: None, leading: false, trailing: true, spaced: false }
    }

    /// Runs at most once per `interval`: a debouncer whose longest wait is its delay, and never two runs within it.
    pub(crate) const fn throttle(interval: Duration) -> Self {
        let max_wait = Some(interval);
        Self { delay: interval, max_wait, leading: true, trailing: true, spaced: true }
    }

    /// Checks them.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { delay, max_wait, .. } = *self;
        match max_wait {
            _ if delay.is_zero() && self.spaced => Err(ConfigError::new(
                "an interval of 0 s holds nothing back; give a longer one, or call the action \
                 directly",
            )),
            _ if delay.is_zero() => Err(ConfigError::new(
                "a delay of 0 s collapses nothing; give a longer one, or call the action directly",
            )),
            Some(max_wait) if max_wait < delay => Err(ConfigError::new(format!(
                "the longest wait {max_wait:?} is shorter than the delay {delay:?}; raise the \
                 first or lower the second"
            ))),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Debounce<T> {
    rules: Rules,
    /// When the timer falls due; a burst is under way while there is one.
    timer: Option<Tick>,
    last_trigger: Option<Tick>,
    /// The last fire, or the first trigger of the burst.
    last_fire: Tick,
    /// What the trailing edge would fire with: the last value, and the triggers since the last fire.
    held: Option<Fired<T>>,
    /// The fire that waits for the action to be free.
    ready: Option<Fired<T>>,
}

impl<T> Debounce<T> {
    pub(crate) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            timer: None,
            last_trigger: None,
            last_fire: Tick::ZERO,
            held: None,
            ready: None,
        }
    }

    /// An event. Returns the values that are of no use any more, to be dropped without a lock.
    pub(crate) fn trigger(&mut self, now: Tick, value: T) -> [Option<T>; 4] {
        let overdue = self.expire(now);
        let (begins, too_early) = (self.fires_at(now), self.too_early(now));
        let (first_at, count) =
            self.held.as_ref().map_or((now, 1), |held| (held.first_at, held.count + 1));
        let edge = Edge::Trailing;
        let old = self.held.replace(Fired { value, first_at, at: now, count, edge });
        self.last_trigger = Some(now);
        let mut merged = None;
        if let (Some(until), None) = (too_early, self.timer) {
            self.timer = Some(until);
        } else if begins && self.timer.is_none() {
            self.last_fire = now;
            self.set_timer(now);
            if self.rules.leading {
                merged = self.fire(now, Edge::Leading);
            }
        } else if begins && self.rules.max_wait.is_some() {
            self.set_timer(now);
            merged = self.fire(now, Edge::MaxWait);
        } else if self.timer.is_none() {
            self.set_timer(now);
        }
        let unused = if self.rules.trailing { None } else { self.held.take() };
        [overdue, old.map(Fired::into_value), merged, unused.map(Fired::into_value)]
    }

    /// Ends the burst now, as if its time had come. Returns a value that is of no use any more.
    pub(crate) fn flush(&mut self, now: Tick) -> Option<T> {
        self.timer?;
        self.trailing_edge(now, Edge::Flush)
    }

    /// Forgets everything. Returns what would have been fired with.
    pub(crate) fn cancel(&mut self) -> [Option<T>; 2] {
        let rules = self.rules;
        let Self { held, ready, .. } = std::mem::replace(self, Self::new(rules));
        [held, ready].map(|fired| fired.map(Fired::into_value))
    }

    /// Tells whether a burst is under way, or a fire waits for its turn.
    pub(crate) fn is_pending(&self, now: Tick) -> bool {
        // With a trailing edge the worker ends the burst, even if it is late.
        let lasts = |due| self.rules.trailing || due > now || !self.fires_at(now);
        self.is_ready() || self.timer.is_some_and(lasts)
    }

    /// Tells whether a fire waits for its turn.
    pub(crate) const fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Returns when to call [`next`](Self::next), whether something fires then or not.
    pub(crate) fn due(&self) -> Option<Tick> {
        if self.is_ready() { Some(Tick::ZERO) } else { self.timer_due() }
    }

    /// Returns when the timer falls due. Without a trailing edge nothing has to happen then.
    pub(super) fn timer_due(&self) -> Option<Tick> {
        self.timer.filter(|_| self.rules.trailing)
    }

    /// Returns the fire whose turn it is by `now`, and a value that was not used.
    pub(crate) fn next(&mut self, now: Tick) -> (Option<Fired<T>>, Option<T>) {
        let unused = self.expire(now);
        (self.take_ready(), unused)
    }

    pub(crate) const fn take_ready(&mut self) -> Option<Fired<T>> {
        self.ready.take()
    }

    fn set_timer(&mut self, now: Tick) {
        self.timer = Some(now.saturating_add(self.rules.delay));
    }

    /// Tells whether silence, or the wait, has lasted long enough.
    fn fires_at(&self, now: Tick) -> bool {
        let Some(last) = self.last_trigger else { return true };
        let waited = |most| now.since(self.last_fire) >= most;
        now.since(last) >= self.rules.delay || self.rules.max_wait.is_some_and(waited)
    }

    /// Returns until when a leading edge has to wait for the sake of the run before it.
    fn too_early(&self, now: Tick) -> Option<Tick> {
        let is_silent = now.since(self.last_trigger?) >= self.rules.delay;
        let until = self.last_fire.saturating_add(self.rules.max_wait?);
        (self.rules.spaced && self.rules.leading && is_silent && now < until).then_some(until)
    }

    /// Does what is due by `now`. Returns a value that was not used.
    pub(super) fn expire(&mut self, now: Tick) -> Option<T> {
        if self.timer.is_none_or(|due| due > now) {
            return None;
        }
        if self.fires_at(now) {
            return self.trailing_edge(now, self.edge(now));
        }
        self.timer = Some(self.closest());
        None
    }

    /// Returns when the burst ends if no trigger comes.
    fn closest(&self) -> Tick {
        let quiet = self.last_trigger.map(|last| last.saturating_add(self.rules.delay));
        let longest = self.rules.max_wait.map(|most| self.last_fire.saturating_add(most));
        quiet.unwrap_or(Tick::MAX).min(longest.unwrap_or(Tick::MAX))
    }

    /// Names the reason of a fire at the end of a burst.
    fn edge(&self, now: Tick) -> Edge {
        match self.last_trigger {
            Some(last) if now.since(last) < self.rules.delay => Edge::MaxWait,
            _ => Edge::Trailing,
        }
    }

    fn trailing_edge(&mut self, now: Tick, edge: Edge) -> Option<T> {
        self.timer = None;
        if self.rules.trailing {
            return self.fire(now, edge);
        }
        self.held.take().map(Fired::into_value)
    }

    /// Fires with what is held, if anything. One that still waits for its turn is replaced: the
    /// last value wins.
    fn fire(&mut self, now: Tick, edge: Edge) -> Option<T> {
        let mut fired = Fired { edge, ..self.held.take()? };
        self.last_fire = now;
        let old = self.ready.take();
        if let Some(old) = &old {
            fired.first_at = old.first_at;
            fired.count += old.count;
        }
        self.ready = Some(fired);
        old.map(Fired::into_value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Tick {
        Tick::from_millis(ms)
    }

    fn machine(leading: bool, trailing: bool, max_wait_ms: Option<u64>) -> Debounce<u64> {
        Debounce::new(Rules {
            delay: Duration::from_millis(100),
            max_wait: max_wait_ms.map(Duration::from_millis),
            leading,
            trailing,
            spaced: false,
        })
    }

    fn next(machine: &mut Debounce<u64>, now_ms: u64) -> Option<(u64, Edge, u64)> {
        machine.next(ms(now_ms)).0.map(|fired| (fired.value, fired.edge, fired.count))
    }

    #[test]
    fn a_trigger_after_the_end_of_a_burst_begins_a_new_one_however_late_the_worker_is() {
        // The first trigger, at 0 ms, was to fire at 100 ms; nobody looked until 130 ms.
        for (leading, first_run, second_run) in [
            // The old burst, and later the new one.
            (false, (1, Edge::Trailing, 1), Some((2, Edge::Trailing, 1))),
            // The leading edge has run; that of the new burst is due at once.
            (true, (2, Edge::Leading, 1), None),
        ] {
            let mut machine = machine(leading, true, None);
            machine.trigger(ms(0), 1);
            if leading {
                assert_eq!(next(&mut machine, 0), Some((1, Edge::Leading, 1)));
            }
            assert!(machine.is_pending(ms(120)), "late, but to come");
            machine.trigger(ms(130), 2);
            assert_eq!(machine.due(), Some(Tick::ZERO));
            assert_eq!(next(&mut machine, 130), Some(first_run));
            assert_eq!(machine.due(), Some(ms(230)));
            assert_eq!(next(&mut machine, 230), second_run);
            assert_eq!(machine.due(), None);
        }
    }

    #[test]
    fn what_falls_due_while_the_action_is_busy_is_one_run() {
        let mut machine = machine(false, true, None);
        machine.trigger(ms(0), 1);
        machine.trigger(ms(150), 2); // the first is ready, and waits
        assert!(machine.is_ready());
        let (fired, unused) = machine.next(ms(400));
        let fired = fired.map(|fired| (fired.value, fired.edge, fired.count));
        assert_eq!(fired, Some((2, Edge::Trailing, 2)));
        assert_eq!(unused, Some(1), "left over, to be dropped without a lock");
        assert_eq!((machine.due(), next(&mut machine, 500)), (None, None));
    }

    #[test]
    fn a_deadline_moves_only_when_it_is_looked_at() {
        let mut machine = machine(false, true, Some(250));
        for at_ms in [0, 60, 120, 180] {
            machine.trigger(ms(at_ms), at_ms);
            if at_ms < 100 {
                assert_eq!(machine.due(), Some(ms(100)), "no worker has to be woken");
            }
            assert_eq!(next(&mut machine, at_ms), None);
        }
        assert_eq!(next(&mut machine, 220), None);
        assert_eq!(machine.due(), Some(ms(250)));
        assert_eq!(next(&mut machine, 250), Some((180, Edge::MaxWait, 4)));
    }

    #[test]
    fn a_leading_edge_alone_has_no_deadline_and_holds_no_value() {
        let mut machine = machine(true, false, None);
        machine.trigger(ms(0), 1);
        assert_eq!(next(&mut machine, 0), Some((1, Edge::Leading, 1)));
        assert_eq!(machine.trigger(ms(50), 2)[3], Some(2));
        assert!(machine.held.is_none() && machine.due().is_none());
        for (at_ms, is_pending) in [(50, true), (149, true), (150, false), (1_000, false)] {
            assert_eq!(machine.is_pending(ms(at_ms)), is_pending, "at {at_ms} ms");
        }
    }

    #[test]
    fn the_end_of_time_comes_for_nobody() {
        let mut machine = machine(true, true, Some(100));
        let late = Tick::from_nanos(u64::MAX - 1);
        machine.trigger(late, 1);
        assert!(machine.next(late).0.is_some());
        machine.trigger(late, 2);
        assert!(machine.next(late).0.is_none());
        assert_eq!(machine.due(), Some(Tick::MAX));
        assert!(machine.next(Tick::MAX).0.is_none());
    }
}
