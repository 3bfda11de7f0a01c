//! Trees of guaranteed shares that lend what they do not use.

mod builder;
mod class;
mod decide;
mod rule;
mod validation;

pub use builder::BorrowingBuilder;
pub use class::Class;

use super::{PathError, error::unknown_name, node_limiter::NodeLimiter};
use crate::{
    Clock, ConfigError, Decision, Tick,
    multi::Taking,
    observe::{Collector, Samples, WeakCollector, family},
    sync::{Arc, AtomicU8, AtomicU64, Mutex, Ordering::Relaxed, Padded, lock},
};
use std::{collections::BTreeMap, fmt};
use validation::{Declared, InForce, validate};

/// A tree of guaranteed shares that lend what they do not use; clones share it.
///
/// The rule is that of Linux' hierarchical token buckets (HTB), for events that are admitted or
/// refused when they come. Every [`Class`] has a guaranteed rate and a ceiling. An event passes
///
/// 1. on the guaranteed share of its own class, whatever the classes above say; or else
/// 2. on that of the nearest class above that has it to spare, the *lender*,
///
/// as long as no ceiling on the way is reached. All classes from the lender up are charged, into
/// debt if need be (at most what 60 seconds refill), so that a guaranteed share that is used stops
/// those who borrow, and not the other way round.
///
/// Made by [`Hierarchy::borrowing`](super::Hierarchy::borrowing); [docs/hierarchy.md] has pictures.
///
/// # Paths
///
/// A path names classes from below the root down: `["pro", "acme"]`. A keyed level has a class for
/// each path to it. A path may end early: its last class is then the one that asks, with its own
/// share. In a decision, number 0 is the root, 1 the first part of the path, and so on;
/// [`class_at`](Self::class_at) has the names.
///
/// # Concurrency
///
/// One decision locks the buckets of its path, in the order of their addresses, looks, charges and
/// unlocks: a refusal leaves no trace, and no two events use one permit. Every decision locks the
/// root.
///
/// # Examples
///
/// A million tenants of two plans in fixed memory:
///
/// ```
/// use tollgate::{Clock, Hierarchy, Quota, hierarchy::Class};
///
/// let (clock, _hand) = Clock::manual();
/// let all = Quota::per_second(1000).burst(100);
/// let tree = Hierarchy::borrowing("service", Class::new(all))
///     .class("pro", Class::new(Quota::per_second(700).burst(70)).ceiling(all))
///     .class("free", Class::new(Quota::per_second(100).burst(10)).ceiling(all).priority(3))
///     .keyed(
///         "pro tenant",
///         Class::new(Quota::per_second(7).burst(7)).parent("pro").expected(100).bounded(1000),
///     )
///     .keyed(
///         "free tenant",
///         Class::new(Quota::per_second(0))
///             .ceiling(Quota::per_second(5).burst(5))
///             .parent("free")
///             .priority(3)
///             .bounded(1_000_000),
///     )
///     .clock(clock)
///     .build()?;
/// assert!(!tree.try_acquire(&["pro", "acme"])?.is_borrowed());
/// let path = ["free", "somebody"];
/// let decided = tree.try_acquire(&path)?;
/// let lender = decided.borrowed_from().and_then(|number| tree.class_at(&path, number));
/// assert_eq!(lender, Some("free"));
/// assert_eq!(tree.counts("free").map(|counts| counts.lent), Some(1));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// [docs/hierarchy.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/hierarchy.md
#[derive(Clone)]
#[doc(alias = "HTB")]
pub struct BorrowingTree {
    inner: Arc<Inner>,
}

struct Inner {
    /// Number 0 is the root.
    nodes: Box<[Node]>,
    parents: Vec<Option<usize>>,
    classes: Mutex<Vec<Declared>>,
    clock: Clock,
}

/// A class, or all classes of a keyed level.
struct Node {
    rate: NodeLimiter,
    ceiling: NodeLimiter,
    children: Children,
    /// The priority, and whether the ceiling is hard.
    traits: AtomicU8,
    counters: Padded<ClassCounters>,
}

enum Children {
    Declared(BTreeMap<Box<str>, usize>),
    Keyed(usize),
}

