//! Builds a server from a configuration, ready to run.

use super::{
    Manager, Phase, Settings, Shared, Source, notify,
    periodic::{adapt, agree, sample, watch_files},
    redis,
};
use crate::{
    admin::Control,
    config::{
        Config, Endpoint, MemorySettings, ReservationSettings, ServerSettings, SnapshotSettings,
        StoreKind,
    },
    engine::{Backend, Engine},
    net::{
        Access, BindError, Bound, Listener, RESERVED, TlsOf, Workers, connections_allowed,
        settings_of,
    },
    plan::Plan,
};
use std::{
    fmt,
    future::pending,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    select,
    sync::mpsc,
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};
use tollgate::{Clock, Seed, SnapshotError, store::MemoryStore};

/// How long a shared store may take to close, and a collector to receive the last traces, while the
/// snapshots are written.
const CLOSE: Duration = Duration::from_secs(2);

/// Why a server cannot start.
#[derive(Debug)]
pub struct StartError(pub(super) String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl From<BindError> for StartError {
    fn from(error: BindError) -> Self {
        Self(error.to_string())
    }
}

fn wrong(error: impl fmt::Display) -> StartError {
    StartError(error.to_string())
}

/// A server with its listeners bound, ready to run.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    manager: Arc<Manager>,
    bound: Vec<Bound>,
    tls: Arc<TlsOf>,
    snapshots: Vec<Snapshots>,
}

/// A store whose state is written to a file periodically.
#[derive(Clone, Debug)]
struct Snapshots {
    /// The number of the store.
    number: usize,
    store: MemoryStore,
    settings: SnapshotSettings,
    /// Allows one writer at a time, so that an older state never replaces a newer one.
    writing: Arc<Mutex<()>>,
}

impl Snapshots {
    /// Writes the file, and returns how many keys it has.
    fn save(&self) -> Result<u64, SnapshotError> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.store.save(&self.settings.path)
    }
}

impl Server {
    /// Reads the configuration, restores snapshots and binds the listeners.
    ///
    /// # Errors
    ///
    /// When the configuration is wrong, a file cannot be read, all listeners are off, or an address is
    /// taken. Redis servers that do not respond are not an error: see [docs/redis.md].
    ///
    /// # Panics
    ///
    /// When a store is in Redis, and there is no tokio runtime.
    ///
    /// [docs/redis.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/redis.md
    pub fn bind(source: Source, clock: &Clock) -> Result<Self, StartError> {
        let config = source.read().map_err(StartError)?;
        let mut settings = settings(&config)?;
        bound_by_descriptors(&mut settings, config.server.max_connections)?;
        let tls = Arc::new(TlsOf::default());
        tls.install(TlsOf::read(&config.server).map_err(wrong)?);
        let mut bound = Vec::new();
        for listener in Listener::ALL {
            bound.extend(Bound::bind(listener, endpoint(&settings, listener))?);
        }
        for bound in &bound {
            warn_if_open(bound, &settings.access, &config.server);
        }
        let (backends, snapshots) = open_stores(&config, clock)?;
        let plan = Plan::compile(config, None).map_err(wrong)?;
        if bound.is_empty() {
            return Err(wrong(
                "all listeners are off, so no client can connect; turn on at least one of http, \
                 grpc, resp and admin",
            ));
        }
        let shared = Shared::new(Engine::new(plan, backends), settings);
        let manager = Manager::new(Arc::clone(&shared), source, Arc::clone(&tls));
        shared.admin.set_control(Arc::clone(&manager) as Arc<dyn Control>);
        for Snapshots { number, store, settings, .. } in &snapshots {
            if settings.path.is_file() {
                restore(store, &settings.path);
            } else if settings.path.exists() {
                // Renaming a folder or a device could take it away from another program.
                let path = settings.path.display();
                let text = format!("{path} is not a regular file; give the path of a snapshot");
                return Err(StartError(text));
            }
            // A snapshot that cannot be used was renamed.
            if settings.path.exists() {
                manager.note_snapshot(*number, &settings.path, None);
            }
        }
        Ok(Self { shared, manager, bound, tls, snapshots })
    }

