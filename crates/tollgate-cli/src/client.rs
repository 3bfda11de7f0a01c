//! A small HTTP client for the administrators' interface, over TCP or a Unix socket.
//!
//! One connection per request. An answer is at most 64 MiB long, and each step takes at most
//! five seconds.

use serde::de::DeserializeOwned;
use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};
use tollgate_server::config::Endpoint;

const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: u64 = 64 << 20;
const MOST_HEADERS: usize = 64;

/// Asks one server.
#[derive(Debug)]
pub(crate) struct Client {
    endpoint: Endpoint,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct ClientError(String);

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// Returns a client. A token must be one line of visible characters.
    pub(crate) fn new(endpoint: Endpoint, token: Option<String>) -> Result<Self, ClientError> {
        let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        match &token {
            Some(token) if token.is_empty() || !token.bytes().all(is_visible) => {
                Err(ClientError("a token is one line of visible ASCII characters".into()))
            }
            _ => Ok(Self { endpoint, token }),
        }
    }

    /// Returns whom it asks.
    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks, and reads the answer as JSON.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.fetch(path)?;
        serde_json::from_slice(&body).map_err(|error| {
            self.wrong(path, format_args!("its answer is not understood: {error}"))
        })
    }

    fn wrong(&self, path: &str, text: fmt::Arguments<'_>) -> ClientError {
        let path = path.split('?').next().unwrap_or(path);
        ClientError(format!("{} was asked for {path}: {text}", self.endpoint))
    }

    fn fetch(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let answer = match &self.endpoint {
            Endpoint::Tcp(address) => {
                TcpStream::connect_timeout(address, PATIENCE).and_then(|stream| {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    self.exchange(stream, path)
                })
            }
            Endpoint::Unix(socket) => UnixStream::connect(socket).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                self.exchange(stream, path)
            }),
            Endpoint::Off => Err(io::Error::other("off is no address")),
        };
        let answer = answer.map_err(|error| {
            ClientError(format!(
                "{} does not answer: {error}; is `tollgate serve` running, with this `--admin`?",
                self.endpoint
            ))
        })?;
        let (status, body) = split(&answer)
            .ok_or_else(|| self.wrong(path, format_args!("its answer is no HTTP")))?;
        match status {
            200 | 503 => Ok(body.to_vec()),
            401 => Err(self.wrong(path, format_args!("it wants a token; give --token-file"))),
            status => {
                let told: Option<serde_json::Value> = serde_json::from_slice(body).ok();
                let detail = told.and_then(|told| told["detail"].as_str().map(str::to_owned));
                let detail = detail.unwrap_or_default();
                Err(self.wrong(path, format_args!("it answered {status} {detail}")))
            }
        }
    }

    fn exchange(&self, mut stream: impl Read + Write, path: &str) -> io::Result<Vec<u8>> {
        let token = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: tollgate\r\nConnection: close\r\n{token}\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(MOST_BYTES).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// Returns status and body of an answer that ends with the connection.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(answer).ok()? else { return None };
    let body = &answer[head..];
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))?;
    let length: usize = std::str::from_utf8(length.value).ok()?.trim().parse().ok()?;
    (body.len() == length).then_some((response.code?, body))
}

/// Writes a value so that it can stand in a query.
pub(crate) fn encoded(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_must_be_whole() {
        for (answer, whole) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\ncontent-len", false),
            ("+PONG\r\n", false),
            ("", false),
        ] {
            assert_eq!(split(answer.as_bytes()).is_some(), whole, "{answer:?}");
        }
        assert_eq!(encoded("shop:path=/a|é"), "shop%3Apath%3D%2Fa%7C%C3%A9");
    }

    #[test]
    fn a_token_cannot_smuggle_a_header() {
        for wrong in ["", "a\r\nX: y", "é"] {
            assert!(Client::new(Endpoint::Off, Some(wrong.into())).is_err());
        }
    }
}
