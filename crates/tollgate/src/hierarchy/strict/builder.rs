//! The builder of a strict tree.

use super::{Inner, StrictTree};
use crate::{
    Algorithm, Clock, ConfigError, KeyedLimiter, Limiter, Quota, WhenFull,
    hierarchy::{
        error::{check_depth, check_name, not_keyed},
        node_limiter::NodeLimiter,
    },
    sync::Arc,
};

/// What one level of a strict tree is made of. A plain [`Quota`] will do too.
#[must_use = "a level does nothing until it is part of a tree"]
#[derive(Clone, Debug)]
pub struct Level {
    quota: Quota,
    algorithm: Algorithm,
    pub(in crate::hierarchy) bounded: Option<u64>,
    max_nodes: Option<u64>,
    when_full: WhenFull,
    is_counted: bool,
}

impl Level {
    /// Returns a level whose nodes have this quota each.
    pub fn new(quota: Quota) -> Self {
        let (algorithm, when_full) = (Algorithm::default(), WhenFull::default());
        Self { quota, algorithm, bounded: None, max_nodes: None, when_full, is_counted: false }
    }

    /// Sets the algorithm, by default [`Algorithm::Gcra`].
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Uses a table with memory for `nodes` nodes that are not at rest, 24 bytes each, all of it
    /// from the start. By default the table grows.
    pub fn bounded(mut self, nodes: u64) -> Self {
        self.bounded = Some(nodes);
        self
    }

    /// Lets the growing table hold at most so many nodes. By default there is no such bound.
    pub fn max_nodes(mut self, nodes: u64) -> Self {
        self.max_nodes = Some(nodes);
        self
    }

    /// Says what happens to a new node when the table is full, by default [`WhenFull::Evict`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    pub(in crate::hierarchy) fn single(
        self,
        name: &str,
        clock: Clock,
    ) -> Result<NodeLimiter, ConfigError> {
        let Self { quota, algorithm, bounded, max_nodes, when_full, is_counted } = self;
        if bounded.is_some() || max_nodes.is_some() || when_full != WhenFull::default() {
            return Err(not_keyed(name, "table"));
        }
        let limiter = Limiter::builder(quota).algorithm(algorithm).name(name).clock(clock);
        let limiter = if is_counted { limiter.counted() } else { limiter };
        let built = limiter.build().map(NodeLimiter::One);
        built.map_err(|error| ConfigError::of_part(name, error))
    }

    pub(in crate::hierarchy) fn keyed(
        self,
        name: &str,
        clock: Clock,
    ) -> Result<NodeLimiter, ConfigError> {
        let Self { quota, algorithm, bounded, max_nodes, when_full, is_counted } = self;
        let builder = KeyedLimiter::builder(quota).algorithm(algorithm).name(name);
        let mut builder = builder.clock(clock).when_full(when_full);
        if let Some(nodes) = bounded {
            builder = builder.bounded(nodes);
        }
        if let Some(nodes) = max_nodes {
            builder = builder.max_keys(nodes);
        }
        if is_counted {
            builder = builder.counted();
        }
        let built = builder.build().map(NodeLimiter::Keyed);
        built.map_err(|error| ConfigError::of_part(name, error))
    }
}

impl From<Quota> for Level {
    fn from(quota: Quota) -> Self {
        Self::new(quota)
    }
}

/// Builds a [`StrictTree`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct StrictBuilder {
    /// The root comes first.
    levels: Vec<(Box<str>, Level)>,
    clock: Option<Clock>,
    is_counted: bool,
}

impl StrictBuilder {
    pub(in crate::hierarchy) fn new(root: Box<str>, level: Level) -> Self {
        Self { levels: vec![(root, level)], clock: None, is_counted: false }
    }

    /// Adds a level below the last one, with a node for each path to it.
    pub fn level(mut self, name: impl Into<Box<str>>, level: impl Into<Level>) -> Self {
        self.levels.push((name.into(), level.into()));
        self
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Counts the decisions of each level, for metrics. Off by default: it costs a few nanoseconds
    /// and 3 KiB per level.
    pub fn counted(mut self) -> Self {
        self.is_counted = true;
        self
    }

    /// Builds the tree.
    ///
    /// # Errors
    ///
    /// When two levels have one name, there are more than 64, or a quota or table makes no sense.
    pub fn build(self) -> Result<StrictTree, ConfigError> {
        let Self { levels, clock, is_counted } = self;
        for (index, (name, _)) in levels.iter().enumerate() {
            check_name(name, levels[..index].iter().map(|(known, _)| &**known))?;
            check_depth(index, name)?;
        }
        let clock = clock.unwrap_or_default();
        let counted = |(name, level)| (name, Level { is_counted, ..level });
        let levels = levels.into_iter().map(counted).enumerate();
        let levels = levels.map(|(index, (name, level))| match index {
            0 => level.single(&name, clock.clone()),
            _ => level.keyed(&name, clock.clone()),
        });
        let levels = levels.collect::<Result<_, _>>()?;
        Ok(StrictTree { inner: Arc::new(Inner { levels, clock }) })
    }
}
