//! One server: its connections, its breaker, and the tasks that keep them.

use super::{
    LinkError, NodeStatus,
    breaker::{Breaker, State},
    connect::{Connector, Role},
    io::Io,
    pipe::{Exchange, Phase, Pipe, Refusal},
    settings::Address,
    wait::{Deadline, pause, race},
};
use crate::{Command, Reply};
use std::{
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time::timeout,
};
use tollgate::{Clock, Pass};

/// The state that all servers of a link share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) connector: Arc<Connector>,
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
    /// Counts the changes of state of all servers.
    pub(super) changes: watch::Sender<u64>,
    /// Called when a server is lost, or says that it is not what it should be.
    pub(super) trouble: Notify,
}

impl Common {
    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// One server. Its tasks end when it is dropped.
#[derive(Debug)]
pub(super) struct Node {
    core: Arc<Core>,
    tasks: OnceLock<Vec<AbortHandle>>,
}

#[derive(Debug)]
struct Core {
    common: Arc<Common>,
    address: Address,
    name: String,
    role: Role,
    pipes: Vec<Pipe>,
    next: AtomicUsize,
    breaker: Breaker,
    state: watch::Sender<State>,
    /// Whether the first connection is open: the others wait for it.
    leads: watch::Sender<bool>,
    calls: AtomicU64,
    errors: AtomicU64,
    timeouts: AtomicU64,
    shed: AtomicU64,
    connects: AtomicU64,
}

impl Node {
    /// Returns a server to which nothing is connected yet: the first call does that.
    pub(super) fn new(common: &Arc<Common>, address: Address, role: Role) -> Arc<Self> {
        let settings = &common.connector.settings;
        let core = Core {
            common: Arc::clone(common),
            name: address.to_string(),
            address,
            role,
            pipes: (0..settings.connections).map(|_| Pipe::new(settings.max_in_flight)).collect(),
            next: AtomicUsize::new(0),
            breaker: Breaker::new(settings, common.clock.clone()),
            state: watch::Sender::new(State::Connecting),
            leads: watch::Sender::new(false),
            calls: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            connects: AtomicU64::new(0),
        };
        Arc::new(Self { core: Arc::new(core), tasks: OnceLock::new() })
    }

    /// Starts to connect, unless that was done.
    pub(super) fn start(&self) {
        self.tasks.get_or_init(|| {
            let runtime = &self.core.common.runtime;
            let keep = |index| {
                let core = Arc::clone(&self.core);
                runtime.spawn(async move { core.keep(index).await }).abort_handle()
            };
            (0..self.core.pipes.len()).map(keep).collect()
        });
    }

    pub(super) fn address(&self) -> &Address {
        &self.core.address
    }

    pub(super) fn state(&self) -> State {
        self.core.breaker.state()
    }

    pub(super) fn is_usable(&self) -> bool {
        matches!(self.state(), State::Up | State::Probing)
    }

    /// Sends a command and waits for its reply, which may be an error of the server's. Returns the
    /// command too, for another server.
    pub(super) async fn exchange(
        &self,
        mut command: Vec<u8>,
        asking: bool,
        mut deadline: Deadline<'_>,
    ) -> (Vec<u8>, Result<Reply, LinkError>) {
        self.start();
        let core = &*self.core;
        let pass = match core.breaker.admit(&core.name) {
            Ok(pass) => pass,
            Err(text) => {
                count(&core.shed);
                return (command, Err(LinkError::unavailable(text)));
            }
        };
        count(&core.calls);
        let pushed =
            poll_fn(|context| Poll::Ready(core.push(&mut command, asking, context.waker()))).await;
        let mut exchange = match pushed {
            Ok(exchange) => exchange,
            Err(error) => return (command, Err(error)),
        };
        match race(deadline.as_mut(), &mut exchange).await {
            Some((command, result)) => {
                core.judge(pass, &result);
                (command, result)
            }
            None => {
                let error = core.expired(exchange.give_up());
                count(&core.timeouts);
                core.failed(pass, &error.to_string());
                (Vec::new(), Err(error))
            }
        }
    }

