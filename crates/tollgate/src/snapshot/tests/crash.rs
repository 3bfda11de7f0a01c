//! A writer that stops at every byte and between all steps.

use super::*;
use std::fs::File;

/// A disk that stands still after so many bytes and steps, as when the process was killed.
struct Failing {
    left: usize,
    written: Written,
}

#[derive(PartialEq)]
enum Written {
    Nothing,
    /// Bytes that a power cut would take.
    Cached,
    Durable,
    /// A new name that a power cut would take.
    Named,
}

impl Failing {
    fn after(left: usize) -> Self {
        Self { left, written: Written::Nothing }
    }

    fn step(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("killed"))?;
        Ok(())
    }
}

impl Disk for Failing {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.written = Written::Cached;
        let most = self.left.min(bytes.len());
        Quick.write(file, &bytes[..most])?;
        self.left -= most;
        if most < bytes.len() { self.step() } else { Ok(()) }
    }

    fn sync(&mut self, _: &File) -> io::Result<()> {
        self.step()?;
        self.written = Written::Durable;
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        assert!(self.written == Written::Durable, "renamed before the bytes were on the disk");
        self.step()?;
        self.written = Written::Named;
        Quick.rename(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        assert!(self.written == Written::Durable, "linked before the bytes were on the disk");
        self.step()?;
        self.written = Written::Named;
        Quick.link(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        Quick.remove(path)
    }

    fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
        assert!(self.written == Written::Named, "the directory has nothing new");
        self.step()
    }
}

fn version(n: u64) -> (Head, Vec<Entry>) {
    let entries = entries().into_iter().map(|(print, kind, _)| (print, kind, vec![n; 2]));
    (Head { wall_ns: n, ..head() }, entries.collect())
}

#[test]
fn a_crash_at_any_point_leaves_the_old_or_the_new_snapshot() {
    let _held = no_fork();
    let scratch = Scratch::new();
    let path = scratch.file();
    let (old, new, next) = (version(1), version(2), version(3));
    for first in [true, false] {
        let (mut kept, mut replaced, mut left_over) = (0, 0, 0);
        for left in 0.. {
            let _ = fs::remove_file(&path);
            if !first {
                write(&path, &old.0, &old.1).unwrap();
            }
            let written = write_on(Failing::after(left), &path, &new.0, &new.1);
            match read(&path) {
                Ok(found) if found == new => replaced += 1,
                Ok(found) => assert!(written.is_err() && found == old, "stopped after {left}"),
                Err(error) => assert!(written.is_err() && first && error.is_missing(), "{error}"),
            }
            kept += usize::from(written.is_err());
            left_over += usize::from(scratch.names().len() > usize::from(path.exists()));
            // The next one removes what was left, and is not in its way.
            write(&path, &next.0, &next.1).unwrap();
            assert_eq!(read(&path).unwrap(), next, "stopped after {left}");
            assert_eq!(scratch.names(), ["state.snapshot"], "stopped after {left}");
            if written.is_ok() {
                break;
            }
        }
        // Every byte and three steps; the last of them comes when the new name is there.
        let steps = fs::read(&path).unwrap().len() + 3;
        assert_eq!((kept, left_over, replaced), (steps, steps - 1, 2));
    }
}

#[test]
fn a_crash_at_any_point_leaves_no_seed_or_a_good_one() {
    let _held = no_fork();
    let scratch = Scratch::new();
    let path = scratch.file();
    // More than the 66 bytes and the four steps; the last, the removal of the temporary file, is
    // the next one's to mend when it fails.
    for left in 0..80 {
        let _ = fs::remove_file(&path);
        let made = SeedFile::load_or_create_on(Failing::after(left), &path);
        let kept = SeedFile::load(&path);
        let seed = SeedFile::load_or_create_on(Quick, &path).unwrap();
        match kept {
            Ok(kept) => assert_eq!(kept, seed, "stopped after {left}"),
            Err(error) => assert!(made.is_err() && error.is_missing(), "{error}"),
        }
        assert_eq!(scratch.names(), ["state.snapshot"], "stopped after {left}");
        assert_eq!(made.is_ok(), left >= 69, "stopped after {left}");
    }
}

#[test]
fn dropping_an_unfinished_writer_leaves_nothing() {
    let scratch = Scratch::new();
    let mut writer = Writer::create(&scratch.file(), &head()).unwrap();
    writer.record(1, 0, &[2]).unwrap();
    assert_eq!(scratch.names().len(), 1);
    drop(writer);
    assert!(scratch.names().is_empty());
}

