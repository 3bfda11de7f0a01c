//! A primary, a replica, and three Sentinels that watch them.

use crate::{Flavor, Redis, wait::within};
use std::{net::SocketAddr, time::Duration};

/// How long a change may take. Starting takes 2 to 3 s, a switch about 3 s.
const BOUND: Duration = Duration::from_secs(40);

/// The name that the Sentinels know the primary by.
const NAME: &str = "tollgate";

/// A primary, a replica, and three Sentinels. All are killed when this value is dropped.
#[derive(Debug)]
pub struct Sentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    password: Option<String>,
}

#[allow(clippy::must_use_candidate, reason = "waiting is the point, not how long it took")]
impl Sentinel {
    /// Starts them, and waits until all Sentinels know the replica and each other.
    ///
    /// A server is given up after 1 s, when two Sentinels agree.
    ///
    /// # Panics
    ///
    /// If the program is missing, or it takes more than 40 s.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        Self::launch(flavor, None)
    }

    /// Starts them with a password for the servers. The Sentinels ask for none.
    ///
    /// # Panics
    ///
    /// If the program is missing, or it takes more than 40 s.
    #[must_use]
    pub fn with_password(flavor: Flavor, password: &str) -> Self {
        Self::launch(flavor, Some(password.to_owned()))
    }

    fn launch(flavor: Flavor, password: Option<String>) -> Self {
        let server = || {
            let builder = Redis::builder(flavor);
            match &password {
                Some(password) => builder.password(password),
                None => builder,
            }
        };
        let primary = server().start();
        let port = primary.address().port();
        let replica = server().line(&format!("replicaof 127.0.0.1 {port}")).start();
        within(BOUND, "the replica is in step", || {
            replica.info("replication")["master_link_status"] == "up"
        });
        let watch = || {
            let builder = Redis::builder(flavor)
                .sentinel()
                .line(&format!("sentinel monitor {NAME} 127.0.0.1 {port} 2"))
                .line(&format!("sentinel down-after-milliseconds {NAME} 1000"))
                .line(&format!("sentinel failover-timeout {NAME} 5000"));
            match &password {
                Some(password) => builder.line(&format!("sentinel auth-pass {NAME} {password}")),
                None => builder,
            }
        };
        let mut sentinels: Vec<_> = (0..3).map(|_| watch().launch()).collect();
        sentinels.iter_mut().for_each(Redis::await_ready);
        let rig = Self { servers: vec![primary, replica], sentinels, password };
        within(BOUND, "the Sentinels know all", || {
            rig.sentinels.iter().all(|sentinel| {
                let info = sentinel.cli(&["INFO", "sentinel"]);
                info.contains("status=ok,")
                    && info.contains("slaves=1,sentinels=3")
                    && sentinel.cli(&["SENTINEL", "CKQUORUM", NAME]).starts_with("OK 3")
            })
        });
        rig
    }

    /// Returns the addresses of the Sentinels and the name of the primary as one URL,
    /// `redis+sentinel://`, with the password of the servers.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.password.as_ref().map(|it| format!(":{it}@")).unwrap_or_default();
        let hosts: Vec<_> = self.sentinels.iter().map(|it| it.address().to_string()).collect();
        format!("redis+sentinel://{login}{}/{NAME}", hosts.join(","))
    }

    /// Returns the name of the primary.
    #[must_use]
    pub fn name(&self) -> &str {
        NAME
    }

    /// Returns the two servers: at the start, the primary comes first.
    #[must_use]
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// Returns a server, to be killed, frozen or restarted.
    ///
    /// # Panics
    ///
    /// If there is no such server.
    pub fn server_mut(&mut self, server: usize) -> &mut Redis {
        &mut self.servers[server]
    }

    /// Returns the three Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Returns a Sentinel, to be killed, frozen or restarted.
    ///
    /// # Panics
    ///
    /// If there is no such Sentinel.
    pub fn sentinel_mut(&mut self, sentinel: usize) -> &mut Redis {
        &mut self.sentinels[sentinel]
    }

    /// Returns the place of the primary among the servers, as the first Sentinel that runs says.
    ///
    /// # Panics
    ///
    /// If it names none of ours.
    #[must_use]
    pub fn primary(&self) -> usize {
        let sentinel = self.sentinels.iter().find(|it| it.is_up()).expect("a Sentinel runs");
        let address = named(sentinel);
        let place = self.servers.iter().position(|server| server.address() == address);
        place.unwrap_or_else(|| panic!("{address} is none of the servers"))
    }

    /// Kills the primary, and returns its place.
    pub fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.servers[primary].kill();
        primary
    }

    /// Waits until all Sentinels that run name another server than this one, and it takes writes.
    /// Returns how long it took.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn wait_for_switch(&self, old: usize) -> Duration {
        let old = self.servers[old].address();
        within(BOUND, "the Sentinels name another primary", || {
            let mut running = self.sentinels.iter().filter(|it| it.is_up());
            running.all(|sentinel| named(sentinel) != old)
                && self.servers[self.primary()].info("replication")["role"] == "master"
        })
    }
}

/// Returns the primary that a Sentinel names.
fn named(sentinel: &Redis) -> SocketAddr {
    let reply = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    let address = reply.replacen('\n', ":", 1);
    address.parse().unwrap_or_else(|_| panic!("no address: {reply:?}"))
}
