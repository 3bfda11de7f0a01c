//! Batches of permits for very hot keys.

use super::{
    KeyedLimiter,
    core::{Core, Key},
};
use crate::{
    Decision, Reservation, Tick, decision::Level, sync::Arc, verbs::StateRef, watch::Verb,
};
use std::{fmt, hash::Hash, time::Duration};

/// A batch of permits of one key, held by one thread or task: what [`Lease`](crate::Lease) is for a
/// single limiter, with the same bounds.
///
/// Made by [`KeyedLimiter::lease`]. A key that is blocked, listed, watched or counted is asked for
/// every permit, and a change of any quota ends the batch.
pub struct KeyLease {
    core: Arc<Core>,
    fingerprint: u64,
    batch: u64,
    life: Duration,
    /// Permits taken and not used yet, of those reserved.
    held: u64,
    reserved: Option<Reservation>,
    expires: Tick,
    /// The count of changes when the batch was taken.
    stamp: u64,
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Returns an empty lease that takes `batch` permits of a key at a time and holds them for
    /// `life`. A batch of zero counts as one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Quota};
    ///
    /// let tenants = KeyedLimiter::<str>::new(Quota::per_second(100_000))?;
    /// let mut lease = tenants.lease("acme", 64, Duration::from_millis(10));
    /// assert!((0..1000).all(|_| lease.try_acquire().is_allowed()));
    /// # Ok::<(), tollgate::KeyedError>(())
    /// ```
    #[must_use]
    pub fn lease(&self, key: &K, batch: u64, life: Duration) -> KeyLease {
        KeyLease {
            core: Arc::clone(&self.core),
            fingerprint: self.named(key),
            batch: batch.max(1),
            life,
            held: 0,
            reserved: None,
            expires: Tick::ZERO,
            stamp: 0,
        }
    }
}

impl KeyLease {
    /// Takes one permit from the batch, or a new batch if that is used up.
    pub fn try_acquire(&mut self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits from the batch, or more from the key if they do not suffice.
    pub fn try_acquire_n(&mut self, cost: u64) -> Decision {
        let now = self.core.clock.now();
        let is_good = self.core.mode() == 0 && self.core.changes() == self.stamp;
        if is_good && self.held >= cost && self.held > 0 && now < self.expires {
            self.held -= cost;
            return self.decision(now, cost);
        }
        self.refill(now, cost)
    }

    fn decision(&self, now: Tick, cost: u64) -> Decision {
        let level = Level { at: now, limit: self.batch, remaining: self.held, full: 0 };
        Decision::allowed(level, cost)
    }

    fn ask(&self, now: Tick, cost: u64) -> Decision {
        let key = Key::plain(self.fingerprint);
        StateRef::Key(&self.core, &key).ask(Verb::TryAcquire, now, cost)
    }

    fn refill(&mut self, now: Tick, cost: u64) -> Decision {
        self.give_back();
        if self.core.mode() != 0 {
            return self.ask(now, cost);
        }
        self.stamp = self.core.changes();
        let key = Key::plain(self.fingerprint);
        let state = StateRef::Key(&self.core, &key);
        (_, self.reserved) = state.lease(now, self.batch.max(cost));
        self.held = self.reserved.as_ref().map_or(0, Reservation::cost);
        if self.reserved.is_none() || self.held < cost {
            // Not enough: what there is goes back, and the key says when there will be.
            self.give_back();
            return self.ask(now, cost);
        }
        self.held -= cost;
        self.expires = now.saturating_add(self.life);
        self.decision(now, cost)
    }

    /// Returns the permits held.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Gives back what is not used yet, and time has not refilled already.
    pub fn give_back(&mut self) {
        let held = std::mem::take(&mut self.held);
        if let Some(reserved) = self.reserved.take() {
            let used = reserved.cost().saturating_sub(held);
            let _ = reserved.settle(used);
        }
    }
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for KeyLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLease")
            .field("batch", &self.batch)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
