//! What decides, behind all protocols.
//!
//! A protocol turns what a client sent into a [`Request`], calls [`Engine::decide`] with an
//! [`Answer`] that it keeps, and turns that into a reply. The plan in force is one pointer, read once
//! per batch; the clock is read once per batch, too. With the memory store a decision asks for no
//! memory and never waits.

mod answer;
mod backend;
mod collect;
mod decide;
mod health;
mod overlay;
mod remote;
mod request;
mod reserve;
mod special;
mod timing;

pub(crate) use answer::since;
pub use answer::{Answer, Code, Part, Status, Summary};
pub use backend::Backend;
pub(crate) use decide::KeyText;
pub use health::StoreHealth;
pub use overlay::{Overlay, OverlayError, Special};
pub use remote::{Bounds, NodeStatus, PolicySettings, RemoteCounts, RemoteStatus, RemoteStore};
pub use request::{AdHocLimit, Ask, Hits, MAX_ASKS, Request, RequestError, Subject, Verb};
pub use reserve::{Ticket, TicketError};
pub use timing::{BOUNDS_NS, Timing};

use crate::plan::{Plan, PlanError, Rule};
use arc_swap::{ArcSwap, Guard};
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{
    Clock, Tick,
    store::{Policy, StoreError},
};

/// The one who decides. Shared by all listeners.
pub struct Engine {
    plan: ArcSwap<Plan>,
    /// The default store, and then those that the configuration declares, in its order.
    stores: Vec<Backend>,
    clock: Clock,
    overlay: Overlay,
    timing: Timing,
    health: StoreHealth,
    denials: health::DenialLog,
    /// Keys of quotas that come with the call: `CL.THROTTLE`.
    ad_hoc: Policy,
    secret: (u64, u64),
}

impl Engine {
    /// Returns an engine with a plan. `stores` has the default store first, and then those that the
    /// plan's configuration declares, in its order.
    #[must_use]
    pub fn new(plan: Plan, stores: Vec<Backend>) -> Self {
        let clock = stores.first().map_or_else(Clock::monotonic, |store| store.clock().clone());
        let engine = Self {
            plan: ArcSwap::from_pointee(plan),
            stores,
            clock,
            overlay: Overlay::default(),
            timing: Timing::default(),
            health: StoreHealth::default(),
            denials: health::DenialLog::default(),
            ad_hoc: Policy::ad_hoc("cl.throttle"),
            secret: reserve::random_secret(),
        };
        engine.configure(&engine.plan());
        if let Err(error) = engine.declare(&engine.plan()) {
            tracing::error!(
                "a policy denies everything until there is room for its quota: {error}"
            );
        }
        engine
    }

    /// Gives all quotas of a plan their numbers in the stores of this process. Call it before
    /// [`install`](Self::install): a policy that finds none later refuses everything.
    ///
    /// # Errors
    ///
    /// When a store has not enough of them: which policy finds none, and where it stands. Nothing is
    /// changed for the plan in force.
    pub fn declare(&self, plan: &Plan) -> Result<(), PlanError> {
        for (number, store) in self.stores.iter().enumerate() {
            let Some(store) = store.memory() else { continue };
            plan.declare((number, store), |_| true)?;
        }
        Ok(())
    }

    /// Returns the plan in force. Take it once per batch.
    pub fn plan(&self) -> Guard<Arc<Plan>> {
        self.plan.load()
    }

    /// Returns the plan in force, to keep.
    pub fn plan_arc(&self) -> Arc<Plan> {
        self.plan.load_full()
    }

    /// Returns the clock of all ticks here.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Reads the clock.
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Returns the stores: the default one, and those that the configuration declares.
    pub fn stores(&self) -> &[Backend] {
        &self.stores
    }

    /// Returns what an administrator has changed for single keys.
    pub const fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Returns how long decisions take.
    pub const fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns how the stores are.
    pub const fn health(&self) -> &StoreHealth {
        &self.health
    }

    /// Tells whether no store must be waited for.
    pub fn is_immediate(&self) -> bool {
        self.stores.iter().all(|store| store.memory().is_some())
    }

    fn store(&self, rule: &Rule) -> &Backend {
        // A reload that names other stores is refused, so the number is good.
        self.stores.get(rule.store()).unwrap_or(&self.stores[0])
    }

    /// Puts another plan in force. Keys of rules whose quota has changed keep of their use what the
    /// rule declares. Decisions in flight are made by the old plan.
    ///
    /// # Errors
    ///
    /// When a store cannot carry a policy over. The new plan is in force nevertheless; keys of that
    /// policy start afresh. All such failures are returned.
    pub async fn install(&self, plan: Plan) -> Result<(), Vec<(String, StoreError)>> {
        let old = self.plan.load_full();
        let plan = Arc::new(plan);
        let mut failures = Vec::new();
        let mut changed = Vec::new();
        for rule in plan.rules() {
            let before = old.with_id(rule.id()).filter(|before| before.store() == rule.store());
            let pairs = before.map(|before| rule.changes(before)).unwrap_or_default();
            changed.extend(pairs.into_iter().map(|(from, to)| (rule, from, to)));
        }
        // The store holds those to the new quota who still decide by the old plan. The other way round,
        // keys that are met before their quota has changed would keep what is left of the old one.
        for (rule, from, to) in changed {
            if let Err(error) = self.store(rule).change_quota(&from, &to, rule.inherit()).await {
                failures.push((rule.id().to_owned(), error));
            }
        }
        self.configure(&plan);
        self.plan.store(Arc::clone(&plan));
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("version", &self.plan().version()).finish_non_exhaustive()
    }
}

/// How long reservations live unless the caller says otherwise.
pub const DEFAULT_LIFE: Duration = Duration::from_secs(60);

/// How long reservations live at most.
pub const MAX_LIFE: Duration = Duration::from_secs(24 * 3600);
