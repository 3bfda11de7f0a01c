//! The addresses of the servers, and timeouts.

mod secret;
mod url;

pub use secret::Secret;

use std::{error::Error, fmt, path::PathBuf, str::FromStr, time::Duration};

/// The addresses of the servers, and timeouts.
///
/// Made from an address, whose parameters can also be set here:
///
/// | address | what |
/// |---|---|
/// | `redis://[user[:password]@]host[:port][/db]` | one server |
/// | `redis+unix://[user[:password]@]/path/of/socket` | one server, on a Unix socket |
/// | `redis+sentinel://host[:port],host[:port]/name[/db]` | the primary that the Sentinels call `name` |
/// | `redis+cluster://host[:port],host[:port]` | a Cluster, by some of its servers |
///
/// With `rediss` in place of `redis` it is TLS; `valkey` and `valkeys` mean the same. User and
/// password are percent-decoded, and an IPv6 address is in brackets. Every field below is a parameter
/// of its name, with durations as in `250ms`, `2s`: `redis://localhost?deadline=20ms&connections=4`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::Settings;
///
/// let settings: Settings = "redis://localhost:6379/0?connections=4".parse()?;
/// let settings = settings.deadline(Duration::from_millis(20));
/// assert!(!settings.is_cluster());
/// assert_eq!(settings.connections, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    pub(super) place: Place,
    /// The deadline of a call, redirections included. 50 ms: a limiter that takes longer is in the
    /// way.
    pub deadline: Duration,
    /// The longest time until a connection can be used. 500 ms: name lookup, TLS and login.
    pub connect_timeout: Duration,
    /// Connections to each server, 1 to 16. 1: calls share it, and one keeps a server busy.
    pub connections: usize,
    /// Calls that may wait for their reply on one connection, 1 to 1 000 000. 10 000. Calls beyond
    /// that fail at once.
    pub max_in_flight: usize,
    /// The user to log in as; without, the default user.
    pub user: Option<String>,
    /// The password to log in with (`password_file` names a file instead).
    pub password: Option<Secret>,
    /// The user to log in as at a Sentinel.
    pub sentinel_user: Option<String>,
    /// The password of the Sentinels (`sentinel_password_file` names a file instead).
    pub sentinel_password: Option<Secret>,
    /// The number of the database (`db`). 0, and always 0 in a Cluster.
    pub database: u32,
    /// Whether connections are encrypted, and which certificates they trust.
    pub tls: Option<Tls>,
    /// The version of the protocol to ask for: 3, or 2. With 3, the link falls back to 2 if the
    /// server does not know 3.
    pub protocol: u8,
    /// The name of the connections in `CLIENT LIST`. `tollgate`.
    pub client_name: String,
    /// How many failures among the last `breaker_window` calls open the breaker, 1 to 64. 5.
    pub breaker_failures: u32,
    /// The number of calls among which failures are counted, up to 64. 10.
    pub breaker_window: u32,
    /// How long an open breaker waits before the first probe, at least 1 ms. 50 ms.
    pub probe_min: Duration,
    /// The longest such wait. 1 s: it doubles from the first, with a tenth of jitter.
    pub probe_max: Duration,
    /// How long a `PING` may remain without a reply before the connection is closed. 2 s.
    pub stall_timeout: Duration,
    /// How often a `PING` checks a connection. 10 s: it finds a silently dead connection before the
    /// connection is needed.
    pub keepalive: Duration,
    /// How often the link asks the Sentinels or the Cluster for the primary without a reason. 10 s.
    pub refresh: Duration,
    /// The longest string in a reply, in bytes, up to 64 MiB. 1 MiB.
    pub max_bulk: usize,
}

/// Which certificates encrypted connections trust and present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// A PEM file with the certificates to trust; if `None`, those of the system (`ca`).
    pub ca: Option<PathBuf>,
    /// A PEM file with the client's certificate (`cert`).
    pub certificate: Option<PathBuf>,
    /// A PEM file with its private key (`key`).
    pub key: Option<PathBuf>,
    /// The name that a server's certificate must have; if `None`, that of its address
    /// (`server_name`).
    pub server_name: Option<String>,
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The addresses of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    One(Address),
    Sentinel { sentinels: Vec<Address>, name: String },
    Cluster(Vec<Address>),
}

macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl Settings {
    setters! {
        deadline: Duration,
        connect_timeout: Duration,
        connections: usize,
        max_in_flight: usize,
        user: Option<String>,
        password: Option<Secret>,
        sentinel_user: Option<String>,
        sentinel_password: Option<Secret>,
        database: u32,
        tls: Option<Tls>,
        protocol: u8,
        client_name: String,
        breaker_failures: u32,
        breaker_window: u32,
        probe_min: Duration,
        probe_max: Duration,
        stall_timeout: Duration,
        keepalive: Duration,
        refresh: Duration,
        max_bulk: usize,
    }

    /// Tells whether keys of different slots may be on different servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(500),
            connections: 1,
            max_in_flight: 10_000,
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            database: 0,
            tls: None,
            protocol: 3,
            client_name: "tollgate".into(),
            breaker_failures: 5,
            breaker_window: 10,
            probe_min: Duration::from_millis(50),
            probe_max: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(2),
            keepalive: Duration::from_secs(10),
            refresh: Duration::from_secs(10),
            max_bulk: 1 << 20,
        }
    }

    /// Checks the settings. [`Link::open`](crate::Link::open) does it too.
    ///
    /// # Errors
    ///
    /// Names the first invalid value, the rule and a way out.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |name: &str, value: &dyn fmt::Display, rule: &str| {
            Err(SettingsError(format!("{name} {value} is out of range; use {rule}")))
        };
        let numbers = [
            ("connections", self.connections, 1, 16),
            ("max_in_flight", self.max_in_flight, 1, 1_000_000),
            ("breaker_window", self.breaker_window as usize, 1, 64),
            ("breaker_failures", self.breaker_failures as usize, 1, self.breaker_window as usize),
            ("max_bulk", self.max_bulk, 64, 64 << 20),
            ("protocol", usize::from(self.protocol), 2, 3),
        ];
        for (name, value, least, most) in numbers {
            if !(least..=most).contains(&value) {
                return wrong(name, &value, &format!("{least} to {most}"));
            }
        }
        let hour = Duration::from_secs(3600);
        let durations = [
            ("deadline", self.deadline, hour),
            ("connect_timeout", self.connect_timeout, hour),
            ("probe_min", self.probe_min, self.probe_max),
            ("probe_max", self.probe_max, hour),
            ("stall_timeout", self.stall_timeout, hour),
            ("keepalive", self.keepalive, hour),
            ("refresh", self.refresh, hour),
        ];
        for (name, value, most) in durations {
            if value < Duration::from_millis(1) || value > most {
                let rule = format!("1ms to {most:?}");
                return wrong(name, &format!("{value:?}"), &rule);
            }
        }
        self.check_texts()
    }

    fn check_texts(&self) -> Result<(), SettingsError> {
        let say = |text: String| Err(SettingsError(text));
        if self.is_cluster() && self.database != 0 {
            let db = self.database;
            return say(format!(
                "database {db}: a Cluster has only database 0; leave the number out"
            ));
        }
        if self.user.is_some() && self.password.is_none() {
            return say("a user needs a password; give one, or `password_file`".into());
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            let text = "sentinel_user needs a password; give `sentinel_password` or \
                        `sentinel_password_file`";
            return say(text.into());
        }
        let name = &self.client_name;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return say(format!(
                "client_name {name:?} is not valid; use printable ASCII without spaces"
            ));
        }
        if let Some(tls) = &self.tls
            && tls.certificate.is_some() != tls.key.is_some()
        {
            return say("only one of `cert` and `key` is given; give both or neither".into());
        }
        if self.tls.is_some() && !cfg!(feature = "tls") {
            let text = "this program was built without TLS; build it with the feature `tls`";
            return say(text.into());
        }
        Ok(())
    }
}

impl fmt::Display for Settings {
    /// Writes the address, without the password and the parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "rediss" } else { "redis" })?;
        let user = |f: &mut fmt::Formatter<'_>| match &self.user {
            Some(user) => write!(f, "://{user}@"),
            None => f.write_str("://"),
        };
        let list = |f: &mut fmt::Formatter<'_>, all: &[Address]| {
            let all: Vec<_> = all.iter().map(ToString::to_string).collect();
            f.write_str(&all.join(","))
        };
        match &self.place {
            Place::One(address) => {
                if matches!(address, Address::Unix(_)) {
                    f.write_str("+unix")?;
                }
                user(f)?;
                write!(f, "{address}")?;
            }
            Place::Sentinel { sentinels, name } => {
                f.write_str("+sentinel")?;
                user(f)?;
                list(f, sentinels)?;
                write!(f, "/{name}")?;
            }
            Place::Cluster(seeds) => {
                f.write_str("+cluster")?;
                user(f)?;
                list(f, seeds)?;
            }
        }
        if self.database != 0 && !matches!(self.place, Place::One(Address::Unix(_))) {
            write!(f, "/{}", self.database)?;
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(url: &str) -> Result<Self, SettingsError> {
        url::settings(url)
    }
}

/// An invalid address or setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError(pub(super) String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for SettingsError {}

#[cfg(test)]
mod tests;
