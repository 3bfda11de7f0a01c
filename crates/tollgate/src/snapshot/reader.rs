//! Reads a snapshot, after all of it was found sound.

use super::{
    BLOCK_MAX, Checksum, FRAME, HEAD_MAX, Head, MAGIC, RECORD_HEAD, VERSION, WORDS_MAX,
    error::{Kind, Role, SnapshotError},
    head::take_bytes,
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
/// Memory is bounded by the head (1 MiB) and one block (64 KiB), whatever the file says. The file
/// is read twice; what is handed out was checked again, so that a file that is altered meanwhile
/// yields an error and no wrong record.
#[derive(Debug)]
pub(crate) struct Reader<R = BufReader<File>> {
    stream: Stream<R>,
    head: Head,
    /// The records of the block at hand that were not handed out yet, from `next` on.
    block: Vec<u8>,
    next: usize,
    seen: u64,
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
        let path = path.to_owned();
        let mut stream = Stream { path, source, sum: Checksum::new(), offset: 0 };
        let head = stream.take_head()?;
        let (sum, offset) = (stream.sum.clone(), stream.offset);
        let block = Vec::with_capacity(BLOCK_MAX);
        let mut reader = Self { stream, head, block, next: 0, seen: 0, records: 0 };
        while reader.next_block()? {}
        reader.records = reader.seen;
        // The second pass begins where the first found the records.
        let stream = &mut reader.stream;
        let rewound = stream.source.seek(SeekFrom::Start(offset));
        rewound.map_err(SnapshotError::io(&stream.path, "read"))?;
        (stream.sum, stream.offset, reader.seen) = (sum, offset, 0);
        Ok(reader)
    }

    /// Returns what the records mean.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the number of records in the whole file.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Refuses a snapshot whose fingerprints were made in another way or under another seed.
    pub(crate) fn expect(&self, scheme: &str, seed: (u64, u64)) -> Result<(), SnapshotError> {
        let kind = if self.head.scheme != scheme {
            Kind::UnknownScheme { found: self.head.scheme.clone(), expected: scheme.to_owned() }
        } else if self.head.seed_check != seed_check(seed) {
            Kind::WrongSeed
        } else {
            return Ok(());
        };
        Err(SnapshotError::new(&self.stream.path, kind))
    }

    /// Returns the next record, and its words in `words`; nothing after the last.
    ///
    /// # Errors
    ///
    /// When the file was altered since it was opened, or cannot be read any more.
    pub(crate) fn next_record(
        &mut self,
        words: &mut Vec<u64>,
    ) -> Result<Option<Record>, SnapshotError> {
        words.clear();
        if self.next == self.block.len() {
            if self.seen >= self.records {
                return Ok(None);
            }
            if !self.next_block()? {
                let why = "the file was altered while it was read";
                return Err(self.stream.damaged(self.stream.offset, why));
            }
        }
        let at = self.next;
        let (record, length) = record_at(&self.block[at..])
            .map_err(|why| self.stream.damaged(self.stream.offset, why))?;
        // OVERFLOW: record_at returns a length that the block holds, here and below.
        self.next = at + length;
        let bytes = self.block[at + RECORD_HEAD..self.next].chunks_exact(8);
        words.extend(bytes.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))));
        Ok(Some(record))
    }

    /// Reads and checks the next block, all of it; tells whether there was one.
    fn next_block(&mut self) -> Result<bool, SnapshotError> {
        self.block.clear();
        self.next = 0;
        let found = self.take_block();
        if !matches!(found, Ok(true)) {
            // INVARIANT: what was not checked, all of it, is never handed out.
            self.block.clear();
        }
        found
    }

    fn take_block(&mut self) -> Result<bool, SnapshotError> {
        let start = self.stream.offset;
        let length = u32::from_le_bytes(self.stream.take()?) as usize;
        if length == 0 {
            return self.take_trailer().map(|()| false);
        }
        if length > BLOCK_MAX {
            return Err(self.stream.damaged(start, "a block is longer than 65536 bytes"));
        }
        // Within the buffer's fixed capacity: nothing is allocated.
        self.block.resize(length, 0);
        let body = self.stream.offset;
        self.stream.fill(&mut self.block)?;
        self.stream.take_seal(start, "the checksum of a block is wrong")?;
        let mut at = 0;
        while at < length {
            let (_, step) = record_at(&self.block[at..])
                // OVERFLOW: at is below BLOCK_MAX, and a file is far below 2^64 bytes.
                .map_err(|why| self.stream.damaged(body + at as u64, why))?;
            // OVERFLOW: as above; no file has 2^64 records.
            at += step;
            self.seen += 1;
        }
        Ok(true)
    }

    fn take_trailer(&mut self) -> Result<(), SnapshotError> {
        let start = self.stream.offset;
        let count = u64::from_le_bytes(self.stream.take()?);
        self.stream.take_seal(start, "the checksum of the file is wrong")?;
        if count != self.seen {
            return Err(self.stream.damaged(start, "the number of records is wrong"));
        }
        self.stream.expect_end()
    }
}

/// Returns the record at the front of a block, and its length.
fn record_at(block: &[u8]) -> Result<(Record, usize), &'static str> {
    let mut rest = block;
    let fingerprint = u64::from_le_bytes(take_bytes(&mut rest)?);
    let kind = u16::from_le_bytes(take_bytes(&mut rest)?);
    let words = usize::from(u16::from_le_bytes(take_bytes(&mut rest)?));
    if fingerprint == 0 {
        Err("a fingerprint is zero")
    } else if words > WORDS_MAX {
        Err("a record has more than 4096 words")
    // OVERFLOW: words is at most WORDS_MAX.
    } else if rest.len() < 8 * words {
        Err("a record is cut off")
    } else {
        Ok((Record { fingerprint, kind }, RECORD_HEAD + 8 * words))
    }
}

/// Bytes with their running checksum and their place in the file.
#[derive(Debug)]
struct Stream<R> {
    path: PathBuf,
    source: R,
    sum: Checksum,
    offset: u64,
}

impl<R: Read> Stream<R> {
    fn take_head(&mut self) -> Result<Head, SnapshotError> {
        self.take_magic()?;
        let version = u32::from_le_bytes(self.take()?);
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length > HEAD_MAX {
            return Err(self.damaged(0, "the head is longer than 1 MiB"));
        }
        let body = self.take_up_to(length)?;
        if body.len() < length {
            return Err(self.damaged(self.offset, "the file ends early"));
        }
        self.count(&body);
        self.take_seal(0, "the checksum of the head is wrong")?;
        match version {
            // OVERFLOW: FRAME and a place in the head are small.
            VERSION => {
                Head::decode(&body).map_err(|(at, why)| self.damaged(FRAME as u64 + at, why))
            }
            found if found > VERSION => {
                Err(SnapshotError::new(&self.path, Kind::Newer { found, known: VERSION }))
            }
            _ => Err(self.damaged(0, "no older format version is read")),
        }
    }

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

    /// Reads a checksum and holds the bytes before it to it; `start` is where they began.
    fn take_seal(&mut self, start: u64, why: &'static str) -> Result<(), SnapshotError> {
        let sum = self.sum.sum();
        if u64::from_le_bytes(self.take()?) == sum { Ok(()) } else { Err(self.damaged(start, why)) }
    }

    fn expect_end(&mut self) -> Result<(), SnapshotError> {
        if self.take_up_to(1)?.is_empty() {
            Ok(())
        } else {
            Err(self.damaged(self.offset, "bytes follow the end of the snapshot"))
        }
    }

    /// Returns the next bytes, fewer if the file ends. Memory grows as they arrive, not to what a length says.
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
