//! HTTP/1.1: one request encoded once, and answers with a `Content-Length` or without a body.

use super::{
    pipe::{Answer, Scan},
    tally::Verdict,
    template::Template,
};
use crate::text::escaped;
use std::fmt::Write as _;

/// The most headers an answer may have.
const HEADERS: usize = 64;

/// The request to send.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) headers: &'a [String],
    pub(crate) body: &'a str,
    pub(crate) key_prefix: &'a str,
}

impl HttpRequest<'_> {
    /// Encodes the request with its headers.
    pub(crate) fn encode(&self) -> Template {
        let body = Template::of(self.body, self.key_prefix);
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.path, self.host);
        let given = |name: &str| {
            self.headers.iter().any(|header| {
                header.split_once(':').is_some_and(|(it, _)| it.trim().eq_ignore_ascii_case(name))
            })
        };
        if body.len() > 0 && !given("content-type") {
            head.push_str("Content-Type: application/json\r\n");
        }
        if body.len() > 0 || self.method == "POST" || self.method == "PUT" {
            // Writing to a string cannot fail.
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        for header in self.headers {
            head.push_str(header.trim());
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let mut template = Template::of(&head, self.key_prefix);
        template.append(&body);
        template
    }
}

/// Finds answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpScan {
    /// Responses to `HEAD` have no body, regardless of their headers.
    pub(crate) no_body: bool,
}

impl Scan for HttpScan {
    fn scan(&self, bytes: &[u8]) -> Result<Option<Answer>, String> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("a response is not HTTP/1.1: {error}")),
        };
        let is_last = response.headers.iter().any(|header| {
            header.name.eq_ignore_ascii_case("connection")
                && header.value.eq_ignore_ascii_case(b"close")
        });
        let status = response.code.unwrap_or(0);
        let body = if self.no_body || status == 204 || status == 304 {
            0
        } else {
            body_length(response.headers)?
        };
        let Some(length) = head.checked_add(body).filter(|length| *length <= bytes.len()) else {
            return Ok(None);
        };
        let verdict = match status {
            // How the service answers descriptors that no limit fits.
            200..=299 if bytes[..length].ends_with(b"\"limits\":[]}") => Verdict::Unmatched,
            200..=299 => Verdict::Allowed,
            429 => Verdict::Denied,
            _ => Verdict::Error,
        };
        Ok(Some(Answer { length, verdict, is_last }))
    }

    fn describe(&self, answer: &[u8]) -> String {
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let body = body.and_then(|at| answer.get(at + 4..)).unwrap_or_default();
        let line = line.escape_ascii();
        // A problem of RFC 9457, as the service sends it.
        let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        if let Some(detail) = problem.as_ref().and_then(|problem| problem["detail"].as_str()) {
            return format!("the server answered {line}: {}", escaped(detail));
        }
        let body = body.get(..body.len().min(200)).unwrap_or_default();
        format!("the server answered {line} {}", body.escape_ascii())
    }
}

fn body_length(headers: &[httparse::Header<'_>]) -> Result<usize, String> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default().trim();
            return text.parse().map_err(|_| {
                format!("the Content-Length \"{text}\" of a response is not a number")
            });
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(
                "a response is chunked; `tollgate load` only reads responses with a Content-Length"
                    .into(),
            );
        }
    }
    Err("a response has no Content-Length, so its end cannot be found".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: HttpScan = HttpScan { no_body: false };

    #[test]
    fn a_request_has_the_length_of_its_body() {
        let request = HttpRequest {
            method: "POST",
            path: "/v1/check?k={key}",
            host: "localhost:80",
            headers: &["X-User: {key}".into()],
            body: "{\"key\":\"{key}\"}",
            key_prefix: "u",
        };
        let mut out = Vec::new();
        request.encode().write(3, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "POST /v1/check?k=u000000000003 HTTP/1.1\r\nHost: localhost:80\r\n\
             Content-Type: application/json\r\nContent-Length: 23\r\nX-User: u000000000003\r\n\r\n\
             {\"key\":\"u000000000003\"}"
        );
        let plain = HttpRequest { method: "GET", path: "/", headers: &[], body: "", ..request };
        let mut out = Vec::new();
        plain.encode().write(3, &mut out);
        assert_eq!(out, b"GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n");
    }

    #[test]
    fn answers_end_after_their_body_however_they_are_cut() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", Verdict::Allowed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Verdict::Allowed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"limits\":[]}", Verdict::Unmatched),
            ("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", Verdict::Denied),
            ("HTTP/1.1 204 No Content\r\n\r\n", Verdict::Allowed),
            ("HTTP/1.1 500 Oops\r\nContent-Length: 1\r\n\r\nx", Verdict::Error),
        ] {
            let (bytes, is_last) = (answer.as_bytes(), answer.contains("close"));
            for cut in 0..bytes.len() {
                assert_eq!(SCAN.scan(&bytes[..cut]), Ok(None), "{answer:?} cut at {cut}");
            }
            let followed = [bytes, b"HTTP/1.1"].concat();
            let expected = Answer { length: bytes.len(), verdict: expected, is_last };
            assert_eq!(SCAN.scan(&followed), Ok(Some(expected)), "{answer:?}");
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n";
        let found = HttpScan { no_body: true }.scan(head).unwrap().unwrap();
        assert_eq!((found.length, found.verdict), (head.len(), Verdict::Allowed));
    }

    #[test]
    fn answers_without_an_end_are_refused() {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "-ERR not HTTP\r\n",
        ] {
            assert!(SCAN.scan(answer.as_bytes()).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn an_error_is_shown_with_its_body() {
        let text = SCAN.describe(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope");
        assert_eq!(text, "the server answered HTTP/1.1 404 Not Found nope");
        let text =
            SCAN.describe(b"HTTP/1.1 404 Not Found\r\n\r\n{\"detail\":\"no \\\"x\\\"\\u001b\"}");
        assert_eq!(text, "the server answered HTTP/1.1 404 Not Found: no \"x\"\\u{1b}");
    }
}
