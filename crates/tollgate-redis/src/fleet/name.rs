//! Names in keys.

use super::JoinError;
use std::fmt::Write;

/// The longest name, in bytes.
const NAME_MAX: usize = 200;

/// Returns a name in the form for a key: letters, digits, `.`, `_` and `-` as they are, every other
/// byte as `%` and two hexadecimal digits. So no name can end the tag of a key, and different names
/// stay different.
pub(crate) fn escaped(name: &str) -> Result<String, JoinError> {
    if name.is_empty() || name.len() > NAME_MAX {
        let length = name.len();
        let text = format!("a name of {length} bytes is out of range; use 1 to {NAME_MAX} bytes");
        return Err(JoinError::new(text));
    }
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_a_tag() {
        for (name, expected) in
            [("a-b_c.9", "a-b_c.9"), ("a}:{%", "a%7d%3a%7b%25"), ("é", "%c3%a9")]
        {
            assert_eq!(escaped(name).unwrap(), expected);
        }
        assert!(escaped("").is_err());
        let error = escaped(&"x".repeat(201)).unwrap_err();
        assert_eq!(error.to_string(), "a name of 201 bytes is out of range; use 1 to 200 bytes");
    }
}