    /// Returns the state that connections share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the manager of the configuration.
    #[must_use]
    pub const fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Returns the endpoints that it listens on.
    #[must_use]
    pub fn endpoints(&self) -> Vec<(Listener, Endpoint)> {
        self.bound.iter().map(|bound| (bound.listener, bound.endpoint())).collect()
    }

    /// Tells whether a listener speaks TLS.
    #[must_use]
    pub fn has_tls(&self, listener: Listener) -> bool {
        settings_of(&self.shared.engine.plan().config().server, listener).is_some()
    }

    /// Tells whether clients of a listener need a token, a password or a certificate.
    #[must_use]
    pub fn has_secret(&self, listener: Listener) -> bool {
        let plan = self.shared.engine.plan();
        let tls = settings_of(&plan.config().server, listener);
        self.shared.access().has_tokens(listener) || tls.is_some_and(|tls| tls.client_ca.is_some())
    }

    /// Connects to the shared stores, serves until `stop` receives, and shuts down. A further
    /// message ends the current phase of the shutdown: the drain delay, or the drain.
    ///
    /// The shutdown takes at most [`drain_delay`](Settings::drain_delay), then
    /// [`drain_timeout`](Settings::drain_timeout), then three seconds and the time that the disk
    /// takes to write the snapshots, regardless of the clients.
    ///
    /// # Errors
    ///
    /// When threads cannot be started, or the last snapshot cannot be written.
    pub async fn run(self, mut stop: mpsc::Receiver<()>) -> Result<(), StartError> {
        let Self { shared, manager, bound, tls, snapshots } = self;
        shared.set_phase(Phase::Connecting);
        let workers = Arc::new(Workers::start(&shared, &tls).map_err(wrong)?);
        let is_admin = |bound: &Bound| bound.listener == Listener::Admin;
        let (admin, others) = bound.into_iter().partition(is_admin);
        let (mut for_admins, mut tasks) = (accept(admin, &workers), JoinSet::new());
        let is_stopped = select! {
            biased;
            () = connect(&shared) => false,
            _ = stop.recv() => true,
        };
        if !is_stopped {
            shared.set_phase(Phase::Serving);
            tasks = accept(others, &workers);
            tasks.spawn(watch_files(Arc::clone(&manager)));
            tasks.spawn(sample(Arc::clone(&shared)));
            tasks.spawn(adapt(Arc::clone(&shared)));
            tasks.spawn(agree(Arc::clone(&shared)));
            for snapshots in &snapshots {
                tasks.spawn(write_snapshots(snapshots.clone(), Arc::clone(&manager)));
            }
            notify("READY=1");
            stop.recv().await;
        }
        tracing::info!("shutting down");
        shared.start_leaving().await;
        if !is_stopped {
            unless_stopped(&mut stop, shared.settings.drain_delay, pending()).await;
        }
        tasks.shutdown().await;
        shared.start_draining();
        let drained = drained(&shared, &mut for_admins);
        unless_stopped(&mut stop, shared.settings.drain_timeout, drained).await;
        for_admins.shutdown().await;
        if let Some(workers) = Arc::into_inner(workers) {
            workers.end().await;
        }
        finish(&shared, snapshots).await
    }
}

/// Starts to accept connections.
fn accept(bound: Vec<Bound>, workers: &Arc<Workers>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for bound in bound {
        let workers = Arc::clone(workers);
        tasks.spawn(async move {
            if let Err(error) = workers.accept(bound).await {
                tracing::error!("a listener stopped: {error}");
            }
        });
    }
    tasks
}

/// Waits until the shared stores respond, each for as long as its settings allow. Decisions before
/// that would follow `failure`, and add to the calls that the stores admit.
async fn connect(shared: &Shared) {
    let mut waits = JoinSet::new();
    for (number, store) in shared.engine.stores().iter().cloned().enumerate() {
        waits.spawn(async move {
            let Some(store) = store.remote() else { return };
            if let Some(why) = store.connect().await {
                tracing::warn!(
                    store = number,
                    "the store cannot be reached; serving by each policy's `failure`: {why}"
                );
            }
        });
    }
    waits.join_all().await;
}

