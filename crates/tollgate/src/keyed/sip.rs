//! SipHash-1-3, short and inlined.
//!
//! A look-up waits for memory: first for the key, then for its slot. The fewer instructions lie
//! between the two, the more look-ups a processor has under way at once. So this is written for
//! short keys that come in one or two pieces; the test compares it with the `siphasher` crate.

use std::hash::Hasher;

/// SipHash with one round per word and three at the end.
#[derive(Clone, Copy)]
pub(super) struct Sip13 {
    v: [u64; 4],
    /// Bytes that do not fill a word yet, the first in the lowest bits.
    tail: u64,
    tail_bytes: u32,
    length: u64,
}

impl Sip13 {
    #[inline]
    pub(super) const fn new(k0: u64, k1: u64) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { v, tail: 0, tail_bytes: 0, length: 0 }
    }

    /// Returns the words of a hash that has got one number.
    pub(super) fn started(k0: u64, k1: u64, number: u64) -> [u64; 4] {
        let mut hasher = Self::new(k0, k1);
        hasher.write_u64(number);
        hasher.v
    }

    /// Returns the hash of the number that [`started`](Self::started) got, and of a slice as
    /// [`Hash`](std::hash::Hash) feeds it: its length, then its bytes. All in registers.
    #[inline(always)]
    pub(super) fn resumed(v: [u64; 4], bytes: &[u8]) -> u64 {
        let mut hasher = Self { v, tail: 0, tail_bytes: 0, length: 16 + bytes.len() as u64 };
        hasher.word(bytes.len() as u64);
        let mut rest = bytes;
        while let Some((word, more)) = rest.split_first_chunk() {
            hasher.word(u64::from_le_bytes(*word));
            rest = more;
        }
        hasher.tail = short(rest);
        hasher.finish()
    }

    #[inline(always)]
    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32).wrapping_add(d);
        c = c.wrapping_add(b);
        d = d.rotate_left(21) ^ a;
        b = b.rotate_left(17) ^ c;
        self.v = [a, b, c.rotate_left(32), d];
    }

    #[inline(always)]
    const fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    /// Adds up to eight bytes, given as a number with the first byte lowest.
    #[inline(always)]
    const fn bytes(&mut self, number: u64, count: u32) {
        self.length = self.length.wrapping_add(count as u64);
        self.tail |= number << (8 * self.tail_bytes);
        let bytes = self.tail_bytes + count;
        if bytes < 8 {
            self.tail_bytes = bytes;
            return;
        }
        self.word(self.tail);
        // What of the number did not fit: nothing if the tail was empty.
        self.tail = if self.tail_bytes == 0 { 0 } else { number >> (8 * (8 - self.tail_bytes)) };
        self.tail_bytes = bytes - 8;
    }
}

/// Returns fewer than eight bytes as a number, the first byte lowest.
#[inline(always)]
pub(super) fn short(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // Both halves, which may overlap.
        let (low, high) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(low) | u64::from(high) << (8 * (bytes.len() - 4));
    }
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Hasher for Sip13 {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        if self.tail_bytes == 0 {
            // The usual case, and for the first piece known when this is compiled.
            for word in words {
                self.word(u64::from_le_bytes(*word));
            }
            self.length = self.length.wrapping_add(bytes.len() as u64);
            (self.tail, self.tail_bytes) = (short(rest), rest.len() as u32);
            return;
        }
        for word in words {
            self.bytes(u64::from_le_bytes(*word), 8);
        }
        self.bytes(short(rest), rest.len() as u32);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.bytes(u64::from(number), 1);
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.bytes(u64::from(number), 2);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.bytes(u64::from(number), 4);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.bytes(number, 8);
    }

    #[inline]
    fn write_u128(&mut self, number: u128) {
        self.write(&number.to_le_bytes());
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.word(self.length << 56 | self.tail);
        last.v[2] ^= 0xff;
        last.round();
        last.round();
        last.round();
        last.v[0] ^ last.v[1] ^ last.v[2] ^ last.v[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    proptest! {
        #[test]
        fn equals_the_reference(
            k0: u64, k1: u64,
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
            numbers in prop::collection::vec((0..5_u8, any::<u64>()), 0..6),
        ) {
            let (mut ours, mut reference) = (Sip13::new(k0, k1), SipHasher13::new_with_keys(k0, k1));
            for piece in pieces {
                ours.write(&piece);
                reference.write(&piece);
            }
            for (kind, number) in numbers {
                match kind {
                    0 => ours.write_u8(number as u8),
                    1 => ours.write_u16(number as u16),
                    2 => ours.write_u32(number as u32),
                    3 => ours.write_u64(number),
                    _ => ours.write_u128(u128::from(number) << 7),
                }
                match kind {
                    0 => reference.write(&(number as u8).to_le_bytes()),
                    1 => reference.write(&(number as u16).to_le_bytes()),
                    2 => reference.write(&(number as u32).to_le_bytes()),
                    3 => reference.write(&number.to_le_bytes()),
                    _ => reference.write(&(u128::from(number) << 7).to_le_bytes()),
                }
            }
            prop_assert_eq!(ours.finish(), reference.finish());
        }
    }
}
