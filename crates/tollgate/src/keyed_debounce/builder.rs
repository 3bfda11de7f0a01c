//! How keyed debouncers are put together.

use super::{
    KEYS_MAX, KeyedDebouncer,
    machine::{Bounds, KeyedDebounce},
};
use crate::{DebounceBuilder, DebounceError, Driver, Fired, OnDrop, Panicked, wait::Engine};
use std::{
    fmt,
    hash::{Hash, RandomState},
    marker::PhantomData,
    time::Duration,
};

/// What happens to the trigger of a new key when as many keys are held as may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenKeysFull {
    /// It is refused; the key and the value come back. The default: nothing happens early, nothing
    /// is lost unseen.
    #[default]
    Refuse,
    /// The key that is due first fires now, as if flushed, and is forgotten: its next trigger begins
    /// a new burst.
    ///
    /// If the action is so slow that `max_keys` such fires wait for their turn, the trigger is
    /// refused nevertheless.
    FireFirst,
}

/// Builds a [`KeyedDebouncer`]. Nothing is judged before the last call.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{KeyedDebouncer, WhenKeysFull};
///
/// let index = KeyedDebouncer::<String, u64>::builder(Duration::from_millis(300))
///     .max_wait(Duration::from_secs(2))
///     .max_keys(10_000)
///     .when_full(WhenKeysFull::FireFirst)
///     .start(|file, fired| println!("{file} changed {} times", fired.triggers()))?;
/// assert!(index.is_empty());
/// # Ok::<(), tollgate::DebounceError>(())
/// ```
#[must_use = "a builder does nothing until `start`"]
pub struct KeyedDebouncerBuilder<K, T> {
    debounce: DebounceBuilder,
    bounds: Bounds,
    types: PhantomData<fn(K, T)>,
}

impl<K, T> KeyedDebouncerBuilder<K, T> {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            debounce: DebounceBuilder::new(delay),
            bounds: Bounds { max_keys: 65_536, when_full: WhenKeysFull::Refuse },
            types: PhantomData,
        }
    }

    /// Fires on the first trigger of a burst, and not at its end.
    pub fn leading(mut self) -> Self {
        self.debounce = self.debounce.leading();
        self
    }

    /// Fires at the end of a burst, which is the default.
    pub fn trailing(mut self) -> Self {
        self.debounce = self.debounce.trailing();
        self
    }

    /// Fires on the first trigger of a burst, and at its end if there were more.
    pub fn both_edges(mut self) -> Self {
        self.debounce = self.debounce.both_edges();
        self
    }

    /// Sets how long a burst may hold a fire back, by default for ever. At least the delay.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.debounce = self.debounce.max_wait(max_wait);
        self
    }

    /// Sets how many keys may be held at once, by default 65,536: some 17 MB for small keys and
    /// values. From 1 to 2^28.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.bounds.max_keys = max_keys;
        self
    }

    /// Sets what happens to a new key beyond that, by default [`WhenKeysFull::Refuse`].
    pub fn when_full(mut self, when_full: WhenKeysFull) -> Self {
        self.bounds.when_full = when_full;
        self
    }

    /// Sets who runs the action: by default a thread, and for an async action the runtime that this
    /// is started in.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.debounce = self.debounce.driver(driver);
        self
    }

    /// Sets what becomes of what is pending when the last handle is dropped, by default
    /// [`OnDrop::Cancel`].
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.debounce = self.debounce.on_drop(on_drop);
        self
    }

    /// Sets who is told when an action has panicked; it is counted in any case.
    pub fn on_panic(mut self, on_panic: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.debounce = self.debounce.on_panic(on_panic);
        self
    }

    fn machine(&self) -> Result<KeyedDebounce<K, T>, DebounceError>
    where
        T: Send + 'static,
    {
        self.debounce.rules.judge()?;
        let max_keys = self.bounds.max_keys;
        if !(1..=KEYS_MAX).contains(&max_keys) {
            return Err(DebounceError::MaxKeys { max_keys });
        }
        Ok(KeyedDebounce::new(self.debounce.rules, self.bounds))
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, T: Send + 'static> KeyedDebouncerBuilder<K, T> {
    /// Starts them, with what runs when a key fires.
    ///
    /// # Errors
    ///
    /// When the delay is zero, `max_wait` is below it, or `max_keys` is zero or above 2^28.
    pub fn start(
        self,
        mut action: impl FnMut(K, Fired<T>) + Send + 'static,
    ) -> Result<KeyedDebouncer<K, T>, DebounceError> {
        let machine = self.machine()?;
        let action = move |(key, fired)| action(key, fired);
        Ok(Self::debouncer(self.debounce.options.start(machine, action), self.bounds))
    }

    /// Starts them, with a future that is awaited when a key fires: one at a time for all keys.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); and when the driver is not one of tokio, or none is given and
    /// this is called outside a runtime.
    #[cfg(feature = "tokio")]
    pub fn start_async<F>(
        self,
        mut action: impl FnMut(K, Fired<T>) -> F + Send + 'static,
    ) -> Result<KeyedDebouncer<K, T>, DebounceError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.machine()?;
        let action = move |(key, fired)| action(key, fired);
        let options = self.debounce.options;
        let engine = options.start_async(machine, action, DebounceError::NotAsync)?;
        Ok(Self::debouncer(engine, self.bounds))
    }

    fn debouncer(engine: Engine<KeyedDebounce<K, T>>, bounds: Bounds) -> KeyedDebouncer<K, T> {
        KeyedDebouncer { engine, hasher: RandomState::new(), max_keys: bounds.max_keys }
    }
}

impl<K, T> fmt::Debug for KeyedDebouncerBuilder<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedDebouncerBuilder")
            .field("debounce", &self.debounce)
            .field("bounds", &self.bounds)
            .finish()
    }
}
