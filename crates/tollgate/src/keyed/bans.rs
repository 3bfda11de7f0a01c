//! Bans for hosts that decide by other means than a keyed limiter.

use super::{Escalation, KeyedError, Seed, builder::KEYS_MAX, overrides::Overrides};
use crate::Tick;

/// Which keys are blocked, and which are about to be: [`Escalation`] for hosts that decide by a
/// [store](crate::store) and have no [`KeyedLimiter`](crate::KeyedLimiter).
///
/// The host calls [`blocked_until`](Self::blocked_until) before it decides, and
/// [`refused`](Self::refused) after each refusal. Keys are bytes and are not stored, only their
/// fingerprints under a random seed.
///
/// Memory is bounded: of `most_keys` at most something is remembered, some 120 bytes each. When all
/// are in use, keys with the fewest refusals are forgotten for new ones; a blocked key stays blocked
/// to its end. If all are blocked, refusals of other keys are not counted.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Bans, Escalation, Tick};
///
/// let rules = Escalation::new(3, Duration::from_secs(60), Duration::from_secs(30));
/// let bans = Bans::new(rules, 100_000)?;
/// let now = Tick::from_secs(5);
/// assert_eq!(bans.refused(b"mallory", now), None);
/// assert_eq!(bans.refused(b"mallory", now), None);
/// assert_eq!(bans.refused(b"mallory", now), Some(Tick::from_secs(35)));
/// assert_eq!(bans.blocked_until(b"mallory", now), Some(Tick::from_secs(35)));
/// assert_eq!(bans.blocked_until(b"alice", now), None);
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
#[derive(Debug)]
pub struct Bans {
    rules: Escalation,
    overrides: Overrides,
    seed: Seed,
}

impl Bans {
    /// Returns bans by these rules, for at most `most_keys` at a time.
    ///
    /// # Errors
    ///
    /// When the rules make no sense, or there is room for no key, or for more than memory can hold.
    pub fn new(rules: Escalation, most_keys: u64) -> Result<Self, KeyedError> {
        rules.check()?;
        if !(1..=KEYS_MAX).contains(&most_keys) {
            return Err(KeyedError::Capacity { keys: most_keys, most: KEYS_MAX });
        }
        Ok(Self { rules, overrides: Overrides::new(most_keys), seed: Seed::random() })
    }

    /// Returns the rules.
    #[must_use]
    pub const fn rules(&self) -> Escalation {
        self.rules
    }

    /// Counts a refusal of a key. Returns until when the key is blocked, if that begins now.
    /// Refusals of a key that is blocked already do not count.
    #[allow(clippy::must_use_candidate, reason = "counting is the point")]
    pub fn refused(&self, key: &[u8], now: Tick) -> Option<Tick> {
        let fingerprint = self.seed.fingerprint(key);
        if self.overrides.look(fingerprint, now).1.blocked_until().is_some() {
            return None;
        }
        self.overrides.strike(fingerprint, now, &self.rules)
    }

    /// Returns until when a key is blocked, if it is.
    #[must_use]
    pub fn blocked_until(&self, key: &[u8], now: Tick) -> Option<Tick> {
        // Most hosts have no bans most of the time, and then a key need not be hashed.
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.look(self.seed.fingerprint(key), now).1.blocked_until()
    }

    /// Blocks a key until `until`, whatever it did.
    ///
    /// # Errors
    ///
    /// When all keys for which there is room are blocked.
    pub fn block(&self, key: &[u8], now: Tick, until: Tick) -> Result<(), KeyedError> {
        let fingerprint = self.seed.fingerprint(key);
        self.overrides.change(fingerprint, now, |note| note.blocked_until = until)
    }

    /// Ends a block. Tells whether there was one.
    #[allow(clippy::must_use_candidate, reason = "ending it is the point")]
    pub fn unblock(&self, key: &[u8], now: Tick) -> bool {
        let ended = self.overrides.change(self.seed.fingerprint(key), now, |note| {
            std::mem::replace(&mut note.blocked_until, Tick::ZERO) > now
        });
        ended.unwrap_or(false)
    }

    /// Returns of how many keys something is remembered. Some of it may have expired.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.overrides.len()
    }

    /// Tells whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.overrides.is_empty()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
