//! Feeds any bytes to the snapshot reader: it must not panic, and what it accepts it must hand out
//! whole. Once as they are, and once with right checksums, or no input would get past the first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut sealed = bytes.to_vec();
    // Where the structure is broken there is no next checksum, and the reader must find that out.
    let _ = seal(&mut sealed);
    read(&sealed);
});

fn read(bytes: &[u8]) {
    match tollgate::count_snapshot_records(bytes) {
        // A record takes 12 bytes or more.
        Ok(count) => assert!(count <= bytes.len() as u64 / 12),
        Err(error) => assert!(error.to_string().contains(';'), "no way out: {error}"),
    }
}

/// Puts the magic and every checksum where the format has them; stops where it ends early.
fn seal(file: &mut [u8]) -> Option<()> {
    file.get_mut(..8)?.copy_from_slice(b"\x89TGSNAP\n");
    let mut at = 16_usize.checked_add(number(file, 12)?)?;
    let mut sum = SipHasher13::new_with_keys(
        u64::from_le_bytes(*b"tollgate"),
        u64::from_le_bytes(*b"snapshot"),
    );
    let mut summed = 0;
    loop {
        sum.write(file.get(summed..at)?);
        let seal = sum.finish().to_le_bytes();
        file.get_mut(at..at + 8)?.copy_from_slice(&seal);
        (summed, at) = (at, at + 8);
        if at == file.len() {
            return Some(());
        }
        at += match number(file, at)? {
            0 => 12,
            length => 4 + length,
        };
    }
}

fn number(file: &[u8], at: usize) -> Option<usize> {
    let bytes = file.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}
