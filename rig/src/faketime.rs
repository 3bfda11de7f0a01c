//! A server whose clock steps.
//!
//! `libfaketime` is put before the C library and reads, at each look at the clock, a file of ours that
//! holds an offset. What was found out with Redis 7.0 and Valkey 9.1 (libfaketime 0.9.10):
//!
//! - Steps forward and backward, of any size, act on `TIME` and on the expiry of keys: in Redis at
//!   once, in Valkey within a millisecond, as it keeps the time for so long. The methods that set
//!   the clock wait for that.
//! - A clock that stands still works too; the server goes on answering. In Redis it is exact. Valkey
//!   adds the time since it last looked, so there it wavers by up to a millisecond.
//! - The monotonic clock must be left alone (`FAKETIME_DONT_FAKE_MONOTONIC`), or timers of the event
//!   loop wait for as long as the step back was.
//! - The values are read again at each look (`FAKETIME_NO_CACHE`), not once in ten seconds.
//! - jemalloc asks for the time when it starts, and libfaketime allocates when it starts: a server
//!   linked to jemalloc, such as Debian's Redis, ends at once. So the allocator of the C library is
//!   put before it (`libc_malloc_debug`, part of glibc). Figures of memory are then not the usual
//!   ones; measure without this.
//! - A killed server leaves two files in `/dev/shm`, which are removed here.
//! - A look at the clock costs a read of the file, some microseconds. Do not measure speed with it.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The file with the offset.
#[derive(Debug)]
pub(crate) struct FakeTime {
    file: PathBuf,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
enum Clock {
    /// Runs, this many nanoseconds ahead of the machine's.
    Ahead(i128),
    /// Stands still, this many nanoseconds after the epoch.
    Still(i128),
}

impl FakeTime {
    pub(crate) fn new(folder: &Path) -> Self {
        let fake = Self { file: folder.join("clock"), clock: Clock::Ahead(0) };
        fake.write();
        fake
    }

    /// Returns what the server must find in its environment.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let preload = format!("libc_malloc_debug.so.0:{}", library().display());
        [
            ("LD_PRELOAD", preload.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &self.file.to_string_lossy()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_FMT", "%s"),
            ("TZ", "UTC"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// How far the server's time may be off when it is asked: Valkey keeps it for a millisecond.
    pub(crate) const SLACK: Duration = Duration::from_millis(2);

    /// Returns the time that the server is to show now.
    #[allow(clippy::disallowed_methods, reason = "the offset is against the machine's clock")]
    pub(crate) fn expected(&self) -> SystemTime {
        let ns = match self.clock {
            Clock::Ahead(ns) => since_epoch_ns(SystemTime::now()) + ns,
            Clock::Still(ns) => ns,
        };
        let ns = u64::try_from(ns).expect("the server's clock is between 1970 and 2554");
        UNIX_EPOCH + Duration::from_nanos(ns)
    }

    pub(crate) fn step(&mut self, by_ns: i128) {
        match &mut self.clock {
            Clock::Ahead(ns) | Clock::Still(ns) => *ns += by_ns,
        }
        self.write();
    }

    #[allow(clippy::disallowed_methods, reason = "the offset is against the machine's clock")]
    pub(crate) fn set(&mut self, time: SystemTime) {
        self.clock = Clock::Ahead(since_epoch_ns(time) - since_epoch_ns(SystemTime::now()));
        self.write();
    }

    pub(crate) fn stand_still(&mut self, time: SystemTime) {
        self.clock = Clock::Still(since_epoch_ns(time));
        self.write();
    }

    /// Removes what libfaketime leaves behind when its process is killed.
    pub(crate) fn clean_up(pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            // Most often it is not there.
            drop(fs::remove_file(Path::new("/dev/shm").join(name)));
        }
    }

    /// Replaces the file at once, so that the server never reads half of it.
    fn write(&self) {
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{}\n", self.clock))
            .and_then(|()| fs::rename(&new, &self.file))
            .unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
    }
}

/// As libfaketime reads it: a sign means an offset, none means a clock that stands still.
impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, ns) = match *self {
            Self::Ahead(ns) => (if ns < 0 { "-" } else { "+" }, ns.unsigned_abs()),
            Self::Still(ns) => ("", ns.unsigned_abs()),
        };
        write!(f, "{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
    }
}

/// # Panics
///
/// If it is before 1970.
fn since_epoch_ns(time: SystemTime) -> i128 {
    duration_ns(time.duration_since(UNIX_EPOCH).expect("no server's clock is before 1970"))
}

pub(crate) fn duration_ns(duration: Duration) -> i128 {
    // OVERFLOW: a duration has at most 95 bits of nanoseconds.
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}

fn library() -> PathBuf {
    let name = "faketime/libfaketimeMT.so.1";
    let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [&arch, "/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .map(|folder| Path::new(folder).join(name))
        .into_iter()
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("libfaketime is missing; install it: apt-get install faketime"))
}
