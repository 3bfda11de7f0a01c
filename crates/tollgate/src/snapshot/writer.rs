//! Writes a snapshot.

use super::{
    Checksum, Head, MAGIC, VERSION, WORDS_MAX,
    error::{Kind, SnapshotError},
    temporary::{Disk, Real, Temporary},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Bytes that are collected before the system is called.
const BUFFER: usize = 1 << 16;

/// A snapshot in the making. Until [`finish`](Self::finish) the target is untouched; dropping an
/// unfinished one leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Writer<D: Disk = Real> {
    path: PathBuf,
    /// Absent after a failed write: a file with a hole must not become a snapshot.
    temporary: Option<Temporary<D>>,
    sum: Checksum,
    buffer: Vec<u8>,
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
        let temporary = Some(Temporary::create(path, disk)?);
        let mut buffer = MAGIC.to_vec();
        buffer.extend(VERSION.to_le_bytes());
        buffer.extend(head.seed_check.to_le_bytes());
        buffer.extend(head.wall_ns.to_le_bytes());
        // OVERFLOW: the schemes are constants of tens of bytes (`Seed::scheme`).
        buffer.extend((head.scheme.len() as u16).to_le_bytes());
        buffer.extend(head.scheme.as_bytes());
        Ok(Self { path: path.to_owned(), temporary, sum: Checksum::new(), buffer, records: 0 })
    }

    /// Adds the state of one key.
    ///
    /// # Errors
    ///
    /// When the disk fails. Then the snapshot cannot be finished.
    pub(crate) fn record(
        &mut self,
        fingerprint: u64,
        kind: u16,
        words: &[u64],
    ) -> Result<(), SnapshotError> {
        // INVARIANT: 0 marks an empty slot, so no key has it, and a state is cut to fit.
        debug_assert!(fingerprint != 0 && words.len() <= WORDS_MAX);
        self.buffer.extend(fingerprint.to_le_bytes());
        self.buffer.extend(kind.to_le_bytes());
        // OVERFLOW: WORDS_MAX is below 2^16; no file has 2^64 records of 12 bytes.
        self.buffer.extend((words.len() as u16).to_le_bytes());
        self.buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.records += 1;
        if self.buffer.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    /// Brings the snapshot to the disk and puts it at its path. Returns its number of records.
    ///
    /// # Errors
    ///
    /// When the disk fails. The old snapshot is then still there, unless only the last step
    /// failed, which makes the new name outlive a power cut.
    pub(crate) fn finish(mut self) -> Result<u64, SnapshotError> {
        self.buffer.extend([0; 8]);
        self.flush()?;
        self.buffer.extend(self.sum.sum().to_le_bytes());
        self.flush()?;
        let temporary = self.temporary.take().ok_or_else(|| self.broken())?;
        temporary.replace()?;
        Ok(self.records)
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        self.sum.write(&self.buffer);
        let Some(temporary) = &mut self.temporary else { return Err(self.broken()) };
        let written = temporary.write(&self.buffer);
        self.buffer.clear();
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
