//! A fleet in one process: many two-tier stores over one memory store, on a manual clock.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Decision, Limiter, ManualClock, Quota, Tick,
    store::{Demand, MemoryStore, Policy, Store, StoreError, forward_store},
};
use tollgate_redis::{FleetSize, LeaseSettings, TwoTier};

/// A memory store with latency that counts calls, and fails on request.
#[derive(Clone)]
pub(crate) struct Away {
    pub(crate) inner: MemoryStore,
    hand: ManualClock,
    /// Of one way.
    latency_ns: Arc<AtomicU64>,
    pub(crate) calls: Arc<AtomicU64>,
    pub(crate) is_down: Arc<AtomicBool>,
    pub(crate) is_degraded: Arc<AtomicBool>,
}

// ORDERING: Relaxed for all atomics here. Counts and switches of one thread, or read after a join.
impl Away {
    pub(crate) fn new(hand: &ManualClock) -> Self {
        let inner = MemoryStore::builder().clock(hand.clock()).build().unwrap();
        Self {
            inner,
            hand: hand.clone(),
            latency_ns: Arc::default(),
            calls: Arc::default(),
            is_down: Arc::default(),
            is_degraded: Arc::default(),
        }
    }

    pub(crate) fn set_latency(&self, way: Duration) {
        self.latency_ns.store(way.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Waits on the manual clock.
    async fn travel(&self) {
        let way = Duration::from_nanos(self.latency_ns.load(Relaxed));
        if !way.is_zero() {
            let (arrive, arrived) = tokio::sync::oneshot::channel();
            let due = self.hand.now().saturating_add(way);
            self.hand.call_at(due, move |_| {
                let _ = arrive.send(());
            });
            let _ = arrived.await;
        }
    }
}

impl Away {
    /// A call there and back.
    async fn call(
        &self,
        call: impl Future<Output = Result<Decision, StoreError>>,
    ) -> Result<Decision, StoreError> {
        self.calls.fetch_add(1, Relaxed);
        self.travel().await;
        let answer = if self.is_down.load(Relaxed) {
            Err(StoreError::unavailable("the test says no"))
        } else {
            call.await
        };
        self.travel().await;
        let is_degraded = self.is_degraded.load(Relaxed);
        answer.map(|decision| if is_degraded { decision.degraded() } else { decision })
    }
}

impl Store for Away {
    forward_store!(self => &self.inner, except acquire up_to);

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.call(self.inner.acquire(demands)).await
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        self.call(self.inner.up_to(demand)).await
    }
}

/// A fleet and its traffic.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    pub(crate) nodes: usize,
    /// The share of the first node; the others share the rest evenly.
    pub(crate) skew: f64,
    /// `None`: every call goes to the store.
    pub(crate) sync: Option<Duration>,
    pub(crate) offered_per_second: f64,
    pub(crate) length: Duration,
    /// Of one way.
    pub(crate) latency: Duration,
    /// Nodes that lose what they hold, and when.
    pub(crate) crashes: Vec<(Duration, usize)>,
    /// When a further node joins.
    pub(crate) joins: Vec<Duration>,
    /// All traffic goes to one node, and moves to the next after that time.
    pub(crate) moves: Option<Duration>,
}

impl Scenario {
    /// The one of the docs: 1000/s, 8 nodes of which one has half of the traffic, 30 s.
    pub(crate) fn usual(offered_per_second: f64) -> Self {
        Self {
            seed: 1,
            quota: Quota::per_second(1000),
            algorithm: Algorithm::Gcra,
            nodes: 8,
            skew: 0.5,
            sync: Some(Duration::from_millis(100)),
            offered_per_second,
            length: Duration::from_secs(30),
            latency: Duration::ZERO,
            crashes: Vec::new(),
            joins: Vec::new(),
            moves: None,
        }
    }

    fn arrivals(&self) -> Vec<(Tick, usize)> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut at, mut arrivals) = (0.0_f64, Vec::new());
        loop {
            at -= (1.0 - random.f64()).ln() / self.offered_per_second;
            let tick = Tick::from_nanos((at * 1e9) as u64);
            if tick.since(Tick::ZERO) >= self.length {
                return arrivals;
            }
            let joined = self.joins.iter().filter(|join| tick.since(Tick::ZERO) >= **join).count();
            let others = self.nodes + joined - 1;
            let node = if let Some(stay) = self.moves {
                (tick.as_nanos() / stay.as_nanos() as u64) as usize % self.nodes
            } else if others == 0 || random.f64() < self.skew {
                0
            } else {
                1 + random.usize(0..others)
            };
            arrivals.push((tick, node));
        }
    }

    /// Returns the admissions of one exact limiter for the same arrivals.
    fn ideal(&self, arrivals: &[(Tick, usize)]) -> usize {
        let builder = Limiter::builder(self.quota).algorithm(self.algorithm);
        let limiter = builder.clock(Clock::manual().0).build().unwrap();
        arrivals.iter().filter(|(at, _)| limiter.try_acquire_at(*at, 1).is_allowed()).count()
    }

    /// Runs the fleet; every time it is the same.
    pub(crate) fn run(&self) -> Outcome {
        fastrand::seed(self.seed);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(Fleet::new(self).run(self))
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: usize,
    pub(crate) admitted: usize,
    pub(crate) ideal: usize,
    pub(crate) calls: u64,
    pub(crate) wasted: u64,
    pub(crate) ahead: u64,
    pub(crate) lease_max: u64,
    /// The most by which admissions in any interval exceeded burst + rate x interval.
    pub(crate) above: i64,
    /// The most that was admitted in any second.
    pub(crate) in_a_second: usize,
}

