//! How busy the processors are.

mod parse;
mod system;

use super::Health;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use system::SystemCpu;

/// How busy the processors are, between 0 (idle) and 1 (all busy).
///
/// | source | when | load |
/// |---|---|---|
/// | cgroup v2, `cpu.stat` | a `cpu.max` limits this process, as in most containers | CPU time used / CPU time allowed |
/// | `/proc/stat` | no such limit | share of time in which the host's processors were busy |
/// | PSI, `cpu.pressure` | the kernel has it | share of time in which some task waited for a processor, if that is higher |
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::{CpuLoad, Health};
///
/// let (mut cpu, dial) = CpuLoad::manual();
/// dial.set(0.85);
/// assert_eq!(cpu.cpu(), Some(0.85));
/// ```
#[derive(Debug)]
pub struct CpuLoad {
    source: Source,
}

#[derive(Debug)]
enum Source {
    System(SystemCpu),
    Manual(ManualCpu),
}

impl CpuLoad {
    /// Returns the load of this host or container, from one reading to the next.
    ///
    /// # Errors
    ///
    /// When the system is not Linux, or does not say how busy it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::adaptive::rate::CpuLoad;
    ///
    /// match CpuLoad::system() {
    ///     Ok(cpu) => println!("{cpu:?}"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    pub fn system() -> Result<Self, CpuError> {
        Ok(Self { source: Source::System(SystemCpu::new()?) })
    }

    /// Returns a load that says what it is set to, for tests. It starts with 0.
    #[must_use]
    pub fn manual() -> (Self, ManualCpu) {
        let dial = ManualCpu { bits: Arc::new(AtomicU64::new(0)) };
        (Self { source: Source::Manual(dial.clone()) }, dial)
    }
}

impl Health for CpuLoad {
    fn cpu(&mut self) -> Option<f64> {
        match &mut self.source {
            Source::System(system) => system.load(),
            // ORDERING: Relaxed. The number stands for itself.
            Source::Manual(dial) => Some(f64::from_bits(dial.bits.load(Relaxed))),
        }
    }
}

/// Sets the load of [`CpuLoad::manual`]. Clones set the same one.
#[derive(Clone, Debug)]
pub struct ManualCpu {
    /// The load, as the bits of a float.
    bits: Arc<AtomicU64>,
}

impl ManualCpu {
    /// Sets the load, between 0 and 1.
    pub fn set(&self, load: f64) {
        // ORDERING: Relaxed, as where it is read.
        self.bits.store(load.to_bits(), Relaxed);
    }
}

/// Why there is no [`CpuLoad::system`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuError {
    /// The system is not Linux.
    Unsupported,
    /// Neither a cgroup nor `/proc/stat` says how busy the processors are.
    Unreadable,
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => {
                "the CPU load is known on Linux only; implement Health for another source"
            }
            Self::Unreadable => {
                "neither a cgroup with cpu.max nor /proc/stat can be read; mount /proc, or \
                 implement Health for another source"
            }
        })
    }
}

impl std::error::Error for CpuError {}
