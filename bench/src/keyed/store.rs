//! What is asked of a limiter for many keys, and the loops that ask.

use super::keys;
use crate::machine;
use std::{
    hint::{black_box, spin_loop},
    time::Duration,
};

/// What a limiter is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// How long one permit takes to come back.
    pub(crate) every: Duration,
    /// Permits of a fresh key.
    pub(crate) burst: u32,
    /// The most keys there will be, for those who want to know.
    pub(crate) keys: usize,
}

/// A limiter for many keys, as its users hold it.
///
/// Keys are `&String`, because governor looks them up as what it stores.
#[allow(clippy::ptr_arg, reason = "see above")]
pub(crate) trait Store: Send + Sync + 'static {
    /// Takes one permit. Always inlined: what is measured is a decision, not the way to it.
    fn take(&self, key: &String) -> bool;

    /// Takes several permits; not measured.
    fn take_n(&self, key: &String, cost: u32) -> bool;

    /// Removes all keys that have expired, where that is a call of its own.
    fn sweep(&self) {}

    /// Returns how many keys are stored, if it can be asked.
    fn resident(&self) -> Option<usize> {
        None
    }
}

/// The loops over a store. One indirect call starts a loop; the calls inside are inlined.
pub(crate) trait Loops: Send + Sync {
    /// Takes a permit of each key of `order`, and returns how often that was allowed.
    fn take_each(&self, keys: &[String], order: &[u32]) -> usize;

    /// Takes `cost` permits of each key.
    fn fill(&self, keys: &[String], cost: u32);

    /// Takes a permit of `count` keys, each written to the same buffer.
    fn fill_numbered(&self, count: usize);

    /// Takes a permit of each key, and returns the longest time one took, in counts.
    fn slowest(&self, keys: &[String]) -> u64;

    /// Takes a permit of a key every `interval` counts, late or not, and returns how long after
    /// its time each was done, in counts.
    fn open_loop(&self, keys: &[String], interval: u64) -> Vec<f64>;

    /// See [`Store::sweep`].
    fn sweep(&self);

    /// See [`Store::resident`].
    fn resident(&self) -> Option<usize>;
}

impl<S: Store> Loops for S {
    fn take_each(&self, keys: &[String], order: &[u32]) -> usize {
        let mut allowed = 0;
        for index in order {
            // As in the other tables, parameters are loaded at each call.
            allowed += usize::from(black_box(self).take(&keys[*index as usize]));
        }
        black_box(allowed)
    }

    fn fill(&self, keys: &[String], cost: u32) {
        for key in keys {
            black_box(self.take_n(key, cost));
        }
    }

    fn fill_numbered(&self, count: usize) {
        let mut key = String::with_capacity(16);
        for number in 0..count {
            keys::write(&mut key, number);
            black_box(self.take(&key));
        }
    }

    fn slowest(&self, keys: &[String]) -> u64 {
        let (mut slowest, mut before) = (0, machine::counter());
        for key in keys {
            black_box(black_box(self).take(key));
            let now = machine::counter();
            slowest = slowest.max(now.wrapping_sub(before));
            before = now;
        }
        slowest
    }

    fn open_loop(&self, keys: &[String], interval: u64) -> Vec<f64> {
        // Not zeroes, which the system would hand out on first use, in the measured time.
        let mut late = vec![f64::NAN; keys.len()];
        let mut due = machine::counter();
        for (key, late) in keys.iter().zip(&mut late) {
            while machine::counter() < due {
                spin_loop();
            }
            black_box(black_box(self).take(key));
            *late = machine::counter().saturating_sub(due) as f64;
            due += interval;
        }
        late
    }

    fn sweep(&self) {
        Store::sweep(self);
    }

    fn resident(&self) -> Option<usize> {
        Store::resident(self)
    }
}

/// A kind of store that can be measured.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) build: fn(&Setup) -> Box<dyn Loops>,
}
