//! Files that carry keyed state from one process to the next: snapshots, and the seed they need.
//!
//! This module knows bytes, checksums and the file system. It does not know what a state word
//! means, nor which clock it counts by: the code that fills and reads the tables does.
//!
//! # A snapshot file
//!
//! Numbers are little-endian.
//!
//! ```text
//! bytes       what
//! ----------  -----------------------------------------------------------------------
//!  8          magic: 89 "TGSNAP" 0a (not text, and changed by a transfer as text)
//!  4          format version, 3
//!  8          seed check: SipHash-1-3 of a fixed text under the seed
//!  8          wall time of the snapshot in ns since the Unix epoch (until the year 2554)
//!  2 + n      fingerprint scheme, for example "siphash-1-3/64 canonical-1"
//! records, any number
//!  8          fingerprint, not 0
//!  2          kind, which says what the words mean
//!  2          number of words, at most 4,096
//!  8 x n      words
//! end
//!  8          0, where a fingerprint would be: no more records
//!  8          checksum: SipHash-1-3 of all bytes before it, under a public key ([`Checksum`])
//! ```
//!
//! `2 + n` is a text: its length in bytes, then UTF-8. Nothing follows the checksum. It finds
//! damage; it does not keep out a forger, who must be kept out of the directory. Other versions begin
//! with magic and version, so that a newer file is known as such.
//!
//! The seed check gives the seed away no more than the fingerprints beside it do: it is one more
//! output of the same keyed hash, 64 bits of a secret of 128. No text and no slice has it as its
//! fingerprint, because those are hashed with a terminator or a length.
//!
//! # What a crash leaves
//!
//! A [`Writer`] fills a temporary file beside the target and renames it over the target after it
//! has reached the disk. So the target is the old file or the new one, whole, whenever the process
//! is killed (`tests/kill.rs`) and at whatever step it stops (`tests/crash.rs`). The temporary
//! file that a killed process leaves is removed by the next writer of the same target.

mod error;
mod reader;
mod seed;
mod temporary;
mod writer;

#[cfg(test)]
mod tests;

pub use error::SnapshotError;
pub(crate) use reader::Reader;
pub(crate) use seed::SeedFile;
pub(crate) use writer::Writer;

use siphasher::sip::SipHasher13;
use std::{hash::Hasher, io::Cursor, path::Path};

/// The first bytes of every snapshot.
const MAGIC: [u8; 8] = *b"\x89TGSNAP\n";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 3;

/// The most words of one record.
pub(crate) const WORDS_MAX: usize = 4_096;

/// By which seed and clock the records of a snapshot were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// How keys became fingerprints.
    pub(crate) scheme: String,
    /// What [`seed_check`] says of the seed.
    pub(crate) seed_check: u64,
    /// Wall time of the snapshot in nanoseconds since the Unix epoch.
    pub(crate) wall_ns: u64,
}

/// Returns the tag by which a snapshot is recognised as made under this seed.
pub(crate) fn seed_check((k0, k1): (u64, u64)) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(k0, k1);
    hasher.write(b"tollgate: is this the seed of the snapshot?");
    hasher.finish()
}

/// Reads a whole snapshot from memory and returns its number of records: the fuzzer's way in.
///
/// # Errors
///
/// When the bytes are not a sound snapshot.
///
/// # Panics
///
/// When a snapshot that was found sound cannot be read, which would be a mistake of the reader.
#[doc(hidden)]
pub fn count_snapshot_records(bytes: &[u8]) -> Result<u64, SnapshotError> {
    let mut reader = Reader::from_source(Path::new("memory"), Cursor::new(bytes))?;
    let (mut words, mut count) = (Vec::new(), 0);
    while let Some(record) = reader.next_record(&mut words).expect("the file was verified") {
        assert!(record.fingerprint != 0 && words.len() <= WORDS_MAX);
        count += 1;
    }
    assert_eq!(count, reader.records());
    Ok(count)
}

/// A checksum of all bytes so far.
#[derive(Clone, Debug)]
struct Checksum(SipHasher13);

impl Checksum {
    fn new() -> Self {
        // Public, and part of the format: it makes the checksum differ from anybody else's.
        Self(SipHasher13::new_with_keys(
            u64::from_le_bytes(*b"tollgate"),
            u64::from_le_bytes(*b"snapshot"),
        ))
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn sum(&self) -> u64 {
        self.0.finish()
    }
}
