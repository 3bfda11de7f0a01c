//! What a coalescer gives to its action.

use crate::Tick;
use std::fmt;

/// Keys, or keys with their folded values, that leave together.
///
/// Each key is there once, and the order is that in which the keys arrived first.
///
/// # Examples
///
/// ```
/// use tollgate::{Coalescer, Driver, FlushCause, ManualClock};
///
/// let hand = ManualClock::new();
/// let counts = Coalescer::fold(|held: &mut u64, more| *held += more)
///     .max_size(3)
///     .driver(Driver::manual(&hand))
///     .start(|batch| {
///         assert_eq!((batch.cause(), batch.adds()), (FlushCause::Size, 4));
///         assert_eq!(batch.into_entries(), [("a", 5), ("b", 1), ("c", 1)]);
///     })?;
/// for (key, count) in [("a", 2), ("b", 1), ("a", 3), ("c", 1)] {
///     counts.try_add(key, count)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<K, V> {
    pub(super) entries: Vec<(K, V)>,
    pub(super) cause: FlushCause,
    pub(super) first_at: Tick,
    pub(super) last_at: Tick,
    pub(super) adds: u64,
}

/// Why a batch leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushCause {
    /// The window since its first key is over.
    Window,
    /// Nothing was added for the quiet time.
    Quiet,
    /// Adds did not stop, and the longest wait is over.
    MaxWait,
    /// It has as many keys as a batch may have.
    Size,
    /// Somebody asked for it.
    Flush,
    /// The coalescer ends.
    Finish,
}

impl FlushCause {
    /// Returns its name: one lower-case word, or two with an underscore.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Quiet => "quiet",
            Self::MaxWait => "max_wait",
            Self::Size => "size",
            Self::Flush => "flush",
            Self::Finish => "finish",
        }
    }
}

impl fmt::Display for FlushCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<K, V> Batch<K, V> {
    /// Returns why it leaves.
    #[must_use]
    pub const fn cause(&self) -> FlushCause {
        self.cause
    }

    /// Returns when its first key was added.
    #[must_use]
    pub const fn first_at(&self) -> Tick {
        self.first_at
    }

    /// Returns when something was added to it last.
    #[must_use]
    pub const fn last_at(&self) -> Tick {
        self.last_at
    }

    /// Returns how many adds it stands for.
    #[must_use]
    pub const fn adds(&self) -> u64 {
        self.adds
    }

    /// Returns how many keys it has: at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the keys and their values, in the order of arrival.
    #[must_use]
    pub fn entries(&self) -> &[(K, V)] {
        &self.entries
    }

    /// Returns the keys and their values, in the order of arrival.
    #[must_use]
    pub fn into_entries(self) -> Vec<(K, V)> {
        self.entries
    }

    /// Returns the keys, in the order of arrival.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// Returns the keys, in the order of arrival, and drops the values.
    #[must_use]
    pub fn into_keys(self) -> impl ExactSizeIterator<Item = K> {
        self.entries.into_iter().map(|(key, _)| key)
    }
}

impl<K, V> IntoIterator for Batch<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a Batch<K, V> {
    type Item = &'a (K, V);
    type IntoIter = std::slice::Iter<'a, (K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}
