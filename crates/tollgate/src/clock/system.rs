//! The machine's clocks, and the only `unsafe` code of the crate.
//!
//! Two readings of one time base, the kernel's monotonic clock:
//!
//! | reading | cost | meaning |
//! |---|---|---|
//! | [`precise_ns`] | 11 ns with TSC, else 27 ns | the time now |
//! | [`coarse_ns`] | about half of that | the time at the kernel's last tick: lags by up to [`coarse_tick_ns`] |
//!
//! (Costs of a 2.4 GHz AMD EPYC under KVM; `cargo run --release -p tollgate-bench -- clocks`.)
//!
//! The processor's time stamp counter (TSC) is read only where the kernel itself runs on it: the
//! kernel has then checked that it ticks evenly and alike on every core. It drifts from the
//! kernel's time all the same, because the kernel is steered by NTP. So it only extends a kernel
//! reading, the *anchor*, by at most a quarter of a second; then a new anchor is taken.

use std::time::Duration;

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "clock_gettime and rdtsc have no safe form in std")]
mod linux {
    use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

    type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

    /// The function that reads clocks: libc's, until [`skip_libc`] has found the kernel's own.
    static CLOCK_GETTIME: AtomicPtr<()> = AtomicPtr::new(libc::clock_gettime as *mut ());

    /// Finds the kernel's own function, which saves the way through libc. Where it cannot be found, libc's stays.
    pub(crate) fn skip_libc() {
        // SAFETY: both names are C strings. RTLD_NOLOAD only finds what is mapped already, so no
        // code is loaded or run; a null handle is not passed on.
        let found = unsafe {
            let vdso =
                libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if vdso.is_null() { vdso } else { libc::dlsym(vdso, c"__vdso_clock_gettime".as_ptr()) }
        };
        if !found.is_null() {
            // ORDERING: Relaxed. Either function gives the same answers, and code is not data.
            CLOCK_GETTIME.store(found.cast(), Relaxed);
        }
    }

    /// Reads one of the kernel's clocks, in nanoseconds.
    #[inline]
    fn clock_ns(id: libc::clockid_t) -> u64 {
        // ORDERING: Relaxed, as in `skip_libc`.
        let function = CLOCK_GETTIME.load(Relaxed);
        // SAFETY: the pointer is libc's function or the kernel's, and both have this signature.
        let clock_gettime: ClockGettime = unsafe { std::mem::transmute(function) };
        let mut time = std::mem::MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the pointer is to writable memory of a timespec's size, which is all it asks for.
        let status = unsafe { clock_gettime(id, time.as_mut_ptr()) };
        assert_eq!(status, 0, "the ids used here exist since Linux 2.6.32");
        // SAFETY: the call has succeeded, so it has written the whole timespec.
        let time = unsafe { time.assume_init() };
        // OVERFLOW: seconds since boot, 584 years of them fit in nanoseconds; never negative.
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }

    #[inline]
    pub(crate) fn kernel_ns() -> u64 {
        clock_ns(libc::CLOCK_MONOTONIC)
    }

    #[inline]
    pub(crate) fn coarse_ns() -> u64 {
        clock_ns(libc::CLOCK_MONOTONIC_COARSE)
    }

    /// Returns the coarse clock if its step is small enough to be of use.
    pub(crate) fn coarse_tick_ns() -> Option<u64> {
        let mut step = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: as in `clock_ns`.
        let status = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut step) };
        let usable = status == 0 && step.tv_sec == 0 && (1..=20_000_000).contains(&step.tv_nsec);
        usable.then_some(step.tv_nsec as u64)
    }

    /// Tells whether the kernel keeps its own time by the TSC.
    pub(crate) fn kernel_runs_on_tsc() -> bool {
        cfg!(target_arch = "x86_64")
            && std::fs::read_to_string(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            )
            .is_ok_and(|source| source.trim() == "tsc")
    }

    /// Reads the time stamp counter; zero where there is none.
    #[inline]
    pub(crate) fn counter() -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86_64 processor has the instruction; it touches no memory.
        return unsafe { core::arch::x86_64::_rdtsc() };
        #[cfg(not(target_arch = "x86_64"))]
        return 0;
    }
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use std::{sync::LazyLock, time::Instant};

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    #[inline]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn kernel_ns() -> u64 {
        START.elapsed().as_nanos() as u64
    }

    #[inline]
    pub(crate) fn coarse_ns() -> u64 {
        kernel_ns()
    }

    pub(crate) fn coarse_tick_ns() -> Option<u64> {
        None
    }

    pub(crate) fn skip_libc() {}

    pub(crate) fn kernel_runs_on_tsc() -> bool {
        false
    }

    #[inline]
    pub(crate) fn counter() -> u64 {
        0
    }
}

