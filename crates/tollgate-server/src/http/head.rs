//! The head of an HTTP/1 request, read strictly.
//!
//! Where the standard lets a server be lenient, this is not: what two programs in a row could read
//! differently is refused. That is bare line feeds, folded headers, spaces before a colon, several
//! lengths, a length beside chunks, and transfer codings other than chunks.

use super::{
    call::{Fields, Span},
    reply::{Kind, Problem},
};

/// The longest head, in bytes.
pub(super) const MAX_HEAD: usize = 32 << 10;
/// The most headers.
const MAX_FIELDS: usize = 100;

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunks,
}

/// The parsed head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// How long the whole of it is.
    pub(super) length: usize,
    method: (usize, usize),
    target: (usize, usize),
    pub(super) framing: Framing,
    pub(super) keeps_alive: bool,
    /// Whether it is HTTP/1.0, whose clients need a header to keep the connection open.
    pub(super) is_old: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
}

fn bad(text: &str) -> Problem {
    Problem::new(Kind::BadHttp, text)
}

/// Returns where the head ends, if it does; `from` is where to go on looking, and is moved.
pub(super) fn end(bytes: &[u8], from: &mut usize) -> Result<Option<usize>, Problem> {
    if let Some(first) = bytes.first()
        && !is_token(*first)
    {
        return Err(bad("the first byte does not start an HTTP request; is the client using TLS?"));
    }
    let mut at = *from;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line_end = at + found;
        if line_end == 0 || bytes[line_end - 1] != b'\r' {
            return Err(bad("a line ends with a bare line feed; HTTP requires CR and LF"));
        }
        if line_end >= 3 && bytes[line_end - 3..line_end] == *b"\r\n\r" {
            let end = line_end + 1;
            return if end > MAX_HEAD { Err(too_large()) } else { Ok(Some(end)) };
        }
        at = line_end + 1;
    }
    *from = at;
    if bytes.len() > MAX_HEAD { Err(too_large()) } else { Ok(None) }
}

fn too_large() -> Problem {
    let text = format!("the head has more than {MAX_HEAD} bytes; send fewer or shorter headers");
    Problem::new(Kind::HeadTooLarge, text)
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
        )
        || matches!(byte, b'`' | b'|' | b'~')
}

/// Which bytes can be in a header's name.
static TOKEN: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0);
    while byte < 256 {
        table[byte] = is_token(byte as u8);
        byte += 1;
    }
    table
};

fn all_tokens(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| TOKEN[usize::from(*byte)])
}

