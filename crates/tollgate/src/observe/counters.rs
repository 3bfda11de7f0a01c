//! Counts of decisions, spread over cache lines.

use super::Verb;
use crate::{Decision, Outcome, sync::Padded};
use std::{
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// How many decisions went which way since the limiter was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counts {
    /// Decisions that let an event pass.
    pub allowed: u64,
    /// Permits that passed with them.
    pub allowed_cost: u64,
    /// Denials for which a wait helps.
    pub denied_later: u64,
    /// Denials for which no wait helps.
    pub denied_never: u64,
    /// Permits asked for by denied events.
    pub denied_cost: u64,
    /// Events that passed because the limiter was bypassed; also counted as allowed.
    pub bypassed: u64,
    /// Events that were booked without asking; also counted as allowed.
    pub forced: u64,
    /// Whole permits given back.
    pub refunded: u64,
}

impl Counts {
    /// Returns how many decisions were denials.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.denied_later + self.denied_never
    }

    /// Returns how many decisions there were.
    #[must_use]
    pub const fn decided(&self) -> u64 {
        self.allowed + self.denied()
    }
}

/// Callers of a breaker spread over this many stripes; enough that two busy ones rarely meet.
pub(crate) const STRIPES: usize = 16;

/// Stripes of counters that belong to one thread each, as long as it lives.
const OWNED: usize = 16;
/// Stripes that all other threads share.
const SHARED: usize = 8;

/// Counters that each thread adds to on a stripe of its own, with cache lines of its own.
///
/// A stripe below [`OWNED`] belongs to at most one thread at a time, so that thread adds by a load
/// and a store: about a nanosecond, where an atomic addition takes five. No count is lost, because
///
/// 1. only the owner writes, and a thread does one thing at a time;
/// 2. a thread gives its stripe back when it ends, under the lock under which the next one takes
///    it: so the next one begins with the last value.
///
/// Threads beyond those share the other stripes, and add atomically.
///
/// ORDERING: Relaxed throughout. Statistics: each count stands for itself, and a sum taken meanwhile
/// may or may not include the latest ones.
#[derive(Debug)]
pub(crate) struct StripedCounters<const N: usize> {
    stripes: [Padded<[AtomicU64; N]>; OWNED + SHARED],
}

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> Self {
        let stripe = |_| Padded(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { stripes: std::array::from_fn(stripe) }
    }
}

impl<const N: usize> StripedCounters<N> {
    #[inline]
    pub(crate) fn add(&self, counter: usize, amount: u64) {
        let stripe = own_stripe();
        let count = &self.stripes[stripe].0[counter];
        if stripe < OWNED {
            // OVERFLOW: wraps, as an atomic addition does.
            count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            count.fetch_add(amount, Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> [u64; N] {
        std::array::from_fn(|counter| {
            let counts = self.stripes.iter().map(|stripe| stripe.0[counter].load(Relaxed));
            counts.fold(0, u64::wrapping_add)
        })
    }
}

/// This thread has not added to a counter yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// The stripe of this thread. It has no destructor, so it can be read while those of others run.
    static STRIPE: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Gives the stripe back when the thread ends.
    static OWNER: StripeOwner = StripeOwner::take();
}

/// The stripes without an owner, a bit each. Not one of loom's locks: it is static.
static FREE: Mutex<u64> = Mutex::new((1 << OWNED) - 1);

struct StripeOwner {
    /// At most `OWNED` if it is one of its own.
    stripe: usize,
}

impl StripeOwner {
    fn take() -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let lowest = free.trailing_zeros() as usize;
        if lowest >= OWNED {
            return Self { stripe: shared_stripe() };
        }
        *free &= !(1 << lowest);
        Self { stripe: lowest }
    }
}

impl Drop for StripeOwner {
    fn drop(&mut self) {
        // What the thread counts from here on, in other destructors, is added atomically.
        STRIPE.set(shared_stripe());
        if self.stripe < OWNED {
            *FREE.lock().unwrap_or_else(PoisonError::into_inner) |= 1 << self.stripe;
        }
    }
}

fn shared_stripe() -> usize {
    OWNED + NEXT_SHARED.fetch_add(1, Relaxed) % SHARED
}

/// Threads without a stripe of their own take turns.
static NEXT_SHARED: AtomicUsize = AtomicUsize::new(0);

/// Returns the stripe of this thread; of threads that run at once, few have the same.
#[inline]
pub(crate) fn own_stripe() -> usize {
    match STRIPE.get() {
        UNKNOWN => claim_stripe(),
        stripe => stripe,
    }
}

#[cold]
fn claim_stripe() -> usize {
    // A thread whose destructors run has no owner any more.
    let stripe = OWNER.try_with(|owner| owner.stripe).unwrap_or_else(|_| shared_stripe());
    STRIPE.set(stripe);
    stripe
}

/// A count that many threads add to without disturbing each other.
///
/// Each thread adds to a stripe of its own, on cache lines of its own; [`sum`](Self::sum) adds the
/// stripes up. It takes 3 KiB, so it is for counts that are hot: threads that add to one atomic wait
/// for each other at each step (`cargo run --release -p tollgate-bench -- observed` compares them).
///
/// # Examples
///
/// ```
/// use tollgate::observe::StripedCounter;
///
/// let served = StripedCounter::new();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).for_each(|_| served.add(1)));
///     }
/// });
/// assert_eq!(served.sum(), 4000);
/// ```
#[derive(Debug, Default)]
#[doc(alias = "LongAdder")]
#[doc(alias = "sharded counter")]
pub struct StripedCounter(StripedCounters<1>);

impl StripedCounter {
    /// Returns a count of zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to the count. It wraps at 2^64.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.add(0, amount);
    }

