//! Live figures for the dashboard, as server-sent events.
//!
//! The first event is `state`: everything that the page shows at its start, with the decisions of the last
//! minute. A `tick` follows every second. Both carry complete figures, not differences: a slow
//! reader gets only the newest tick, and misses nothing by it. A stream that breaks off begins
//! again with `state`. A stream ends when the permissions of its reader change.

use super::{Alarm, sampler::Busy};
use super::{
    policies::{adaptive, level},
    read::{degraded, problems},
    reply::{Problem, time},
    route::Reader,
};
use crate::{engine::NodeStatus, net::Listener, server::Shared};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tokio::sync::watch;

/// Policies in one event at most.
const MOST_ROWS: usize = 200;

/// Streams at the same time at most.
const MOST_STREAMS: usize = 32;

/// The newest `tick`, for all streams.
#[derive(Debug)]
pub(super) struct Ticks(watch::Sender<Bytes>);

impl Default for Ticks {
    fn default() -> Self {
        Self(watch::Sender::new(Bytes::new()))
    }
}

/// Takes a sample of all counts, and sends the figures to every open dashboard. Call it every second.
pub fn sample(shared: &Shared) {
    shared.admin.sampler().tick(&shared.engine);
    let ticks = &shared.admin.ticks.0;
    if ticks.receiver_count() > 0 {
        ticks.send_replace(event("tick", shared, &figures(shared)));
    }
}

/// Writes an event. Its id is the number of the sample.
fn event(name: &str, shared: &Shared, data: &Value) -> Bytes {
    let id = shared.admin.sampler().samples();
    format!("id: {id}\nevent: {name}\nretry: 1000\ndata: {data}\n\n").into()
}

/// Returns the figures of a tick.
fn figures(shared: &Shared) -> Value {
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let sampler = shared.admin.sampler();
    let Busy { rows, busy, total, last } = sampler.busiest(MOST_ROWS);
    let in_flight = shared.engine.in_flight(&plan);
    let rules = plan.all_rules();
    let row = |(index, rates, last): (usize, super::Rates, [u32; 2])| {
        let rule = rules.get(index)?;
        let level = level(shared, rule, now);
        Some(json!({
            "id": rule.id(), "label": plan.title(rule),
            "allowed_per_second": rates.allowed_per_second(),
            "denied_per_second": rates.denied_per_second(),
            "last": last,
            "level": level.map(|level| level.left),
            "capacity": level.map(|level| level.full),
            "in_flight": in_flight.get(rule.id()),
            "adaptive": rule.adaptive().map(adaptive),
        }))
    };
    let status = match (shared.not_ready(), degraded(shared)) {
        (Some(why), _) => json!({ "word": "not ready", "why": why }),
        (None, Some(why)) => json!({ "word": "degraded", "why": why }),
        (None, None) => json!({ "word": "ready" }),
    };
    let stores = shared.engine.stores().iter().enumerate().map(|(number, store)| {
        let remote = store.remote().map(|store| store.status());
        let servers = remote.as_ref().map(|remote| &remote.nodes);
        let is_up = |node: &&NodeStatus| node.state == "up";
        json!({
            "name": super::store_name(&plan, number), "kind": store.kind(),
            "keys": store.memory().map(tollgate::store::MemoryStore::len),
            "bytes": store.memory().map(tollgate::store::MemoryStore::bytes),
            "degraded": remote.as_ref().and_then(|remote| remote.degraded.as_ref()),
            "servers": servers.map(Vec::len),
            "servers_up": servers.map(|servers| servers.iter().filter(is_up).count()),
        })
    });
    json!({
        "sample": sampler.samples(),
        "at": time(shared.engine.clock(), now),
        "last": last,
        "allowed_per_second": total.allowed_per_second(),
        "denied_per_second": total.denied_per_second(),
        "status": status,
        "problems": problems(shared, Alarm::default()),
        "version": plan.version(),
        "policies": plan.rules().len(),
        "stores": stores.collect::<Vec<_>>(),
        "audit": shared.admin.audit().written(),
        "busy": busy,
        "rows": rows.into_iter().filter_map(row).collect::<Vec<_>>(),
    })
}

/// The receiver again, and the tick that came; `None` when the server shuts down.
type Next = (watch::Receiver<Bytes>, Option<Bytes>);

/// One stream: the body of an answer.
pub(super) struct Events {
    shared: Arc<Shared>,
    /// Whether the connection is in use, for its idle timeout.
    active: Arc<AtomicBool>,
    reader: Reader,
    /// The first event, until it is sent.
    state: Option<Bytes>,
    next: Pin<Box<dyn Future<Output = Next> + Send>>,
}

impl Events {
    /// Opens a stream.
    ///
    /// # Errors
    ///
    /// 503 when too many are open.
    pub(super) fn open(
        shared: &Arc<Shared>,
        active: &Arc<AtomicBool>,
        reader: Reader,
    ) -> Result<Self, Problem> {
        let ticks = &shared.admin.ticks.0;
        if ticks.receiver_count() >= MOST_STREAMS {
            let text =
                format!("{MOST_STREAMS} dashboards are open; close one and load the page again");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        let mut receiver = ticks.subscribe();
        receiver.mark_unchanged();
        let mut state = figures(shared);
        state["history"] = json!(shared.admin.sampler().totals());
        state["may_change"] = json!(reader.may_change());
        state["read_only_because"] = json!(reader.read_only_because(shared));
        state["has_session"] = json!(shared.access().has_tokens(Listener::Admin));
        state["tollgate"] = json!(env!("CARGO_PKG_VERSION"));
        Ok(Self {
            shared: Arc::clone(shared),
            active: Arc::clone(active),
            reader,
            state: Some(event("state", shared, &state)),
            next: Box::pin(next(receiver, shared.drain())),
        })
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        // ORDERING: Relaxed. The task that serves the connection reads and writes it.
        self.active.store(true, Relaxed);
        if let Some(state) = self.state.take() {
            return Poll::Ready(Some(state));
        }
        let (receiver, tick) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(next(receiver, self.shared.drain()));
        Poll::Ready(tick.filter(|_| self.reader.is_unchanged(&self.shared)))
    }
}

/// Waits for the next tick.
async fn next(mut ticks: watch::Receiver<Bytes>, mut drain: watch::Receiver<bool>) -> Next {
    let tick = tokio::select! {
        changed = ticks.changed() => changed.is_ok().then(|| ticks.borrow_and_update().clone()),
        _ = drain.wait_for(|draining| *draining) => None,
    };
    (ticks, tick)
}
