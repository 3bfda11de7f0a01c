//! Parses bytes to commands.
//!
//! A command is an array of bulk strings, or one line of words: the form that people type. The
//! parser remembers its position, so that it scans a command only once even if it arrives byte by
//! byte. Arguments are ranges of the buffer; nothing is copied.
//!
//! Bounds and error texts are those of Redis, except for the length of a number (64 bytes here) and
//! for line ends, which are required.

use std::fmt;

/// The longest line of words, in bytes.
pub const INLINE_MAX: usize = 64 << 10;

/// The longest line with a number.
const NUMBER_MAX: usize = 64;

/// The bounds before authentication: arguments, and bytes of one argument.
const STRANGER: (usize, usize) = (10, 16 << 10);

/// Bounds of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most arguments.
    pub arguments: usize,
    /// The longest argument, in bytes.
    pub bulk: usize,
    /// The longest command, in bytes.
    pub command: usize,
}

impl Bounds {
    /// The most arguments, by default.
    pub const ARGUMENTS: usize = 1024;

    /// Returns the bounds for requests of up to this many bytes.
    #[must_use]
    pub const fn of(max_request: usize) -> Self {
        // The framing takes at most some twenty bytes for each argument.
        let command = max_request.saturating_add(INLINE_MAX);
        Self { arguments: Self::ARGUMENTS, bulk: max_request, command }
    }
}

/// Why bytes are not a command. The connection cannot be used afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is invalid or too large.
    ArgumentCount,
    /// The line with the number of arguments does not end.
    ArgumentCountLine,
    /// The length of an argument is invalid or too large.
    BulkLength,
    /// The line with the length of an argument does not end.
    BulkLengthLine,
    /// An argument starts with another byte than a dollar sign.
    NoBulk(u8),
    /// More arguments than a client may send before authentication.
    StrangerArguments,
    /// A longer argument than a client may send before authentication.
    StrangerBulk,
    /// The command as a whole is too long.
    TooLong,
    /// A line of words does not end.
    InlineTooLong,
    /// A quote is not closed, or is not followed by a space.
    Quotes,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::ArgumentCount => "invalid multibulk length",
            Self::ArgumentCountLine => "too big mbulk count string",
            Self::BulkLength => "invalid bulk length",
            Self::BulkLengthLine => "too big bulk count string",
            Self::NoBulk(got) => {
                let got = if got.is_ascii_graphic() { char::from(*got) } else { ' ' };
                return write!(f, "Protocol error: expected '$', got '{got}'");
            }
            Self::StrangerArguments => "unauthenticated multibulk length",
            Self::StrangerBulk => "unauthenticated bulk length",
            Self::TooLong => "too big request",
            Self::InlineTooLong => "too big inline request",
            Self::Quotes => "unbalanced quotes in request",
        };
        write!(f, "Protocol error: {text}")
    }
}

impl std::error::Error for ProtocolError {}

/// The range of an argument: start and end, from the start of its command.
type Span = (u32, u32);

/// The arguments of a command, its name among them.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Returns how many there are, the name among them.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.spans.len()
    }

    /// Tells whether there are none: an empty line.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns an argument; `None` if there is no such argument.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let (start, end) = *self.spans.get(index)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// Returns an argument; an empty one if there is no such argument.
    #[must_use]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// Returns the arguments from one on.
    pub fn iter_from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Self { bytes, spans } = *self;
        let spans = spans.get(index..).unwrap_or_default();
        spans.iter().map(move |(start, end)| &bytes[*start as usize..*end as usize])
    }
}

impl Args<'_> {
    /// Returns a copy that does not borrow the buffer.
    #[must_use]
    pub fn to_words(&self) -> Words {
        let (mut bytes, mut spans) = (Vec::new(), Vec::with_capacity(self.len()));
        for arg in self.iter_from(0) {
            // OVERFLOW: a command is shorter than the buffer, whose positions have this type.
            let start = bytes.len() as u32;
            bytes.extend_from_slice(arg);
            spans.push((start, bytes.len() as u32));
        }
        Words { bytes, spans }
    }
}

/// A copied command.
#[derive(Clone, Debug, Default)]
pub struct Words {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Words {
    /// Returns the command.
    #[must_use]
    pub fn args(&self) -> Args<'_> {
        Args { bytes: &self.bytes, spans: &self.spans }
    }
}

