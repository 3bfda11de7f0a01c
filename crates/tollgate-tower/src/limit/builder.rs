//! The builder of a rate limit layer.

use super::{
    OnStoreError, RateLimitLayer,
    backend::Backend,
    crowd::Crowd,
    error::{LayerError, Why},
    gate::Gate,
    heavy_keys::HeavyKeys,
    pass::{Limit, Way},
    policy::{Cost, Mode, Policy},
};
use crate::{
    answer::{Jitter, Label, Refusal},
    misuse::Misuse,
    observe::{InstrumentSettings, instrument_setters},
    queued,
    refusal::{RefusalFormat, refusal_setters},
};
use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use tollgate::{
    Quota, Sometimes, TopKeys,
    observe::KeyForm,
    store::{self, DynStore, MemoryStore},
};

/// Builds a [`RateLimitLayer`]. Settings are validated by [`build`](Self::build) only.
///
/// # Examples
///
/// A page for browsers, and JSON for other clients:
///
/// ```
/// use http::header::{ACCEPT, CONTENT_TYPE};
/// use tollgate::Quota;
/// use tollgate_tower::{Policy, RateLimitLayer};
///
/// let limits = RateLimitLayer::builder()
///     .policy(Policy::new("global", Quota::per_second(1000)))
///     .refuse_by(|info, _verdict, mut response| {
///         let accept = info.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
///         if accept.is_some_and(|accept| accept.contains("text/html")) {
///             *response.body_mut() = "<h1>Not so fast</h1>".into();
///             response.headers_mut().insert(CONTENT_TYPE, "text/html".parse().unwrap());
///         }
///         response
///     })
///     .build()?;
/// # let _ = limits;
/// # Ok::<(), tollgate_tower::LayerError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimitBuilder {
    policies: Vec<Policy>,
    /// There may be one; `build` refuses several.
    backends: Vec<Backend>,
    refusals: RefusalFormat,
    jitter: Jitter,
    life: Duration,
    on_store_error: OnStoreError,
    max_wait: Option<Duration>,
    max_waiting: Option<usize>,
    store_timeout: Duration,
    explains: bool,
    /// How many keys of each policy are ranked, and in which form they are shown.
    top_keys: Option<(usize, KeyForm)>,
    instruments: InstrumentSettings,
}

impl RateLimitBuilder {
    /// How many keys the layer's own memory holds, of all policies together.
    pub const MAX_KEYS: u64 = 1_000_000;

    /// How many requests of one key can run at once by a policy that
    /// [settles](super::Policy::settle) or [charges](super::Policy::charge) by the response, in the
    /// layer's own memory: each has an open reservation. A policy without a key counts all requests
    /// under one key.
    pub const MAX_RESERVED_PER_KEY: usize = 1 << 14;

    pub(super) fn new() -> Self {
        Self {
            policies: Vec::new(),
            backends: Vec::new(),
            refusals: RefusalFormat::default(),
            jitter: Jitter::NONE,
            life: Duration::from_secs(300),
            on_store_error: OnStoreError::Allow,
            max_wait: None,
            max_waiting: None,
            store_timeout: Duration::from_secs(2),
            explains: false,
            top_keys: None,
            instruments: InstrumentSettings::default(),
        }
    }

    /// Adds a policy. A request passes if all policies that count it agree; then all are charged,
    /// or none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Keeps the state in this memory instead of the layer's own, so that other layers share it, or
    /// it holds more keys.
    ///
    /// The layer's own memory holds [`MAX_KEYS`](Self::MAX_KEYS) keys. It grows with the number of
    /// keys. When it is full, a new key takes the place of one that is nearest to a full bucket.
    pub fn memory(mut self, store: MemoryStore) -> Self {
        self.backends.push(Backend::Memory(store));
        self
    }

    /// Keeps the state in a store that several processes share.
    pub fn store(mut self, store: impl DynStore + 'static) -> Self {
        self.backends.push(Backend::Shared(Arc::new(store)));
        self
    }

    /// Sets how long a store may take to answer, by default 2 s; after that it counts as a store
    /// that cannot answer, and the permits of a later answer are given back. Stores have timeouts
    /// of their own, which should be shorter; this one is for stores that hang anyway. It needs a
    /// runtime with timers.
    pub fn store_timeout(mut self, longest: Duration) -> Self {
        self.store_timeout = longest;
        self
    }