    pub(super) fn status(&self) -> NodeStatus {
        let core = &*self.core;
        // ORDERING: Relaxed. Counters for people; they need not agree with each other.
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        NodeStatus {
            address: core.name.clone(),
            state: core.breaker.state().name(),
            in_flight: core.pipes.iter().map(|pipe| pipe.in_flight() as u64).sum(),
            calls: read(&core.calls),
            errors: read(&core.errors),
            timeouts: read(&core.timeouts),
            shed: read(&core.shed),
            connects: read(&core.connects),
            last_error: core.breaker.last_error(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.get().into_iter().flatten().for_each(AbortHandle::abort);
    }
}

impl Core {
    /// Queues a command on an open connection with a free slot.
    fn push(
        &self,
        command: &mut Vec<u8>,
        asking: bool,
        waker: &std::task::Waker,
    ) -> Result<Exchange<'_>, LinkError> {
        // ORDERING: Relaxed. It only spreads the calls.
        let first = if self.pipes.len() > 1 { self.next.fetch_add(1, Relaxed) } else { 0 };
        let mut is_full = false;
        for step in 0..self.pipes.len() {
            let pipe = &self.pipes[first.wrapping_add(step) % self.pipes.len()];
            match pipe.push(command, asking, waker) {
                Ok(exchange) => return Ok(exchange),
                Err(refusal) => is_full |= refusal == Refusal::Full,
            }
        }
        count(&self.shed);
        let name = &self.name;
        let text = if is_full {
            let most = self.common.connector.settings.max_in_flight;
            format!("{name} already has {most} calls in flight per connection; raise max_in_flight")
        } else {
            let last = self.breaker.last_error();
            format!("{name} has no connection: {}", last.as_deref().unwrap_or("not yet"))
        };
        Err(LinkError::unavailable(text))
    }

    fn expired(&self, was_sent: bool) -> LinkError {
        let (name, deadline) = (&self.name, self.common.connector.settings.deadline);
        if was_sent {
            LinkError::unknown(format!("{name} did not reply within {deadline:?}"))
        } else {
            LinkError::unavailable(format!("{name} accepted no command within {deadline:?}"))
        }
    }

    fn judge(&self, pass: Pass<'_>, result: &Result<Reply, LinkError>) {
        match result {
            Ok(Reply::Error(text)) if is_failure(text) => self.failed(pass, text),
            Ok(_) => {
                let changed = self.breaker.succeeded(pass);
                self.note(changed);
            }
            Err(error) => self.failed(pass, &error.to_string()),
        }
    }

    fn failed(&self, pass: Pass<'_>, error: &str) {
        count(&self.errors);
        let changed = self.breaker.failed(pass, error);
        self.note(changed);
    }

    /// Tells those who wait that the state changed.
    fn note(&self, changed: Option<State>) {
        let Some(state) = changed else { return };
        let name = &self.name;
        match state {
            State::Up | State::Connecting => tracing::info!("{name} is up"),
            State::Probing => tracing::info!("{name} responds; the next calls are a trial"),
            State::Open => {
                let last = self.breaker.last_error().unwrap_or_default();
                tracing::warn!("{name} gets no calls while its breaker is open: {last}");
                self.common.trouble.notify_one();
            }
        }
        // Read inside: so the last to write is not the one that read first.
        self.state.send_modify(|known| *known = self.breaker.state());
        self.common.changed();
    }

    /// Keeps one connection open forever.
    async fn keep(&self, index: usize) {
        let pipe = &self.pipes[index];
        let mut leads = self.leads.subscribe();
        let mut tries = 0_u32;
        loop {
            if index > 0 && leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let began = self.common.clock.now();
            let why = match self.common.connector.connect(&self.address, self.role).await {
                Ok(connection) => {
                    count(&self.connects);
                    let io = Io::new(pipe, &self.name, connection);
                    if index == 0 {
                        self.leads.send_replace(true);
                    }
                    self.note(self.breaker.connected());
                    tokio::select! {
                        biased;
                        why = io => why,
                        why = self.probe(pipe) => why,
                    }
                }
                Err(why) => {
                    pipe.refuse(&format!("{}: {why}", self.name));
                    why
                }
            };
            if index == 0 {
                self.leads.send_replace(false);
            }
            self.lost(&why);
            // A connection that was open for a while is opened again at once: mostly it was closed
            // for a temporary reason. One that breaks as soon as it opens is not.
            let lasted = self.common.clock.now().since(began);
            tries = if lasted < self.common.connector.settings.probe_max { tries + 1 } else { 0 };
            if tries > 0 {
                pause(self.breaker.wait_after(tries)).await;
            }
        }
    }

    /// Notes that a connection is lost or could not be made.
    fn lost(&self, why: &str) {
        let stands = self.pipes.iter().any(|pipe| pipe.phase() == Phase::Up);
        if stands {
            tracing::warn!("{}: lost a connection: {why}", self.name);
            return;
        }
        let changed = self.breaker.open(why);
        self.note(changed);
        self.common.trouble.notify_one();
    }

    /// Asks the server, while the breaker is open, whether it answers again; while it is on trial and no calls come, whether
    /// it still does; and otherwise once in a while whether it is still there. Returns if it does not answer for too
    /// long: then a new connection is the better question.
    async fn probe(&self, pipe: &Pipe) -> String {
        let settings = &self.common.connector.settings;
        let mut state = self.state.subscribe();
        loop {
            let troubled = state.wait_for(|state| matches!(state, State::Open | State::Probing));
            let trouble = timeout(settings.keepalive, troubled).await.ok();
            let trouble = trouble.and_then(|state| state.ok().map(|state| *state));
            if trouble == Some(State::Probing) {
                let decided = state.wait_for(|state| *state != State::Probing);
                if timeout(settings.probe_max, decided).await.is_ok() {
                    continue;
                }
            }
            if trouble == Some(State::Open) {
                pause(self.breaker.wait_after(self.breaker.opened())).await;
                if let Some(last) = self.breaker.last_error()
                    && last.starts_with("READONLY")
                    && self.role == Role::Any
                {
                    // Its name may mean another server by now.
                    return last;
                }
            }
            let began = self.common.clock.now();
            let mut ping = Command::new("PING", 0).into_bytes();
            let pushed =
                poll_fn(|context| Poll::Ready(pipe.push_probe(&mut ping, context.waker()))).await;
            let Ok(exchange) = pushed else { return "the connection is closed".into() };
            let Ok((_, result)) = timeout(settings.stall_timeout, exchange).await else {
                return format!("no reply to PING within {:?}", settings.stall_timeout);
            };
            let took = self.common.clock.now().since(began);
            let is_troubled = matches!(self.breaker.state(), State::Open | State::Probing);
            match result {
                Ok(Reply::Error(text)) if is_troubled && is_failure(&text) => {
                    self.note(self.breaker.open(&text));
                }
                Ok(_) if is_troubled && took > settings.deadline => {
                    self.note(self.breaker.open(&format!("a PING took {took:.1?}")));
                }
                Ok(_) => self.note(self.breaker.probed()),
                Err(error) => return error.to_string(),
            }
        }
    }
}

/// Tells whether an error of the server's means that the server, not the command, is in trouble.
pub(super) fn is_failure(error: &str) -> bool {
    let code = error.split(' ').next().unwrap_or_default();
    matches!(
        code,
        "OOM"
            | "READONLY"
            | "NOAUTH"
            | "WRONGPASS"
            | "LOADING"
            | "CLUSTERDOWN"
            | "MASTERDOWN"
            | "BUSY"
            | "NOREPLICAS"
            | "MISCONF"
    )
}

fn count(counter: &AtomicU64) {
    // ORDERING: Relaxed. A counter for people.
    counter.fetch_add(1, Relaxed);
}
