//! When batches leave, and who gets into them: a pure state machine.
//!
//! One batch is **open**: adds go there. When its time has come, or it is full, it is **triggered**: it
//! has a cause. A triggered batch leaves as soon as it can: the action has returned from the one before,
//! and the pace admits it. Until then it stays open for adds, as far as there is room. So at most two
//! batches are in memory: the one that is under way (`ready`, or with the action) and the open one.
//!
//! ```text
//! on every event and step:    if the open batch is due: it is triggered
//! without a pace:             if it is triggered and nothing is under way: it becomes ready
//! on a step (nothing runs):   if it is triggered, none is ready and the pace admits it: it becomes ready
//!                             if one is ready: the action gets it
//! whenever one becomes ready: room in the next one is reserved for adds that wait
//! ```
//!
//! An add at the very tick of a deadline comes after it: the old batch leaves without it, if it can.
//! So it does not matter whether the add or the worker was quicker. Only the worker releases a batch with a
//! pace, so that the pace holds for the starts of the action.
//!
//! INVARIANT: entries + reserved room <= `max_size`, and no add waits while it is less.

use super::{
    batch::{Batch, FlushCause},
    wait_queue::WaitQueue,
};
use crate::{
    Tick,
    observe::RunCounts,
    pace::{Booked, Pace},
    sync::{AtomicU64, Ordering::Relaxed},
    wait::{KeyIndex, Machine, Wakers},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
    time::Duration,
};

/// When a batch leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushRules {
    pub(crate) window: Option<Duration>,
    pub(crate) quiet: Option<Duration>,
    pub(crate) max_wait: Option<Duration>,
    /// At least 1.
    pub(crate) max_size: usize,
}

/// How the value of a key is combined with the one that the batch already has.
pub(crate) enum Fold<V> {
    /// The last value wins.
    Last,
    With(BoxedFold<V>),
}

/// Takes the value that the batch has and the new one.
type BoxedFold<V> = Box<dyn FnMut(&mut V, V) + Send>;

pub(crate) struct CoalescerMachine<K, V> {
    pub(super) rules: FlushRules,
    fold: Fold<V>,
    pace: Pace,
    open: OpenBatch<K, V>,
    /// The batch that waits for the worker, only while nothing runs.
    ready: Option<Batch<K, V>>,
    is_running: bool,
    /// The size of the batch that was handed out last, for reports of panics.
    pub(super) last_size: Arc<AtomicU64>,
    queue: WaitQueue,
    is_closed: bool,
    pub(super) counts: RunCounts,
    /// Adds that found no room and did not wait.
    pub(super) refused: u64,
}

/// The batch that is open for adds.
struct OpenBatch<K, V> {
    entries: Vec<(K, V)>,
    index: KeyIndex,
    first_at: Tick,
    last_at: Tick,
    adds: u64,
    /// Set if the batch is triggered.
    cause: Option<FlushCause>,
}

/// The outcome of an add, and what remains to be done without a lock.
#[must_use = "`apply` wakes the adds that wait"]
pub(crate) struct AddEffects<K, V> {
    outcome: AddOutcome,
    wakers: Wakers,
    /// Dropped without a lock.
    unused: (Option<K>, Option<V>),
    unused_wakers: [Option<Waker>; 2],
    panic: Option<Box<dyn Any + Send>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddOutcome {
    Added,
    /// There is no room for a new key.
    Full,
    Closed,
}

impl<K, V> AddEffects<K, V> {
    /// Wakes, drops, resumes a panic of the caller's own code, and returns the outcome.
    pub(crate) fn apply(self) -> AddOutcome {
        let Self { outcome, wakers, unused, unused_wakers, panic } = self;
        drop(wakers);
        drop((unused, unused_wakers));
        match panic {
            Some(panic) => std::panic::resume_unwind(panic),
            None => outcome,
        }
    }
}

impl<K, V> CoalescerMachine<K, V> {
    pub(crate) fn new(rules: FlushRules, fold: Fold<V>, pace: Pace) -> Self {
        Self {
            rules,
            fold,
            pace,
            open: OpenBatch::new(),
            ready: None,
            is_running: false,
            last_size: Arc::default(),
            queue: WaitQueue::default(),
            is_closed: false,
            counts: RunCounts::default(),
            refused: 0,
        }
    }

    /// Returns how many keys wait for their flush. Those with the action do not count.
    pub(crate) fn len(&self) -> usize {
        self.open.entries.len() + self.ready.as_ref().map_or(0, Batch::len)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.waiting.len()
    }

    /// Triggers the open batch. Tells whether anything is collected.
    pub(crate) fn flush(&mut self, now: Tick) -> (bool, Wakers) {
        let is_any = self.len() > 0;
        self.end_open(now, FlushCause::Flush);
        (is_any, self.queue.take_woken())
    }

