//! The way to the servers: connections, deadlines, breakers, Sentinel and Cluster.
//!
//! A stand-in: one connection, one call at a time. The real one comes next.

mod error;
mod settings;

pub use error::LinkError;
pub use settings::{Settings, SettingsError};

use crate::{Command, Reply, Script};
use bytes::{Buf, BytesMut};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};

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
    /// Whether calls are sent to it: `connecting`, `up`, `open` (the breaker is open) or `probing`.
    pub state: &'static str,
    /// Calls that wait for their reply.
    pub in_flight: u64,
    /// Calls so far.
    pub calls: u64,
    /// Calls so far that failed, those refused by an open breaker not counted.
    pub errors: u64,
    /// Of those, the ones without an answer in time.
    pub timeouts: u64,
    /// Calls refused at once, because the breaker was open or too many were in flight.
    pub shed: u64,
    /// How often a connection was made.
    pub connects: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
}

/// A deployment of Redis or Valkey. Clones are the same link.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    stream: Mutex<Option<TcpStream>>,
}

impl Link {
    /// Starts to connect, in the background, and returns at once. Needs a tokio runtime, which must
    /// live as long as the link.
    ///
    /// # Errors
    ///
    /// When the settings make no sense. That nobody answers is no error here: see
    /// [`ready`](Self::ready).
    pub fn open(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { shared: Arc::new(Shared { settings, stream: Mutex::new(None) }) })
    }

    /// Waits until a server answers, for at most `patience`.
    ///
    /// # Errors
    ///
    /// What went wrong last.
    pub async fn ready(&self, _patience: Duration) -> Result<(), LinkError> {
        self.call(Route::Any, Command::new("PING", 0)).await.map(drop)
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Tells whether keys of different slots may be on different servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.shared.settings.is_cluster()
    }

    /// Returns the state of every server known.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        Vec::new()
    }

    /// Sends a command, and returns what the server answers, within the deadline of the settings.
    /// An error reply is an error.
    ///
    /// # Errors
    ///
    /// [`LinkError`] says whether the command may have been carried out. It is repeated only if a
    /// server has redirected it or nothing was sent.
    pub async fn call(&self, _route: Route, command: Command) -> Result<Reply, LinkError> {
        self.exchange(&command.into_bytes()).await
    }

    /// Calls a script by its hash; if the server does not know it, once more with its source.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn run(
        &self,
        _route: Route,
        script: &Script,
        call: Command,
    ) -> Result<Reply, LinkError> {
        let bytes = call.into_bytes();
        match self.exchange(&bytes).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.exchange(&script.with_source(&bytes)).await
            }
            other => other,
        }
    }

    async fn exchange(&self, bytes: &[u8]) -> Result<Reply, LinkError> {
        let lost = |error: std::io::Error| LinkError::unknown(error.to_string());
        let mut guard = self.shared.stream.lock().await;
        if guard.is_none() {
            let address = self.shared.settings.first_address();
            let stream = TcpStream::connect(address).await;
            let stream = stream.map_err(|error| LinkError::unavailable(error.to_string()))?;
            stream.set_nodelay(true).map_err(lost)?;
            *guard = Some(stream);
        }
        let Some(stream) = guard.as_mut() else { return Err(LinkError::unavailable("closed")) };
        stream.write_all(bytes).await.map_err(lost)?;
        let mut buffer = BytesMut::new();
        loop {
            let mut at = 0;
            if let Some(reply) = parse(&buffer, &mut at) {
                buffer.advance(at);
                return match reply {
                    Reply::Error(text) => Err(LinkError::refused(text)),
                    reply => Ok(reply),
                };
            }
            if stream.read_buf(&mut buffer).await.map_err(lost)? == 0 {
                return Err(LinkError::unknown("closed"));
            }
        }
    }
}

fn parse(bytes: &[u8], at: &mut usize) -> Option<Reply> {
    let end = *at + bytes.get(*at..)?.windows(2).position(|two| two == b"\r\n")?;
    let line = std::str::from_utf8(&bytes[*at + 1..end]).ok()?;
    let mark = bytes[*at];
    *at = end + 2;
    Some(match mark {
        b'+' => Reply::Bytes(line.into()),
        b'-' => Reply::Error(line.into()),
        b':' => Reply::Int(line.parse().ok()?),
        b'$' if line == "-1" => Reply::Nil,
        b'$' => {
            let length: usize = line.parse().ok()?;
            let bulk = bytes.get(*at..*at + length + 2)?;
            *at += length + 2;
            Reply::Bytes(bulk[..length].into())
        }
        b'*' if line == "-1" => Reply::Nil,
        _ => {
            let length: usize = line.parse().ok()?;
            Reply::Array((0..length).map(|_| parse(bytes, at)).collect::<Option<_>>()?)
        }
    })
}

/// Returns the slot of a key in a cluster: of what is between the first `{` and the next `}`, if
/// that is not nothing.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{').map(|at| at + 1);
    let tag = open.and_then(|start| {
        let length = key[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[start..start + length])
    });
    let mut crc = 0_u16;
    for byte in tag.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc % 16384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("{user1000}.following", 3443)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"foo{}{bar}"), 8363, "an empty tag is none");
    }
}
