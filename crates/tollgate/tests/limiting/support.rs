//! Helpers that several test files share.

use tollgate::{Algorithm, Clock, Decision, Limiter, ManualClock, Quota, Tick};

pub(crate) fn ms(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

pub(crate) fn ns(nanos: u64) -> Tick {
    Tick::from_nanos(nanos)
}

/// Returns a limiter on a manual clock; the quota in text form.
pub(crate) fn manual(algorithm: Algorithm, quota: &str) -> (Limiter, ManualClock) {
    let (clock, hand) = Clock::manual();
    (on(clock, algorithm, quota), hand)
}

pub(crate) fn on(clock: Clock, algorithm: Algorithm, quota: &str) -> Limiter {
    let quota: Quota = quota.parse().expect("the test's quota parses");
    Limiter::builder(quota).algorithm(algorithm).clock(clock).build().expect("and is sound")
}

/// The expectation of a row of a step table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Allowed, with this many permits left.
    Allowed(u64),
    /// Denied, and would pass after this many nanoseconds.
    DeniedForNs(u64),
    Never,
}

pub(crate) const fn allowed(remaining: u64) -> Expected {
    Expected::Allowed(remaining)
}

pub(crate) const fn denied_for_ms(millis: u64) -> Expected {
    Expected::DeniedForNs(millis * 1_000_000)
}

pub(crate) const fn denied_for_ns(nanos: u64) -> Expected {
    Expected::DeniedForNs(nanos)
}

pub(crate) const fn never() -> Expected {
    Expected::Never
}

/// Converts a decision into the form of a step table.
pub(crate) fn seen(decision: &Decision) -> Expected {
    if decision.is_allowed() {
        return Expected::Allowed(decision.remaining());
    }
    match decision.retry_after(decision.at()) {
        Some(wait) => Expected::DeniedForNs(wait.as_nanos() as u64),
        None => Expected::Never,
    }
}

/// A small deterministic generator, for tests that need many random steps (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A folder of its own, removed at the end.
pub(crate) struct Folder(std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("tollgate-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the system's folder for such things is writable");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }

    pub(crate) fn seed(&self) -> tollgate::Seed {
        tollgate::Seed::load_or_create(self.file("seed")).expect("a new folder has no other seed")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
