//! Two processes from the servers' point of view, each with its own link, and a guarded store for
//! each failure policy.

use super::day::Day;
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tollgate::{
    Clock, Decision, Quota,
    store::{Demand, DynStore, Policy, Store, StoreError},
};
use tollgate_redis::{FailurePolicy, FleetSize, Guarded, LeaseSettings, Link, RedisStore, TwoTier};

/// The limit of every key. No permit refills within a test.
pub(crate) const LIMIT: u64 = 400;
pub(crate) const PROCESSES: u32 = 2;
/// Concurrent calls of each seat: more than are sent one by one.
const AT_ONCE: u64 = 10;
pub(crate) const KEY: &[u8] = b"alice";
/// How long the expected state may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const FAILURES: [FailurePolicy; 3] =
    [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local];

/// The results of the calls under one failure policy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) admitted_by_store: u64,
    pub(crate) refused_by_store: u64,
    pub(crate) admitted_degraded: u64,
    pub(crate) refused_degraded: u64,
}

impl Tally {
    fn note(&mut self, decision: &Decision) {
        let count = match (decision.is_degraded(), decision.is_allowed()) {
            (false, true) => &mut self.admitted_by_store,
            (false, false) => &mut self.refused_by_store,
            (true, true) => &mut self.admitted_degraded,
            (true, false) => &mut self.refused_degraded,
        };
        *count += 1;
    }

    fn add(&mut self, other: &Self) {
        self.admitted_by_store += other.admitted_by_store;
        self.refused_by_store += other.refused_by_store;
        self.admitted_degraded += other.admitted_degraded;
        self.refused_degraded += other.refused_degraded;
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.admitted_by_store + self.admitted_degraded
    }
}

/// One call for a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) took: Duration,
    pub(crate) is_degraded: bool,
}

/// One process's store for one failure policy.
#[derive(Clone)]
pub(crate) struct Seat {
    /// Its index in [`FAILURES`].
    pub(crate) number: usize,
    /// The store that callers use: the guard, or two tiers over it.
    top: Arc<dyn DynStore>,
    pub(crate) guard: Guarded<RedisStore>,
    pub(crate) policy: Policy,
}

impl Seat {
    fn open(store: &RedisStore, number: usize, is_tiered: bool) -> Self {
        let fleet = FleetSize::fixed(PROCESSES);
        let guard = Guarded::builder(store.clone())
            .failure(FAILURES[number])
            .fleet(fleet.clone())
            .build()
            .unwrap();
        let top: Arc<dyn DynStore> = if is_tiered {
            let tiers = TwoTier::builder(guard.clone(), fleet).leases(LeaseSettings::new());
            Arc::new(tiers.build().unwrap())
        } else {
            Arc::new(guard.clone())
        };
        Self { number, top, guard, policy: policy(&format!("{:?}", FAILURES[number])) }
    }

    /// Takes a permit. Whatever the servers do, the result is a decision and not an error.
    async fn take(&self) -> Decision {
        let mut demand = [Demand::new(&self.policy, KEY, 1)];
        Store::acquire(&self.top, &mut demand).await.expect("a guarded store decides")
    }
}

/// All processes.
pub(crate) struct Fleet {
    pub(crate) stores: Vec<RedisStore>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) tallies: [Tally; 3],
}

impl Fleet {
    pub(crate) fn open(day: &Day) -> Self {
        let open = |_| RedisStore::new(Link::open(day.settings.clone()).unwrap()).unwrap();
        let stores: Vec<_> = (0..PROCESSES).map(open).collect();
        let seats = stores.iter().flat_map(|store| {
            (0..FAILURES.len()).map(|number| Seat::open(store, number, day.is_tiered))
        });
        Self { seats: seats.collect(), stores, tallies: Default::default() }
    }

