//! Replies, in either version of the protocol.

use std::fmt::{self, Write};

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The version that every client knows.
    #[default]
    Two,
    /// With maps, booleans and a null: after `HELLO 3`.
    Three,
}

impl Version {
    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Replies that wait to be written.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    version: Version,
}

impl Replies {
    /// Returns what waits.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how much memory it has.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets what was written, and gives memory above `keep` bytes back.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// Adds what waits elsewhere.
    pub fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Forgets what came after a length.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// Returns the version in use.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Changes the version of all that follows.
    pub const fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Adds a whole number.
    pub fn int(&mut self, number: i64) {
        self.line(b':', number);
    }

    /// Adds a whole number; one that does not fit is the largest that does.
    pub fn count(&mut self, number: u64) {
        self.int(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Starts an array of `length` replies.
    pub fn array(&mut self, length: usize) {
        self.line(b'*', length as i64);
    }

    /// Starts a map of `pairs` pairs: in the second version an array of twice as many replies.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(2 * pairs),
            Version::Three => self.line(b'%', pairs as i64),
        }
    }

    /// Adds a string of any bytes.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.line(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a word: `OK`, `PONG`.
    pub fn word(&mut self, word: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(word.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds nothing: a null.
    pub fn null(&mut self) {
        let null: &[u8] = match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        };
        self.bytes.extend_from_slice(null);
    }

    /// Adds yes or no: in the second version one or zero.
    pub fn yes(&mut self, is_yes: bool) {
        match (self.version, is_yes) {
            (Version::Two, _) => self.int(i64::from(is_yes)),
            (Version::Three, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (Version::Three, false) => self.bytes.extend_from_slice(b"#f\r\n"),
        }
    }

    /// Adds text for people: in the third version marked as such.
    pub fn text(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text),
            Version::Three => {
                self.line(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Adds an error, with its code in front. Line ends in it become spaces.
    pub fn error(&mut self, text: fmt::Arguments<'_>) {
        self.bytes.push(b'-');
        let start = self.bytes.len();
        let _ = Text(&mut self.bytes).write_fmt(text);
        for byte in &mut self.bytes[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a line that is a sign and a number.
    #[inline]
    fn line(&mut self, sign: u8, number: i64) {
        // The sign, 20 characters at most, and the line end.
        let mut line = [0; 24];
        let mut at = line.len() - 2;
        line[at..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            line[at] = b'-';
        }
        at -= 1;
        line[at] = sign;
        self.bytes.extend_from_slice(&line[at..]);
    }
}

/// Formats to bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are() {
        for number in [0, 1, -1, 9, 10, 12_345, -700, i64::MAX, i64::MIN] {
            let mut replies = Replies::default();
            replies.int(number);
            assert_eq!(replies.bytes(), format!(":{number}\r\n").as_bytes());
        }
    }

    #[test]
    fn each_version_has_its_forms() {
        let write = |version| {
            let mut replies = Replies::default();
            replies.set_version(version);
            replies.map(1);
            replies.bulk("a");
            replies.null();
            replies.yes(true);
            replies.text("t");
            replies.word("OK");
            replies.error(format_args!("ERR a\r\nb"));
            String::from_utf8(replies.bytes().to_vec()).unwrap()
        };
        let same = "+OK\r\n-ERR a  b\r\n";
        assert_eq!(write(Version::Two), format!("*2\r\n$1\r\na\r\n$-1\r\n:1\r\n$1\r\nt\r\n{same}"));
        assert_eq!(
            write(Version::Three),
            format!("%1\r\n$1\r\na\r\n_\r\n#t\r\n=5\r\ntxt:t\r\n{same}")
        );
    }
}
