//! Overrides of single keys: own quotas, lists, blocks, and strikes that lead to blocks.
//!
//! Most keys have no entry here, and a limiter without entries does not look here at all. Entries are bounded
//! in number: what has expired leaves, a few with each new note, and when all are in force, those
//! that only remember something (a cached quota, a few strikes) make room for those that a caller
//! asked for.

use super::{
    KeyedError,
    rule_cell::{self, RuleCell},
};
use crate::{
    Tick,
    sync::{Arc, lock},
    table::SweptMap,
};
use std::time::Duration;

/// Bans for repeated refusals: after so many within a window a key is blocked, each time for twice
/// as long.
///
/// | refusals in `window` | blocked for |
/// |---|---|
/// | `refusals` | `first` |
/// | again | 2 x `first` |
/// | again | 4 x `first`, and so on up to `most` |
///
/// Refusals of a blocked key do not count. A key that has behaved for `forgive` after its last ban
/// starts over.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Escalation, KeyedLimiter, Quota};
///
/// let bans = Escalation::new(5, Duration::from_secs(60), Duration::from_secs(30));
/// let logins = KeyedLimiter::<str>::builder(Quota::per_minute(3)).escalate(bans).build()?;
/// let refused = (0..8).filter(|_| logins.try_acquire("mallory").is_denied()).count();
/// assert_eq!(refused, 5);
/// assert!(logins.blocked_until("mallory").is_some());
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalation {
    pub(super) refusals: u32,
    pub(super) window: Duration,
    pub(super) first: Duration,
    pub(super) most: Duration,
    pub(super) forgive: Option<Duration>,
}

impl Escalation {
    /// Blocks for `first` after `refusals` within `window`. The longest ban is 64 times as long
    /// unless [`most`](Self::most) says otherwise, and after as much time again a ban is forgiven.
    #[must_use]
    pub const fn new(refusals: u32, window: Duration, first: Duration) -> Self {
        let most = first.saturating_mul(64);
        Self { refusals, window, first, most, forgive: None }
    }

    /// Sets the longest ban.
    #[must_use]
    pub const fn most(mut self, most: Duration) -> Self {
        self.most = most;
        self
    }

    /// Sets after how long without a ban a key starts over.
    #[must_use]
    pub const fn forgive(mut self, forgive: Duration) -> Self {
        self.forgive = Some(forgive);
        self
    }

    /// Checks that the rules make sense.
    pub(super) fn check(&self) -> Result<(), KeyedError> {
        let Self { refusals, first, most, .. } = *self;
        if refusals == 0 || first.is_zero() || most < first {
            return Err(KeyedError::Escalation { refusals, first, most });
        }
        Ok(())
    }

    fn forgiven_after(&self) -> Duration {
        self.forgive.unwrap_or(self.most)
    }

    /// Returns the length of ban number `level`, counted from zero.
    fn length(&self, level: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(level)).min(self.most)
    }
}

/// Whether a key is subject to its quota at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    ByQuota,
    Allowed,
    Denied,
    BlockedUntil(Tick),
}

impl Access {
    /// Returns until when a key is blocked, if it is.
    pub(super) const fn blocked_until(self) -> Option<Tick> {
        if let Self::BlockedUntil(until) = self { Some(until) } else { None }
    }
}

/// What overrides the limiter's quota for one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyOverride {
    /// The key's own quota, and until when.
    pub(super) own: Option<OwnQuota>,
    /// `Allowed` or `Denied` if the key is on a list.
    pub(super) listed: Access,
    pub(super) blocked_until: Tick,
    strikes: u32,
    /// When the window of the strikes began.
    strikes_since: Tick,
    /// Bans so far.
    bans: u32,
    /// Until when strikes, bans and the end of an own quota are remembered.
    pub(super) record_until: Tick,
}

/// A quota of a key's own.
#[derive(Clone, Debug)]
pub(crate) struct OwnQuota {
    pub(crate) rule: Arc<RuleCell>,
    /// Since when the key has it.
    pub(crate) since: Tick,
    pub(crate) until: Tick,
    /// Set by a caller, and not only the cached answer of a function.
    pub(crate) is_override: bool,
}

impl OwnQuota {
    /// Tells whether the key has it at `now`. The answer of a function holds until the next call of it.
    pub(crate) fn is_in_force(&self, now: Tick) -> bool {
        self.until > now || !self.is_override
    }
}