/// Marks a hard ceiling beside the priority.
const HARD: u8 = 0x80;

impl Node {
    fn new(rate: NodeLimiter, ceiling: NodeLimiter, in_force: &InForce) -> Self {
        let children = Children::Declared(BTreeMap::new());
        let (traits, counters) = (AtomicU8::new(traits(in_force)), Padded::default());
        Self { rate, ceiling, children, traits, counters }
    }

    fn name(&self) -> &str {
        self.rate.name()
    }

    fn is_hard(&self) -> bool {
        // ORDERING: Relaxed, here and below. Each trait stands for itself; seeing one late is a
        // decision that happened a moment earlier.
        self.traits.load(Relaxed) & HARD != 0
    }

    fn priority(&self) -> u8 {
        self.traits.load(Relaxed) & !HARD
    }
}

const fn traits(in_force: &InForce) -> u8 {
    in_force.priority | if in_force.is_hard { HARD } else { 0 }
}

impl BorrowingTree {
    /// Takes one permit for the class at the end of the path, of its own share or a lender's, if
    /// there is one now. Never waits.
    ///
    /// # Errors
    ///
    /// When there is no such class. A denial is no error.
    pub fn try_acquire(&self, path: &[&str]) -> Result<BorrowingDecision, PathError> {
        self.try_acquire_n(path, 1)
    }

    /// Takes `cost` permits, all of them from one lender. Never waits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_n(&self, path: &[&str], cost: u64) -> Result<BorrowingDecision, PathError> {
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
    ) -> Result<BorrowingDecision, PathError> {
        self.decide(path, (now, cost), Taking::Take)
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek(&self, path: &[&str]) -> Result<BorrowingDecision, PathError> {
        self.peek_n(path, 1)
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek_n(&self, path: &[&str], cost: u64) -> Result<BorrowingDecision, PathError> {
        self.peek_at(path, self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn peek_at(
        &self,
        path: &[&str],
        now: Tick,
        cost: u64,
    ) -> Result<BorrowingDecision, PathError> {
        self.decide(path, (now, cost), Taking::Look)
    }

    /// Gives a class other rates, ceilings, priority and hardness. A declared class keeps what is
    /// used of each bucket, the nodes of a keyed one what [`KeyedLimiter::set_quota`](crate::KeyedLimiter::set_quota) keeps. Its parent and its table stay; those of `class` do not count. Hard ceilings that were
    /// not given follow the bursts below again.
    ///
    /// The two buckets of a class change one after the other: a decision in between sees one of
    /// them changed.
    ///
    /// # Errors
    ///
    /// When no class has this name, or the tree would not be accepted by
    /// [`build`](BorrowingBuilder::build): then nothing changes.
    pub fn set_class(&self, name: &str, class: Class) -> Result<(), ConfigError> {
        let Inner { nodes, parents, classes, .. } = &*self.inner;
        let mut classes = lock(classes);
        let index = classes.iter().position(|known| &*known.name == name);
        let index = index.ok_or_else(|| unknown_name(name))?;
        let before = validate(&classes, parents)?;
        let mut next = classes.clone();
        let old = std::mem::replace(&mut next[index].class, class);
        (next[index].class.parent, next[index].class.bounded) = (old.parent, old.bounded);
        let after = validate(&next, parents)?;
        for (node, (old, new)) in nodes.iter().zip(before.iter().zip(&after)) {
            node.change(old, new)?;
        }
        *classes = next;
        Ok(())
    }

    /// Returns a class as it was declared or last set.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Class> {
        let classes = lock(&self.inner.classes);
        classes.iter().find(|known| &*known.name == name).map(|known| known.class.clone())
    }

    /// Returns the name of a class on a path by its number in a decision: 0 is the root.
    #[must_use]
    pub fn class_at(&self, path: &[&str], number: usize) -> Option<&str> {
        let nodes = &self.inner.nodes;
        let found = path.get(..number)?.iter().try_fold(0, |node, part| self.child(node, part))?;
        nodes.get(found).map(Node::name)
    }

    fn child(&self, node: usize, part: &str) -> Option<usize> {
        match &self.inner.nodes.get(node)?.children {
            Children::Declared(known) => known.get(part).copied(),
            Children::Keyed(index) => Some(*index),
        }
    }

    /// Returns what a class has passed and refused so far; of a keyed level, all its classes
    /// together.
    #[must_use]
    pub fn counts(&self, name: &str) -> Option<ClassCounts> {
        let node = self.inner.nodes.iter().find(|node| node.name() == name)?;
        Some(node.counters.0.read())
    }

    /// Returns the names of all classes, in the order in which they were declared.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.nodes.iter().map(Node::name)
    }

    /// Returns the memory of the slots of all keyed levels, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.nodes.iter().map(|node| node.rate.bytes() + node.ceiling.bytes()).sum()
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
}

impl Node {
    /// Puts other quotas and traits into force. `validate` has accepted them, so this succeeds.
    fn change(&self, old: &InForce, new: &InForce) -> Result<(), ConfigError> {
        if old.rate != new.rate {
            self.rate.set_quota(new.rate)?;
        }
        if old.ceiling != new.ceiling {
            self.ceiling.set_quota(new.ceiling)?;
        }
        // ORDERING: Relaxed, see `is_hard`.
        self.traits.store(traits(new), Relaxed);
        Ok(())
    }
}

impl fmt::Debug for BorrowingTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The decision of a borrowing tree, and the class that paid.
#[must_use = "a decision that is not read limits nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowingDecision {
    decision: Decision,
    lender: Option<usize>,
    is_own: bool,
}

