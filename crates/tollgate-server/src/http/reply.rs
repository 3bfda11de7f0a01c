//! A reply before it is written as bytes.

use super::json::Bad;
use crate::net::{MemoryError, Penalty};
use tollgate_tower::answer::raw::{push_number, push_text};

/// A reply. The next request reuses its memory.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// Whether the request was invalid.
    pub(super) is_bad: bool,
    /// Whether the connection must close after it.
    pub(super) closes: bool,
    /// The delay before the reply is sent: the client has sent a wrong token.
    pub(super) penalty: Option<Penalty>,
    /// Header names, and where their values end in `values`.
    names: Vec<(&'static str, usize)>,
    values: Vec<u8>,
}

pub(super) const JSON: &str = "application/json";
pub(super) const PROBLEM: &str = "application/problem+json";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

impl Reply {
    pub(super) fn clear(&mut self) {
        (self.status, self.content_type) = (200, JSON);
        (self.is_bad, self.closes, self.penalty) = (false, false, None);
        self.body.clear();
        self.names.clear();
        self.values.clear();
    }

    /// Adds a header whose value `write` appends. It must write visible ASCII only.
    pub(super) fn header(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.values);
        self.names.push((name, self.values.len()));
    }

    /// Adds a header.
    pub(super) fn header_text(&mut self, name: &'static str, value: &str) {
        self.header(name, |out| out.extend_from_slice(value.as_bytes()));
    }

    /// Returns the headers.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let mut start = 0;
        self.names.iter().map(move |(name, end)| {
            let value = &self.values[start..*end];
            start = *end;
            (*name, value)
        })
    }

    /// Answers with a plain text.
    pub(super) fn plain(&mut self, status: u16, text: &str) {
        (self.status, self.content_type) = (status, TEXT);
        self.body.extend_from_slice(text.as_bytes());
    }

    /// Replies with a problem.
    #[cold]
    pub(super) fn problem(&mut self, problem: &Problem) {
        let Problem { kind, detail } = problem;
        let (status, name, title) = kind.parts();
        (self.status, self.content_type) = (status, PROBLEM);
        self.body.clear();
        let out = &mut self.body;
        out.extend_from_slice(b"{\"type\":\"urn:tollgate:problem:");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\",\"title\":");
        push_text(out, title);
        out.extend_from_slice(b",\"status\":");
        push_number(out, u64::from(status));
        out.extend_from_slice(b",\"detail\":");
        push_text(out, detail);
        out.push(b'}');
        self.is_bad = status < 500;
        self.closes |= matches!(
            kind,
            Kind::BadHttp | Kind::HeadTooLarge | Kind::TooLarge | Kind::Slow | Kind::NoMemory
        );
        if *kind == Kind::Unauthorized {
            self.header_text("WWW-Authenticate", "Bearer");
        }
    }
}

/// An error of a request or of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    pub(super) detail: String,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

impl From<MemoryError> for Problem {
    fn from(error: MemoryError) -> Self {
        Self { kind: Kind::NoMemory, detail: error.to_string() }
    }
}

impl From<Bad> for Problem {
    fn from(Bad(detail): Bad) -> Self {
        Self { kind: Kind::BadRequest, detail }
    }
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    BadRequest,
    BadHttp,
    Unauthorized,
    Forbidden,
    ForeignOrigin,
    NotFound,
    NoPolicy,
    NoReservation,
    NoLease,
    MethodNotAllowed,
    Slow,
    TooLarge,
    NotJson,
    ForeignHost,
    Expectation,
    HeadTooLarge,
    StoreFailed,
    NoMemory,
}

impl Kind {
    /// Returns status, name and title.
    const fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::BadRequest => (400, "bad-request", "The request is not valid"),
            Self::BadHttp => (400, "bad-http", "The request is not valid HTTP"),
            Self::Unauthorized => (401, "unauthorized", "The token is missing or wrong"),
            Self::Forbidden => (403, "forbidden", "The token does not grant this"),
            Self::ForeignOrigin => {
                (403, "foreign-origin", "The request comes from a page of another origin")
            }
            Self::NotFound => (404, "not-found", "There is nothing at this path"),
            Self::NoPolicy => (404, "no-policy", "There is no such policy"),
            Self::NoReservation => (404, "no-reservation", "There is no such reservation"),
            Self::NoLease => (404, "no-lease", "There is no such lease"),
            Self::MethodNotAllowed => {
                (405, "method-not-allowed", "This path does not support this method")
            }
            Self::Slow => (408, "timeout", "The request took too long to arrive"),
            Self::TooLarge => (413, "too-large", "The body is too large"),
            Self::NotJson => (415, "not-json", "The Content-Type is not JSON"),
            Self::ForeignHost => (421, "foreign-host", "The Host header does not name this server"),
            Self::Expectation => (417, "expectation", "The expectation is not supported"),
            Self::HeadTooLarge => (431, "head-too-large", "The head of the request is too large"),
            Self::NoMemory => (503, "no-memory", "The connections have used up their memory"),
            Self::StoreFailed => (503, "store-failed", "The store failed"),
        }
    }
}

/// Appends a reply of HTTP/1.
pub(super) fn put(
    out: &mut Vec<u8>,
    reply: &Reply,
    (date, connection): (&[u8], &str),
    is_head: bool,
) {
    out.extend_from_slice(status_line(reply.status).as_bytes());
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\nContent-Type: ");
    out.extend_from_slice(reply.content_type.as_bytes());
    out.extend_from_slice(b"\r\nContent-Length: ");
    push_number(out, reply.body.len() as u64);
    out.extend_from_slice(b"\r\n");
    for (name, value) in reply.headers() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(connection.as_bytes());
    out.extend_from_slice(b"\r\n");
    if !is_head {
        out.extend_from_slice(&reply.body);
    }
}

/// Returns the first line of a reply, and the name of the header that follows it.
const fn status_line(status: u16) -> &'static str {
    match status {
        200 => "HTTP/1.1 200 OK\r\nDate: ",
        400 => "HTTP/1.1 400 Bad Request\r\nDate: ",
        401 => "HTTP/1.1 401 Unauthorized\r\nDate: ",
        403 => "HTTP/1.1 403 Forbidden\r\nDate: ",
        404 => "HTTP/1.1 404 Not Found\r\nDate: ",
        405 => "HTTP/1.1 405 Method Not Allowed\r\nDate: ",
        408 => "HTTP/1.1 408 Request Timeout\r\nDate: ",
        413 => "HTTP/1.1 413 Content Too Large\r\nDate: ",
        415 => "HTTP/1.1 415 Unsupported Media Type\r\nDate: ",
        421 => "HTTP/1.1 421 Misdirected Request\r\nDate: ",
        417 => "HTTP/1.1 417 Expectation Failed\r\nDate: ",
        429 => "HTTP/1.1 429 Too Many Requests\r\nDate: ",
        431 => "HTTP/1.1 431 Request Header Fields Too Large\r\nDate: ",
        501 => "HTTP/1.1 501 Not Implemented\r\nDate: ",
        503 => "HTTP/1.1 503 Service Unavailable\r\nDate: ",
        _ => "HTTP/1.1 500 Internal Server Error\r\nDate: ",
    }
}