impl Head {
    /// Reads a head that is here to its end, both line ends included.
    pub(super) fn parse(bytes: &[u8], spans: &mut Vec<Span>) -> Result<Self, Problem> {
        spans.clear();
        let line_end = line_end(bytes, 0);
        let line = &bytes[..line_end];
        if bytes.get(line_end + 1) != Some(&b'\n') {
            return Err(bad("a carriage return is not followed by a line feed"));
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad("the first line is not a method, a target and a version"));
        };
        let is_old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err(bad("the version is not HTTP/1.1 or HTTP/1.0")),
        };
        let is_plain = target.iter().all(|byte| (0x21..0x7f).contains(byte));
        if !all_tokens(method) || target.is_empty() || !is_plain {
            return Err(bad("the method or the target contains invalid characters"));
        }
        let mut head = Self {
            length: bytes.len(),
            method: (0, method.len()),
            target: (method.len() + 1, method.len() + 1 + target.len()),
            framing: Framing::Length(0),
            keeps_alive: !is_old,
            is_old,
            expects_continue: false,
        };
        lines(bytes, line_end + 2, spans)?;
        head.judge(Fields { bytes, spans })?;
        Ok(head)
    }

    /// Returns the method and the target, of the bytes that it was read from.
    pub(super) fn start<'a>(&self, bytes: &'a [u8]) -> (&'a str, &'a str) {
        // Both are ASCII, as was checked.
        let text = |(start, end): (usize, usize)| {
            std::str::from_utf8(bytes.get(start..end).unwrap_or_default()).unwrap_or_default()
        };
        (text(self.method), text(self.target))
    }

    /// Reads the headers that say how the request is to be read.
    fn judge(&mut self, fields: Fields<'_>) -> Result<(), Problem> {
        let (mut hosts, mut length, mut is_chunked) = (0, None, false);
        let (mut closes, mut keeps) = (false, false);
        for (name, value) in fields.all() {
            // Only these five lengths matter.
            match name.len() {
                4 if name.eq_ignore_ascii_case(b"host") => hosts += 1,
                14 if name.eq_ignore_ascii_case(b"content-length") => {
                    let other = length.replace(whole(value)?);
                    if other.is_some() {
                        return Err(bad("there are several Content-Length headers; send one"));
                    }
                }
                17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    if is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(bad("Transfer-Encoding must be exactly \"chunked\""));
                    }
                    is_chunked = true;
                }
                10 if name.eq_ignore_ascii_case(b"connection") => {
                    for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        closes |= option.eq_ignore_ascii_case(b"close");
                        keeps |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                6 if name.eq_ignore_ascii_case(b"expect") => {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        let text = "Expect must be \"100-continue\"; leave it out";
                        return Err(Problem::new(Kind::Expectation, text));
                    }
                    self.expects_continue = !self.is_old;
                }
                _ => {}
            }
        }
        if hosts > 1 || hosts == 0 && !self.is_old {
            return Err(bad("the request must have exactly one Host header"));
        }
        self.keeps_alive = !closes && (!self.is_old || keeps);
        self.framing = match (length, is_chunked) {
            (Some(_), true) => {
                return Err(bad(
                    "the request has both Content-Length and Transfer-Encoding; send one",
                ));
            }
            (None, true) if self.is_old => {
                return Err(bad("HTTP/1.0 has no Transfer-Encoding"));
            }
            (None, true) => Framing::Chunks,
            (length, false) => Framing::Length(length.unwrap_or(0)),
        };
        Ok(())
    }
}

/// Returns where the line ends that begins at `from`.
fn line_end(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len())
}

/// Notes where the headers are, from `at` to the empty line.
fn lines(bytes: &[u8], mut at: usize, spans: &mut Vec<Span>) -> Result<(), Problem> {
    loop {
        let end = line_end(bytes, at);
        if end == at {
            return Ok(());
        }
        if bytes.get(end + 1) != Some(&b'\n') {
            return Err(bad("a carriage return is not followed by a line feed"));
        }
        if spans.len() == MAX_FIELDS {
            let text = format!("there are more than {MAX_FIELDS} headers; send fewer");
            return Err(Problem::new(Kind::HeadTooLarge, text));
        }
        let line = &bytes[at..end];
        let colon = line.iter().position(|byte| !TOKEN[usize::from(*byte)]);
        let Some(colon) = colon.filter(|colon| *colon > 0 && line[*colon] == b':') else {
            return Err(bad("a header is not a name, a colon and a value"));
        };
        let value = &line[colon + 1..];
        if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(bad("a header value contains control characters"));
        }
        let is_space = |byte: &u8| *byte == b' ' || *byte == b'\t';
        let before = value.iter().take_while(|byte| is_space(byte)).count();
        let behind = value[before..].iter().rev().take_while(|byte| is_space(byte)).count();
        // OVERFLOW: a head is short.
        let number = |at: usize| at as u32;
        spans.push(Span {
            name: (number(at), number(at + colon)),
            value: (number(at + colon + 1 + before), number(end - behind)),
        });
        at = end + 2;
    }
}

/// Reads a length: digits only.
fn whole(value: &[u8]) -> Result<usize, Problem> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let is_digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    text.parse()
        .ok()
        .filter(|_| is_digits)
        .ok_or_else(|| bad("Content-Length is not a number of bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriage_returns_do_not_stand_alone() {
        for (head, is_good) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], true),
            (b"GET / HTTP/1.1\rXHost: a\r\n\r\n", false),
            (b"GET / HTTP/1.1\r\rHost: a\r\n\r\n", false),
            (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", false),
        ] {
            let read = Head::parse(head, &mut Vec::new());
            assert_eq!(read.is_ok(), is_good, "{}", String::from_utf8_lossy(head));
        }
    }
}
