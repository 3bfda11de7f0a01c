//! Reads the state of a layer while its services run.

use super::{
    RateLimitLayer,
    backend::Backend,
    gate::Gate,
    pass::{Limit, Way},
};
use crate::{Info, LayerCounts, Mode, key::KeyBytes, observe::metric};
use http::Request;
use std::sync::Arc;
use tollgate::{
    Decision, TopKeys,
    observe::{Collector, Health, Samples, WeakCollector},
    store::Demand,
};

/// Methods by which a clone of the layer reads state while its services run.
impl RateLimitLayer {
    /// Returns the counts of a policy's requests, or of a tier's (`policy/tier`); `None` if there
    /// is none of that name.
    ///
    /// Decisions are counted if the layer was built with
    /// [`counted`](super::RateLimitBuilder::counted). A refused request counts for the policies that
    /// refuse it.
    #[must_use]
    pub fn counts(&self, limit: &str) -> Option<LayerCounts> {
        self.gate.instruments.counts(self.gate.instruments.number_of(limit)?)
    }

    /// Tells whether a policy, or a tier (`policy/tier`), denies nearly all requests: then it is
    /// misconfigured, or under attack. `None` if there is none of that name.
    ///
    /// It uses the same rule as [`Limiter::health`](tollgate::Limiter::health): at least 100
    /// decisions over at least 10 s, of which 95 % were denied. A policy in shadow mode denies
    /// nothing. Call it at regular intervals, for example from a health endpoint.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, observe::Health};
    /// use tollgate_tower::{Policy, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder()
    ///     .policy(Policy::new("global", Quota::per_second(1000)))
    ///     .counted()
    ///     .build()?;
    /// assert_eq!(limits.health("global"), Some(Health::Unknown)); // too few requests to tell
    /// # Ok::<(), tollgate_tower::LayerError>(())
    /// ```
    #[must_use]
    pub fn health(&self, limit: &str) -> Option<Health> {
        self.gate.instruments.health(self.gate.instruments.number_of(limit)?)
    }

    /// Returns the heaviest keys of a policy. `None` if the layer was built without
    /// [`top_keys`](super::RateLimitBuilder::top_keys), has no such policy, or the policy has no key.
    ///
    /// Keep a clone of the layer to read it while the service runs: clones share their state.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, observe::KeyForm};
    /// use tollgate_tower::{Key, Policy, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder()
    ///     .policy(Policy::new("tenants", Quota::per_minute(600)).key(Key::header("x-tenant")))
    ///     .top_keys(100, KeyForm::Plain)
    ///     .build()?;
    /// let handle = limits.clone(); // and `limits` goes into the stack
    /// for key in handle.top_keys("tenants").ok_or("it has a key")?.top_denied(10) {
    ///     println!("{} was denied {} times", key.name, key.count);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias = "heavy hitters")]
    #[doc(alias = "noisy neighbour")]
    pub fn top_keys(&self, policy: &str) -> Option<&TopKeys> {
        let limit = self.gate.limits.iter().find(|limit| &*limit.policy.name == policy)?;
        limit.heavy_keys.as_ref().map(|heavy| &heavy.top)
    }
}

impl Gate {
    /// Returns the level of a policy without a key, if this process knows it.
    fn level(&self, limit: &Limit, way: &Way) -> Option<Decision> {
        let Backend::Memory(store) = &self.backend else { return None };
        if !limit.policy.key.is_global() {
            return None;
        }
        // Every request has the same key.
        let mut key = KeyBytes::new();
        let _ = limit.policy.key.find(&Info::of(&Request::new(())), &mut key);
        let mut demands = [Demand::new(&way.policy, key.as_bytes(), 0)];
        store.peek_at(self.backend.clock().now(), &mut demands).ok()
    }
}

/// Has a part for each policy and tier.
impl Collector for RateLimitLayer {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("rate_limit_layer");
        for limit in &self.gate.limits {
            for (number, way) in limit.ways.iter().enumerate() {
                samples.part_by(way.label.name(), |samples| {
                    samples.kind("policy");
                    samples.state(limit.policy.mode.name());
                    samples.quota(way.policy.quota());
                    if let Some(level) = self.gate.level(limit, way) {
                        samples.level(level.remaining(), level.limit());
                    }
                    let instruments = &self.gate.instruments;
                    instruments.collect(limit.first + number, samples);
                    let counts = instruments.counts(limit.first + number).unwrap_or_default();
                    if instruments.is_counted() && limit.policy.mode != Mode::Enforce {
                        let LayerCounts { shadow, .. } = counts;
                        samples.count_by(&metric::SHADOW_DENIED, "later", shadow.denied_later);
                        samples.count_by(&metric::SHADOW_DENIED, "never", shadow.denied_never);
                    }
                    samples.count(&metric::STORE_ERRORS, counts.store_errors);
                    samples.count(&metric::BOUNDS_REACHED, counts.bounds_reached);
                    // Tiers are ranked together.
                    if let (0, Some(heavy)) = (number, &limit.heavy_keys) {
                        samples.gauge(&metric::DISTINCT_KEYS, heavy.top.distinct() as f64);
                    }
                });
            }
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.gate, |gate: Arc<_>| Self { gate })
    }
}
