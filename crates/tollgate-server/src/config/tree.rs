//! A YAML file as a tree: values with their places, and nothing else of YAML.

/// A value, and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spot: Spot,
    pub(super) kind: Kind,
}

/// Where a value starts. Both count from one, the column in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// The type of a value.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Nothing.
    Null,
    /// One of YAML's many words for true and false, with the word.
    Bool(bool, Box<str>),
    /// A number, as it is written.
    Number(Box<str>),
    /// A text.
    String(Box<str>),
    /// A list.
    List(Vec<Node>),
    /// A map. No key is there twice.
    Map(Vec<Entry>),
}

/// A key of a map, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Box<str>,
    /// The key is a text, and not a number, `true` or nothing.
    pub(super) has_text_key: bool,
    pub(super) spot: Spot,
    pub(super) value: Node,
}

impl Node {
    /// Returns the text of a scalar, as it is written in the file; none for the others.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Bool(_, text) | Kind::Number(text) | Kind::String(text) => Some(text),
            Kind::Null | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Names the value in an error message.
    pub(super) fn described(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".to_owned(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
            Kind::Bool(_, text) | Kind::Number(text) | Kind::String(text) => {
                format!("'{}'", shown(text))
            }
        }
    }
}

impl Kind {
    /// Returns what a text without quotes means. The words for true and false are those of YAML
    /// 1.1, which the reference reads.
    pub(super) fn of_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "y" | "Y" | "on" | "On" | "ON" => {
                Self::Bool(true, text.into())
            }
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "n" | "N" | "off" | "Off"
            | "OFF" => Self::Bool(false, text.into()),
            text if is_number(text) => Self::Number(text.into()),
            text => Self::String(text.into()),
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let bare = digits.replace('_', "");
    bare.parse::<f64>().is_ok() || whole_number(&bare).is_ok()
}

/// Why a text is no number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotWhole {
    Negative,
    Fraction,
    TooLarge,
    LeadingZero,
    NoNumber,
}

/// Reads a number of things: `100`, `1_000`, `1e6`, `0x10`, `0o17`, `0b11`.
pub(super) fn whole_number(text: &str) -> Result<u64, NotWhole> {
    let bare = text.replace('_', "");
    let (bare, negative) = match bare.strip_prefix('-') {
        Some(rest) => (rest, true),
        None => (bare.strip_prefix('+').unwrap_or(&bare), false),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find_map(|(prefix, radix)| Some((bare.strip_prefix(prefix)?, radix)));
    let (digits, radix) = prefixed.unwrap_or((bare, 10));
    let number = if !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)) {
        if prefixed.is_none() && digits.len() > 1 && digits.starts_with('0') {
            return Err(NotWhole::LeadingZero);
        }
        u64::from_str_radix(digits, radix).map_err(|_| NotWhole::TooLarge)?
    } else {
        from_float(digits, radix)?
    };
    if negative && number != 0 { Err(NotWhole::Negative) } else { Ok(number) }
}

/// Reads `1e6` and `20.0`, which are whole, but not `0.5`.
fn from_float(digits: &str, radix: u32) -> Result<u64, NotWhole> {
    /// Above this, a float cannot represent every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let has_digit = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number = match digits.parse::<f64>() {
        Ok(number) if radix == 10 && has_digit => number,
        _ => return Err(NotWhole::NoNumber),
    };
    if number > EXACT {
        Err(NotWhole::TooLarge)
    } else if number.fract() != 0.0 {
        Err(NotWhole::Fraction)
    } else {
        Ok(number as u64)
    }
}

/// Makes a text of the file fit for a message: short, and without control characters.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut out: String = text
        .chars()
        .take(MOST)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_and_others_named() {
        for (text, number) in [
            ("0", Ok(0)),
            ("20", Ok(20)),
            ("+7", Ok(7)),
            ("-0", Ok(0)),
            ("1_000_000", Ok(1_000_000)),
            ("1e6", Ok(1_000_000)),
            ("20.0", Ok(20)),
            ("0x10", Ok(16)),
            ("0o17", Ok(15)),
            ("0b11", Ok(3)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(NotWhole::TooLarge)),
            ("1e300", Err(NotWhole::TooLarge)),
            ("-3", Err(NotWhole::Negative)),
            ("0.5", Err(NotWhole::Fraction)),
            ("010", Err(NotWhole::LeadingZero)),
            ("many", Err(NotWhole::NoNumber)),
            ("inf", Err(NotWhole::NoNumber)),
            ("", Err(NotWhole::NoNumber)),
            ("0x", Err(NotWhole::NoNumber)),
        ] {
            assert_eq!(whole_number(text), number, "{text}");
        }
    }

    #[test]
    fn plain_texts_mean_what_the_reference_takes_them_for() {
        for (text, kind) in [
            ("~", "Null"),
            ("Yes", "Bool(true, \"Yes\")"),
            ("off", "Bool(false, \"off\")"),
            ("12", "Number(\"12\")"),
            ("-1.5e3", "Number(\"-1.5e3\")"),
            ("0x1f", "Number(\"0x1f\")"),
            ("1.2.3.4", "String(\"1.2.3.4\")"),
            ("10.0.0.0/8", "String(\"10.0.0.0/8\")"),
            ("5m", "String(\"5m\")"),
            ("-inf", "String(\"-inf\")"),
            (".", "String(\".\")"),
        ] {
            assert_eq!(format!("{:?}", Kind::of_plain(text)), kind, "{text}");
        }
    }
}
