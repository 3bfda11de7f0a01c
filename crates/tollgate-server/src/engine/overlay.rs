//! Temporary changes of an administrator to single keys.

use crate::plan::{Kind, Rule};
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tollgate::Tick;

/// The most keys that can be changed at once.
pub(super) const MAX_SPECIAL: usize = 1 << 16;

/// Blocks and quotas of single keys. Decisions do not look here while there are none.
#[derive(Debug, Default)]
pub struct Overlay {
    count: AtomicUsize,
    keys: Mutex<HashMap<u64, Special>>,
    hasher: RandomState,
}

/// The changes to one key.
#[derive(Clone, Debug)]
pub struct Special {
    /// The rule's id.
    pub rule: Box<str>,
    /// The key, as the store knows it.
    pub key: Box<[u8]>,
    /// The end of its block, during which all its requests are denied.
    pub blocked_until: Option<Tick>,
    /// The limit that replaces the rule's, and until when.
    pub limit: Option<(Kind, Tick)>,
}

impl Special {
    fn is_over(&self, now: Tick) -> bool {
        self.blocked_until.is_none_or(|until| until <= now)
            && self.limit.as_ref().is_none_or(|(_, until)| *until <= now)
    }

    fn cleaned(mut self, now: Tick) -> Self {
        self.blocked_until = self.blocked_until.filter(|until| *until > now);
        self.limit = self.limit.filter(|(_, until)| *until > now);
        self
    }
}

/// The table of changed keys is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayError;

impl fmt::Display for OverlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_SPECIAL} keys are blocked or overridden already; end some of them first")
    }
}

impl std::error::Error for OverlayError {}

impl Overlay {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Special>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, rule: &str, key: &[u8]) -> u64 {
        self.hasher.hash_one((rule, key))
    }

    /// Returns the changes to a key, if there are any.
    #[must_use]
    pub fn look(&self, rule: &Rule, key: &[u8], now: Tick) -> Option<Special> {
        // ORDERING: Relaxed, here and below. A thread that sees a change late decides as if the
        // change had come that much later.
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let special = self.lock().get(&self.hash(rule.id(), key)).cloned()?.cleaned(now);
        let is_it = &*special.rule == rule.id() && *special.key == *key;
        (is_it && !special.is_over(now)).then_some(special)
    }

    /// Changes the block or the limit of a key.
    ///
    /// # Errors
    ///
    /// When the table of changed keys is full.
    pub fn change(
        &self,
        (rule, key): (&Rule, &[u8]),
        now: Tick,
        change: impl FnOnce(&mut Special),
    ) -> Result<(), OverlayError> {
        let mut keys = self.lock();
        let hash = self.hash(rule.id(), key);
        if keys.len() >= MAX_SPECIAL && !keys.contains_key(&hash) {
            keys.retain(|_, special| !special.is_over(now));
            if keys.len() >= MAX_SPECIAL {
                return Err(OverlayError);
            }
        }
        let fresh = || Special {
            rule: rule.id().into(),
            key: key.into(),
            blocked_until: None,
            limit: None,
        };
        let special = keys.entry(hash).or_insert_with(fresh);
        change(special);
        if special.is_over(now) {
            keys.remove(&hash);
        }
        self.count.store(keys.len(), Relaxed);
        Ok(())
    }

    /// Returns all changes in force, at most `most` of them.
    #[must_use]
    pub fn list(&self, now: Tick, most: usize) -> Vec<Special> {
        let mut keys = self.lock();
        keys.retain(|_, special| !special.is_over(now));
        self.count.store(keys.len(), Relaxed);
        keys.values().take(most).map(|special| special.clone().cleaned(now)).collect()
    }
}
