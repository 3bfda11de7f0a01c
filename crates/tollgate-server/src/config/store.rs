//! The settings of stores.

use super::{Failure, duration::parse_duration};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// Where a store keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    #[default]
    Memory,
    /// In Redis or Valkey, at this address.
    Redis(Box<tollgate_redis::Settings>),
}

impl StoreKind {
    /// Returns what it is called.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
        }
    }
}

/// A text that names no store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoStore(String);

impl fmt::Display for NoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoStore {}

/// Reads `memory`, or the address of a Redis deployment.
///
/// # Examples
///
/// ```
/// use tollgate_server::config::StoreKind;
///
/// assert_eq!("memory".parse(), Ok(StoreKind::Memory));
/// assert_eq!("redis://127.0.0.1:6379".parse::<StoreKind>()?.name(), "redis");
/// let error = "localhost:6379".parse::<StoreKind>().unwrap_err();
/// assert!(error.to_string().contains("redis://localhost:6379"));
/// # Ok::<(), tollgate_server::config::NoStore>(())
/// ```
impl FromStr for StoreKind {
    type Err = NoStore;

    fn from_str(text: &str) -> Result<Self, NoStore> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let is_ours = text.starts_with("redis") || text.starts_with("valkey");
        if is_ours && text.contains("://") {
            let settings = text.parse().map_err(|error| NoStore(format!("{error}")))?;
            return Ok(Self::Redis(Box::new(settings)));
        }
        let shown: String = without_secret(text).chars().take(80).collect();
        let is_address = !text.contains("://") && text.contains(':');
        let hint = match is_address {
            true => format!("; did you mean redis://{shown}?"),
            false => String::new(),
        };
        Err(NoStore(format!(
            "\"{shown}\" is not a store; use memory, or an address that starts with redis://, \
             rediss://, redis+sentinel://, redis+cluster:// or redis+unix://{hint}"
        )))
    }
}

/// Returns what can be shown of an address: no user, no password, no parameters, and no port that is
/// no number.
pub(crate) fn without_secret(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("...@", rest));
    let rest = rest.split('?').next().unwrap_or(rest);
    let rest = match rest.split_once(':') {
        Some((host, port)) if !port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => rest,
    };
    match scheme {
        "" => format!("{login}{rest}"),
        scheme => format!("{scheme}://{login}{rest}"),
    }
}

/// How a store in Redis is used: the `redis` section. `None` is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisOptions {
    /// The file that has the password, if the address has none.
    pub password_file: Option<PathBuf>,
    /// How many processes share the limits.
    pub fleet_size: Option<Fleet>,
    /// How long a call may take.
    pub deadline: Option<Duration>,
    /// How long to wait at the start for the servers to answer.
    pub startup_wait: Option<Duration>,
    /// The prefix of all keys.
    pub prefix: Option<String>,
    /// The file that has the secret by which names in Redis are fingerprints instead of keys.
    pub key_secret_file: Option<PathBuf>,
    /// The decision for `CL.THROTTLE` when the store cannot answer.
    pub failure: Option<Failure>,
}

impl RedisOptions {
    /// Returns these options, and where they say nothing, the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            password_file: self.password_file.or(other.password_file),
            fleet_size: self.fleet_size.or(other.fleet_size),
            deadline: self.deadline.or(other.deadline),
            startup_wait: self.startup_wait.or(other.startup_wait),
            prefix: self.prefix.or(other.prefix),
            key_secret_file: self.key_secret_file.or(other.key_secret_file),
            failure: self.failure.or(other.failure),
        }
    }
}

/// How many processes share the limits of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fleet {
    /// As many processes as report to the store.
    #[default]
    Auto,
    /// So many.
    Fixed(u32),
}

/// A text that is no number of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFleet(String);

impl fmt::Display for NoFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is not a number of processes; use auto, or a number of at least 1",
            self.0
        )
    }
}

impl std::error::Error for NoFleet {}

impl FromStr for Fleet {
    type Err = NoFleet;

    fn from_str(text: &str) -> Result<Self, NoFleet> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(processes @ 1..) => Ok(Self::Fixed(processes)),
            _ => Err(NoFleet(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(processes) => write!(f, "{processes}"),
        }
    }
}

/// Whether a process may take permits of a shared store in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lease {
    /// Never: every decision asks the store, and the limit is exact.
    #[default]
    Off,
    /// Where it saves calls: so much at once as the store's own rule says.
    Auto,
    /// Like `Auto`, but the process reports its use to the store this often.
    Sync(Duration),
}

/// Reads `off`, `auto` or a time.
impl FromStr for Lease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            text => match parse_duration(text) {
                Ok(time) if !time.is_zero() => Ok(Self::Sync(time)),
                _ => Err(format!("'{text}' is not a lease; use off, auto or {{sync: 100ms}}")),
            },
        }
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Sync(time) => write!(f, "{time:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_store_is_told_with_a_way_out_and_without_its_password() {
        for (text, expected) in [
            ("", "\"\" is not a store; use memory"),
            ("disk", "\"disk\" is not a store"),
            ("localhost:6379", "did you mean redis://localhost:6379?"),
            ("http://me:secret@host", "\"http://...@host\" is not a store"),
            ("me:secret@host:1", "did you mean redis://...@host:1?"),
            ("me:secret", "\"me\" is not a store"),
            ("http://host?password=secret", "\"http://host\" is not a store"),
            ("http://me:secret", "\"http://me\" is not a store"),
        ] {
            let told = text.parse::<StoreKind>().unwrap_err().to_string();
            assert!(told.contains(expected), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn a_fleet_is_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(Fleet::Auto));
        assert_eq!("3".parse(), Ok(Fleet::Fixed(3)));
        for text in ["0", "-1", "", "many", "4294967296"] {
            assert!(text.parse::<Fleet>().is_err(), "{text}");
        }
    }
}
