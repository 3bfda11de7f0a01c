//! Loads the configuration at the start, and again on request or when a file changes.

use super::{Shared, files::FileReader, redis};
use crate::{
    admin::{Control, ControlFuture, ControlStatus, LoadStatus, ReloadReport, SnapshotStatus},
    config::{Config, EXAMPLE, FILE_MAX, ServerSettings, StoreSettings, is_config_name},
    net::{Access, TlsFiles, TlsOf},
    plan::Plan,
};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::Tick;
use tollgate_redis::read_regular;

/// Where the configuration comes from: files and flags.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Files and folders; none for the built-in example.
    pub paths: Vec<PathBuf>,
    /// Settings from flags, which override those of files.
    pub flags: ServerSettings,
}

impl Source {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    ///
    /// With all mistakes, one per line.
    pub fn read(&self) -> Result<Config, String> {
        let read = match self.paths.as_slice() {
            [] => Config::from_text("example.yaml", EXAMPLE),
            paths => Config::read(paths),
        };
        let mut config = read.map_err(|errors| errors.to_string())?;
        config.server = self.flags.clone().or(config.server);
        Ok(config)
    }

    /// Returns a number that changes when a file changes: one of the configuration, or one that
    /// `server` names for TLS or as a secret.
    fn fingerprint(&self, server: &ServerSettings) -> u64 {
        let mut hasher = DefaultHasher::new();
        let configured = self.paths.iter().flat_map(|path| files(path));
        for file in configured.chain(named_files(server).cloned()) {
            file.hash(&mut hasher);
            read_regular(&file, FILE_MAX).ok().hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Reads the configuration, and the files that it names.
    fn read_all(&self) -> Result<Files, String> {
        let config = self.read()?;
        let tls = TlsOf::read(&config.server).map_err(|error| error.to_string())?;
        let access = Access::read(&config.server)?;
        redis::check_passwords(&config)?;
        Ok((config, tls, access))
    }
}

/// A configuration, with the certificates and secrets of the files that it names.
type Files = (Config, TlsFiles, Access);

/// Returns the files that the configuration names and that a reload reads again.
fn named_files(server: &ServerSettings) -> impl Iterator<Item = &PathBuf> {
    let all = server.tls.iter().chain(server.tls_of.iter().map(|(_, tls)| tls));
    let tls = all.flat_map(|tls| [&tls.certificate, &tls.key].into_iter().chain(&tls.client_ca));
    tls.chain(server.secret_files())
}

fn files(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.into()] };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // Other files do not belong to the configuration: a snapshot may be beside it.
    files.retain(|file| is_config_name(file) && !file.is_dir());
    files.sort();
    files
}

/// The result of the last load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// When it was tried.
    pub at: Tick,
    /// The version in force afterwards.
    pub version: u64,
    /// The errors of the configuration; the old one then stays in force.
    pub error: Option<String>,
    /// Warnings that did not prevent the load.
    pub warnings: Vec<String>,
}

/// Loads the configuration again on request, or when a file has changed.
#[derive(Debug)]
pub struct Manager {
    shared: Arc<Shared>,
    source: Source,
    tls: Arc<TlsOf>,
    files: FileReader,
    /// Allows one load at a time.
    loading: tokio::sync::Mutex<u64>,
    last: Mutex<Loaded>,
    loads: [AtomicU64; 2],
    snapshots: Mutex<Vec<SnapshotStatus>>,
}

impl Control for Manager {
    fn reload(&self) -> ControlFuture<'_> {
        Box::pin(async {
            let Loaded { version, error, warnings, .. } = Self::reload(self).await;
            error.map_or(Ok(ReloadReport { version, warnings }), Err)
        })
    }

    fn status(&self) -> ControlStatus {
        let (loads, failed_loads) = self.loads();
        let Loaded { at, error, warnings, .. } = self.last();
        ControlStatus {
            files: self.source.paths.iter().map(|path| path.display().to_string()).collect(),
            loads,
            failed_loads,
            last_load: Some(LoadStatus { at, error, warnings }),
            snapshots: self.lock_snapshots().clone(),
        }
    }
}

impl Manager {
    pub(super) fn new(shared: Arc<Shared>, source: Source, tls: Arc<TlsOf>) -> Arc<Self> {
        let seen = source.fingerprint(&shared.engine.plan().config().server);
        let (at, version) = (shared.engine.now(), shared.engine.plan().version());
        let last = Loaded { at, version, error: None, warnings: Vec::new() };
        Arc::new(Self {
            shared,
            source,
            tls,
            files: FileReader::default(),
            loading: tokio::sync::Mutex::new(seen),
            last: Mutex::new(last),
            loads: [AtomicU64::new(1), AtomicU64::new(0)],
            snapshots: Mutex::default(),
        })
    }

    fn lock_snapshots(&self) -> std::sync::MutexGuard<'_, Vec<SnapshotStatus>> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a snapshot.
    pub(super) fn note_snapshot(&self, store: usize, path: &Path, error: Option<String>) {
        let now = self.shared.engine.now();
        let mut snapshots = self.lock_snapshots();
        let known = snapshots.iter().position(|known| known.store == store);
        let index = known.unwrap_or_else(|| {
            let path = path.display().to_string();
            snapshots.push(SnapshotStatus { store, path, written: None, error: None });
            snapshots.len() - 1
        });
        let status = &mut snapshots[index];
        if error.is_none() {
            status.written = Some(now);
        }
        status.error = error;
    }

