//! Structured fields (RFC 9651), as far as the fields of rate limits use them: lists and
//! dictionaries of items with parameters. Those fields have no inner lists, so inner lists fail.
//!
//! Any fault fails the whole field, as the standard requires. So does a field beyond the bounds
//! below.

/// The most bytes of a field, all its lines together.
pub(super) const MOST_BYTES: usize = 4096;
/// The most members of a list or a dictionary.
pub(super) const MOST_MEMBERS: usize = 16;
/// The most parameters of an item.
const MOST_PARAMETERS: usize = 16;
/// The most digits of an integer.
const MOST_DIGITS: usize = 15;

/// The value of an item or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    /// A string or a token: policies may be named by either.
    Text(String),
    /// A decimal, bytes, a boolean, a date: well-formed, and of no use here.
    Other,
}

/// A value with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    pub(super) bare: Bare,
    parameters: Vec<(&'a str, Bare)>,
}

impl Item<'_> {
    /// Returns a parameter, the last of that name.
    pub(super) fn parameter(&self, key: &str) -> Option<&Bare> {
        self.parameters.iter().rev().find(|(name, _)| *name == key).map(|(_, bare)| bare)
    }
}

impl Bare {
    /// Returns a number that is not negative.
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// Reads a list.
pub(super) fn list(text: &str) -> Option<Vec<Item<'_>>> {
    members(text, Cursor::item)
}

/// Reads a dictionary. A key may come again; the last one counts.
pub(super) fn dictionary(text: &str) -> Option<Vec<(&str, Item<'_>)>> {
    members(text, |cursor| {
        let key = cursor.key()?;
        if cursor.take(b'=') {
            return Some((key, cursor.item()?));
        }
        Some((key, Item { bare: Bare::Other, parameters: cursor.parameters()? }))
    })
}

fn members<'a, M>(text: &'a str, member: impl Fn(&mut Cursor<'a>) -> Option<M>) -> Option<Vec<M>> {
    if text.len() > MOST_BYTES {
        return None;
    }
    let mut cursor = Cursor { rest: text.trim_matches(' ') };
    let mut members = Vec::new();
    loop {
        if members.len() == MOST_MEMBERS {
            return None;
        }
        members.push(member(&mut cursor)?);
        cursor.skip(&[' ', '\t']);
        if cursor.rest.is_empty() {
            return Some(members);
        }
        if !cursor.take(b',') {
            return None;
        }
        cursor.skip(&[' ', '\t']);
    }
}

