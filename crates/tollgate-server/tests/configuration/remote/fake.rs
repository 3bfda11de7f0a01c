//! A shared store in memory that can be down, or slow, as a test says.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use tollgate::{
    Clock, Decision, ManualClock,
    store::{Demand, MemoryStore, Policy, Store, StoreError, forward_store},
};
use tollgate_server::{
    config::{Config, Failure},
    engine::{
        Backend, Bounds, Engine, NodeStatus, PolicySettings, RemoteCounts, RemoteStatus,
        RemoteStore,
    },
    plan::Plan,
    server::{Settings, Shared},
};

/// A store whose server can be away.
pub(crate) struct Fake {
    inner: MemoryStore,
    /// Decides here while the remote store is away.
    local: MemoryStore,
    is_down: AtomicBool,
    settings: Mutex<Vec<PolicySettings>>,
    /// The lowest rate of the other processes.
    lowest_rate: Mutex<f64>,
    /// Each call takes one; `None` for a store that answers at once.
    gate: Option<Semaphore>,
    waiting: AtomicUsize,
    most: AtomicUsize,
}

// ORDERING: SeqCst everywhere. A test.
impl Fake {
    pub(crate) fn new(gate: Option<usize>) -> (Arc<Self>, ManualClock) {
        let (clock, hand) = Clock::manual();
        let store = || MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let fake = Self {
            inner: store(),
            local: store(),
            is_down: AtomicBool::new(false),
            settings: Mutex::default(),
            lowest_rate: Mutex::new(f64::INFINITY),
            gate: gate.map(Semaphore::new),
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        };
        (Arc::new(fake), hand)
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, SeqCst);
    }

    pub(crate) fn set_lowest_rate(&self, rate: f64) {
        *self.lowest_rate.lock().unwrap() = rate;
    }

    /// Lets this many calls continue.
    pub(crate) fn let_go(&self, calls: usize) {
        self.gate.as_ref().unwrap().add_permits(calls);
    }

    /// Returns how many calls wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Returns how many calls waited at once at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(SeqCst)
    }

    pub(crate) fn settings_of(&self, name: &str) -> Option<PolicySettings> {
        let settings = self.settings.lock().unwrap();
        settings.iter().find(|known| &*known.name == name).cloned()
    }

    async fn travel(&self) {
        if let Some(gate) = &self.gate {
            let now = self.waiting.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(now, SeqCst);
            gate.acquire().await.unwrap().forget();
            self.waiting.fetch_sub(1, SeqCst);
        }
    }

    /// Decides as a store does that cannot ask its server.
    fn without(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        let mut told = Vec::new();
        for demand in demands {
            let known = self.settings_of(demand.policy().name());
            let failure = known.map_or(Failure::Open, |known| known.failure);
            let slice = std::slice::from_mut(demand);
            let decision = match failure {
                Failure::Local => self.local.acquire_now(slice)?,
                Failure::Closed | Failure::Open => {
                    // More than there ever is, or nothing.
                    let cost = if failure == Failure::Closed { u64::MAX >> 10 } else { 0 };
                    let mut odd = Demand::new(demand.policy(), b"nobody", cost);
                    if demand.policy().is_ad_hoc() {
                        odd = Demand::ad_hoc(demand.policy(), b"nobody", cost, demand.quota())
                            .map_err(|error| StoreError::invalid(error.to_string()))?;
                    }
                    self.local.peek_at(self.inner.clock().now(), &mut [odd])?
                }
            };
            demand.tell(decision.degraded());
            told.push(decision.degraded());
        }
        Ok(Decision::join(&told).unwrap())
    }
}

impl Store for Fake {
    forward_store!(self => &self.inner, except acquire peek reset);

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        if self.is_down.load(SeqCst) {
            return self.without(demands);
        }
        // As with a server: they are carried out in the order in which they were sent.
        let answer = self.inner.acquire(demands).await;
        self.travel().await;
        answer
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        if self.is_down.load(SeqCst) {
            return self.without(demands);
        }
        let answer = self.inner.peek(demands).await;
        self.travel().await;
        answer
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        match self.is_down.load(SeqCst) {
            true => Err(StoreError::unavailable("the server is away")),
            false => self.inner.reset(demand).await,
        }
    }
}

impl RemoteStore for Fake {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn configure(&self, policies: &[PolicySettings]) {
        *self.settings.lock().unwrap() = policies.to_vec();
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async { None })
    }

    fn lowest_rate<'a>(
        &'a self,
        _policy: &'a str,
        own: f64,
    ) -> Pin<Box<dyn Future<Output = Option<f64>> + Send + 'a>> {
        let lowest = own.min(*self.lowest_rate.lock().unwrap());
        let is_down = self.is_down.load(SeqCst);
        Box::pin(async move { (!is_down).then_some(lowest) })
    }

    fn status(&self) -> RemoteStatus {
        let is_down = self.is_down.load(SeqCst);
        let node = NodeStatus {
            address: "10.0.0.5:6379".into(),
            state: if is_down { "open" } else { "up" },
            in_flight: 3,
            calls: 40,
            errors: 2,
            timeouts: 1,
            shed: 7,
            connects: 4,
            last_error: Some("connection refused".into()),
        };
        RemoteStatus {
            nodes: vec![node],
            fleet_size: 5,
            degraded: is_down.then(|| "connection refused".to_owned()),
            counts: RemoteCounts {
                degraded: [1, 2, 3],
                leased: 4,
                refused_here: 5,
                calls: 6,
                ..RemoteCounts::default()
            },
            pending: 8,
        }
    }

    fn bounds(&self, _policy: &Policy) -> Option<Bounds> {
        let (held_for, text) = (Duration::from_millis(200), "all of it".to_owned());
        Some(Bounds { above: 3, below: 12, held_for, while_away: None, text })
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

/// Returns what connections share, on this store alone.
pub(crate) fn shared(fake: &Arc<Fake>, yaml: &str) -> Arc<Shared> {
    let config = Config::from_text("test.yaml", yaml).unwrap_or_else(|errors| panic!("{errors}"));
    let plan = Plan::compile(config, None).unwrap();
    let backend = Backend::Remote(Arc::clone(fake) as Arc<dyn RemoteStore>);
    Shared::new(Engine::new(plan, vec![backend]), Settings::default())
}