    /// Returns the result of the last load.
    pub fn last(&self) -> Loaded {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns how many loads have succeeded, and how many have failed.
    pub fn loads(&self) -> (u64, u64) {
        // ORDERING: Relaxed, here and below. The counts are statistics.
        (self.loads[0].load(Relaxed), self.loads[1].load(Relaxed))
    }

    /// Returns where the configuration comes from.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Loads the configuration again. If it is wrong, the old one stays in force.
    pub async fn reload(&self) -> Loaded {
        let mut seen = self.loading.lock().await;
        let source = self.source.clone();
        // If a load names other files, the next check sees those, and loads once more.
        let server = self.shared.engine.plan().config().server.clone();
        let read = self.files.run(move || (source.fingerprint(&server), source.read_all())).await;
        let files = read.and_then(|(found, files)| {
            *seen = found;
            files
        });
        self.load(files)
    }

    /// Loads the configuration again if a file has changed.
    pub async fn reload_if_changed(&self) -> Option<Loaded> {
        let mut seen = self.loading.lock().await;
        if self.files.is_busy() {
            // A read that never ends was reported when it timed out.
            return None;
        }
        let (source, known) = (self.source.clone(), *seen);
        let server = self.shared.engine.plan().config().server.clone();
        let read = self.files.run(move || {
            let found = source.fingerprint(&server);
            (found, (found != known).then(|| source.read_all()))
        });
        let files = match read.await {
            Ok((_, None)) => return None,
            Ok((found, Some(files))) => {
                *seen = found;
                files
            }
            Err(error) => Err(error),
        };
        Some(self.load(files))
    }

    fn load(&self, files: Result<Files, String>) -> Loaded {
        let engine = &self.shared.engine;
        let outcome = match files {
            Ok(files) => self.install(files),
            Err(error) => Err(error),
        };
        let (error, warnings) = match outcome {
            Ok(warnings) => (None, warnings),
            Err(error) => (Some(error), Vec::new()),
        };
        let version = engine.plan().version();
        match &error {
            None => {
                self.loads[0].fetch_add(1, Relaxed);
                tracing::info!(version, "configuration loaded");
            }
            Some(error) => {
                self.loads[1].fetch_add(1, Relaxed);
                tracing::error!(
                    version,
                    "the configuration was not loaded; the previous one stays in force"
                );
                for line in error.lines() {
                    tracing::error!(version, "{line}");
                }
            }
        }
        for warning in &warnings {
            tracing::warn!(version, "{warning}");
        }
        let loaded = Loaded { at: engine.now(), version, error, warnings };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = loaded.clone();
        loaded
    }

    fn install(&self, (config, tls, access): Files) -> Result<Vec<String>, String> {
        let old = self.shared.engine.plan_arc();
        let named = |stores: &[StoreSettings]| -> Vec<_> {
            let of = |store: &StoreSettings| {
                let StoreSettings { name, kind, redis, memory, .. } = store.clone();
                (name, kind, redis, memory)
            };
            stores.iter().map(of).collect()
        };
        let text = "cannot change while the server runs; restart it, or undo the change";
        if named(&config.stores) != named(&old.config().stores) {
            return Err(format!("stores {text}"));
        }
        let default = |server: &ServerSettings| {
            (server.store.clone().unwrap_or_default(), server.redis.clone())
        };
        if default(&config.server) != default(&old.config().server) {
            return Err(format!("the default store (server.store, server.redis) {text}"));
        }
        let mut warnings = Vec::new();
        if needs_restart(&config.server, &old.config().server) {
            warnings
                .push("listeners, workers, snapshots and bounds only change with a restart".into());
        }
        let plan = Plan::compile(config, Some(&old)).map_err(|error| error.to_string())?;
        // Nothing fails from here on, so either all of a configuration is in force or none of it.
        self.tls.install(tls);
        self.shared.set_access(access);
        self.shared.engine.install(plan);
        Ok(warnings)
    }

    /// Returns how often to check whether files have changed; `None` for never.
    pub(super) fn watch_interval(&self) -> Option<Duration> {
        let plan = self.shared.engine.plan();
        let server = &plan.config().server;
        let interval = server.watch_interval.unwrap_or(Duration::from_secs(1));
        let has_files = !self.source.paths.is_empty() || named_files(server).next().is_some();
        (has_files && interval > Duration::ZERO).then_some(interval)
    }
}

/// Tells whether settings differ that are read only at the start.
fn needs_restart(new: &ServerSettings, old: &ServerSettings) -> bool {
    let fixed = |settings: &ServerSettings| {
        let endpoints = [&settings.http, &settings.grpc, &settings.resp, &settings.admin];
        let sizes = (settings.workers, settings.max_connections, settings.connection_memory_bytes);
        let timeouts = (settings.idle_timeout, settings.request_timeout);
        let drain = (settings.drain_delay, settings.drain_timeout);
        let rest = (settings.snapshot.clone(), settings.memory.clone());
        (endpoints.map(Clone::clone), (sizes, timeouts, drain), rest)
    };
    fixed(new) != fixed(old)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// Regression: a snapshot beside the configuration counted as one of its files, so that every
    /// snapshot caused a reload.
    #[test]
    fn only_files_of_the_configuration_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let source = Source { paths: vec![folder.path().into()], ..Source::default() };
        let look = || source.fingerprint(&ServerSettings::default());
        // As in Kubernetes: the visible files are links, and a reload swaps one link.
        for (version, text) in [("..1", "domain: a"), ("..2", "domain: b")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("a.yaml"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/a.yaml", at("a.yaml")).unwrap();
        let first = look();
        fs::write(at("state"), "1").unwrap();
        assert_eq!(look(), first);
        symlink("..2", at("..new")).unwrap();
        fs::rename(at("..new"), at("..data")).unwrap();
        let swapped = look();
        assert_ne!(swapped, first);
        fs::write(at("b.yml"), "domain: c").unwrap();
        assert_ne!(look(), swapped);
    }
}
