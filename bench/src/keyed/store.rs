//! What is asked of a limiter for many keys, and the loops that ask.

use super::keys::Key;
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
/// A key is passed as it would be stored (`&String`), because governor looks it up so.
pub(crate) trait Store<K = String>: Send + Sync + 'static {
    /// Takes one permit. Always inlined: what is measured is a decision, not the way to it.
    fn take(&self, key: &K) -> bool;

    /// Takes several permits; not measured.
    fn take_n(&self, key: &K, cost: u32) -> bool;

    /// Removes all keys that have expired, where that is a call of its own.
    fn sweep(&self) {}

    /// Returns how many keys are stored, if it can be asked.
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

    /// Takes a permit of a key every `interval` counts, late or not. Returns how long after its time
    /// each call was done, in counts.
    ///
    /// After each window of [`WINDOW`] calls it asks `looks` how that went; the time this takes is
    /// not charged to any call. A window that was disturbed is left out, and the next one starts on
    /// time. So is one in which the kernel gave this processor to somebody else. (A thread that
    /// sleeps at a lock is not preempted: its wait counts.)
    fn open_loop(&self, keys: &[K], interval: u64, looks: &mut dyn FnMut() -> Look) -> Vec<f64>;

    /// See [`Store::sweep`].
    fn sweep(&self);

    /// See [`Store::resident`].
    fn resident(&self) -> Option<usize>;
}

/// What is to become of a window of an open loop.
pub(crate) enum Look {
    /// It counts, unless the caller was preempted.
    Counts,
    /// What goes on beside the calls did not, because somebody else had its processor.
    Disturbed,
    /// It is the last one and does not count, because what goes on beside the calls has ended.
    Ends,
}

/// Calls of an open loop between two looks at the count of preemptions: 2 ms, as long as the
/// scheduler lets somebody else run, roughly.
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

    fn open_loop(&self, keys: &[K], interval: u64, looks: &mut dyn FnMut() -> Look) -> Vec<f64> {
        // Not zeroes, which the system would hand out on first use, in the measured time.
        let mut late = vec![f64::NAN; keys.len()];
        let (mut counted, mut due) = (0, machine::counter());
        for keys in keys.chunks(WINDOW) {
            let before = machine::preemptions();
            for (key, late) in keys.iter().zip(&mut late[counted..]) {
                while machine::counter() < due {
                    spin_loop();
                }
                black_box(black_box(self).take(key));
                *late = machine::counter().saturating_sub(due) as f64;
                due += interval;
            }
            let (preempted, end) = (machine::preemptions() > before, machine::counter());
            match looks() {
                Look::Counts if !preempted => {
                    counted += keys.len();
                    due += machine::counter() - end;
                }
                Look::Counts | Look::Disturbed => due = machine::counter(),
                Look::Ends => break,
            }
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

// Derived, they would demand them of the key.
impl<K> Clone for Peer<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Peer<K> {}
