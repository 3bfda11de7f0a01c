//! The measured limiters: tollgate, other crates, and textbook implementations.

pub(crate) mod crates;
pub(crate) mod keyed;
pub(crate) mod numbered;
pub(crate) mod stored;
pub(crate) mod textbook;
pub(crate) mod tollgate;

/// The row that all ratios refer to.
pub(crate) const BASELINE: &str = "governor 0.10";

/// Permits each second of `Case::Full`.
pub(crate) const FULL_RATE: u64 = 1_000_000_000;
/// Permits each second of `Case::Partly`.
pub(crate) const PARTLY_RATE: u64 = 1_000;
/// The burst of `Case::Partly`: as large as a `u32` holds, roughly.
pub(crate) const PARTLY_BURST: u64 = 4_000_000_000;
/// Permits taken before `Case::Partly` is measured: more than refill during the measurement.
pub(crate) const PARTLY_USED: u64 = 1_000_000;
/// The burst of `Case::Denied`. Not one, because one peer does not limit a burst of one at all.
pub(crate) const DENIED_BURST: u64 = 10;
/// Permits each second of `Case::Hammered`.
pub(crate) const HAMMERED_RATE: u64 = 1_000_000;
/// The burst of `Case::Hammered`.
pub(crate) const HAMMERED_BURST: u64 = 100;
