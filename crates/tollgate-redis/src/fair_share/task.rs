//! The reporting task, and the state that it shares with the handle.

use super::{
    FairShareStatus, Mode, Rate, Resource,
    demand::Demand,
    holder::Holder,
    report::{Answer, Registration, Report, Verb},
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
    observe::{Event, Observer},
};

/// The state that the handle and the task share.
#[derive(Debug)]
pub(super) struct Shared {
    registration: Registration,
    clock: Clock,
    limiter: Limiter,
    wake: Arc<Wake>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holder: Holder,
    demand: Demand,
    /// The demand that the caller has set; measured if `None`.
    wish: Option<Rate>,
    wants: Rate,
    /// Whether the last answer granted the whole demand.
    is_enough: bool,
    in_force: Rate,
    closed: bool,
    answers: u64,
    failures: u64,
    error: Option<String>,
}

/// Wakes the task to report before the next report is due.
#[derive(Debug, Default)]
struct Wake {
    notify: Notify,
    /// Whether a denial is news: the last answer granted the whole demand.
    armed: AtomicBool,
}

/// Receives the denials of the limiter.
#[derive(Debug)]
struct DenialObserver(Arc<Wake>);

impl Observer for DenialObserver {
    fn decided(&self, event: &Event<'_>) {
        // ORDERING: Relaxed, here and below. The flag only saves wake-ups; the notification orders
        // the data that the task reads.
        if event.decision.is_denied()
            && self.0.armed.load(Relaxed)
            && self.0.armed.swap(false, Relaxed)
        {
            self.0.notify.notify_one();
        }
    }
}

impl Shared {
    pub(super) fn new(registration: Registration, clock: Clock) -> Result<Self, JoinError> {
        let (resource, member) = (registration.resource(), registration.member());
        let wake = Arc::new(Wake::default());
        let limiter = Limiter::builder(quota(Rate::ZERO, resource.burst))
            .name(resource.name.as_str())
            .clock(clock.clone())
            .observer(DenialObserver(wake.clone()))
            .build()
            .map_err(|error| JoinError::new(error.to_string()))?;
        let least = member.least.unwrap_or(resource.capacity.split(100));
        let state = Mutex::new(State {
            holder: Holder::new(resource.capacity, resource.safe_capacity, resource.lease),
            demand: Demand::new(least, resource.refresh, clock.now()),
            wish: None,
            wants: Rate::ZERO,
            is_enough: false,
            in_force: Rate::ZERO,
            closed: false,
            answers: 0,
            failures: 0,
            error: None,
        });
        Ok(Self { registration, clock, limiter, wake, state })
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

    /// Sets the share to zero, and ends the task.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.put_in_force(&mut state, Rate::ZERO);
        drop(state);
        self.wake.notify.notify_one();
    }

