//! Helpers of the benchmarks for the machine: clocks, pinning, and a counting allocator.
//!
//! All `unsafe` code of this crate is here.

#![allow(
    unsafe_code,
    reason = "processor time, pinning, the cycle counter and an allocator have no safe form in std"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Reads one of the kernel's clocks, in nanoseconds; zero if it does not exist.
fn clock_ns(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec, which is all that the call requires.
    let status = unsafe { libc::clock_gettime(id, &raw mut time) };
    if status == 0 { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

/// Returns the kernel's monotonic clock.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the kernel's monotonic clock as of its last tick.
#[inline]
pub(crate) fn coarse_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// Returns the processor time this thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time this process has used.
pub(crate) fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the memory that this process has in use; `None` if the system does not report it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: the call only returns a number of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}

/// Returns how often this thread has lost its processor to another one.
pub(crate) fn preemptions() -> i64 {
    // SAFETY: all zeroes is a valid record, and the pointer is to a live, writable one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// Returns how long this thread could have run but another thread had the processor, in
/// nanoseconds; zero if the system does not report it.
pub(crate) fn kept_waiting_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns how long `work` took, without the time that other programs took from this thread, in
/// nanoseconds. It includes the time that the thread slept at a lock.
pub(crate) fn own_time_ns<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let (waited, start) = (kept_waiting_ns(), monotonic_ns());
    let result = work();
    let (ns, waited) = (monotonic_ns() - start, kept_waiting_ns() - waited);
    (ns.saturating_sub(waited), result)
}

/// Returns how often this thread has left its processor, for any reason: cheaper to read than
/// [`kept_waiting_ns`], which changes with it.
pub(crate) fn switches() -> i64 {
    // SAFETY: as in `preemptions`.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw + usage.ru_nvcsw
    }
}

/// Reads the time stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: every x86_64 processor has the instruction; it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the best available clock, if the counter cannot be read.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn counter() -> u64 {
    monotonic_ns()
}

/// Returns how many nanoseconds one count of [`counter`] lasts, measured over 50 ms.
pub(crate) fn counter_period_ns() -> f64 {
    let (start_ns, start) = (monotonic_ns(), counter());
    while monotonic_ns() < start_ns + 50_000_000 {}
    let (ns, counts) = (monotonic_ns() - start_ns, counter() - start);
    ns as f64 / counts as f64
}

/// Returns how many processors this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Binds this thread to one processor, so that it neither migrates nor shares. Best effort.
pub(crate) fn pin(thread: usize) {
    // SAFETY: an all-zero set is a valid, empty one; the pointer and the size belong to it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(thread % processors(), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns how many blocks this thread has allocated since it started.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

static COUNTS_ALL: AtomicBool = AtomicBool::new(false);
static ALL_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts the blocks that `work` allocates on all threads together; [`all_allocations`] returns the
/// count.
///
/// It counts only there, because a counter that all threads share would slow down the other tables.
pub(crate) fn counting_all<R>(work: impl FnOnce() -> R) -> R {
    // ORDERING: Relaxed is enough: a thread that sees the switch late misses a few blocks before
    // the measured time begins.
    COUNTS_ALL.store(true, Relaxed);
    let result = work();
    COUNTS_ALL.store(false, Relaxed);
    result
}

/// Returns how many blocks all threads allocated inside [`counting_all`].
pub(crate) fn all_allocations() -> u64 {
    // ORDERING: Relaxed is enough: it is a statistic and guards nothing.
    ALL_ALLOCATIONS.load(Relaxed)
}

fn count() {
    // ORDERING: Relaxed is enough: a switch and a statistic, they guard nothing.
    if COUNTS_ALL.load(Relaxed) {
        ALL_ALLOCATIONS.fetch_add(1, Relaxed);
    }
    // A thread that is ending no longer has a counter, and no code reads it then.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

/// The system's allocator, with a count per thread: a load and a store per block.
pub(crate) struct CountingAllocator;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
