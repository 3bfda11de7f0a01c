//! Bans for hosts that decide by other means than a keyed limiter.

use super::{
    Escalation, KeyedError, Seed,
    builder::KEYS_MAX,
    notes::{Access, Notes},
};
use crate::Tick;

/// Which keys are blocked, and which are about to be: [`Escalation`] for whoever decides by a
/// [store](crate::store) and keeps no [`KeyedLimiter`](crate::KeyedLimiter).
///
/// The host asks [`blocked_until`](Self::blocked_until) before it decides, and tells
/// [`refused`](Self::refused) when it has refused. Keys are bytes and are not stored, only their
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
    notes: Notes,
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
        Ok(Self { rules, notes: Notes::new(most_keys), seed: Seed::random() })
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
        match self.notes.look(fingerprint, now).1 {
            Access::BlockedUntil(_) => None,
            _ => self.notes.strike(fingerprint, now, &self.rules),
        }
    }

    /// Returns until when a key is blocked, if it is.
    #[must_use]
    pub fn blocked_until(&self, key: &[u8], now: Tick) -> Option<Tick> {
        // Most hosts have no bans most of the time, and then a key need not be hashed.
        if self.notes.is_empty() {
            return None;
        }
        match self.notes.look(self.seed.fingerprint(key), now).1 {
            Access::BlockedUntil(until) => Some(until),
            _ => None,
        }
    }

    /// Blocks a key until `until`, whatever it did.
    ///
    /// # Errors
    ///
    /// When all keys for which there is room are blocked.
    pub fn block(&self, key: &[u8], now: Tick, until: Tick) -> Result<(), KeyedError> {
        let fingerprint = self.seed.fingerprint(key);
        let noted = self.notes.change(fingerprint, now, |note| note.blocked_until = until);
        noted.ok_or(KeyedError::TooManyNotes { most: self.notes.most() })
    }

    /// Ends a block. Tells whether there was one.
    #[allow(clippy::must_use_candidate, reason = "ending it is the point")]
    pub fn unblock(&self, key: &[u8], now: Tick) -> bool {
        let ended = self.notes.change(self.seed.fingerprint(key), now, |note| {
            std::mem::replace(&mut note.blocked_until, Tick::ZERO) > now
        });
        ended.unwrap_or(false)
    }

    /// Returns of how many keys something is remembered. Some of it may have expired.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.notes.len()
    }

    /// Tells whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn secs(secs: u64) -> Tick {
        Tick::from_secs(secs)
    }

    fn bans(most: u64) -> Bans {
        let rules = Escalation::new(2, Duration::from_secs(10), Duration::from_secs(30));
        Bans::new(rules, most).expect("the rules make sense")
    }

    #[test]
    fn a_key_that_keeps_being_refused_is_blocked_for_longer_each_time() {
        let bans = bans(10);
        // at_s, a ban begins until, blocked until afterwards
        for (row, (at, begins, blocked)) in [
            (0, None, None),
            (1, Some(31), Some(31)),
            (2, None, Some(31)), // refusals of a blocked key do not count
            (3, None, Some(31)),
            (31, None, None),
            (32, Some(92), Some(92)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(bans.refused(b"key", secs(at)), begins.map(secs), "row {row}");
            assert_eq!(bans.blocked_until(b"key", secs(at)), blocked.map(secs), "row {row}");
            assert_eq!(bans.blocked_until(b"other", secs(at)), None, "row {row}");
        }
        assert!(bans.unblock(b"key", secs(33)) && !bans.unblock(b"key", secs(33)));
        assert_eq!(bans.blocked_until(b"key", secs(33)), None);
        bans.block(b"key", secs(33), secs(40)).unwrap();
        assert_eq!(bans.blocked_until(b"key", secs(39)), Some(secs(40)));
        assert_eq!(bans.blocked_until(b"key", secs(40)), None);
        assert!(!bans.unblock(b"never seen", secs(40)));
    }

    #[test]
    fn a_flood_of_keys_stays_bounded_and_frees_nobody() {
        let bans = bans(100);
        bans.block(b"mallory", secs(0), secs(1_000)).unwrap();
        for number in 0..10_000_u64 {
            bans.refused(&number.to_be_bytes(), secs(1));
            assert!(bans.len() <= 100);
        }
        assert_eq!(bans.blocked_until(b"mallory", secs(999)), Some(secs(1_000)));
        // When all has expired, there is room again.
        let blocked = (0..100_u64)
            .filter(|number| bans.block(&number.to_be_bytes(), secs(2_000), secs(3_000)).is_ok());
        assert!(blocked.count() >= 90);
        assert!(bans.len() <= 100);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let second = Duration::from_secs(1);
        assert!(Bans::new(Escalation::new(0, second, second), 9).is_err());
        assert!(Bans::new(Escalation::new(1, second, Duration::ZERO), 9).is_err());
        assert!(Bans::new(Escalation::new(1, second, second), 0).is_err());
    }
}