impl KeyOverride {
    fn is_expired(&self, now: Tick) -> bool {
        let own = self.own.as_ref().is_some_and(|own| own.until > now);
        !own && self.listed == Access::ByQuota
            && self.blocked_until <= now
            && self.record_until <= now
    }

    /// Tells whether nobody asked for this note, so that it may go to make room.
    fn is_memory(&self, now: Tick) -> bool {
        let asked = self.own.as_ref().is_some_and(|own| own.is_override && own.until > now);
        !asked && self.listed == Access::ByQuota && self.blocked_until <= now
    }

    /// Gives the key a quota of its own.
    pub(super) fn give(&mut self, mut own: OwnQuota, now: Tick) {
        if let Some(known) = self.own.as_ref().filter(|known| known.is_in_force(now)) {
            let (before, since) = known.rule.load();
            let before = (before, since.max(known.since));
            own.since = rule_cell::since(&own.rule.load().0, now, before);
        }
        self.own = Some(own);
    }

    fn access(&self, now: Tick) -> Access {
        match self.listed {
            Access::ByQuota if self.blocked_until > now => Access::BlockedUntil(self.blocked_until),
            listed => listed,
        }
    }

    /// Counts a refusal. Returns until when the key is blocked, if that begins now.
    fn strike(&mut self, now: Tick, rules: &Escalation) -> Option<Tick> {
        if self.bans > 0 && now >= self.blocked_until.saturating_add(rules.forgiven_after()) {
            self.bans = 0;
        }
        if self.strikes == 0 || now.since(self.strikes_since) >= rules.window {
            (self.strikes, self.strikes_since) = (0, now);
        }
        self.strikes += 1;
        let remembered = match self.bans {
            0 => now.saturating_add(rules.window),
            _ => self.blocked_until.saturating_add(rules.forgiven_after()),
        };
        self.record_until = self.record_until.max(remembered);
        if self.strikes < rules.refusals {
            return None;
        }
        self.blocked_until = now.saturating_add(rules.length(self.bans));
        self.record_until = self.blocked_until.saturating_add(rules.forgiven_after());
        (self.strikes, self.bans) = (0, self.bans.saturating_add(1));
        Some(self.blocked_until)
    }
}

/// The notes of a limiter.
pub(crate) type Overrides = SweptMap<KeyOverride, 24>;

impl Overrides {
    /// Tells whether there may be any note.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the quota of its own that a key has or had, and whether it is subject to a quota.
    pub(crate) fn look(&self, fingerprint: u64, now: Tick) -> (Option<OwnQuota>, Access) {
        if self.is_empty() {
            return (None, Access::ByQuota);
        }
        let shard = lock(self.shard(fingerprint));
        let known = shard.entries.get(&fingerprint);
        known.map(|note| (note.own.clone(), note.access(now))).unwrap_or_default()
    }

    /// Changes the note of a key. Without room for it, nothing is changed.
    pub(super) fn change<R>(
        &self,
        fingerprint: u64,
        now: Tick,
        change: impl FnOnce(&mut KeyOverride) -> R,
    ) -> Result<R, KeyedError> {
        let mut shard = lock(self.shard(fingerprint));
        if let Some(note) = shard.entries.get_mut(&fingerprint) {
            let result = change(note);
            if note.is_expired(now) {
                self.remove(&mut shard, fingerprint);
            }
            return Ok(result);
        }
        let mut note = KeyOverride::default();
        let result = change(&mut note);
        if note.is_expired(now) {
            return Ok(result);
        }
        // The place of a note that only remembers something is free: that with the fewest strikes.
        let weight = |note: &KeyOverride| note.is_memory(now).then_some((note.bans, note.strikes));
        if !self.give_room(&mut shard, |note| note.is_expired(now)) && !shard.evict(weight) {
            return Err(KeyedError::TooManyNotes { most: self.most });
        }
        shard.insert(fingerprint, note);
        Ok(result)
    }

    /// Counts a refusal of a key. Returns until when it is blocked, if that begins now.
    pub(super) fn strike(&self, fingerprint: u64, now: Tick, rules: &Escalation) -> Option<Tick> {
        self.change(fingerprint, now, |note| note.strike(now, rules)).ok().flatten()
    }

    /// Calls `visit` with every note, one shard at a time.
    pub(super) fn each(&self, mut visit: impl FnMut(u64, &mut KeyOverride)) {
        for shard in &self.shards {
            for (fingerprint, note) in &mut lock(shard).entries {
                visit(*fingerprint, note);
            }
        }
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
