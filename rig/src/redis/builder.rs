//! What a server is to be like.

use super::{Redis, start};
use crate::{Certificates, Flavor, Port, faketime::FakeTime, program::Process};
use std::{fmt::Write as _, fs, path::Path};

/// What a server is to be like. The default has no password, no TLS and keeps nothing on disk.
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisBuilder {
    flavor: Flavor,
    password: Option<String>,
    tls: Option<Tls>,
    asks_clients: bool,
    appendonly: bool,
    faketime: bool,
    cluster: bool,
    sentinel: bool,
    lines: Vec<String>,
}

/// Which ports a server with TLS has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// TLS is the only way in.
    Only,
    /// There is a plain port besides.
    Beside,
}

impl RedisBuilder {
    pub(super) fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            password: None,
            tls: None,
            asks_clients: false,
            appendonly: false,
            faketime: false,
            cluster: false,
            sentinel: false,
            lines: Vec::new(),
        }
    }

    /// Asks everybody for a password.
    ///
    /// It goes into URLs as it is, so it should be of letters and digits.
    pub fn password(mut self, password: &str) -> Self {
        self.lines.push(format!("requirepass {password}"));
        // For the case that it becomes a replica of one with the same password.
        self.lines.push(format!("masterauth {password}"));
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user with a password, and rules such as `~* +@all`.
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.line(&format!("user {name} on >{password} {rules}"))
    }

    /// Speaks TLS, with certificates of its own: [`Redis::certificates`]. Clients need none.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Asks clients for a certificate too, if it speaks TLS.
    pub fn client_certificates(mut self) -> Self {
        self.asks_clients = true;
        self
    }

    /// Bounds the memory for data, with a policy such as `noeviction` or `volatile-ttl`.
    pub fn maxmemory(self, bytes: u64, policy: &str) -> Self {
        self.line(&format!("maxmemory {bytes}")).line(&format!("maxmemory-policy {policy}"))
    }

    /// Writes each change to a file before it is answered, so that a restart loses nothing.
    pub fn appendonly(mut self) -> Self {
        self.appendonly = true;
        self
    }

    /// Lets the test move the server's clock: [`Redis::advance`] and its like.
    pub fn faketime(mut self) -> Self {
        self.faketime = true;
        self
    }

    /// Adds a line to the configuration file, such as `timeout 0`.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Makes it a node of a Cluster that owns no slots and knows nobody. For a Cluster that is whole, see
    /// [`Cluster::start`](crate::Cluster::start).
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Makes it a Sentinel: lines such as `sentinel monitor main 127.0.0.1 6379 1` say what it watches.
    /// For three that watch two servers, see [`Sentinel::start`](crate::Sentinel::start).
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If the program is missing, ends at once, or does not answer within 20 s.
    #[must_use]
    pub fn start(self) -> Redis {
        // Somebody without our locks may take the port between our look and the server's.
        for _ in 0..4 {
            let mut redis = self.clone().launch();
            if redis.try_ready().is_ok() {
                return redis;
            }
            if !redis.log().contains("Address already in use") {
                break;
            }
        }
        let mut redis = self.launch();
        redis.await_ready();
        redis
    }

    /// Starts it and does not wait.
    pub(crate) fn launch(self) -> Redis {
        let folder = tempfile::Builder::new().prefix("rig-").tempdir().expect("a folder");
        let plain = (self.tls != Some(Tls::Only)).then(Port::reserve);
        let secure = self.tls.map(|_| Port::reserve());
        let bus = self.cluster.then(Port::reserve);
        let certificates = self.tls.map(|_| Certificates::make(folder.path()));
        let faketime = self.faketime.then(|| FakeTime::new(folder.path()));

        let ports = Ports {
            plain: plain.as_ref().map_or(0, Port::number),
            secure: secure.as_ref().map(Port::number),
            bus: bus.as_ref().map(Port::number),
        };
        let file = folder.path().join("conf");
        fs::write(&file, self.configuration(folder.path(), &ports, certificates.as_ref()))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mode = self.sentinel.then_some("--sentinel");
        Redis {
            flavor: self.flavor,
            sentinel: self.sentinel,
            password: self.password,
            certificates,
            process: Process::start(start(self.flavor, folder.path(), mode, faketime.as_ref())),
            frozen: false,
            faketime,
            plain,
            secure,
            bus,
            folder,
        }
    }

    fn configuration(&self, folder: &Path, ports: &Ports, tls: Option<&Certificates>) -> String {
        let folder = folder.display();
        let mut text = format!("bind 127.0.0.1\nport {}\ndir {folder}\n", ports.plain);
        let mut line = |line: std::fmt::Arguments<'_>| {
            writeln!(text, "{line}").expect("a string takes all");
        };
        if let (Some(port), Some(tls)) = (ports.secure, tls) {
            line(format_args!("tls-port {port}"));
            line(format_args!("tls-ca-cert-file {}", tls.authority.display()));
            line(format_args!("tls-cert-file {}", tls.server.certificate.display()));
            line(format_args!("tls-key-file {}", tls.server.key.display()));
            let asks = if self.asks_clients { "yes" } else { "no" };
            line(format_args!("tls-auth-clients {asks}"));
        }
        if !self.sentinel {
            line(format_args!("unixsocket {folder}/socket"));
            line(format_args!("save \"\""));
            // A replica gets the data at once, not after 5 s.
            line(format_args!("repl-diskless-sync-delay 0"));
            if self.appendonly {
                line(format_args!("appendonly yes\nappendfsync always"));
            }
        }
        if let Some(bus) = ports.bus {
            line(format_args!("cluster-enabled yes\ncluster-port {bus}"));
        }
        for own in &self.lines {
            line(format_args!("{own}"));
        }
        text
    }
}

/// The numbers of the ports that a server has.
#[derive(Debug)]
struct Ports {
    plain: u16,
    secure: Option<u16>,
    bus: Option<u16>,
}
