//! Bodies in chunks.

use super::reply::{Kind, Problem};

/// The longest line of a chunk's size, and the longest trailer section.
const MAX_LINE: usize = 256;
const MAX_TRAILERS: usize = 4 << 10;

/// Where in a chunked body the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Data(usize),
    DataEnd,
    Trailers,
}

/// Puts a chunked body together.
#[derive(Debug)]
pub(super) struct Chunks {
    state: State,
    most: usize,
    trailers: usize,
}

fn bad(text: &str) -> Problem {
    Problem::new(Kind::BadHttp, text)
}

impl Chunks {
    /// Returns a reader of a body of at most `most` bytes.
    pub(super) const fn new(most: usize) -> Self {
        Self { state: State::Size, most, trailers: 0 }
    }

    /// Reads on. Returns how many bytes were used up, and whether the body has ended.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<(usize, bool), Problem> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match self.state {
                State::Data(left) => {
                    let here = left.min(rest.len());
                    body.extend_from_slice(&rest[..here]);
                    at += here;
                    self.state = match left - here {
                        0 => State::DataEnd,
                        left => State::Data(left),
                    };
                    if here < left {
                        return Ok((at, false));
                    }
                }
                State::DataEnd => match rest {
                    [b'\r', b'\n', ..] => (at, self.state) = (at + 2, State::Size),
                    [] | [b'\r'] => return Ok((at, false)),
                    _ => return Err(bad("a chunk is longer than its declared size")),
                },
                State::Size => {
                    let Some(line) = line(rest, MAX_LINE)? else { return Ok((at, false)) };
                    at += line.len() + 2;
                    self.state = match size(line)? {
                        0 => State::Trailers,
                        size if size > self.most.saturating_sub(body.len()) => {
                            return Err(too_large(self.most));
                        }
                        size => State::Data(size),
                    };
                }
                State::Trailers => {
                    let most = MAX_TRAILERS - self.trailers;
                    let Some(line) = line(rest, most)? else { return Ok((at, false)) };
                    at += line.len() + 2;
                    self.trailers = (self.trailers + line.len() + 2).min(MAX_TRAILERS);
                    if line.is_empty() {
                        return Ok((at, true));
                    }
                }
            }
        }
    }
}

pub(super) fn too_large(most: usize) -> Problem {
    let text = format!("the body has more than {most} bytes; split the request");
    Problem::new(Kind::TooLarge, text)
}

/// Returns the line that is here, without its end.
fn line(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, Problem> {
    let end = bytes.iter().take(most).position(|byte| *byte == b'\n');
    match end {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' => Ok(Some(&bytes[..end - 1])),
        Some(_) => Err(bad("a line of a chunked body ends with a bare line feed")),
        None if bytes.len() >= most => Err(bad("a line of a chunked body is too long")),
        None => Ok(None),
    }
}

/// Reads the size of a chunk. Ignores the extensions after a semicolon.
fn size(line: &[u8]) -> Result<usize, Problem> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let has_bare = line.contains(&b'\r');
    usize::from_str_radix(text, 16)
        .ok()
        .filter(|_| is_hex && !has_bare)
        .ok_or_else(|| bad("a chunk's size is not a hexadecimal number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body given in pieces of `step` bytes.
    fn read(text: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, Problem> {
        let (mut chunks, mut body) = (Chunks::new(20), Vec::new());
        let (mut buffer, mut used) = (Vec::new(), 0);
        for piece in text.chunks(step) {
            buffer.extend_from_slice(piece);
            let (took, is_done) = chunks.read(&buffer, &mut body)?;
            buffer.drain(..took);
            used += took;
            if is_done {
                return Ok(Some((body, used)));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_come_together_however_they_arrive() {
        let long = "5\r\n01234\r\n".repeat(5);
        let rows: [(&str, Result<Option<&str>, u16>); 13] = [
            ("5\r\nhello\r\n0\r\n\r\n", Ok(Some("hello"))),
            ("5\r\nhello\r\nA;x=y\r\n, 12345678\r\n0\r\nT: v\r\n\r\n", Ok(Some("hello, 12345678"))),
            ("0\r\n\r\nGET", Ok(Some(""))),
            ("5\r\nhello\r\n", Ok(None)),
            ("5\r\nhelloX\r\n0\r\n\r\n", Err(400)),
            ("5\nhello\r\n0\r\n\r\n", Err(400)),
            ("\r\n0\r\n\r\n", Err(400)),
            ("0x5\r\nhello\r\n", Err(400)),
            ("-5\r\nhello\r\n", Err(400)),
            ("+5\r\nhello\r\n", Err(400)),
            ("ffffffffffffffffff\r\n", Err(400)),
            ("15\r\n", Err(413)),
            (&long, Err(413)),
        ];
        for (text, expected) in rows {
            for step in [1, 2, 3, text.len()] {
                let found = read(text.as_bytes(), step);
                match expected {
                    Ok(body) => {
                        let found = found.unwrap().map(|(body, _)| body);
                        assert_eq!(found.as_deref(), body.map(str::as_bytes), "{text:?} by {step}");
                    }
                    Err(status) => {
                        let kind = found.expect_err(text).kind;
                        let wanted = if status == 413 { Kind::TooLarge } else { Kind::BadHttp };
                        assert_eq!(kind, wanted, "{text:?} by {step}");
                    }
                }
            }
        }
    }
}
