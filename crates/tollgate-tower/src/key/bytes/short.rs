//! Keys that are short enough to be stored and moved inline.

use super::{KeyBytes, PART, TAG, Tag};

/// A short key in the smallest form.
#[derive(Clone, Copy)]
pub(crate) struct ShortKey {
    bytes: [u8; ShortKey::MAX],
    used: u8,
}

impl ShortKey {
    /// An address or a hash, with some bytes to spare.
    const MAX: usize = 31;

    /// Returns the key that is this part alone, of at most 16 bytes.
    pub(in crate::key) fn tagged<const N: usize>(tag: Tag, part: [u8; N]) -> Self {
        const { assert!(N <= 16, "a tag, a length and the part are short") };
        let mut bytes = [0; Self::MAX];
        // OVERFLOW: at most 16 + 3.
        bytes[..3].copy_from_slice(&[TAG, tag as u8, (N + PART) as u8]);
        bytes[3..3 + N].copy_from_slice(&part);
        Self { bytes, used: (3 + N) as u8 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

impl From<ShortKey> for KeyBytes {
    fn from(short: ShortKey) -> Self {
        let mut key = Self::new();
        key.inline[..ShortKey::MAX].copy_from_slice(&short.bytes);
        key.used = usize::from(short.used);
        key
    }
}

impl KeyBytes {
    /// Returns the key as a short one, if it fits.
    pub(crate) fn short(&self) -> Option<ShortKey> {
        if self.used > ShortKey::MAX || !self.heap.is_empty() {
            return None;
        }
        let bytes = *self.inline.first_chunk()?;
        // OVERFLOW: at most 31.
        Some(ShortKey { bytes, used: self.used as u8 })
    }
}
