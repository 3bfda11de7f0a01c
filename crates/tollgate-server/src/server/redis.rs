//! A store in Redis: the link, the store on it, the failure policy, and the leases.

use super::{StartError, lowest_rate::lowest_rate};
use crate::{
    config::{Config, Failure, Fleet, Lease, RedisOptions, StoreKind},
    engine::{Bounds, PolicySettings, RemoteCounts, RemoteStatus, RemoteStore},
    net,
};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;
use tollgate::{
    Clock, Tick,
    store::{Policy, Store, forward_store},
};
use tollgate_redis::{
    FailurePolicy, Failures, FleetSize, GuardStatus, Guarded, Heartbeat, HeartbeatSettings,
    LeasePlan, LeaseSettings, Link, RedisStore, Secret, Settings, TwoTier, read_regular,
};

/// The default prefix of all keys.
const PREFIX: &str = "tollgate";

/// The default time to wait for the servers at the start.
const STARTUP_WAIT: Duration = Duration::from_secs(10);

/// How often to check meanwhile, if no change is signalled.
const LOOK: Duration = Duration::from_millis(20);

/// Opens a store in Redis. The servers need not respond yet.
pub(super) fn open(
    settings: &Settings,
    options: &RedisOptions,
    clock: &Clock,
) -> Result<Arc<dyn RemoteStore>, StartError> {
    let mut settings = settings.clone();
    if let Some(deadline) = options.deadline {
        settings.deadline = deadline;
    }
    if let Some(path) = &options.password_file {
        // Read here only to report a wrong path now; the link reads the file for each connection.
        net::Secret::read(path).map_err(|error| in_file(path, error))?;
        settings.password = Some(Secret::in_file(path));
    }
    let link = Link::open(settings).map_err(wrong)?;
    let prefix = options.prefix.as_deref().unwrap_or(PREFIX);
    let mut store = RedisStore::builder(link.clone()).prefix(prefix).clock(clock.clone());
    if let Some(path) = &options.key_secret_file {
        store = store.hash_keys(key_secret(path)?);
    }
    let (fleet, heartbeat) = match options.fleet_size.unwrap_or_default() {
        Fleet::Fixed(processes) => (FleetSize::fixed(processes), None),
        Fleet::Auto => {
            let joined = FleetSize::counted(link.clone(), prefix, HeartbeatSettings::new());
            let (fleet, heartbeat) = joined.map_err(wrong)?;
            (fleet, Some(heartbeat))
        }
    };
    let failure = failure_policy(options.failure.unwrap_or_default());
    let guarded = Guarded::builder(store.build().map_err(wrong)?)
        .failure(failure)
        .fleet(fleet.clone())
        .build()
        .map_err(wrong)?;
    let tiers = TwoTier::builder(guarded, fleet.clone()).build().map_err(wrong)?;
    let (heartbeat, failures) = (Mutex::new(heartbeat), Mutex::new((0, Tick::ZERO)));
    let startup_wait = options.startup_wait.unwrap_or(STARTUP_WAIT);
    let (prefix, name) = (prefix.into(), format!("{:016x}", RandomState::new().hash_one(0)));
    let names = Names { prefix, process: name };
    Ok(Arc::new(Shared { tiers, link, names, fleet, failure, startup_wait, heartbeat, failures }))
}

/// Checks that the password files of Redis servers are still valid: connections read them again.
pub(super) fn check_passwords(config: &Config) -> Result<(), String> {
    let first = (config.server.store.as_ref(), &config.server.redis);
    let named = config.stores.iter().map(|store| (Some(&store.kind), &store.redis));
    for (kind, options) in std::iter::once(first).chain(named) {
        let Some(StoreKind::Redis(settings)) = kind else { continue };
        let in_file = options.password_file.as_ref().map(Secret::in_file);
        let secrets = [&in_file, &settings.password, &settings.sentinel_password];
        secrets.into_iter().flatten().try_for_each(Secret::check)?;
    }
    Ok(())
}

fn wrong(error: impl fmt::Display) -> StartError {
    StartError(format!("the store in Redis: {error}"))
}

fn in_file(path: &Path, error: impl fmt::Display) -> StartError {
    wrong(format_args!("{}: {error}", path.display()))
}

/// Reads the secret that keys are hashed with: 32 hexadecimal digits.
fn key_secret(path: &Path) -> Result<[u8; 16], StartError> {
    let text = read_regular(path, 4096).map_err(|error| in_file(path, error))?;
    let digits = std::str::from_utf8(&text).unwrap_or_default().trim_end();
    let number = match digits.len() {
        32 if !digits.starts_with('+') => u128::from_str_radix(digits, 16).ok(),
        _ => None,
    };
    let rule = "is not a secret of 32 hexadecimal digits; create one with `openssl rand -hex 16`";
    number.map(u128::to_be_bytes).ok_or_else(|| in_file(path, rule))
}

const fn failure_policy(failure: Failure) -> FailurePolicy {
    match failure {
        Failure::Open => FailurePolicy::Open,
        Failure::Closed => FailurePolicy::Closed,
        Failure::Local => FailurePolicy::Local,
    }
}

/// The prefix of keys, and the name of this process.
struct Names {
    prefix: Box<str>,
    process: String,
}

