//! What a bad day is.

use std::sync::{Arc, Mutex};
use tollgate_redis::Settings;

/// Something done to the servers, which live as long as it.
type Deed = Arc<dyn Fn() + Send + Sync>;

/// How to break servers, and how to mend them.
pub(crate) type Deeds<T> = (fn(&mut T), fn(&mut T));

/// A bad day: how to break and how to mend, and what to expect.
pub(crate) struct Day {
    pub(crate) name: &'static str,
    /// How processes connect: the shipped defaults, unless a day says otherwise.
    pub(crate) settings: Settings,
    /// Where the state can be read when all is over, past everything that is broken.
    pub(crate) reads: Settings,
    pub(crate) breaks: Deed,
    pub(crate) mends: Deed,
    /// Words of the error, one of which the store says.
    pub(crate) says: &'static [&'static str],
    /// What was booked survives.
    pub(crate) keeps_state: bool,
    /// Decisions are made without the store meanwhile.
    pub(crate) degrades: bool,
    /// All is well before.
    pub(crate) begins_well: bool,
    /// There are two tiers on top.
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

    /// The state is at another address than the processes use.
    pub(crate) fn reads(mut self, url: &str) -> Self {
        self.reads = url.parse().unwrap();
        self
    }

    /// What was booked may be lost.
    pub(crate) fn forgets(mut self) -> Self {
        self.keeps_state = false;
        self
    }
}
