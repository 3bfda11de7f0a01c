//! Demands become one script call per slot, and replies become decisions.

mod builder;
mod calls;
mod joining;
mod keys;
mod many;
mod reserving;
mod rule;
mod scripts;
mod seen;
mod together;

pub use builder::RedisStoreBuilder;
pub use keys::Placement;

use crate::{Command, Link, Reply, Route, Script};
use calls::Wanted;
use keys::Names;
use rule::Rule;
use scripts::Scripts;
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Decision, Quota,
    store::{
        Demand, Entered, PermitId, Permits, Policy, ReservationId, Reserved, Store, StoreError,
    },
};

/// A store in Redis or Valkey. Clones are the same store.
///
/// # Examples
///
/// ```no_run
/// use tollgate::{Quota, store::{Demand, Policy, Store}};
/// use tollgate_redis::{Link, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::new(Link::open("redis://localhost".parse()?)?)?;
/// let users = Policy::new("users", Quota::per_minute(60))?;
/// let decision = store.acquire(&mut [Demand::new(&users, b"alice", 1)]).await?;
/// assert!(decision.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    clock: Clock,
    /// The scripts get the time of the clock, and not that of the server: in tests.
    is_time_given: bool,
    scripts: &'static Scripts,
    names: Names,
    /// By name: what a policy is in Redis.
    rules: RwLock<HashMap<Box<str>, Known>>,
    /// Since when the store is there.
    since: u64,
    max_claims: u32,
    lines: joining::Lines,
    random: RandomState,
    next_id: AtomicU64,
}

/// A policy met before.
struct Known {
    quota: Quota,
    algorithm: Algorithm,
    rule: Arc<Rule>,
}

/// How many policies are remembered; others are worked out at each call.
const RULES_MAX: usize = 10_000;
/// How long states live beyond their time if that is given.
const GRACE_MS: u64 = 3_600_000;

impl RedisStore {
    /// Returns a store on a link, with the defaults of its [builder](Self::builder).
    ///
    /// # Errors
    ///
    /// Never, with the defaults.
    pub fn new(link: Link) -> Result<Self, StoreError> {
        Self::builder(link).build()
    }

    /// Starts a store with another prefix, placement or clock.
    pub fn builder(link: Link) -> RedisStoreBuilder {
        RedisStoreBuilder::new(link)
    }

    /// Returns the way to the servers.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.shared.link
    }

    /// Returns what a demand's policy is in Redis.
    fn rule(&self, demand: &Demand<'_>) -> Result<Arc<Rule>, StoreError> {
        let policy = demand.policy();
        if policy.is_ad_hoc() {
            let (quota, own) = (demand.quota(), policy.quota());
            if !demand.has_own_quota() {
                return Err(StoreError::invalid(format!(
                    "policy \"{}\" has no quota of its own; give one with Demand::ad_hoc",
                    policy.name()
                )));
            }
            debug_assert!(policy.algorithm() == Algorithm::Gcra || quota.period() == own.period());
            return self.fresh_rule(&quota, policy.algorithm(), 0).map(Arc::new);
        }
        self.policy_rule(policy)
    }

    fn policy_rule(&self, policy: &Policy) -> Result<Arc<Rule>, StoreError> {
        let (quota, algorithm) = (policy.quota(), policy.algorithm());
        let rules = self.shared.rules.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(policy.name())
            && (known.quota, known.algorithm) == (quota, algorithm)
        {
            return Ok(known.rule.clone());
        }
        drop(rules);
        let mut rules = self.shared.rules.write().unwrap_or_else(PoisonError::into_inner);
        let is_kept = rules.len() < RULES_MAX || rules.contains_key(policy.name());
        let since = if is_kept { wall_micros(&self.shared.clock) } else { self.shared.since };
        let rule = Arc::new(self.fresh_rule(&quota, algorithm, since)?);
        if is_kept {
            rules.insert(policy.name().into(), Known { quota, algorithm, rule: rule.clone() });
        }
        Ok(rule)
    }

    fn fresh_rule(
        &self,
        quota: &Quota,
        algorithm: Algorithm,
        since: u64,
    ) -> Result<Rule, StoreError> {
        let grace = if self.shared.is_time_given { GRACE_MS } else { 0 };
        Rule::new(quota, algorithm, since, grace)
    }

    /// Starts a call, with capacity for the time if the call must send it.
    fn call(&self, script: &Script, keys: usize, arguments: usize) -> Command {
        script.call(keys, arguments + usize::from(self.shared.is_time_given))
    }

    async fn send(
        &self,
        slot: u16,
        script: &Script,
        mut command: Command,
    ) -> Result<Reply, StoreError> {
        if self.shared.is_time_given {
            command.push_number(wall_micros(&self.shared.clock));
        }
        Ok(self.shared.link.run(Route::Slot(slot), script, command).await?)
    }

    /// Returns an unpredictable number below 2^50.
    fn random(&self) -> u64 {
        // ORDERING: Relaxed. A number that is given out once.
        let next = self.shared.next_id.fetch_add(1, Relaxed);
        self.shared.random.hash_one(next) & ((1 << keys::ID_BITS) - 1)
    }

    /// Checks how many demands there are.
    fn check(demands: &[Demand<'_>]) -> Result<(), StoreError> {
        match demands.len() {
            1..=tollgate::Limits::MOST => Ok(()),
            0 => Err(StoreError::invalid("a decision needs at least one demand")),
            count => Err(StoreError::invalid(format!(
                "{count} demands in one decision are too many; use at most {}",
                tollgate::Limits::MOST
            ))),
        }
    }
}

/// Returns the microseconds since the Unix epoch.
fn wall_micros(clock: &Clock) -> u64 {
    u64::try_from(clock.to_wall(clock.now()).as_micros()).unwrap_or(u64::MAX)
}

impl Store for RedisStore {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.decide(demands, Wanted::Take).await
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.decide(demands, Wanted::Look).await
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        self.force_one(demand).await
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        self.refund_one(demand).await
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        let state = self.state(demand)?;
        let mut command = Command::new("DEL", 2);
        command.push(&state.name);
        command.push(&Names::ledger(&state.name));
        self.shared.link.call(Route::Slot(state.slot), command).await?;
        Ok(())
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        self.reserve_all(demands, life).await
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        self.settle_all(id, actual).await
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        self.lease_one(demand, life).await
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        self.up_to_one(demand).await
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        self.enter_one(permits, life).await
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        Ok(self.on_permits(permits, "renew", id, life).await?.0)
    }

    async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
        Ok(self.on_permits(permits, "leave", id, Duration::ZERO).await?.0)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("link", &self.shared.link)
            .field("names", &self.shared.names)
            .finish_non_exhaustive()
    }
}
