//! The bytes of a connection, over any transport.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// The bytes of a connection.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    TlsTcp(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    /// TLS over a Unix socket.
    #[cfg(feature = "tls")]
    TlsUnix(Box<tokio_rustls::server::TlsStream<UnixStream>>),
}

impl Stream {
    /// Returns the address that the client has connected to; `None` for Unix sockets.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(_) => None,
            #[cfg(feature = "tls")]
            Self::TlsTcp(stream) => stream.get_ref().0.local_addr().ok(),
            #[cfg(feature = "tls")]
            Self::TlsUnix(_) => None,
        }
    }

    /// Returns true if the connection is encrypted.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        !matches!(self, Self::Tcp(_) | Self::Unix(_))
    }
}

/// Calls the same method of any variant.
macro_rules! each {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            Self::Unix(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(feature = "tls")]
            Self::TlsTcp(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(feature = "tls")]
            Self::TlsUnix(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Tcp(_) | Self::Unix(_))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, poll_shutdown(cx))
    }
}
