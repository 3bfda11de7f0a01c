//! Numbers and strings, as headers and JSON write them. Each function appends to its output.

/// The destination of the text: a `Vec`, or a buffer on the stack.
pub trait Out {
    /// Appends.
    fn put(&mut self, bytes: &[u8]);
}

impl Out for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Holds a field of usual length without an allocation.
pub(super) struct Line {
    room: [u8; 128],
    used: usize,
    /// The whole field, once it did not fit.
    long: Vec<u8>,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self { room: [0; 128], used: 0, long: Vec::new() }
    }

    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.room[..self.used]);
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.room[..self.used] } else { &self.long }
    }
}

impl Out for Line {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        match self.room.get_mut(self.used..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.put_long(bytes),
        }
    }
}

/// The largest number of a structured field (RFC 9651).
pub const FIELD_MAX: u64 = 999_999_999_999_999;

/// Appends a number.
pub fn push_number(out: &mut impl Out, number: u64) {
    out.put(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a JSON string, in quotes.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        out.extend_from_slice(text.as_bytes());
    } else {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0x20.. => out.push(byte),
                _ => {
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&digits(byte, b"0123456789abcdef"));
                }
            }
        }
    }
    out.push(b'"');
}

/// Appends the name of a policy in quotes, alike for structured fields and for JSON. A name of
/// visible ASCII is written as it is. In any other name, all other bytes and `%` are
/// percent-encoded, as in a URL: `%C3%A9`.
pub(super) fn push_name(out: &mut Vec<u8>, name: &str) {
    if name.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        return push_text(out, name);
    }
    let mut spelled = Vec::new();
    push_message(&mut spelled, name);
    // All of it is ASCII now.
    push_text(out, &String::from_utf8_lossy(&spelled));
}

/// Appends a text as `grpc-message` and URLs have it: `%`, and all but visible ASCII,
/// percent-encoded.
pub(super) fn push_message(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(byte),
            _ => push_percent(out, byte),
        }
    }
}

fn push_percent(out: &mut Vec<u8>, byte: u8) {
    out.push(b'%');
    out.extend_from_slice(&digits(byte, b"0123456789ABCDEF"));
}

fn digits(byte: u8, of: &[u8; 16]) -> [u8; 2] {
    [of[usize::from(byte >> 4)], of[usize::from(byte & 15)]]
}

/// Whether base64 is padded with `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Padded, as structured fields require.
    Padded,
    /// Not padded, as gRPC wants it.
    Bare,
}

/// Appends bytes in base64.
pub(super) fn push_base64(out: &mut impl Out, bytes: &[u8], padding: Padding) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            // A letter holds six bits, so one byte needs two of them and two need three.
            if at <= three.len() {
                out.put(&[LETTERS[(bits >> (18 - 6 * at) & 63) as usize]]);
            } else if padding == Padding::Padded {
                out.put(b"=");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 99, 100, 101, 1_000, 12_345, FIELD_MAX, u64::MAX] {
            assert_eq!(written(|out| push_number(out, number)), number.to_string());
        }
    }

    #[test]
    fn a_line_holds_what_is_put_also_if_it_is_long() {
        for (first, second) in
            [(0, 0), (0, 128), (100, 28), (100, 29), (128, 1), (0, 129), (300, 1)]
        {
            let (mut line, mut expected) = (Line::new(), Vec::new());
            for part in [&b"x".repeat(first)[..], &b"y".repeat(second), b"", b"z"] {
                line.put(part);
                expected.put(part);
            }
            assert_eq!(line.as_bytes(), expected, "{first} and {second}");
        }
    }

    #[test]
    fn what_is_written_as_json_reads_back() {
        for text in ["", "plain", "a\"b\\c", "line\nend\u{1}\u{7f}", "é😀", "</script>"] {
            let json = written(|out| push_text(out, text));
            assert_eq!(serde_json::from_str::<String>(&json).ok().as_deref(), Some(text));
        }
    }

    #[test]
    fn names_are_structured_strings() {
        for (name, expected) in [
            ("api", "\"api\""),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("é\n", "\"%C3%A9%0A\""),
            ("50%", "\"50%\""),
            ("50 % é", "\"50 %25 %C3%A9\""),
        ] {
            assert_eq!(written(|out| push_name(out, name)), expected);
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        for (text, expected) in [
            ("retry in 5 s.", "retry in 5 s."),
            ("100% of \"é\"\r\n", "100%25 of \"%C3%A9\"%0D%0A"),
            ("\u{7f}~ ", "%7F~ "),
        ] {
            assert_eq!(written(|out| push_message(out, text)), expected);
        }
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        // The examples of RFC 4648, section 10.
        for (text, padded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("\u{3fb}\u{3ff}", "z7vPvw=="),
        ] {
            let of = |padding| written(|out| push_base64(out, text.as_bytes(), padding));
            assert_eq!(of(Padding::Padded), padded);
            assert_eq!(of(Padding::Bare), padded.trim_end_matches('='));
        }
    }
}