/// The rest of the input.
#[derive(Debug)]
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn first(&self) -> Option<u8> {
        self.rest.as_bytes().first().copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.first() == Some(byte);
        if is_next {
            // INVARIANT: only ASCII is taken by the byte, so this is a boundary.
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn skip(&mut self, spaces: &[char]) {
        self.rest = self.rest.trim_start_matches(spaces);
    }

    /// Takes bytes, all ASCII, as long as they fit.
    fn while_ascii(&mut self, fits: impl Fn(u8) -> bool) -> &'a str {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii() || !fits(byte));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn item(&mut self) -> Option<Item<'a>> {
        Some(Item { bare: self.bare()?, parameters: self.parameters()? })
    }

    fn parameters(&mut self) -> Option<Vec<(&'a str, Bare)>> {
        let mut parameters = Vec::new();
        while self.take(b';') {
            self.skip(&[' ']);
            if parameters.len() == MOST_PARAMETERS {
                return None;
            }
            let key = self.key()?;
            let bare = if self.take(b'=') { self.bare()? } else { Bare::Other };
            parameters.push((key, bare));
        }
        Some(parameters)
    }

    fn key(&mut self) -> Option<&'a str> {
        let first = self.first()?;
        if !first.is_ascii_lowercase() && first != b'*' {
            return None;
        }
        Some(self.while_ascii(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        }))
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.first()? {
            b'"' => self.string().map(Bare::Text),
            b'-' | b'0'..=b'9' => self.number(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                let is_token =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                Some(Bare::Text(self.while_ascii(is_token).to_owned()))
            }
            b':' => {
                self.take(b':');
                self.while_ascii(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(Bare::Other)
            }
            b'?' => {
                self.take(b'?');
                (self.take(b'0') || self.take(b'1')).then_some(Bare::Other)
            }
            b'@' => {
                self.take(b'@');
                matches!(self.number()?, Bare::Integer(_)).then_some(Bare::Other)
            }
            b'%' => {
                self.take(b'%');
                // Escapes are not checked: nothing is read from a display string.
                self.string().map(|_| Bare::Other)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Bare> {
        let is_negative = self.take(b'-');
        let digits = self.while_ascii(|byte| byte.is_ascii_digit());
        if digits.is_empty() {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.while_ascii(|byte| byte.is_ascii_digit());
            let fits = digits.len() <= 12 && (1..=3).contains(&fraction.len());
            return fits.then_some(Bare::Other);
        }
        if digits.len() > MOST_DIGITS {
            return None;
        }
        let number: i64 = digits.parse().ok()?;
        Some(Bare::Integer(if is_negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<String> {
        if !self.take(b'"') {
            return None;
        }
        let mut text = String::new();
        loop {
            text.push_str(
                self.while_ascii(|byte| (0x20..0x7f).contains(&byte) && !b"\"\\".contains(&byte)),
            );
            if self.take(b'"') {
                return Some(text);
            }
            if !self.take(b'\\') {
                return None;
            }
            let escaped = self.first().filter(|byte| b"\"\\".contains(byte))?;
            self.take(escaped);
            text.push(char::from(escaped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an item in a short form, to compare.
    fn short(item: &Item<'_>) -> String {
        let bare = |bare: &Bare| match bare {
            Bare::Integer(number) => number.to_string(),
            Bare::Text(text) => format!("'{text}'"),
            Bare::Other => "_".to_owned(),
        };
        let parameters =
            item.parameters.iter().map(|(key, value)| format!(" {key}={}", bare(value)));
        bare(&item.bare) + &parameters.collect::<String>()
    }

    #[test]
    fn lists_are_read_whole_or_not_at_all() {
        for (text, expected) in [
            (
                r#""burst";q=100;w=60, "daily";q=1000;w=86400"#,
                Some("'burst' q=100 w=60|'daily' q=1000 w=86400"),
            ),
            (r#""a";r=1;  t=2"#, Some("'a' r=1 t=2")),
            (r#""a";r=1;r=2"#, Some("'a' r=1 r=2")),
            (
                r#"  "a";pk=:c2hvcnQ=:;x;y=?0;z=1.5;d=@1;e=%"f%c3%bc""#,
                Some("'a' pk=_ x=_ y=_ z=_ d=_ e=_"),
            ),
            ("\"a\" \t, \t\"b\"", Some("'a'|'b'")),
            (r#""a\"\\b""#, Some(r#"'a"\b'"#)),
            ("token/x;r=-5", Some("'token/x' r=-5")),
            ("100;w=60, 1000;w=3600", Some("100 w=60|1000 w=3600")),
            ("999999999999999", Some("999999999999999")),
            ("", None),
            (" ", None),
            (r#""a","#, None),
            (r#""a" ;r=1"#, None),
            (r#""a";R=1"#, None),
            (r#""a";r="#, None),
            (r#""a";r =1"#, None),
            (r#""a" "b""#, None),
            (r#""a"#, None),
            (r#""a\n""#, None),
            (r#""ä""#, None),
            ("ä", None),
            ("1000000000000000", None),
            ("-", None),
            ("1.", None),
            ("1.2345", None),
            ("?2", None),
            (":a", None),
            ("(1 2)", None),
            ("1,,2", None),
        ] {
            let read =
                list(text).map(|items| items.iter().map(short).collect::<Vec<_>>().join("|"));
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_beyond_the_bounds_fails() {
        let many = |count: usize| vec!["1"; count].join(",");
        assert!(list(&many(MOST_MEMBERS)).is_some() && list(&many(MOST_MEMBERS + 1)).is_none());
        let parameters = |count: usize| format!("1{}", ";a".repeat(count));
        assert!(list(&parameters(MOST_PARAMETERS)).is_some());
        assert!(list(&parameters(MOST_PARAMETERS + 1)).is_none());
        assert!(list(&format!("\"{}\"", "a".repeat(MOST_BYTES - 2))).is_some());
        assert!(list(&format!("\"{}\"", "a".repeat(MOST_BYTES - 1))).is_none());
    }

    #[test]
    fn dictionaries_have_keys() {
        let read = dictionary("limit=100, remaining=50;x, flag;y=1, reset=30").unwrap();
        let keys: Vec<_> = read.iter().map(|(key, item)| (*key, item.bare.count())).collect();
        let expected =
            [("limit", Some(100)), ("remaining", Some(50)), ("flag", None), ("reset", Some(30))];
        assert_eq!(keys, expected);
        assert_eq!(dictionary("limit=100, 5"), None);
        assert_eq!(dictionary("limit=-1").unwrap()[0].1.bare.count(), None);
    }

    #[test]
    fn the_last_parameter_of_a_name_counts() {
        let items = list(r#""a";r=1;r=2"#).unwrap();
        assert_eq!(items[0].parameter("r"), Some(&Bare::Integer(2)));
        assert_eq!(items[0].parameter("t"), None);
    }
}
