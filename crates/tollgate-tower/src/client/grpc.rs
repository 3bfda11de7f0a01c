//! Reads the refusal of a gRPC server: the status, the pushback, and the `RetryInfo` in its
//! details.
//!
//! Only a response without messages has them in its headers; that is how servers refuse. Trailers
//! after a body are not read here.

use super::learned::RetryWhen;
use http::HeaderMap;
use std::time::Duration;

/// The longest text of `grpc-status-details-bin`.
const MOST_TEXT: usize = 16 * 1024;
/// The most fields of a message that are read.
const MOST_FIELDS: usize = 256;

/// Returns the status in the headers, if there is one.
pub(super) fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Returns the pushback: a negative or unreadable number forbids retries.
pub(super) fn pushback(headers: &HeaderMap) -> Option<RetryWhen> {
    let value = headers.get("grpc-retry-pushback-ms")?;
    let ms = value.to_str().ok().and_then(|text| text.parse::<i64>().ok());
    let ms = ms.and_then(|ms| u64::try_from(ms).ok());
    Some(ms.map_or(RetryWhen::Never, |ms| RetryWhen::After(Duration::from_millis(ms))))
}

/// Returns the delay of the `RetryInfo` among the details; `None` if the details are malformed,
/// `Some(None)` if there is none.
#[allow(clippy::option_option, reason = "malformed and absent are counted apart")]
pub(super) fn retry_info(headers: &HeaderMap) -> Option<Option<Duration>> {
    let Some(value) = headers.get("grpc-status-details-bin") else { return Some(None) };
    let status = base64(value.as_bytes())?;
    let mut found = None;
    for field in Fields::of(&status) {
        let (3, Value::Bytes(detail)) = field? else { continue };
        if let Some(info) = any(detail)? {
            found = Some(delay(info)?);
        }
    }
    Some(found)
}

/// Returns the bytes of an `Any` if it is a `RetryInfo`.
#[allow(clippy::option_option, reason = "malformed and another type are told apart")]
fn any(bytes: &[u8]) -> Option<Option<&[u8]>> {
    let (mut is_ours, mut content) = (false, &[][..]);
    for field in Fields::of(bytes) {
        match field? {
            (1, Value::Bytes(url)) => {
                let name = url.rsplit(|byte| *byte == b'/').next();
                is_ours = name == Some(b"google.rpc.RetryInfo");
            }
            (2, Value::Bytes(bytes)) => content = bytes,
            _ => {}
        }
    }
    Some(is_ours.then_some(content))
}

/// Returns the delay of a `RetryInfo`. A negative one counts as zero.
fn delay(info: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    for field in Fields::of(info) {
        let (1, Value::Bytes(duration)) = field? else { continue };
        for field in Fields::of(duration) {
            match field? {
                // Negative numbers are encoded in 64 bits.
                (1, Value::Number(number)) => seconds = number.cast_signed(),
                (2, Value::Number(number)) => nanos = number.cast_signed(),
                _ => {}
            }
        }
    }
    let nanos = if nanos < 0 { 0 } else { u32::try_from(nanos).ok()? };
    if nanos >= 1_000_000_000 {
        return None;
    }
    Some(u64::try_from(seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, nanos)))
}

/// A value of a field of a protobuf message.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The fields of a protobuf message, up to the first fault, which is `None`.
#[derive(Debug)]
struct Fields<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Fields<'a> {
    const fn of(message: &'a [u8]) -> Self {
        Self { rest: message, left: MOST_FIELDS }
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        self.left = self.left.checked_sub(1)?;
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            // The tenth byte contributes one bit; the others are cut off, as in other decoders.
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Reads base64, with its padding or without.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() > MOST_TEXT {
        return None;
    }
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let (text, padding) = text.split_at(end);
    if padding.len() > 2 || text.len() % 4 == 1 {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len()), 0_u32, 0);
    for byte in text {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        // OVERFLOW: at most 13 bits are kept, as those above are masked when a byte leaves.
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            http::HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn pushback_is_a_wait_or_a_ban() {
        for (text, expected) in [
            ("0", RetryWhen::After(Duration::ZERO)),
            ("1500", RetryWhen::After(Duration::from_millis(1500))),
            ("-1", RetryWhen::Never),
            ("soon", RetryWhen::Never),
            ("", RetryWhen::Never),
            ("99999999999999999999", RetryWhen::Never),
        ] {
            assert_eq!(pushback(&read("grpc-retry-pushback-ms", text)), Some(expected), "{text}");
        }
        assert_eq!(pushback(&HeaderMap::new()), None);
    }

    #[test]
    fn retry_info_is_found_among_the_details() {
        for (text, expected) in [
            // code 8, "slow down", RetryInfo of 1.5 s; with and without padding.
            (
                "CAgSCXNsb3cgZG93bho2Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgoKCAgBEIDKte4B",
                Some(Some(1500)),
            ),
            // Nothing inside.
            ("", Some(None)),
            ("CAg=", Some(None)),
            ("CAg", Some(None)),
            // A truncated field, a length beyond the end, an invalid digit, too much padding.
            ("CA", None),
            ("Gv8B", None),
            ("C!g=", None),
            ("CAg====", None),
            ("A", None),
        ] {
            let read = retry_info(&read("grpc-status-details-bin", text));
            assert_eq!(read, expected.map(|it| it.map(Duration::from_millis)), "{text}");
        }
        assert_eq!(retry_info(&HeaderMap::new()), Some(None));
    }

    #[test]
    fn base64_is_that_of_others() {
        for (text, expected) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
            ("_-8", b"\xff\xef"),
        ] {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(expected), "{text}");
        }
    }
}
