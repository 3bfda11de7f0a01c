//! The lists in which proxies record the sender of a request, read from the right.
//!
//! Each proxy appends to the right, so the right end is the entry of the nearest proxy, and the
//! left may be anything that the client made up. So nothing here ever depends on the text further
//! to the left. Even the quotes of `Forwarded` are matched from the right, so that a quote which
//! the client leaves open hides no entry that a proxy has written.

use super::read_address;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::net::IpAddr;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED: HeaderName = header::FORWARDED;

/// A header with a list of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    XForwardedFor,
    Forwarded,
}

impl List {
    const fn name(self) -> &'static HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
        }
    }

    /// Returns the name as configurations spell it.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// Tells whether a header is such a list.
    pub(super) fn is_one(name: &HeaderName) -> bool {
        [Self::XForwardedFor, Self::Forwarded].iter().any(|list| list.text() == name.as_str())
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::XForwardedFor => Self::Forwarded,
            Self::Forwarded => Self::XForwardedFor,
        }
    }

    /// Returns the addresses from the right; `None` for an entry without an address. All lines of
    /// the header form one list. Empty entries do not count (RFC 9110, section 5.6.1).
    pub(super) fn entries(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let lines = headers.get_all(self.name()).into_iter().rev().map(HeaderValue::as_bytes);
        let entries = lines.flat_map(move |line| Entries { list: self, rest: Some(line) });
        entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()).map(move |entry| {
            match self {
                Self::XForwardedFor => read_address(entry),
                Self::Forwarded => read_element(entry),
            }
        })
    }
}

/// The entries of one line, from the right.
struct Entries<'a> {
    list: List,
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.rest?;
        let comma = match self.list {
            List::XForwardedFor => line.iter().rposition(|byte| *byte == b','),
            List::Forwarded => last_comma(line),
        };
        self.rest = comma.map(|at| &line[..at]);
        Some(comma.map_or(line, |at| &line[at + 1..]))
    }
}

/// Returns the position of the last comma outside of quotes, with quotes matched from the right.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            // In a quoted string, a quote after an odd number of backslashes belongs to the text.
            b'"' if quoted => {
                let slashes = line[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                quoted = slashes % 2 == 1;
            }
            b'"' => quoted = true,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Reads the address of `for` in an element of `Forwarded` (RFC 7239, section 4).
///
/// An element with a duplicate name, or without `for`, names no address. Values that should be
/// quoted and are not are read all the same: they are common and unambiguous.
fn read_element(element: &[u8]) -> Option<IpAddr> {
    const NAMES: [&[u8]; 4] = [b"for", b"by", b"host", b"proto"];
    let (mut rest, mut seen, mut found) = (element, [false; NAMES.len()], None);
    loop {
        rest = rest.trim_ascii_start();
        match rest {
            [] => return found,
            [b';', after @ ..] => {
                rest = after;
                continue;
            }
            _ => {}
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return None;
        }
        let mut text = Text { bytes: [0; Text::ROOM], used: 0 };
        rest = read_value(value, &mut text)?.trim_ascii_start();
        if !matches!(rest, [] | [b';', ..]) {
            return None;
        }
        if let Some(at) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) {
            if std::mem::replace(&mut seen[at], true) {
                return None;
            }
            if at == 0 {
                found = Some(read_address(text.get()?)?);
            }
        }
    }
}

/// A character of a token (RFC 9110, section 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reads a token or a quoted string; returns the rest of the input.
fn read_value<'a>(value: &'a [u8], text: &mut Text) -> Option<&'a [u8]> {
    let [b'"', quoted @ ..] = value else {
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b";\"".contains(byte);
        let end = value.iter().position(is_end).unwrap_or(value.len());
        value[..end].iter().for_each(|byte| text.push(*byte));
        return (end > 0).then(|| &value[end..]);
    };
    let mut rest = quoted;
    loop {
        match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', letter, after @ ..] | [letter, after @ ..] => {
                text.push(*letter);
                rest = after;
            }
            [] => return None,
        }
    }
}

/// The text of a value. Text longer than the longest address with zone and port is not kept.
struct Text {
    bytes: [u8; Self::ROOM],
    used: usize,
}

impl Text {
    const ROOM: usize = 96;

