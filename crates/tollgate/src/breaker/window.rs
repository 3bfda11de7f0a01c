//! The calls that a closed breaker, or a client that throttles itself, judges by.
//!
//! A **time window** has ten buckets, each of a tenth of the window; an ended call is added to the
//! bucket of its time. So it covers between nine tenths of the window and all of it. Buckets are
//! striped over cache lines: a success is one add. The first call of a new bucket takes a short lock
//! and clears what has expired. Time that goes backwards counts as standing still.
//!
//! A **window of calls** is a ring of the last n calls behind a short lock. A ring full of good calls
//! is the same after another good call, so that one takes no lock and writes only its count.
//!
//! A call that ends at the moment at which the window is cleared may be counted in the new one: at
//! most one for each thread that is inside `end` just then.

use super::machine::OpenReason;
use crate::{
    Tick,
    clock::tick::duration_nanos,
    sync::{AtomicU64, Mutex, Ordering::Relaxed, Ordering::SeqCst, Padded, fence, lock},
};
use std::{collections::VecDeque, fmt, time::Duration};

/// Which calls a breaker judges by.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, BreakerWindow};
///
/// let by_time = Breaker::builder().window(BreakerWindow::time(Duration::from_secs(30))).build()?;
/// let by_count = Breaker::builder().window(BreakerWindow::calls(100)).build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerWindow(pub(super) Extent);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Time(Duration),
    Calls(u32),
}

impl BreakerWindow {
    /// Returns the window of the last `length`, in ten buckets. At least 1 ms.
    #[must_use]
    pub const fn time(length: Duration) -> Self {
        Self(Extent::Time(length))
    }

    /// Returns the window of the last `count` calls, 1 to 100 000.
    #[must_use]
    pub const fn calls(count: u32) -> Self {
        Self(Extent::Calls(count))
    }
}

/// What opens a closed breaker.
///
/// Thresholds are inclusive, and looked at whenever a call ends that counts against the
/// dependency: a failure, an overload, or a slow call. A quick success never opens a breaker.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, Trip};
///
/// // Several are given: any of them opens it.
/// let breaker = Breaker::builder()
///     .trip(Trip::failure_percent(50))
///     .trip(Trip::slow_percent(80, Duration::from_secs(2)))
///     .trip(Trip::consecutive(10))
///     .build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip(pub(super) Threshold);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threshold {
    FailurePercent(u32),
    FailureCount(u64),
    Consecutive(u64),
    SlowPercent(u32, Duration),
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Threshold::FailurePercent(percent) => write!(f, "{percent} % failures"),
            Threshold::FailureCount(count) => write!(f, "{count} failures"),
            Threshold::Consecutive(count) => write!(f, "{count} failures in a row"),
            Threshold::SlowPercent(percent, longer_than) => {
                write!(f, "{percent} % calls of {longer_than:?} or longer")
            }
        }
    }
}

impl Trip {
    /// Trips when at least `percent` of the calls in the window failed, 1 to 100.
    #[must_use]
    pub const fn failure_percent(percent: u32) -> Self {
        Self(Threshold::FailurePercent(percent))
    }

    /// Trips when at least `count` calls in the window failed, however many there were.
    #[must_use]
    pub const fn failure_count(count: u64) -> Self {
        Self(Threshold::FailureCount(count))
    }

    /// Trips when `count` calls failed without a success between them. It knows no window.
    #[must_use]
    pub const fn consecutive(count: u64) -> Self {
        Self(Threshold::Consecutive(count))
    }

    /// Trips when at least `percent` of the calls in the window took `longer_than` or more, 1 to 100.
    #[must_use]
    pub const fn slow_percent(percent: u32, longer_than: Duration) -> Self {
        Self(Threshold::SlowPercent(percent, longer_than))
    }

    /// Returns the reason to open, if these calls are one.
    pub(super) fn check(&self, seen: &Totals, run: u64, min_calls: u64) -> Option<OpenReason> {
        // OVERFLOW: calls counted one by one stay far below 2^57.
        let reaches = |part: u64, percent: u32| {
            seen.calls >= min_calls && part * 100 >= seen.calls * u64::from(percent)
        };
        let (trips, why) = match self.0 {
            Threshold::FailurePercent(percent) => {
                (reaches(seen.failures, percent), OpenReason::FailureShare)
            }
            Threshold::FailureCount(count) => (seen.failures >= count, OpenReason::FailureCount),
            Threshold::Consecutive(count) => (run >= count, OpenReason::ConsecutiveFailures),
            Threshold::SlowPercent(percent, _) => {
                (reaches(seen.slow, percent), OpenReason::SlowShare)
            }
        };
        trips.then_some(why)
    }
}

