//! A small HTTP client for the administrators' interface, over TCP, a Unix socket or TLS.
//!
//! One connection per request. A response is at most 64 MiB long, and a request takes at most five
//! seconds.

use crate::{target::Target, text::escaped};
use serde::de::DeserializeOwned;
use std::{fmt, io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: u64 = 64 << 20;
const MOST_HEADERS: usize = 64;

/// Sends requests to one server.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    token: Option<String>,
    runtime: Runtime,
}

/// Why a request failed.
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
    pub(crate) fn new(target: Target, token: Option<String>) -> Result<Self, ClientError> {
        let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if token.as_ref().is_some_and(|token| token.is_empty() || !token.bytes().all(is_visible)) {
            let text = "--token-file: a token must be one line of printable ASCII characters";
            return Err(ClientError(text.into()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| ClientError(format!("cannot start the async runtime: {error}")))?;
        Ok(Self { target, token, runtime })
    }

    /// Returns the server that it sends requests to.
    pub(crate) const fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request, and reads the response as JSON.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.fetch(path)?;
        serde_json::from_slice(&body)
            .map_err(|error| self.wrong(path, format_args!("cannot parse the response: {error}")))
    }

    fn wrong(&self, path: &str, text: fmt::Arguments<'_>) -> ClientError {
        let path = path.split('?').next().unwrap_or(path);
        // The text contains input from the server.
        ClientError(escaped(&format!("{}: GET {path}: {text}", self.target)))
    }

    fn fetch(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let asked = async { timeout(PATIENCE, self.exchange(path)).await };
        let asked = self.runtime.block_on(asked);
        let late = |_| Err(io::Error::other(format!("no response within {PATIENCE:?}")));
        let answer = asked.unwrap_or_else(late).map_err(|error| {
            ClientError(format!(
                "cannot reach {}: {error}; is `tollgate serve` running, and is this its `--admin` \
                 address?",
                self.target
            ))
        })?;
        let (status, body) = split(&answer).ok_or_else(|| {
            self.wrong(
                path,
                format_args!(
                    "the response is not HTTP; if the server uses TLS, write https:// before the \
                     address"
                ),
            )
        })?;
        match status {
            200 | 503 => Ok(body.to_vec()),
            401 if self.token.is_some() => {
                Err(self.wrong(path, format_args!("the server rejects the token of --token-file")))
            }
            401 => Err(self.wrong(
                path,
                format_args!("the server requires a token; pass one with --token-file"),
            )),
            status => {
                let told: Option<serde_json::Value> = serde_json::from_slice(body).ok();
                let detail = told.and_then(|told| told["detail"].as_str().map(str::to_owned));
                let detail = detail.unwrap_or_default();
                Err(self.wrong(path, format_args!("the server responded {status} {detail}")))
            }
        }
    }

    async fn exchange(&self, path: &str) -> io::Result<Vec<u8>> {
        let token = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let host = self.target.authority();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}\r\n");
        let mut stream = self.target.connect().await?;
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        match stream.take(MOST_BYTES).read_to_end(&mut answer).await {
            // A server may close without the alert that ends TLS; `split` checks that the response
            // is complete.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(answer),
        }
    }
}

/// Returns the status and body of a response that ends with the connection.
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

/// Encodes a value for use in a query.
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
    use crate::tls::TlsArgs;

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
            let target = Target::new("localhost:1", &TlsArgs::default(), b"").unwrap();
            assert!(Client::new(target, Some(wrong.into())).is_err());
        }
    }
}