    /// Takes out what is collected.
    pub(crate) fn discard(&mut self) -> (Vec<(K, V)>, (Wakers, Booked)) {
        let ready = self.ready.take().map(Batch::into_entries);
        let open = self.open.take(FlushCause::Flush).map(Batch::into_entries);
        self.queue.reserve(self.room());
        let mut held = ready.unwrap_or_default();
        held.extend(open.into_iter().flatten());
        (held, (self.queue.take_woken(), self.pace.give_up()))
    }

    /// Ends all adds, those that wait included.
    pub(crate) fn close(&mut self) -> (Wakers, Fold<V>) {
        self.is_closed = true;
        (self.queue.clear(), std::mem::replace(&mut self.fold, Fold::Last))
    }

    /// Removes an add that waits, or gives back the room reserved for it.
    pub(crate) fn leave(&mut self, number: u64) -> (Wakers, Option<Waker>) {
        if self.is_closed {
            return (Wakers::default(), None);
        }
        let waker = self.queue.leave(number);
        self.queue.reserve(self.room());
        (self.queue.take_woken(), waker)
    }

    /// Returns for how many new keys there is room.
    pub(crate) fn room(&self) -> usize {
        self.rules.max_size.saturating_sub(self.open.entries.len() + self.queue.reserved)
    }

    /// Ends the open batch, whether it is due or not.
    fn end_open(&mut self, now: Tick, cause: FlushCause) {
        self.advance(now);
        if !self.open.entries.is_empty() && self.open.cause.is_none() {
            self.open.cause = Some(cause);
            self.release_unless_paced();
        }
    }

    /// Triggers the open batch if it is due by `now`.
    fn advance(&mut self, now: Tick) {
        if self.open.cause.is_none() {
            self.open.cause =
                self.open.due(&self.rules).filter(|due| due.0 <= now).map(|due| due.1);
        }
        self.release_unless_paced();
    }

    /// Releases a triggered batch if it has no pace to wait for.
    fn release_unless_paced(&mut self) {
        if self.pace.is_free() && !self.is_running {
            self.release();
        }
    }

    /// Makes a triggered batch ready, so that the next one can begin.
    fn release(&mut self) {
        if let (None, Some(cause)) = (&self.ready, self.open.cause) {
            self.ready = self.open.take(cause);
            self.queue.reserve(self.room());
        }
    }
}

impl<K: Eq, V> CoalescerMachine<K, V> {
    /// Adds the pair if its key is there or there is room for it. It is taken out of `pair` then.
    pub(crate) fn add(
        &mut self,
        now: Tick,
        hash: u32,
        pair: &mut Option<(K, V)>,
    ) -> AddEffects<K, V> {
        self.add_or(now, (hash, pair), |_| {})
    }

    /// [`add`](Self::add) for a caller that does not wait: counts the pair if there is no room.
    pub(crate) fn try_add(
        &mut self,
        now: Tick,
        hash: u32,
        pair: &mut Option<(K, V)>,
    ) -> AddEffects<K, V> {
        let effects = self.add(now, hash, pair);
        if effects.outcome == AddOutcome::Full && effects.panic.is_none() {
            self.refused += 1; // OVERFLOW: a count of events.
        }
        effects
    }

    /// [`add`](Self::add), or waits in the queue as `number` if there is no room.
    pub(crate) fn wait(
        &mut self,
        now: Tick,
        (hash, pair): (u32, &mut Option<(K, V)>),
        number: &mut Option<u64>,
        mut waker: Waker,
    ) -> AddEffects<K, V> {
        let mut left = None;
        if let (Some(waiting), false) = (*number, self.is_closed) {
            self.advance(now);
            if !self.queue.swap_waker(waiting, &mut waker) {
                // Room is reserved for it, and is free once that is given up.
                *number = None;
                left = self.queue.leave(waiting);
            }
        }
        let mut spare = Some(waker);
        let mut effects = self.add_or(now, (hash, pair), |queue| {
            if number.is_none() {
                *number = spare.take().map(|waker| queue.join(waker));
            }
        });
        if effects.outcome == AddOutcome::Added
            && let Some(waiting) = number.take()
        {
            // Another add has brought its key in.
            left = self.queue.leave(waiting);
        }
        effects.unused_wakers = [spare, left];
        effects
    }

    fn add_or(
        &mut self,
        now: Tick,
        (hash, pair): (u32, &mut Option<(K, V)>),
        full: impl FnOnce(&mut WaitQueue),
    ) -> AddEffects<K, V> {
        let (mut unused, unused_wakers) = ((None, None), [None, None]);
        if self.is_closed {
            let (outcome, wakers) = (AddOutcome::Closed, self.queue.take_woken());
            return AddEffects { outcome, wakers, unused, unused_wakers, panic: None };
        }
        self.advance(now);
        // UNWIND: comparing and folding are the caller's own code. A panic there leaves the entry
        // as the fold left it, and must not lose a wake-up.
        let folded = catch_unwind(AssertUnwindSafe(|| self.try_fold(hash, pair, &mut unused)));
        let (outcome, panic) = match folded {
            Err(panic) => (AddOutcome::Full, Some(panic)),
            Ok(true) => (AddOutcome::Added, None),
            Ok(false) if self.room() == 0 => {
                full(&mut self.queue);
                (AddOutcome::Full, None)
            }
            Ok(false) => {
                if let Some(pair) = pair.take() {
                    self.open.push(now, hash, pair);
                }
                (AddOutcome::Added, None)
            }
        };
        if outcome == AddOutcome::Added {
            self.open.adds += 1; // OVERFLOW: 2^64 adds take centuries.
            self.counts.triggers += 1;
            self.open.last_at = now;
        }
        if self.open.entries.len() >= self.rules.max_size && self.open.cause.is_none() {
            self.open.cause = Some(FlushCause::Size);
        }
        self.release_unless_paced();
        self.queue.reserve(self.room());
        AddEffects { outcome, wakers: self.queue.take_woken(), unused, unused_wakers, panic }
    }

