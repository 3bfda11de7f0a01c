//! Collapsing bursts: one run for many triggers.

pub(crate) mod builder;
mod fired;
pub(crate) mod machine;
pub(crate) mod paced;

pub use builder::DebouncerBuilder;
pub use fired::{Edge, Fired};

use crate::{
    ConfigError,
    observe::{Collector, Samples, WeakCollector},
    wait::{Engine, StopAndWait, WeakEngine},
};
use machine::Rules;
use paced::PacedDebounce;
use std::{fmt, time::Duration};

/// Runs an action once for a burst of triggers, with the last value.
///
/// A burst begins with the first trigger after silence and ends when there was none for the delay.
///
/// | edges | runs |
/// |---|---|
/// | trailing (the default) | at the end of the burst |
/// | [`leading`](DebouncerBuilder::leading) | at its first trigger |
/// | [`both_edges`](DebouncerBuilder::both_edges) | at its first trigger, and at its end if more came |
///
/// With a [`max_wait`](DebouncerBuilder::max_wait) a burst that does not end is cut: the longest
/// wait is armed on the first trigger of every burst.
///
/// Clones are handles of the same debouncer.
///
/// # Examples
///
/// Saves a document once its author pauses:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Debouncer, Driver, ManualClock};
///
/// let hand = ManualClock::new();
/// let (sender, saved) = std::sync::mpsc::channel();
/// let save = Debouncer::builder(Duration::from_millis(300))
///     .max_wait(Duration::from_secs(5))
///     .driver(Driver::manual(&hand)) // in a program: leave this out, or `Driver::tokio()?`
///     .start(move |fired| sender.send((fired.triggers(), fired.into_value())).unwrap_or(()))?;
/// for text in ["H", "He", "Hello"] {
///     save.trigger(text);
///     hand.advance(Duration::from_millis(100));
/// }
/// assert!(save.is_pending());
/// hand.advance(Duration::from_millis(200));
/// assert_eq!(saved.try_iter().collect::<Vec<_>>(), [(3, "Hello")]);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// # The driver runs the action
///
/// The [`Driver`](crate::Driver): a thread of its own (the default), a task of a tokio runtime, or
/// the hand of a manual clock. It never runs inside [`trigger`](Self::trigger), but on a manual
/// clock. There is no thread and no task between bursts, nor while a leading edge alone waits for
/// silence.
///
/// The action never runs twice at once. While it is slow, what fires meanwhile waits for its turn,
/// and what fires after that takes its place: one run with the last value follows, and its
/// [`triggers`](Fired::triggers) counts all that it stands for.
///
/// An action that panics is counted ([`panics`](Self::panics)), reported
/// ([`on_panic`](DebouncerBuilder::on_panic)) and runs again the next time.
///
/// # The end
///
/// | by | what is pending | the action starts again |
/// |---|---|---|
/// | [`stop`](Self::stop) | is forgotten | never |
/// | [`finish`](Self::finish) | runs | once more, for what is pending |
/// | dropping the last handle | is forgotten, or runs: [`OnDrop`](crate::OnDrop) | as said there |
/// | shutdown of the tokio runtime that drives it | is forgotten | never |
///
/// Each of them releases what the action has captured, as soon as the action does not run. An
/// action that holds a [`Debouncer`] of its own keeps itself alive until it is stopped; a
/// [`WeakDebouncer`] does not.
///
/// # Concurrency
///
/// All methods may be called from many threads, and from the action itself. A trigger takes one
/// short lock and no memory. Values are dropped, and the action runs, outside the lock.
///
/// # Beside lodash
///
/// It fires when lodash's `debounce` fires, with the same value (`tests/flow/servers/debounce_lodash.rs`). What
/// differs, and why:
///
/// 1. A trigger that comes when the end of a burst is overdue, because the worker is late, begins a
///    new burst; lodash prolongs the old one. Here the result does not depend on which thread was quicker.
/// 2. An action that is under way is not entered again: what it causes at once runs after it has
///    returned, and several such fires are one run. In lodash the runs nest.
/// 3. `flush` ends the burst for good. In lodash the old timer lives on after it and may cut a
///    later burst short, if there is a longest wait.
/// 4. A delay of zero, and a longest wait that is shorter than the delay, are errors. Lodash takes
///    the one for "in the next turn" and lengthens the other.
/// 5. Some edge is always chosen. In lodash both can be switched off, and nothing ever runs.
/// 6. `flush` and `trigger` do not return what the action returned.
/// 7. Time that goes backwards stands still. Lodash takes it for the end of the burst.
pub struct Debouncer<T: Send + 'static> {
    pub(crate) engine: Engine<PacedDebounce<T>>,
}

