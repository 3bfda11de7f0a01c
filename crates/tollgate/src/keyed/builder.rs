//! The builder of a keyed limiter.

use super::{
    KeyedError, KeyedLimiter, Top, TopKeys, Typed,
    claims::Claims,
    core::{ASSIGNED, Core, INSTRUMENTED, NAMED, OBSERVED},
    fingerprint::Seed,
    overrides::{Escalation, Overrides},
    quotas::{Assign, Assigned, check},
    rule_cell::RuleCell,
};
use crate::{
    Limiter, LimiterBuilder, Outcome, Quota,
    algorithm::AnyRule,
    limiter::Waiting,
    sync::{Arc, AtomicU64, Count, Flags, Mutex},
    table::{Size, Tables},
};
use std::{collections::BTreeMap, fmt, hash::Hash, time::Duration};

/// What happens to a new key when the table is full of live ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum WhenFull {
    /// It replaces the entry that is nearest to full, of at least eight. The default.
    ///
    /// Such an entry has the least to lose: its key starts full again and gains at most what it had
    /// used. A flood of fresh keys replaces itself, and keys that are deep in debt stay in the table.
    #[default]
    Evict,
    /// It is refused, with [`Reason::Saturated`](crate::Reason::Saturated). Nobody loses state.
    Refuse,
    /// All such keys share one budget of this quota.
    Share(Quota),
}

/// Builds a [`KeyedLimiter`]. Nothing is judged before `build`.
///
/// # Examples
///
/// ```
/// use tollgate::{KeyedLimiter, Quota, WhenFull};
///
/// let per_address = KeyedLimiter::<std::net::IpAddr>::builder(Quota::per_minute(60))
///     .bounded(100_000)
///     .when_full(WhenFull::Share(Quota::per_second(1000)))
///     .build()?;
/// assert!(per_address.bytes() <= 24 * 100_000 + 32 * 1024);
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
pub type KeyedBuilder<K> = LimiterBuilder<KeyedOptions<K>>;

/// What only a keyed limiter can be given.
pub struct KeyedOptions<K: ?Sized> {
    size: Size,
    when_full: WhenFull,
    tiers: Vec<(Box<str>, Quota)>,
    assign: Option<Assign<K>>,
    max_notes: u64,
    escalation: Option<Escalation>,
    seed: Option<Seed>,
    is_fast: bool,
    top: Option<Top<K>>,
}

impl<K: ?Sized> Waiting for KeyedOptions<K> {}

impl<K: ?Sized> Default for KeyedOptions<K> {
    fn default() -> Self {
        Self {
            size: Size::default(),
            when_full: WhenFull::default(),
            tiers: Vec::new(),
            assign: None,
            max_notes: 1 << 20,
            escalation: None,
            seed: None,
            is_fast: false,
            top: None,
        }
    }
}

/// The most keys a table can be made for: 96 GiB of slots.
pub(super) const KEYS_MAX: u64 = 1 << 32;

impl<K: Hash + ?Sized> KeyedBuilder<K> {
    /// Holds at most so many keys, and allocates the memory for them at once: 22 bytes each, and 100 KiB. By
    /// default the table grows.
    pub fn bounded(mut self, keys: u64) -> Self {
        self.more.size.bounded = Some(keys);
        self
    }

    /// Sets the secret that fingerprints depend on: one that outlives the process, for
    /// [`save`](KeyedLimiter::save) and [`restore`](KeyedLimiter::restore). By default each limiter
    /// draws its own.
    pub fn seed(mut self, seed: Seed) -> Self {
        self.more.seed = Some(seed);
        self
    }

    /// Uses a faster fingerprint than SipHash, for keys that nobody chooses to harm: numbers of your
    /// own users, routes, shards. Keys that strangers choose (addresses, headers, tokens) stay with
    /// the default: an attacker who can watch a limiter closely might learn to make two keys share a budget.
    pub fn fast_fingerprints(mut self) -> Self {
        self.more.is_fast = true;
        self
    }