/// Reads commands. Keeps its position in an incomplete one.
#[derive(Debug)]
pub struct Parser {
    bounds: Bounds,
    is_stranger: bool,
    spans: Vec<Span>,
    /// The position up to which this command has been read.
    at: usize,
    /// How many arguments are still to come; `None` before that is known.
    left: Option<usize>,
    /// The length of the next argument, if it is known.
    bulk: Option<usize>,
}

/// A number on a line of its own.
enum Line {
    Number(i64, usize),
    Incomplete,
    TooLong,
    Wrong,
}

impl Parser {
    /// Returns a parser. A bound of 4 GiB or more counts as one byte less than 4 GiB.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let most = u32::MAX as usize;
        let bounds = Bounds {
            arguments: bounds.arguments.min(most),
            bulk: bounds.bulk.min(most),
            command: bounds.command.min(most),
        };
        Self { bounds, is_stranger: false, spans: Vec::new(), at: 0, left: None, bulk: None }
    }

    /// Sets whether the client has yet to authenticate: stricter bounds apply until then.
    pub const fn stranger(&mut self, is_stranger: bool) {
        self.is_stranger = is_stranger;
    }

    /// Reads one command from the start of `bytes`, which must start where the last one ended, and
    /// which may have grown since the last call. Returns the length of the command; `None` if it is
    /// incomplete.
    ///
    /// The words of a line with quotes are unquoted in place.
    ///
    /// # Errors
    ///
    /// When the bytes are not a command.
    pub fn parse(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, ProtocolError> {
        let left = match (self.left, bytes.first()) {
            (Some(left), _) => left,
            (None, None) => return Ok(None),
            (None, Some(b'*')) => match self.count(bytes)? {
                Some(count) => count,
                None => return Ok(None),
            },
            (None, Some(_)) => return self.inline(bytes),
        };
        for left in (0..left).rev() {
            if !self.argument(bytes)? {
                self.left = Some(left + 1);
                return Ok(None);
            }
        }
        let length = self.at;
        (self.at, self.left) = (0, None);
        Ok(Some(length))
    }

    /// Returns the arguments of the command that [`parse`](Self::parse) has read from `bytes`.
    #[must_use]
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes, spans: &self.spans }
    }

    /// Reads how many arguments a command has.
    fn count(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let (number, next) = match line(bytes, 1) {
            Line::Number(number, next) => (number, next),
            Line::Incomplete => return Ok(None),
            Line::TooLong => return Err(ProtocolError::ArgumentCountLine),
            Line::Wrong => return Err(ProtocolError::ArgumentCount),
        };
        // Like Redis: fewer than one argument is an empty command, not an error.
        let count = usize::try_from(number).unwrap_or(0);
        if count > self.bounds.arguments {
            return Err(ProtocolError::ArgumentCount);
        }
        if self.is_stranger && count > STRANGER.0 {
            return Err(ProtocolError::StrangerArguments);
        }
        self.spans.clear();
        (self.at, self.bulk) = (next, None);
        Ok(Some(count))
    }

    /// Reads one argument; returns false if it is incomplete.
    #[inline]
    fn argument(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let length = match self.bulk {
            Some(length) => length,
            None => match self.bulk_length(bytes)? {
                Some(length) => length,
                None => return Ok(false),
            },
        };
        let end = self.at + length;
        let Some(line_end) = bytes.get(end..end + 2) else {
            self.bulk = Some(length);
            return Ok(false);
        };
        if line_end != b"\r\n" {
            return Err(ProtocolError::BulkLength);
        }
        // OVERFLOW: the end of a command is at most its bound, which is below 2^32.
        self.spans.push((self.at as u32, end as u32));
        (self.at, self.bulk) = (end + 2, None);
        Ok(true)
    }

    #[inline]
    fn bulk_length(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        match bytes.get(self.at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoBulk(*other)),
        }
        let (number, next) = match line(bytes, self.at + 1) {
            Line::Number(number, next) => (number, next),
            Line::Incomplete => return Ok(None),
            Line::TooLong => return Err(ProtocolError::BulkLengthLine),
            Line::Wrong => return Err(ProtocolError::BulkLength),
        };
        let length = usize::try_from(number).map_err(|_| ProtocolError::BulkLength)?;
        if length > self.bounds.bulk {
            return Err(ProtocolError::BulkLength);
        }
        if self.is_stranger && length > STRANGER.1 {
            return Err(ProtocolError::StrangerBulk);
        }
        // OVERFLOW: both are below 2^32.
        if next + length + 2 > self.bounds.command {
            return Err(ProtocolError::TooLong);
        }
        self.at = next;
        Ok(Some(length))
    }

    /// Reads a line of words.
    fn inline(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = bytes[self.at..].iter().position(|byte| *byte == b'\n') else {
            self.at = bytes.len();
            let too_long = self.at > INLINE_MAX;
            return if too_long { Err(ProtocolError::InlineTooLong) } else { Ok(None) };
        };
        let end = self.at + end;
        self.at = 0;
        if end > INLINE_MAX {
            return Err(ProtocolError::InlineTooLong);
        }
        self.spans.clear();
        let (mut read, mut write) = (0, 0);
        while let Some(start) = bytes[read..end].iter().position(|byte| !is_space(*byte)) {
            let word = Word { line: &mut bytes[..end], read: read + start, write };
            let (next, stop) = word.take().ok_or(ProtocolError::Quotes)?;
            if self.spans.len() == self.bounds.arguments {
                return Err(ProtocolError::ArgumentCount);
            }
            // OVERFLOW: a line is at most 64 KiB long.
            self.spans.push((write as u32, stop as u32));
            (read, write) = (next, stop);
        }
        Ok(Some(end + 1))
    }
}