    /// Returns the count. Additions that are under way may or may not be in it; none is lost, and
    /// once all threads that add have been joined the sum is exact.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let [sum] = self.0.sum();
        sum
    }
}

/// The counters of decisions. Each decision adds to one counter in the usual case, a cost of one:
/// costs are counted as what goes beyond that, and decisions that cost nothing apart.
#[derive(Clone, Copy)]
enum Counter {
    /// Allowed, with a cost of at least one.
    Allowed,
    AllowedFree,
    AllowedExtraCost,
    DeniedLater,
    DeniedNever,
    /// Of the denied ones, those that cost nothing.
    DeniedFree,
    DeniedExtraCost,
    Bypassed,
    Forced,
    Refunded,
}

/// Counts decisions by outcome, on stripes: for layers and programs that decide by themselves.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, Quota, observe::{DecisionCounters, Verb}};
///
/// let (limiter, counters) = (Limiter::new(Quota::per_hour(2))?, DecisionCounters::default());
/// for _ in 0..3 {
///     counters.add(Verb::TryAcquire, &limiter.try_acquire());
/// }
/// let counts = counters.sum();
/// assert_eq!((counts.allowed, counts.denied()), (2, 1));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Debug, Default)]
pub struct DecisionCounters(StripedCounters<10>);

impl DecisionCounters {
    /// Counts a decision.
    #[inline]
    pub fn add(&self, verb: Verb, decision: &Decision) {
        self.add_taken(decision.outcome(), decision.cost());
        if decision.is_bypassed() {
            self.count(Counter::Bypassed, 1);
        }
        if verb == Verb::Force && decision.is_allowed() {
            self.count(Counter::Forced, 1);
        }
    }

    /// Counts a decision that is neither bypassed nor forced.
    #[inline]
    pub(super) fn add_taken(&self, outcome: Outcome, cost: u64) {
        let count = |counter, amount| self.count(counter, amount);
        match outcome {
            Outcome::Allowed if cost == 0 => count(Counter::AllowedFree, 1),
            Outcome::Allowed => count(Counter::Allowed, 1),
            Outcome::Later => count(Counter::DeniedLater, 1),
            Outcome::Never => count(Counter::DeniedNever, 1),
        }
        match (cost, outcome == Outcome::Allowed) {
            (1, _) | (0, true) => {}
            (0, false) => count(Counter::DeniedFree, 1),
            (cost, true) => count(Counter::AllowedExtraCost, cost - 1),
            (cost, false) => count(Counter::DeniedExtraCost, cost - 1),
        }
    }

    #[inline]
    fn count(&self, counter: Counter, amount: u64) {
        self.0.add(counter as usize, amount);
    }

    pub(crate) fn refund(&self, permits: u64) {
        self.count(Counter::Refunded, permits);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn sum(&self) -> Counts {
        let sums = self.0.sum();
        let of = |counter: Counter| sums[counter as usize];
        let (denied_later, denied_never) = (of(Counter::DeniedLater), of(Counter::DeniedNever));
        // OVERFLOW: costs wrap at 2^64, as the counters do; decisions do not get there.
        let denied = denied_later.wrapping_add(denied_never);
        let denied_cost = denied.wrapping_add(of(Counter::DeniedExtraCost));
        Counts {
            allowed: of(Counter::Allowed).wrapping_add(of(Counter::AllowedFree)),
            allowed_cost: of(Counter::Allowed).wrapping_add(of(Counter::AllowedExtraCost)),
            denied_later,
            denied_never,
            denied_cost: denied_cost.wrapping_sub(of(Counter::DeniedFree)),
            bypassed: of(Counter::Bypassed),
            forced: of(Counter::Forced),
            refunded: of(Counter::Refunded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Barrier, thread};

    #[test]
    fn no_count_is_lost_by_more_threads_than_stripes() {
        let counter = StripedCounter::new();
        let start = Barrier::new(64);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    start.wait();
                    (0..10_000).for_each(|_| counter.add(1));
                });
            }
        });
        assert_eq!(counter.sum(), 640_000);
    }

    #[test]
    fn no_count_is_lost_when_threads_come_and_go() {
        let counter = StripedCounter::new();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        thread::scope(|inner| {
                            inner.spawn(|| (0..10).for_each(|_| counter.add(1)));
                        });
                        counter.add(1);
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 8 * 100 * 11);
    }

    #[test]
    fn a_thread_that_ends_counts_in_its_destructors_and_gives_its_stripe_back() {
        /// Adds when the thread ends, before or after the owner is gone.
        struct AtEnd(&'static StripedCounter);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                self.0.add(1);
            }
        }
        thread_local!(static AT_END: Cell<Option<AtEnd>> = const { Cell::new(None) });
        let counter: &StripedCounter = Box::leak(Box::default());
        for is_first in [true, false] {
            for _ in 0..100 {
                let thread = thread::spawn(move || {
                    if is_first {
                        counter.add(1);
                    }
                    AT_END.set(Some(AtEnd(counter)));
                    if !is_first {
                        counter.add(1);
                    }
                });
                thread.join().unwrap();
            }
        }
        assert_eq!(counter.sum(), 400);
        // Two hundred threads have not used up sixteen stripes, unless other tests hold them now.
        let stripes: Vec<_> = (0..50).map(|_| thread::spawn(own_stripe).join().unwrap()).collect();
        assert!(stripes.iter().any(|stripe| *stripe < OWNED), "{stripes:?}");
    }
}
