//! Requests with a hole for the key.
//!
//! A key is always written with [`DIGITS`] digits. So every request of a run has the same length,
//! can be encoded once, and costs a copy and a few digits from then on.

/// The place of the key in what the user writes.
pub(crate) const PLACE: &str = "{key}";

/// How many digits a key has, zeros in front.
pub(crate) const DIGITS: usize = 12;

/// The largest number of keys that fit into [`DIGITS`] digits.
pub(crate) const MAX_KEYS: u64 = 1_000_000_000_000;

/// Bytes to send, with holes for the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    holes: Vec<usize>,
}

impl Template {
    /// Reads a text; each `{key}` becomes the prefix and a hole.
    pub(crate) fn of(text: &str, prefix: &str) -> Self {
        let mut template = Self::default();
        for (number, part) in text.split(PLACE).enumerate() {
            if number > 0 {
                template.raw(prefix.as_bytes());
                template.holes.push(template.bytes.len());
                template.raw(&[b'0'; DIGITS]);
            }
            template.raw(part.as_bytes());
        }
        template
    }

    /// Adds bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds another template.
    pub(crate) fn append(&mut self, other: &Self) {
        let offset = self.bytes.len();
        self.holes.extend(other.holes.iter().map(|hole| hole + offset));
        self.raw(&other.bytes);
    }

    /// Returns how long each request is.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes one request.
    pub(crate) fn write(&self, key: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        if self.holes.is_empty() {
            return;
        }
        let digits = digits(key);
        for hole in &self.holes {
            let at = start + hole;
            if let Some(place) = out.get_mut(at..at + DIGITS) {
                place.copy_from_slice(&digits);
            }
        }
    }
}

fn digits(key: u64) -> [u8; DIGITS] {
    let (mut digits, mut rest) = ([b'0'; DIGITS], key);
    for digit in digits.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(template: &Template, key: u64) -> String {
        let mut out = Vec::new();
        template.write(key, &mut out);
        assert_eq!(out.len(), template.len());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_place_gets_the_key() {
        for (from, key, expected) in [
            ("PING", 7, "PING"),
            ("{key}", 7, "k:000000000007"),
            ("a {key} b {key}", 42, "a k:000000000042 b k:000000000042"),
            ("{\"key\":\"{key}\"}", MAX_KEYS - 1, "{\"key\":\"k:999999999999\"}"),
            ("{kex}", 7, "{kex}"),
        ] {
            assert_eq!(text(&Template::of(from, "k:"), key), expected);
        }
    }

    #[test]
    fn holes_move_along_when_templates_are_joined() {
        let mut joined = Template::of("<{key}>", "");
        joined.append(&Template::of("[{key}]", ""));
        assert_eq!(text(&joined, 5), "<000000000005>[000000000005]");
    }

    #[test]
    fn several_requests_stand_one_after_the_other() {
        let (template, mut out) = (Template::of("{key};", ""), Vec::new());
        template.write(1, &mut out);
        template.write(2, &mut out);
        assert_eq!(out, b"000000000001;000000000002;");
    }
}