/// Waits for `done`, but at most for `limit`, and only until a message to stop.
async fn unless_stopped(
    stop: &mut mpsc::Receiver<()>,
    limit: Duration,
    done: impl Future<Output = ()>,
) {
    let stopped = async {
        if stop.recv().await.is_none() {
            // The sender is gone, so no message can come.
            pending::<()>().await;
        }
    };
    select! {
        _ = timeout(limit, done) => {}
        () = stopped => tracing::info!("a second signal ended the wait"),
    }
}

/// Waits until no client is connected, then closes the admin listener, which shows until then that
/// the server is not ready, and waits for its connections.
async fn drained(shared: &Shared, for_admins: &mut JoinSet<()>) {
    let mut ticks = interval(Duration::from_millis(10));
    let others = Listener::ALL.iter().filter(|listener| **listener != Listener::Admin);
    while others.clone().any(|listener| shared.traffic(*listener).counts().open > 0) {
        ticks.tick().await;
    }
    for_admins.shutdown().await;
    while shared.traffic(Listener::Admin).counts().open > 0 {
        ticks.tick().await;
    }
}

/// Writes the snapshots, closes the shared stores and sends the last traces, all at once.
async fn finish(shared: &Arc<Shared>, snapshots: Vec<Snapshots>) -> Result<(), StartError> {
    let saved = async {
        // A failed snapshot does not prevent the others.
        let mut last = Ok(());
        for snapshots in snapshots {
            match spawn_blocking(move || snapshots.save()).await.map_err(wrong)? {
                Ok(keys) => tracing::info!(keys, "snapshot written"),
                Err(error) => last = Err(wrong(error)),
            }
        }
        last
    };
    let closed = async {
        for store in shared.engine.stores().iter().filter_map(Backend::remote) {
            // Use that is not booked now stays unbooked.
            store.close().await;
        }
    };
    // The exporter of traces needs this thread meanwhile.
    let trace = Arc::clone(shared);
    let sent = spawn_blocking(move || trace.trace.finish());
    let (saved, _, _) = tokio::join!(saved, timeout(CLOSE, closed), timeout(CLOSE, sent));
    saved
}

fn endpoint(settings: &Settings, listener: Listener) -> &Endpoint {
    match listener {
        Listener::Http => &settings.http,
        Listener::Grpc => &settings.grpc,
        Listener::Resp => &settings.resp,
        Listener::Admin => &settings.admin,
    }
}

fn settings(config: &Config) -> Result<Settings, StartError> {
    let access = Access::read(&config.server).map_err(StartError)?;
    Ok(Settings { access, ..Settings::with(&config.server) })
}

/// Warns about a listener that other machines can reach and that requires no secret.
fn warn_if_open(bound: &Bound, access: &Access, server: &ServerSettings) {
    if let Endpoint::Tcp(address) = bound.endpoint()
        && !address.ip().to_canonical().is_loopback()
        && !access.has_tokens(bound.listener)
        && settings_of(server, bound.listener).is_none_or(|tls| tls.client_ca.is_none())
    {
        let listener = bound.listener;
        tracing::warn!(
            %listener, %address,
            "anyone who can reach this address can use it; set a token, or listen on 127.0.0.1 \
             (https://github.com/tollgate-rs/tollgate/blob/main/docs/security.md)"
        );
    }
}

/// Limits connections by the file descriptors that the process may have, and logs the bounds.
fn bound_by_descriptors(settings: &mut Settings, wanted: Option<usize>) -> Result<(), StartError> {
    let allowed = connections_allowed(wanted).map_err(StartError)?;
    settings.max_descriptors = allowed;
    settings.max_connections = wanted.unwrap_or(allowed);
    tracing::info!(
        descriptors = allowed.saturating_add(RESERVED),
        reserved = RESERVED,
        max_connections = settings.max_connections,
        connection_memory_bytes = settings.connection_memory_bytes,
        "connection limits"
    );
    Ok(())
}

