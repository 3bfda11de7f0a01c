//! Writes a snapshot, block by block.

use super::{
    BLOCK_MAX, Checksum, FRAME, Head, MAGIC, RECORD_HEAD, VERSION, WORDS_MAX,
    error::{Kind, SnapshotError},
    temporary::{Disk, Real, Temporary},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Bytes of a block before its records: their length.
const LENGTH: usize = 4;

/// A snapshot in the making. Until [`finish`](Self::finish) the target is untouched; dropping an
/// unfinished one leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Writer<D: Disk = Real> {
    path: PathBuf,
    /// Absent after a failed write: a file with a hole must not become a snapshot.
    temporary: Option<Temporary<D>>,
    sum: Checksum,
    /// Room for the length, then the records of the block so far.
    block: Vec<u8>,
    records: u64,
}

impl Writer {
    /// Starts a snapshot that will appear at `path`, readable by its owner only.
    pub(crate) fn create(path: &Path, head: &Head) -> Result<Self, SnapshotError> {
        Self::create_on(Real, path, head)
    }
}

impl<D: Disk> Writer<D> {
    pub(super) fn create_on(disk: D, path: &Path, head: &Head) -> Result<Self, SnapshotError> {
        let body = head.encode().map_err(|kind| SnapshotError::new(path, kind))?;
        let mut writer = Self {
            path: path.to_owned(),
            temporary: Some(Temporary::create(path, disk)?),
            sum: Checksum::new(),
            block: Vec::with_capacity(LENGTH + BLOCK_MAX),
            records: 0,
        };
        let mut bytes = Vec::with_capacity(FRAME + body.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        // OVERFLOW: a scheme has at most 65535 bytes.
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        writer.write_sealed(&mut bytes)?;
        writer.block.extend([0; LENGTH]);
        Ok(writer)
    }

    /// Adds the state of one key.
    ///
    /// # Errors
    ///
    /// When the record is out of bounds, and is then left out; when the disk fails, and then the
    /// snapshot cannot be finished.
    pub(crate) fn record(
        &mut self,
        fingerprint: u64,
        kind: u16,
        words: &[u64],
    ) -> Result<(), SnapshotError> {
        self.check(fingerprint, words)?;
        // OVERFLOW: check bounds the words by WORDS_MAX, here and in the cast below.
        let length = RECORD_HEAD + 8 * words.len();
        if self.block.len() + length > LENGTH + BLOCK_MAX {
            self.write_block()?;
        }
        self.block.extend(fingerprint.to_le_bytes());
        self.block.extend(kind.to_le_bytes());
        self.block.extend((words.len() as u16).to_le_bytes());
        self.block.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        // OVERFLOW: no file has 2^64 records of 12 bytes.
        self.records += 1;
        Ok(())
    }

    /// Brings the snapshot to the disk and puts it at its path. Returns its number of records.
    ///
    /// # Errors
    ///
    /// When the disk fails. The old snapshot is then still there, unless only the last step
    /// failed, which makes the new name outlive a power cut.
    pub(crate) fn finish(mut self) -> Result<u64, SnapshotError> {
        self.write_block()?;
        let mut trailer = vec![0; LENGTH];
        trailer.extend(self.records.to_le_bytes());
        self.write_sealed(&mut trailer)?;
        let temporary = self.temporary.take().ok_or_else(|| self.broken())?;
        temporary.replace()?;
        Ok(self.records)
    }

    fn check(&self, fingerprint: u64, words: &[u64]) -> Result<(), SnapshotError> {
        let (what, bound) = if fingerprint == 0 {
            ("fingerprint 0".to_owned(), "it marks an empty slot: write live slots only")
        } else if words.len() > WORDS_MAX {
            (format!("a record of {} words", words.len()), "it may have 4096: split the state")
        } else {
            return Ok(());
        };
        Err(SnapshotError::new(&self.path, Kind::Unfit { what, bound }))
    }

    /// Writes the records so far, if any, as a block.
    fn write_block(&mut self) -> Result<(), SnapshotError> {
        // OVERFLOW: the block holds its length from the start, and BLOCK_MAX bytes more at most.
        let length = self.block.len() - LENGTH;
        if length == 0 {
            return Ok(());
        }
        self.block[..LENGTH].copy_from_slice(&(length as u32).to_le_bytes());
        let mut block = std::mem::take(&mut self.block);
        let written = self.write_sealed(&mut block);
        block.truncate(LENGTH);
        self.block = block;
        written
    }

    /// Adds to the bytes the checksum of all so far, and writes them in one go.
    fn write_sealed(&mut self, bytes: &mut Vec<u8>) -> Result<(), SnapshotError> {
        self.sum.write(bytes);
        let seal = self.sum.sum().to_le_bytes();
        self.sum.write(&seal);
        bytes.extend(seal);
        let Some(temporary) = &mut self.temporary else { return Err(self.broken()) };
        let written = temporary.write(bytes);
        if written.is_err() {
            self.temporary = None;
        }
        written
    }

    fn broken(&self) -> SnapshotError {
        let source = io::Error::other("an earlier write of this snapshot failed");
        SnapshotError::new(&self.path, Kind::Io { step: "finish", source })
    }
}
