//! Blocks, penalties and exemptions of single keys.

use super::{
    KeyedError, KeyedLimiter,
    core::{BYPASS, OVERRIDDEN},
    overrides::{Access, KeyOverride},
};
use crate::{Bypass, Decision, Tick};
use std::{hash::Hash, time::Duration};

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Books `cost` permits as a punishment: [`force`](Self::force) by another name, for wrong
    /// passwords, scanners and the like.
    #[doc(alias = "penalty")]
    pub fn penalize(&self, key: &K, cost: u64) -> Decision {
        self.force(key, cost)
    }

    /// Refuses everything of a key for `length` from now on, whatever its permits. Its state stays
    /// and goes on refilling.
    ///
    /// # Errors
    ///
    /// When as many keys have an override, a block or a place on a list as may.
    #[doc(alias = "ban")]
    pub fn block(&self, key: &K, length: Duration) -> Result<(), KeyedError> {
        let until = self.now().saturating_add(length);
        self.note(key, |note| note.blocked_until = until)
    }

    /// Ends a block. Tells whether there was one.
    #[allow(clippy::must_use_candidate, reason = "ending it is the point")]
    pub fn unblock(&self, key: &K) -> bool {
        let now = self.now();
        let end =
            |note: &mut KeyOverride| std::mem::replace(&mut note.blocked_until, Tick::ZERO) > now;
        self.change(key, end).unwrap_or(false)
    }

    /// Returns until when a key is blocked, if it is.
    #[must_use]
    pub fn blocked_until(&self, key: &K) -> Option<Tick> {
        self.core.overrides.look(self.fingerprint(key), self.now()).1.blocked_until()
    }

    /// Puts a key on the allow list: everything passes and nothing is charged.
    ///
    /// # Errors
    ///
    /// When as many keys have an override, a block or a place on a list as may.
    pub fn allow(&self, key: &K) -> Result<(), KeyedError> {
        self.note(key, |note| note.listed = Access::Allowed)
    }

    /// Puts a key on the deny list: nothing passes, and no wait helps.
    ///
    /// # Errors
    ///
    /// When as many keys have an override, a block or a place on a list as may.
    pub fn deny(&self, key: &K) -> Result<(), KeyedError> {
        self.note(key, |note| note.listed = Access::Denied)
    }

    /// Takes a key off either list. Tells whether it was on one.
    #[allow(clippy::must_use_candidate, reason = "taking it off is the point")]
    pub fn unlist(&self, key: &K) -> bool {
        let listed = self.change(key, |note| std::mem::take(&mut note.listed));
        listed.is_ok_and(|listed| listed != Access::ByQuota)
    }

    fn note(&self, key: &K, change: impl FnOnce(&mut KeyOverride)) -> Result<(), KeyedError> {
        self.core.mode.set(OVERRIDDEN, true);
        self.change(key, change)
    }

    /// Changes the entry of a key, and serves or refuses its waiters by what holds then.
    fn change<R>(
        &self,
        key: &K,
        change: impl FnOnce(&mut KeyOverride) -> R,
    ) -> Result<R, KeyedError> {
        let fingerprint = self.fingerprint(key);
        let changed = self.core.overrides.change(fingerprint, self.now(), change);
        self.core.settle_key(fingerprint);
        changed
    }

    /// Takes the limiter out of force for all keys, or puts it back: for emergencies.
    ///
    /// While bypassed, everything passes, nothing is charged, and every decision says
    /// [`is_bypassed`](Decision::is_bypassed).
    pub fn bypass(&self, bypass: Bypass) {
        self.core.mode.set(BYPASS, bypass == Bypass::On);
        // Those who wait pass at once.
        self.core.settle_all();
    }

    /// Tells whether the limiter is out of force.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.core.mode() & BYPASS != 0
    }
}
