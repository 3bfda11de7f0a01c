//! Collecting keys, or folding values for each key, to act on many at once.
//!
//! `machine.rs` decides, without timers or locks; `wait_queue.rs` has the adds that wait for room. The engine of `wait`
//! gives the machine its time and its action.

mod add;
mod batch;
mod builder;
mod machine;
#[cfg(test)]
mod tests;
mod wait_queue;

pub use add::{Add, AddError};
pub use batch::{Batch, FlushCause};
pub use builder::{CoalescerBuilder, FlushPanicked};

use crate::{
    StopAndWait,
    observe::{Collector, Samples, WeakCollector, family},
    wait::{Engine, KeyIndex, WeakEngine},
};
use add::AddErrorKind;
use machine::{AddEffects, AddOutcome, CoalescerMachine, Fold};
use std::{fmt, hash::Hash, time::Duration};

/// Collects keys, or folds values for each key, and flushes them as one [`Batch`].
///
/// Clones are handles of the same one.
///
/// | I want to | use | when there is no room |
/// |---|---|---|
/// | add, or do something else | [`try_add`](Self::try_add) | gives the pair back |
/// | add from async code | [`add`](Self::add) | waits in the queue |
/// | add from a thread | [`add`](Self::add), then [`block`](Add::block) | waits in the queue |
///
/// The action gets one batch at a time. While it runs, adds go into the next batch. When that has
/// [`max_size`](CoalescerBuilder::max_size) keys there is no room for new ones until the action
/// returns; keys that are there already still fold. First come is first served: a new add does not
/// overtake those that wait.
///
/// # Every pair is in one batch
///
/// Every pair that was added is in exactly one batch, also over [`stop`](Self::stop) and the drop of
/// the last handle (`src/coalesce/tests.rs`, and with threads `tests/flow/coalesce_waiting.rs`). The
/// caller chooses every exception: [`discard`](Self::discard), [`OnDrop::Cancel`](crate::OnDrop::Cancel), and a runtime that shuts
/// down under the coalescer. A batch whose flush panics is not flushed again.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. An add takes one short lock, under which keys are
/// compared and values folded, so that folds keep the order of adds: a fold must be quick, and must
/// not call its own coalescer. A panic in it reaches the caller of the add; the coalescer goes on. Actions run
/// without the lock and may add to their own coalescer; one that holds a [`Coalescer`] of its own
/// keeps itself alive until it is stopped, and a [`WeakCoalescer`] does not.
///
/// # Examples
///
/// Invalidate keys in groups, at most 50 ms late:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Coalescer, Driver, ManualClock};
///
/// let hand = ManualClock::new();
/// let (sender, purged) = std::sync::mpsc::channel();
/// let stale = Coalescer::set()
///     .window(Duration::from_millis(50))
///     .driver(Driver::manual(&hand))
///     .start(move |batch| sender.send(batch.into_keys().collect::<Vec<_>>()).unwrap_or(()))?;
/// for key in ["user/1", "user/2", "user/1"] {
///     stale.try_insert(key)?;
/// }
/// hand.advance(Duration::from_millis(50));
/// assert_eq!(purged.try_iter().collect::<Vec<_>>(), [["user/1", "user/2"]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Coalescer<K: Send + 'static, V: Send + 'static> {
    engine: Engine<CoalescerMachine<K, V>>,
}

impl<K: Send + 'static> Coalescer<K, ()> {
    /// Starts a coalescer that collects keys, each of them once.
    pub fn set() -> CoalescerBuilder<K, ()> {
        CoalescerBuilder::new(Fold::Last)
    }
}

impl<K: Send + 'static, V: Send + 'static> Coalescer<K, V> {
    /// The highest [`max_size`](CoalescerBuilder::max_size): 16,777,216 keys.
    pub const SIZE_MAX: usize = 1 << 24;

    /// Starts a coalescer that keeps the last value of each key.
    pub fn last() -> CoalescerBuilder<K, V> {
        CoalescerBuilder::new(Fold::Last)
    }

    /// Starts a coalescer that folds the values of each key, in the order of the adds.
    ///
    /// `fold` is given what is held and what is new, from the second value of a key on. It runs
    /// under the lock of the coalescer: see [`Coalescer`], "Concurrency".
    pub fn fold(fold: impl FnMut(&mut V, V) + Send + 'static) -> CoalescerBuilder<K, V> {
        CoalescerBuilder::new(Fold::With(Box::new(fold)))
    }

    /// Flushes what is collected, as soon as the action is free and the pace admits it. Tells
    /// whether there was anything.
    #[allow(clippy::must_use_candidate, reason = "flushing is the point")]
    pub fn flush(&self) -> bool {
        let flushed = self.engine.event(CoalescerMachine::flush);
        flushed.is_some_and(|(is_any, _woken)| is_any)
    }

    /// Takes out what is collected and not flushed yet, in the order of arrival. The coalescer goes
    /// on.
    ///
    /// A key may be there twice, if a batch was about to leave. After [`stop`](Self::stop) there is
    /// nothing to take: what was collected then is being flushed.
    #[must_use = "dropping this loses what is collected; call `drop` if you mean that"]
    pub fn discard(&self) -> Vec<(K, V)> {
        let taken = self.engine.event(|machine, _| machine.discard());
        taken.map(|(held, _unlocked)| held).unwrap_or_default()
    }

