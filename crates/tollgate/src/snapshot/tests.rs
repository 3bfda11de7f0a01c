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

/// The bytes of a head.
fn head_bytes(version: u32, scheme: &[u8]) -> Vec<u8> {
    let length = u16::try_from(scheme.len()).unwrap().to_le_bytes();
    let numbers = [head().seed_check.to_le_bytes(), head().wall_ns.to_le_bytes()].concat();
    [&MAGIC[..], &version.to_le_bytes(), &numbers, &length, scheme].concat()
}

/// A file whose checksum is right, whatever is in it.
fn sealed(records: &[&[u8]]) -> Vec<u8> {
    let records = records.concat();
    seal([&head_bytes(VERSION, SCHEME.as_bytes())[..], &records, &[0; 8]].concat())
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
        "895447534e41500a03000000d347548f5102d0e900002a36fe9c97171a00736970686173682d312d",
        "332f36342063616e6f6e6963616c2d318877665544332211000001002a00000000000000ffffffff",
        "ffffffff010003000100000000000000020000000000000003000000000000000500000000000000",
        "010000000000000000000000592e9a5dd16cf30d",
    ]
    .concat();
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let golden: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
    assert_eq!(small_file(), golden);
    let mut reader = open_bytes(&golden).unwrap();
    assert_eq!((reader.head(), reader.records()), (&head(), 3));
    assert_eq!(drain(&mut reader).unwrap(), entries());
}

#[test]
fn every_changed_byte_is_refused() {
    let sound = small_file();
    for at in 0..sound.len() {
        for mask in 1..=255 {
            let mut bytes = sound.clone();
            bytes[at] ^= mask;
            let error = open_bytes(&bytes).expect_err("a changed byte");
            let expected = match at {
                0..8 => error.is_foreign(),
                // A greater version, or a smaller one.
                8..12 => error.is_newer() || error.is_damaged(),
                _ => error.is_damaged(),
            };
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
fn nonsense_with_a_right_checksum_is_refused() {
    let good = record_bytes(1, 1, 2, 2);
    let not_text = seal([&head_bytes(VERSION, &[0xff])[..], &[0; 8]].concat());
    let older = seal([&head_bytes(VERSION - 1, b"x")[..], &[0; 8]].concat());
    // file, what it says
    for (row, (bytes, why)) in [
        (not_text, "the scheme is not UTF-8"),
        (older, "no older format version is read"),
        (seal(head_bytes(VERSION, b"x")[..20].to_vec()), "the file ends early"),
        (sealed(&[&record_bytes(0, 1, 2, 2)]), "the checksum is wrong"),
        (sealed(&[&record_bytes(1, 1, 4_097, 4_097)]), "more than 4096 words"),
        (sealed(&[&record_bytes(1, 1, 3, 2)]), "the file ends early"),
        (sealed(&[&good[..11]]), "the file ends early"),
        (sealed(&[&good, &[0; 8]]), "the checksum is wrong"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = open_bytes(&bytes).expect_err(why);
        assert!(error.is_damaged() && error.to_string().contains(why), "row {row}: {error}");
    }
    let newer = head_bytes(VERSION + 1, b"whatever comes");
    assert!(open_bytes(&newer).unwrap_err().is_newer());
    assert_eq!(open_bytes(&sealed(&[&good, &good])).unwrap().records(), 2);
}

#[test]
fn a_record_in_another_place_is_refused() {
    let (one, two) = (record_bytes(1, 0, 1, 1), record_bytes(2, 0, 1, 1));
    let sound = sealed(&[&one, &two]);
    open_bytes(&sound).unwrap();
    let (rest, end) = sound.split_at(sound.len() - 16);
    let start = &rest[..rest.len() - one.len() - two.len()];
    for records in [[&two, &one], [&one, &one], [&two, &two]] {
        let error = open_bytes(&[start, records[0], records[1], end].concat()).unwrap_err();
        assert!(error.to_string().contains("the checksum is wrong"), "{error}");
    }
}

#[test]
fn states_longer_than_the_buffer_are_written_whole() {
    let scratch = Scratch::new();
    for longest in 1..6 {
        let entries: Vec<Entry> = (1..=longest).map(|n| (n, 1, vec![n; WORDS_MAX])).collect();
        write(&scratch.file(), &head(), &entries).unwrap();
        assert_eq!(read(&scratch.file()).unwrap().1, entries);
    }
}

#[test]
fn a_file_altered_after_it_was_opened_is_refused_at_its_end() {
    let scratch = Scratch::new();
    let entries: Vec<Entry> = (1..4).map(|n| (n, 0, vec![n; WORDS_MAX])).collect();
    write(&scratch.file(), &head(), &entries).unwrap();
    let mut bytes = fs::read(scratch.file()).unwrap();
    let at = bytes.len() - 1_000;
    bytes[at] ^= 1;
    let mut reader = Reader::open(&scratch.file()).unwrap();
    // In place, as no writer of ours does it.
    fs::write(scratch.file(), &bytes).unwrap();
    assert!(drain(&mut reader).unwrap_err().is_damaged());
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
    let empty = Head { scheme: String::new(), ..head() };
    write(&seeds.join("small"), &head(), &entries()).unwrap();
    fs::write(seeds.join("records"), sealed(&[&one, &two, &one])).unwrap();
    write(&seeds.join("empty"), &empty, &[]).unwrap();
}
