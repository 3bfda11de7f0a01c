//! A seqlock: a few words that rarely change, and that threads read together without a lock.

use super::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// `N` words with a version, which is odd while they change.
#[derive(Debug)]
pub(crate) struct Versioned<const N: usize> {
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Versioned<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self { version: AtomicU64::new(0), words: words.map(AtomicU64::new) }
    }

    /// Returns the first `M` words as of one moment, and what `between` returns at that moment; `None` if they
    /// change.
    #[inline(always)]
    pub(crate) fn read<R, const M: usize>(
        &self,
        between: impl FnOnce() -> R,
    ) -> Option<([u64; M], R)> {
        // ORDERING: Acquire pairs with the Release that ends a change: an even version comes with
        // its words.
        let before = self.version.load(Acquire);
        let result = between();
        // ORDERING: Relaxed, between the two looks at the version.
        let words = std::array::from_fn(|index| self.words[index].load(Relaxed));
        // ORDERING: the fence keeps the loads above from moving below the second look. It pairs
        // with the one in `write`: a thread that saw a word of a change sees its odd version.
        fence(Acquire);
        let is_settled = self.version.load(Relaxed) == before && before & 1 == 0;
        is_settled.then_some((words, result))
    }

    /// Changes the words. Only one thread at a time may do so.
    pub(crate) fn write(&self, words: [u64; N]) {
        // ORDERING: Relaxed. There is one writer.
        let before = self.version.load(Relaxed);
        // OVERFLOW: 64 bits of version outlast any number of changes.
        self.version.store(before + 1, Relaxed);
        // ORDERING: the fence makes the odd version visible before any of the words.
        fence(Release);
        for (atomic, word) in self.words.iter().zip(words) {
            // ORDERING: Relaxed; the even version publishes them.
            atomic.store(word, Relaxed);
        }
        // ORDERING: Release publishes the words with the even version.
        self.version.store(before + 2, Release);
    }
}