#[cfg(target_os = "linux")]
use linux as machine;
#[cfg(not(target_os = "linux"))]
use portable as machine;

pub(super) use machine::{coarse_ns, coarse_tick_ns, kernel_ns, skip_libc};

/// Reads the time as exactly as the machine allows, on the time base of [`kernel_ns`].
#[inline]
pub(super) fn precise_ns() -> u64 {
    match tsc::now_ns() {
        Some(ns) => ns,
        None => renewed_ns(),
    }
}

/// Takes a new anchor for the counter, or asks the kernel where there is no counter.
#[cold]
#[inline(never)]
fn renewed_ns() -> u64 {
    tsc::renew().unwrap_or_else(kernel_ns)
}

/// Returns the wall clock as nanoseconds since the Unix epoch; zero if it stands before it.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn wall_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since: Duration| super::tick::duration_nanos(since))
}

pub(super) mod tsc {
    //! Kernel time extended by the time stamp counter.
    //!
    //! `now = anchor.ns + (counter - anchor.counter) x slope`, valid for [`SPAN_NS`] after the
    //! anchor. The slope is measured between anchors, so the first [`WARM_UP_NS`] are read from
    //! the kernel. A new anchor never lies below the old line: where the line had run ahead, it
    //! goes on from there with a slope that meets the kernel's time one span later.

    use super::{kernel_ns, machine};
    use std::sync::{
        LazyLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    };

    /// How long an anchor is used.
    const SPAN_NS: u64 = 250_000_000;
    /// How long the first slope is measured: 50 ns of reading error in 20 ms are 2.5e-6.
    const WARM_UP_NS: u64 = 20_000_000;
    /// Fraction bits of the slope, which is nanoseconds per count.
    const SLOPE_BITS: u32 = 32;

    /// Whether the counter may be used.
    static IS_USABLE: LazyLock<bool> = LazyLock::new(machine::kernel_runs_on_tsc);

    /// A seqlock: `version` is odd while the other fields change.
    struct Anchor {
        version: AtomicU64,
        counter: AtomicU64,
        ns: AtomicU64,
        slope: AtomicU64,
        /// Counts for which the anchor is valid.
        span: AtomicU64,
    }

    static ANCHOR: Anchor = Anchor {
        version: AtomicU64::new(0),
        counter: AtomicU64::new(0),
        ns: AtomicU64::new(0),
        slope: AtomicU64::new(0),
        span: AtomicU64::new(0),
    };

    /// Returns the time by the counter, or nothing if the anchor is too old.
    #[inline]
    pub(in crate::clock) fn now_ns() -> Option<u64> {
        // ORDERING: Acquire pairs with the Release in `finish`: an even version that is read twice
        // brackets fields written by one writer only. The fields are atomics, so a torn read is
        // harmless and merely thrown away.
        let version = ANCHOR.version.load(Acquire);
        let counter = ANCHOR.counter.load(Relaxed);
        let ns = ANCHOR.ns.load(Relaxed);
        let slope = ANCHOR.slope.load(Relaxed);
        let span = ANCHOR.span.load(Relaxed);
        // ORDERING: keeps the loads above from moving below the second look at the version.
        fence(Acquire);
        let same = ANCHOR.version.load(Relaxed) == version;
        // A counter that stands before its anchor (another machine, a reset) wraps to a huge
        // distance and fails the span test too. `span` is zero until the slope is known.
        let counts = machine::counter().wrapping_sub(counter);
        if same && version & 1 == 0 && counts < span {
            return Some(ns + extend(counts, slope));
        }
        None
    }

    /// OVERFLOW: `counts < span`, and span x slope is at most 2 x SPAN_NS x 2^32 < 2^61.
    #[inline]
    const fn extend(counts: u64, slope: u64) -> u64 {
        (counts.wrapping_mul(slope)) >> SLOPE_BITS
    }

