//! One limit of a layer: its quota, its key and the cost of a request.

use super::settle::{Charge, Settle};
use crate::{
    Info,
    answer::{Refusal, Unit},
    key::Key,
};
use http::{Version, header};
use std::{fmt, sync::Arc};
use tollgate::{Algorithm, Quota};

/// A closure that reads a request.
pub(super) type Look<T> = Arc<dyn Fn(&Info<'_>) -> T + Send + Sync>;

/// A named limit of a [`RateLimitLayer`](super::RateLimitLayer): a quota, a key and a cost.
///
/// # Examples
///
/// ```
/// use tollgate::Quota;
/// use tollgate_tower::{Policy, key::Key};
///
/// let writes = Policy::new("writes", Quota::per_minute(60))
///     .key(Key::header("x-api-key").or_anonymous())
///     .only(|info| info.method() != http::Method::GET)
///     .cost_by(|info| if info.uri().path().starts_with("/bulk") { 10 } else { 1 });
/// # let _ = writes;
/// ```
#[must_use = "a policy limits nothing until it is given to a layer"]
#[derive(Clone)]
pub struct Policy {
    pub(super) name: Box<str>,
    pub(super) quota: Quota,
    pub(super) algorithm: Algorithm,
    pub(super) key: Key,
    pub(super) cost: Cost,
    /// How often a cost was given.
    pub(super) costs: usize,
    pub(super) applies: Option<Look<bool>>,
    pub(super) tier: Option<Look<Option<usize>>>,
    pub(super) tiers: Vec<(Box<str>, Quota)>,
    pub(super) mode: Mode,
    pub(super) settle: Option<Settle>,
    pub(super) charge: Charge,
    /// The user's setting.
    pub(super) unit: Option<Unit>,
    pub(super) refusal: Refusal,
}

/// The cost of a request.
#[derive(Clone)]
pub(super) enum Cost {
    Fixed(u64),
    By(Look<u64>),
    /// The length of its body by its headers; `unknown` if they do not have it.
    ContentLength {
        unknown: u64,
    },
}

/// Whether a policy is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Denies requests over the quota.
    #[default]
    Enforce,
    /// Counts and settles as if it were enforced, but lets every request pass.
    /// [Observers](super::RateLimitBuilder::observer) and outer layers (by
    /// [`OverLimit`](super::OverLimit)) see the requests over the quota; clients do not.
    Shadow,
    /// As [`Shadow`](Self::Shadow), and marks each request over the quota: the service finds an
    /// [`OverLimit`](super::OverLimit) in its extensions and can, for example, answer from a cache.
    Tag,
    /// Enforces the policy for this percentage of keys; for the others it is in shadow mode. A key
    /// always stays on the same side.
    Percent(u8),
}

impl Mode {
    /// Returns the name, as in `x-tollgate-policies`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Tag => "tag",
            Self::Percent(_) => "percent",
        }
    }

    /// Tells whether any request is refused.
    pub(super) const fn can_refuse(self) -> bool {
        matches!(self, Self::Enforce | Self::Percent(_))
    }
}

