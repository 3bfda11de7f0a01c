//! The slots of each kind of limit, the wait for one, and the hold on one.

use crate::{
    Info, Key,
    body::{BodyGuard, GuardedBody},
    classify::Classify,
};
use http::HeaderMap;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{
    Acquire, CallOutcome, Clock, Concurrency, Full, KeyedConcurrency, Permit, Priority, Tick,
    adaptive::{AcquireMeasured, AdaptiveConcurrency, MeasuredPermit, PartitionPermit},
};

/// Takes a slot for the partition of a request.
pub(super) type TryPartition =
    Arc<dyn Fn(&Info<'_>) -> Result<PartitionPermit, Full> + Send + Sync>;

/// Where slots come from.
pub(super) enum Slots {
    /// One limit for all requests.
    All(Concurrency),
    /// A limit for each key.
    Each(KeyedConcurrency<[u8]>, Key),
    /// One limit that a law moves.
    Adaptive(AdaptiveConcurrency),
    /// The same, with guaranteed shares.
    Partitioned(AdaptiveConcurrency, TryPartition),
}

impl Slots {
    /// Returns the limit that all requests share; `None` if each key has its own.
    pub(super) fn shared(&self) -> Option<&Concurrency> {
        match self {
            Self::All(limit) => Some(limit),
            Self::Each(..) => None,
            Self::Adaptive(limit) | Self::Partitioned(limit, _) => Some(limit.concurrency()),
        }
    }

    /// Returns the limit in force; for keys, that of keys without one of their own.
    pub(super) fn limit(&self) -> u64 {
        match self {
            Self::Each(limit, _) => limit.limit(),
            Self::All(limit) => limit.limit(),
            Self::Adaptive(limit) | Self::Partitioned(limit, _) => limit.concurrency().limit(),
        }
    }

    /// Returns the clock of the limit, so that all times of a layer are on one clock.
    pub(super) fn clock(&self) -> Clock {
        self.shared().map_or_else(Clock::monotonic, |limit| limit.clock().clone())
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(limit) => limit.fmt(f),
            Self::Each(limit, key) => {
                f.debug_tuple("Each").field(&limit.limit()).field(key).finish()
            }
            Self::Adaptive(limit) | Self::Partitioned(limit, _) => limit.fmt(f),
        }
    }
}

/// The slot of one request.
pub(super) enum Slot {
    Fixed(#[expect(dead_code, reason = "its drop frees the slot")] Permit),
    Measured(MeasuredPermit),
    Partition(PartitionPermit),
}

impl Slot {
    pub(super) fn measure(&mut self, outcome: CallOutcome) {
        match self {
            Self::Fixed(_) => {}
            Self::Measured(permit) => permit.measure(outcome),
            Self::Partition(permit) => permit.measure(outcome),
        }
    }
}

/// The body of a response of [`ConcurrencyLimit`](super::ConcurrencyLimit). It holds the slot of its
/// request until it has ended, has failed, or is dropped.
pub type ConcurrencyBody<B> = GuardedBody<B, HeldSlot>;

/// The slot of a response, which its body holds.
pub struct HeldSlot {
    slot: Slot,
    /// The outcome to record when the body has ended; `None` if it is recorded already.
    at_end: Option<CallOutcome>,
}

impl HeldSlot {
    /// Measures an adaptive slot now, or when the body ends.
    pub(super) fn new(mut slot: Slot, outcome: CallOutcome, waits_for_body: bool) -> Self {
        if !waits_for_body {
            slot.measure(outcome);
        }
        Self { slot, at_end: waits_for_body.then_some(outcome) }
    }

    pub(super) const fn unmeasured(slot: Slot) -> Self {
        Self { slot, at_end: None }
    }
}

impl BodyGuard for HeldSlot {
    /// gRPC reports here how a call went.
    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(outcome @ (CallOutcome::Success | CallOutcome::Failure)) = &mut self.at_end
            && let Some(status) = Classify::outcome_of_trailers(trailers)
        {
            *outcome = status;
        }
    }

    fn ended(&mut self) {
        if let Some(outcome) = self.at_end.take() {
            self.slot.measure(outcome);
        }
    }
}

/// The wait for a slot.
pub(super) enum AcquireSlot {
    Fixed(Acquire),
    Measured(AcquireMeasured),
}

impl AcquireSlot {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Slot, Full>> {
        match self {
            Self::Fixed(acquire) => {
                Pin::new(acquire).poll(context).map(|permit| permit.map(Slot::Fixed))
            }
            Self::Measured(acquire) => {
                Pin::new(acquire).poll(context).map(|permit| permit.map(Slot::Measured))
            }
        }
    }
}

/// A request in the queue.
pub(super) struct Waiting {
    pub(super) acquire: AcquireSlot,
    pub(super) priority: Priority,
    /// When it joined the queue.
    pub(super) since: Tick,
    /// The limit at that time.
    pub(super) limit: u64,
}

impl fmt::Debug for HeldSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldSlot").field("at_end", &self.at_end).finish_non_exhaustive()
    }
}
