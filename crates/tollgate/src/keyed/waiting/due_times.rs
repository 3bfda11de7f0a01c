//! When the lines of all keys are next due, and the one timer for the first of them.

use super::key_queue::Caller;
#[cfg(feature = "tokio")]
use crate::wait::alarm::RuntimeId;
use crate::{
    Algorithm, Clock, Tick,
    keyed::core::{Core, WAITED},
    sync::{Arc, lock},
    wait::{Wakes, alarm::Alarm},
};
use std::collections::BTreeSet;

/// The lines of all keys by their due times.
#[derive(Default)]
pub(crate) struct Dues {
    lines: BTreeSet<(Tick, u64)>,
    pub(super) alarm: Alarm,
    /// Whose lines these are, while somebody waits: for a timer that serves them.
    core: Option<Arc<Core>>,
}

impl Dues {
    /// Puts the line of a key down for `target`, instead of what it is down for.
    pub(super) fn put(
        &mut self,
        caller: &Caller<'_>,
        fingerprint: u64,
        (due, target): (&mut Option<Tick>, Option<Tick>),
        wakes: &mut Wakes,
    ) {
        let core = caller.core;
        if let Some(old) = due.take() {
            self.lines.remove(&(old, fingerprint));
        }
        self.lines.extend(target.map(|target| (target, fingerprint)));
        *due = target;
        let is_over = core.waiting() == 0;
        if self.core.is_none() && !is_over {
            self.core = caller.own.cloned();
        }
        // Under this lock, so that the last to change it has seen who waits.
        if core.algorithm != Algorithm::Gcra {
            core.set_mode(WAITED, !is_over);
        }
        self.set_alarm(&core.clock, wakes);
        if is_over {
            // INVARIANT: not the last reference, because somebody works with the core.
            self.core = None;
        }
    }

    fn set_alarm(&mut self, clock: &Clock, wakes: &mut Wakes) {
        let first = self.lines.first().map(|(due, _)| *due);
        let core = &self.core;
        self.alarm.set(clock, first, wakes, || {
            let core = core.clone();
            move |_| core.iter().for_each(|core| core.ring())
        });
    }

    /// Returns the first line after `last` that is due.
    fn next_due(&self, now: Tick, last: Option<(Tick, u64)>) -> Option<(Tick, u64)> {
        let first = match last {
            Some((due, fingerprint)) => (due, fingerprint.checked_add(1)?),
            None => (Tick::ZERO, 0),
        };
        let next = self.lines.range(first..).next().copied();
        next.filter(|(due, _)| *due <= now)
    }
}

impl Core {
    /// Serves whoever is due, whatever key they wait for.
    fn serve_due(&self, wakes: &mut Wakes) {
        let (now, mut last) = (self.clock.now(), None);
        loop {
            last = lock(&self.dues).next_due(now, last);
            let Some((_, fingerprint)) = last else { return };
            let mut claims = self.claims.lock(fingerprint);
            claims.at_line(self, wakes, |line, post, mut at| ((), line.settle(post, &mut at)));
        }
    }

    /// The timer of a manual clock has come.
    fn ring(&self) {
        lock(&self.dues).alarm.rang();
        let mut wakes = Wakes::new();
        self.serve_due(&mut wakes);
        lock(&self.dues).set_alarm(&self.clock, &mut wakes);
        wakes.fire();
    }
}

/// The keys that somebody waits for.
#[cfg(feature = "tokio")]
#[derive(Clone)]
pub(super) struct Waited(pub(super) Arc<Core>);

#[cfg(feature = "tokio")]
impl crate::wait::alarm::Driven for Waited {
    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    fn drive(&self, runtime: RuntimeId, waker: &std::task::Waker) -> Option<Tick> {
        let old = lock(&self.0.dues).alarm.awake(runtime);
        let mut wakes = Wakes::new();
        self.0.serve_due(&mut wakes);
        let mut dues = lock(&self.0.dues);
        let first = dues.lines.first().map(|(due, _)| *due);
        dues.alarm.asleep(runtime, waker, first);
        drop(dues);
        wakes.fire();
        drop(old);
        first
    }

    fn dismiss(&self, runtime: RuntimeId) -> bool {
        let mut dues = lock(&self.0.dues);
        // Whoever takes a place asks for a driver afterwards, under this lock.
        let is_over = self.0.waiting() == 0;
        let old = if is_over { dues.alarm.gone(runtime) } else { None };
        drop(dues);
        drop(old);
        is_over
    }

    fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
        let (is_lost, old) = lock(&self.0.dues).alarm.abandoned(runtime, has_panicked);
        self.0.each_line(|line, post, at| line.abandon(post, at, is_lost));
        drop(old);
    }
}
