//! Keys as people read them, and back.

use crate::plan::{Kind, Rule};
use std::fmt::{self, Write};

/// Stands between the values of a key.
const BETWEEN: &str = ", ";

/// Where a list of heavy keys cuts their text, in bytes, and how it marks that.
const CUT_BYTES: usize = 128;
const CUT_MARK: char = '…';

/// A key as people read it: its values with ", " between them. If there are several, commas and backslashes in them
/// have a backslash before them, so that different keys look different.
pub(crate) struct KeyText<'a> {
    key: &'a [u8],
    /// How many values it has at most.
    values: usize,
}

/// Returns how many values the keys of a rule have at most.
fn values_of(rule: &Rule) -> usize {
    let is_override = matches!(rule.kind(), Kind::PerCall) && !rule.domain().is_empty();
    // An override is counted by all entries of its descriptor.
    if is_override { usize::MAX } else { rule.free_keys().len() }
}

impl<'a> KeyText<'a> {
    /// Returns a key of a rule.
    pub(crate) fn of(rule: &Rule, key: &'a [u8]) -> Self {
        Self { key, values: values_of(rule) }
    }

    /// Reads the values of a key of a rule back from its text; `None` if that does not have them: it is cut, or the
    /// key is not UTF-8.
    pub(crate) fn read(rule: &Rule, text: &str) -> Option<Vec<String>> {
        let is_cut = text.len() >= CUT_BYTES && text.ends_with(CUT_MARK);
        if is_cut || text.contains(char::REPLACEMENT_CHARACTER) {
            return None;
        }
        match values_of(rule) {
            0 => Some(Vec::new()),
            1 => Some(vec![text.to_owned()]),
            _ => Some(split(text)),
        }
    }
}

/// Takes the values of a key apart.
fn split(text: &str) -> Vec<String> {
    let mut values = vec![String::new()];
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix(BETWEEN) {
            values.push(String::new());
            rest = after;
            continue;
        }
        let plain = rest.strip_prefix('\\').unwrap_or(rest);
        let char = plain.chars().next().unwrap_or(char);
        values.last_mut().expect("there is a value from the start").push(char);
        rest = plain.get(char.len_utf8()..).unwrap_or_default();
    }
    values
}

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.values <= 1 {
            return f.write_str(&String::from_utf8_lossy(self.key));
        }
        let mut rest = self.key;
        for index in 0..self.values {
            let Some((length, after)) = rest.split_first_chunk::<4>() else { break };
            let length = (u32::from_le_bytes(*length) as usize).min(after.len());
            let (value, after) = after.split_at(length);
            if index > 0 {
                f.write_str(BETWEEN)?;
            }
            for char in String::from_utf8_lossy(value).chars() {
                if matches!(char, ',' | '\\') {
                    f.write_char('\\')?;
                }
                f.write_char(char)?;
            }
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_key_has_its_values() {
        let mut texts = std::collections::HashSet::new();
        for values in [
            &["de", "berlin"][..],
            &["a, b", "c"],
            &["a", "b, c"],
            &["a\\", "b"],
            &["a\\, b", ""],
            &["", ""],
            &["é,", "\u{202e}"],
        ] {
            let mut key = Vec::new();
            for value in values {
                key.extend_from_slice(&(value.len() as u32).to_le_bytes());
                key.extend_from_slice(value.as_bytes());
            }
            let text = KeyText { key: &key, values: 2 }.to_string();
            assert_eq!(split(&text), values, "{text}");
            assert!(texts.insert(text.clone()), "{text} stands for two keys");
        }
        assert!(texts.contains("de, berlin"));
    }
}