/// A store in Redis with all its layers.
struct Shared {
    tiers: TwoTier<Guarded<RedisStore>>,
    link: Link,
    names: Names,
    fleet: FleetSize,
    /// For policies without their own.
    failure: FailurePolicy,
    startup_wait: Duration,
    heartbeat: Mutex<Option<Heartbeat>>,
    /// Failures so far, and when a check of the status first saw this many.
    failures: Mutex<(u64, Tick)>,
}

/// A failure is out of date after this time, if all servers are up.
const NEWS: Duration = Duration::from_secs(3);

impl Shared {
    /// Tells whether calls fail although all servers are up. Without calls the answer is unknown,
    /// so old failures do not count.
    fn is_failing(&self, guard: &GuardStatus) -> bool {
        let now = self.tiers.clock().now();
        let mut seen = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.0 != guard.store_errors {
            *seen = (guard.store_errors, now);
        }
        guard.is_degraded_now && now.since(seen.1) < NEWS
    }
}

impl RemoteStore for Shared {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn configure(&self, policies: &[PolicySettings]) {
        let (mut failures, mut leases) = (Failures::all(self.failure), LeasePlan::none());
        for PolicySettings { name, failure, lease } in policies {
            let failure = failure_policy(*failure);
            if failure != self.failure {
                failures = failures.but(&**name, failure);
            }
            let lease = match lease {
                Lease::Off => continue,
                Lease::Auto => LeaseSettings::new(),
                Lease::Sync(period) => LeaseSettings::new().sync(*period),
            };
            leases = leases.of(&**name, Some(lease));
        }
        // Both were checked with the configuration; the only possible error is a bound of the
        // layers.
        if let Err(error) = self.tiers.inner().set_failures(failures) {
            tracing::error!("the failure modes do not change: {error}");
        }
        if let Err(error) = self.tiers.change_leases(leases) {
            tracing::error!("the leases do not change: {error}");
        }
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async {
            let mut changes = self.link.subscribe();
            let answers = async {
                // For a Cluster, every server must respond.
                while self.link.ready(self.startup_wait).await.is_err()
                    || self.status().degraded.is_some()
                {
                    let _ = timeout(LOOK, changes.changed()).await;
                }
            };
            match timeout(self.startup_wait, answers).await {
                Ok(()) => None,
                Err(_) => {
                    let wait = self.startup_wait;
                    let why = self.status().degraded.unwrap_or_else(|| "no answer".to_owned());
                    Some(format!("{why} (after {wait:?} of startup_wait)"))
                }
            }
        })
    }

    fn lowest_rate<'a>(
        &'a self,
        policy: &'a str,
        own: f64,
    ) -> Pin<Box<dyn Future<Output = Option<f64>> + Send + 'a>> {
        Box::pin(async move {
            let Names { prefix, process } = &self.names;
            let key = format!("{prefix}:{{rate}}:{policy}");
            let lowest = lowest_rate(&self.link, &key, (process, own)).await;
            lowest.inspect_err(|error| tracing::debug!(policy, "no rate agreed: {error}")).ok()
        })
    }

    fn status(&self) -> RemoteStatus {
        let (nodes, guard) = (self.link.nodes(), self.tiers.inner().status());
        let tiers = self.tiers.status();
        let is_failing = self.is_failing(&guard);
        let away = nodes.iter().find(|node| node.state != "up");
        let degraded = match away {
            Some(node) => {
                let why = node.last_error.as_deref().unwrap_or("no connection yet");
                let state = match node.state {
                    "open" | "probing" => "its circuit breaker is open",
                    other => other,
                };
                Some(format!("{} ({state}): {why}", node.address))
            }
            None if nodes.is_empty() => Some("no server is known yet".to_owned()),
            None if is_failing => {
                let last = nodes.iter().find_map(|node| node.last_error.as_deref());
                Some(format!("the last call failed: {}", last.unwrap_or("the reason is unknown")))
            }
            None => None,
        };
        let counts = RemoteCounts {
            degraded: [guard.open, guard.closed, guard.local],
            leased: tiers.allowed_by_leases,
            refused_here: tiers.refused_by_leases + tiers.refused_by_memory,
            calls: tiers.store_calls,
            unknown: guard.unknown_outcomes,
            carried_back: guard.carried_back,
            dropped: guard.dropped_spend,
            wasted: tiers.wasted,
        };
        let (fleet_size, pending) = (self.fleet.get(), guard.pending_spend);
        RemoteStatus { nodes, fleet_size, degraded, counts, pending }
    }

    fn bounds(&self, policy: &Policy) -> Option<Bounds> {
        let leases = self.tiers.bounds(policy);
        let away = self.tiers.inner().bound(policy).ok()?;
        Some(Bounds {
            above: leases.over_admission(),
            below: leases.under_admission(),
            held_for: leases.life(),
            while_away: away.while_down_per_window,
            text: format!("{leases}; {}", away.text),
        })
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let booked = self.tiers.inner().carry_back().await;
            if booked > 0 {
                tracing::info!(
                    booked,
                    "reported permits to the store that were used while it could not be reached"
                );
            }
            let lost = self.tiers.inner().status().pending_spend;
            if lost > 0 {
                tracing::warn!(
                    keys = lost,
                    "the usage of these keys could not be reported to the store"
                );
            }
            let heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(heartbeat) = heartbeat {
                heartbeat.leave().await;
            }
        })
    }
}

/// Forwards every call to the layers.
impl Store for Shared {
    forward_store!(self => &self.tiers);
}
