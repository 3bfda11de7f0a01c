//! One stream of bytes to a server: TCP, a Unix socket, or TLS over TCP.

use super::{
    settings::{Address, Settings},
    tls::Encryption,
};
use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// One stream of bytes to a server.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects. Names are looked up each time: an address may come to mean another server.
    pub(super) async fn connect(
        address: &Address,
        settings: &Settings,
        encryption: &Encryption,
    ) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // Writes are gathered here; the kernel need not wait for more.
                stream.set_nodelay(true)?;
                match &settings.tls {
                    None => Ok(Self::Tcp(stream)),
                    Some(tls) => {
                        let name = tls.server_name.as_deref().unwrap_or(host);
                        encryption.over(stream, name).await
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream(..)")
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $do:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $do,
            Stream::Unix($stream) => $do,
            #[cfg(feature = "tls")]
            Stream::Tls($stream) => $do,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