/// A disk that is full for a while.
struct FullOnce {
    writes: u32,
}

impl Disk for FullOnce {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.writes += 1;
        if self.writes == 1 {
            Quick.write(file, &bytes[..bytes.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Quick.write(file, bytes)
    }
}

#[test]
fn a_writer_that_failed_once_never_replaces_the_old_snapshot() {
    let scratch = Scratch::new();
    write(&scratch.file(), &head(), &entries()).unwrap();
    let mut writer =
        Writer::create_on(FullOnce { writes: 0 }, &scratch.file(), &version(2).0).unwrap();
    let words = vec![1; WORDS_MAX];
    writer.record(1, 0, &words).unwrap();
    assert!(writer.record(2, 0, &words).unwrap_err().is_io());
    // The caller goes on as if nothing had happened.
    for n in 3..6 {
        let _ = writer.record(n, 0, &words);
    }
    let error = writer.finish().unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("an earlier write"), "{source}");
    assert_eq!(read(&scratch.file()).unwrap(), (head(), entries()));
    assert_eq!(scratch.names(), ["state.snapshot"]);
}

#[test]
fn writers_at_the_same_time_do_not_disturb_each_other() {
    let scratch = Scratch::new();
    let path = &scratch.file();
    std::thread::scope(|scope| {
        for thread in 1..5 {
            scope.spawn(move || {
                let (head, entries) = version(thread);
                for _ in 0..50 {
                    write(path, &head, &entries).unwrap();
                    let found = read(path).unwrap();
                    assert_eq!(found, version(found.0.wall_ns));
                }
            });
        }
    });
    assert_eq!(scratch.names(), ["state.snapshot"]);
}

#[test]
fn only_left_overs_of_the_same_target_are_removed() {
    let _held = no_fork();
    let scratch = Scratch::new();
    let live = Writer::create(&scratch.file(), &head()).unwrap();
    let foreign = [
        ".state.snapshot.12-3.tmp",
        ".state.snapshot.12-.tollgate-tmp",
        ".state.snapshot.x-3.tollgate-tmp",
        ".state.snapshot.old.12-3.tollgate-tmp",
        ".other.12-3.tollgate-tmp",
        "state.snapshot.12-3.tollgate-tmp",
    ];
    for name in foreign {
        fs::write(scratch.0.join(name), "").unwrap();
    }
    fs::create_dir(scratch.0.join(".state.snapshot.12-4.tollgate-tmp")).unwrap();
    let left_over = scratch.0.join(".state.snapshot.12-3.tollgate-tmp");
    fs::write(&left_over, "half a head").unwrap();
    write(&scratch.file(), &head(), &entries()).unwrap();
    assert!(!left_over.exists());
    assert_eq!(scratch.names().len(), foreign.len() + 3, "{:?}", scratch.names());
    live.finish().unwrap();
    assert_eq!(read(&scratch.file()).unwrap().1, []);
}

#[cfg(unix)]
#[test]
fn a_file_is_claimed_once_and_only_under_its_name() {
    use super::super::temporary::{Claim, claim};
    let _held = no_fork();
    let scratch = Scratch::new();
    let path = &scratch.file();
    let first = File::create_new(path).unwrap();
    assert_eq!(claim(&first, path), Claim::Held);
    let again = File::open(path).unwrap();
    assert_eq!(claim(&again, path), Claim::Lost);
    drop(first);
    // Another sweeper was faster, and another maker has taken the name.
    fs::remove_file(path).unwrap();
    assert_eq!(claim(&again, path), Claim::Lost);
    let second = File::create_new(path).unwrap();
    assert_eq!(claim(&again, path), Claim::Lost);
    assert_eq!(claim(&second, path), Claim::Held);
}

#[cfg(unix)]
#[test]
fn files_are_for_their_owner_and_links_are_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let scratch = Scratch::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fs::write(scratch.file(), "").unwrap();
    fs::set_permissions(scratch.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let link = scratch.0.join("link");
    symlink("state.snapshot", &link).unwrap();
    let writer = Writer::create(&link, &head()).unwrap();
    for name in scratch.names().iter().filter(|name| name.ends_with("-tmp")) {
        assert_eq!(mode(&scratch.0.join(name)), 0o600, "{name}");
    }
    writer.finish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(mode(&scratch.file()), 0o600);
    assert_eq!(read(&link).unwrap().0, head());

    let device = scratch.0.join("device");
    symlink("/dev/null", &device).unwrap();
    assert!(Writer::create(&device, &head()).unwrap_err().is_foreign());
    assert!(Reader::open(&device).unwrap_err().is_foreign());
}
