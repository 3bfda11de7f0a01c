//! Parses replies, in pieces of bytes, of both versions of the protocol.
//!
//! Every byte is scanned once or twice, however the pieces are cut: incomplete arrays wait on a
//! stack, an incomplete line is not searched again, and for a string the parser waits until it has
//! its length. The parser allocates only for bytes that have arrived, never for an announced
//! length.
//!
//! | type | becomes |
//! |---|---|
//! | `+` `$` `,` `(` `=` | [`Reply::Bytes`]: a double and a big number as text, a verbatim string without its kind |
//! | `-` `!` | [`Reply::Error`] |
//! | `:` `#` | [`Reply::Int`]: true is 1 |
//! | `_` `$-1` `*-1` | [`Reply::Nil`] |
//! | `*` `~` `%` | [`Reply::Array`]: a map with alternating keys and values |
//! | `>` `\|` | nothing: a push is dropped, and so is an attribute |

use super::Reply;
use bytes::{Buf, BytesMut};
use std::{error::Error, fmt};

/// How much a reply may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyBounds {
    /// The longest string, in bytes.
    pub bulk: usize,
    /// The longest reply, in bytes of its strings and lines.
    pub total: usize,
    /// The most elements of one reply, those of inner arrays included.
    pub elements: usize,
    /// How deep arrays may be in arrays.
    pub depth: usize,
}

impl Default for ReplyBounds {
    /// 1 MiB per string and 16 MiB in all, 65 536 elements, 8 levels.
    fn default() -> Self {
        Self { bulk: 1 << 20, total: 16 << 20, elements: 1 << 16, depth: 8 }
    }
}

/// Bytes that are no reply, or one beyond the bounds. The connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyError(String);

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ReplyError {}

/// The longest line: an error's text, or a big number.
const LINE_MAX: usize = 64 << 10;

/// Takes replies from a buffer. See the table in the source for what becomes what.
#[derive(Debug)]
pub struct ReplyParser {
    bounds: ReplyBounds,
    /// The arrays that are not complete, the outermost first.
    open: Vec<Open>,
    /// Bytes at the front of the buffer that are known to hold no end of line.
    searched: usize,
    /// The string that is waited for.
    bulk: Option<Bulk>,
    elements: usize,
    total: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bulk {
    mark: u8,
    length: usize,
}

#[derive(Debug)]
struct Open {
    kind: Kind,
    missing: usize,
    parts: Vec<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Array,
    /// Pushes and attributes.
    Dropped,
}

impl ReplyParser {
    /// Returns a parser that is at the start of a reply.
    #[must_use]
    pub fn new(bounds: ReplyBounds) -> Self {
        Self { bounds, open: Vec::new(), searched: 0, bulk: None, elements: 0, total: 0 }
    }

    /// Takes the next reply from the front of `buffer`. Returns `None` if it is not complete; what
    /// was understood so far is gone from the buffer and kept here.
    ///
    /// # Errors
    ///
    /// When the bytes are no reply, or one beyond the bounds. Do not go on after that.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Reply>, ReplyError> {
        loop {
            let value = match self.bulk {
                Some(bulk) => self.take_bulk(bulk, buffer)?,
                None => match self.take_line(buffer)? {
                    Some(end) => {
                        let value = self.line(&buffer[..end]);
                        buffer.advance(end + 2);
                        match value? {
                            Some(value) => Some(value),
                            None => continue,
                        }
                    }
                    None => None,
                },
            };
            let Some(value) = value else { return Ok(None) };
            if let Some(reply) = self.close(value) {
                self.at_the_start();
                return Ok(Some(reply));
            }
        }
    }