    /// Lets the growing table hold at most so many keys; for a moment one more for each thread that
    /// brings a new key while all others are being worked on. By default there is no such bound.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.more.size.cap = Some(keys);
        self
    }

    /// Says what happens to a new key when all entries are live, by default [`WhenFull::Evict`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.more.when_full = when_full;
        self
    }

    /// Forgets keys that nobody asked for during `max_idle`, whatever their state is: for sliding
    /// logs, whose states are large, and for quotas whose fresh keys are not full. By default keys
    /// are forgotten only when they are at rest.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.more.size.max_idle = Some(max_idle);
        self
    }

    /// Adds a named quota, for [`quota_by`](Self::quota_by) and [`KeyedLimiter::assign`].
    pub fn tier(mut self, name: impl Into<Box<str>>, quota: Quota) -> Self {
        self.more.tiers.push((name.into(), quota));
        self
    }

    /// Chooses the quota of each key by a function. Its answer is kept for `life`.
    ///
    /// The calling thread runs the function, and several threads may run it at once.
    /// An answer that cannot be used (a tier that is not there, a quota that makes no sense) counts
    /// as [`Assigned::Default`], and [`TableCounts::unusable_quotas`](super::TableCounts) goes up.
    pub fn quota_by(
        mut self,
        life: Duration,
        choose: impl Fn(&K) -> Assigned + Send + Sync + 'static,
    ) -> Self {
        self.more.assign = Some(Assign { life, choose: Box::new(choose) });
        self
    }

    /// Sets how many keys can have an override, a block, a place on a list, strikes or a cached
    /// quota, by default 1048576: about 100 bytes each, taken when used.
    pub fn max_notes(mut self, max_notes: u64) -> Self {
        self.more.max_notes = max_notes;
        self
    }

    /// Blocks keys that are refused again and again. Off by default.
    pub fn escalate(mut self, escalation: Escalation) -> Self {
        self.more.escalation = Some(escalation);
        self
    }

    /// Keeps the names of the heaviest keys, for [`KeyedLimiter::top_keys`]: about `capacity` of
    /// those that were allowed most, and as many of those that were denied most. Off by default.
    pub fn top_keys(mut self, capacity: usize) -> Self
    where
        K: fmt::Display,
    {
        let note = |top: &TopKeys, key: &K, fingerprint: u64, (outcome, cost): (Outcome, u64)| {
            top.record(&key, fingerprint, outcome, cost);
        };
        self.more.top = Some(Top { keys: TopKeys::new(capacity), note });
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When a quota makes no sense for keys, or the parts do not go together.
    pub fn build(self) -> Result<KeyedLimiter<K>, KeyedError> {
        self.check()?;
        let Self { quota, algorithm, clock, name, instruments, queue_rules, more } = self;
        let KeyedOptions { size, when_full, tiers, .. } = more;
        let clock = clock.unwrap_or_default();
        let (epoch, now) = (clock.wall_offset(), clock.now());
        let make = |quota: Quota| -> Result<Arc<RuleCell>, KeyedError> {
            check(&quota, size.max_idle)?;
            let rule = AnyRule::new(algorithm, &quota, epoch)?;
            Ok(Arc::new(RuleCell::new(quota, rule, now)))
        };
        let default = make(quota)?;
        let mut named = BTreeMap::new();
        for (name, quota) in tiers {
            if named.insert(name.clone(), make(quota)?).is_some() {
                return Err(KeyedError::TierTwice(name.into()));
            }
        }
        let overflow = match when_full {
            WhenFull::Share(quota) => {
                let shared = Limiter::builder(quota).clock(clock.clone());
                Some(LimiterBuilder { queue_rules, ..shared }.build()?)
            }
            _ => None,
        };
        let seed = more.seed.unwrap_or_else(Seed::random);
        let is_observed = instruments.as_ref().is_some_and(|instruments| instruments.is_observed());
        let flag = |is_set, flag: u8| if is_set { flag } else { 0 };
        let mode = flag(instruments.is_some(), INSTRUMENTED)
            | flag(is_observed || more.escalation.is_some(), OBSERVED)
            | flag(more.assign.is_some(), ASSIGNED)
            | flag(more.top.is_some(), NAMED);
        let core = Core {
            id: Core::next_id(),
            tables: Tables::new(Size { evicts_live: when_full == WhenFull::Evict, ..size }),
            epoch,
            since: now,
            early: clock.early(),
            clock,
            seed: if more.is_fast { seed.fast() } else { seed },
            algorithm,
            name,
            default,
            mode: Flags::new(mode),
            tiers: named,
            policies: Mutex::default(),
            changes: AtomicU64::new(0),
            overrides: Overrides::new(more.max_notes),
            claims: Claims::default(),
            queue_rules,
            waiting: Count::default(),
            due_times: Mutex::default(),
            overflow,
            escalation: more.escalation,
            saturated: AtomicU64::new(0),
            unusable: AtomicU64::new(0),
            instruments,
        };
        let typed = Typed { assign: more.assign, top: more.top };
        Ok(KeyedLimiter { core: Arc::new(core), typed: Arc::new(typed) })
    }

    fn check(&self) -> Result<(), KeyedError> {
        let Size { bounded, cap, .. } = self.more.size;
        if bounded.is_some() && cap.is_some() {
            return Err(KeyedError::TwoTables);
        }
        if let Some(keys) = bounded.or(cap)
            && !(1..=KEYS_MAX).contains(&keys)
        {
            return Err(KeyedError::Capacity { keys, most: KEYS_MAX });
        }
        self.more.escalation.as_ref().map_or(Ok(()), Escalation::check)
    }
}

impl<K: ?Sized> fmt::Debug for KeyedOptions<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedOptions")
            .field("size", &self.size)
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}
