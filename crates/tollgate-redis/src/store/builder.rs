//! How a store is set up.

use super::{Placement, RedisStore, Shared, joining::Lines, keys::Names, scripts::Scripts};
use crate::Link;
use std::{
    hash::RandomState,
    sync::{Arc, atomic::AtomicU64},
};
use tollgate::{Clock, store::StoreError};

/// Builds a [`RedisStore`].
///
/// # Examples
///
/// ```no_run
/// use tollgate_redis::{Link, Placement, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let link = Link::open("redis+cluster://localhost:7000,localhost:7001".parse()?)?;
/// let store = RedisStore::builder(link)
///     .prefix("shop")
///     .placement(Placement::ByKey)
///     .hash_keys(*b"sixteen bytes ok")
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisStoreBuilder {
    link: Link,
    prefix: String,
    placement: Placement,
    secret: Option<[u8; 16]>,
    clock: Clock,
    is_time_given: bool,
    max_claims: u32,
    join_above: u32,
}

impl RedisStoreBuilder {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            prefix: "tollgate".into(),
            placement: Placement::default(),
            secret: None,
            clock: Clock::monotonic(),
            is_time_given: false,
            max_claims: 1000,
            join_above: 4,
        }
    }

    /// Sets the prefix of all keys in Redis: stores with different prefixes share nothing. Default:
    /// `tollgate`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Which states share a slot of a cluster. Default: [`Placement::ByKey`].
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Names states by a hash of their keys (SipHash-2-4 of 128 bits under this secret), so that
    /// readers of Redis do not learn the keys. All processes must have the same secret.
    pub fn hash_keys(mut self, secret: [u8; 16]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The clock of the ticks in decisions. Default: the monotonic one. It times nothing in Redis:
    /// there the time is the server's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How many reservations and leases of one key may be open at once, those of zero permits included.
    /// Default: 1000. The time of a settlement in Redis grows in proportion to it.
    pub fn max_claims(mut self, max_claims: u32) -> Self {
        self.max_claims = max_claims;
        self
    }

    /// How many calls for one permit of the same key are sent on their own at once; those that come
    /// meanwhile are joined into one call for as many permits. So a hot key costs a few calls per
    /// round trip, however many ask. Default: 4; `u32::MAX` joins none.
    pub fn join_above(mut self, calls: u32) -> Self {
        self.join_above = calls.max(1);
        self
    }

    /// Makes the scripts take the time of this clock, and not that of the server: for traces that
    /// can be repeated. All users of the prefix must do the same.
    #[cfg(any(test, feature = "testing"))]
    pub fn given_time(mut self, clock: Clock) -> Self {
        (self.clock, self.is_time_given) = (clock, true);
        self
    }

    /// Returns the store.
    ///
    /// # Errors
    ///
    /// When the prefix has braces, or is empty or longer than 200 bytes.
    pub fn build(self) -> Result<RedisStore, StoreError> {
        let is_time_given = self.is_time_given;
        let shared = Shared {
            names: Names::new(&self.prefix, self.placement, self.secret)?,
            link: self.link,
            is_time_given,
            scripts: if is_time_given { Scripts::with_time() } else { Scripts::shipped() },
            rules: Default::default(),
            since: super::wall_micros(&self.clock),
            clock: self.clock,
            max_claims: self.max_claims,
            lines: Lines::new(self.join_above),
            random: RandomState::new(),
            next_id: AtomicU64::new(0),
        };
        Ok(RedisStore { shared: Arc::new(shared) })
    }
}
