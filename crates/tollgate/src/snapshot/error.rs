//! What can be wrong with a snapshot or a seed file.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

/// Why a snapshot or a seed file cannot be read or written.
///
/// The text names the file, what was found, the rule and a way out; an error of the system is its
/// [`source`](Error::source). More reasons may come, so each has a method.
#[derive(Debug)]
pub struct SnapshotError {
    path: PathBuf,
    kind: Kind,
}

/// What a file is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Snapshot,
    Seed,
}

/// The reasons.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Something else than the file that was asked for; `found` describes it.
    Foreign { role: Role, found: String },
    /// A directory, a pipe, a device.
    NotAFile,
    /// A version that this build cannot read.
    Newer { found: u32, known: u32 },
    /// The right kind of file, with wrong bytes.
    Damaged { role: Role, at: u64, why: &'static str },
    /// Fingerprints made under another seed.
    WrongSeed,
    /// Fingerprints made in another way.
    UnknownScheme { found: String, expected: String },
    /// A secret that others may read.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has modes of files"))]
    TooOpen { mode: u32 },
    /// The system refused a step.
    Io { step: &'static str, source: io::Error },
}

impl SnapshotError {
    pub(crate) fn new(path: &Path, kind: Kind) -> Self {
        Self { path: path.to_owned(), kind }
    }

    /// Returns a closure that wraps the system's refusal of a step.
    pub(super) fn io(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::new(path, Kind::Io { step, source })
    }

    /// Returns the file it is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether there is no such file: nothing was ever written, or the path is wrong.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(&self.kind, Kind::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Tells whether the file is something else altogether, a directory or a device included.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self.kind, Kind::Foreign { .. } | Kind::NotAFile)
    }

    /// Tells whether a newer release wrote the file.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self.kind, Kind::Newer { .. })
    }

    /// Tells whether the file was cut off or altered.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(self.kind, Kind::Damaged { .. })
    }

    /// Tells whether the snapshot was made under another seed.
    #[must_use]
    pub fn is_wrong_seed(&self) -> bool {
        matches!(self.kind, Kind::WrongSeed)
    }

    /// Tells whether the snapshot's keys were hashed in a way that is not used here.
    #[must_use]
    pub fn is_unknown_scheme(&self) -> bool {
        matches!(self.kind, Kind::UnknownScheme { .. })
    }

    /// Tells whether the seed file is open to others than its owner.
    #[must_use]
    pub fn is_too_open(&self) -> bool {
        matches!(self.kind, Kind::TooOpen { .. })
    }

    /// Tells whether the system refused a step; the [`source`](Error::source) says why.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(self.kind, Kind::Io { .. })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snapshot => "snapshot",
            Self::Seed => "seed file",
        })
    }
}

impl Role {
    /// Returns what to do about a file that will not do.
    fn way_out(self) -> &'static str {
        match self {
            Self::Snapshot => "restore a copy, or remove it to start with every key full",
            Self::Seed => "restore a copy, or remove it and every snapshot made with it",
        }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            Kind::Foreign { role, found } => {
                write!(
                    f,
                    "{path} is not a tollgate {role}: it {found}; correct the path, or move it away"
                )
            }
            Kind::NotAFile => {
                write!(f, "{path} is not a regular file; give the path of a file")
            }
            Kind::Newer { found, known } => write!(
                f,
                "{path} has format version {found}, but this release reads up to {known}; use the \
                 release that wrote it, or move it away"
            ),
            Kind::Damaged { role, at, why } => {
                write!(f, "{role} {path} is damaged at byte {at}: {why}; {}", role.way_out())
            }
            Kind::WrongSeed => write!(
                f,
                "snapshot {path} was made with another seed, so its keys cannot be found again; \
                 use the seed file it was made with, or remove it to start with every key full"
            ),
            Kind::UnknownScheme { found, expected } => write!(
                f,
                "snapshot {path} has fingerprints by {found:?}, but this limiter computes them by \
                 {expected:?}; use the release that wrote it, or remove it to start with every key \
                 full"
            ),
            Kind::TooOpen { mode } => write!(
                f,
                "seed file {path} has mode {mode:04o}, but a secret must not be readable by group \
                 or others; set mode 0600, or, if someone may have read it, remove it and every \
                 snapshot made with it"
            ),
            Kind::Io { step, .. } => write!(
                f,
                "cannot {step} {path}; check that the path exists, that this process has \
                 permission, and that the disk has space"
            ),
        }
    }
}

impl Error for SnapshotError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.kind {
            Kind::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
