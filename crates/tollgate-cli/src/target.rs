//! Where a server is, and a stream to it.

use crate::tls::{Tls, TlsArgs};
use std::{
    fmt, io,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A server, and how to speak to it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    address: Address,
    tls: Option<Tls>,
}

#[derive(Clone, Debug)]
enum Address {
    /// A host, or an address, and a port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Target {
    /// Reads `HOST:PORT` or `unix:/PATH`, with a scheme such as `https://` before it or without.
    /// `protocol` is the name in ALPN; empty for none.
    pub(crate) fn new(text: &str, tls: &TlsArgs, protocol: &[u8]) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let is_tls = match scheme {
            "" => tls.is_wanted(),
            "https" | "rediss" | "grpcs" => true,
            "http" | "redis" | "grpc" if tls.is_wanted() => {
                return Err(format!(
                    "{scheme}:// does not use TLS, but a TLS flag is given; remove one of them"
                ));
            }
            "http" | "redis" | "grpc" => false,
            _ => return Err(format!("{scheme}:// is not a known scheme; use https:// for TLS")),
        };
        let address = Address::read(rest)?;
        let host = match &address {
            Address::Tcp(address) => address.rsplit_once(':').map_or("", |(host, _)| host),
            Address::Unix(_) => "localhost",
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if is_tls { Some(Tls::new(tls, host, protocol)?) } else { None };
        Ok(Self { address, tls })
    }

    /// Connects, and shakes hands if there is TLS; nothing waits to be sent together.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let stream = match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str()).await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        match &self.tls {
            Some(tls) => tls.over(stream).await,
            None => Ok(stream),
        }
    }

    /// Returns what goes into `Host` and `:authority`.
    pub(crate) fn authority(&self) -> &str {
        match &self.address {
            Address::Tcp(address) => address,
            Address::Unix(_) => "localhost",
        }
    }

    /// Returns the scheme of HTTP.
    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

impl Address {
    fn read(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("the path after unix: is empty; write it as unix:/run/x.sock".into());
            }
            return Ok(Self::Unix(path.into()));
        }
        if text.contains('@') {
            // The text before it may be a password, so the error does not repeat it.
            return Err("an address cannot contain a user or a password; write HOST:PORT".into());
        }
        let text = text.strip_suffix('/').unwrap_or(text);
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match port.map(|(_, port)| port.parse::<u16>()) {
            Some(Ok(port)) if port > 0 => Ok(Self::Tcp(text.to_owned())),
            _ => Err(format!(
                "\"{text}\" is not an address; write HOST:PORT, for example 127.0.0.1:6380, or \
                 unix:/PATH"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(address) => f.write_str(address)?,
            Address::Unix(path) => write!(f, "unix:{}", path.display())?,
        }
        f.write_str(if self.tls.is_some() { " (tls)" } else { "" })
    }
}

/// A connection of any kind.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<Stream>>),
}

macro_rules! each {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
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
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_judged_before_anything_starts() {
        for (text, good) in [
            ("127.0.0.1:6379", true),
            ("[::1]:80", true),
            ("localhost:80", true),
            ("http://localhost:80/", true),
            ("unix:/tmp/x", true),
            ("unix:", false),
            (":80", false),
            ("localhost", false),
            ("localhost:0", false),
            ("localhost:70000", false),
            ("ftp://localhost:80", false),
            ("", false),
        ] {
            assert_eq!(Target::new(text, &TlsArgs::default(), b"").is_ok(), good, "{text}");
        }
        for text in ["u:s3cret@h:80", "https://u:s3cret@h:80", "redis://:s3cret@h"] {
            let error = Target::new(text, &TlsArgs::default(), b"").unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
    }
}
