//! Reads a snapshot, after all of it was found sound.

use super::{
    Checksum, Head, MAGIC, VERSION, WORDS_MAX,
    error::{Kind, Role, SnapshotError},
    seed_check,
    temporary::open_regular,
};
use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// A snapshot whose every byte was checked before the first record is handed out.
///
/// Memory is bounded by the longest text (64 KiB) and the longest record (32 KiB), whatever the file
/// says. The file is read twice, and the checksum is compared each time. A file that is altered in
/// place between the two, as no writer of ours does it, yields an error at its end.
#[derive(Debug)]
pub(crate) struct Reader<R = BufReader<File>> {
    path: PathBuf,
    source: R,
    /// The checksum of what was read, and how many bytes that is.
    sum: Checksum,
    offset: u64,
    head: Head,
    records: u64,
}

/// What a record is about; its words are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The fingerprint of the key, never 0.
    pub(crate) fingerprint: u64,
    /// The kind of its words. The code that writes and reads them defines it.
    pub(crate) kind: u16,
}

impl Reader {
    /// Opens a snapshot and verifies all of it.
    pub(crate) fn open(path: &Path) -> Result<Self, SnapshotError> {
        Self::from_source(path, BufReader::new(open_regular(path)?))
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Verifies a snapshot that is read from somewhere; `path` is its name in errors.
    pub(super) fn from_source(path: &Path, source: R) -> Result<Self, SnapshotError> {
        let (path, sum, head) = (path.to_owned(), Checksum::new(), Head::default());
        let mut reader = Self { path, source, sum, offset: 0, head, records: 0 };
        reader.take_head()?;
        let (sum, offset) = (reader.sum.clone(), reader.offset);
        let mut words = Vec::new();
        while reader.next_record(&mut words)?.is_some() {
            reader.records += 1; // OVERFLOW: no file has 2^64 records.
        }
        // The second pass begins where the first found the records.
        let rewound = reader.source.seek(SeekFrom::Start(offset));
        rewound.map_err(SnapshotError::io(&reader.path, "read"))?;
        (reader.sum, reader.offset) = (sum, offset);
        Ok(reader)
    }

    /// Returns how to read the records.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns how many records the file has.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Checks that the fingerprints are of this scheme and under this seed.
    pub(crate) fn expect(&self, scheme: &str, seed: (u64, u64)) -> Result<(), SnapshotError> {
        let kind = if self.head.scheme != scheme {
            Kind::UnknownScheme { found: self.head.scheme.clone(), expected: scheme.to_owned() }
        } else if self.head.seed_check != seed_check(seed) {
            Kind::WrongSeed
        } else {
            return Ok(());
        };
        Err(SnapshotError::new(&self.path, kind))
    }

    /// Reads the next record: its words replace those in `words`. `None`, once, after the last.
    pub(crate) fn next_record(
        &mut self,
        words: &mut Vec<u64>,
    ) -> Result<Option<Record>, SnapshotError> {
        words.clear();
        let start = self.offset;
        let fingerprint = self.take_u64()?;
        if fingerprint == 0 {
            return self.take_end().map(|()| None);
        }
        let [kind @ .., low, high] = self.take::<4>()?;
        let (kind, count) = (u16::from_le_bytes(kind), u16::from_le_bytes([low, high]).into());
        if count > WORDS_MAX {
            return Err(self.damaged(start, "a record has more than 4096 words"));
        }
        for _ in 0..count {
            words.push(self.take_u64()?);
        }
        Ok(Some(Record { fingerprint, kind }))
    }

    fn take_head(&mut self) -> Result<(), SnapshotError> {
        self.take_magic()?;
        let version = u32::from_le_bytes(self.take()?);
        if version > VERSION {
            let kind = Kind::Newer { found: version, known: VERSION };
            return Err(SnapshotError::new(&self.path, kind));
        }
        if version < VERSION {
            return Err(self.damaged(MAGIC.len() as u64, "no older format version is read"));
        }
        self.head.seed_check = self.take_u64()?;
        self.head.wall_ns = self.take_u64()?;
        let mut scheme = vec![0; usize::from(u16::from_le_bytes(self.take()?))];
        self.fill(&mut scheme)?;
        self.head.scheme = String::from_utf8(scheme)
            .map_err(|_| self.damaged(self.offset, "the scheme is not UTF-8"))?;
        Ok(())
    }

    /// Says of a file that is none of ours what it begins with.
    fn take_magic(&mut self) -> Result<(), SnapshotError> {
        let magic = self.take_up_to(MAGIC.len())?;
        self.count(&magic);
        if magic == MAGIC {
            Ok(())
        } else if !magic.is_empty() && MAGIC.starts_with(&magic) {
            Err(self.damaged(self.offset, "the file ends early"))
        } else {
            let found = match magic.as_slice() {
                [] => "is empty".to_owned(),
                bytes => format!("begins with \"{}\"", bytes.escape_ascii()),
            };
            let kind = Kind::Foreign { role: Role::Snapshot, found };
            Err(SnapshotError::new(&self.path, kind))
        }
    }

    /// Compares the checksum, and checks that it is the last of the file.
    fn take_end(&mut self) -> Result<(), SnapshotError> {
        let sum = self.sum.sum();
        if self.take_u64()? != sum {
            Err(self.damaged(self.offset, "the checksum is wrong"))
        } else if self.take_up_to(1)?.is_empty() {
            Ok(())
        } else {
            Err(self.damaged(self.offset, "bytes follow the end of the snapshot"))
        }
    }

    fn take_u64(&mut self) -> Result<u64, SnapshotError> {
        self.take().map(u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        match self.source.read_exact(bytes) {
            Ok(()) => {
                self.count(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(self.offset, "the file ends early"))
            }
            Err(error) => Err(SnapshotError::io(&self.path, "read")(error)),
        }
    }

    /// Reads bytes that need not be there.
    fn take_up_to(&mut self, most: usize) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        let read = self.source.by_ref().take(most as u64).read_to_end(&mut bytes);
        read.map_err(SnapshotError::io(&self.path, "read"))?;
        Ok(bytes)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.sum.write(bytes);
        // OVERFLOW: no file has 2^64 bytes.
        self.offset += bytes.len() as u64;
    }

    fn damaged(&self, at: u64, why: &'static str) -> SnapshotError {
        SnapshotError::new(&self.path, Kind::Damaged { role: Role::Snapshot, at, why })
    }
}
