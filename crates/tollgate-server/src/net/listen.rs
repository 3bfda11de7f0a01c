//! Sockets that wait for connections.

use super::Listener;
use crate::config::Endpoint;
use std::{
    fmt, fs, io,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};
use tokio::net;

/// A socket that waits for connections, bound but not served yet.
#[derive(Debug)]
pub struct Bound {
    /// Which listener it is.
    pub listener: Listener,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, UnixPath),
}

/// The path of a Unix socket; dropping it removes the file.
#[derive(Debug)]
pub(super) struct UnixPath(PathBuf);

impl Drop for UnixPath {
    fn drop(&mut self) {
        // It does not matter if another process has removed it already.
        let _ = fs::remove_file(&self.0);
    }
}

/// Why a listener could not be started.
#[derive(Debug)]
pub struct BindError {
    listener: Listener,
    endpoint: Endpoint,
    source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listener, endpoint, source } = self;
        write!(f, "{listener} cannot listen on {endpoint}: {source}")?;
        if source.kind() == io::ErrorKind::AddrInUse {
            write!(f, "; choose another with --{listener}, or turn it off with --{listener} off")?;
        }
        Ok(())
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Bound {
    /// Binds a listener; `None` if it is off.
    ///
    /// # Errors
    ///
    /// When the address is in use, or this process may not bind it.
    pub fn bind(listener: Listener, endpoint: &Endpoint) -> Result<Option<Self>, BindError> {
        let socket = match endpoint {
            Endpoint::Off => return Ok(None),
            Endpoint::Tcp(address) => TcpListener::bind(address).and_then(|socket| {
                socket.set_nonblocking(true)?;
                widen_backlog(&socket)?;
                Ok(Socket::Tcp(socket))
            }),
            Endpoint::Unix(path) => bind_unix(path),
        };
        match socket {
            Ok(socket) => Ok(Some(Self { listener, socket })),
            Err(source) => Err(BindError { listener, endpoint: endpoint.clone(), source }),
        }
    }

    /// Returns the address that it listens on: for port zero, the port that the system chose.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map_or(Endpoint::Off, Endpoint::Tcp),
            Socket::Unix(_, path) => Endpoint::Unix(path.0.clone()),
        }
    }

    pub(super) fn into_async(self) -> io::Result<Accepting> {
        Ok(match self.socket {
            Socket::Tcp(socket) => Accepting::Tcp(net::TcpListener::from_std(socket)?),
            Socket::Unix(socket, path) => {
                Accepting::Unix(net::UnixListener::from_std(socket)?, path)
            }
        })
    }
}

/// Sets the backlog to the largest value, which the system limits to its own. The standard library
/// has set 128; a second `listen` replaces that.
fn widen_backlog(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, i32::MAX)?)
}

/// Binds a Unix socket. Replaces one that no process listens on any more.
fn bind_unix(path: &Path) -> io::Result<Socket> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_dead = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(is_dead) {
        fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    socket.set_nonblocking(true)?;
    widen_backlog(&socket)?;
    Ok(Socket::Unix(socket, UnixPath(path.into())))
}

/// A socket that is being served.
#[derive(Debug)]
pub(super) enum Accepting {
    Tcp(net::TcpListener),
    Unix(net::UnixListener, #[allow(dead_code, reason = "removes the path when dropped")] UnixPath),
}

/// An accepted connection before a worker takes it into its runtime.
#[derive(Debug)]
pub(super) enum Raw {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Accepting {
    pub(super) async fn accept(&self) -> io::Result<(Raw, Option<SocketAddr>)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                // A client that has already gone is no reason to pause.
                let _ = stream.set_nodelay(true);
                Ok((Raw::Tcp(stream.into_std()?), Some(peer)))
            }
            Self::Unix(socket, _) => {
                let (stream, _) = socket.accept().await?;
                Ok((Raw::Unix(stream.into_std()?), None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpStream, time::Duration};

    /// The kernel drops a connection beyond the backlog, and the client tries again a second later.
    #[test]
    fn the_backlog_is_what_the_system_allows() {
        let most = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("this is Linux");
        let most: usize = most.trim().parse().expect("a number");
        let any = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
        let bound = Bound::bind(Listener::Http, &any).expect("a free port").expect("it is on");
        let Endpoint::Tcp(address) = bound.endpoint() else { panic!("it is TCP") };
        let clients: Result<Vec<_>, _> = (0..most.min(400))
            .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(500)))
            .collect();
        assert!(clients.is_ok(), "{clients:?}");
    }
}
