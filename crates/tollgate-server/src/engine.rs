//! The decision engine behind all protocols.
//!
//! A protocol parses the client's input into a [`Request`], calls [`Engine::decide`] with an
//! [`Answer`] that it keeps, and writes that as a reply. The plan in force is one pointer, read
//! once per batch; the clock is read once per batch, too. With the memory store, a decision
//! allocates nothing and never waits.

mod adapt;
mod answer;
mod backend;
mod collect;
mod decide;
mod explain;
mod health;
mod in_flight;
mod key_text;
mod limit_report;
mod overlay;
mod overrides;
mod record;
mod remote;
mod request;
mod reserve;
mod special;
mod threshold;
mod timing;

pub use adapt::{ADAPT_EVERY, AGREE_EVERY, Report};
pub use answer::{Answer, Code, Part, Status};
pub use backend::Backend;
pub use health::StoreHealth;
pub use in_flight::{Entry, LeaseError, LeaseId};
pub(crate) use key_text::KeyText;
pub use limit_report::LimitReport;
pub(crate) use limit_report::since;
pub use overlay::{Overlay, OverlayError, Special};
pub use remote::{Bounds, NodeStatus, PolicySettings, RemoteCounts, RemoteStatus, RemoteStore};
pub use request::{AdHocLimit, Ask, Hits, MAX_ASKS, Request, RequestError, Subject, Verb};
pub use reserve::{Ticket, TicketError};
pub use timing::{BOUNDS_NS, Timing};

use crate::plan::{Plan, Rule};
use arc_swap::{ArcSwap, Guard};
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{Clock, Tick, store::Policy};

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
    crossings: threshold::Crossings,
    cpu: adapt::CpuGauge,
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
            crossings: threshold::Crossings::default(),
            cpu: adapt::CpuGauge::default(),
            ad_hoc: Policy::ad_hoc("cl.throttle"),
            secret: reserve::random_secret(),
        };
        engine.configure(&engine.plan());
        engine.start_adaptive(&engine.plan());
        engine.put_in_force(&engine.plan());
        engine
    }

    /// Puts the quotas of a plan in force in the stores of this process, as of now. A call by a quota that a
    /// store cannot count fails.
    fn put_in_force(&self, plan: &Plan) {
        for (number, store) in self.stores.iter().enumerate() {
            let Some(store) = store.memory() else { continue };
            let rules = plan.rules().iter().filter(|rule| rule.store() == number);
            if let Err((policy, error)) = store.declare(rules.flat_map(Rule::policies)) {
                tracing::error!("policy {}: {error}", policy.name());
            }
        }
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

    /// Puts another plan in force. Keys keep their states even if their quotas change. Decisions in
    /// flight use the old plan.
    pub fn install(&self, plan: Plan) {
        self.configure(&plan);
        self.start_adaptive(&plan);
        self.put_in_force(&plan);
        self.plan.store(Arc::new(plan));
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
