//! The format: what is written is read, and nothing else is.

mod crash;
#[cfg(unix)]
mod kill;
mod seed;

use super::{temporary::Disk, *};
use proptest::prelude::*;
use std::{
    fs,
    io::{self, Cursor},
    path::PathBuf,
    process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

const SCHEME: &str = "siphash-1-3/64 canonical-1";
const SEED: (u64, u64) = (1, 2);

/// A record and its words.
type Entry = (u64, u16, Vec<u64>);

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed; only the number has to be used once.
        let name = format!("tollgate-snapshot-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("state.snapshot")
    }

    /// Returns the names in the directory, in order.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Held while a test gives up the lock of a file, and while another starts a process: a child has
/// its parent's open files, and so their locks, until it becomes another program.
fn no_fork() -> MutexGuard<'static, ()> {
    static FORK: Mutex<()> = Mutex::new(());
    FORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk that does not wait for the hardware.
struct Quick;

impl Disk for Quick {
    fn sync(&mut self, _: &fs::File) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

fn head() -> Head {
    Head {
        scheme: SCHEME.to_owned(),
        seed_check: seed_check(SEED),
        wall_ns: 1_700_000_000_000_000_000,
    }
}

fn entries() -> Vec<Entry> {
    vec![(0x1122_3344_5566_7788, 0, vec![42]), (u64::MAX, 1, vec![1, 2, 3]), (5, 1, vec![])]
}

fn write(path: &Path, head: &Head, entries: &[Entry]) -> Result<u64, SnapshotError> {
    write_on(Quick, path, head, entries)
}

fn write_on(
    disk: impl Disk,
    path: &Path,
    head: &Head,
    entries: &[Entry],
) -> Result<u64, SnapshotError> {
    let mut writer = Writer::create_on(disk, path, head)?;
    for (fingerprint, kind, words) in entries {
        writer.record(*fingerprint, *kind, words)?;
    }
    writer.finish()
}

fn drain<R: io::Read + io::Seek>(reader: &mut Reader<R>) -> Result<Vec<Entry>, SnapshotError> {
    let (mut words, mut entries) = (vec![7], Vec::new());
    while let Some(record) = reader.next_record(&mut words)? {
        entries.push((record.fingerprint, record.kind, words.clone()));
    }
    Ok(entries)
}

fn read(path: &Path) -> Result<(Head, Vec<Entry>), SnapshotError> {
    let mut reader = Reader::open(path)?;
    let entries = drain(&mut reader)?;
    Ok((reader.head().clone(), entries))
}

fn small_file() -> Vec<u8> {
    let scratch = Scratch::new();
    write(&scratch.file(), &head(), &entries()).unwrap();
    fs::read(scratch.file()).unwrap()
}

fn open_bytes(bytes: &[u8]) -> Result<Reader<Cursor<&[u8]>>, SnapshotError> {
    Reader::from_source(Path::new("bytes"), Cursor::new(bytes))
}

/// Adds the checksum that the format has after these bytes.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut sum = Checksum::new();
    sum.write(&bytes);
    bytes.extend(sum.sum().to_le_bytes());
    bytes
}

fn sealed_head(version: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    seal([&MAGIC[..], &version.to_le_bytes(), &length.to_le_bytes(), body].concat())
}

/// A file whose checksums are right, whatever is in it.
fn sealed(body: &[u8], blocks: &[&[u8]], count: u64) -> Vec<u8> {
    let mut bytes = sealed_head(VERSION, body);
    for block in blocks {
        bytes.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        bytes.extend(*block);
        bytes = seal(bytes);
    }
    bytes.extend([0; 4]);
    bytes.extend(count.to_le_bytes());
    seal(bytes)
}

fn record_bytes(fingerprint: u64, kind: u16, count: u16, words: usize) -> Vec<u8> {
    let mut bytes = fingerprint.to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(vec![9; 8 * words]);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(
        scheme in ".{0,40}",
        numbers in any::<(u64, u64)>(),
        records in prop::collection::vec(
            (1..=u64::MAX, any::<u16>(), prop_oneof![
                9 => prop::collection::vec(any::<u64>(), 0..4),
                1 => (any::<u64>(), 0..=WORDS_MAX).prop_map(|(word, n)| vec![word; n]),
            ]),
            0..60,
        ),
    ) {
        let (head, entries): (_, Vec<Entry>) =
            (Head { scheme, seed_check: numbers.0, wall_ns: numbers.1 }, records);
        let scratch = Scratch::new();
        prop_assert_eq!(write(&scratch.file(), &head, &entries).unwrap(), entries.len() as u64);
        prop_assert_eq!(read(&scratch.file()).unwrap(), (head, entries));
        prop_assert_eq!(scratch.names(), ["state.snapshot"]);
    }
}

/// The bytes of this file were made by another program from the table in the module's doc, with
/// a SipHash of its own. They must stay readable for ever.
#[test]
fn the_format_is_what_the_table_says() {
    let hex = [
        "895447534e41500a020000002c000000d347548f5102d0e900002a36fe9c97171a00736970686173",
        "682d312d332f36342063616e6f6e6963616c2d316120b2c5f5b80686440000008877665544332211",
        "000001002a00000000000000ffffffffffffffff0100030001000000000000000200000000000000",
        "0300000000000000050000000000000001000000d70fb6cfcd3d8e4c000000000300000000000000",
        "a2fa95ee31779c4e",
    ]
    .concat();
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let golden: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
    assert_eq!(small_file(), golden);
    let mut reader = open_bytes(&golden).unwrap();
    assert_eq!((reader.head(), reader.records()), (&head(), 3));
    assert_eq!(drain(&mut reader).unwrap(), entries());
    assert_eq!(reader.next_record(&mut Vec::new()).unwrap(), None);
}

#[test]
fn every_changed_byte_is_refused() {
    let sound = small_file();
    for at in 0..sound.len() {
        for mask in 1..=255 {
            let mut bytes = sound.clone();
            bytes[at] ^= mask;
            let error = open_bytes(&bytes).expect_err("a changed byte");
            let expected = if at < 8 { error.is_foreign() } else { error.is_damaged() };
            assert!(expected, "byte {at} xor {mask}: {error}");
        }
    }
}

#[test]
fn every_cut_and_every_addition_is_refused() {
    let sound = small_file();
    for length in 0..sound.len() {
        let error = open_bytes(&sound[..length]).expect_err("a cut");
        let expected = if length == 0 { error.is_foreign() } else { error.is_damaged() };
        assert!(expected, "cut to {length}: {error}");
        let mut longer = sound.clone();
        longer.insert(length, sound[length]);
        open_bytes(&longer).expect_err("an added byte");
        let mut shorter = sound.clone();
        shorter.remove(length);
        open_bytes(&shorter).expect_err("a removed byte");
    }
    for more in [&b"\0"[..], &sound] {
        let error = open_bytes(&[&sound, more].concat()).expect_err("bytes after the end");
        assert!(error.is_damaged(), "{error}");
    }
}

#[test]
fn nonsense_with_right_checksums_is_refused() {
    let body = head().encode().unwrap();
    let good = record_bytes(1, 1, 2, 2);
    let no_scheme = [&[0; 16][..], &[0]].concat();
    let not_text = [&[0; 16][..], &[1, 0, 0xff]].concat();
    let after = [&body[..], &[0]].concat();
    let long = vec![1; BLOCK_MAX + 12];
    // file, what it says
    for (row, (bytes, why)) in [
        (sealed(&after, &[], 0), "bytes after the head"),
        (sealed(&no_scheme, &[], 0), "a number is cut off"),
        (sealed(&not_text, &[], 0), "a text is not UTF-8"),
        (sealed(&body[..body.len() - 1], &[], 0), "a text is cut off"),
        (sealed(&vec![0; HEAD_MAX + 1], &[], 0), "the head is longer"),
        (sealed_head(VERSION - 1, &body), "no older format version is read"),
        (sealed(&body, &[&long], 5_462), "a block is longer"),
        (sealed(&body, &[&record_bytes(0, 1, 2, 2)], 1), "a fingerprint is zero"),
        (sealed(&body, &[&record_bytes(1, 1, 4_097, 4_097)], 1), "more than 4096 words"),
        (sealed(&body, &[&record_bytes(1, 1, 3, 2)], 1), "a record is cut off"),
        (sealed(&body, &[&good[..11]], 1), "a number is cut off"),
        (sealed(&body, &[&good, &[7]], 1), "a number is cut off"),
        (sealed(&body, &[&good, &good], 1), "the number of records"),
        (sealed(&body, &[&good], 2), "the number of records"),
        (sealed(&body, &[], u64::MAX), "the number of records"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = open_bytes(&bytes).expect_err(why);
        assert!(error.is_damaged() && error.to_string().contains(why), "row {row}: {error}");
    }
    assert!(open_bytes(&sealed_head(VERSION + 1, b"whatever comes")).unwrap_err().is_newer());
    assert_eq!(open_bytes(&sealed(&body, &[&good, &good], 2)).unwrap().records(), 2);
}

#[test]
fn a_block_in_another_place_is_refused() {
    let body = head().encode().unwrap();
    let (one, two) = (record_bytes(1, 0, 1, 1), record_bytes(2, 0, 1, 1));
    let sound = sealed(&body, &[&one, &two], 2);
    open_bytes(&sound).unwrap();
    let (rest, trailer) = sound.split_at(sound.len() - 20);
    let (rest, two) = rest.split_at(rest.len() - (4 + two.len() + 8));
    let (start, one) = rest.split_at(rest.len() - (4 + one.len() + 8));
    for blocks in [[two, one], [one, one], [two, two]] {
        let error = open_bytes(&[start, blocks[0], blocks[1], trailer].concat()).unwrap_err();
        assert!(error.to_string().contains("the checksum of a block is wrong"), "{error}");
    }
}

#[test]
fn blocks_are_filled_to_the_last_byte_and_no_further() {
    // 2 x (12 + 8 x 4,093) + 12 = 65,524, so that one more record without words fills the block.
    let exact = vec![(1, 0, vec![1; 4_093]), (2, 0, vec![2; 4_093]), (3, 0, vec![])];
    let scratch = Scratch::new();
    let lengths = |entries: &[Entry]| {
        write(&scratch.file(), &head(), entries).unwrap();
        assert_eq!(read(&scratch.file()).unwrap().1, entries);
        let bytes = fs::read(scratch.file()).unwrap();
        let (mut at, mut lengths) = (FRAME + head().encode().unwrap().len() + 8, Vec::new());
        loop {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            lengths.push(length);
            if length == 0 {
                return lengths;
            }
            at += 4 + length + 8;
        }
    };
    assert_eq!(lengths(&exact), [65_524, 0]);
    let full = [&exact[..], &[(4, 0, vec![])]].concat();
    assert_eq!(lengths(&full), [65_536, 0]);
    assert_eq!(lengths(&[&full[..], &[(5, 0, vec![])]].concat()), [65_536, 12, 0]);
    let longest: Vec<Entry> = (1..6).map(|n| (n, 1, vec![n; WORDS_MAX])).collect();
    assert_eq!(lengths(&longest), [32_780; 5].into_iter().chain([0]).collect::<Vec<_>>());
}

#[test]
fn a_file_altered_after_it_was_opened_yields_no_wrong_record() {
    let scratch = Scratch::new();
    let entries: Vec<Entry> = (1..4).map(|n| (n, 0, vec![n; WORDS_MAX])).collect();
    write(&scratch.file(), &head(), &entries).unwrap();
    let mut bytes = fs::read(scratch.file()).unwrap();
    let at = bytes.len() - 1_000;
    bytes[at] ^= 1;
    let mut reader = Reader::open(&scratch.file()).unwrap();
    // In place, as no writer of ours does it.
    fs::write(scratch.file(), &bytes).unwrap();
    let mut words = Vec::new();
    for n in 1..3 {
        let record = reader.next_record(&mut words).unwrap().unwrap();
        assert_eq!((record.fingerprint, words[0]), (n, n));
    }
    for _ in 0..3 {
        assert!(reader.next_record(&mut words).unwrap_err().is_damaged());
        assert!(words.is_empty());
    }
}

#[test]
fn a_writer_refuses_what_the_format_cannot_hold() {
    let scratch = Scratch::new();
    let mut writer = Writer::create_on(Quick, &scratch.file(), &head()).unwrap();
    // fingerprint, words, what it says
    for (row, (fingerprint, words, why)) in [
        (0, 1, "cannot hold fingerprint 0;"),
        (1, 4_097, "cannot hold a record of 4097 words;"),
        (1, 65_537, "cannot hold a record of 65537 words;"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = writer.record(fingerprint, 0, &vec![0; words]).unwrap_err();
        assert!(error.to_string().contains(why), "row {row}: {error}");
    }
    // They are left out, and the rest goes on.
    writer.record(1, 0, &[]).unwrap();
    assert_eq!(writer.finish().unwrap(), 1);
    assert_eq!(read(&scratch.file()).unwrap().1, [(1, 0, vec![])]);

    let head = Head { scheme: "a".repeat(65_536), ..head() };
    let error = write(&scratch.file(), &head, &[]).unwrap_err();
    assert!(error.to_string().contains("cannot hold"), "{error}");
    assert_eq!(scratch.names(), ["state.snapshot"]);
}

#[test]
fn a_snapshot_of_another_seed_or_scheme_is_refused() {
    let bytes = small_file();
    let reader = open_bytes(&bytes).unwrap();
    reader.expect(SCHEME, SEED).unwrap();
    let error = reader.expect(SCHEME, (1, 3)).unwrap_err();
    assert!(error.is_wrong_seed() && error.to_string().contains("another seed"), "{error}");
    let error = reader.expect("blake3/64", SEED).unwrap_err();
    assert!(error.is_unknown_scheme() && error.to_string().contains("\"blake3/64\""), "{error}");
}

#[test]
fn errors_name_the_file_and_a_way_out() {
    fn send_and_sync<T: Send + Sync + 'static>() {}
    send_and_sync::<SnapshotError>();
    let scratch = Scratch::new();
    let error = Reader::open(&scratch.file()).unwrap_err();
    assert!(error.is_missing() && error.is_io() && std::error::Error::source(&error).is_some());
    assert!(error.to_string().starts_with("cannot open"), "{error}");
    assert_eq!(error.path(), scratch.file());

    let error = Reader::open(&scratch.0).unwrap_err();
    assert!(error.is_foreign() && error.to_string().contains("not a regular file"), "{error}");
    let error = Writer::create(&scratch.0, &head()).unwrap_err();
    assert!(error.is_foreign(), "{error}");
    let error = Writer::create(&scratch.0.join("none").join("file"), &head()).unwrap_err();
    assert!(error.is_missing(), "{error}");
    assert!(Writer::create(Path::new(""), &head()).unwrap_err().is_io());

    fs::write(scratch.file(), "{\"keys\": []}").unwrap();
    let error = Reader::open(&scratch.file()).unwrap_err();
    let text = error.to_string();
    assert!(error.is_foreign() && text.contains(r#"begins with "{\"keys\":";"#), "{text}");
    for part in [&*scratch.file().to_string_lossy(), "not a tollgate snapshot", "correct the path"]
    {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
#[ignore = "a generator: writes the seeds of fuzz/snapshot_file.rs"]
fn write_fuzz_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/snapshot_file");
    fs::create_dir_all(&seeds).unwrap();
    let (one, two) = (record_bytes(1, 0, 1, 1), record_bytes(2, 1, 3, 3));
    let blocks = sealed(&head().encode().unwrap(), &[&one, &two, &one], 3);
    let empty = Head { scheme: String::new(), ..head() };
    write(&seeds.join("small"), &head(), &entries()).unwrap();
    fs::write(seeds.join("blocks"), blocks).unwrap();
    write(&seeds.join("empty"), &empty, &[]).unwrap();
}
