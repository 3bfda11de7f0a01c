//! The seed file.

use super::{super::seed::decode, *};
use std::sync::Barrier;

fn write_private(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn a_seed_is_drawn_once_and_kept() {
    let (scratch, other) = (Scratch::new(), Scratch::new());
    let seed = SeedFile::load_or_create(&scratch.file()).unwrap();
    assert_eq!(SeedFile::load_or_create(&scratch.file()).unwrap(), seed);
    assert_ne!(SeedFile::load_or_create(&other.file()).unwrap(), seed);
    assert_ne!(seed.0, seed.1);
    assert_eq!(scratch.names(), ["state.snapshot"]);
}

#[test]
fn the_format_is_one_line_of_text() {
    let scratch = Scratch::new();
    // Made by another program, with a SipHash of its own.
    let line = "tollgate-seed-1 00000000000000010000000000000002 c3473feb82200f01\n";
    write_private(&scratch.file(), line.as_bytes());
    assert_eq!(SeedFile::load_or_create(&scratch.file()).unwrap(), (1, 2));
}

#[test]
fn every_changed_byte_and_every_cut_of_a_seed_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.file();
    SeedFile::load_or_create_on(Quick, &path).unwrap();
    let sound = fs::read(&path).unwrap();
    let refuse = |bytes: &[u8]| {
        write_private(&path, bytes);
        let error = SeedFile::load_or_create(&path).expect_err("a damaged seed");
        assert!(error.is_damaged() || error.is_foreign() || error.is_newer(), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "the file was touched");
        error
    };
    for at in 0..sound.len() {
        for mask in 1..=255 {
            let mut bytes = sound.clone();
            bytes[at] ^= mask;
            decode(&bytes).expect_err("a changed byte");
        }
        refuse(&sound[..at]);
    }
    assert!(refuse(&[&sound[..], b"\n"].concat()).is_damaged());
    assert!(refuse(&sound.to_ascii_uppercase()).is_foreign());
}

#[test]
fn says_what_is_wrong_with_a_seed_file_and_prints_none_of_it() {
    let scratch = Scratch::new();
    // content, what it says
    for (row, (bytes, why)) in [
        (&b""[..], "not a tollgate seed file: it is empty"),
        (b"correct horse battery staple", "not a tollgate seed file: it does not begin with"),
        (b"tollgate", "not a tollgate seed file: it does not begin with"),
        (b"tollgate-seed-0 horse", "is damaged at byte 14: the line is cut off"),
        (b"tollgate-seed-horse", "is damaged at byte 14: the line is cut off"),
        (b"tollgate-seed-2 horse", "has format version 2, but this release reads up to 1"),
        (b"tollgate-seed-1 horse", "is damaged at byte 14: the line is cut off"),
        (b"tollgate-seed-1 horse\xff", "is damaged at byte 14: the line is cut off"),
    ]
    .into_iter()
    .enumerate()
    {
        write_private(&scratch.file(), bytes);
        let text = SeedFile::load_or_create(&scratch.file()).unwrap_err().to_string();
        assert!(text.contains(why) && !text.contains("horse"), "row {row}: {text}");
    }
    assert!(SeedFile::load_or_create(&scratch.0).unwrap_err().is_foreign());
}

#[cfg(unix)]
#[test]
fn a_seed_that_others_may_touch_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let path = scratch.file();
    SeedFile::load_or_create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = SeedFile::load_or_create(&path).unwrap_err();
        let text = error.to_string();
        assert!(error.is_too_open() && text.contains(&format!("mode 0{mode:o}")), "{text}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    SeedFile::load_or_create(&path).unwrap();
}

#[test]
fn threads_that_start_at_once_agree_on_a_seed() {
    for round in 0..50 {
        let scratch = Scratch::new();
        let (path, barrier) = (&scratch.file(), &Barrier::new(4));
        let mut seeds: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        barrier.wait();
                        SeedFile::load_or_create_on(Quick, path).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        seeds.dedup();
        assert_eq!(seeds.len(), 1, "round {round}");
        assert_eq!(scratch.names(), ["state.snapshot"]);
    }
}
