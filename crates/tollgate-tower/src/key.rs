//! Who is counted.

use crate::Info;

/// The bytes of a key in the making. Parts are told apart by their lengths, so that no two lists of
/// parts make the same key.
#[derive(Debug, Default)]
pub struct KeyBytes {
    bytes: Vec<u8>,
}

impl KeyBytes {
    /// Appends a part.
    pub fn push(&mut self, part: &[u8]) {
        // OVERFLOW: a part of a request is far below 4 GiB.
        self.bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(part);
    }

    /// Returns the key so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets all parts.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Finds who is counted.
pub trait KeySource: Send + Sync {
    /// Appends the parts of the key; tells whether there is one.
    fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool;
}
