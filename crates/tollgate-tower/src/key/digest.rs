//! SHA-256 (FIPS 180-4), and the hash under which secrets are counted.
//!
//! A secret (API key, token, session) is counted by the first 16 bytes of SHA-256 over one block of
//! 64 bytes that holds the *hash key*, padded with zeros, and then the secret. The state after that
//! block is kept, so a secret of up to 55 bytes costs one round of the hash.
//!
//! Why not SipHash, which is faster: its key has to be secret, so a fleet would need a secret in
//! its configuration before the first request. SHA-256 hides long random secrets under a public
//! key. Only half of the digest is kept, so knowing it does not let anyone append to a secret.

/// How many bytes of a digest stand for a secret.
pub(super) const DIGEST: usize = 16;
const BLOCK: usize = 64;
/// The block that precedes a secret if the user sets no hash key.
const PUBLIC: &[u8] = b"tollgate: secrets in keys, version 1";

const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

#[rustfmt::skip]
const ROUND: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// A hash key: the state of SHA-256 after the block of the key.
#[derive(Clone)]
pub(super) struct HashKey([u32; 8]);

impl HashKey {
    /// The allowed length of a user's key. Shorter keys can be guessed, longer ones do not fit.
    pub(super) const LENGTH: std::ops::RangeInclusive<usize> = 16..=BLOCK;
    /// The public key.
    pub(super) const PUBLIC: &'static Self = &Self::of(PUBLIC);

    /// Makes a key of up to 64 bytes; further bytes are ignored.
    pub(super) const fn of(key: &[u8]) -> Self {
        let (mut block, mut at) = ([0; BLOCK], 0);
        while at < key.len() && at < BLOCK {
            block[at] = key[at];
            at += 1;
        }
        Self(compress(START, &block))
    }

    /// Returns the hash that replaces a secret.
    pub(super) fn hide(&self, secret: &[u8]) -> [u8; DIGEST] {
        let whole = finish(self.0, BLOCK, secret);
        let mut half = [0; DIGEST];
        half.copy_from_slice(&whole[..DIGEST]);
        half
    }
}

/// Returns the SHA-256 of `bytes`.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    finish(START, 0, bytes)
}

/// Hashes the rest of a message whose first `before` bytes, whole blocks, are hashed already.
fn finish(mut state: [u32; 8], before: usize, rest: &[u8]) -> [u8; 32] {
    let (blocks, tail) = rest.as_chunks::<BLOCK>();
    for block in blocks {
        state = compress(state, block);
    }
    let mut last = [0; 2 * BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    last[tail.len()] = 0x80;
    let used = if tail.len() + 1 + 8 <= BLOCK { BLOCK } else { 2 * BLOCK };
    // OVERFLOW: a slice has fewer than 2^63 bytes, and FIPS 180-4 counts bits modulo 2^64.
    let bits = ((before as u64).wrapping_add(rest.len() as u64)).wrapping_mul(8);
    last[used - 8..used].copy_from_slice(&bits.to_be_bytes());
    for block in last[..used].as_chunks::<BLOCK>().0 {
        state = compress(state, block);
    }
    let mut digest = [0; 32];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    digest
}

/// The compression function of FIPS 180-4, section 6.2.2.
const fn compress(state: [u32; 8], block: &[u8; BLOCK]) -> [u32; 8] {
    let mut w = [0_u32; 64];
    let mut t = 0;
    while t < 16 {
        let at = 4 * t;
        w[t] = u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        t += 1;
    }
    while t < 64 {
        let (x, y) = (w[t - 15], w[t - 2]);
        let small0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let small1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[t] = w[t - 16].wrapping_add(small0).wrapping_add(w[t - 7]).wrapping_add(small1);
        t += 1;
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
    // Eight rounds at a time, after which each variable is in its own place again: nothing is
    // moved.
    macro_rules! round {
        ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident $t:expr) => {
            let big1 = $e.rotate_right(6) ^ $e.rotate_right(11) ^ $e.rotate_right(25);
            let choice = $g ^ ($e & ($f ^ $g));
            let one = $h.wrapping_add(big1).wrapping_add(choice);
            let one = one.wrapping_add(ROUND[$t].wrapping_add(w[$t]));
            let big0 = $a.rotate_right(2) ^ $a.rotate_right(13) ^ $a.rotate_right(22);
            $d = $d.wrapping_add(one);
            $h = one.wrapping_add(big0).wrapping_add(($a & $b) | ($c & ($a | $b)));
        };
    }
    t = 0;
    while t < 64 {
        round!(a b c d e f g h t);
        round!(h a b c d e f g t + 1);
        round!(g h a b c d e f t + 2);
        round!(f g h a b c d e t + 3);
        round!(e f g h a b c d t + 4);
        round!(d e f g h a b c t + 5);
        round!(c d e f g h a b t + 6);
        round!(b c d e f g h a t + 7);
        t += 8;
    }
    let (now, mut next, mut at) = ([a, b, c, d, e, f, g, h], state, 0);
    while at < 8 {
        next[at] = next[at].wrapping_add(now[at]);
        at += 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn agrees_with_the_examples_of_the_standard() {
        let long = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
        let rows: [(&[u8], &str); 5] = [
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (long, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
            (
                &[b'a'; 1_000_000],
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
            ),
        ];
        for (row, (message, expected)) in rows.into_iter().enumerate() {
            assert_eq!(hex(&sha256(message)), expected, "row {row}");
        }
    }

    #[test]
    fn a_secret_is_hashed_after_the_block_of_its_key() {
        for length in [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1000] {
            let secret = vec![0xa5; length];
            let mut message = b"sixteen bytes or".to_vec();
            message.resize(BLOCK, 0);
            message.extend_from_slice(&secret);
            let hidden = HashKey::of(b"sixteen bytes or").hide(&secret);
            assert_eq!(hidden, sha256(&message)[..DIGEST], "length {length}");
        }
    }
}
