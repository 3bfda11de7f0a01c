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
//! silence was long enough, so what happens does not depend on who was quicker.
//!
//! While the action is busy a fire waits for its turn, and a later one takes its place: one value,
//! the last. Without a trailing edge no value is held and nothing has to happen at the end of a
//! burst, so there is no deadline: the next trigger finds out that the burst is over.
//!
//! State: three ticks, the last value, and at most one fire that waits for its turn. O(1) each.
//! Time that stands still prolongs a burst; time far ahead ends it.

use super::{Edge, Fired};
use crate::{Tick, wait::Machine};
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

#[derive(Debug)]
pub(crate) struct Debounce<T> {
    rules: Rules,
    /// When the timer falls due; a burst is under way while there is one.
    timer: Option<Tick>,
    last_trigger: Option<Tick>,
    /// The last fire, or the first trigger of the burst.
    last_fire: Tick,
    /// What the trailing edge would fire with.
    held: Option<Held<T>>,
    /// What has fired and waits for the action to be free.
    ready: Option<Fired<T>>,
    /// A value that was not used, until it is taken out to be dropped.
    waste: Option<T>,
}

/// The last value, and the triggers since the last fire.
#[derive(Debug)]
struct Held<T> {
    value: T,
    first_at: Tick,
    at: Tick,
    count: u64,
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
            waste: None,
        }
    }

    /// An event. Returns the values that are of no use any more, to be dropped without a lock.
    pub(crate) fn trigger(&mut self, now: Tick, value: T) -> [Option<T>; 4] {
        let overdue = self.expire(now);
        let (begins, too_early) = (self.fires_at(now), self.too_early(now));
        let (first_at, count) =
            self.held.as_ref().map_or((now, 1), |held| (held.first_at, held.count + 1));
        let old = self.held.replace(Held { value, first_at, at: now, count });
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
        [overdue, old.map(|held| held.value), merged, unused.map(|held| held.value)]
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
        [held.map(|held| held.value), ready.map(Fired::into_value)]
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
    fn expire(&mut self, now: Tick) -> Option<T> {
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
        self.held.take().map(|held| held.value)
    }

    /// Fires with what is held, if anything. One that still waits for its turn is replaced: the
    /// last value wins.
    fn fire(&mut self, now: Tick, edge: Edge) -> Option<T> {
        let Held { value, first_at, at, count } = self.held.take()?;
        self.last_fire = now;
        let mut fired = Fired { value, first_at, at, count, edge };
        let old = self.ready.take();
        if let Some(old) = &old {
            fired.first_at = old.first_at;
            fired.count += old.count;
        }
        self.ready = Some(fired);
        old.map(Fired::into_value)
    }
}

impl<T: Send + 'static> Machine for Debounce<T> {
    type Job = Fired<T>;

    fn due(&self) -> Option<Tick> {
        match self.timer {
            _ if self.is_ready() => Some(Tick::ZERO),
            timer if self.rules.trailing => timer,
            _ => None,
        }
    }

    fn next(&mut self, now: Tick) -> Option<Fired<T>> {
        // What fell due while the action was busy takes the place of what waits for its turn.
        self.waste = self.expire(now);
        self.ready.take()
    }

    fn finish(&mut self, now: Tick) {
        self.waste = self.flush(now);
    }

    fn waste(&mut self) -> impl Sized + use<T> {
        self.waste.take()
    }

    fn clear(&mut self) -> impl Sized + use<T> {
        self.cancel()
    }
}
