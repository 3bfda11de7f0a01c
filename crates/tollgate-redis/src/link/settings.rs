//! Where the servers are, and how long to wait for them.

use std::{error::Error, fmt, str::FromStr, time::Duration};

/// Where the servers are, and how long to wait for them.
///
/// # Examples
///
/// ```
/// use tollgate_redis::Settings;
///
/// let settings: Settings = "redis://localhost:6379/0".parse()?;
/// assert!(!settings.is_cluster());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    address: String,
    is_cluster: bool,
    /// How long a call may take.
    pub deadline: Duration,
}

impl Settings {
    /// Tells whether keys of different slots may be on different servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    pub(crate) fn first_address(&self) -> &str {
        &self.address
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(url: &str) -> Result<Self, SettingsError> {
        let Some(address) = url.strip_prefix("redis://") else {
            return Err(SettingsError(format!("\"{url}\" is no address of a Redis server")));
        };
        let address = address.split('/').next().unwrap_or_default().to_owned();
        Ok(Self { address, is_cluster: false, deadline: Duration::from_millis(50) })
    }
}

/// An address or a setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for SettingsError {}
