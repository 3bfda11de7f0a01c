//! A trigger that was not taken.

use std::fmt;

/// A trigger was not taken. Its key and its value come back.
pub struct NotTriggered<K, T> {
    pub(super) key: K,
    pub(super) value: T,
    /// How many keys are held; none after a stop.
    pub(super) max_keys: Option<usize>,
}

impl<K, T> NotTriggered<K, T> {
    /// Returns the key and the value.
    #[must_use]
    pub fn into_parts(self) -> (K, T) {
        (self.key, self.value)
    }

    /// Tells whether there was no room for another key. It may be tried again later.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.max_keys.is_some()
    }

    /// Tells whether all is stopped or finished. No trigger is taken any more.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.max_keys.is_none()
    }
}

impl<K, T> fmt::Debug for NotTriggered<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotTriggered").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

impl<K, T> fmt::Display for NotTriggered<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max_keys {
            Some(max_keys) => write!(
                f,
                "{max_keys} keys are held, the maximum of max_keys; try again when one has fired, \
                 raise max_keys, or let the first one fire early with `WhenKeysFull::FireFirst`"
            ),
            None => {
                f.write_str("the debouncers are stopped and trigger nothing more; start new ones")
            }
        }
    }
}

impl<K, T> std::error::Error for NotTriggered<K, T> {}