    pub(super) fn status(&self) -> FairShareStatus {
        let state = self.state();
        let now = self.clock.now();
        let mode = if state.closed { Mode::Left } else { state.holder.share(now).1 };
        FairShareStatus {
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

    /// Puts the current share in force. Returns when it changes by itself, or `None` when the fair
    /// share is gone.
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
        // The remaining permits stay as they are: a share that grows brings no permits with it.
        match self
            .limiter
            .set_quota(quota(share, self.registration.resource().burst), Inherit::AsIs)
        {
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

    /// Handles an answer. Returns whether another report is needed at once.
    fn take(&self, sent: Tick, report: &Report, answer: Result<Answer, String>) -> bool {
        let mut state = self.state();
        match answer {
            Ok(answer) => {
                let shrunk = state.holder.answered(sent, report, answer);
                state.answers += 1;
                state.error = state.holder.refusal().map(str::to_owned);
                state.is_enough =
                    matches!(answer, Answer::Granted { share, .. } if share >= report.wants);
                // ORDERING: Relaxed, see `DenialObserver`.
                self.wake.armed.store(state.is_enough, Relaxed);
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

    /// Sends a report or leaves, and waits for the answer.
    async fn tell(
        &self,
        table: &impl Table,
        verb: Verb,
        report: &Report,
        patience: Duration,
    ) -> Result<Answer, String> {
        let answer = timeout(patience, table.tell(&self.registration, verb, report)).await;
        answer.map_err(|_| format!("no reply within {patience:?}"))?
    }

    /// Returns for how long to measure a rise of demand from now on: zero if the caller has set its
    /// demand.
    fn measure_rise(&self, now: Tick) -> Duration {
        let mut state = self.state();
        if state.wish.is_some() {
            return Duration::ZERO;
        }
        state.demand.ran_short(now, &self.limiter.counts());
        self.registration.resource().refresh / 4
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in here is a bug, but no reason to lose the share.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a share as an exact quota: a number of millionths per second is the same number of
/// permits in a million seconds.
pub(super) fn quota(share: Rate, burst: Duration) -> Quota {
    let micros = u128::from(share.as_micros());
    // Millionths of a permit per second, times nanoseconds.
    let permits = (micros * burst.as_nanos()).div_ceil(1_000_000_000_000_000);
    // OVERFLOW: 10^9 per second for a day is below 10^14.
    let permits = permits.max(u128::from(micros > 0)) as u64;
    Quota::per(share.as_micros(), Duration::from_secs(1_000_000)).burst(permits)
}

/// The table of all processes' reports: a script in Redis, or its model in a test.
pub(super) trait Table: Send + Sync {
    fn tell(
        &self,
        registration: &Registration,
        verb: Verb,
        report: &Report,
    ) -> impl Future<Output = Result<Answer, String>> + Send;
}

impl Table for Link {
    async fn tell(
        &self,
        registration: &Registration,
        verb: Verb,
        report: &Report,
    ) -> Result<Answer, String> {
        let (route, call) =
            (Route::Slot(slot_of(registration.key())), registration.call(verb, report, 0));
        let reply = self.run(route, registration.script(), call).await;
        Answer::read(&reply.map_err(|error| error.to_string())?)
    }
}

/// When the task reports.
///
/// Every refresh, and earlier if demand rises: as soon as the rise is measured, and then as often
/// as is allowed until others have given up their part or a refresh has passed.
#[derive(Debug)]
struct Schedule {
    refresh: Duration,
    soonest: Duration,
    /// When the last report was sent.
    last: Option<Tick>,
    due: Tick,
    /// Until then, a report that is granted too little is repeated as soon as is allowed.
    rising_until: Tick,
}

impl Schedule {
    fn new(resource: &Resource, now: Tick) -> Self {
        let Resource { refresh, soonest, .. } = *resource;
        Self { refresh, soonest, last: None, due: now, rising_until: Tick::ZERO }
    }

    /// Schedules a report for a rise of demand, which is measured at `known`.
    fn report_rise(&mut self, known: Tick) {
        let earliest = self.last.map_or(known, |last| last.saturating_add(self.soonest));
        self.due = self.due.min(earliest.max(known));
        // Others report within a refresh and its jitter; by then they have given up their part.
        self.rising_until = self.due.saturating_add(self.refresh + self.refresh / 5);
    }

    /// Schedules the report after one that was sent at `sent`.
    fn sent(&mut self, sent: Tick, holder: &Holder, is_enough: bool) {
        self.last = Some(sent);
        let soon = sent.saturating_add(jittered(self.soonest));
        let is_rising = !is_enough && sent < self.rising_until;
        self.due = match holder.learned() {
            _ if holder.is_failing() || is_rising => soon,
            // Spread, so that not all processes report at the same moment.
            Some(learned) => {
                let regular = sent.saturating_add(jittered(self.refresh));
                let spread = self.refresh.mul_f64(0.1 * fastrand::f64());
                regular.min(learned.saturating_add(spread))
            }
            None => sent.saturating_add(jittered(self.refresh)),
        };
    }
}

/// Reports until the fair share is closed, then gives the share back.
pub(super) async fn run(table: impl Table, shared: Arc<Shared>) {
    let resource = shared.registration.resource();
    let mut schedule = Schedule::new(resource, shared.clock.now());
    loop {
        let now = shared.clock.now();
        let Some(change) = shared.settle(now) else { break };
        if now < schedule.due {
            let wait = schedule.due.min(change).since(now);
            if timeout(wait, shared.wake.notify.notified()).await.is_ok() {
                let now = shared.clock.now();
                schedule.report_rise(now.saturating_add(shared.measure_rise(now)));
            }
            continue;
        }
        refresh_once(&table, &shared).await;
        let state = shared.state();
        schedule.sent(now, &state.holder, state.is_enough);
    }
    let report = shared.next_report(shared.clock.now());
    if let Err(error) = shared.tell(&table, Verb::Leave, &report, resource.refresh).await {
        tracing::debug!(
            error,
            "could not give a share back; it becomes free when the lease expires"
        );
    }
}

/// Reports, and reports again if the share has shrunk.
async fn refresh_once(table: &impl Table, shared: &Shared) {
    for _ in 0..2 {
        let sent = shared.clock.now();
        let Some(change) = shared.settle(sent) else { return };
        // A report that hangs must not extend the share beyond its lease.
        let patience = change.since(sent).min(shared.registration.resource().refresh);
        let report = shared.next_report(sent);
        let answer = shared.tell(table, Verb::Report, &report, patience).await;
        if !shared.take(sent, &report, answer) {
            return;
        }
    }
}
