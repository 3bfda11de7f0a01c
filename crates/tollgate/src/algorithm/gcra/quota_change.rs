//! What a single limiter keeps when its quota changes.

use super::Gcra;
use crate::{
    Tick,
    algorithm::{Inherit, Step, Succeed, inherit::FRACTION, word_time},
};

impl Gcra {
    /// Returns how far this limiter is booked ahead if it was `ahead` under `old`; `None` if it
    /// starts anew.
    pub(crate) fn carry(&self, old: &Self, ahead: u64, how: Inherit) -> Option<u64> {
        let (full, old_full) = (self.span(self.burst), old.span(old.burst));
        let is_share = how == Inherit::Proportional && ahead <= old_full && old_full > 0;
        // A budget that never refills counts whole permits, and rounds what is left down.
        if is_share && !self.scale.is_budget() {
            // Rounded so that nobody loses anything, by less than one place.
            // OVERFLOW: both are below 2^62, and the quotient is at most `full`.
            return Some((u128::from(ahead) * u128::from(full) / u128::from(old_full)) as u64);
        }
        // OVERFLOW: fewer than 2^62 places, so below 2^126.
        let used = (u128::from(ahead) << FRACTION) / u128::from(old.scale.per_permit);
        let used = how.used_after(used, old.burst, self.burst)?;
        // OVERFLOW: below 2^62 whole permits and 2^64 parts, of less than 2^58 places each.
        let (whole, part) = (used >> FRACTION, used & u128::from(u64::MAX));
        let places = u128::from(self.scale.per_permit);
        let ahead = whole * places + (part * places).div_ceil(1 << FRACTION);
        Some(ahead.min(u128::from(self.ahead_max())) as u64)
    }
}

impl Succeed for Gcra {
    /// The word of a limiter at rest changes, too, so that no decision by the old quota can write to
    /// it: to `now`, or to the ninth before; to two or one for a budget, which counts as nothing used.
    fn succeed(&self, old: &Self, tat: &u64, now: Tick, how: Inherit) -> u64 {
        let ahead = old.place(*tat).saturating_sub(old.position(now));
        let at_rest = if self.scale.is_budget() { 2 } else { word_time::from_tick(now) };
        let at_rest = at_rest.saturating_sub(u64::from(at_rest == *tat));
        match self.carry(old, ahead, how) {
            None => self.initial(now).max(at_rest),
            Some(0) => at_rest,
            Some(ahead) => self.word(self.position(now) + ahead),
        }
    }
}
