//! Books locally admitted permits into the store, after recovery.
//!
//! When the store answers again, one task books the permits that the local limiter admitted, by
//! [`Store::force`], with at most [`AT_ONCE`] calls under way, so callers neither wait for it nor
//! notice it. For each key it books the least of these:
//!
//! - the permits admitted here while the store was away;
//! - the permits that the local limiter has not refilled since: an outage of an hour leaves no debt
//!   of an hour;
//! - the quota's burst or limit.
//!
//! A call whose outcome is unknown is not repeated. Nothing is booked twice.

use super::{FailurePolicy, Shared, spend::Spender};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed, Release, SeqCst},
            fence,
        },
    },
    task::Poll,
    time::Duration,
};
use tokio::{runtime::Handle, time::timeout};
use tollgate::{
    Algorithm, Decision, Quota, Tick,
    store::{Demand, Store, StoreError},
};

/// How many spends are booked at a time.
const AT_ONCE: usize = 16;
/// After this many consecutive failures, the rest waits for the next attempt: the store is away
/// again.
const FAILURES_MAX: usize = 64;
/// How long to wait for the next attempt.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A flag that is set while the guard lives, and cleared on drop, even during a panic.
#[derive(Debug)]
struct Flag<'a>(&'a AtomicBool);

impl<'a> Flag<'a> {
    /// Sets the flag; `None` if it is set already.
    fn raise(flag: &'a AtomicBool) -> Option<Self> {
        // ORDERING: AcqRel, and Release when the flag is cleared: the next holder of the flag sees
        // everything that was done under it before.
        (!flag.swap(true, AcqRel)).then_some(Self(flag))
    }
}

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<S: Store> Shared<S> {
    /// Books the pending spends. Returns how many permits were booked, and whether any booking
    /// failed.
    pub(super) async fn carry_back(&self) -> (u64, bool) {
        let Some(_flag) = Flag::raise(&self.carrying) else { return (0, true) };
        // If the store may be away, probes it first with a call whose loss does no harm.
        if self.counts.is_degraded() && !self.is_back().await {
            return (0, true);
        }
        let mut taken = self.spends.take_all();
        let (mut booked, mut failures, mut has_failed) = (0_u64, 0, false);
        while failures < FAILURES_MAX {
            let next = taken.next(AT_ONCE);
            if next.is_empty() {
                break;
            }
            let outcomes = all(next.iter().map(|(who, permits)| self.book(who, *permits))).await;
            for ((spender, permits), outcome) in next.into_iter().zip(outcomes) {
                match outcome {
                    Ok(cost) => {
                        (booked, failures) = (booked.saturating_add(cost), 0);
                        self.counts.carried(cost);
                        taken.done();
                    }
                    Err(error) => {
                        has_failed = true;
                        let is_unknown = error.is_timeout();
                        failures += if is_unknown { FAILURES_MAX } else { 1 };
                        if error.is_unreachable() {
                            self.failed(&error);
                        }
                        if is_unknown || !error.is_transient() {
                            taken.give_up();
                        } else {
                            taken.put_back(spender, permits);
                        }
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        (booked, has_failed)
    }

    /// Probes the store with a peek for one of the pending spends.
    async fn is_back(&self) -> bool {
        let Some(spender) = self.spends.any() else { return true };
        let Ok(demand) = spender.demand(0) else { return true };
        match self.inner.peek(&mut [demand]).await {
            Err(error) if error.is_unreachable() => {
                self.failed(&error);
                false
            }
            _ => {
                self.answered();
                true
            }
        }
    }

    /// Books one spend. Returns how many permits were booked.
    async fn book(&self, spender: &Spender, permits: u64) -> Result<u64, StoreError> {
        let demand = spender.demand(0)?;
        let cost = permits.min(demand.quota().capacity()).min(self.outstanding(&demand)?);
        if cost > 0 {
            let _ = self.inner.force(&spender.demand(cost)?).await?;
        }
        Ok(cost)
    }

    /// Returns how many of the permits that a key has used here have not refilled.
    fn outstanding(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let plan = self.plans.of(demand.policy())?;
        if plan.failure == FailurePolicy::Open {
            // The failure policy has changed meanwhile, so the local limiter does not track this
            // policy.
            return Ok(u64::MAX);
        }
        let local = plan.demand(demand, 0)?;
        let decision = self.local.peek_at(self.now(), &mut [local])?;
        let debt = match demand.policy().algorithm() {
            Algorithm::Gcra => refilling(&decision, &local.quota()),
            _ => 0,
        };
        Ok(debt.max(decision.limit().saturating_sub(decision.remaining())))
    }

    fn now(&self) -> Tick {
        self.inner.clock().now()
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Starts the task that books spends, unless it runs already.
    pub(super) fn start_carrying(self: &Arc<Self>) {
        // ORDERING: the fence pairs with the one in `carry`. There the task clears the flag and
        // then checks the spends; here a caller records a spend and then checks the flag: with both
        // fences at least one of the two sees the other. Relaxed: this is only a first check, the
        // exchange below decides.
        fence(SeqCst);
        if self.has_task.load(Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.has_task.swap(true, AcqRel) {
            runtime.spawn(carry(Task { shared: Arc::downgrade(self), is_up: true }));
        }
    }

    /// Wakes that task: the store has answered.
    pub(super) fn wake_carrying(self: &Arc<Self>) {
        self.start_carrying();
        self.wake.notify_one();
    }
}

/// The task's share of its flag: cleared when the task ends, even if its runtime ends.
struct Task<S: Store> {
    shared: Weak<Shared<S>>,
    is_up: bool,
}

impl<S: Store> Drop for Task<S> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|_| self.is_up) {
            // ORDERING: Release, as in `Flag`.
            shared.has_task.store(false, Release);
        }
    }
}

/// Books spends until none is pending, or the last user of the store is gone.
async fn carry<S: Store>(mut task: Task<S>) {
    let Some(wake) = task.shared.upgrade().map(|shared| Arc::clone(&shared.wake)) else { return };
    loop {
        // The task wakes up as soon as the store answers any call; the timeout is for when there
        // are no calls.
        let _ = timeout(AGAIN_AFTER, wake.notified()).await;
        let Some(shared) = task.shared.upgrade() else { return };
        let (_, has_failed) = shared.carry_back().await;
        if shared.spends.is_empty() {
            // ORDERING: as in `Flag`, and the fence as in `start_carrying`.
            shared.has_task.store(false, Release);
            fence(SeqCst);
            task.is_up = !shared.spends.is_empty() && !shared.has_task.swap(true, AcqRel);
            if !task.is_up {
                return;
            }
        }
        drop(shared);
        if has_failed {
            // The store may answer other calls all the time: in a cluster, from other nodes. That
            // is no reason to retry all the time.
            let _ = timeout(AGAIN_AFTER, std::future::pending::<()>()).await;
        }
    }
}

/// Returns how many permits a key must refill until it is full, including a debt.
fn refilling(decision: &Decision, quota: &Quota) -> u64 {
    let Some(wait) = decision.reset_after(decision.at()) else { return 0 };
    // Two ticks for the rounding of the time. OVERFLOW: a time is below 2^64 ns, a count below 2^55.
    let wait = wait.as_nanos().saturating_sub(2);
    let permits = (wait * u128::from(quota.count())).div_ceil(quota.period().as_nanos().max(1));
    u64::try_from(permits).unwrap_or(u64::MAX)
}

/// Runs futures concurrently, and returns their outputs in order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut waits = false;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match Pin::as_mut(future).poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}
