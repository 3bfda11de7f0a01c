//! How a layer is put together.

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
    queued,
    refusal::{RefusalFormat, refusal_setters},
    watch::{Watching, watch_setters},
};
use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use tollgate::{
    Quota, Sometimes, TopKeys,
    store::{self, DynStore, MemoryStore},
    watch::KeyForm,
};

/// Builds a [`RateLimitLayer`]. Nothing is judged before [`build`](Self::build).
///
/// # Examples
///
/// A page for browsers, and JSON for everybody else:
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
    /// The last one counts, and there may be one.
    backends: Vec<Backend>,
    refusals: RefusalFormat,
    jitter: Jitter,
    life: Duration,
    on_store_error: OnStoreError,
    max_wait: Option<Duration>,
    max_waiting: Option<usize>,
    store_timeout: Duration,
    explains: bool,
    /// How many keys of each policy are ranked, and in which form.
    top_keys: Option<(usize, KeyForm)>,
    watching: Watching,
}

impl RateLimitBuilder {
    /// How many keys the memory of a layer's own holds, of all policies together.
    pub const MAX_KEYS: u64 = 1_000_000;

    /// How many requests of one key can run at once by a policy that [settles](super::Policy::settle)
    /// or [charges](super::Policy::charge) by the response, in the memory of a layer's own: each has a
    /// reservation open. A policy without a key has one for all requests.
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
            watching: Watching::default(),
        }
    }

    /// Adds a policy. A request passes if all that count it agree; then all are charged, or none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Keeps the state in this memory, instead of one of the layer's own: so that other layers share
    /// it, or it holds more keys.
    ///
    /// That of a layer's own holds [`MAX_KEYS`](Self::MAX_KEYS) keys. It grows as they come, and when
    /// it is full a new key takes the place of one that is nearest to rest.
    pub fn memory(mut self, store: MemoryStore) -> Self {
        self.backends.push(Backend::Memory(store));
        self
    }

    /// Keeps the state in a store that other processes share.
    pub fn store(mut self, store: impl DynStore + 'static) -> Self {
        self.backends.push(Backend::Shared(Arc::new(store)));
        self
    }

    /// Sets how long a store may take to answer, by default 2 s: then it counts as one that cannot be
    /// asked. What it takes after that is given back. Stores have bounds of their own, which should
    /// be shorter; this is for those that hang all the same. It needs a runtime with timers.
    pub fn store_timeout(mut self, longest: Duration) -> Self {
        self.store_timeout = longest;
        self
    }

    /// Sets what happens when the store cannot be asked, by default that requests pass.
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.on_store_error = on_store_error;
        self
    }

    /// Lets a refused request wait for at most `longest` instead of refusing it at once; what would
    /// take longer is refused at once. By default nobody waits, and neither does anybody where there
    /// is no tokio runtime with timers.
    ///
    /// Whoever waits asks again when its turn is likely to have come, and pays only when it passes.
    /// Requests of one key may overtake each other.
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.max_wait = Some(longest);
        self
    }

    /// Sets how many requests may wait at once, by default 1024. Who comes then is refused at once.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = Some(most);
        self
    }

    /// Makes refused clients wait a little longer than they have to, so that not all come back at
    /// once. By default they are told the exact time.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Adds headers to every response that was counted, for whoever looks for a fault:
    /// `x-tollgate-decision` and, for each policy that was asked, how it stands in
    /// `x-tollgate-policies`. By default they are not there.
    ///
    /// They tell of shadows, too, and nothing that a client has sent. They are meant for tests and for
    /// what is behind your own proxy: whoever sees them knows your limits.
    pub fn debug_headers(mut self) -> Self {
        self.explains = true;
        self
    }

    /// Keeps the heaviest keys of each policy that has a key, by allowed and by denied cost, for
    /// [`RateLimitLayer::top_keys`]. By default none are kept.
    ///
    /// Every key above a share of 1 / `capacity` of the cost is listed: 100 finds what is above 1 %, at
    /// about 70 KiB per processor and policy. The cost is that of the decision; later settlements and
    /// refunds do not change a ranking. Denials of policies in shadow mode count as denied. Keys never
    /// become labels of metrics.
    pub fn top_keys(mut self, capacity: usize, form: KeyForm) -> Self {
        self.top_keys = Some((capacity, form));
        self
    }

    watch_setters!();
    refusal_setters!();

    /// Sets how long a response may take before what was reserved for it stays spent, by default
    /// five minutes: for policies that settle or charge by the response.
    pub fn settle_within(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`LayerError`] names the policy, what is wrong with it, and a way out.
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
        let watch = self.watching.ready(backend.clock(), names);
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
        let is_watched = !watch.is_idle() || limits.iter().any(|limit| limit.heavy_keys.is_some());
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
            watch,
            is_watched,
            misuse,
        };
        Ok(RateLimitLayer { gate: Arc::new(gate) })
    }

    /// Judges what concerns the whole layer.
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

/// Checks the policies, and builds what decides about their requests.
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

/// Judges a policy, and makes what it is asked by.
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

/// Judges what contradicts itself.
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

/// Judges a quota, and the cost that all requests have.
fn check_cost(policy: &Policy, quota: Quota) -> Result<(), Why> {
    let capacity = quota.capacity();
    match policy.cost {
        // Nothing is too dear for it.
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
