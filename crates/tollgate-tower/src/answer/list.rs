//! Whether a line that another server has written is a list of structured fields (RFC 9651).
//!
//! No value is read from it: the line only has to be valid beside ours. Checking line by line is
//! enough, because lists that are joined by a comma are a list.

/// Tells whether this is a list with at least one member.
pub(super) fn is_list(line: &[u8]) -> bool {
    members(line.trim_ascii()).is_some()
}

/// Reads all members, up to the end.
fn members(mut rest: &[u8]) -> Option<()> {
    loop {
        rest = match rest {
            [b'(', inner @ ..] => parameters(inner_list(inner)?)?,
            _ => item(rest)?,
        };
        rest = match rest.trim_ascii_start() {
            [] => return Some(()),
            [b',', next @ ..] => next.trim_ascii_start(),
            _ => return None,
        };
    }
}

/// Reads the items of an inner list and its end. Returns the rest of the input, as all of
/// these functions do.
fn inner_list(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        rest = match rest {
            [b' ', next @ ..] => next,
            [b')', behind @ ..] => return Some(behind),
            _ => match item(rest)? {
                // Items are separated by spaces.
                behind @ [b' ' | b')', ..] => behind,
                _ => return None,
            },
        };
    }
}

fn item(rest: &[u8]) -> Option<&[u8]> {
    parameters(bare(rest)?)
}

fn parameters(mut rest: &[u8]) -> Option<&[u8]> {
    while let [b';', next @ ..] = rest {
        rest = match key(next.trim_ascii_start())? {
            [b'=', value @ ..] => bare(value)?,
            behind => behind,
        };
    }
    Some(rest)
}

fn key(rest: &[u8]) -> Option<&[u8]> {
    let is_start = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
    let is_more =
        |byte: u8| is_start(byte) || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.');
    rest.first().filter(|byte| is_start(**byte))?;
    Some(behind(rest, is_more))
}

/// Reads a value without parameters.
fn bare(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [b'"', text @ ..] => string(text),
        [b'%', b'"', text @ ..] => string(text),
        [b'?', b'0' | b'1', behind @ ..] => Some(behind),
        [b'@', number @ ..] => digits(number.strip_prefix(b"-").unwrap_or(number), 15),
        [b':', bytes @ ..] => {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
            behind(bytes, is_base64).strip_prefix(b":")
        }
        [b'-', number @ ..] => self::number(number),
        [b'0'..=b'9', ..] => number(rest),
        [first, ..] if first.is_ascii_alphabetic() || *first == b'*' => {
            let others = b"!#$%&'*+-.^_`|~:/";
            Some(behind(rest, |byte| byte.is_ascii_alphanumeric() || others.contains(&byte)))
        }
        _ => None,
    }
}

/// Reads a string after its opening quote.
fn string(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        rest = match rest {
            [b'"', behind @ ..] => return Some(behind),
            [b'\\', b'"' | b'\\', next @ ..] => next,
            [b'\\', ..] => return None,
            [0x20..=0x7e, next @ ..] => next,
            _ => return None,
        };
    }
}

/// Reads an integer of at most 15 digits, or a decimal of at most 12 with three digits after the
/// point.
fn number(rest: &[u8]) -> Option<&[u8]> {
    let behind = digits(rest, 15)?;
    match behind {
        [b'.', fraction @ ..] if rest.len() - behind.len() <= 12 => digits(fraction, 3),
        [b'.', ..] => None,
        _ => Some(behind),
    }
}

fn digits(rest: &[u8], most: usize) -> Option<&[u8]> {
    let behind = behind(rest, |byte| byte.is_ascii_digit());
    (1..=most).contains(&(rest.len() - behind.len())).then_some(behind)
}

/// Returns the input after the bytes that fit.
fn behind(rest: &[u8], fits: impl Fn(u8) -> bool) -> &[u8] {
    let end = rest.iter().position(|byte| !fits(*byte)).unwrap_or(rest.len());
    &rest[end..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the verdict of an independent parser.
    fn is_known(line: &str) -> bool {
        let list = sfv::Parser::new(line).parse::<sfv::List>();
        list.is_ok_and(|list| !list.is_empty())
    }

    #[test]
    fn lists_are_told_from_everything_else() {
        for (line, expected) in [
            (r#""p";r=5;t=30"#, true),
            (r#""p";r=5, "q";r=1;pk=:YWJj:"#, true),
            (r#"  "a\"b\\" ;x"#, false),
            (r#""a\"b\\";x;y=?1;z=-1.5"#, true),
            ("100;w=60, 5000;w=3600", true),
            ("token, *star;a=b/c, (a 1  \"x\";q=1 );w=1, ()", true),
            ("@-15, %\"caf%c3%a9\"", true),
            // Revision 07, and other lines that are not lists.
            ("limit=100, remaining=50, reset=30", false),
            ("100, 100;window=60;policy=\"x\"", true),
            ("\"p\";r=5,", false),
            ("\"p;r=5", false),
            ("", false),
            (", a", false),
            ("a b", false),
            ("(a\"b\")", false),
            ("1234567890123456", false),
            ("1234567890123.1", false),
            ("1.", false),
            ("a;B=1", false),
            ("\u{e9}", false),
        ] {
            assert_eq!(is_list(line.as_bytes()), expected, "{line}");
            assert_eq!(is_known(line), expected, "the other reader: {line}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_for_a_list_is_one(line in r#"[a1"\\;=,() :.@?*-]{0,12}"#) {
            // Byte sequences and display strings are not decoded here, so this parser is lenient
            // about them.
            prop_assume!(!line.contains(':'));
            prop_assert_eq!(is_list(line.as_bytes()), is_known(&line), "{}", line);
        }
    }
}
