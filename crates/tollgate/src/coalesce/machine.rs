//! When batches leave, and who gets into them: a pure state machine.
//!
//! One batch is **open**: adds go there. When its time has come, or it is full, it is **ripe**: it
//! has a cause. A ripe batch leaves as soon as it can: the action has returned from the one before,
//! and the pace admits it. Until then it stays open for adds, as far as there is room. So at most two
//! batches are in memory: the one that is under way (`ready`, or with the action) and the open one.
//!
//! ```text
//! on every event and step:    if the open batch is due: it is ripe
//! without a pace:             if it is ripe and nothing is under way: it becomes ready
//! on a step (nothing runs):   if it is ripe, none is ready and the pace admits it: it becomes ready
//!                             if one is ready: the action gets it
//! whenever one becomes ready: those who wait get the seats of the next one
//! ```
//!
//! An add at the very tick of a deadline comes after it: the old batch leaves without it, if it can.
//! So it does not matter whether the add or the worker was quicker. A batch with a pace is only let
//! out by the worker, so that the pace holds for the starts of the action.
//!
//! INVARIANT: entries + seats <= `max_size`, and nobody waits while it is less.

use super::{
    batch::{Batch, FlushCause},
    line::Line,
};
use crate::{
    Tick,
    pace::{Booked, Pace},
    sync::{AtomicU64, Ordering::Relaxed},
    wait::{KeyIndex, Machine, Wakers},
    watch::RunCounts,
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
pub(crate) struct Rules {
    pub(crate) window: Option<Duration>,
    pub(crate) quiet: Option<Duration>,
    pub(crate) max_wait: Option<Duration>,
    /// At least 1.
    pub(crate) max_size: usize,
}

/// What becomes of a value whose key is there already.
pub(crate) enum Fold<V> {
    /// The last one wins.
    Last,
    With(BoxedFold<V>),
}

/// Is given what is held and what is new.
type BoxedFold<V> = Box<dyn FnMut(&mut V, V) + Send>;

pub(crate) struct Gather<K, V> {
    pub(super) rules: Rules,
    fold: Fold<V>,
    pace: Pace,
    open: Open<K, V>,
    /// Waits for the worker. Only while nothing runs.
    ready: Option<Batch<K, V>>,
    is_running: bool,
    /// The size of the batch that was handed out last, for reports of panics.
    pub(super) last_size: Arc<AtomicU64>,
    line: Line,
    is_closed: bool,
    pub(super) counts: RunCounts,
    /// Adds that found no room and did not wait.
    pub(super) refused: u64,
}

/// The batch that is open for adds.
struct Open<K, V> {
    entries: Vec<(K, V)>,
    index: KeyIndex,
    first_at: Tick,
    last_at: Tick,
    adds: u64,
    /// It is ripe.
    cause: Option<FlushCause>,
}

/// What an event says, and what it leaves to be done where no lock is held.
#[must_use = "those who wait are woken by `settle`"]
pub(crate) struct After<K, V> {
    answer: Answer,
    wakers: Wakers,
    /// What is dropped without a lock.
    unused: (Option<K>, Option<V>),
    unused_wakers: [Option<Waker>; 2],
    panic: Option<Box<dyn Any + Send>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Added,
    /// There is no room for a new key.
    Full,
    Closed,
}

impl<K, V> After<K, V> {
    /// Wakes, drops, lets a panic of the caller's own code go on, and answers.
    pub(crate) fn settle(self) -> Answer {
        let Self { answer, wakers, unused, unused_wakers, panic } = self;
        drop(wakers);
        drop((unused, unused_wakers));
        match panic {
            Some(panic) => std::panic::resume_unwind(panic),
            None => answer,
        }
    }
}

impl<K, V> Gather<K, V> {
    pub(crate) fn new(rules: Rules, fold: Fold<V>, pace: Pace) -> Self {
        let line = Line::default();
        let open = Open::new();
        let (ready, is_running, is_closed, last_size) = (None, false, false, Arc::default());
        let (counts, refused) = (RunCounts::default(), 0);
        Self {
            rules,
            fold,
            pace,
            open,
            ready,
            is_running,
            last_size,
            line,
            is_closed,
            counts,
            refused,
        }
    }

    /// Returns how many keys wait for their flush. Those with the action do not count.
    pub(crate) fn len(&self) -> usize {
        self.open.entries.len() + self.ready.as_ref().map_or(0, Batch::len)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.line.waiting.len()
    }

    /// Makes what is collected leave now. Tells whether there was anything.
    pub(crate) fn flush(&mut self, now: Tick) -> (bool, Wakers) {
        let is_any = self.len() > 0;
        self.end_open(now, FlushCause::Flush);
        (is_any, self.line.take_woken())
    }

    /// Takes out what is collected.
    pub(crate) fn discard(&mut self) -> (Vec<(K, V)>, (Wakers, Booked)) {
        let ready = self.ready.take().map(Batch::into_entries);
        let open = self.open.take(FlushCause::Flush).map(Batch::into_entries);
        self.line.seat(self.room());
        let held = match (ready, open) {
            (Some(mut ready), Some(open)) => {
                ready.extend(open);
                ready
            }
            (one, other) => one.or(other).unwrap_or_default(),
        };
        (held, (self.line.take_woken(), self.pace.give_up()))
    }

    /// Takes nothing any more, and sends away who waits.
    pub(crate) fn close(&mut self) -> (Wakers, Fold<V>) {
        self.is_closed = true;
        (self.line.disband(), std::mem::replace(&mut self.fold, Fold::Last))
    }

    /// Gives up a place in line, or a seat.
    pub(crate) fn leave(&mut self, number: u64) -> (Wakers, Option<Waker>) {
        if self.is_closed {
            return (Wakers::default(), None);
        }
        let waker = self.line.leave(number);
        self.line.seat(self.room());
        (self.line.take_woken(), waker)
    }

    /// Returns for how many new keys there is room.
    pub(crate) fn room(&self) -> usize {
        self.rules.max_size.saturating_sub(self.open.entries.len() + self.line.seats)
    }

    /// Ends the open batch, whether it is due or not.
    fn end_open(&mut self, now: Tick, cause: FlushCause) {
        self.advance(now);
        if !self.open.entries.is_empty() && self.open.cause.is_none() {
            self.open.cause = Some(cause);
            self.hand_over();
        }
    }

    /// Does what is due by `now`.
    fn advance(&mut self, now: Tick) {
        if self.open.cause.is_none() {
            self.open.cause =
                self.open.due(&self.rules).filter(|due| due.0 <= now).map(|due| due.1);
        }
        self.hand_over();
    }

    /// Lets a ripe batch out, if it has no pace to wait for.
    fn hand_over(&mut self) {
        if self.pace.is_free() && !self.is_running {
            self.let_out();
        }
    }

    /// Moves a ripe batch out of the way of the next one.
    fn let_out(&mut self) {
        if let (None, Some(cause)) = (&self.ready, self.open.cause) {
            self.ready = self.open.take(cause);
            self.line.seat(self.room());
        }
    }
}

impl<K: Eq, V> Gather<K, V> {
    /// Adds the pair if its key is there or there is room for it. It is taken out of `pair` then.
    pub(crate) fn try_add(
        &mut self,
        now: Tick,
        hash: u32,
        pair: &mut Option<(K, V)>,
    ) -> After<K, V> {
        let after = self.add_or(now, (hash, pair), |_| {});
        if after.answer == Answer::Full && after.panic.is_none() {
            self.refused += 1; // OVERFLOW: a count of events.
        }
        after
    }

    /// [`try_add`](Self::try_add), and a place in line if there is no room.
    pub(crate) fn wait(
        &mut self,
        now: Tick,
        (hash, pair): (u32, &mut Option<(K, V)>),
        number: &mut Option<u64>,
        waker: Waker,
    ) -> After<K, V> {
        let mut spare = Some(waker);
        let mut left = None;
        if let (Some(place), false) = (*number, self.is_closed) {
            self.advance(now);
            if let Some(old) = self.line.stay(place, &mut spare) {
                // It still waits; but its key may have come in by somebody else.
                let mut after = self.add_or(now, (hash, pair), |_| {});
                if after.answer == Answer::Added {
                    *number = None;
                    left = self.line.leave(place);
                }
                after.unused_wakers = [Some(old), left];
                return after;
            }
            // It has a seat: the room is there once that is given up.
            *number = None;
            left = self.line.leave(place);
        }
        let mut after = self.add_or(now, (hash, pair), |line| {
            *number = spare.take().map(|waker| line.join(waker));
        });
        after.unused_wakers = [spare, left];
        after
    }

    fn add_or(
        &mut self,
        now: Tick,
        (hash, pair): (u32, &mut Option<(K, V)>),
        full: impl FnOnce(&mut Line),
    ) -> After<K, V> {
        let (mut unused, unused_wakers) = ((None, None), [None, None]);
        if self.is_closed {
            let (answer, wakers) = (Answer::Closed, self.line.take_woken());
            return After { answer, wakers, unused, unused_wakers, panic: None };
        }
        self.advance(now);
        // UNWIND: comparing and folding are the caller's own code. A panic there leaves the entry
        // as the fold left it, and must not lose a wake-up.
        let folded = catch_unwind(AssertUnwindSafe(|| self.try_fold(hash, pair, &mut unused)));
        let (answer, panic) = match folded {
            Err(panic) => (Answer::Full, Some(panic)),
            Ok(true) => (Answer::Added, None),
            Ok(false) if self.room() == 0 => {
                full(&mut self.line);
                (Answer::Full, None)
            }
            Ok(false) => {
                if let Some(pair) = pair.take() {
                    self.open.push(now, hash, pair);
                }
                (Answer::Added, None)
            }
        };
        if answer == Answer::Added {
            self.open.adds += 1; // OVERFLOW: 2^64 adds take centuries.
            self.counts.triggers += 1;
            self.open.last_at = now;
        }
        if self.open.entries.len() >= self.rules.max_size && self.open.cause.is_none() {
            self.open.cause = Some(FlushCause::Size);
        }
        self.hand_over();
        self.line.seat(self.room());
        After { answer, wakers: self.line.take_woken(), unused, unused_wakers, panic }
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

impl<K, V> Open<K, V> {
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

    /// Returns when it will be ripe, and why; the first reason in time.
    fn due(&self, rules: &Rules) -> Option<(Tick, FlushCause)> {
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

impl<K: Send + 'static, V: Send + 'static> Machine for Gather<K, V> {
    type Job = Batch<K, V>;

    fn due(&self) -> Option<Tick> {
        if self.ready.is_some() {
            return Some(Tick::ZERO);
        }
        let ripe = match self.open.cause {
            Some(_) => Some(Tick::ZERO),
            None => self.open.due(&self.rules).map(|due| due.0),
        };
        ripe.map(|ripe| ripe.max(self.pace.due()))
    }

    fn next(&mut self, now: Tick) -> Option<Batch<K, V>> {
        // The engine asks only when no action runs.
        self.is_running = false;
        self.advance(now);
        if self.ready.is_none() && self.open.cause.is_some() && self.pace.admits(now) {
            self.let_out();
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

    /// Those who have room now are woken when this is dropped.
    fn waste(&mut self) -> impl Sized + use<K, V> {
        self.line.take_woken()
    }

    fn clear(&mut self) -> impl Sized + use<K, V> {
        let (wakers, fold) = self.close();
        let open = std::mem::replace(&mut self.open, Open::new());
        (self.ready.take(), open, fold, (wakers, self.pace.give_up()))
    }
}
