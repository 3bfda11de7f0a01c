//! How many processes there are.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// How many processes share the limits. Clones are the same count.
///
/// Leases and the local share are sized by it: too low a count over-admits by as much, too high a
/// count under-admits.
#[derive(Clone)]
pub struct FleetSize(Arc<AtomicU32>);

impl FleetSize {
    /// Returns a count that is configured. Zero counts as one.
    #[must_use]
    pub fn fixed(processes: u32) -> Self {
        Self(Arc::new(AtomicU32::new(processes.max(1))))
    }

    /// Returns the count; at least one.
    #[must_use]
    pub fn get(&self) -> u32 {
        // ORDERING: Relaxed, here and below. A number that is a little old as it is.
        self.0.load(Relaxed)
    }

    /// Changes the count. Zero counts as one.
    pub fn set(&self, processes: u32) {
        self.0.store(processes.max(1), Relaxed);
    }
}

impl fmt::Debug for FleetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetSize({})", self.get())
    }
}