impl Policy {
    /// Returns a policy that counts all requests together, one permit each.
    pub fn new(name: impl Into<Box<str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            algorithm: Algorithm::default(),
            key: Key::global(),
            cost: Cost::Fixed(1),
            costs: 0,
            applies: None,
            tier: None,
            tiers: Vec::new(),
            mode: Mode::Enforce,
            settle: None,
            charge: Charge::always(),
            unit: None,
            refusal: Refusal::QuotaExceeded,
        }
    }

    /// Counts each key by itself.
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets the algorithm, by default [`Algorithm::Gcra`].
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets the cost of each request, by default 1. A policy has one cost: set this,
    /// [`cost_by`](Self::cost_by) or [`cost_by_length`](Self::cost_by_length), once.
    pub fn cost(self, cost: u64) -> Self {
        self.costs(Cost::Fixed(cost))
    }

    /// Computes the cost of a request. A request of cost zero is not counted.
    pub fn cost_by(self, cost: impl Fn(&Info<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.costs(Cost::By(Arc::new(cost)))
    }

    /// Charges a request for the bytes of its body, by its `Content-Length`; or `unknown` if it has
    /// a body without a `Content-Length`.
    ///
    /// In HTTP/1, a request without a length has no body, unless it is `chunked`. In HTTP/2 and
    /// later the headers do not show whether there is a body: a `GET`, `HEAD`, `OPTIONS` or `TRACE`
    /// counts as having none, and every other request as having one of unknown length.
    pub fn cost_by_length(self, unknown: u64) -> Self {
        self.costs(Cost::ContentLength { unknown })
    }

    fn costs(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self.costs = self.costs.saturating_add(1);
        self
    }

    /// Sets the unit that one permit stands for: bytes, tokens. Clients see it. By default it is a
    /// byte ([`Unit::ContentBytes`]) if the cost is the length of a body ([`cost_by_length`],
    /// [`Settle::body_bytes`]), otherwise a request.
    ///
    /// [`cost_by_length`]: Self::cost_by_length
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Sets why clients are refused when the quota is used up, by default
    /// [`Refusal::QuotaExceeded`] (429): it is the client's own share. For a limit that all clients
    /// share, [`Refusal::ReducedCapacity`] (503) is better: the client that comes last is not at
    /// fault.
    ///
    /// If several policies refuse, the one with the longest wait gives the reason.
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Counts only the requests for which this is true, for example to skip some, or for one method
    /// or route.
    pub fn only(mut self, applies: impl Fn(&Info<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.applies = Some(Arc::new(applies));
        self
    }

    /// Adds a tier with a quota of its own; see [`tier_by`](Self::tier_by).
    pub fn tier(mut self, name: impl Into<Box<str>>, quota: Quota) -> Self {
        self.tiers.push((name.into(), quota));
        self
    }

    /// Chooses the tier of a request, by its number in the order in which they were added; `None`
    /// is the policy's own quota.
    pub fn tier_by(
        mut self,
        tier: impl Fn(&Info<'_>) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        self.tier = Some(Arc::new(tier));
        self
    }

    /// Sets whether the policy is in force, by default [`Mode::Enforce`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Corrects the cost when the response is there: see [`Settle`].
    ///
    /// The first charge is then an estimate, which is reserved.
    pub fn settle(mut self, settle: Settle) -> Self {
        self.settle = Some(settle);
        self
    }

    /// Decides which responses are charged at all: see [`Charge`].
    pub fn charge(mut self, charge: Charge) -> Self {
        self.charge = charge;
        self
    }

    /// Tells whether the response may give permits back, or settle a cost.
    pub(super) fn reserves(&self) -> bool {
        self.settle.is_some() || !self.charge.is_always()
    }

    pub(super) fn cost_of(&self, info: &Info<'_>) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::By(cost) => cost(info),
            Cost::ContentLength { unknown } => length_of(info).unwrap_or(*unknown),
        }
    }

    /// Returns the unit that one permit stands for.
    pub(super) fn unit_told(&self) -> Unit {
        let is_by_body = self.settle.as_ref().is_some_and(Settle::is_by_body);
        match &self.unit {
            Some(unit) => unit.clone(),
            None if is_by_body || matches!(self.cost, Cost::ContentLength { .. }) => {
                Unit::ContentBytes
            }
            None => Unit::Requests,
        }
    }
}

/// Returns the length of a request's body, as far as its head determines it.
fn length_of(info: &Info<'_>) -> Option<u64> {
    let headers = info.headers();
    // It takes precedence over a length (RFC 9112, section 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    match headers.get(header::CONTENT_LENGTH) {
        Some(length) => length.to_str().ok()?.parse().ok(),
        // By the same section, there is no body.
        None if info.version() <= Version::HTTP_11 => Some(0),
        // A separate frame, or a flag with the head, marks the end of the body, and neither is
        // visible here.
        None => info.method().is_safe().then_some(0),
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &self.quota.to_string())
            .field("algorithm", &self.algorithm)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