    /// Sets how to decide if the store cannot answer; by default requests pass.
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.on_store_error = on_store_error;
        self
    }

    /// Lets a refused request wait for at most `longest` instead of refusing it at once. A request
    /// that would wait longer is refused at once. By default no request waits, and none waits
    /// without a tokio runtime with timers.
    ///
    /// A waiting request tries again when it is likely to pass, and is charged only when it passes.
    /// Requests of one key may overtake each other.
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.max_wait = Some(longest);
        self
    }

    /// Sets how many requests may wait at once, by default 1024. Further requests are refused at
    /// once.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = Some(most);
        self
    }

    /// Makes refused clients wait a little longer than they have to, so that they do not all come
    /// back at once. By default they get the exact time.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Adds headers for troubleshooting to every response that was counted: `x-tollgate-decision`
    /// and, with the state of each policy that took part, `x-tollgate-policies`. By default they
    /// are absent.
    ///
    /// They also show policies in shadow mode, but nothing that a client has sent. They are meant
    /// for tests and for services behind your own proxy: anyone who sees them knows your limits.
    pub fn debug_headers(mut self) -> Self {
        self.explains = true;
        self
    }

    /// Ranks the heaviest keys of each policy that has a key, by allowed and by denied cost, for
    /// [`RateLimitLayer::top_keys`]. By default keys are not ranked.
    ///
    /// Every key above a share of 1 / `capacity` of the cost is listed: 100 finds the keys above
    /// 1 %, at about 70 KiB per processor and policy. The cost is that of the decision; later
    /// settlements and refunds do not change a ranking. Denials of policies in shadow mode count as
    /// denied. Keys never become metric labels.
    pub fn top_keys(mut self, capacity: usize, form: KeyForm) -> Self {
        self.top_keys = Some((capacity, form));
        self
    }

    instrument_setters!();
    refusal_setters!();

    /// Sets how long a response may take until its reservation stays spent, by default five
    /// minutes: for policies that settle or charge by the response.
    pub fn settle_within(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`LayerError`] names the policy, its fault, and a way out.
    #[track_caller]
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        self.check()?;
        let limits = ready_all(self.policies, self.top_keys)?;
        let reserves = limits.iter().any(|limit| limit.policy.reserves());
        let own = || {
            let store = MemoryStore::builder().max_keys(Self::MAX_KEYS);
            let store = store.max_reservations_per_key(Self::MAX_RESERVED_PER_KEY).build();
            Backend::Memory(store.unwrap_or_default())
        };
        let is_elsewhere = !self.backends.is_empty();
        let backend = self.backends.into_iter().next().unwrap_or_else(own);
        let names = limits.iter().flat_map(|limit| &limit.ways).map(|way| way.label.name());
        let instruments = self.instruments.ready(backend.clock(), names);
        let names = limits.iter().map(|limit| &*limit.policy.name);
        let misuse = Misuse::new(names, is_elsewhere);
        if self.max_wait.is_some() || !backend.is_memory() {
            queued::has_queue();
        }
        let is_light = backend.is_memory()
            && !reserves
            && !self.explains
            && limits.len() == 1
            && limits.iter().all(|limit| limit.policy.mode == Mode::Enforce);
        let failures = Sometimes::interval(Duration::from_secs(1)).clock(backend.clock().clone());
        let is_observed =
            !instruments.is_idle() || limits.iter().any(|limit| limit.heavy_keys.is_some());
        let gate = Gate {
            is_light,
            backend,
            limits,
            refusals: self.refusals,
            jitter: self.jitter,
            life: self.life,
            on_store_error: self.on_store_error,
            max_wait: self.max_wait.unwrap_or_default(),
            crowd: Crowd::new(self.max_waiting.unwrap_or(1024)),
            left_behind: AtomicUsize::new(0),
            store_timeout: self.store_timeout,
            reserves,
            explains: self.explains,
            failures,
            instruments,
            is_observed,
            misuse,
        };
        Ok(RateLimitLayer { gate: Arc::new(gate) })
    }

    /// Checks the settings of the whole layer.
    fn check(&self) -> Result<(), LayerError> {
        let why = if self.policies.is_empty() {
            Why::NoPolicy
        } else if self.policies.len() > tollgate::Limits::MOST {
            Why::TooMany { count: self.policies.len() }
        } else if self.life.is_zero() {
            Why::NoLife
        } else if self.max_wait.is_some_and(|longest| longest.is_zero()) {
            Why::ZeroWait
        } else if self.max_waiting.is_some_and(|most| most == 0 || self.max_wait.is_none()) {
            Why::NobodyWaits
        } else if self.store_timeout.is_zero() {
            Why::NoTime
        } else if self.backends.len() > 1 {
            Why::TwoStores
        } else if let Some((capacity, _)) = self.top_keys
            && !(1..=TopKeys::CAPACITY_MAX).contains(&capacity)
        {
            Why::TopKeys { capacity }
        } else {
            return Ok(());
        };
        Err(LayerError::new("", why))
    }
}

