//! Stores that several processes share, as the engine and administrators see them.
//!
//! Such a store decides also when its servers cannot be asked, by what each policy says; so the
//! engine tells it what the policies say, at the start and after each reload.

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
    /// Returns what it is called.
    fn kind(&self) -> &'static str;

    /// Says how to treat policies, by name. All others are treated by the store's own settings.
    fn configure(&self, policies: &[PolicySettings]);

    /// Waits until its servers answer, for as long as its settings allow. Returns why they do not.
    fn connect(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;

    /// Agrees with the other processes on the lowest rate of a policy, of which `own` is that of this
    /// process, in permits per second. Returns the lowest; `None` if it is unknown.
    fn lowest_rate<'a>(
        &'a self,
        policy: &'a str,
        own: f64,
    ) -> Pin<Box<dyn Future<Output = Option<f64>> + Send + 'a>>;

    /// Returns how it is.
    fn status(&self) -> RemoteStatus;

    /// Returns what is promised of a policy; `None` if nothing is known.
    fn bounds(&self, policy: &Policy) -> Option<Bounds>;

    /// Books what is not booked yet, as far as that can be done, and leaves the fleet.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// How a shared store treats a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// The policy's name.
    pub name: Arc<str>,
    /// What happens when the servers cannot be asked.
    pub failure: Failure,
    /// Whether permits are taken in advance.
    pub lease: Lease,
}

/// How a shared store is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    /// The servers.
    pub nodes: Vec<NodeStatus>,
    /// How many processes share the limits, as far as this one knows.
    pub fleet_size: u32,
    /// Why decisions are made without the servers now, if they are.
    pub degraded: Option<String>,
    /// What it has done so far.
    pub counts: RemoteCounts,
    /// Keys that were used here and whose use the servers do not know of yet.
    pub pending: u64,
}

/// What a shared store has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Decisions made without the servers: let pass, refused, and made by this process's share.
    pub degraded: [u64; 3],
    /// Decisions by permits that were taken in advance.
    pub leased: u64,
    /// Refusals that were known without a call.
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

/// What is promised of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Permits above the limit that all processes together may let pass.
    pub above: u64,
    /// Permits that may be held by processes that do not use them.
    pub below: u64,
    /// How long.
    pub held_for: Duration,
    /// Permits that all processes together let pass in one period while the servers are away; `None`
    /// if there is no bound.
    pub while_away: Option<u64>,
    /// All of it in words.
    pub text: String,
}

impl Engine {
    /// Tells the shared stores what a plan says of its policies.
    pub(super) fn configure(&self, plan: &Plan) {
        for (number, store) in self.stores.iter().enumerate() {
            let Some(store) = store.remote() else { continue };
            let mut policies = Vec::new();
            for rule in plan.rules().iter().filter(|rule| rule.store() == number) {
                let (failure, lease) = (rule.failure(), rule.lease());
                policies.push(PolicySettings { name: rule.id().into(), failure, lease });
            }
            for domain in plan.domains().filter(|domain| domain.store() == number) {
                // A quota that comes with the call may be another the next time.
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

    /// Tells why decisions are made without a shared store now, if they are.
    #[must_use]
    pub fn degraded(&self) -> Option<(usize, String)> {
        let numbered = self.stores.iter().enumerate();
        let mut all = numbered.filter_map(|(number, store)| Some((number, store.remote()?)));
        all.find_map(|(number, store)| Some((number, store.status().degraded?)))
    }
}
