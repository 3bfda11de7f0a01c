//! A clock that moves only by its hand, with timers that fire in order.

use super::{Clock, Source, Tick};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The hand of a manual clock: sets the time and fires the timers that fall due.
///
/// Clones move the same clock.
///
/// # Examples
///
/// Timers fire in the order of their ticks, and each sees its own tick as the time:
///
/// ```
/// use std::{sync::{Arc, Mutex}, time::Duration};
/// use tollgate::{Clock, Tick};
///
/// let (clock, hand) = Clock::manual();
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// for ms in [30, 10, 20] {
///     let seen = Arc::clone(&seen);
///     hand.call_at(Tick::from_millis(ms), move |now| seen.lock().unwrap().push(now));
/// }
/// hand.advance(Duration::from_millis(25));
/// assert_eq!(*seen.lock().unwrap(), [Tick::from_millis(10), Tick::from_millis(20)]);
/// assert_eq!(clock.now(), Tick::from_millis(25));
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    inner: Arc<Mutex<Inner>>,
}

/// Names a timer of a [`ManualClock`], to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId {
    due: Tick,
    /// Order of registration, which breaks ties.
    number: u64,
}

type Call = Box<dyn FnOnce(Tick) + Send>;

#[derive(Default)]
struct Inner {
    now: Tick,
    /// The latest time shown so far. A clock set backwards stands still here.
    latest: Tick,
    timers: BTreeMap<TimerId, Call>,
    next_number: u64,
}

impl ManualClock {
    /// Returns the hand of a new clock, at [`Tick::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the clock that this hand moves.
    ///
    /// Each call starts with the Unix epoch as its origin; clones of one clock share the offset.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::new(Source::Manual(self.clone()))
    }

    /// Returns the time the hand shows, which may lie before the clock's: a clock that was set
    /// backwards counts as standing still until the hand has passed the old place.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.lock().now
    }

    pub(super) fn latest(&self) -> Tick {
        self.lock().latest
    }

    /// Moves the hand forward by `by` and fires what falls due on the way.
    pub fn advance(&self, by: Duration) {
        let to = self.now().saturating_add(by);
        self.set(to);
    }

    /// Sets the hand, forward or backward. On the way forward, timers fire.
    pub fn set(&self, to: Tick) {
        while let Some((at, call)) = self.next_due(to) {
            // The lock is released, so the call may set timers and read the clock.
            call(at);
        }
        self.lock().show(to);
    }

    /// Calls `call` when the hand reaches `due`; at its next move if that is past.
    ///
    /// The call runs inside [`advance`](Self::advance) or [`set`](Self::set), on the thread that
    /// moves the hand, and receives the time. It may set further timers, which fire in the same
    /// move if they fall due.
    pub fn call_at(&self, due: Tick, call: impl FnOnce(Tick) + Send + 'static) -> TimerId {
        let mut inner = self.lock();
        let id = TimerId { due, number: inner.next_number };
        inner.next_number += 1;
        inner.timers.insert(id, Box::new(call));
        id
    }

    /// Removes a timer; tells whether it was still to fire.
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel(&self, id: TimerId) -> bool {
        let removed = self.lock().timers.remove(&id);
        removed.is_some()
    }

    /// Returns when the next timer is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Tick> {
        self.lock().timers.keys().next().map(|id| id.due)
    }

    /// Returns how many timers are waiting.
    #[must_use]
    pub fn timers(&self) -> usize {
        self.lock().timers.len()
    }

    /// Takes the first timer due by `to` and moves the hand to it.
    fn next_due(&self, to: Tick) -> Option<(Tick, Call)> {
        let mut inner = self.lock();
        let id = *inner.timers.keys().next()?;
        if id.due > to {
            return None;
        }
        let call = inner.timers.remove(&id)?;
        // A timer set for the past fires now, without moving the hand back.
        let at = id.due.max(inner.now.min(to));
        inner.show(at);
        Some((at, call))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn show(&mut self, now: Tick) {
        self.now = now;
        self.latest = self.latest.max(now);
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("ManualClock")
            .field("now", &inner.now)
            .field("latest", &inner.latest)
            .field("timers", &inner.timers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_may_set_a_timer_that_fires_in_the_same_move() {
        let hand = ManualClock::new();
        let fired = Arc::new(Mutex::new(Vec::new()));
        let (again, log) = (hand.clone(), Arc::clone(&fired));
        hand.call_at(Tick::from_secs(1), move |now| {
            log.lock().unwrap().push(now);
            let log = Arc::clone(&log);
            again.call_at(Tick::from_secs(2), move |now| log.lock().unwrap().push(now));
        });
        hand.advance(Duration::from_secs(3));
        assert_eq!(*fired.lock().unwrap(), [Tick::from_secs(1), Tick::from_secs(2)]);
        assert_eq!(hand.now(), Tick::from_secs(3));
    }

    #[test]
    fn timers_of_one_tick_fire_in_the_order_they_were_set() {
        let hand = ManualClock::new();
        let fired = Arc::new(Mutex::new(Vec::new()));
        for n in 0..3 {
            let log = Arc::clone(&fired);
            hand.call_at(Tick::from_secs(1), move |_| log.lock().unwrap().push(n));
        }
        hand.set(Tick::from_secs(1));
        assert_eq!(*fired.lock().unwrap(), [0, 1, 2]);
    }

    #[test]
    fn a_cancelled_timer_does_not_fire() {
        let hand = ManualClock::new();
        let id = hand.call_at(Tick::from_secs(1), |_| panic!("it was cancelled"));
        assert_eq!(hand.next_timer(), Some(Tick::from_secs(1)));
        assert!(hand.cancel(id));
        assert!(!hand.cancel(id));
        hand.advance(Duration::from_secs(2));
        assert_eq!(hand.timers(), 0);
    }

    #[test]
    fn a_clock_set_backwards_stands_still_until_the_hand_has_caught_up() {
        let (clock, hand) = Clock::manual();
        hand.set(Tick::from_secs(10));
        hand.set(Tick::from_secs(4));
        assert_eq!((hand.now(), clock.now()), (Tick::from_secs(4), Tick::from_secs(10)));
        hand.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), Tick::from_secs(10));
        hand.advance(Duration::from_secs(2));
        assert_eq!(clock.now(), Tick::from_secs(11));
    }

    #[test]
    fn a_timer_in_the_past_fires_at_the_next_move() {
        let hand = ManualClock::new();
        hand.set(Tick::from_secs(5));
        let seen = Arc::new(Mutex::new(None));
        let log = Arc::clone(&seen);
        hand.call_at(Tick::from_secs(1), move |now| *log.lock().unwrap() = Some(now));
        hand.advance(Duration::ZERO);
        assert_eq!(*seen.lock().unwrap(), Some(Tick::from_secs(5)));
    }
}