/// What became of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) failed: bool,
    pub(crate) slow: bool,
}

impl Mark {
    pub(super) const fn is_bad(self) -> bool {
        self.failed || self.slow
    }
}

/// Calls, and those among them that failed or were slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) calls: u64,
    pub(crate) failures: u64,
    pub(crate) slow: u64,
}

impl Totals {
    pub(super) fn add_one(&mut self, mark: Mark) {
        self.add(Self { calls: 1, failures: mark.failed.into(), slow: mark.slow.into() });
    }

    fn add(&mut self, more: Self) {
        self.calls += more.calls;
        self.failures += more.failures;
        self.slow += more.slow;
    }
}

/// Buckets of a time window.
const BUCKETS: usize = 10;

#[derive(Debug, Default)]
struct Bucket {
    calls: AtomicU64,
    failures: AtomicU64,
    slow: AtomicU64,
}

impl Bucket {
    // ORDERING: Relaxed, here and below. A count stands for itself; `CallWindow::seen` says what
    // orders the adds of two threads that trip together.
    fn add(&self, mark: Mark) {
        self.calls.fetch_add(1, Relaxed);
        if mark.failed {
            self.failures.fetch_add(1, Relaxed);
        }
        if mark.slow {
            self.slow.fetch_add(1, Relaxed);
        }
    }

    fn get(&self) -> Totals {
        // Calls are added first and read last, so that a share is never seen too high.
        let (failures, slow) = (self.failures.load(Relaxed), self.slow.load(Relaxed));
        Totals { calls: self.calls.load(Relaxed), failures, slow }
    }

    fn take(&self) -> Totals {
        let take = |count: &AtomicU64| count.swap(0, Relaxed);
        Totals { calls: take(&self.calls), failures: take(&self.failures), slow: take(&self.slow) }
    }
}

/// The calls of a closed breaker.
#[derive(Debug)]
pub(crate) enum CallWindow {
    Time(TimeWindow),
    Calls(CallRing),
}

#[derive(Debug)]
pub(crate) struct TimeWindow {
    width_ns: u64,
    stripes: Box<[Padded<[Bucket; BUCKETS]>]>,
    /// The number of the newest bucket, counted from the clock's origin.
    newest: AtomicU64,
    /// Calls that have left the window. Its lock is taken to clear buckets.
    gone: Mutex<Totals>,
}

#[derive(Debug)]
pub(crate) struct CallRing {
    capacity: usize,
    ring: Mutex<Ring>,
    /// 1 while the ring is full of good calls.
    is_good: AtomicU64,
    /// Good calls that found it so: they are counted here only.
    good: AtomicU64,
}

#[derive(Debug, Default)]
struct Ring {
    calls: VecDeque<Mark>,
    seen: Totals,
    /// All calls that were put in.
    all: Totals,
}

impl CallWindow {
    pub(crate) fn new(extent: Extent, stripes: usize) -> Self {
        match extent {
            Extent::Time(length) => Self::Time(TimeWindow {
                width_ns: (duration_nanos(length) / BUCKETS as u64).max(1),
                stripes: (0..stripes).map(|_| Padded::default()).collect(),
                newest: AtomicU64::new(0),
                gone: Mutex::new(Totals::default()),
            }),
            Extent::Calls(count) => Self::Calls(CallRing {
                capacity: count as usize,
                ring: Mutex::new(Ring::default()),
                is_good: AtomicU64::new(0),
                good: AtomicU64::new(0),
            }),
        }
    }

    /// Returns how far it reaches back, and from how many calls a share of them counts.
    pub(crate) fn summary(&self, min_calls: u64) -> String {
        match self {
            Self::Time(window) => {
                let length = Duration::from_nanos(window.width_ns.saturating_mul(BUCKETS as u64));
                format!("judged from {min_calls} calls in the last {length:?}")
            }
            Self::Calls(ring) => {
                format!("judged from {min_calls} of the last {} calls", ring.capacity)
            }
        }
    }

    /// Adds a call that ended.
    pub(crate) fn add(&self, now: Tick, mark: Mark) {
        match self {
            Self::Time(window) => {
                let bucket = window.bucket(now);
                let stripe = stripe() % window.stripes.len();
                window.stripes[stripe].0[bucket].add(mark);
            }
            Self::Calls(ring) => ring.add(mark),
        }
    }

