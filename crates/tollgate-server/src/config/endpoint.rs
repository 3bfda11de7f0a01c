//! Where a listener listens, as text.

use super::{Endpoint, tree::shown};
use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// A text that is no place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoEndpoint(String);

impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not an address to listen on; ", self.0)?;
        let port = self.0.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        match port {
            Some(port) if self.0.starts_with("unix") => {
                write!(f, "write unix:/path, or 127.0.0.1:{port}")
            }
            Some(port) => write!(f, "write 127.0.0.1:{port}, or 0.0.0.0:{port} for all interfaces"),
            None => f.write_str("write an address such as 127.0.0.1:8080, unix:/path, or off"),
        }
    }
}

impl std::error::Error for NoEndpoint {}

/// Reads `127.0.0.1:8080`, `[::1]:8080`, `unix:/path` or `off`.
impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        text.parse::<SocketAddr>().map(Self::Tcp).map_err(|_| NoEndpoint(shown(text)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Off => f.write_str("off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        for text in ["127.0.0.1:8080", "[::1]:0", "unix:/run/tollgate.sock", "off"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("OFF".parse(), Ok(Endpoint::Off));
    }

    #[test]
    fn says_how_to_write_it() {
        for (text, error) in [
            (
                ":8080",
                "':8080' is not an address to listen on; write 127.0.0.1:8080, or 0.0.0.0:8080 for \
                 all interfaces",
            ),
            (
                "localhost:80",
                "'localhost:80' is not an address to listen on; write 127.0.0.1:80, or 0.0.0.0:80 \
                 for all interfaces",
            ),
            (
                "unix:",
                "'unix:' is not an address to listen on; write an address such as 127.0.0.1:8080, \
                 unix:/path, or off",
            ),
            (
                "on",
                "'on' is not an address to listen on; write an address such as 127.0.0.1:8080, \
                 unix:/path, or off",
            ),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap_err().to_string(), error);
        }
    }
}
