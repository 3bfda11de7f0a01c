//! Trees in which every level must agree.

mod builder;

pub use builder::{Level, StrictBuilder};

use super::{
    PathError, Unreserved,
    error::{not_keyed, unknown_name},
    node_limiter::NodeLimiter,
    path::PathBytes,
};
use crate::{
    Charge, Clock, ConfigError, Decision, Quota, Tick, Ticket,
    multi::{MultiDecision, Taking},
    observe::{Collector, Samples, WeakCollector},
    sync::Arc,
};
use std::{fmt, time::Duration};

/// A tree in which every level of a path must agree: all are charged, or none; clones share it.
///
/// Made by [`Hierarchy::strict`](super::Hierarchy::strict). The root is one limit, and every level
/// below has one for each path. A path with fewer parts than there are levels asks only those it
/// has; the empty path asks the root alone.
///
/// A decision is that of [`Limits`](crate::Limits): level number 0 is the root, and
/// [`level_name`](Self::level_name) names the others. Nothing is taken and given back, so a refusal
/// by one level costs the others nothing, and no event is refused because of another one that is refused
/// as well (`tests/limiting/hierarchy.rs`).
///
/// # Examples
///
/// ```
/// use tollgate::{Hierarchy, Quota, hierarchy::Level};
///
/// let tree = Hierarchy::strict("service", Quota::per_second(1000))
///     .level("tenant", Level::new(Quota::per_second(100)).bounded(1000))
///     .level("user", Level::new(Quota::per_minute(60)).bounded(1_000_000))
///     .build()?;
/// tree.override_quota(&["acme"], Quota::per_second(500), None)?;
/// assert!(tree.try_acquire_n(&["acme", "alice"], 3)?.is_allowed());
/// assert_eq!(tree.peek_n(&["acme", "alice"], 0)?.remaining(), 57);
/// assert_eq!(tree.peek_n(&["acme"], 0)?.remaining(), 497);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct StrictTree {
    inner: Arc<Inner>,
}

struct Inner {
    /// From the top down. The root is a single node, and all levels below it are keyed.
    levels: Box<[NodeLimiter]>,
    clock: Clock,
}

/// Charges that are kept in place; longer paths take memory from the heap.
const SHORT: usize = 8;

impl StrictTree {
    /// Takes one permit of every level on the path, if all of them have it now. Never waits.
    ///
    /// # Errors
    ///
    /// When the path is longer than the tree is deep. A denial is no error.
    pub fn try_acquire(&self, path: &[&str]) -> Result<Decision, PathError> {
        self.try_acquire_n(path, 1)
    }