    /// Folds the pair into the entry of its key, if there is one.
    fn try_fold(
        &mut self,
        hash: u32,
        pair: &mut Option<(K, V)>,
        unused: &mut (Option<K>, Option<V>),
    ) -> bool {
        let Some((key, _)) = pair.as_ref() else { return false };
        let entries = &mut self.open.entries;
        let is_it = |place: u32| entries[place as usize].0 == *key;
        let Some(place) = self.open.index.find(hash, is_it) else { return false };
        let Some((key, value)) = pair.take() else { return false };
        unused.0 = Some(key);
        let held = &mut entries[place as usize].1;
        match &mut self.fold {
            Fold::Last => unused.1 = Some(std::mem::replace(held, value)),
            Fold::With(fold) => fold(held, value),
        }
        true
    }
}

impl<K, V> OpenBatch<K, V> {
    fn new() -> Self {
        Self {
            entries: Vec::new(),
            index: KeyIndex::default(),
            first_at: Tick::ZERO,
            last_at: Tick::ZERO,
            adds: 0,
            cause: None,
        }
    }

    fn push(&mut self, now: Tick, hash: u32, pair: (K, V)) {
        if self.entries.is_empty() {
            self.first_at = now;
        }
        // OVERFLOW: a batch has at most 2^24 entries.
        self.index.insert(hash, self.entries.len() as u32);
        self.entries.push(pair);
    }

    /// Returns when the batch is due, and the cause that comes first.
    fn due(&self, rules: &FlushRules) -> Option<(Tick, FlushCause)> {
        if self.entries.is_empty() {
            return None;
        }
        let due = |from: Tick, after: Option<Duration>, cause| {
            after.map(|after| (from.saturating_add(after), cause))
        };
        [
            due(self.first_at, rules.window, FlushCause::Window),
            due(self.last_at, rules.quiet, FlushCause::Quiet),
            due(self.first_at, rules.max_wait, FlushCause::MaxWait),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|due| due.0)
    }

    fn take(&mut self, cause: FlushCause) -> Option<Batch<K, V>> {
        self.cause = None;
        if self.entries.is_empty() {
            return None;
        }
        self.index.clear();
        let entries = std::mem::take(&mut self.entries);
        let adds = std::mem::take(&mut self.adds);
        Some(Batch { entries, cause, first_at: self.first_at, last_at: self.last_at, adds })
    }
}

impl<K: Send + 'static, V: Send + 'static> Machine for CoalescerMachine<K, V> {
    type Job = Batch<K, V>;

    fn due(&self) -> Option<Tick> {
        if self.ready.is_some() {
            return Some(Tick::ZERO);
        }
        let triggered = match self.open.cause {
            Some(_) => Some(Tick::ZERO),
            None => self.open.due(&self.rules).map(|due| due.0),
        };
        triggered.map(|at| at.max(self.pace.due()))
    }

    fn next(&mut self, now: Tick) -> Option<Batch<K, V>> {
        // The engine calls this only while no action runs.
        self.is_running = false;
        self.advance(now);
        if self.ready.is_none() && self.open.cause.is_some() && self.pace.admits(now) {
            self.release();
        }
        let batch = self.ready.take();
        self.is_running = batch.is_some();
        if let Some(batch) = &batch {
            // ORDERING: Relaxed. The worker stores it before it runs the action, and its reporter
            // reads it after; a task that moves to another thread is handed over by the runtime.
            self.last_size.store(batch.len() as u64, Relaxed);
            // OVERFLOW: counts of events.
            self.counts.runs += 1;
            self.counts.coalesced += batch.adds.saturating_sub(batch.len() as u64);
        }
        batch
    }

    fn finish(&mut self, now: Tick) {
        self.end_open(now, FlushCause::Finish);
    }

    /// Dropping this wakes the adds that have room now.
    fn waste(&mut self) -> impl Sized + use<K, V> {
        self.queue.take_woken()
    }

    fn clear(&mut self) -> impl Sized + use<K, V> {
        let (wakers, fold) = self.close();
        let open = std::mem::replace(&mut self.open, OpenBatch::new());
        (self.ready.take(), open, fold, (wakers, self.pace.give_up()))
    }
}