    /// Returns the calls in the window. Of several threads that add and then look, one sees all.
    pub(crate) fn seen(&self, now: Tick) -> Totals {
        match self {
            Self::Time(window) => {
                window.bucket(now);
                // ORDERING: SeqCst. Two threads add to different stripes and then read both. With
                // the fence between, one of them sees the other's add, so a threshold that both
                // reach together is not missed (tests/loom/breaker.rs).
                fence(SeqCst);
                window.sum()
            }
            Self::Calls(ring) => lock(&ring.ring).seen,
        }
    }

    /// Forgets all calls; they stay in [`all`](Self::all).
    pub(super) fn clear(&self) {
        match self {
            Self::Time(window) => window.expire(&mut lock(&window.gone), 0..BUCKETS),
            Self::Calls(ring) => {
                let mut state = lock(&ring.ring);
                (state.calls, state.seen) = (VecDeque::new(), Totals::default());
                // ORDERING: Relaxed, as in `CallRing::add`.
                ring.is_good.store(0, Relaxed);
            }
        }
    }

    /// Returns all calls since the breaker was built.
    pub(crate) fn all(&self) -> Totals {
        match self {
            Self::Time(window) => {
                let mut all = *lock(&window.gone);
                all.add(window.sum());
                all
            }
            Self::Calls(ring) => {
                let mut all = lock(&ring.ring).all;
                // ORDERING: Relaxed. Statistics.
                all.calls += ring.good.load(Relaxed);
                all
            }
        }
    }
}

impl TimeWindow {
    /// Returns the bucket of a time, the newest if that has passed already.
    fn bucket(&self, now: Tick) -> usize {
        let number = now.as_nanos() / self.width_ns;
        // ORDERING: Relaxed. A call that reads an old number counts as a moment earlier; the buckets
        // are cleared by one thread under the lock before their number is shown.
        let newest = self.newest.load(Relaxed);
        let number = if number > newest { self.advance(number) } else { newest };
        (number % BUCKETS as u64) as usize
    }

    /// Clears the buckets that a new number takes over.
    #[cold]
    fn advance(&self, number: u64) -> u64 {
        let mut gone = lock(&self.gone);
        // ORDERING: Relaxed. Writers hold the lock.
        let newest = self.newest.load(Relaxed);
        if number <= newest {
            return newest;
        }
        let passed = (number - newest).min(BUCKETS as u64);
        let reused = (0..passed).map(|back| ((number - back) % BUCKETS as u64) as usize);
        self.expire(&mut gone, reused);
        self.newest.store(number, Relaxed);
        number
    }

    fn expire(&self, gone: &mut Totals, buckets: impl Iterator<Item = usize>) {
        for bucket in buckets {
            for Padded(stripe) in &self.stripes {
                gone.add(stripe[bucket].take());
            }
        }
    }

    fn sum(&self) -> Totals {
        let mut sum = Totals::default();
        for Padded(stripe) in &self.stripes {
            stripe.iter().for_each(|bucket| sum.add(bucket.get()));
        }
        sum
    }
}

impl CallRing {
    fn add(&self, mark: Mark) {
        // ORDERING: Relaxed. A good call that reads an old 1 is ordered before the bad one that
        // is written just then: the ring was full of good calls.
        if !mark.is_bad() && self.is_good.load(Relaxed) == 1 {
            self.good.fetch_add(1, Relaxed);
            return;
        }
        let mut ring = lock(&self.ring);
        if ring.calls.len() == self.capacity
            && let Some(old) = ring.calls.pop_front()
        {
            ring.seen.calls -= 1;
            ring.seen.failures -= u64::from(old.failed);
            ring.seen.slow -= u64::from(old.slow);
        }
        ring.calls.push_back(mark);
        ring.seen.add_one(mark);
        ring.all.add_one(mark);
        let is_full = ring.calls.len() == self.capacity;
        let is_good = is_full && ring.seen.failures == 0 && ring.seen.slow == 0;
        self.is_good.store(is_good.into(), Relaxed);
    }
}

/// Returns the stripe of this thread. Loom's threads are not threads of the system.
pub(super) fn stripe() -> usize {
    #[cfg(not(tollgate_loom))]
    return crate::striped::home_of_thread(crate::observe::STRIPES);
    #[cfg(tollgate_loom)]
    {
        // "ThreadId(1)": the same in every run of a model.
        let name = format!("{:?}", loom::thread::current().id());
        name.bytes().filter(u8::is_ascii_digit).map(usize::from).sum()
    }
}