impl<T: Send + 'static> Debouncer<T> {
    /// Starts a debouncer with a trailing edge, driven by a thread.
    ///
    /// # Errors
    ///
    /// If the delay is zero.
    pub fn new(
        delay: Duration,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Self, ConfigError> {
        Debouncer::builder(delay).start(action)
    }

    /// Notes that something has happened, with the value to act on. The last value wins.
    ///
    /// Returns `false` if it is stopped; then the value is dropped.
    #[allow(clippy::must_use_candidate, reason = "triggering is the point")]
    pub fn trigger(&self, value: T) -> bool {
        self.engine.event(|machine, now| machine.trigger(now, value)).is_some()
    }

    /// Ends the burst now: what is pending runs as soon as the action is free.
    ///
    /// Returns whether something runs for it. It does not wait for the run;
    /// [`finish_and_wait`](Self::finish_and_wait) does.
    #[allow(clippy::must_use_candidate, reason = "flushing is the point")]
    pub fn flush(&self) -> bool {
        let flushed = self.engine.event(|machine, now| {
            let old = machine.debounce.flush(now);
            (machine.debounce.is_ready(), old)
        });
        flushed.is_some_and(|(runs, _)| runs)
    }

    /// Forgets what is pending, and the burst: the next trigger begins a new one.
    ///
    /// Returns whether there was something that would have run. A run under way goes on.
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel(&self) -> bool {
        let old = self.engine.event(|machine, _| machine.cancel());
        old.is_some_and(|(old, _booked)| old.iter().any(Option::is_some))
    }

    /// Tells whether a burst is under way, or a run waits for the action to be free.
    ///
    /// Of a leading edge it is true until there was silence for the delay, though nothing will run.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.engine.look(|machine, now| machine.debounce.is_pending(now))
    }

    /// Tells whether the action runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Returns how many runs have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.engine.panics()
    }

    /// Tells whether triggers are refused: it was stopped or finished, or its runtime is gone.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.engine.is_stopped()
    }

    /// Stops: once this has returned the action does not start any more.
    ///
    /// A pending run is forgotten. A run under way goes on; see
    /// [`stop_and_wait`](Self::stop_and_wait).
    pub fn stop(&self) {
        self.engine.stop();
    }

    /// Stops, at this call, and returns what waits for the end of a run under way.
    ///
    /// When that is ready and well, the action is dropped, with all that it captured.
    pub fn stop_and_wait(&self, within: Duration) -> StopAndWait {
        self.engine.stop();
        self.engine.ended(within)
    }

    /// Takes no trigger any more, runs what is pending as soon as the action is free, and stops.
    pub fn finish(&self) {
        self.engine.finish();
    }

    /// Does the same as [`finish`](Self::finish), and returns what waits for the end.
    ///
    /// Nothing is lost unless the time is over first: then what has not started still will, unless
    /// it is stopped.
    pub fn finish_and_wait(&self, within: Duration) -> StopAndWait {
        self.engine.finish();
        self.engine.ended(within)
    }

    /// Returns a handle that does not keep this debouncer alive, for the action itself.
    #[must_use]
    pub fn downgrade(&self) -> WeakDebouncer<T> {
        WeakDebouncer { engine: self.engine.downgrade() }
    }
}

impl Debouncer<()> {
    /// Returns a builder of a debouncer that waits for silence of `delay`.
    pub const fn builder(delay: Duration) -> DebouncerBuilder {
        DebouncerBuilder::new(Rules::debounce(delay))
    }
}

impl<T: Send + 'static> Clone for Debouncer<T> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for Debouncer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debouncer")
            .field("driver", self.engine.driver())
            .field("pending", &self.is_pending())
            .field("running", &self.is_running())
            .field("stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

/// A handle of a [`Debouncer`] that does not keep it alive.
///
/// # Examples
///
/// An action that wants to run again, without owning itself:
///
/// ```
/// use std::{sync::{Arc, OnceLock}, time::Duration};
/// use tollgate::{Debouncer, Driver, ManualClock, WeakDebouncer};
///
/// let hand = ManualClock::new();
/// let (sender, runs) = std::sync::mpsc::channel();
/// let myself: Arc<OnceLock<WeakDebouncer<u32>>> = Arc::default();
/// let again = Arc::clone(&myself);
/// let retry = Debouncer::builder(Duration::from_secs(1))
///     .driver(Driver::manual(&hand))
///     .start(move |fired| {
///         let left = fired.into_value();
///         sender.send(left).unwrap_or(());
///         if let (Some(again), true) = (again.get(), left > 0) {
///             again.trigger(left - 1);
///         }
///     })?;
/// myself.get_or_init(|| retry.downgrade());
/// retry.trigger(2);
/// hand.advance(Duration::from_secs(10));
/// assert_eq!(runs.try_iter().collect::<Vec<_>>(), [2, 1, 0]);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub struct WeakDebouncer<T: Send + 'static> {
    engine: WeakEngine<PacedDebounce<T>>,
}

impl<T: Send + 'static> WeakDebouncer<T> {
    /// Does what [`Debouncer::trigger`] does; `false` also if the last handle is gone.
    #[allow(clippy::must_use_candidate, reason = "triggering is the point")]
    pub fn trigger(&self, value: T) -> bool {
        self.upgrade().is_some_and(|debouncer| debouncer.trigger(value))
    }

    /// Returns a full handle, unless the last one is gone.
    #[must_use]
    pub fn upgrade(&self) -> Option<Debouncer<T>> {
        self.engine.upgrade().map(|engine| Debouncer { engine })
    }
}

impl<T: Send + 'static> Clone for WeakDebouncer<T> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for WeakDebouncer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakDebouncer")
    }
}

impl<T: Send + 'static> Debouncer<T> {
    /// Writes what a debouncer and a throttle have in common.
    pub(crate) fn collect_as(&self, kind: &'static str, samples: &mut Samples) {
        let look =
            |machine: &PacedDebounce<T>, now| (machine.counts, machine.debounce.is_pending(now));
        let (counts, is_pending) = self.engine.look(look);
        samples.kind(kind);
        samples.action(counts, &self.engine);
        samples.queue(is_pending.into(), 1);
    }
}

impl<T: Send + 'static> Collector for Debouncer<T> {
    fn collect(&self, samples: &mut Samples) {
        self.collect_as("debouncer", samples);
    }

    fn weak(&self) -> WeakCollector {
        let weak = self.downgrade();
        WeakCollector::new(move || Some(Box::new(weak.upgrade()?)))
    }
}
