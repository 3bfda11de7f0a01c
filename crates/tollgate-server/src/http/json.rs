//! Reads JSON with a known shape, and builds no tree.
//!
//! The reader of a body says which value comes next; this module checks that it is there. So
//! nothing recurses, texts without escapes are borrowed, and an error names its field.

use crate::config::suggest::nearest;
use std::borrow::Cow;

/// The mistake in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bad(pub(super) String);

impl Bad {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A place in a JSON text.
#[derive(Debug)]
pub(super) struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the next byte that is not a space, without consuming it.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    fn takes(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Tells whether a list comes next.
    pub(super) fn is_list(&mut self) -> bool {
        self.peek() == Some(b'[')
    }

    /// Reads an object. Calls `field` at the value of each field; it must read the value.
    pub(super) fn object(
        &mut self,
        name: &str,
        mut field: impl FnMut(&mut Self, &str) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        if !self.takes(b'{') {
            return Err(self.other(name, "an object"));
        }
        if self.takes(b'}') {
            return Ok(());
        }
        loop {
            let key = self.text(name)?;
            if !self.takes(b':') {
                return Err(self.syntax("':'"));
            }
            field(self, &key)?;
            if self.takes(b'}') {
                return Ok(());
            }
            if !self.takes(b',') {
                return Err(self.syntax("',' or '}'"));
            }
        }
    }

    /// Reads a list of at most `most` items. Calls `item` at each; it must read the item.
    pub(super) fn list(
        &mut self,
        (name, most): (&str, usize),
        mut item: impl FnMut(&mut Self) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        if !self.takes(b'[') {
            return Err(self.other(name, "a list"));
        }
        if self.takes(b']') {
            return Ok(());
        }
        for _ in 0..most {
            item(self)?;
            if self.takes(b']') {
                return Ok(());
            }
            if !self.takes(b',') {
                return Err(self.syntax("',' or ']'"));
            }
        }
        Err(Bad(format!("\"{name}\" has more than {most} elements; split the request")))
    }

    /// Reads a text.
    pub(super) fn text(&mut self, name: &str) -> Result<Cow<'a, str>, Bad> {
        if !self.takes(b'"') {
            return Err(self.other(name, "a string"));
        }
        let (text, start) = (self.text, self.at);
        let bytes = text.as_bytes();
        let mut owned: Option<String> = None;
        let mut from = start;
        loop {
            match bytes.get(self.at) {
                Some(b'"') => {
                    let rest = &text[from..self.at];
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(rest),
                        Some(owned) => Cow::Owned(owned + rest),
                    });
                }
                Some(b'\\') => {
                    let owned = owned.get_or_insert_default();
                    owned.push_str(&text[from..self.at]);
                    owned.push(self.escape()?);
                    from = self.at;
                }
                Some(0x20..) => self.at += 1,
                Some(_) => return Err(self.syntax("a string without control characters")),
                None => return Err(self.syntax("'\"' at the end of the string")),
            }
        }
    }

    /// Reads an escape, from its backslash.
    fn escape(&mut self) -> Result<char, Bad> {
        let letter = self.text.as_bytes().get(self.at + 1).copied();
        self.at += 2;
        Ok(match letter {
            Some(plain @ (b'"' | b'\\' | b'/')) => char::from(plain),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(self.syntax("an escape")),
        })
    }

    fn unicode(&mut self) -> Result<char, Bad> {
        let first = self.hex()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or_else(|| self.syntax("a whole pair of surrogates"));
        }
        let is_pair = self.text.as_bytes()[self.at..].starts_with(b"\\u");
        if is_pair {
            self.at += 2;
            let second = self.hex()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return char::from_u32(code).ok_or_else(|| self.syntax("a character"));
            }
        }
        Err(self.syntax("a whole pair of surrogates"))
    }

    fn hex(&mut self) -> Result<u32, Bad> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        let mut code = 0;
        for digit in digits {
            let Some(digit) = char::from(*digit).to_digit(16) else {
                return Err(self.syntax("four hexadecimal digits"));
            };
            code = code << 4 | digit;
        }
        if digits.len() < 4 {
            return Err(self.syntax("four hexadecimal digits"));
        }
        self.at += 4;
        Ok(code)
    }

    /// Reads a whole number that is not negative.
    pub(super) fn number(&mut self, name: &str) -> Result<u64, Bad> {
        const RULE: &str = "a whole number from 0 to 18446744073709551615, in digits";
        self.peek();
        let bytes = &self.text.as_bytes()[self.at..];
        let is_more = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = bytes.iter().position(|byte| !is_more(byte)).unwrap_or(bytes.len());
        let token = &bytes[..length];
        let mut value = Some(0_u64);
        for digit in token {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
            value = value
                .zip(digit)
                .and_then(|(value, digit)| value.checked_mul(10)?.checked_add(digit));
        }
        match value {
            Some(value) if length == 1 || length > 1 && token[0] != b'0' => {
                self.at += length;
                Ok(value)
            }
            _ => Err(self.other(name, RULE)),
        }
    }

    /// Checks that nothing but space follows.
    pub(super) fn end(&mut self) -> Result<(), Bad> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.syntax("nothing more")),
        }
    }

    /// Returns the error for another value than the wanted one.
    #[cold]
    fn other(&mut self, name: &str, wanted: &str) -> Bad {
        let Some(first) = self.peek() else { return self.syntax(wanted) };
        let found = match first {
            b'{' => "an object".to_owned(),
            b'[' => "a list".to_owned(),
            b'"' => "a string".to_owned(),
            _ => {
                let is_end = |c: char| " \t\r\n,:]}\"".contains(c);
                let token = self.text[self.at..].split(is_end).next().unwrap_or_default();
                token.chars().take(40).collect()
            }
        };
        Bad(format!("\"{name}\" is {found}; it must be {wanted}"))
    }

    #[cold]
    fn syntax(&self, wanted: &str) -> Bad {
        let at = self.at.min(self.text.len());
        Bad(format!("the body is not JSON: expected {wanted} at byte {at}"))
    }
}

