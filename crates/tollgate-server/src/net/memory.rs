//! The memory that connections hold, and its bound.
//!
//! All connections share one [`MemoryBudget`]. A connection takes [`BASE`] bytes when it is
//! accepted; that covers the buffers of usual requests, which take nothing more. Anything beyond
//! them (bodies, unsent replies, streams) is a [`Claim`], which returns its bytes when it is
//! dropped. A claim is resized when a buffer grows and when the connection waits for its client,
//! not for each byte.
//!
//! The first [`SMALL`] bytes of a connection may use the whole budget, all beyond them only three
//! quarters of it. So a few connections that hold as much as they can leave a quarter to clients with
//! small requests. The admin listener may exceed the budget by [`ADMIN`].

use super::Listener;
use crate::server::Shared;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Bytes of a connection with small buffers: its task, its socket, and what it reads at once.
pub(super) const BASE: usize = 8 << 10;

/// A connection that holds no more than this may use the whole budget.
const SMALL: usize = 64 << 10;

/// Bytes beyond the budget that connections of the admin listener may hold.
const ADMIN: usize = 16 << 20;

/// The bytes that all connections of a process may hold.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryBudget {
    /// Returns a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Returns the bytes that connections hold.
    #[must_use]
    pub fn used(&self) -> usize {
        // ORDERING: Relaxed, here and below. The count publishes nothing else, and each change of it
        // is one atomic step.
        self.used.load(Relaxed)
    }

    /// Returns the bound.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Tells whether one more connection of a listener fits.
    #[must_use]
    pub fn admits(&self, listener: Listener) -> bool {
        self.used().saturating_add(BASE) <= self.limit.saturating_add(extra(listener))
    }

    fn take(&self, bytes: usize, limit: usize) -> Result<(), MemoryError> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = self.used.fetch_update(Relaxed, Relaxed, add);
        taken.map(drop).map_err(|_| MemoryError::Budget(self.limit))
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// Returns what a listener may use beyond the budget.
const fn extra(listener: Listener) -> usize {
    if matches!(listener, Listener::Admin) { ADMIN } else { 0 }
}

/// Returns how much one connection may hold. A buffer that grows doubles, and a request can be there
/// three times: as it came, decoded, and as the reply to it.
const fn connection_limit(max_request: usize) -> usize {
    max_request.saturating_mul(8).saturating_add(1 << 20)
}