impl BorrowingDecision {
    /// Tells whether the event may pass now.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision.
    ///
    /// - [`remaining`](Decision::remaining) is the largest cost that would pass now;
    /// - [`limit`](Decision::limit) the largest that can ever pass at once;
    /// - [`retry_at`](Decision::retry_at) the first tick at which the same call passes, by
    ///   whichever lender, if nobody else comes;
    /// - [`refusing`](Decision::refusing) the classes that this waits for;
    /// - [`full_at`](Decision::full_at) when every bucket of the path is full.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the number of the class whose share paid, also if it is the class's own; `None` if
    /// the event was refused.
    #[must_use]
    pub const fn paid_by(&self) -> Option<usize> {
        self.lender
    }

    /// Returns the number of the class that lent, if the event passed on a borrowed share.
    #[must_use]
    pub const fn borrowed_from(&self) -> Option<usize> {
        if self.is_own { None } else { self.lender }
    }

    /// Tells whether the event passed on a borrowed share.
    #[must_use]
    pub const fn is_borrowed(&self) -> bool {
        self.borrowed_from().is_some()
    }
}

/// What a class has passed and refused so far, in permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassCounts {
    /// Passed for this class, on its own share or a borrowed one.
    pub admitted: u64,
    /// Passed for this class on a borrowed share.
    pub borrowed: u64,
    /// Passed for classes below on the share of this one.
    pub lent: u64,
    /// Refused to this class.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct ClassCounters {
    admitted: AtomicU64,
    borrowed: AtomicU64,
    lent: AtomicU64,
    refused: AtomicU64,
}

impl ClassCounters {
    fn read(&self) -> ClassCounts {
        // ORDERING: Relaxed, here and where they are counted. Counts for people to look at.
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let (admitted, borrowed) = (get(&self.admitted), get(&self.borrowed));
        ClassCounts { admitted, borrowed, lent: get(&self.lent), refused: get(&self.refused) }
    }
}

/// Each class is a part: `name/class`.
impl Collector for BorrowingTree {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("borrowing_tree");
        for node in &self.inner.nodes {
            let counts = node.counters.0.read();
            samples.part_by(node.name(), |samples| {
                samples.kind("class");
                match &node.rate {
                    NodeLimiter::One(limiter) => limiter.collect_level(samples),
                    NodeLimiter::Keyed(limiter) => samples.quota(limiter.quota()),
                }
                samples.count_by(&family::PERMITS, "allowed", counts.admitted);
                samples.count_by(&family::PERMITS, "denied", counts.refused);
                samples.count_by(&family::SHARED, "borrowed", counts.borrowed);
                samples.count_by(&family::SHARED, "lent", counts.lent);
            });
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.inner, |inner| Self { inner })
    }
}
