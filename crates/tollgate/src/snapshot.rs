//! Files that carry keyed state from one process to the next: snapshots, and the seed they need.
//!
//! This module knows bytes, checksums and the file system. It does not know what a state word
//! means, nor which clock it counts by: the code that fills and reads the tables does.
//!
//! # A snapshot file
//!
//! Numbers are little-endian. Every checksum is SipHash-1-3 under a public key ([`Checksum`]) of
//! *all* bytes of the file before it, so that the checksum of a block also vouches for its place,
//! and the last one for the whole file. It finds damage; it does not keep out a forger, who must
//! be kept out of the directory.
//!
//! ```text
//! bytes       what
//! ----------  -----------------------------------------------------------------------
//! head
//!  8          magic: 89 "TGSNAP" 0a (not text, and changed by a transfer as text)
//!  4          format version, 2
//!  4          length of what follows up to the checksum, at most 1 MiB
//!     8       seed check: SipHash-1-3 of a fixed text under the seed
//!     8       wall time of the snapshot in ns since the Unix epoch (until the year 2554)
//!     2 + n   fingerprint scheme, for example "siphash-1-3/64 canonical-1"
//!  8          checksum
//! blocks, any number
//!  4          length of the records up to the checksum, 1 to 65,536
//!     8       of each record: fingerprint, not 0
//!     2       of each record: kind, which says what the words mean
//!     2       of each record: number of words, at most 4,096
//!     8 x n   of each record: words
//!  8          checksum
//! trailer
//!  4          0: no more blocks
//!  8          number of records
//!  8          checksum
//! ```
//!
//! `2 + n` is a text: its length in bytes, then UTF-8. A record lies wholly in one block (the
//! longest takes 32,780 bytes). Nothing follows the trailer. Other versions keep the frame of the
//! head (magic, version, length, checksum), so that a newer file differs from a damaged one.
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
mod head;
mod reader;
mod seed;
mod temporary;
mod writer;

#[cfg(test)]
mod tests;

pub use error::SnapshotError;
pub(crate) use head::Head;
pub(crate) use reader::Reader;
pub(crate) use seed::SeedFile;
pub(crate) use writer::Writer;

use siphasher::sip::SipHasher13;
use std::{hash::Hasher, io::Cursor, path::Path};

/// The first bytes of every snapshot.
const MAGIC: [u8; 8] = *b"\x89TGSNAP\n";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 2;

/// Bytes of the head before its variable part: magic, version, length.
const FRAME: usize = 16;

/// The longest variable part of a head, in bytes.
const HEAD_MAX: usize = 1 << 20;

/// The longest block, in bytes: the reader's buffer, and the work lost to one damaged byte.
const BLOCK_MAX: usize = 1 << 16;

/// Bytes of a record before its words.
const RECORD_HEAD: usize = 12;

/// The most words of one record.
pub(crate) const WORDS_MAX: usize = 4_096;

// INVARIANT: the longest record fits in a block, so a writer can always place it.
const _: () = assert!(RECORD_HEAD + 8 * WORDS_MAX <= BLOCK_MAX);

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
