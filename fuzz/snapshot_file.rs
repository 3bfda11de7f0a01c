//! Feeds any bytes to the snapshot reader: it must not panic, and what it accepts it must hand out
//! whole. Once as they are, and once with a right checksum, or no input would get past the first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&sealed(bytes));
});

fn read(bytes: &[u8]) {
    match tollgate::count_snapshot_records(bytes) {
        // A record takes 12 bytes or more.
        Ok(count) => assert!(count <= bytes.len() as u64 / 12),
        Err(error) => assert!(error.to_string().contains(';'), "no way out: {error}"),
    }
}

/// Puts the magic and the version before the bytes, and the end and the checksum behind them.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut file = [&b"\x89TGSNAP\n\x03\0\0\0"[..], bytes, &[0; 8]].concat();
    let mut sum = SipHasher13::new_with_keys(
        u64::from_le_bytes(*b"tollgate"),
        u64::from_le_bytes(*b"snapshot"),
    );
    sum.write(&file);
    file.extend(sum.finish().to_le_bytes());
    file
}