    /// Returns where the line at the front of the buffer ends.
    fn take_line(&mut self, buffer: &[u8]) -> Result<Option<usize>, ReplyError> {
        let rest = &buffer[self.searched..];
        let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = buffer.len();
            if buffer.len() > LINE_MAX {
                return Err(ReplyError(format!("a line has more than {LINE_MAX} bytes")));
            }
            return Ok(None);
        };
        let end = self.searched + at;
        self.searched = 0;
        match end.checked_sub(1) {
            Some(before) if before > LINE_MAX => {
                Err(ReplyError(format!("a line has more than {LINE_MAX} bytes")))
            }
            Some(before) if before > 0 && buffer[before] == b'\r' => Ok(Some(before)),
            _ => Err(ReplyError("a line does not start with a type or end with CR LF".into())),
        }
    }

    /// Understands one line, which has at least its mark. `None`: an array or a string begins.
    fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, ReplyError> {
        let (mark, rest) = (line[0], &line[1..]);
        self.count(line.len())?;
        let value = match mark {
            b'+' | b',' | b'(' => Reply::Bytes(rest.to_vec()),
            b'-' => Reply::Error(String::from_utf8_lossy(rest).into_owned()),
            b':' => Reply::Int(integer(rest)?),
            b'_' if rest.is_empty() => Reply::Nil,
            b'#' if rest == b"t" => Reply::Int(1),
            b'#' if rest == b"f" => Reply::Int(0),
            b'$' | b'!' | b'=' => match length(rest)? {
                None => Reply::Nil,
                Some(length) if length > self.bounds.bulk => {
                    let most = self.bounds.bulk;
                    let text = format!("a string of {length} bytes is above the maximum of {most}");
                    return Err(ReplyError(text));
                }
                Some(length) => {
                    self.count(length)?;
                    self.bulk = Some(Bulk { mark, length });
                    return Ok(None);
                }
            },
            b'*' | b'~' | b'%' | b'>' | b'|' => match length(rest)? {
                Some(length) => return self.begin(mark, length),
                None if mark == b'*' => Reply::Nil,
                None => return Err(ReplyError("-1 is not a length".into())),
            },
            _ => {
                let start = String::from_utf8_lossy(&line[..line.len().min(16)]).into_owned();
                return Err(ReplyError(format!(
                    "{start:?} does not start a reply of a Redis server"
                )));
            }
        };
        Ok(Some(value))
    }

    fn count(&mut self, bytes: usize) -> Result<(), ReplyError> {
        // OVERFLOW: both are bounded by the memory of the process.
        self.total += bytes;
        if self.total > self.bounds.total {
            let most = self.bounds.total;
            return Err(ReplyError(format!("a reply of more than {most} bytes")));
        }
        Ok(())
    }

    /// Begins an array. `Some`: it is complete already, because nothing is in it.
    fn begin(&mut self, mark: u8, length: usize) -> Result<Option<Reply>, ReplyError> {
        let pairs = matches!(mark, b'%' | b'|');
        let missing = if pairs { length.saturating_mul(2) } else { length };
        let kind = if matches!(mark, b'>' | b'|') { Kind::Dropped } else { Kind::Array };
        self.elements = self.elements.saturating_add(missing);
        if self.elements > self.bounds.elements {
            let most = self.bounds.elements;
            return Err(ReplyError(format!("a reply of more than {most} elements")));
        }
        if missing == 0 && kind == Kind::Array {
            return Ok(Some(Reply::Array(Vec::new())));
        }
        if missing == 0 {
            self.at_the_start();
            return Ok(None);
        }
        if self.open.len() == self.bounds.depth {
            let most = self.bounds.depth;
            return Err(ReplyError(format!("arrays are nested more than {most} deep")));
        }
        self.open.push(Open { kind, missing, parts: Vec::with_capacity(missing.min(16)) });
        Ok(None)
    }

    /// Takes the string that is waited for, if all of it is there.
    fn take_bulk(
        &mut self,
        bulk: Bulk,
        buffer: &mut BytesMut,
    ) -> Result<Option<Reply>, ReplyError> {
        if buffer.len() < bulk.length + 2 {
            return Ok(None);
        }
        let (text, rest) = buffer.split_at(bulk.length);
        if !rest.starts_with(b"\r\n") {
            return Err(ReplyError("a string is not followed by CR LF".into()));
        }
        let value = match bulk.mark {
            b'!' => Reply::Error(String::from_utf8_lossy(text).into_owned()),
            b'=' if text.get(3) == Some(&b':') => Reply::Bytes(text[4..].to_vec()),
            _ => Reply::Bytes(text.to_vec()),
        };
        buffer.advance(bulk.length + 2);
        self.bulk = None;
        Ok(Some(value))
    }

    /// Puts a value where it belongs. Returns a reply that is complete by it.
    fn close(&mut self, mut value: Reply) -> Option<Reply> {
        loop {
            let Some(open) = self.open.last_mut() else { return Some(value) };
            if open.kind == Kind::Array {
                open.parts.push(value);
            }
            open.missing -= 1;
            if open.missing > 0 {
                return None;
            }
            let done = self.open.pop()?;
            match done.kind {
                Kind::Array => value = Reply::Array(done.parts),
                Kind::Dropped => {
                    self.at_the_start();
                    return None;
                }
            }
        }
    }

    /// Restarts the count if no reply is in progress.
    fn at_the_start(&mut self) {
        if self.open.is_empty() {
            (self.elements, self.total) = (0, 0);
        }
    }
}