impl Outcome {
    pub(crate) fn calls_per_request(&self) -> f64 {
        self.calls as f64 / self.requests as f64
    }

    pub(crate) fn of_ideal(&self) -> f64 {
        self.admitted as f64 / self.ideal as f64
    }
}

struct Fleet {
    hand: ManualClock,
    store: Away,
    size: FleetSize,
    policy: Policy,
    nodes: Vec<TwoTier<Away>>,
    dead: Vec<TwoTier<Away>>,
}

impl Fleet {
    fn new(scenario: &Scenario) -> Self {
        let hand = ManualClock::new();
        let store = Away::new(&hand);
        store.set_latency(scenario.latency);
        let policy = Policy::with_algorithm("api", scenario.quota, scenario.algorithm).unwrap();
        let size = FleetSize::fixed(scenario.nodes as u32);
        let mut fleet = Self { hand, store, size, policy, nodes: vec![], dead: vec![] };
        fleet.nodes = (0..scenario.nodes).map(|_| fleet.node(scenario)).collect();
        fleet
    }

    fn node(&self, scenario: &Scenario) -> TwoTier<Away> {
        let builder = TwoTier::builder(self.store.clone(), self.size.clone());
        let builder = match scenario.sync {
            Some(sync) => builder.leases(LeaseSettings::new().sync(sync)),
            None => builder.deny_cap(Duration::ZERO),
        };
        builder.build().unwrap()
    }

    /// Moves the time, and lets every task handle its timers on the way.
    async fn move_to(&self, to: Tick) {
        while let Some(due) = self.hand.next_timer()
            && due <= to
        {
            self.hand.set(due);
            idle().await;
        }
        self.hand.set(to);
    }

    async fn run(mut self, scenario: &Scenario) -> Outcome {
        let arrivals = scenario.arrivals();
        let admitted = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (mut crashes, mut joins) = (scenario.crashes.clone(), scenario.joins.clone());
        for (at, node) in &arrivals {
            let passed = at.since(Tick::ZERO);
            while let Some(index) = crashes.iter().position(|(when, _)| *when <= passed) {
                let (_, node) = crashes.swap_remove(index);
                let fresh = self.node(scenario);
                self.dead.push(std::mem::replace(&mut self.nodes[node], fresh));
            }
            while let Some(index) = joins.iter().position(|when| *when <= passed) {
                joins.swap_remove(index);
                self.nodes.push(self.node(scenario));
                self.size.set(self.nodes.len() as u32);
            }
            self.move_to(*at).await;
            let (node, policy) = (self.nodes[*node].clone(), self.policy.clone());
            let admitted = Arc::clone(&admitted);
            let request = async move {
                let decision = node.acquire(&mut [Demand::new(&policy, b"key", 1)]).await;
                if decision.unwrap().is_allowed() {
                    admitted.lock().unwrap().push(node.clock().now());
                }
            };
            if scenario.latency.is_zero() {
                request.await;
            } else {
                tokio::spawn(request);
                idle().await;
            }
        }
        let end = self.hand.now().saturating_add(Duration::from_secs(2));
        self.move_to(end).await;
        let times = std::mem::take(&mut *admitted.lock().unwrap());
        self.outcome(scenario, &arrivals, &times)
    }

    fn outcome(&self, scenario: &Scenario, arrivals: &[(Tick, usize)], times: &[Tick]) -> Outcome {
        let quota = scenario.quota;
        let rate = quota.count() as f64 / quota.period().as_nanos() as f64;
        let (mut level, mut above, mut last) = (0.0_f64, i64::MIN, Tick::ZERO);
        let (mut in_a_second, mut first) = (0, 0);
        for (index, at) in times.iter().enumerate() {
            // A bucket that drains at the rate: its level is the excess of the worst interval.
            level = (level - rate * at.since(last).as_nanos() as f64).max(0.0) + 1.0;
            last = *at;
            above = above.max((level - quota.capacity() as f64).ceil() as i64);
            while at.since(times[first]) >= Duration::from_secs(1) {
                first += 1;
            }
            in_a_second = in_a_second.max(index + 1 - first);
        }
        let status: Vec<_> = self.nodes.iter().chain(&self.dead).map(TwoTier::status).collect();
        Outcome {
            requests: arrivals.len(),
            admitted: times.len(),
            ideal: scenario.ideal(arrivals),
            calls: self.store.calls(),
            wasted: status.iter().map(|status| status.wasted).sum(),
            ahead: status.iter().map(|status| status.refills_ahead).sum(),
            lease_max: self.nodes[0].bounds(&self.policy).lease_max(),
            above,
            in_a_second,
        }
    }
}

/// Lets all tasks run until they wait for the clock: each wakes at most a few others in a row.
pub(crate) async fn idle() {
    for _ in 0..6 {
        tokio::task::yield_now().await;
    }
}
