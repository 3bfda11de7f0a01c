//! The task that reports, and what it shares with the handle.

use super::{
    AllotmentStatus, Mode, Rate, Resource,
    demand::Demand,
    holder::Holder,
    report::{Answer, Desk, Report, Verb},
};
use crate::{JoinError, Link, Route, fleet::jittered, slot_of};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};
use tollgate::{
    Clock, Inherit, Limiter, Quota, Tick,
    watch::{Event, Observer},
};

/// What the handle and the task share.
#[derive(Debug)]
pub(super) struct Shared {
    desk: Desk,
    clock: Clock,
    limiter: Limiter,
    wake: Arc<Wake>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holder: Holder,
    demand: Demand,
    /// What the caller wants; measured if `None`.
    wish: Option<Rate>,
    wants: Rate,
    in_force: Rate,
    closed: bool,
    answers: u64,
    failures: u64,
    error: Option<String>,
}

/// Asks the task to report before the next report is due.
#[derive(Debug, Default)]
struct Wake {
    notify: Notify,
    /// Whether a denial says something new: everything that was wanted is granted.
    armed: AtomicBool,
}

/// Hears the denials of the limiter.
#[derive(Debug)]
struct Bell(Arc<Wake>);

impl Observer for Bell {
    fn decided(&self, event: &Event<'_>) {
        // ORDERING: Relaxed, here and below. The flag only saves wake-ups; the notification orders
        // what the task reads.
        if event.decision.is_denied()
            && self.0.armed.load(Relaxed)
            && self.0.armed.swap(false, Relaxed)
        {
            self.0.notify.notify_one();
        }
    }
}

impl Shared {
    pub(super) fn new(desk: Desk, clock: Clock) -> Result<Self, JoinError> {
        let (resource, member) = (desk.resource(), desk.member());
        let wake = Arc::new(Wake::default());
        let limiter = Limiter::builder(quota(Rate::ZERO, resource.burst))
            .name(resource.name.as_str())
            .clock(clock.clone())
            .observer(Bell(wake.clone()))
            .build()
            .map_err(|error| JoinError::new(error.to_string()))?;
        let least = member.least.unwrap_or(resource.capacity.split(100));
        let state = Mutex::new(State {
            holder: Holder::new(resource.capacity, resource.safe_capacity, resource.lease),
            demand: Demand::new(least, clock.now()),
            wish: None,
            wants: Rate::ZERO,
            in_force: Rate::ZERO,
            closed: false,
            answers: 0,
            failures: 0,
            error: None,
        });
        Ok(Self { desk, clock, limiter, wake, state })
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn share(&self) -> Rate {
        self.state().in_force
    }

    pub(super) fn want(&self, wish: Option<Rate>) {
        self.state().wish = wish;
        self.wake.notify.notify_one();
    }

    /// Takes the share out of force, and ends the task.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.put_in_force(&mut state, Rate::ZERO);
        drop(state);
        self.wake.notify.notify_one();
    }

    pub(super) fn status(&self) -> AllotmentStatus {
        let state = self.state();
        let now = self.clock.now();
        let mode = if state.closed { Mode::Left } else { state.holder.share(now).1 };
        AllotmentStatus {
            share: state.in_force,
            wants: state.wants,
            mode,
            lease_left: state.holder.lease_left(now),
            clients: state.holder.clients(),
            answers: state.answers,
            failures: state.failures,
            last_error: state.error.clone(),
        }
    }

