//! Limits above limits: users under tenants under one service.
//!
//! Two kinds of trees, which answer two questions:
//!
//! | the question | the tree | who may pass |
//! |---|---|---|
//! | how does every user stay within a limit, *and* all together within the service's? | [strict](Hierarchy::strict) | an event that every level on the path admits |
//! | which users get the capacity that others leave unused, and which share is guaranteed? | [borrowing](Hierarchy::borrowing) | an event whose class has a guaranteed share left, or finds a lender above |
//!
//! A strict tree has no guarantees: one greedy user can use up the root. A borrowing tree has them,
//! and hands out what is idle. [docs/hierarchy.md] shows both side by side.
//!
//! A *path* names a node from the root down, without the root: `["acme", "alice"]`. A node is its
//! whole path: "alice" under "acme" is another than "alice" under "other", and no choice of names
//! makes two paths one. Nodes live in the tables of [`KeyedLimiter`](crate::KeyedLimiter): 16 bytes
//! a state, none for a node at rest, and a fixed amount of memory if asked for.
//!
//! [docs/hierarchy.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/hierarchy.md

mod borrowing;
mod error;
mod node_limiter;
mod path;
mod strict;

pub use borrowing::{BorrowingBuilder, BorrowingDecision, BorrowingTree, Class, ClassCounts};
pub use error::{PathError, Unreserved};
pub use strict::{Level, StrictBuilder, StrictTree};

/// Where trees of limits begin: [strict](Self::strict) or [borrowing](Self::borrowing).
///
/// # Examples
///
/// Every level must agree, and all are charged or none:
///
/// ```
/// use tollgate::{Hierarchy, Quota};
///
/// let tree = Hierarchy::strict("service", Quota::per_second(1000))
///     .level("tenant", Quota::per_second(100))
///     .level("user", Quota::per_second(10).burst(2))
///     .build()?;
/// assert!(tree.try_acquire(&["acme", "alice"])?.is_allowed());
/// assert!(tree.try_acquire(&["acme", "alice"])?.is_allowed());
/// let third = tree.try_acquire(&["acme", "alice"])?;
/// let refusing: Vec<_> = third.refusing().filter_map(|level| tree.level_name(level)).collect();
/// assert_eq!(refusing, ["user"]);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// Everybody has a guaranteed share, and borrows what is idle:
///
/// ```
/// use tollgate::{Clock, Hierarchy, Quota, hierarchy::Class};
///
/// let (clock, _hand) = Clock::manual();
/// let all = Quota::per_second(1000).burst(10);
/// let tree = Hierarchy::borrowing("service", Class::new(all))
///     .class("paid", Class::new(Quota::per_second(700).burst(7)).ceiling(all))
///     .class("free", Class::new(Quota::per_second(300).burst(3)).ceiling(all))
///     .clock(clock)
///     .build()?;
/// let free: Vec<_> = (0..11).map(|_| tree.try_acquire(&["free"])).collect::<Result<_, _>>()?;
/// assert!(free[2].is_allowed() && !free[2].is_borrowed());
/// assert_eq!(free[3].borrowed_from(), Some(0)); // the root lends
/// assert!(free[10].decision().is_denied());
/// assert!(tree.try_acquire(&["paid"])?.is_allowed()); // its share is still there
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
pub enum Hierarchy {}

impl Hierarchy {
    /// Starts a tree in which every level of a path must agree, with the name and the limit of the
    /// root.
    pub fn strict(root: impl Into<Box<str>>, level: impl Into<Level>) -> StrictBuilder {
        StrictBuilder::new(root.into(), level.into())
    }

    /// Starts a tree of guaranteed shares that lend what they do not use, with the name of the root
    /// and what it has. The ceiling of the root is [hard](Class::hard_ceiling) unless it is said
    /// otherwise.
    pub fn borrowing(root: impl Into<Box<str>>, class: Class) -> BorrowingBuilder {
        BorrowingBuilder::new(root.into(), class)
    }
}
