//! Stores that several processes share, as the engine and administrators see them.
//!
//! Such a store decides even when its servers cannot be reached, by the settings of each policy; so
//! the engine passes these settings to it at the start and after each reload.

use super::Engine;
use crate::{
    config::{Failure, Lease},
    plan::Plan,
};
use std::{pin::Pin, sync::Arc, time::Duration};
use tollgate::store::{DynStore, Policy};
pub use tollgate_redis::NodeStatus;

/// A store that several processes share.
pub trait RemoteStore: DynStore {
    /// Returns the kind of the store.
    fn kind(&self) -> &'static str;

    /// Sets how to treat policies, by name. All others follow the store's own settings.
    fn configure(&self, policies: &[PolicySettings]);

    /// Waits until its servers answer, for as long as its settings allow. Returns why they do not.
    fn connect(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;

    /// Agrees with the other processes on the lowest rate of a policy; `own` is the rate of this
    /// process, in permits per second. Returns the lowest; `None` if it is unknown.
    fn lowest_rate<'a>(
        &'a self,
        policy: &'a str,
        own: f64,
    ) -> Pin<Box<dyn Future<Output = Option<f64>> + Send + 'a>>;

    /// Returns the state of the store.
    fn status(&self) -> RemoteStatus;

    /// Returns the guarantees for a policy; `None` if they are unknown.
    fn bounds(&self, policy: &Policy) -> Option<Bounds>;

    /// Books the use that is not booked yet, as far as possible, and leaves the fleet.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// How a shared store treats a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// The policy's name.
    pub name: Arc<str>,
    /// What happens when the servers cannot be reached.
    pub failure: Failure,
    /// Whether permits are taken in advance.
    pub lease: Lease,
}

/// The state of a shared store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    /// The servers.
    pub nodes: Vec<NodeStatus>,
    /// How many processes share the limits, as far as this one knows.
    pub fleet_size: u32,
    /// Why decisions are made without the servers now, if they are.
    pub degraded: Option<String>,
    /// The counts so far.
    pub counts: RemoteCounts,
    /// Keys that were used here and whose use is not booked at the servers yet.
    pub pending: u64,
}

/// The counts of a shared store since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Decisions made without the servers: allowed, denied, and made by this process's share.
    pub degraded: [u64; 3],
    /// Decisions by permits that were taken in advance.
    pub leased: u64,
    /// Denials without a call to the servers.
    pub refused_here: u64,
    /// Calls that asked the servers.
    pub calls: u64,
    /// Calls whose outcome is unknown: each was charged once or not at all.
    pub unknown: u64,
    /// Permits that were used without the servers, and booked there later.
    pub carried_back: u64,
    /// Keys whose use without the servers could not be booked.
    pub dropped: u64,
    /// Permits that were taken in advance and not used.
    pub wasted: u64,
}

/// The guarantees for a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most permits above the limit that all processes together may admit.
    pub above: u64,
    /// The most permits that processes may hold without using them.
    pub below: u64,
    /// How long they may hold them.
    pub held_for: Duration,
    /// Permits that all processes together admit in one period while the servers are away; `None`
    /// if there is no bound.
    pub while_away: Option<u64>,
    /// All of it as text.
    pub text: String,
}

impl Engine {
    /// Passes a plan's settings of policies to the shared stores.
    pub(super) fn configure(&self, plan: &Plan) {
        for (number, store) in self.stores.iter().enumerate() {
            let Some(store) = store.remote() else { continue };
            let mut policies = Vec::new();
            for rule in plan.rules().iter().filter(|rule| rule.store() == number) {
                let (failure, lease) = (rule.failure(), rule.lease());
                policies.push(PolicySettings { name: rule.id().into(), failure, lease });
            }
            for domain in plan.domains().filter(|domain| domain.store() == number) {
                // A quota that comes with the call may differ next time.
                let (failure, lease) = (domain.defaults().failure, Lease::Off);
                policies.extend(domain.windows().iter().map(|policy| PolicySettings {
                    name: policy.name().into(),
                    failure,
                    lease,
                }));
            }
            store.configure(&policies);
        }
    }

    /// Returns why a shared store makes decisions without its servers now, if one does.
    #[must_use]
    pub fn degraded(&self) -> Option<(usize, String)> {
        let numbered = self.stores.iter().enumerate();
        let mut all = numbered.filter_map(|(number, store)| Some((number, store.remote()?)));
        all.find_map(|(number, store)| Some((number, store.status().degraded?)))
    }
}