    /// Puts the share of this moment in force. Returns when it changes by itself, or `None` when the
    /// allotment has gone.
    fn settle(&self, now: Tick) -> Option<Tick> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        let share = state.holder.share(now).0;
        self.put_in_force(&mut state, share);
        Some(state.holder.next_change(now).unwrap_or(Tick::MAX))
    }

    fn put_in_force(&self, state: &mut State, share: Rate) {
        if state.in_force == share {
            return;
        }
        // What is left stays left: a share that grows brings no permits with it.
        match self.limiter.set_quota(quota(share, self.desk.resource().burst), Inherit::AsIs) {
            Ok(()) => state.in_force = share,
            Err(error) => tracing::error!(%error, %share, "the limiter rejects its new share"),
        }
    }

    fn next_report(&self, now: Tick) -> Report {
        let mut state = self.state();
        let measured = state.demand.measure(now, &self.limiter.counts());
        state.wants = state.wish.unwrap_or(measured);
        let wants = state.wants;
        state.holder.report(now, wants)
    }

    /// Tells whether another report is needed at once.
    fn take(&self, sent: Tick, report: &Report, answer: Result<Answer, String>) -> bool {
        let mut state = self.state();
        match answer {
            Ok(answer) => {
                let shrunk = state.holder.answered(sent, report, answer);
                state.answers += 1;
                state.error = state.holder.refusal().map(str::to_owned);
                let enough =
                    matches!(answer, Answer::Granted { share, .. } if share >= report.wants);
                // ORDERING: Relaxed, see `Bell`.
                self.wake.armed.store(enough, Relaxed);
                shrunk
            }
            Err(error) => {
                state.holder.failed(self.clock.now());
                state.failures += 1;
                state.error = Some(error);
                false
            }
        }
    }

    /// Reports or leaves, and waits for the answer.
    async fn tell(
        &self,
        link: &Link,
        verb: Verb,
        report: &Report,
        patience: Duration,
    ) -> Result<Answer, String> {
        let route = Route::Slot(slot_of(self.desk.key()));
        let call = self.desk.call(verb, report, 0);
        let reply = timeout(patience, link.run(route, self.desk.script(), call)).await;
        let reply = reply.map_err(|_| format!("no reply within {patience:?}"))?;
        Answer::read(&reply.map_err(|error| error.to_string())?)
    }

    /// Returns when the next report is due after one that was sent at `sent`: soon if nobody
    /// answered, and when learning is over.
    fn next_due(&self, sent: Tick) -> Tick {
        let Resource { refresh, soonest, .. } = *self.desk.resource();
        let holder = &self.state().holder;
        if holder.is_failing() {
            return sent.saturating_add(jittered(soonest));
        }
        let regular = sent.saturating_add(jittered(refresh));
        match holder.learned() {
            // Not all at the same moment.
            Some(learned) => {
                regular.min(learned.saturating_add(refresh.mul_f64(0.1 * fastrand::f64())))
            }
            None => regular,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in here is a bug, but no reason to lose the share.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a share as a quota: exact, because so many millionths per second are as many permits in a
/// million seconds.
pub(super) fn quota(share: Rate, burst: Duration) -> Quota {
    let micros = u128::from(share.as_micros());
    // Millionths of a permit per second, times nanoseconds.
    let permits = (micros * burst.as_nanos()).div_ceil(1_000_000_000_000_000);
    // OVERFLOW: 10^9 per second for a day is below 10^14.
    let permits = permits.max(u128::from(micros > 0)) as u64;
    Quota::per(share.as_micros(), Duration::from_secs(1_000_000)).burst(permits)
}

/// Reports until the allotment is closed, then gives the share back.
pub(super) async fn run(link: Link, shared: Arc<Shared>) {
    let resource = shared.desk.resource();
    let (refresh, soonest) = (resource.refresh, resource.soonest);
    // When the last report was sent, and when the next is due.
    let mut last: Option<Tick> = None;
    let mut due = shared.clock.now();
    let mut is_asked = false;
    loop {
        let now = shared.clock.now();
        let Some(change) = shared.settle(now) else { break };
        let earliest = last.map_or(now, |last| last.saturating_add(soonest));
        let next = if is_asked { due.min(earliest) } else { due };
        if now < next {
            let wait = next.min(change).since(now);
            is_asked |= timeout(wait, shared.wake.notify.notified()).await.is_ok();
            continue;
        }
        is_asked = false;
        last = Some(now);
        refresh_once(&link, &shared).await;
        due = shared.next_due(now);
    }
    let report = shared.next_report(shared.clock.now());
    if let Err(error) = shared.tell(&link, Verb::Leave, &report, refresh).await {
        tracing::debug!(
            error,
            "could not give a share back; it becomes free when the lease expires"
        );
    }
}

/// Reports, and once more if the share has become smaller.
async fn refresh_once(link: &Link, shared: &Shared) {
    for _ in 0..2 {
        let sent = shared.clock.now();
        let Some(change) = shared.settle(sent) else { return };
        // The share must not outlive its lease because a report hangs.
        let patience = change.since(sent).min(shared.desk.resource().refresh);
        let report = shared.next_report(sent);
        let answer = shared.tell(link, Verb::Report, &report, patience).await;
        if !shared.take(sent, &report, answer) {
            return;
        }
    }
}