/// Opens the stores of a configuration, the default one first.
fn open_stores(
    config: &Config,
    clock: &Clock,
) -> Result<(Vec<Backend>, Vec<Snapshots>), StartError> {
    let server = &config.server;
    let memory = StoreKind::Memory;
    let kind = server.store.as_ref().unwrap_or(&memory);
    let first = (kind, &server.redis, (&server.memory, server.snapshot.as_ref()));
    let named = config.stores.iter();
    let named =
        named.map(|store| (&store.kind, &store.redis, (&store.memory, store.snapshot.as_ref())));
    let (mut backends, mut snapshots) = (Vec::new(), Vec::new());
    for (number, (kind, redis, (memory, snapshot))) in
        std::iter::once(first).chain(named).enumerate()
    {
        match kind {
            StoreKind::Memory => {
                let store = open_store(memory, snapshot, clock)?;
                if let Some(settings) = snapshot {
                    let (store, settings) = (store.clone(), settings.clone());
                    snapshots.push(Snapshots { number, store, settings, writing: Arc::default() });
                }
                backends.push(Backend::Memory(store));
            }
            StoreKind::Redis(at) => {
                if let Some(snapshot) = snapshot {
                    tracing::warn!(
                        store = number, path = %snapshot.path.display(),
                        "this store writes no snapshots: its state is in Redis and outlives the \
                         process"
                    );
                }
                backends.push(Backend::Remote(redis::open(at, redis, clock)?));
            }
        }
    }
    Ok((backends, snapshots))
}

/// The maximum of live keys in a store without a configured bound: 400 MB of memory.
const DEFAULT_MAX_KEYS: u64 = 10_000_000;

fn open_store(
    memory: &MemorySettings,
    snapshot: Option<&SnapshotSettings>,
    clock: &Clock,
) -> Result<MemoryStore, StartError> {
    let mut builder = MemoryStore::builder().clock(clock.clone());
    if let Some(keys) = memory.bounded {
        builder = builder.bounded(keys);
    }
    if memory.bounded.is_none() {
        builder = builder.max_keys(memory.max_keys.unwrap_or(DEFAULT_MAX_KEYS));
    }
    let ReservationSettings { total, per_policy, per_key } = memory.reservations;
    if let Some(most) = total {
        builder = builder.max_reservations(most);
    }
    if let Some(most) = per_policy {
        builder = builder.max_reservations_per_policy(most);
    }
    if let Some(most) = per_key {
        builder = builder.max_reservations_per_key(most);
    }
    if let Some(most) = memory.max_permits {
        builder = builder.max_permits(most);
    }
    if let Some(snapshot) = snapshot {
        builder = builder.seed(Seed::load_or_create(seed_path(&snapshot.path)).map_err(wrong)?);
    }
    builder.build().map_err(wrong)
}

/// Restores a snapshot. Renames one that cannot be used: a limiter that starts empty is better than
/// none.
fn restore(store: &MemoryStore, path: &Path) {
    match store.restore(path) {
        Ok(keys) => tracing::info!(keys, path = %path.display(), "snapshot restored"),
        Err(error) => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".unusable");
            let kept = std::fs::rename(path, &aside);
            let kept = kept.map_or_else(|error| error.to_string(), |()| "renamed".into());
            let path = path.display();
            tracing::error!(%path, %kept, "starting without the snapshot: {error}");
        }
    }
}

/// The secret that fingerprints depend on is beside the snapshot, in a file that only its owner may read.
fn seed_path(snapshot: &Path) -> std::path::PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".seed");
    name.into()
}

async fn write_snapshots(snapshots: Snapshots, manager: Arc<Manager>) {
    let Snapshots { number, settings, .. } = snapshots.clone();
    let mut ticks = interval(settings.every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let snapshots = snapshots.clone();
        let saved = spawn_blocking(move || snapshots.save()).await;
        match saved {
            Ok(Ok(keys)) => {
                tracing::debug!(keys, "snapshot written");
                manager.note_snapshot(number, &settings.path, None);
            }
            Ok(Err(error)) => {
                tracing::error!("the snapshot was not written: {error}");
                manager.note_snapshot(number, &settings.path, Some(error.to_string()));
            }
            Err(_) => {}
        }
    }
}