    /// Takes `cost` permits of every level on the path, if all of them have them now. Never waits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_n(&self, path: &[&str], cost: u64) -> Result<Decision, PathError> {
        self.try_acquire_at(path, self.now(), cost)
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_at(
        &self,
        path: &[&str],
        now: Tick,
        cost: u64,
    ) -> Result<Decision, PathError> {
        self.with_charges(path, cost, |charges| {
            MultiDecision::decide(charges, now, Taking::Take, |_, _| {}).0
        })
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek(&self, path: &[&str]) -> Result<Decision, PathError> {
        self.peek_n(path, 1)
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek_n(&self, path: &[&str], cost: u64) -> Result<Decision, PathError> {
        self.peek_at(path, self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek_at(&self, path: &[&str], now: Tick, cost: u64) -> Result<Decision, PathError> {
        self.peek_each_at(path, (now, cost), |_, _| {})
    }

    /// [`peek_at`](Self::peek_at), and calls `each` with the number and the own decision of every
    /// level.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek_each_at(
        &self,
        path: &[&str],
        (now, cost): (Tick, u64),
        each: impl FnMut(usize, &Decision),
    ) -> Result<Decision, PathError> {
        self.with_charges(path, cost, |charges| {
            MultiDecision::decide(charges, now, Taking::Look, each).0
        })
    }

    /// Takes `cost` permits of every level on the path, if all of them have them now, with the
    /// right to give back.
    ///
    /// # Errors
    ///
    /// The decision, if it was a denial; or the path is longer than the tree is deep.
    pub fn reserve(&self, path: &[&str], cost: u64) -> Result<Ticket, Unreserved> {
        self.reserve_at(path, self.now(), cost)
    }

    /// [`reserve`](Self::reserve) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, path: &[&str], now: Tick, cost: u64) -> Result<Ticket, Unreserved> {
        let decided = self.with_charges(path, cost, |charges| {
            MultiDecision::decide(charges, now, Taking::Reserve, |_, _| {})
        });
        match decided? {
            (decision, Some(reservations)) => Ok(Ticket::new(reservations, decision)),
            (decision, None) => Err(Unreserved::Denied(decision)),
        }
    }

    /// Changes the quota of a level for every node that has none of its own. The root keeps what is
    /// used, the nodes what [`KeyedLimiter::set_quota`](crate::KeyedLimiter::set_quota) keeps.
    ///
    /// # Errors
    ///
    /// When no level has this name, or the quota makes no sense; the old one then stays in force.
    pub fn set_quota(&self, level: &str, quota: Quota) -> Result<(), ConfigError> {
        match self.inner.levels.iter().find(|known| known.name() == level) {
            Some(known) => known.set_quota(quota),
            None => Err(unknown_name(level)),
        }
    }

    /// Gives the node at the end of the path a quota of its own, for `life` or for good.
    ///
    /// # Errors
    ///
    /// When the path is empty (the root is one node: [`set_quota`](Self::set_quota)) or too long,
    /// the quota makes no sense, or there is no room for another note.
    pub fn override_quota(
        &self,
        path: &[&str],
        quota: Quota,
        life: Option<Duration>,
    ) -> Result<(), ConfigError> {
        let level = self.last_level(path)?;
        match level {
            NodeLimiter::One(_) => Err(not_keyed(level.name(), "quotas of single nodes")),
            NodeLimiter::Keyed(limiter) => limiter
                .override_quota(PathBytes::new(path).key(path), quota, life)
                .map_err(|error| ConfigError::of_part(level.name(), error)),
        }
    }

    /// Ends an override. Tells whether there was one.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn clear_override(&self, path: &[&str]) -> Result<bool, PathError> {
        Ok(match self.last_level(path)? {
            NodeLimiter::One(_) => false,
            NodeLimiter::Keyed(limiter) => limiter.clear_override(PathBytes::new(path).key(path)),
        })
    }

    /// Returns the quota that the node at the end of the path has now.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn quota_of(&self, path: &[&str]) -> Result<Quota, PathError> {
        Ok(match self.last_level(path)? {
            NodeLimiter::One(root) => root.quota(),
            NodeLimiter::Keyed(limiter) => limiter.quota_of(PathBytes::new(path).key(path)),
        })
    }

    /// Returns the name of a level by its number: 0 is the root.
    #[must_use]
    pub fn level_name(&self, level: usize) -> Option<&str> {
        self.inner.levels.get(level).map(NodeLimiter::name)
    }

    /// Returns how many levels there are, the root included.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.levels.len()
    }

    /// Returns how many nodes of a level have a slot: those not at rest, and some that are.
    #[must_use]
    pub fn nodes(&self, level: usize) -> usize {
        self.inner.levels.get(level).map_or(0, NodeLimiter::nodes)
    }

    /// Returns the memory of the slots of all levels, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.levels.iter().map(NodeLimiter::bytes).sum()
    }

    /// Returns the time by this tree's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.inner.clock.now()
    }

    /// Returns this tree's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns the level at the end of a path.
    fn last_level(&self, path: &[&str]) -> Result<&NodeLimiter, PathError> {
        let (parts, levels) = (path.len(), &self.inner.levels);
        levels.get(parts).ok_or(PathError::TooLong { parts, levels: levels.len() - 1 })
    }

    /// Gives `decide` the charges of a path, from the root down.
    fn with_charges<R>(
        &self,
        path: &[&str],
        cost: u64,
        decide: impl FnOnce(&[Charge<'_>]) -> R,
    ) -> Result<R, PathError> {
        self.last_level(path)?;
        let levels = &self.inner.levels;
        let keys = PathBytes::new(path);
        let charge = |level: usize| levels[level].charge(keys.key(&path[..level]), cost);
        let count = path.len() + 1;
        if count > SHORT {
            return Ok(decide(&(0..count).map(charge).collect::<Vec<_>>()));
        }
        let mut charges = [charge(0); SHORT];
        for (level, place) in charges.iter_mut().enumerate().take(count).skip(1) {
            *place = charge(level);
        }
        Ok(decide(&charges[..count]))
    }
}

impl fmt::Debug for StrictTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.inner.levels.iter().map(NodeLimiter::name)).finish()
    }
}

/// Each level is a part: `name/level`.
impl Collector for StrictTree {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("strict_tree");
        for level in &self.inner.levels {
            match level {
                NodeLimiter::One(limiter) => samples.part(level.name(), limiter),
                NodeLimiter::Keyed(limiter) => samples.part(level.name(), limiter),
            }
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.inner, |inner| Self { inner })
    }
}
