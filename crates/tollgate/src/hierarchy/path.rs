//! Nodes as keys.
//!
//! The key of a node is its path: each part with its length in front, eight bytes, little-endian.
//! From such bytes the parts can be read back, so different paths have different keys, whatever the
//! parts contain: "a_b", "c" is not "a", "b_c". The key of a node begins with that of its parent,
//! so a path is written once for all its levels.

/// Paths up to this many bytes are written in place: three parts of 77 bytes, or one of 248.
const SHORT: usize = 256;

/// The keys of all nodes on a path.
pub(super) struct PathBytes {
    short: [u8; SHORT],
    long: Vec<u8>,
}

impl PathBytes {
    pub(super) fn new(path: &[&str]) -> Self {
        let mut bytes = Self { short: [0; SHORT], long: Vec::new() };
        let length = key_length(path);
        if length > SHORT {
            bytes.long.resize(length, 0);
        }
        let mut rest =
            if length > SHORT { &mut bytes.long[..] } else { &mut bytes.short[..length] };
        for part in path {
            let (head, tail) = rest.split_at_mut(HEAD);
            head.copy_from_slice(&(part.len() as u64).to_le_bytes());
            let (body, tail) = tail.split_at_mut(part.len());
            body.copy_from_slice(part.as_bytes());
            rest = tail;
        }
        bytes
    }

    /// Returns the key of the node that `prefix` names: the first parts of the path that was given.
    pub(super) fn key(&self, prefix: &[&str]) -> &[u8] {
        let written = if self.long.is_empty() { &self.short[..] } else { &self.long[..] };
        &written[..key_length(prefix)]
    }
}

/// The length of a part, in front of it.
const HEAD: usize = size_of::<u64>();

fn key_length(path: &[&str]) -> usize {
    // OVERFLOW: the parts are in memory, and there are at most 64 of them.
    path.iter().map(|part| HEAD + part.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(path: &[&str]) -> Vec<u8> {
        PathBytes::new(path).key(path).to_vec()
    }

    #[test]
    fn parts_with_separators_do_not_collide() {
        let long = "x".repeat(300);
        let paths: [&[&str]; 9] = [
            &[],
            &[""],
            &["", ""],
            &["a_b", "c"],
            &["a", "b_c"],
            &["a_b_c"],
            &["a\0\0\0\0\0\0\0\0"],
            &["a", ""],
            &[&long, "c"],
        ];
        for (index, one) in paths.iter().enumerate() {
            for other in &paths[index + 1..] {
                assert_ne!(key(one), key(other), "{one:?} and {other:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_key_names_one_path_and_begins_with_its_parents(
            one in prop::collection::vec("[a-c_\0]{0,90}", 0..5),
            other in prop::collection::vec("[a-c_\0]{0,3}", 0..5),
        ) {
            let one: Vec<_> = one.iter().map(String::as_str).collect();
            let other: Vec<_> = other.iter().map(String::as_str).collect();
            prop_assert_eq!(key(&one) == key(&other), one == other);
            let bytes = PathBytes::new(&one);
            for count in 0..=one.len() {
                prop_assert_eq!(bytes.key(&one[..count]).to_vec(), key(&one[..count]));
            }
        }
    }
}