    /// Takes a new anchor if the machine has a usable counter and no other thread is taking one.
    pub(in crate::clock) fn renew() -> Option<u64> {
        if !*IS_USABLE {
            return None;
        }
        // ORDERING: Acquire on success makes this thread see the last writer's fields.
        let version = ANCHOR.version.load(Relaxed);
        let free = version & 1 == 0
            && ANCHOR.version.compare_exchange(version, version + 1, Acquire, Relaxed).is_ok();
        if !free {
            return None;
        }
        // ORDERING: orders the odd version before the fields, for readers that see a new field.
        fence(Release);
        let now = update();
        // ORDERING: Release publishes the fields with the even version.
        ANCHOR.version.store(version + 2, Release);
        now
    }

    /// Moves the anchor to now. The caller holds the odd version.
    fn update() -> Option<u64> {
        let (counter, kernel) = read_pair();
        let (old_counter, old_ns) = (ANCHOR.counter.load(Relaxed), ANCHOR.ns.load(Relaxed));
        let counts = counter.wrapping_sub(old_counter);
        let elapsed = kernel.saturating_sub(old_ns);
        let slope = ((elapsed as u128) << SLOPE_BITS).checked_div(counts as u128).unwrap_or(0);
        // A first anchor, a counter that was reset, or a pause of more than ten spans (a
        // suspended machine counts no kernel time): start again and measure anew.
        let fresh = old_counter == 0
            || counts > u64::MAX / 2
            || elapsed > 10 * SPAN_NS
            || slope >= 1 << SLOPE_BITS
            || slope == 0;
        if fresh {
            set(counter, kernel, 0, 0);
            return Some(kernel);
        }
        if elapsed < WARM_UP_NS {
            return Some(kernel);
        }
        let slope = slope as u64;
        let line = if ANCHOR.span.load(Relaxed) == 0 {
            kernel
        } else {
            old_ns.saturating_add(
                ((counts as u128 * ANCHOR.slope.load(Relaxed) as u128) >> SLOPE_BITS) as u64,
            )
        };
        // Less than a millisecond ahead: wait for the kernel by running slower. More cannot come
        // from drift, so the kernel is believed at once.
        let ahead = line.saturating_sub(kernel);
        let ahead = if ahead < 1_000_000 { ahead } else { 0 };
        let span = ((SPAN_NS as u128) << SLOPE_BITS) / slope as u128;
        let slowed = slope as u128 * (SPAN_NS - ahead) as u128 / SPAN_NS as u128;
        set(counter, kernel + ahead, slowed as u64, span as u64);
        Some(kernel + ahead)
    }

    /// ORDERING: Relaxed stores; the version around them publishes all four together.
    fn set(counter: u64, ns: u64, slope: u64, span: u64) {
        ANCHOR.counter.store(counter, Relaxed);
        ANCHOR.ns.store(ns, Relaxed);
        ANCHOR.slope.store(slope, Relaxed);
        ANCHOR.span.store(span, Relaxed);
    }

    /// Reads counter and kernel time as close together as three tries allow.
    fn read_pair() -> (u64, u64) {
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..3 {
            let before = machine::counter();
            let ns = kernel_ns();
            let width = machine::counter().wrapping_sub(before);
            if width < best.0 {
                best = (width, before.wrapping_add(width / 2), ns);
            }
        }
        (best.1, best.2)
    }

    #[cfg(test)]
    mod tests {
        use super::super::*;

        #[test]
        fn counter_time_stays_within_the_kernels_by_microseconds() {
            // Reads for a bounded time by the kernel's clock; nothing waits.
            let end = kernel_ns() + 60_000_000;
            let mut worst = 0_i64;
            let mut last = 0;
            while kernel_ns() < end {
                let before = kernel_ns();
                let now = precise_ns();
                let after = kernel_ns();
                assert!(now >= last || last - now < 100_000, "stepped back from {last} to {now}");
                last = now;
                let early = before as i64 - now as i64;
                let late = now as i64 - after as i64;
                worst = worst.max(early).max(late);
            }
            assert!(worst < 100_000, "off by {worst} ns from the kernel's clock");
        }
    }
}
