//! The interface of a limiter for many keys, and the loops that call it.

use super::keys::Key;
use crate::machine;
use std::{
    hint::{black_box, spin_loop},
    time::Duration,
};

/// The parameters of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// How long one permit takes to come back.
    pub(crate) every: Duration,
    /// Permits of a fresh key.
    pub(crate) burst: u32,
    /// The most keys there will be, for limiters with a fixed size.
    pub(crate) keys: usize,
}

/// A limiter for many keys, as its users hold it.
///
/// A key is passed as it would be stored (`&String`), because governor looks it up so.
pub(crate) trait Store<K = String>: Send + Sync + 'static {
    /// Takes one permit. Always inlined, so that the figure is that of a decision without a
    /// function call.
    fn take(&self, key: &K) -> bool;

    /// Takes several permits; not measured.
    fn take_n(&self, key: &K, cost: u32) -> bool;

    /// Removes all keys that have expired, if that is a call of its own.
    fn sweep(&self) {}

    /// Returns how many keys are stored, if the store can tell.
    fn resident(&self) -> Option<usize> {
        None
    }
}

/// The loops over a store. One indirect call starts a loop; the calls inside are inlined.
pub(crate) trait Loops<K = String>: Send + Sync {
    /// Takes a permit of each key of `order`, and returns how often that was allowed.
    fn take_each(&self, keys: &[K], order: &[u32]) -> usize;

    /// Takes a permit of each of `keys` as they come, and returns how often that was allowed.
    fn take_all(&self, keys: &[K]) -> usize;

    /// Takes `cost` permits of each key.
    fn fill(&self, keys: &[K], cost: u32);

    /// Takes a permit of `count` keys, each written to the same buffer.
    fn fill_numbered(&self, count: usize);

    /// Takes a permit of each key, and returns the longest time one took, in counts.
    fn slowest(&self, keys: &[K]) -> u64;

    /// Takes a permit of a key at each interval, late or not. Returns how long after its time each
    /// call was done, in nanoseconds.
    ///
    /// After each window of [`WINDOW`] calls it reads how long the scheduler kept this thread
    /// waiting meanwhile, and calls `beside` for the waits of other threads on which a call may
    /// depend; `None` ends the loop. In a window with such a delay, a call that was late by no more
    /// than that is left out, and a later one counts without it: a long stall of the table stays
    /// visible on a busy machine, where it always comes with a preemption.
    fn open_loop(
        &self,
        keys: &[K],
        pace: Pace,
        beside: &mut dyn FnMut() -> Option<u64>,
    ) -> Vec<f64>;

    /// See [`Store::sweep`].
    fn sweep(&self);

    /// See [`Store::resident`].
    fn resident(&self) -> Option<usize>;
}

/// How often an open loop calls.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// Counts between two calls.
    pub(crate) interval: u64,
    /// Nanoseconds of a count.
    pub(crate) period_ns: f64,
}

impl Pace {
    /// Measures the machine's counter.
    pub(crate) fn every(ns: f64) -> Self {
        let period_ns = machine::counter_period_ns();
        Self { interval: (ns / period_ns) as u64, period_ns }
    }
}

/// Subtracts a delay from a window; the calls that it explains go to the end. Returns how many
/// calls are left.
fn without_delay(window: &mut [f64], delay_ns: f64) -> usize {
    if delay_ns == 0.0 {
        return window.len();
    }
    let mut left = 0;
    for index in 0..window.len() {
        if window[index] > delay_ns {
            window[left] = window[index] - delay_ns;
            left += 1;
        }
    }
    left
}

/// Calls of an open loop between two readings of the scheduler's statistics: 2 ms, roughly as long
/// as the scheduler lets another thread run.
const WINDOW: usize = 1000;

impl<K: Key, S: Store<K>> Loops<K> for S {
    fn take_each(&self, keys: &[K], order: &[u32]) -> usize {
        let mut allowed = 0;
        for index in order {
            // As in the other tables, parameters are loaded at each call.
            allowed += usize::from(black_box(self).take(&keys[*index as usize]));
        }
        black_box(allowed)
    }

    fn take_all(&self, keys: &[K]) -> usize {
        let mut allowed = 0;
        for key in keys {
            allowed += usize::from(black_box(self).take(key));
        }
        black_box(allowed)
    }

    fn fill(&self, keys: &[K], cost: u32) {
        for key in keys {
            black_box(self.take_n(key, cost));
        }
    }

    fn fill_numbered(&self, count: usize) {
        let mut key = K::of(0);
        for number in 0..count {
            key.set(number);
            black_box(self.take(&key));
        }
    }

    fn slowest(&self, keys: &[K]) -> u64 {
        let (mut slowest, mut before) = (0, machine::counter());
        for key in keys {
            black_box(black_box(self).take(key));
            let now = machine::counter();
            slowest = slowest.max(now.wrapping_sub(before));
            before = now;
        }
        slowest
    }

    fn open_loop(
        &self,
        keys: &[K],
        pace: Pace,
        beside: &mut dyn FnMut() -> Option<u64>,
    ) -> Vec<f64> {
        // Not zeroes, which the system would allocate on first use, in the measured time.
        let mut late = vec![f64::NAN; keys.len()];
        let (mut counted, mut waited_ns) = (0, machine::kept_waiting_ns());
        let mut due = machine::counter();
        for keys in keys.chunks(WINDOW) {
            let window = &mut late[counted..counted + keys.len()];
            for (key, late) in keys.iter().zip(&mut *window) {
                while machine::counter() < due {
                    spin_loop();
                }
                black_box(black_box(self).take(key));
                *late = machine::counter().saturating_sub(due) as f64 * pace.period_ns;
                due += pace.interval;
            }
            let end = machine::counter();
            let now_ns = machine::kept_waiting_ns();
            let own_ns = now_ns - std::mem::replace(&mut waited_ns, now_ns);
            let Some(others_ns) = beside() else { break };
            let delay_ns = (own_ns + others_ns) as f64;
            counted += without_delay(window, delay_ns);
            // Neither the reading nor the delay is charged to the calls that follow, as far as they
            // are late at all.
            let now = machine::counter();
            let forgiven = now - end + (delay_ns / pace.period_ns) as u64;
            due = due.max(now.min(due + forgiven));
        }
        late.truncate(counted);
        late
    }

    fn sweep(&self) {
        Store::<K>::sweep(self);
    }

    fn resident(&self) -> Option<usize> {
        Store::<K>::resident(self)
    }
}

/// A kind of store that can be measured.
pub(crate) struct Peer<K = String> {
    pub(crate) name: &'static str,
    pub(crate) build: fn(&Setup) -> Box<dyn Loops<K>>,
}

// Derived impls would require them of the key.
impl<K> Clone for Peer<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Peer<K> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_hides_no_stall_that_is_longer() {
        let window = [10.0, 500.0, 90.0, 101.0];
        for (delay_ns, expected) in [
            (0.0, &window[..]),
            (100.0, &[400.0, 1.0]),
            (500.0, &[]),
            (5.0, &[5.0, 495.0, 85.0, 96.0]),
        ] {
            let mut found = window;
            let left = without_delay(&mut found, delay_ns);
            assert_eq!(&found[..left], expected, "delay {delay_ns}");
        }
    }
}
