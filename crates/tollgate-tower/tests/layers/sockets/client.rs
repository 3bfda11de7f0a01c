//! Clients that disconnect in every possible way.

use super::LONG;
use bytes::Bytes;
use http::{Request, Response};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};

/// How a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// HTTP/1.1: closes the connection.
    Close,
    /// HTTP/1.1: resets it (RST of TCP).
    Reset,
    /// HTTP/1.1: shuts down its sending side, and stays.
    HalfClose,
    /// HTTP/2: resets the stream (RST_STREAM), and the connection stays.
    ResetStream,
    /// HTTP/2: closes the connection.
    CloseAll,
}

pub(crate) const LEAVES: [Leave; 5] =
    [Leave::Close, Leave::Reset, Leave::HalfClose, Leave::ResetStream, Leave::CloseAll];

impl Leave {
    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::ResetStream | Self::CloseAll)
    }
}

/// A request under way, over a connection of its own.
pub(crate) enum Client {
    One { stream: TcpStream, leave: Leave },
    Two(Two),
}

/// A stream of HTTP/2.
pub(crate) struct Two {
    pub(crate) connection: JoinHandle<()>,
    pub(crate) sender: h2::client::SendRequest<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    upload: h2::SendStream<Bytes>,
    body: Option<h2::RecvStream>,
    leave: Leave,
}

impl Client {
    /// Sends a request for a path. An upload continues after that.
    pub(crate) async fn ask(address: SocketAddr, leave: Leave, path: &str) -> Self {
        let mut stream = timeout(LONG, TcpStream::connect(address)).await.unwrap().unwrap();
        let is_upload = path == "/upload";
        if leave.is_http2() {
            let (mut sender, connection) =
                timeout(LONG, h2::client::handshake(stream)).await.unwrap().unwrap();
            let connection = tokio::spawn(async move { drop(connection.await) });
            let request = Request::builder()
                .method(if is_upload { "POST" } else { "GET" })
                .uri(format!("http://{address}{path}"))
                .body(())
                .unwrap();
            let (response, upload) = sender.send_request(request, !is_upload).unwrap();
            let response = Some(response);
            return Self::Two(Two { connection, sender, response, upload, body: None, leave });
        }
        let head = match is_upload {
            true => format!("POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n\r\n"),
            false => format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n"),
        };
        stream.write_all(head.as_bytes()).await.unwrap();
        Self::One { stream, leave }
    }

    /// Sends a part of an upload.
    pub(crate) async fn send(&mut self, part: &'static [u8]) {
        match self {
            Self::One { stream, .. } => stream.write_all(part).await.unwrap(),
            Self::Two(two) => two.upload.send_data(Bytes::from_static(part), false).unwrap(),
        }
    }

    /// Waits for the head of the response, and returns its status.
    pub(crate) async fn status(&mut self) -> u16 {
        timeout(LONG, self.read_head()).await.unwrap()
    }

    async fn read_head(&mut self) -> u16 {
        match self {
            Self::One { stream, .. } => {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                head.split(' ').nth(1).unwrap().parse().unwrap()
            }
            Self::Two(two) => {
                let response: Response<_> = two.response.take().unwrap().await.unwrap();
                let status = response.status().as_u16();
                two.body = Some(response.into_body());
                status
            }
        }
    }

    /// Waits for this many bytes of the body. In HTTP/1.1 they are one chunk.
    pub(crate) async fn read(&mut self, length: usize) {
        timeout(LONG, self.read_bytes(length)).await.unwrap();
    }

    async fn read_bytes(&mut self, length: usize) {
        match self {
            Self::One { stream, .. } => {
                let mut chunk = vec![0; length + format!("{length:x}\r\n\r\n").len()];
                stream.read_exact(&mut chunk).await.unwrap();
            }
            Self::Two(two) => {
                let body = two.body.as_mut().unwrap();
                let mut read = 0;
                while read < length {
                    let data = body.data().await.unwrap().unwrap();
                    body.flow_control().release_capacity(data.len()).unwrap();
                    read += data.len();
                }
            }
        }
    }

    /// Disconnects, and returns the part that keeps the connection open.
    pub(crate) async fn leave(self) -> Option<Self> {
        match self {
            Self::One { mut stream, leave } => match leave {
                Leave::Reset => {
                    stream.set_zero_linger().unwrap();
                    None
                }
                Leave::HalfClose => {
                    stream.shutdown().await.unwrap();
                    Some(Self::One { stream, leave })
                }
                _ => None,
            },
            Self::Two(mut two) => match two.leave {
                Leave::CloseAll => {
                    two.connection.abort();
                    None
                }
                _ => {
                    two.upload.send_reset(h2::Reason::CANCEL);
                    Some(Self::Two(two))
                }
            },
        }
    }
}

/// Sends a request over HTTP/1.1, and returns the status.
pub(crate) async fn status(address: SocketAddr, path: &str) -> u16 {
    Client::ask(address, Leave::Close, path).await.status().await
}