/// Checks the policies, and builds their limits.
fn ready_all(
    policies: Vec<Policy>,
    top_keys: Option<(usize, KeyForm)>,
) -> Result<Vec<Limit>, LayerError> {
    let mut limits: Vec<Limit> = Vec::new();
    for policy in policies {
        let first = limits.last().map_or(0, |last| last.first + last.ways.len());
        let mut limit = ready(policy, first)?;
        limit.heavy_keys = top_keys
            .filter(|_| !limit.policy.key.is_global())
            .map(|(capacity, form)| HeavyKeys::new(capacity, form));
        let mut known = limits.iter().flat_map(|known| &known.ways);
        if known.any(|known| limit.ways.iter().any(|way| way.label.name() == known.label.name())) {
            return Err(LayerError::new(&limit.policy.name, Why::SameName));
        }
        limits.push(limit);
    }
    Ok(limits)
}

/// Checks a policy, and builds its limit.
fn ready(policy: Policy, first: usize) -> Result<Limit, LayerError> {
    let error = |why| LayerError::new(&policy.name, why);
    policy.key.check().map_err(|key| error(Why::Key(key)))?;
    if let Mode::Percent(percent @ 101..) = policy.mode {
        return Err(error(Why::Percent { percent }));
    }
    if let Mode::Percent(1..=99) = policy.mode
        && policy.key.is_global()
    {
        return Err(error(Why::PercentOfOne));
    }
    if policy.tier.is_some() == policy.tiers.is_empty() {
        return Err(error(Why::Tiers));
    }
    check_words(&policy).map_err(error)?;
    let own = (policy.name.to_string(), policy.quota);
    let tiers =
        policy.tiers.iter().map(|(tier, quota)| (format!("{}/{tier}", policy.name), *quota));
    let mut ways: Vec<Way> = Vec::new();
    for (name, quota) in std::iter::once(own).chain(tiers) {
        if ways.iter().any(|way| way.label.name() == name) {
            return Err(error(Why::SameName));
        }
        let stored = store::Policy::with_algorithm(&*name, quota, policy.algorithm);
        let stored = stored.map_err(|quota| error(Why::Quota(quota)))?;
        check_cost(&policy, quota).map_err(error)?;
        let label = Label::builder(name, quota).algorithm(policy.algorithm);
        let label = label.unit(policy.unit_told()).refusal(policy.refusal).build();
        ways.push(Way { policy: stored, label: label.map_err(|label| error(Why::Label(label)))? });
    }
    Ok(Limit { policy, ways, first, heavy_keys: None })
}

/// Checks for settings that contradict each other.
fn check_words(policy: &Policy) -> Result<(), Why> {
    use Refusal::{AbnormalUsage, QuotaExceeded, ReducedCapacity};
    if policy.tiers.iter().any(|(name, _)| name.is_empty()) {
        Err(Why::UnnamedTier)
    } else if policy.costs > 1 {
        Err(Why::Costs { count: policy.costs })
    } else if policy.charge.is_never() {
        Err(Why::NeverCharged)
    } else if !matches!(policy.refusal, QuotaExceeded | ReducedCapacity | AbnormalUsage) {
        Err(Why::Refusal { refusal: policy.refusal })
    } else {
        Ok(())
    }
}

/// Checks a quota, and the cost that all requests have.
fn check_cost(policy: &Policy, quota: Quota) -> Result<(), Why> {
    let capacity = quota.capacity();
    match policy.cost {
        // An unlimited quota can pay any cost.
        Cost::Fixed(1..) if quota.is_unlimited() => Ok(()),
        _ if capacity == 0 && !quota.is_unlimited() => Err(Why::Nothing),
        Cost::Fixed(0) => Err(Why::Free),
        Cost::Fixed(cost) if cost > capacity => Err(Why::TooDear { cost, capacity }),
        _ => Ok(()),
    }
}

impl fmt::Debug for RateLimitBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