    /// Ends it: nothing is added any more, and what is collected is flushed.
    ///
    /// So it is what others call `finish`: a coalescer loses nothing. To give up what is collected,
    /// [`discard`](Self::discard) it first.
    ///
    /// Adds that wait for room give their pairs back. This does not wait for the flush;
    /// [`stop_and_wait`](Self::stop_and_wait) does. A pace still holds.
    pub fn stop(&self) {
        let closed = self.engine.event(|machine, _| machine.close());
        self.engine.finish();
        drop(closed);
    }

    /// [`stop`](Self::stop), and waits at most for `within` until all is flushed.
    pub fn stop_and_wait(&self, within: Duration) -> StopAndWait {
        self.stop();
        self.engine.ended(within)
    }

    /// Returns a handle that does not keep this coalescer alive, for the action itself.
    #[must_use]
    pub fn downgrade(&self) -> WeakCoalescer<K, V> {
        WeakCoalescer { engine: self.engine.downgrade() }
    }

    /// Returns how many keys are collected and not with the action yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.look(|machine, _| machine.len())
    }

    /// Tells whether nothing is collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many adds wait for room.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.engine.look(|machine, _| machine.waiting())
    }

    /// Tells whether a flush runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Tells whether it is stopped, or being stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.engine.is_stopped()
    }

    /// Returns how many flushes have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.engine.panics()
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> Coalescer<K, V> {
    /// Adds a pair if its key is collected already or there is room for it. Never waits.
    ///
    /// # Errors
    ///
    /// [`AddError`] gives the pair back, if there is no room or the coalescer is stopped.
    pub fn try_add(&self, key: K, value: V) -> Result<(), AddError<K, V>> {
        let hash = KeyIndex::hash(&key);
        let mut pair = Some((key, value));
        let added = self.engine.event(|machine, now| machine.try_add(now, hash, &mut pair));
        let kind = match added.map_or(AddOutcome::Closed, AddEffects::apply) {
            AddOutcome::Added => return Ok(()),
            AddOutcome::Full => {
                let max_size = self.engine.look(|machine, _| machine.rules.max_size);
                AddErrorKind::Full { max_size }
            }
            AddOutcome::Closed => AddErrorKind::Stopped,
        };
        pair.map_or(Ok(()), |pair| Err(AddError { pair, kind }))
    }

    /// Adds a pair; waits for room if there is none, first come, first served.
    ///
    /// An action that is a future must not await this on its own coalescer: the room may be what
    /// its own end makes.
    ///
    /// # Errors
    ///
    /// The future gives the pair back when the coalescer is stopped.
    ///
    /// # Cancel safety
    ///
    /// See [`Add`].
    pub fn add(&self, key: K, value: V) -> Add<K, V> {
        let hash = KeyIndex::hash(&key);
        Add { coalescer: self.clone(), hash, pair: Some((key, value)), number: None }
    }
}

impl<K: Hash + Eq + Send + 'static> Coalescer<K, ()> {
    /// [`try_add`](Self::try_add) of a key alone.
    ///
    /// # Errors
    ///
    /// As [`try_add`](Self::try_add).
    pub fn try_insert(&self, key: K) -> Result<(), AddError<K, ()>> {
        self.try_add(key, ())
    }

    /// [`add`](Self::add) of a key alone.
    pub fn insert(&self, key: K) -> Add<K, ()> {
        self.add(key, ())
    }
}

impl<K: Send + 'static, V: Send + 'static> Clone for Coalescer<K, V> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<K: Send + 'static, V: Send + 'static> fmt::Debug for Coalescer<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer")
            .field("len", &self.len())
            .field("waiting", &self.waiting())
            .field("running", &self.is_running())
            .field("stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

/// A handle of a [`Coalescer`] that does not keep it alive.
pub struct WeakCoalescer<K: Send + 'static, V: Send + 'static> {
    engine: WeakEngine<CoalescerMachine<K, V>>,
}

impl<K: Send + 'static, V: Send + 'static> WeakCoalescer<K, V> {
    /// Returns a handle, if there is still one.
    #[must_use]
    pub fn upgrade(&self) -> Option<Coalescer<K, V>> {
        self.engine.upgrade().map(|engine| Coalescer { engine })
    }
}

impl<K: Send + 'static, V: Send + 'static> Clone for WeakCoalescer<K, V> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<K: Send + 'static, V: Send + 'static> fmt::Debug for WeakCoalescer<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakCoalescer")
    }
}

impl<K: Send + 'static, V: Send + 'static> Collector for Coalescer<K, V> {
    fn collect(&self, samples: &mut Samples) {
        let look = |machine: &CoalescerMachine<K, V>, _| {
            let keys = (machine.len(), machine.rules.max_size);
            (machine.counts, machine.refused, machine.waiting(), keys)
        };
        let (counts, refused, waiting, (keys, max_size)) = self.engine.look(look);
        samples.kind("coalescer");
        samples.action(counts, &self.engine);
        samples.calls(counts.triggers, refused);
        samples.gauge(&family::WAITING, waiting as f64);
        samples.gauge(&family::KEYS, keys as f64);
        samples.gauge(&family::KEYS_LIMIT, max_size as f64);
    }

    fn weak(&self) -> WeakCollector {
        let weak = self.downgrade();
        WeakCollector::new(move || Some(Box::new(weak.upgrade()?)))
    }
}