/// Reads a whole number and its line end. A number has no plus sign and no leading zeros.
#[inline]
fn line(bytes: &[u8], start: usize) -> Line {
    let rest = &bytes[start..];
    let Some(length) = rest.iter().take(NUMBER_MAX + 1).position(|byte| *byte == b'\r') else {
        return if rest.len() > NUMBER_MAX { Line::TooLong } else { Line::Incomplete };
    };
    match rest.get(length + 1) {
        None => return Line::Incomplete,
        Some(b'\n') => {}
        Some(_) => return Line::Wrong,
    }
    let (is_negative, digits) = match &rest[..length] {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let has_zeros = digits.len() > 1 && digits[0] == b'0';
    // OVERFLOW: 18 digits fit into 63 bits, and no number here has more.
    if digits.is_empty() || digits.len() > 18 || has_zeros || (is_negative && digits == b"0") {
        return Line::Wrong;
    }
    let mut number = 0_i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Line::Wrong;
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Line::Number(if is_negative { -number } else { number }, start + length + 2)
}

/// Tells whether a byte separates words: as C's `isspace`, or the end of a C string.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r' | 0)
}

/// One word of a line, which is unquoted in place. Writing never overtakes reading, because a word
/// has no more bytes than its quoted form.
struct Word<'a> {
    line: &'a mut [u8],
    read: usize,
    write: usize,
}

impl Word<'_> {
    /// Unquotes the word. Returns where reading and writing have ended; `None` if the quotes are
    /// wrong.
    fn take(mut self) -> Option<(usize, usize)> {
        while let Some(byte) = self.next() {
            match byte {
                b'"' => self.quoted(b'"')?,
                b'\'' => self.quoted(b'\'')?,
                byte if is_space(byte) => break,
                byte => self.put(byte),
            }
        }
        Some((self.read, self.write))
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.line.get(self.read).copied();
        self.read += usize::from(byte.is_some());
        byte
    }

    fn put(&mut self, byte: u8) {
        self.line[self.write] = byte;
        self.write += 1;
    }

    /// Reads up to the closing quote, which a space or the end must follow.
    fn quoted(&mut self, quote: u8) -> Option<()> {
        loop {
            match (self.next()?, quote) {
                (b'\\', b'"') => {
                    let byte = self.escaped()?;
                    self.put(byte);
                }
                (b'\\', _) if self.line.get(self.read) == Some(&b'\'') => {
                    self.read += 1;
                    self.put(b'\'');
                }
                (byte, quote) if byte == quote => {
                    let next = self.line.get(self.read);
                    return next.is_none_or(|next| is_space(*next)).then_some(());
                }
                (byte, _) => self.put(byte),
            }
        }
    }

    /// Returns the byte that an escape in double quotes stands for.
    fn escaped(&mut self) -> Option<u8> {
        let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        Some(match self.next()? {
            b'x' => match (hex(self.line.get(self.read)), hex(self.line.get(self.read + 1))) {
                (Some(high), Some(low)) => {
                    self.read += 2;
                    (high * 16 + low) as u8
                }
                _ => b'x',
            },
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'a' => 7,
            other => other,
        })
    }
}

#[cfg(test)]
mod tests;
