//! The description of a bad day.

use std::sync::{Arc, Mutex};
use tollgate_redis::Settings;

/// An action on the servers, which live as long as it.
type Deed = Arc<dyn Fn() + Send + Sync>;

/// How to break servers, and how to mend them.
pub(crate) type Deeds<T> = (fn(&mut T), fn(&mut T));

/// A bad day: how to break and how to repair the servers, and the expected results.
pub(crate) struct Day {
    pub(crate) name: &'static str,
    /// How processes connect: the shipped defaults, unless a day says otherwise.
    pub(crate) settings: Settings,
    /// The settings for reading the state at the end, bypassing everything that is broken.
    pub(crate) reads: Settings,
    pub(crate) breaks: Deed,
    pub(crate) mends: Deed,
    /// Fragments of the store's error; at least one must appear.
    pub(crate) says: &'static [&'static str],
    /// Whether booked permits survive.
    pub(crate) keeps_state: bool,
    /// Whether decisions are made without the store meanwhile.
    pub(crate) degrades: bool,
    /// Whether everything works before.
    pub(crate) begins_well: bool,
    /// Whether the guard is below a two-tier store.
    pub(crate) is_tiered: bool,
}

impl Day {
    /// Returns a day of some servers at an address.
    pub(crate) fn new<T: Send + 'static>(
        name: &'static str,
        url: &str,
        servers: T,
        (breaks, mends): Deeds<T>,
    ) -> Self {
        let settings: Settings = url.parse().unwrap();
        let servers = Arc::new(Mutex::new(servers));
        let same = Arc::clone(&servers);
        Self {
            name,
            reads: settings.clone(),
            settings,
            breaks: Arc::new(move || breaks(&mut servers.lock().unwrap())),
            mends: Arc::new(move || mends(&mut same.lock().unwrap())),
            says: &[],
            keeps_state: true,
            degrades: true,
            begins_well: true,
            is_tiered: false,
        }
    }

    pub(crate) fn says(mut self, words: &'static [&'static str]) -> Self {
        self.says = words;
        self
    }

    /// Sets the address of the state if it is not the one that the processes use.
    pub(crate) fn reads(mut self, url: &str) -> Self {
        self.reads = url.parse().unwrap();
        self
    }

    /// Booked permits may be lost.
    pub(crate) fn forgets(mut self) -> Self {
        self.keeps_state = false;
        self
    }
}