    fn push(&mut self, byte: u8) {
        if let Some(room) = self.bytes.get_mut(self.used) {
            *room = byte;
        }
        self.used += 1;
    }

    /// Returns the value, if it fits.
    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_cut_from_the_right() {
        let rows: [(&str, &[&str]); 9] = [
            ("a, b,c", &["c", " b", "a"]),
            ("", &[""]),
            (",", &["", ""]),
            (r#"a="1,2", b"#, &[" b", r#"a="1,2""#]),
            (r#"a="1\",2", b"#, &[" b", r#"a="1\",2""#]),
            (r#"a="1\\", b="2,3""#, &[r#" b="2,3""#, r#"a="1\\""#]),
            // An open quote on the left hides nothing to the right of it.
            (r#"x=", b="2,3""#, &[r#" b="2,3""#, r#"x=""#]),
            (r#"x="\, b=2"#, &[" b=2", r#"x="\"#]),
            (r#"x,y=""#, &[r#"x,y=""#]),
        ];
        for (line, expected) in rows {
            let entries = Entries { list: List::Forwarded, rest: Some(line.as_bytes()) };
            let entries: Vec<_> = entries.map(|entry| String::from_utf8_lossy(entry)).collect();
            assert_eq!(entries, expected, "{line}");
        }
    }

    #[test]
    fn elements_follow_the_grammar() {
        let rows = [
            ("for=192.0.2.43", "192.0.2.43"),
            ("For=192.0.2.43", "192.0.2.43"),
            ("FOR=\"192.0.2.43\"", "192.0.2.43"),
            ("for=\"192.0.2.43:47011\"", "192.0.2.43"),
            ("for=\"192.0.2.43:_port\"", "192.0.2.43"),
            ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17]\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17]:_x.y-z\"", "2001:db8:cafe::17"),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("by=203.0.113.43;for=192.0.2.60", "192.0.2.60"),
            ("host=\"a;for=6.6.6.6\";for=192.0.2.60", "192.0.2.60"),
            ("host=\"a\\\";for=6.6.6.6;\\\"\";for=192.0.2.60", "192.0.2.60"),
            (";;for=192.0.2.60;", "192.0.2.60"),
            ("for=192.0.2.60 ; proto=http", "192.0.2.60"),
            ("ext=1;ext=2;for=192.0.2.60", "192.0.2.60"),
            ("for=\"\\1\\9\\2.0.2.60\"", "192.0.2.60"),
            ("for=\"::ffff:192.0.2.60\"", "192.0.2.60"),
            ("for=\"[::ffff:c000:23c]\"", "192.0.2.60"),
            // Not quoted as they should be, but unambiguous.
            ("for=192.0.2.60:443", "192.0.2.60"),
            ("for=[2001:db8::1]:443", "2001:db8::1"),
            ("for=\"2001:db8::1\"", "2001:db8::1"),
            // No address.
            ("for=unknown", ""),
            ("for=_hidden", ""),
            ("for=_SEVKISEK", ""),
            ("for=\"_gazonk:80\"", ""),
            ("proto=http", ""),
            ("for=", ""),
            ("for", ""),
            ("for=\"", ""),
            ("for=\"192.0.2.60", ""),
            ("for=\"192.0.2.60\\\"", ""),
            ("for=\"192.0.2.60\"x", ""),
            ("for=\"192.0.2.60\" x", ""),
            ("for =192.0.2.60", ""),
            ("for= 192.0.2.60", ""),
            ("=192.0.2.60", ""),
            ("for=192.0.2.60;for=192.0.2.60", ""),
            ("for=192.0.2.60;FOR=192.0.2.61", ""),
            ("for=192.0.2.60;by=a;by=b", ""),
            ("for=192.0.2.60;proto", ""),
            ("for=\"192.0.2.60:http\"", ""),
            ("for=192.0.2.999", ""),
            ("192.0.2.60", ""),
        ];
        for (element, expected) in rows {
            let found = read_element(element.as_bytes());
            assert_eq!(found, expected.parse().ok(), "{element}");
        }
        let long = format!("for=\"{}\"", "1".repeat(500));
        assert_eq!(read_element(long.as_bytes()), None);
    }
}
