//! The settings that only keyed debouncers have.

use super::{KEYS_MAX, KeyedDebouncer, machine::KeyedDebounce};
use crate::{ConfigError, DebouncerBuilder, Fired};
use std::{hash::Hash, time::Duration};

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

/// Builds a [`KeyedDebouncer`]. Nothing is checked before the start.
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
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub type KeyedDebouncerBuilder<K, T> = DebouncerBuilder<KeyedDebouncer<K, T>>;

impl<K: Hash + Eq + Clone + Send + 'static, T: Send + 'static> KeyedDebouncerBuilder<K, T> {
    /// Sets how long a burst may hold a fire back, by default for ever. At least the delay.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.rules.max_wait = Some(max_wait);
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

    /// Starts them, with what runs when a key fires.
    ///
    /// # Errors
    ///
    /// When the delay is zero, `max_wait` is below it, or `max_keys` is zero or above 2^28.
    pub fn start(
        self,
        mut action: impl FnMut(K, Fired<T>) + Send + 'static,
    ) -> Result<KeyedDebouncer<K, T>, ConfigError> {
        let machine = self.keyed_machine()?;
        let action = move |(key, fired)| action(key, fired);
        let engine = self.options.start(machine, action);
        Ok(KeyedDebouncer { engine })
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
    ) -> Result<KeyedDebouncer<K, T>, ConfigError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.keyed_machine()?;
        let action = move |(key, fired)| action(key, fired);
        let engine = self.options.start_async(machine, action)?;
        Ok(KeyedDebouncer { engine })
    }

    fn keyed_machine(&self) -> Result<KeyedDebounce<K, T>, ConfigError> {
        self.rules.check()?;
        ConfigError::check_range("max_keys", self.bounds.max_keys, 1..=KEYS_MAX)?;
        Ok(KeyedDebounce::new(self.rules, self.bounds))
    }
}
