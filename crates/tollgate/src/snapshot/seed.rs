//! The file that keeps the secret seed between two runs, without which a snapshot is of no use.
//!
//! One line of 66 bytes: `tollgate-seed-1 `, the 128 bits as 32 hexadecimal digits, a space, the
//! checksum of all before it as 16 digits, a newline. It is text, so that it can be handed over as
//! a secret; anyone who reads it can search for keys that share a budget.

use super::{
    Checksum,
    error::{Kind, Role, SnapshotError},
    temporary::{Disk, Real, Temporary, open_regular, split, sweep},
};
use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::Path,
};

const MAGIC: &str = "tollgate-seed-";
const VERSION: u32 = 1;
const LENGTH: usize = 66;

/// The file of the seed.
#[derive(Debug)]
pub(crate) struct SeedFile;

impl SeedFile {
    /// Returns the seed in the file; draws one and writes it, for its owner only, if there is none.
    ///
    /// # Errors
    ///
    /// When the file is open to others than its owner, damaged, empty or something else, or when
    /// the system refuses a step. No seed is used then.
    ///
    /// # Concurrency
    ///
    /// Processes that start at once agree on one seed.
    pub(crate) fn load_or_create(path: &Path) -> Result<(u64, u64), SnapshotError> {
        Self::load_or_create_on(Real, path)
    }

    pub(super) fn load_or_create_on(
        mut disk: impl Disk,
        path: &Path,
    ) -> Result<(u64, u64), SnapshotError> {
        match Self::load(path) {
            Err(error) if error.is_missing() => {}
            Ok(seed) => {
                // A process that finds a seed creates no file, and so would not clean up otherwise.
                if let Ok((directory, name)) = split(path) {
                    sweep(&directory, &name, &mut disk);
                }
                return Ok(seed);
            }
            refused => return refused,
        }
        let seed = draw();
        let mut temporary = Temporary::create(path, disk)?;
        temporary.write(encode(seed).as_bytes())?;
        if temporary.publish()? { Ok(seed) } else { Self::load(path) }
    }

    /// Returns the seed in the file.
    pub(crate) fn load(path: &Path) -> Result<(u64, u64), SnapshotError> {
        let file = open_regular(path)?;
        let refuse = |kind| SnapshotError::new(path, kind);
        check_closed(&file).map_err(SnapshotError::io(path, "look at"))?.map_err(refuse)?;
        let mut bytes = Vec::with_capacity(LENGTH + 1);
        file.take(LENGTH as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(SnapshotError::io(path, "read"))?;
        decode(&bytes).map_err(refuse)
    }
}

/// Refuses a file that others may touch: it was never secret, or is not to be relied on.
fn check_closed(file: &File) -> io::Result<Result<(), Kind>> {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata()?.permissions());
        if mode & 0o077 != 0 {
            return Ok(Err(Kind::TooOpen { mode: mode & 0o7777 }));
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(Ok(()))
}

fn encode((k0, k1): (u64, u64)) -> String {
    let line = format!("{MAGIC}{VERSION} {k0:016x}{k1:016x} ");
    format!("{line}{:016x}\n", checksum(&line))
}

/// Reads what [`encode`] wrote. Errors carry no byte of the file: it may be another secret.
pub(super) fn decode(bytes: &[u8]) -> Result<(u64, u64), Kind> {
    let role = Role::Seed;
    let Some(rest) = bytes.strip_prefix(MAGIC.as_bytes()) else {
        let found = match bytes {
            [] => "is empty".to_owned(),
            _ => format!("does not begin with {MAGIC:?}"),
        };
        return Err(Kind::Foreign { role, found });
    };
    let (at, why) = (MAGIC.len() as u64, "the line is cut off, too long, or not what was written");
    let damaged = Kind::Damaged { role, at, why };
    let Ok(rest) = std::str::from_utf8(rest) else { return Err(damaged) };
    let version = rest.split(' ').next().and_then(|version| version.parse().ok());
    if let Some(found) = version.filter(|found| *found > VERSION) {
        return Err(Kind::Newer { found, known: VERSION });
    }
    // Reading leniently and printing strictly: what does not print as it was read is refused.
    let digits = |from: usize| {
        rest.get(from..from + 16).and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    match (digits(2), digits(18)) {
        (Some(k0), Some(k1)) if bytes == encode((k0, k1)).as_bytes() => Ok((k0, k1)),
        _ => Err(damaged),
    }
}

fn checksum(line: &str) -> u64 {
    let mut sum = Checksum::new();
    sum.write(line.as_bytes());
    sum.sum()
}

/// Draws a seed from the system, or, where it has no such file, from what seeds the maps of the
/// standard library.
fn draw() -> (u64, u64) {
    let mut bytes = [[0; 8]; 2];
    let drawn = File::open("/dev/urandom").and_then(|mut source| {
        source.read_exact(&mut bytes[0])?;
        source.read_exact(&mut bytes[1])
    });
    match drawn {
        Ok(()) => (u64::from_le_bytes(bytes[0]), u64::from_le_bytes(bytes[1])),
        Err(_) => {
            let word = || RandomState::new().hash_one(0_u64);
            (word(), word())
        }
    }
}
