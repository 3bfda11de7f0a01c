//! What can be wrong with keyed debouncers.

use super::KEYS_MAX;
use crate::NoRuntime;
use std::{fmt, time::Duration};

/// Why keyed debouncers cannot be started. Each text names the value, the rule and a way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyedDebounceError {
    /// The delay is zero.
    NoDelay,
    /// The longest wait is shorter than the delay.
    MaxWaitTooShort {
        /// The longest wait.
        max_wait: Duration,
        /// The delay.
        delay: Duration,
    },
    /// No key may be held, or more than can be.
    MaxKeys {
        /// The keys asked for.
        max_keys: usize,
    },
    /// An action that is a future was given to a driver that cannot await it.
    NotAsync,
    /// There is no tokio runtime to await the action.
    NoRuntime(NoRuntime),
}

impl fmt::Display for KeyedDebounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDelay => f.write_str(
                "a delay of zero debounces nothing; give one above zero, or call the action \
                 yourself",
            ),
            Self::MaxWaitTooShort { max_wait, delay } => write!(
                f,
                "max_wait {max_wait:?} is shorter than the delay {delay:?}; raise it to the delay \
                 at least, or leave it out"
            ),
            Self::MaxKeys { max_keys } => {
                write!(f, "max_keys {max_keys} cannot be held; give 1 to {KEYS_MAX}")
            }
            Self::NotAsync => f.write_str(
                "an action that is a future needs a tokio driver; give `Driver::tokio()`, or \
                 `start` an action that is a plain function",
            ),
            Self::NoRuntime(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeyedDebounceError {}

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
                "{max_keys} keys are held, which is max_keys; try again when one has fired, raise \
                 max_keys, or let the first one fire early with `WhenKeysFull::FireFirst`"
            ),
            None => f.write_str(
                "the debouncers are stopped; nothing is triggered any more, start new ones",
            ),
        }
    }
}

impl<K, T> std::error::Error for NotTriggered<K, T> {}
