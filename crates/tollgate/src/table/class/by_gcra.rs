//! What the short way of a take reads of a class: once, and no more than it needs.

use super::{Class, ClassCell, Classes};
use crate::{
    algorithm::{Gcra, Packed, Rule},
    sync::Ordering::{Acquire, Relaxed},
};

/// A class whose states are words of GCRA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByGcra<'a> {
    classes: &'a Classes,
    cell: &'a ClassCell,
    pub(crate) gcra: Gcra,
}

impl Classes {
    /// Returns the class if its states are words of GCRA.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn by_gcra(&self, class: Class) -> Option<ByGcra<'_>> {
        let cell = self.cell(class)?;
        // ORDERING: as in `any_rule`: the words first, Relaxed, and then the kind with Acquire.
        let words = std::array::from_fn(|index| cell.words[index].load(Relaxed));
        if cell.kind.load(Acquire) != Rule::GCRA {
            return None;
        }
        Some(ByGcra { classes: self, cell, gcra: Gcra::from_words(words) })
    }
}

impl ByGcra<'_> {
    /// [`Classes::is_current`]: asked under a slot's lock.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn is_current(&self, stamp: u64) -> bool {
        // ORDERING: Relaxed, as in `Classes::is_current`.
        self.classes.changes.load(Relaxed) == stamp && self.cell.heir.load(Relaxed) == 0
    }
}
