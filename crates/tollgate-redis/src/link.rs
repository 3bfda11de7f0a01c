//! The link to the servers: connections, deadlines, breakers, Sentinel and Cluster.
//!
//! ```text
//!   Link::call ---> topology: which server?  one, the Sentinels' primary, or the slot's  (topology.rs)
//!       |
//!       +--------> node: may it be called?   breaker                        (node.rs, breaker.rs)
//!                    |
//!                    +---> pipe: queue, slots        (pipe.rs)
//!                            |
//!                            +---> io: one write for all that is queued, replies in order  (io.rs)
//! ```
//!
//! # Retries
//!
//! A command that was sent and has no reply may have been carried out, so it is never repeated: the
//! caller gets an error with [`LinkError::is_unknown`]. These replies mean that it was not carried
//! out, and are followed within the deadline:
//!
//! | reply | what happens |
//! |---|---|
//! | `NOSCRIPT` | once more, with the source |
//! | `MOVED`, `ASK` | to the server it names, at most five times; the slots are read again |
//! | `TRYAGAIN` | again after 2 ms, at most five times |
//! | `READONLY` | once more, after the Sentinels or the Cluster have reported the primary |

mod breaker;
mod connect;
mod error;
mod io;
mod node;
mod pipe;
mod scripts;
mod settings;
mod slot;
mod stream;
mod tls;
mod topology;
mod wait;

pub use error::LinkError;
pub use settings::{Secret, Settings, SettingsError, Tls};
pub use slot::slot_of;

use crate::{Command, Reply, Script};
use connect::Connector;
use node::{Common, Node};
use settings::Address;
use std::{pin::pin, sync::Arc, time::Duration};
use tls::Encryption;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
    time::timeout,
};
use tollgate::Clock;
use topology::Topology;
use wait::{Deadline, deadline, pause, race};

/// How often a call is redirected or retried at most.
const FOLLOWED_MAX: u32 = 5;

/// Where a call must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the primary of a slot; without a cluster, to the one primary.
    Slot(u16),
    /// To any primary.
    Any,
}

/// The state of one server, for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its address.
    pub address: String,
    /// Whether it receives calls: `connecting`, `up`, `open` (the breaker is open) or `probing`.
    pub state: &'static str,
    /// Calls that wait for their reply.
    pub in_flight: u64,
    /// Calls so far.
    pub calls: u64,
    /// Failed calls so far, without those that an open breaker refused.
    pub errors: u64,
    /// Of those, the ones without an answer in time.
    pub timeouts: u64,
    /// Calls that were refused at once, because the breaker was open or too many were in flight.
    pub shed: u64,
    /// How often a connection was made.
    pub connects: u64,
    /// The last error.
    pub last_error: Option<String>,
}

/// A deployment of Redis or Valkey. Clones are the same link.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    common: Arc<Common>,
    topology: Topology,
}

impl Link {
    /// Starts to connect, in the background, and returns at once. Needs a tokio runtime, which must
    /// live as long as the link; calls may come from other runtimes too, if they have a timer.
    /// Dropping the last clone ends the tasks.
    ///
    /// # Errors
    ///
    /// When the settings are invalid, a file they name cannot be used, or there is no runtime. A
    /// server that does not answer is no error here: see [`ready`](Self::ready).
    pub fn open(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        for secret in [&settings.password, &settings.sentinel_password].into_iter().flatten() {
            secret.read().map_err(SettingsError)?;
        }
        let runtime = Handle::try_current().map_err(|_| {
            SettingsError("a link needs a tokio runtime; open it inside one".into())
        })?;
        let encryption = Encryption::load(&settings)?;
        let connector = Connector {
            settings,
            encryption,
            scripts: scripts::Scripts::default(),
            reading: Arc::new(Semaphore::new(1)),
        };
        let common = Arc::new(Common {
            connector: Arc::new(connector),
            runtime,
            clock: Clock::monotonic(),
            changes: watch::Sender::new(0),
            trouble: Notify::new(),
        });
        let topology = Topology::open(&common);
        Ok(Self { shared: Arc::new(Shared { common, topology }) })
    }

    /// Waits until a server answers, for at most `patience`.
    ///
    /// # Errors
    ///
    /// The last error of a server.
    pub async fn ready(&self, patience: Duration) -> Result<(), LinkError> {
        let mut last = LinkError::unavailable("no answer");
        let answered = async {
            let mut changes = self.subscribe();
            loop {
                changes.mark_unchanged();
                match self.call(Route::Any, Command::new("PING", 0)).await {
                    Ok(_) => return,
                    Err(error) => last = error,
                }
                // A change is the time to try again; the timeout covers a missed one.
                let _ = timeout(Duration::from_millis(20), changes.changed()).await;
            }
        };
        let answered = timeout(patience, answered).await.is_ok();
        if answered { Ok(()) } else { Err(last) }
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.common.connector.settings
    }