fn integer(text: &[u8]) -> Result<i64, ReplyError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let text = String::from_utf8_lossy(&text[..text.len().min(32)]).into_owned();
        ReplyError(format!("{text:?} is not a whole number"))
    })
}

/// Reads a length. `None` is the null of the older version.
fn length(text: &[u8]) -> Result<Option<usize>, ReplyError> {
    match integer(text)? {
        -1 => Ok(None),
        number => match usize::try_from(number) {
            Ok(length) => Ok(Some(length)),
            Err(_) => Err(ReplyError(format!("{number} is not a length"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: ReplyBounds = ReplyBounds { bulk: 16, total: 64, elements: 8, depth: 3 };

    fn read(bytes: &[u8], step: usize, bounds: ReplyBounds) -> Result<Vec<Reply>, ReplyError> {
        let (mut parser, mut buffer, mut all) = (ReplyParser::new(bounds), BytesMut::new(), vec![]);
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(reply) = parser.next(&mut buffer)? {
                all.push(reply);
            }
        }
        Ok(all)
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.into())
    }

    #[test]
    fn every_type_of_both_versions_is_understood() {
        let error = |text: &str| Reply::Error(text.into());
        for (bytes, expected) in [
            ("+OK\r\n", vec![text("OK")]),
            ("-ERR no\r\n", vec![error("ERR no")]),
            (":-12\r\n:+3\r\n", vec![Reply::Int(-12), Reply::Int(3)]),
            ("$5\r\na\r\nbc\r\n$0\r\n\r\n", vec![text("a\r\nbc"), text("")]),
            ("$-1\r\n*-1\r\n_\r\n", vec![Reply::Nil; 3]),
            ("#t\r\n#f\r\n", vec![Reply::Int(1), Reply::Int(0)]),
            (",1.5\r\n,inf\r\n", vec![text("1.5"), text("inf")]),
            (
                "(3492890328409238509324850943850943825024385\r\n",
                vec![text("3492890328409238509324850943850943825024385")],
            ),
            ("=7\r\ntxt:abc\r\n", vec![text("abc")]),
            ("!8\r\nERR wat!\r\n", vec![error("ERR wat!")]),
            (
                "*2\r\n:1\r\n*1\r\n+a\r\n",
                vec![Reply::Array(vec![Reply::Int(1), Reply::Array(vec![text("a")])])],
            ),
            ("~1\r\n:1\r\n*0\r\n", vec![Reply::Array(vec![Reply::Int(1)]), Reply::Array(vec![])]),
            ("%1\r\n+k\r\n:1\r\n", vec![Reply::Array(vec![text("k"), Reply::Int(1)])]),
            (">2\r\n+message\r\n+x\r\n:1\r\n", vec![Reply::Int(1)]),
            (">0\r\n|0\r\n:1\r\n", vec![Reply::Int(1)]),
            ("|1\r\n+ttl\r\n:9\r\n:1\r\n", vec![Reply::Int(1)]),
            (
                "*2\r\n|1\r\n+a\r\n*1\r\n+b\r\n:1\r\n:2\r\n",
                vec![Reply::Array(vec![Reply::Int(1), Reply::Int(2)])],
            ),
        ] {
            for step in [1, 2, 3, bytes.len()] {
                let read = read(bytes.as_bytes(), step, ReplyBounds::default());
                assert_eq!(read.as_ref(), Ok(&expected), "{bytes:?} in pieces of {step}");
            }
        }
    }

    #[test]
    fn what_is_no_reply_or_too_much_is_refused() {
        let deep = "*1\r\n".repeat(4);
        let total = "*5\r\n".to_owned() + &"$16\r\n0123456789abcdef\r\n".repeat(4);
        for (bytes, expected) in [
            ("hello\r\n", "does not start a reply"),
            ("\r\n", "does not start"),
            ("\n", "does not start"),
            ("+OK\n", "end with CR LF"),
            (":1x\r\n", "not a whole number"),
            (":\r\n", "not a whole number"),
            ("$-2\r\n", "not a length"),
            ("$?\r\n", "not a whole number"),
            ("$17\r\n", "above the maximum of 16"),
            ("$1\r\nabc", "not followed"),
            ("*9\r\n", "more than 8 elements"),
            ("%5\r\n", "more than 8 elements"),
            ("%9223372036854775807\r\n", "more than 8 elements"),
            ("#x\r\n", "does not start a reply"),
            (deep.as_str(), "more than 3 deep"),
            (total.as_str(), "more than 64 bytes"),
        ] {
            for step in [1, bytes.len()] {
                let error = read(bytes.as_bytes(), step, SMALL).unwrap_err().to_string();
                assert!(error.contains(expected), "{bytes:?} in pieces of {step}: {error}");
            }
        }
        let endless = vec![b'+'; LINE_MAX + 2];
        assert!(read(&endless, 1000, ReplyBounds::default()).is_err());
    }

    #[test]
    fn a_length_that_was_announced_allocates_nothing() {
        let mut parser = ReplyParser::new(ReplyBounds::default());
        let mut buffer = BytesMut::from(&b"*65536\r\n$1048576\r\nabc"[..]);
        assert_eq!(parser.next(&mut buffer), Ok(None));
        assert!(parser.open[0].parts.capacity() <= 16);
        assert_eq!(&buffer[..], b"abc");
    }

    fn bytes_of(reply: &Reply, bytes: &mut Vec<u8>) {
        match reply {
            Reply::Nil => bytes.extend_from_slice(b"_\r\n"),
            Reply::Int(number) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Reply::Bytes(text) => {
                bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
                bytes.extend_from_slice(text);
                bytes.extend_from_slice(b"\r\n");
            }
            Reply::Error(text) => bytes.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            Reply::Array(parts) => {
                bytes.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
                parts.iter().for_each(|part| bytes_of(part, bytes));
            }
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::Nil),
            any::<i64>().prop_map(Reply::Int),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Reply::Bytes),
            "[A-Z]{3,8} [a-z ]{0,20}".prop_map(Reply::Error),
        ];
        leaf.prop_recursive(4, 40, 6, |part| {
            prop::collection::vec(part, 0..6).prop_map(Reply::Array)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn replies_are_the_same_however_they_are_cut(
            replies in prop::collection::vec(any_reply(), 1..5), step in 1..50_usize,
        ) {
            let mut bytes = Vec::new();
            replies.iter().for_each(|reply| bytes_of(reply, &mut bytes));
            prop_assert_eq!(read(&bytes, step, ReplyBounds::default()), Ok(replies));
        }

        #[test]
        fn any_bytes_are_judged_the_same_however_they_are_cut(
            bytes in "[*$:+%>|_#~=!0-3\r\na-]{0,80}", step in 1..20_usize,
        ) {
            let whole = read(bytes.as_bytes(), 1000, SMALL);
            let pieces = read(bytes.as_bytes(), step, SMALL);
            prop_assert_eq!(whole.is_ok(), pieces.is_ok());
            if let Ok(whole) = whole {
                prop_assert_eq!(Ok(whole), pieces);
            }
        }
    }
}
