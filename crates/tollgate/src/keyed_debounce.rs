//! One debouncer for each key, all in one machine.
//!
//! The idea: a debouncer for each file, user or order would be a timer and a place in a map for
//! each, and code that takes them out again. Here one machine holds the keys whose burst is under
//! way, one heap holds their deadlines, and one worker waits for the first of them. A key is there
//! from its first trigger until it has fired and gone quiet; then nothing of it is left.

mod builder;
mod error;
mod machine;
#[cfg(test)]
mod tests;

pub use builder::{KeyedDebouncerBuilder, WhenKeysFull};
pub use error::NotTriggered;

pub(crate) use machine::Bounds;

use crate::{
    ConfigError, Fired, StopAndWait,
    debounce::machine::Rules,
    observe::{Collector, Samples, WeakCollector, family},
    wait::{Engine, KeyIndex, WeakEngine},
};
use machine::KeyedDebounce;
use std::{borrow::Borrow, fmt, hash::Hash, time::Duration};

/// The most keys that can be held: slots are numbered in 32 bits, with room to spare.
pub(crate) const KEYS_MAX: usize = 1 << 28;

/// Debounces each key by itself: one run of the action for many triggers of a key.
///
/// Each key behaves as a debouncer of its own. There is one worker for all, so there are never two
/// runs of the action at once: fires of several keys run one after the other, in the order in which
/// they fell due (with a longest wait, when the action is behind, to within one delay). While a fire
/// waits for its turn, further fires of the same key join it: the last value wins, and
/// [`Fired::triggers`] counts on.
///
/// Clones are handles of the same debouncers. When the last one is dropped, what is pending is
/// forgotten or fires at once, as [`OnDrop`](crate::OnDrop) says. An action that owns a handle keeps
/// them alive until they are stopped; a [`WeakKeyedDebouncer`] does not.
///
/// # Bounds
///
/// At most `max_keys` keys are held (65,536 unless told otherwise). A key is held from its first
/// trigger until it has fired and the delay has passed since its last trigger; then its place is
/// free. With [`WhenKeysFull::FireFirst`] as many fires of keys that had to go may wait for their
/// turn beside them. Memory follows the keys that are held, down as well as up. A trigger of a key
/// that is held allocates nothing.
///
/// # Concurrency
///
/// Keys are hashed before the lock is taken, and compared and cloned under it: `Eq` and `Clone` of
/// a key must not call back. A key whose clone panics loses that fire, which counts as a panic of the
/// action. Values and keys are dropped without it. `flush_all`, `cancel_all` and
/// `finish` visit every key under the lock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Driver, KeyedDebouncer, ManualClock};
///
/// let hand = ManualClock::new();
/// let (sender, saved) = std::sync::mpsc::channel();
/// let save = KeyedDebouncer::builder(Duration::from_millis(100))
///     .driver(Driver::manual(&hand))
///     .start(move |file: &str, fired| sender.send((file, fired.into_value())).unwrap_or(()))?;
/// save.trigger("a.txt", 1)?;
/// save.trigger("b.txt", 2)?;
/// hand.advance(Duration::from_millis(50));
/// save.trigger("a.txt", 3)?;
/// hand.advance(Duration::from_millis(100));
/// assert_eq!(saved.try_iter().collect::<Vec<_>>(), [("b.txt", 2), ("a.txt", 3)]);
/// assert!(save.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedDebouncer<K: Clone + Send + 'static, T: Send + 'static> {
    engine: Engine<KeyedDebounce<K, T>>,
}

impl<K: Hash + Eq + Clone + Send + 'static, T: Send + 'static> KeyedDebouncer<K, T> {
    /// Starts debouncers that fire once no trigger of a key has come for `delay`, on a thread.
    ///
    /// # Errors
    ///
    /// When the delay is zero.
    pub fn new(
        delay: Duration,
        action: impl FnMut(K, Fired<T>) + Send + 'static,
    ) -> Result<Self, ConfigError> {
        Self::builder(delay).start(action)
    }

    /// Returns a builder of debouncers with this delay, which must not be zero.
    pub fn builder(delay: Duration) -> KeyedDebouncerBuilder<K, T> {
        KeyedDebouncerBuilder::new(Rules::debounce(delay))
    }

    /// Triggers a key.
    ///
    /// # Errors
    ///
    /// When the key is new and as many are held as may be (see [`WhenKeysFull`]), or all is
    /// stopped. The key and the value come back in the error.
    pub fn trigger(&self, key: K, value: T) -> Result<(), NotTriggered<K, T>> {
        let hash = KeyIndex::hash(&key);
        // The machine takes them out; after a stop it is not called, and they are still here.
        let mut parts = Some((key, value));
        let result = self.engine.event(|machine, now| {
            let triggered = parts.take().map(|parts| machine.trigger(now, hash, parts));
            (triggered, machine.bounds.max_keys)
        });
        match (result, parts) {
            (Some((Some(Err((key, value))), max_keys)), _) => {
                Err(NotTriggered { key, value, max_keys: Some(max_keys) })
            }
            (None, Some((key, value))) => Err(NotTriggered { key, value, max_keys: None }),
            // What it has replaced is dropped here.
            _ => Ok(()),
        }
    }