    /// Returns the runtime that drives the connections.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.common.runtime
    }

    /// Tells whether keys of different slots may be on different servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.settings().is_cluster()
    }

    /// Returns the state of every server known.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.shared.topology.nodes().iter().map(|node| node.status()).collect()
    }

    /// Returns why the primary is unknown, if it is: the last error of a Sentinel or of a server of
    /// the Cluster.
    #[must_use]
    pub fn topology_error(&self) -> Option<String> {
        self.shared.topology.last_error()
    }

    /// Returns a count that changes whenever the state of a server changes, or the primary.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.common.changes.subscribe()
    }

    /// Sends a command, and returns the server's reply, within the deadline of the settings. An
    /// error reply is an error.
    ///
    /// # Errors
    ///
    /// [`LinkError`] says whether the command may have been carried out. It is repeated only if a
    /// server has redirected it or nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a command that was not sent yet is withdrawn; for one that was
    /// sent, the reply is dropped when it comes.
    pub async fn call(&self, route: Route, command: Command) -> Result<Reply, LinkError> {
        self.follow(route, command.into_bytes(), None).await
    }

    /// Calls a script by its hash; if the server does not know it, once more with its source.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn run(
        &self,
        route: Route,
        script: &Script,
        call: Command,
    ) -> Result<Reply, LinkError> {
        self.follow(route, call.into_bytes(), Some(script)).await
    }

    /// Sends a command to its server, and follows redirections.
    async fn follow(
        &self,
        route: Route,
        mut command: Vec<u8>,
        mut script: Option<&Script>,
    ) -> Result<Reply, LinkError> {
        let Shared { common, topology } = &*self.shared;
        let mut deadline = pin!(deadline(self.settings().deadline));
        let mut node = topology.node(route, deadline.as_mut()).await?;
        let (mut followed, mut asking, mut was_read_only) = (0, false, false);
        loop {
            let (back, result) = node.exchange(command, asking, deadline.as_mut()).await;
            command = back;
            asking = false;
            let text = match result? {
                Reply::Error(text) => text,
                reply => return Ok(reply),
            };
            followed += 1;
            let (code, rest) = text.split_once(' ').unwrap_or((&text, ""));
            match code {
                "NOSCRIPT" => {
                    let Some(script) = script.take() else { return Err(LinkError::refused(text)) };
                    common.connector.scripts.remember(script);
                    command = script.with_source(&command);
                }
                "MOVED" | "ASK" if followed <= FOLLOWED_MAX => {
                    asking = code == "ASK";
                    if !asking {
                        common.trouble.notify_one();
                    }
                    let named = named_by(rest, &node).and_then(|it| topology.node_at(it));
                    let Some(named) = named else { return Err(LinkError::refused(text)) };
                    node = named;
                }
                "TRYAGAIN" if followed <= FOLLOWED_MAX => {
                    let waited = race(deadline.as_mut(), pause(Duration::from_millis(2))).await;
                    if waited.is_none() {
                        return Err(LinkError::refused(text));
                    }
                }
                "READONLY" if !was_read_only => {
                    was_read_only = true;
                    match self.other_primary(route, &node, deadline.as_mut()).await {
                        Some(other) => node = other,
                        None => return Err(LinkError::refused(text)),
                    }
                }
                _ => {
                    if matches!(code, "CLUSTERDOWN" | "MASTERDOWN") {
                        common.trouble.notify_one();
                    }
                    return Err(LinkError::refused(text));
                }
            }
        }
    }

    /// Asks for the current primary, to replace a server that is not primary.
    async fn other_primary(
        &self,
        route: Route,
        node: &Arc<Node>,
        mut deadline: Deadline<'_>,
    ) -> Option<Arc<Node>> {
        let Shared { common, topology } = &*self.shared;
        if !topology.asked_anew(common, deadline.as_mut()).await {
            return None;
        }
        let other = topology.node(route, deadline).await.ok()?;
        (!Arc::ptr_eq(&other, node)).then_some(other)
    }
}

/// Reads `slot host:port`. Without a host, it is the host of the server that sent the redirection.
fn named_by(redirection: &str, node: &Node) -> Option<Address> {
    let (host, port) = redirection.split(' ').nth(1)?.rsplit_once(':')?;
    let host = match (host, node.address()) {
        ("", Address::Tcp { host, .. }) => host.as_str(),
        ("", Address::Unix(_)) => return None,
        (host, _) => host,
    };
    Some(Address::Tcp { host: host.to_owned(), port: port.parse().ok()? })
}
