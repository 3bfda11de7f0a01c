//! The small parts of a decision, in one word.
//!
//! | bits | what |
//! |---|---|
//! | 0 | always set, so that an `Option` or a `Result` of a decision needs no room of its own |
//! | 8..=15 | outcome |
//! | 16..=23 | reason |
//!
//! One word is written and copied at once; four bytes are not.

use super::{Outcome, Reason};
use std::num::NonZeroU64;

#[derive(Clone, Copy)]
pub(super) struct PackedFlags(NonZeroU64);

const SET: u64 = 1;
const OUTCOME: u32 = 8;
const REASON: u32 = 16;
const BYTE: u64 = 0xff;

impl PackedFlags {
    #[inline(always)]
    pub(super) const fn new(outcome: Outcome) -> Self {
        Self::from_word((outcome as u64) << OUTCOME)
    }

    #[inline(always)]
    const fn from_word(word: u64) -> Self {
        match NonZeroU64::new(word | SET) {
            Some(word) => Self(word),
            None => Self(NonZeroU64::MIN),
        }
    }

    const fn with(self, place: u32, value: u8) -> Self {
        Self::from_word(self.0.get() & !(BYTE << place) | (value as u64) << place)
    }

    #[inline]
    const fn byte(self, place: u32) -> u8 {
        // OVERFLOW: eight bits.
        (self.0.get() >> place & BYTE) as u8
    }

    #[inline]
    pub(super) const fn outcome(self) -> Outcome {
        match self.byte(OUTCOME) {
            0 => Outcome::Allowed,
            1 => Outcome::Later,
            _ => Outcome::Never,
        }
    }

    pub(super) const fn with_outcome(self, outcome: Outcome) -> Self {
        self.with(OUTCOME, outcome as u8)
    }

    #[inline]
    pub(super) const fn reason(self) -> Reason {
        match self.byte(REASON) {
            0 => Reason::Quota,
            1 => Reason::Bypassed,
            2 => Reason::AllowListed,
            3 => Reason::DenyListed,
            4 => Reason::Blocked,
            5 => Reason::Saturated,
            _ => Reason::Degraded,
        }
    }

    pub(super) const fn with_reason(self, reason: Reason) -> Self {
        self.with(REASON, reason as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_keep_apart() {
        use Reason::{AllowListed, Blocked, Bypassed, Degraded, DenyListed, Quota, Saturated};
        for outcome in [Outcome::Allowed, Outcome::Later, Outcome::Never] {
            for reason in [Quota, Bypassed, AllowListed, DenyListed, Blocked, Saturated, Degraded] {
                let head =
                    PackedFlags::new(Outcome::Never).with_reason(reason).with_outcome(outcome);
                assert_eq!((head.outcome(), head.reason()), (outcome, reason));
            }
        }
    }
}