/// Why a connection may not hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The connection itself holds as much as one may.
    Connection(usize),
    /// All connections together do.
    Budget(usize),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(limit) => write!(
                f,
                "this connection would hold more than {limit} bytes; send less at once, and read the \
                 replies"
            ),
            Self::Budget(limit) => write!(
                f,
                "the connections hold {limit} bytes, the maximum of connection_memory_bytes; try \
                 again later, or raise it"
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

/// The memory of one connection.
#[derive(Debug)]
pub struct ConnectionMemory {
    budget: Arc<MemoryBudget>,
    held: AtomicUsize,
    limit: usize,
    /// The memory that it may use beyond the budget's own bound.
    extra: usize,
}

impl ConnectionMemory {
    /// Takes the base memory of a connection, even above the budget: the server asks
    /// [`MemoryBudget::admits`] before it accepts one.
    #[must_use]
    pub fn open(shared: &Shared, listener: Listener) -> Arc<Self> {
        let limit = connection_limit(shared.settings.max_request);
        Self::new(&shared.memory, limit, extra(listener))
    }

    fn new(budget: &Arc<MemoryBudget>, limit: usize, extra: usize) -> Arc<Self> {
        budget.used.fetch_add(BASE, Relaxed);
        let (budget, held) = (Arc::clone(budget), AtomicUsize::new(BASE));
        Arc::new(Self { budget, held, limit, extra })
    }

    /// Returns a claim of nothing.
    #[must_use]
    pub const fn claim(self: Arc<Self>) -> Claim {
        Claim { memory: self, bytes: 0 }
    }

    fn take(&self, bytes: usize) -> Result<(), MemoryError> {
        let add = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let held = self.held.fetch_update(Relaxed, Relaxed, add);
        let held = held.map_err(|_| MemoryError::Connection(self.limit))?;
        let limit = self.budget.limit;
        // OVERFLOW: the sum was within the bound above.
        let share = if held + bytes <= SMALL { limit } else { limit - limit / 4 };
        let taken = self.budget.take(bytes, share.saturating_add(self.extra));
        if taken.is_err() {
            self.held.fetch_sub(bytes, Relaxed);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.budget.give_back(bytes);
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        // INVARIANT: a claim keeps its connection's memory alive, so only the base remains.
        self.budget.give_back(*self.held.get_mut());
    }
}

/// Bytes that a connection holds beyond its base memory.
#[derive(Debug)]
pub struct Claim {
    memory: Arc<ConnectionMemory>,
    bytes: usize,
}

impl Claim {
    /// Claims are counted in steps of this, so that a buffer that grows is not counted at each step.
    const STEP: usize = 4 << 10;

    /// Changes the claim to `bytes`. A smaller claim always succeeds.
    ///
    /// # Errors
    ///
    /// When the connection or the budget has reached its bound. The claim stays as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemoryError> {
        let bytes = bytes.checked_next_multiple_of(Self::STEP).unwrap_or(usize::MAX);
        if bytes > self.bytes {
            self.memory.take(bytes - self.bytes)?;
        } else if bytes < self.bytes {
            self.memory.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Changes the claim to the memory of these buffers beyond the connection's base.
    ///
    /// # Errors
    ///
    /// As [`resize`](Self::resize).
    #[inline]
    pub fn hold(&mut self, buffers: usize) -> Result<(), MemoryError> {
        if buffers <= BASE && self.bytes == 0 {
            return Ok(());
        }
        self.resize(buffers.saturating_sub(BASE))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_was_taken_is_returned() {
        let budget = MemoryBudget::new(8 * MIB);
        let memory = ConnectionMemory::new(&budget, MIB, 0);
        let (mut one, mut two) = (Arc::clone(&memory).claim(), Arc::clone(&memory).claim());
        // claim, bytes, used beyond the base
        for (row, (is_first, bytes, used)) in [
            (true, 1, 4 << 10),
            (true, 4 << 10, 4 << 10),
            (false, 5000, 12 << 10),
            (true, 100_000, 108 << 10),
            (true, 0, 8 << 10),
        ]
        .into_iter()
        .enumerate()
        {
            let claim = if is_first { &mut one } else { &mut two };
            claim.resize(bytes).expect("there is enough");
            assert_eq!(budget.used(), BASE + used, "row {row}");
        }
        drop((one, memory));
        assert_eq!(budget.used(), BASE + (8 << 10), "a claim keeps its connection counted");
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn buffers_within_the_base_take_nothing() {
        let budget = MemoryBudget::new(MIB);
        let memory = ConnectionMemory::new(&budget, MIB, 0);
        let mut claim = memory.claim();
        for (buffers, used) in [(0, 0), (BASE, 0), (BASE + 1, 4 << 10), (BASE, 0)] {
            claim.hold(buffers).expect("there is enough");
            assert_eq!(budget.used(), BASE + used, "{buffers}");
        }
    }

    #[test]
    fn a_connection_has_a_bound_of_its_own() {
        let budget = MemoryBudget::new(8 * MIB);
        let memory = ConnectionMemory::new(&budget, MIB, 0);
        let mut claim = memory.claim();
        assert_eq!(claim.resize(MIB), Err(MemoryError::Connection(MIB)));
        assert_eq!(claim.resize(usize::MAX), Err(MemoryError::Connection(MIB)));
        assert_eq!(claim.resize(MIB - BASE), Ok(()));
        assert_eq!(budget.used(), MIB);
    }

    #[test]
    fn large_connections_leave_a_quarter_to_small_ones_and_all_leave_some_to_admins() {
        let budget = MemoryBudget::new(4 * MIB);
        let open = |listener| ConnectionMemory::new(&budget, 8 * MIB, extra(listener));
        let (large, small) = (open(Listener::Http), open(Listener::Http));
        let (mut large, mut claim) = (large.claim(), small.claim());
        assert_eq!(large.resize(3 * MIB), Err(MemoryError::Budget(4 * MIB)));
        assert_eq!(large.resize(3 * MIB - 2 * BASE), Ok(()));
        assert_eq!(claim.resize(SMALL), Err(MemoryError::Budget(4 * MIB)), "it is not small");
        assert_eq!(claim.resize(SMALL - BASE), Ok(()));
        let mut others = Vec::new();
        while budget.admits(Listener::Http) {
            others.push(open(Listener::Http));
        }
        assert_eq!(budget.used(), 4 * MIB);
        assert!(budget.admits(Listener::Admin));
        assert_eq!(open(Listener::Admin).claim().resize(MIB), Ok(()));
    }
}
