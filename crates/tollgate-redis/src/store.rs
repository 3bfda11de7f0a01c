//! Demands become one script call per slot, and replies become decisions.

use crate::{Link, link::SettingsError};
use tollgate::Clock;

/// A store in Redis or Valkey. Clones are the same store.
#[derive(Clone, Debug)]
pub struct RedisStore {
    link: Link,
    clock: Clock,
}

impl RedisStore {
    /// Returns a store on a link, with the prefix `tollgate`.
    ///
    /// # Errors
    ///
    /// When the settings make no sense.
    pub fn new(link: Link) -> Result<Self, SettingsError> {
        Ok(Self { link, clock: Clock::monotonic() })
    }

    /// Returns the way to the servers.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the clock of the ticks in this store's decisions.
    #[must_use]
    pub fn ticks(&self) -> &Clock {
        &self.clock
    }
}