    /// Ends the burst of a key now: what is pending runs as soon as the action is free.
    ///
    /// Returns whether something runs for it.
    pub fn flush<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = KeyIndex::hash(key);
        let is_it = |other: &K| other.borrow() == key;
        let flushed = self.engine.event(|machine, now| machine.flush(now, hash, is_it));
        flushed.is_some_and(|(runs, _unused)| runs)
    }

    /// Ends the burst of every key now; what is pending runs in the order in which it would have
    /// been due. Returns for how many keys something runs.
    #[allow(clippy::must_use_candidate, reason = "flushing is the point")]
    pub fn flush_all(&self) -> usize {
        let flushed = self.engine.event(|machine, now| machine.flush_all(now));
        flushed.map_or(0, |(run, _unused)| run)
    }

    /// Forgets what is pending of a key, and its burst. A run under way goes on.
    ///
    /// Returns whether there was something that would have run. The next trigger of the key begins a
    /// new burst.
    pub fn cancel<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = KeyIndex::hash(key);
        let is_it = |other: &K| other.borrow() == key;
        let cancelled = self.engine.event(|machine, _| machine.cancel(hash, is_it));
        cancelled.is_some_and(|(would_run, _forgotten)| would_run)
    }

    /// Forgets what is pending of every key. Returns of how many something would have run.
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel_all(&self) -> usize {
        let cancelled = self.engine.event(|machine, _| machine.cancel_all());
        cancelled.map_or(0, |(would_run, _everything)| would_run)
    }

    /// Tells whether a burst of the key is under way, or a fire of it waits for its turn.
    #[must_use]
    pub fn is_pending<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = KeyIndex::hash(key);
        let is_it = |other: &K| other.borrow() == key;
        self.engine.look(|machine, now| machine.is_pending(now, hash, is_it))
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> KeyedDebouncer<K, T> {
    /// Returns how many keys are held, and fires wait of keys that had to go.
    #[must_use]
    pub fn len(&self) -> usize {
        self.engine.look(|machine, _| machine.len())
    }

    /// Tells whether no key is held. Then there is no thread, no task and no timer either.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many keys may be held.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.engine.look(|machine, _| machine.bounds.max_keys)
    }

    /// Tells whether the action runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Tells whether it was stopped or finished.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.engine.is_stopped()
    }

    /// Returns how many runs of the action have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.engine.panics()
    }

    /// Ends all: no run begins after this has returned, and what is pending is forgotten. A run
    /// that has begun goes on.
    pub fn stop(&self) {
        self.engine.stop();
    }

    /// Ends all as [`stop`](Self::stop) does, at once; what is returned waits for a run that has
    /// begun, at most for `within`.
    pub fn stop_and_wait(&self, within: Duration) -> StopAndWait {
        self.engine.stop();
        self.engine.ended(within)
    }

    /// Returns a handle that does not keep this alive, for the action itself.
    #[must_use]
    pub fn downgrade(&self) -> WeakKeyedDebouncer<K, T> {
        WeakKeyedDebouncer { engine: self.engine.downgrade() }
    }

    /// Ends all after what is pending has fired, which begins now: no trigger is taken any more.
    pub fn finish(&self) {
        self.engine.finish();
    }

    /// Ends all as [`finish`](Self::finish) does; what is returned waits until everything has run,
    /// at most for `within`.
    pub fn finish_and_wait(&self, within: Duration) -> StopAndWait {
        self.engine.finish();
        self.engine.ended(within)
    }
}

/// A handle of a [`KeyedDebouncer`] that does not keep it alive, for the action itself.
pub struct WeakKeyedDebouncer<K: Clone + Send + 'static, T: Send + 'static> {
    engine: WeakEngine<KeyedDebounce<K, T>>,
}

impl<K: Hash + Eq + Clone + Send + 'static, T: Send + 'static> WeakKeyedDebouncer<K, T> {
    /// Does what [`KeyedDebouncer::trigger`] does.
    ///
    /// # Errors
    ///
    /// As there; and when the last handle is gone, as after a stop.
    pub fn trigger(&self, key: K, value: T) -> Result<(), NotTriggered<K, T>> {
        match self.upgrade() {
            Some(debouncer) => debouncer.trigger(key, value),
            None => Err(NotTriggered { key, value, max_keys: None }),
        }
    }

    /// Returns a full handle, unless the last one is gone.
    #[must_use]
    pub fn upgrade(&self) -> Option<KeyedDebouncer<K, T>> {
        self.engine.upgrade().map(|engine| KeyedDebouncer { engine })
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> Clone for WeakKeyedDebouncer<K, T> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> fmt::Debug for WeakKeyedDebouncer<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakKeyedDebouncer")
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> Clone for KeyedDebouncer<K, T> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> fmt::Debug for KeyedDebouncer<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedDebouncer")
            .field("driver", self.engine.driver())
            .field("len", &self.len())
            .field("max_keys", &self.max_keys())
            .finish_non_exhaustive()
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> Collector for KeyedDebouncer<K, T> {
    fn collect(&self, samples: &mut Samples) {
        let look = |machine: &KeyedDebounce<K, T>, _| {
            (machine.counts, machine.refused, machine.len(), machine.bounds.max_keys)
        };
        let (counts, refused, len, max_keys) = self.engine.look(look);
        samples.kind("keyed_debouncer");
        samples.action(counts, &self.engine);
        samples.calls(counts.triggers, refused);
        samples.gauge(&family::KEYS, len as f64);
        samples.gauge(&family::KEYS_LIMIT, max_keys as f64);
    }

    fn weak(&self) -> WeakCollector {
        let engine = self.engine.downgrade();
        WeakCollector::new(move || Some(Box::new(Self { engine: engine.upgrade()? })))
    }
}