    /// Lets all seats make calls concurrently, with several tasks each. A task stops when `ends`
    /// returns true for its decision; a seat makes at most `most` calls.
    pub(crate) async fn calls(&mut self, most: u64, ends: fn(&Decision) -> bool) -> Vec<Call> {
        let mut tasks = JoinSet::new();
        let at_once = most.min(AT_ONCE);
        let seats = self.seats.iter().flat_map(|seat| (0..at_once).map(move |_| seat.clone()));
        for seat in seats {
            tasks.spawn(async move {
                let (clock, mut tally) = (Clock::monotonic(), Tally::default());
                let mut calls = Vec::new();
                // Slow enough that probes happen in between.
                let mut pace = interval(Duration::from_millis(2 * at_once));
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for _ in 0..most / at_once {
                    pace.tick().await;
                    let began = clock.now();
                    let decision = seat.take().await;
                    let is_degraded = decision.is_degraded();
                    calls.push(Call { took: clock.now().since(began), is_degraded });
                    tally.note(&decision);
                    if ends(&decision) {
                        break;
                    }
                }
                (seat.number, tally, calls)
            });
        }
        let mut all = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (number, tally, calls) = done.unwrap();
            self.tallies[number].add(&tally);
            all.extend(calls);
        }
        all
    }

    /// Makes calls until every link has refused one at once.
    pub(crate) async fn until_noticed(&mut self) -> Vec<Call> {
        let before: Vec<_> = self.stores.iter().map(shed).collect();
        let mut calls = Vec::new();
        let noticed = async {
            while !self.stores.iter().zip(&before).all(|(store, before)| shed(store) > *before) {
                calls.extend(self.calls(1, |_| false).await);
            }
        };
        timeout(PATIENCE, noticed).await.expect("the breakers open");
        calls
    }

    /// Makes calls until every seat gets its decisions from the store. A peek is not enough: it
    /// also succeeds on a server that accepts no writes.
    pub(crate) async fn until_well(&mut self) {
        let Self { seats, tallies, .. } = self;
        for seat in seats {
            // Three calls are on trial.
            let mut in_a_row = 0;
            until("decisions are the store's", async || {
                let decision = seat.take().await;
                tallies[seat.number].note(&decision);
                in_a_row = if decision.is_degraded() { 0 } else { in_a_row + 1 };
                in_a_row == 5
            })
            .await;
        }
    }

    /// Waits until all permits admitted without the store are booked.
    pub(crate) async fn until_carried(&self) {
        for seat in &self.seats {
            until("the spend is carried back", async || seat.guard.status().pending_spend == 0)
                .await;
        }
    }

    /// Returns the error of the store without a guard, once it has one of these fragments.
    pub(crate) async fn error(&self, says: &[&str]) -> StoreError {
        let (store, policy) = (&self.stores[0], policy("unguarded"));
        let mut error = None;
        until(&format!("the store says one of {says:?}"), async || {
            let result = store.acquire(&mut [Demand::new(&policy, KEY, 1)]).await;
            error = result.err();
            error.as_ref().is_some_and(|error| says_one(error, says))
        })
        .await;
        error.unwrap()
    }

    /// Adds up a count over all seats of a failure policy.
    pub(crate) fn sum(&self, number: usize, of: impl Fn(&Seat) -> u64) -> u64 {
        self.seats.iter().filter(|seat| seat.number == number).map(of).sum()
    }
}

/// Tells whether an error has one of these fragments.
pub(crate) fn says_one(error: &StoreError, says: &[&str]) -> bool {
    let text = error.to_string();
    says.iter().any(|words| text.contains(words))
}

/// Returns how many calls were refused without reaching the server.
fn shed(store: &RedisStore) -> u64 {
    store.link().nodes().iter().map(|node| node.shed).sum()
}

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_year(LIMIT)).unwrap()
}

/// Polls until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            pause(3).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("within {PATIENCE:?}: {what}"));
}

/// Lets some milliseconds pass before another poll.
pub(crate) async fn pause(ms: u64) {
    let _ = timeout(Duration::from_millis(ms), std::future::pending::<()>()).await;
}
