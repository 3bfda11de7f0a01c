//! Sockets that wait for connections.

use super::Listener;
use crate::config::Endpoint;
use std::{
    fmt, fs, io,
    net::{SocketAddr, TcpListener},
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

/// The path of a Unix socket, which goes with it.
#[derive(Debug)]
pub(super) struct UnixPath(PathBuf);

impl Drop for UnixPath {
    fn drop(&mut self) {
        // If somebody has removed it already, that is fine.
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
    /// When the address is taken, or not ours to take.
    pub fn bind(listener: Listener, endpoint: &Endpoint) -> Result<Option<Self>, BindError> {
        let socket = match endpoint {
            Endpoint::Off => return Ok(None),
            Endpoint::Tcp(address) => TcpListener::bind(address).and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(Socket::Tcp(socket))
            }),
            Endpoint::Unix(path) => bind_unix(path),
        };
        match socket {
            Ok(socket) => Ok(Some(Self { listener, socket })),
            Err(source) => Err(BindError { listener, endpoint: endpoint.clone(), source }),
        }
    }

    /// Returns where it listens: for port zero, the port that was found.
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

/// Binds a Unix socket. One that nobody listens on any more is replaced.
fn bind_unix(path: &Path) -> io::Result<Socket> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_dead = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(is_dead) {
        fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    socket.set_nonblocking(true)?;
    Ok(Socket::Unix(socket, UnixPath(path.into())))
}

/// A socket that is being served.
#[derive(Debug)]
pub(super) enum Accepting {
    Tcp(net::TcpListener),
    Unix(net::UnixListener, #[allow(dead_code, reason = "removes the path when dropped")] UnixPath),
}

/// A connection before it is given to a worker, whose runtime it then belongs to.
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
                // A client that is gone already is no reason to pause.
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
