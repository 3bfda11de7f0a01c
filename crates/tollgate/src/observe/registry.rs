//! The limiters of a process, by name.

use super::{Collector, Report, WeakCollector, collector::Samples, prometheus};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

/// The limiters of a process by name: their state as a list, and their metrics; clones share it.
///
/// An entry is a weak reference: the registry keeps nothing alive, and an entry disappears when the
/// last handle of its limiter is dropped. At most [`ENTRIES_MAX`](Self::ENTRIES_MAX) entries exist at
/// once, and names are unique. So the number of series is bounded: the number of entries, their
/// parts (levels of a tree, the budget of a policy) and the fixed set of metrics of each type.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, Quota, observe::Registry};
///
/// let limiter = Limiter::builder(Quota::per_second(100)).counted().build()?;
/// Registry::global().add("api", &limiter)?;
/// let text = Registry::global().prometheus(); // answer GET /metrics with this
/// assert!(text.contains("tollgate_capacity{limiter=\"api\"} 100"));
///
/// let list = Registry::global().list();
/// assert_eq!(list[0].to_string(), "api (limiter), 100/s, 100 of 100 free");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// Collectors are read without the lock: they take locks of their own.
    entries: Arc<Mutex<BTreeMap<Box<str>, Arc<WeakCollector>>>>,
}

impl Registry {
    /// The most entries at once: 1000.
    pub const ENTRIES_MAX: usize = 1000;

    /// The longest name, in bytes.
    pub const NAME_MAX: usize = 100;

    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the registry of this process, for programs that need only one.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Registry> = LazyLock::new(Registry::new);
        &GLOBAL
    }

    /// Adds a limiter under a name, until its last handle is dropped.
    ///
    /// # Errors
    ///
    /// When the name is empty, too long, contains `/` or is in use, or the registry is full. An output that reads the
    /// registry at this moment keeps the name of a limiter in use that was just dropped: add the new one again, or under
    /// another name.
    pub fn add(&self, name: &str, collector: &impl Collector) -> Result<(), RegistryError> {
        if name.is_empty() || name.len() > Self::NAME_MAX || name.contains('/') {
            return Err(RegistryError::Name(name.chars().take(Self::NAME_MAX).collect()));
        }
        let mut entries = self.entries();
        // A collector that is gone gives up its name and its place. An upgraded handle may be the last one, so
        // it is dropped after the lock.
        let alive: Vec<_> = entries.values().map(|entry| entry.upgrade()).collect();
        let mut is_alive = alive.iter().map(Option::is_some);
        entries.retain(|_, _| is_alive.next().unwrap_or(false));
        let added = if entries.contains_key(name) {
            Err(RegistryError::NameTaken(name.to_owned()))
        } else if entries.len() >= Self::ENTRIES_MAX {
            Err(RegistryError::Full(name.to_owned()))
        } else {
            entries.insert(name.into(), Arc::new(collector.weak()));
            Ok(())
        };
        drop(entries);
        drop(alive);
        added
    }

    /// Removes an entry. Returns whether there was one.
    #[allow(clippy::must_use_candidate, reason = "removing is the point")]
    pub fn remove(&self, name: &str) -> bool {
        self.entries().remove(name).is_some()
    }

    /// Reads every limiter, in the order of their names: for a page such as `/debug/limiters`.
    ///
    /// `Display` of a [`Report`] is one line; with the feature `serde` the list serialises.
    #[must_use]
    pub fn list(&self) -> Vec<Report> {
        let entries: Vec<_> = {
            let entries = self.entries();
            entries.iter().map(|(name, entry)| (name.clone(), Arc::clone(entry))).collect()
        };
        let mut samples = Samples::new();
        for (name, entry) in entries {
            if let Some(collector) = entry.upgrade() {
                samples.read(&name, &*collector);
            }
        }
        samples.into_reports()
    }

    /// Returns the metrics of every limiter in the text format of Prometheus, version 0.0.4.
    ///
    /// Send it with the content type [`PROMETHEUS_TEXT`](Self::PROMETHEUS_TEXT).
    #[must_use]
    pub fn prometheus(&self) -> String {
        prometheus::text(&self.list())
    }

    /// The content type of [`prometheus`](Self::prometheus).
    pub const PROMETHEUS_TEXT: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    fn entries(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Arc<WeakCollector>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an entry cannot be added to a [`Registry`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name is empty, too long, or contains a slash.
    Name(String),
    /// Another limiter has this name.
    NameTaken(String),
    /// There are as many entries as there may be; this one was to be added.
    Full(String),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "the name {name:?} cannot be used; take 1 to {} bytes without a slash",
                Registry::NAME_MAX
            ),
            Self::NameTaken(name) => write!(
                f,
                "a limiter named {name:?} is in the registry already; remove it first, or take \
                 another name"
            ),
            Self::Full(name) => write!(
                f,
                "the registry is full, so {name:?} cannot be added to its {} entries; use one \
                 keyed limiter for many limiters of one kind",
                Registry::ENTRIES_MAX
            ),
        }
    }
}

impl std::error::Error for RegistryError {}
