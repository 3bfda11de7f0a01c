//! A file that appears whole or not at all.
//!
//! The bytes go to a temporary file beside the target: `.NAME.PID-N.tollgate-tmp`, for the owner
//! only. Its maker holds a lock on it (`flock`), which the system lets go when the process dies,
//! however it dies. So a temporary file that can be locked is a left-over, and the next maker for
//! the same target removes it; process ids may be used again, or come from another container, and
//! prove nothing. Where the file system has no locks, left-overs stay.

use super::error::{Kind, SnapshotError};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

const SUFFIX: &str = ".tollgate-tmp";

/// Makers of one target at the same time in one process. More are a mistake, not a load.
const NAMES_MAX: u32 = 1_024;

/// The steps that change a disk. Tests stop at each of them.
pub(crate) trait Disk {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Makes names durable. Only Unix lets a directory be opened for this.
    fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
        if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
    }
}

/// The disk itself.
#[derive(Debug)]
pub(crate) struct Real;

impl Disk for Real {}

/// A file in the making; dropping it removes it.
#[derive(Debug)]
pub(super) struct Temporary<D: Disk> {
    file: File,
    path: PathBuf,
    target: PathBuf,
    directory: PathBuf,
    /// Set when the name is no longer ours to remove.
    gone: bool,
    disk: D,
}

impl<D: Disk> Temporary<D> {
    /// Starts a file that will appear at `target`, and removes what killed makers left.
    ///
    /// A symbolic link is followed: the file it names is the one replaced.
    pub(super) fn create(target: &Path, mut disk: D) -> Result<Self, SnapshotError> {
        let io = |step| SnapshotError::io(target, step);
        let resolved = resolve(target)?;
        let (directory, name) = split(&resolved).map_err(io("name a file beside"))?;
        sweep(&directory, &name, &mut disk);
        for n in 0..NAMES_MAX {
            let path = directory.join(temporary_name(&name, n));
            match create_private(&path) {
                Ok(file) if claim(&file, &path) != Claim::Lost => {
                    return Ok(Self { file, path, target: resolved, directory, gone: false, disk });
                }
                // A sweeper took it for a left-over before it was locked, and removes it.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io("create a temporary file beside")(error)),
            }
        }
        Err(io("create a temporary file beside")(io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.disk
            .write(&mut self.file, bytes)
            .map_err(SnapshotError::io(&self.target, "write a temporary file beside"))
    }

    /// Puts the file in the target's place. After an error the target is the old file, unless
    /// only the last step failed: then it is the new one, which may not outlive a power cut.
    pub(super) fn replace(mut self) -> Result<(), SnapshotError> {
        self.sync()?;
        self.disk
            .rename(&self.path, &self.target)
            .map_err(SnapshotError::io(&self.target, "replace with the new file"))?;
        self.gone = true;
        self.sync_directory()
    }

    /// Puts the file at the target unless there is one. Tells whether it did.
    pub(super) fn publish(mut self) -> Result<bool, SnapshotError> {
        self.sync()?;
        // A link fails where a rename would replace, so that of several makers one wins.
        let is_made = match self.disk.link(&self.path, &self.target) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => {
                let step = "link (on a file system that has hard links)";
                return Err(SnapshotError::io(&self.target, step)(error));
            }
        };
        // The other maker may not have come so far yet.
        self.sync_directory()?;
        Ok(is_made)
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        let step = "sync the temporary file beside";
        self.disk.sync(&self.file).map_err(SnapshotError::io(&self.target, step))
    }

    fn sync_directory(&mut self) -> Result<(), SnapshotError> {
        let step = "sync the directory of";
        self.disk.sync_directory(&self.directory).map_err(SnapshotError::io(&self.target, step))
    }
}

impl<D: Disk> Drop for Temporary<D> {
    fn drop(&mut self) {
        if !self.gone {
            // Nothing can be done about a failure here; the next maker tries again.
            let _ = self.disk.remove(&self.path);
        }
    }
}

/// Removes what killed makers left beside a target. Failures are for the next maker to mend.
pub(super) fn sweep(directory: &Path, name: &OsStr, disk: &mut impl Disk) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let regular = entry.file_type().is_ok_and(|file_type| file_type.is_file());
        if !regular || !is_temporary_name(&entry.file_name(), name) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = File::open(&path) else { continue };
        if claim(&file, &path) == Claim::Held {
            let _ = disk.remove(&path);
        }
    }
}

/// Splits a path into its directory and its name.
pub(super) fn split(path: &Path) -> io::Result<(PathBuf, OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok((directory.to_owned(), name.to_owned()))
}

/// Opens for reading what must be a regular file: opening a pipe would wait for its writer.
pub(super) fn open_regular(path: &Path) -> Result<File, SnapshotError> {
    let io = || SnapshotError::io(path, "open");
    if !fs::metadata(path).map_err(io())?.is_file() {
        return Err(SnapshotError::new(path, Kind::NotAFile));
    }
    File::open(path).map_err(io())
}

/// Follows symbolic links, and refuses to put a file in the place of a directory or a device.
fn resolve(target: &Path) -> Result<PathBuf, SnapshotError> {
    let io = || SnapshotError::io(target, "look at");
    let metadata = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(target.to_owned()),
        other => other.map_err(io())?,
    };
    let (resolved, metadata) = if metadata.is_symlink() {
        (fs::canonicalize(target).map_err(io())?, fs::metadata(target).map_err(io())?)
    } else {
        (target.to_owned(), metadata)
    };
    if metadata.is_file() { Ok(resolved) } else { Err(SnapshotError::new(target, Kind::NotAFile)) }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The lock is ours, and the path is this file.
    Held,
    /// Somebody else has the lock, or has removed the file.
    Lost,
    /// The file system has no locks.
    Unknown,
}

/// Locks a temporary file without waiting: for good, by its maker, or to remove it.
pub(super) fn claim(file: &File, path: &Path) -> Claim {
    match file.try_lock() {
        Ok(()) if is_at(file, path) => Claim::Held,
        Ok(()) | Err(TryLockError::WouldBlock) => Claim::Lost,
        Err(TryLockError::Error(_)) => Claim::Unknown,
    }
}

/// Tells whether the path still names this file. Only the lock's owner removes it, so that with
/// the lock the answer stays true.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }
    #[cfg(not(unix))]
    {
        ours.is_file() && there.is_file()
    }
}

fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn temporary_name(name: &OsStr, n: u32) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{n}{SUFFIX}", process::id()));
    temporary
}

/// Tells whether this is a name that [`temporary_name`] makes for `name`, in any process.
fn is_temporary_name(found: &OsStr, name: &OsStr) -> bool {
    let number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    (found.as_encoded_bytes().strip_prefix(b"."))
        .and_then(|rest| rest.strip_prefix(name.as_encoded_bytes()))
        .and_then(|rest| rest.strip_prefix(b"."))
        .and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()))
        .and_then(|rest| rest.iter().position(|&byte| byte == b'-').map(|at| rest.split_at(at)))
        // OVERFLOW: the second part begins with the dash.
        .is_some_and(|(process, rest)| number(process) && number(&rest[1..]))
}
