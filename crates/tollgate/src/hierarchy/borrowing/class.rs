//! What one class of a borrowing tree is made of.

use crate::Quota;

/// What one class of a borrowing tree is made of: a guaranteed rate, a ceiling, a priority and a
/// parent.
///
/// | | means | by default |
/// |---|---|---|
/// | rate | what the class is sure of | given to [`new`](Self::new); zero guarantees nothing |
/// | [`ceiling`](Self::ceiling) | what it may reach while others are idle | the rate: it never borrows |
/// | [`priority`](Self::priority) | who borrows first, 0 to 7 | 0, the first |
/// | [`parent`](Self::parent) | the class it borrows from | the root |
/// | [`hard_ceiling`](Self::hard_ceiling) | its ceiling holds for guaranteed shares below it too | only of the root |
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, hierarchy::Class};
///
/// let all = Quota::per_second(1000).burst(100);
/// let pro = Class::new(Quota::per_second(700).burst(70)).ceiling(all);
/// let tenant = Class::new(Quota::per_second(7).burst(5))
///     .ceiling(Quota::per_second(100).burst(20))
///     .parent("pro")
///     .expected(100)
///     .bounded(10_000);
/// # let _ = (pro, tenant);
/// ```
#[must_use = "a class does nothing until it is part of a tree"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub(super) rate: Quota,
    pub(super) ceiling: Option<Quota>,
    pub(super) priority: u8,
    /// Whether the ceiling holds for guaranteed shares below; by default only that of the root.
    pub(super) is_hard: Option<bool>,
    pub(super) parent: Option<Box<str>>,
    pub(super) expected: Option<u64>,
    pub(super) bounded: Option<u64>,
}

impl Class {
    /// Returns a class with this guaranteed rate and its burst.
    pub const fn new(rate: Quota) -> Self {
        Self {
            rate,
            ceiling: None,
            priority: 0,
            is_hard: None,
            parent: None,
            expected: None,
            bounded: None,
        }
    }

    /// Sets what the class may reach by borrowing, by default no more than its rate.
    ///
    /// By default the burst of the ceiling is that of the rate; of a hard ceiling, together with
    /// the bursts of all classes below, so that it never refuses what they are guaranteed.
    pub const fn ceiling(mut self, ceiling: Quota) -> Self {
        self.ceiling = Some(ceiling);
        self
    }

    /// Sets who borrows first: 0, the default, to 7. An event of priority k borrows only if k/8 of
    /// the lender's burst stay behind.
    pub const fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Holds the ceiling for guaranteed shares below too: it is never exceeded. The default of the
    /// root.
    ///
    /// At the root it refuses nobody a guaranteed share, because borrowers stop earlier, at the
    /// burst of the rate. Below the root it also counts what its class borrows from above: once
    /// that has used it up, guaranteed shares below it wait.
    pub const fn hard_ceiling(mut self) -> Self {
        self.is_hard = Some(true);
        self
    }

    /// Lets guaranteed shares below pass whatever the ceiling says, as the kernel does.
    /// The default of all but the root.
    pub const fn soft_ceiling(mut self) -> Self {
        self.is_hard = Some(false);
        self
    }

    /// Sets the class from which this one borrows, by default the root. It must be declared first.
    pub fn parent(mut self, parent: impl Into<Box<str>>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    /// Says how many nodes of a keyed class share one parent: so many times its rate must fit into
    /// the parent's. Required if each node is guaranteed something. More nodes may come: what is
    /// guaranteed is then more than there is, and only a hard ceiling above bounds it.
    pub const fn expected(mut self, nodes: u64) -> Self {
        self.expected = Some(nodes);
        self
    }

    /// Uses tables with memory for `nodes` nodes that are not at rest, twice 24 bytes each, all of
    /// it from the start. By default the tables of a keyed class grow.
    pub const fn bounded(mut self, nodes: u64) -> Self {
        self.bounded = Some(nodes);
        self
    }
}
