//! How a borrowing tree is put together.

use super::{
    BorrowingTree, Buckets, Children, Inner, Node,
    class::Class,
    plan::{Declared, InForce, judge, parents},
};
use crate::{
    Clock, KeyedLimiter, Limiter, Quota,
    hierarchy::HierarchyError,
    sync::{Arc, Mutex},
};

/// Builds a [`BorrowingTree`]. Nothing is judged before [`build`](Self::build).
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
    pub fn build(self) -> Result<BorrowingTree, HierarchyError> {
        let Self { classes, clock } = self;
        let parents = parents(&classes)?;
        let in_force = judge(&classes, &parents)?;
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
            nodes.push(Node::new(
                declared.name.clone(),
                declared.buckets(in_force, &clock)?,
                in_force,
            ));
        }
        let plan = Mutex::new(classes);
        Ok(BorrowingTree { inner: Arc::new(Inner { nodes: nodes.into(), parents, plan, clock }) })
    }
}

impl Declared {
    fn buckets(&self, in_force: &InForce, clock: &Clock) -> Result<Buckets, HierarchyError> {
        let name = || String::from(&*self.name);
        let limiter = |quota: Quota| {
            let built =
                Limiter::builder(quota).clock(clock.clone()).name(self.name.clone()).build();
            built.map_err(|error| HierarchyError::Quota { name: name(), error })
        };
        let keyed = |quota: Quota| {
            let builder = KeyedLimiter::builder(quota).clock(clock.clone()).name(self.name.clone());
            let builder = match self.class.bounded {
                Some(nodes) => builder.bounded(nodes),
                None => builder,
            };
            builder.build().map_err(|error| HierarchyError::Table { name: name(), error })
        };
        let InForce { rate, ceiling, .. } = *in_force;
        Ok(if self.is_keyed {
            Buckets::Keyed { rate: keyed(rate)?, ceiling: keyed(ceiling)? }
        } else {
            Buckets::One { rate: limiter(rate)?, ceiling: limiter(ceiling)? }
        })
    }
}
