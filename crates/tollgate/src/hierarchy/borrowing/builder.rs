//! The builder of a borrowing tree.

use super::{
    BorrowingTree, Children, Inner, Node,
    class::Class,
    validation::{Declared, parents, validate},
};
use crate::{
    Clock, ConfigError, Quota,
    hierarchy::{Level, node_limiter::NodeLimiter},
    sync::{Arc, Mutex},
};

/// Builds a [`BorrowingTree`]. Nothing is checked before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct BorrowingBuilder {
    classes: Vec<Declared>,
    clock: Option<Clock>,
}

impl BorrowingBuilder {
    pub(in crate::hierarchy) fn new(root: Box<str>, class: Class) -> Self {
        Self { classes: vec![Declared { name: root, class, is_keyed: false }], clock: None }
    }

    /// Adds a class. Paths name it by this name.
    pub fn class(self, name: impl Into<Box<str>>, class: Class) -> Self {
        self.add(Declared { name: name.into(), class, is_keyed: false })
    }

    /// Adds a level with a class for each path to it: all tenants of a plan, all users of each
    /// tenant. The name is for [`set_class`](BorrowingTree::set_class) and
    /// [`counts`](BorrowingTree::counts); paths have the key in its place.
    pub fn keyed(self, name: impl Into<Box<str>>, class: Class) -> Self {
        self.add(Declared { name: name.into(), class, is_keyed: true })
    }

    fn add(mut self, declared: Declared) -> Self {
        self.classes.push(declared);
        self
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the tree.
    ///
    /// # Errors
    ///
    /// When the classes do not go together:
    ///
    /// - two have one name, a parent is not declared before its child, or a path could be 65 long;
    /// - a keyed level has siblings, or a class that is not keyed below it;
    /// - the children of a class are guaranteed more than the class has, where a keyed level counts
    ///   as often as [expected](Class::expected);
    /// - a ceiling is below the class's rate, or above its parent's ceiling;
    /// - the burst of a hard ceiling is below the bursts of the class and all below it;
    /// - a quota makes no sense, or has no limit.
    pub fn build(self) -> Result<BorrowingTree, ConfigError> {
        let Self { classes, clock } = self;
        let parents = parents(&classes)?;
        let in_force = validate(&classes, &parents)?;
        let clock = clock.unwrap_or_default();
        let mut nodes: Vec<Node> = Vec::with_capacity(classes.len());
        for (index, (declared, in_force)) in classes.iter().zip(&in_force).enumerate() {
            if let Some(parent) = parents[index] {
                match &mut nodes[parent].children {
                    children if declared.is_keyed => *children = Children::Keyed(index),
                    Children::Declared(known) => drop(known.insert(declared.name.clone(), index)),
                    Children::Keyed(_) => debug_assert!(false, "a keyed level has no siblings"),
                }
            }
            let rate = declared.limiter(in_force.rate, &clock)?;
            let ceiling = declared.limiter(in_force.ceiling, &clock)?;
            nodes.push(Node::new(rate, ceiling, in_force));
        }
        let classes = Mutex::new(classes);
        let inner = Inner { nodes: nodes.into(), parents, classes, clock };
        Ok(BorrowingTree { inner: Arc::new(inner) })
    }
}

impl Declared {
    fn limiter(&self, quota: Quota, clock: &Clock) -> Result<NodeLimiter, ConfigError> {
        let mut level = Level::new(quota);
        level.bounded = self.class.bounded;
        let (name, clock) = (&self.name, clock.clone());
        if self.is_keyed { level.keyed(name, clock) } else { level.single(name, clock) }
    }
}