/// Sets a field; an error if it is set already.
pub(super) fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), Bad> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Bad(format!("\"{name}\" is given twice; give it once"))),
    }
}

/// Returns the error for an unknown field.
#[cold]
pub(super) fn unknown(name: &str, known: &[&'static str]) -> Bad {
    let shown: String = name.chars().take(40).collect();
    Bad(match nearest(&shown, known.iter().copied()) {
        Some(near) => format!("there is no field \"{shown}\"; did you mean \"{near}\"?"),
        None => format!("there is no field \"{shown}\"; use {}", known.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_serde_json_reads_them() {
        for text in [
            r#""""#,
            r#""plain""#,
            r#""a\"b\\c\/d\b\f\n\r\t""#,
            r#""\u0041\u00e9\ud83d\ude00 é""#,
            r#""\ud83d""#,
            r#""\udc00\ud83d""#,
            r#""\ud83dx""#,
            r#""\ud83d\u0041""#,
            r#""\u12""#,
            r#""\x""#,
            "\"a\nb\"",
            r#""open"#,
            r#""\"#,
            "\"\\u\u{e9}\u{e9}\"",
        ] {
            let ours = Json::new(text).text("it").map(Cow::into_owned).ok();
            assert_eq!(ours, serde_json::from_str::<String>(text).ok(), "{text}");
        }
    }

    #[test]
    fn numbers_are_whole_and_in_range() {
        for (text, expected) in [
            ("0", Some(0)),
            (" 17 ", Some(17)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("01", None),
            ("1.0", None),
            ("1e3", None),
            ("", None),
            ("null", None),
            ("\"1\"", None),
        ] {
            assert_eq!(Json::new(text).number("cost").ok(), expected, "{text}");
        }
        let Bad(text) = Json::new("-1").number("cost").unwrap_err();
        assert!(text.starts_with("\"cost\" is -1; it must be a whole number from 0 to"), "{text}");
    }
}
