//! How a layer is put together, and what is wrong with it.

use super::{
    OnStoreError, RateLimitLayer,
    gate::{Backend, Gate, Hook, Limit},
    policy::{Mode, Policy},
};
use crate::{
    answer::{Body, Headers, Label, LabelError, Verdict},
    key::KeyError,
};
use bytes::Bytes;
use http::Response;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{
    QuotaError,
    store::{self, DynStore, MemoryStore},
};

/// Builds a [`RateLimitLayer`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimitBuilder {
    policies: Vec<Policy>,
    backend: Backend,
    headers: Headers,
    body: Body,
    hook: Option<Hook>,
    life: Duration,
    on_store_error: OnStoreError,
    max_wait: Duration,
}

impl RateLimitBuilder {
    pub(super) fn new() -> Self {
        Self {
            policies: Vec::new(),
            backend: Backend::Memory(MemoryStore::new()),
            headers: Headers::new(),
            body: Body::Problem,
            hook: None,
            life: Duration::from_secs(300),
            on_store_error: OnStoreError::Allow,
            max_wait: Duration::ZERO,
        }
    }

    /// Adds a policy. A request passes if all that count it agree; then all are charged, or none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Keeps the state in this memory, instead of one of the layer's own: so that other layers share
    /// it, or its size is bounded.
    pub fn memory(mut self, store: MemoryStore) -> Self {
        self.backend = Backend::Memory(store);
        self
    }

    /// Keeps the state in a store that other processes share.
    pub fn store(mut self, store: impl DynStore + 'static) -> Self {
        self.backend = Backend::Shared(Arc::new(store));
        self
    }

    /// Sets what happens when the store cannot be asked, by default that requests pass.
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.on_store_error = on_store_error;
        self
    }

    /// Lets a refused request wait for at most `longest`, in a tokio runtime with timers, instead of
    /// refusing it at once; what would take longer is refused at once. By default nobody waits.
    ///
    /// Whoever waits asks again when its time has come, and pays only when it passes. There is no
    /// queue: requests of one key may overtake each other.
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.max_wait = longest;
        self
    }

    /// Sets which headers clients are told, by default `RateLimit` and `RateLimit-Policy`.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the form of a refusal's body, by default a problem in JSON.
    pub fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// Changes the response to refused requests.
    pub fn refuse_with(
        mut self,
        hook: impl Fn(&Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

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
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        let Self { policies, backend, headers, body, hook, life, on_store_error, max_wait } = self;
        if policies.is_empty() {
            return Err(LayerError::new("", Why::NoPolicy));
        }
        if policies.len() > tollgate::Limits::MOST {
            return Err(LayerError::new("", Why::TooMany { count: policies.len() }));
        }
        if life.is_zero() {
            return Err(LayerError::new("", Why::NoLife));
        }
        let mut limits: Vec<Limit> = Vec::new();
        for policy in policies {
            if limits.iter().any(|known| known.policy.name == policy.name) {
                return Err(LayerError::new(&policy.name, Why::SameName));
            }
            limits.push(ready(policy)?);
        }
        let reserves = limits.iter().any(|limit| limit.policy.reserves());
        let gate =
            Gate { backend, limits, headers, body, hook, life, on_store_error, max_wait, reserves };
        Ok(RateLimitLayer { gate: Arc::new(gate) })
    }
}

/// Judges a policy, and makes what it is asked by.
fn ready(policy: Policy) -> Result<Limit, LayerError> {
    let error = |why| LayerError::new(&policy.name, why);
    policy.key.check().map_err(|key| error(Why::Key(key)))?;
    if let Mode::Percent(percent @ 101..) = policy.mode {
        return Err(error(Why::Percent { percent }));
    }
    if policy.tier.is_some() == policy.tiers.is_empty() {
        return Err(error(Why::Tiers));
    }
    let own = (policy.name.to_string(), policy.quota);
    let tiers =
        policy.tiers.iter().map(|(tier, quota)| (format!("{}/{tier}", policy.name), *quota));
    let mut ways = Vec::new();
    for (name, quota) in std::iter::once(own).chain(tiers) {
        let stored = store::Policy::with_algorithm(&*name, quota, policy.algorithm);
        let label = Label::builder(name, quota).algorithm(policy.algorithm).build();
        ways.push((
            stored.map_err(|quota| error(Why::Quota(quota)))?,
            label.map_err(|label| error(Why::Label(label)))?,
        ));
    }
    Ok(Limit { policy, ways })
}

impl fmt::Debug for RateLimitBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// What is wrong with a layer.
#[derive(Debug)]
pub struct LayerError {
    policy: Box<str>,
    why: Why,
}

#[derive(Debug)]
enum Why {
    NoPolicy,
    TooMany { count: usize },
    SameName,
    NoLife,
    Percent { percent: u8 },
    Tiers,
    Key(KeyError),
    Quota(QuotaError),
    Label(LabelError),
}

impl LayerError {
    fn new(policy: &str, why: Why) -> Self {
        Self { policy: policy.into(), why }
    }

    /// Returns the code, which never changes: `TG-L01`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match &self.why {
            Why::NoPolicy => "TG-L01",
            Why::TooMany { .. } => "TG-L02",
            Why::SameName => "TG-L03",
            Why::NoLife => "TG-L04",
            Why::Percent { .. } => "TG-L05",
            Why::Tiers => "TG-L06",
            Why::Key(error) => error.code(),
            Why::Quota(_) => "TG-L07",
            Why::Label(_) => "TG-L08",
        }
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.policy.is_empty() {
            write!(f, "policy \"{}\": ", self.policy)?;
        }
        match &self.why {
            Why::NoPolicy => f.write_str("a layer without a policy limits nothing; add one")?,
            Why::TooMany { count } => write!(
                f,
                "{count} policies are more than the {} that one decision can hold; use fewer",
                tollgate::Limits::MOST
            )?,
            Why::SameName => f.write_str(
                "two policies of one name would share their counts; give each a name of its own",
            )?,
            Why::NoLife => f.write_str(
                "`settle_within` is zero, so nothing could be settled; give the longest response",
            )?,
            Why::Percent { percent } => {
                write!(f, "{percent} of a hundred keys is too many; give 0 to 100")?;
            }
            Why::Tiers => f.write_str(
                "tiers need both `tier`, which names them, and `tier_by`, which chooses",
            )?,
            Why::Key(error) => return error.fmt(f),
            Why::Quota(error) => error.fmt(f)?,
            Why::Label(error) => error.fmt(f)?,
        }
        write!(f, " ({})", self.code())
    }
}

impl std::error::Error for LayerError {}
