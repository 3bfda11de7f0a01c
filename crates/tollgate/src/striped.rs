//! One limit that is hotter than a cache line, split over several.
//!
//! # The idea
//!
//! Every admission of a [`Limiter`] writes one word, and cores that write one word wait for each
//! other. So the quota is split over N stripes, each a limiter with its own word; each thread
//! begins at its own stripe, and goes to the others only when that one refuses.
//!
//! ```text
//!            quota 1000/s burst 100
//!      250/s b 25 | 250/s b 25 | 250/s b 25 | 250/s b 25
//!          ^            ^            ^            ^
//!      thread 0     thread 1     thread 2     thread 3      first its home,
//!          '----------->'----------->'----------->'         then the others, then refused
//! ```
//!
//! # Never over, and why
//!
//! Shares add up exactly: bursts b1 + .. + bN = b, rates r1 + .. + rN = r (`striped/share.rs`). In
//! an interval w stripe i admits at most bi + ri x w (G1 of [`Limiter`]), so together they admit at
//! most b + r x w. Where a stripe rounds time (by two ninths of a nanosecond at most), the sum is off
//! by less than r x 1 ns. Nothing in this argument depends on who asks which stripe, so it holds
//! under every race.
//!
//! It also never admits what one limiter would not: let L be the level of one limiter that is
//! charged with the same admissions. The levels of the stripes add up to at most L, at the start
//! and ever after: a take lowers both by its cost; time adds ri to stripe i unless it is full, so
//! at most r to the sum, and at most up to b.
//!
//! # Refusals although permits are free
//!
//! | | [`Reach::All`] | [`Reach::Home`], and keys |
//! |---|---|---|
//! | quiet system | fractions: less than one permit on each stripe | up to b - bi elsewhere |
//! | lone thread, long run | the whole rate | 1/N of it |
//! | while a costly call fails | what it holds, less than its cost; one at a time | the same |
//!
//! A stripe that is full wastes its refill though others have room. So after a burst on few
//! stripes the sum refills slower than one limiter would, at worst at r / N; a call that is refused
//! under [`Reach::All`] found no stripe full, so under pressure nothing is wasted, as long as every
//! stripe gets a call in the time in which it fills. A share of the burst of one leaves no such
//! time: give the quota a burst of at least 2 N.
//!
//! # Costs above one
//!
//! A cost that no stripe has alone is taken from several, all or nothing, under a lock that
//! excludes other such calls (else two of them could defeat each other) but not plain takes: look
//! whether the sum suffices; reserve from each what it has; if plain takes were faster and the rest
//! is missing, cancel. When that happens every stripe was dry at its turn, and as of `now` none
//! fills up again, so the refusal was right. A cancel is exact (`reservation/ledger.rs`), so
//! nothing is lost and nothing is credited twice.

mod across_stripes;
mod builder;
mod next_permit;
mod share;

pub use builder::StripedBuilder;
use builder::StripedOptions;

use crate::{
    Algorithm, Clock, ConfigError, Decision, Inherit, Limiter, Quota, Tick,
    keyed::fingerprint::Seed,
    observe::{Collector, Counts, Event, Health, Instruments, Samples, Verb, WeakCollector},
    sync::{Arc, Mutex, MutexGuard, Padded, lock},
};
use next_permit::NextPermit;
use std::{
    cell::Cell,
    fmt,
    hash::Hash,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// One limit split over several cache lines, for threads that would fight for one.
///
/// Shares add up exactly to the quota, so it **never admits more** than burst + rate x w in any
/// interval w, nor what one [`Limiter`] charged with the same calls would refuse. With
/// [`Reach::All`], the default, a call is refused only if, at one instant, the whole permits of all
/// stripes together are fewer than its cost. [docs/striping.md] says when to use it, and what the
/// price is.
///
/// | call | looks at | refused although permits are free |
/// |---|---|---|
/// | [`try_acquire`](Self::try_acquire) | its thread's stripe, then all | fractions of a permit |
/// | the same with [`Reach::Home`] | its thread's stripe | what the other stripes hold |
/// | [`try_acquire_for`](Self::try_acquire_for) | the key's stripe | what the other stripes hold |
/// | the same, [exempt](StripedBuilder::exempt) key | the key's stripe, then all | fractions |
///
/// # Decisions
///
/// A decision speaks of the stripes it is about. An admission by one stripe tells that stripe's
/// [`limit`](Decision::limit), [`remaining`](Decision::remaining) and
/// [`full_at`](Decision::full_at), so `remaining` is a lower bound of what is free in all, and
/// [`available`](Self::available) is the sum. An admission from several stripes, and a refusal by
/// all, tell those of the whole. [`retry_at`](Decision::retry_at) is exact in an idle system: one
/// tick earlier the same call, from the same thread, is denied; at that tick it passes.
///
/// # Concurrency
///
/// As [`Limiter`]: plain takes need no lock. A cost that no stripe has alone, a refusal of an
/// exempt key, and the rare verbs take a short one, which plain takes do not see. A refusal changes
/// no stripe. The first one reads every stripe's word and notes when the next permit comes; until
/// then others are refused by that note.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, StripedLimiter};
///
/// let limiter = StripedLimiter::builder(Quota::per_second(1_000_000)).stripes(8).build()?;
/// assert!(limiter.try_acquire().is_allowed());
/// assert_eq!(limiter.shares().iter().map(|share| share.capacity()).sum::<u64>(), 1_000_000);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// [docs/striping.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/striping.md
#[derive(Clone)]
#[doc(alias = "ShardedLimiter")]
pub struct StripedLimiter {
    shared: Arc<Shared>,
}

struct Shared {
    /// Each has its word alone on its cache lines.
    stripes: Box<[Limiter]>,
    reach: Reach,
    name: Box<str>,
    seed: Seed,
    /// Fingerprints of the keys that look at every stripe, sorted.
    exempt: Box<[u64]>,
    /// The quota of the whole, and the right to work on several stripes at once. Lock order: this,
    /// then a stripe's own.
    book: Mutex<Quota>,
    next_permit: Padded<NextPermit>,
    instruments: Option<Box<Instruments>>,
}

/// Where a call without a key looks when its thread's stripe refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// At every other stripe, from a place that moves on with each look: nothing is refused while
    /// permits are free. The default.
    #[default]
    All,
    /// Nowhere: a refusal touches one cache line, and a thread gets its stripe's share at most.
    Home,
}

/// What a thread knows of itself.
struct Mine {
    /// Threads are numbered as they come.
    number: u32,
    /// Moves on with each look at other stripes, so that the same neighbour is not always the first
    /// to be plundered.
    turn: Cell<u32>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    // ORDERING: Relaxed. Each thread takes a number; nothing else is published with it. It wraps
    // after 2^32 threads, which only numbers them anew.
    static MINE: Mine =
        Mine { number: NEXT.fetch_add(1, Relaxed), turn: Cell::new(0) };
}

/// Returns this thread's place among `places`; threads take turns. `places` is at most 64.
pub(crate) fn home_of_thread(places: usize) -> usize {
    MINE.with(|mine| mine.number as usize % places)
}

/// Returns where this thread begins to look this time.
fn next_turn() -> usize {
    MINE.with(|mine| {
        mine.turn.set(mine.turn.get().wrapping_add(1));
        mine.turn.get() as usize
    })
}

impl StripedLimiter {
    /// The most stripes: a refusal looks at all of them.
    pub const STRIPES_MAX: usize = 64;

    /// The most keys that can be [exempt](StripedBuilder::exempt) from striping.
    pub const EXEMPT_MAX: usize = 1024;

    /// Starts a limiter with this quota in all.
    pub fn builder(quota: Quota) -> StripedBuilder {
        StripedBuilder::new(quota, StripedOptions::default())
    }

    /// Returns the time by this limiter's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.clock().now()
    }

    /// Returns this limiter's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.shared.stripes[0].clock()
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.shared.stripes[0].algorithm()
    }

    /// Returns the quota of the whole.
    #[must_use]
    pub fn quota(&self) -> Quota {
        *self.book()
    }

    /// Returns how many stripes there are.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.shared.stripes.len()
    }

    /// Returns the quota of each stripe. Rates and bursts add up exactly to those of the whole.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, StripedLimiter};
    ///
    /// let limiter = StripedLimiter::builder(Quota::per_second(10).burst(7)).stripes(4).build()?;
    /// let shares: Vec<_> = limiter.shares().iter().map(|share| share.to_string()).collect();
    /// assert_eq!(shares[0], "5 per 2s burst 2");
    /// assert_eq!(shares[3], "5 per 2s burst 1");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn shares(&self) -> Vec<Quota> {
        let _all = self.book();
        self.shared.stripes.iter().map(Limiter::quota).collect()
    }

    /// Changes the quota of a limiter in use, and keeps what each stripe holds as `how` says.
    ///
    /// The number of stripes stays. Stripes change one after the other, so for a moment some have
    /// their old share and some the new one. What a stripe keeps is cut at its own new burst: with
    /// [`Inherit::AsIs`] and a smaller burst, permits that lay unevenly may be lost, never gained.
    ///
    /// # Errors
    ///
    /// When the new quota cannot be split like this; the old one then stays in force.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Inherit, Quota, StripedLimiter};
    ///
    /// let limiter = StripedLimiter::builder(Quota::once(100)).stripes(4).build()?;
    /// let _ = limiter.try_acquire_n(60);
    /// limiter.set_quota(Quota::once(502), Inherit::Additive)?;
    /// assert_eq!(limiter.available(), 502 - 60);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn set_quota(&self, quota: Quota, how: Inherit) -> Result<(), ConfigError> {
        self.set_quota_at(self.now(), quota, how)
    }

    /// [`set_quota`](Self::set_quota) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota).
    pub fn set_quota_at(&self, now: Tick, quota: Quota, how: Inherit) -> Result<(), ConfigError> {
        let mut book = self.book();
        let shares = share::split(&quota, self.stripes(), self.algorithm())?;
        self.shared.next_permit.0.forget(&book);
        // The first share is the largest: if it can be counted, all can, so an error leaves
        // everything as it was.
        for (stripe, share) in self.shared.stripes.iter().zip(shares) {
            stripe.set_quota_at(now, share, how)?;
        }
        *book = quota;
        Ok(())
    }

    fn book(&self) -> MutexGuard<'_, Quota> {
        lock(&self.shared.book)
    }

    fn home(&self) -> usize {
        home_of_thread(self.stripes())
    }
}

impl StripedLimiter {
    /// Takes one permit if it is free now. Never waits.
    #[inline]
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits if all of them are free now, from several stripes if need be.
    ///
    /// A cost above the whole burst is denied as [never](Decision::is_never); with [`Reach::Home`],
    /// one above the stripe's share is.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, StripedLimiter};
    ///
    /// // Four stripes of 25. A cost of 90 takes from all of them, or from none.
    /// let limiter = StripedLimiter::builder(Quota::once(100)).stripes(4).build()?;
    /// assert!(limiter.try_acquire_n(90).is_allowed());
    /// assert!(limiter.try_acquire_n(11).is_denied());
    /// assert!(limiter.try_acquire_n(10).is_allowed());
    /// assert!(limiter.try_acquire_n(101).is_never());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[inline]
    pub fn try_acquire_n(&self, cost: u64) -> Decision {
        let home = self.home();
        let decision = self.shared.stripes[home].try_acquire_n(cost);
        self.or_elsewhere(home, decision, || self.now())
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    #[inline]
    pub fn try_acquire_at(&self, now: Tick, cost: u64) -> Decision {
        let home = self.home();
        let decision = self.shared.stripes[home].try_acquire_at(now, cost);
        self.or_elsewhere(home, decision, || now)
    }

    /// Returns the decision of the home stripe, or that of the others if it refused and they are within reach.
    #[inline(always)]
    fn or_elsewhere(&self, home: usize, own: Decision, now: impl FnOnce() -> Tick) -> Decision {
        if own.is_allowed() || self.shared.reach == Reach::Home {
            return self.report(Verb::TryAcquire, own);
        }
        self.report(Verb::TryAcquire, self.elsewhere(home, now(), own.cost()).taken_apart())
    }

    /// Takes one permit of the key's stripe if it is free now. Never waits.
    ///
    /// A key stays on its stripe, so a greedy key slows only the keys that share it, and can spend
    /// at most that stripe's share. The price: a key may be refused while other
    /// stripes have permits. [Exempt](StripedBuilder::exempt) keys are not: they look at every
    /// stripe.
    ///
    /// This limits all keys together; for a limit per key there is
    /// [`KeyedLimiter`](crate::KeyedLimiter).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, StripedLimiter};
    ///
    /// let limiter = StripedLimiter::builder(Quota::once(8)).stripes(4).exempt("vip").build()?;
    /// assert_eq!((0..8).filter(|_| limiter.try_acquire_for("guest").is_allowed()).count(), 2);
    /// assert_eq!((0..8).filter(|_| limiter.try_acquire_for("vip").is_allowed()).count(), 6);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn try_acquire_for<Q: Hash + ?Sized>(&self, key: &Q) -> Decision {
        self.try_acquire_for_n(key, 1)
    }

    /// Takes `cost` permits of the key's stripe if all of them are free now. Never waits.
    ///
    /// A cost above the stripe's share is denied as [never](Decision::is_never), unless the key is
    /// exempt.
    pub fn try_acquire_for_n<Q: Hash + ?Sized>(&self, key: &Q, cost: u64) -> Decision {
        self.try_acquire_for_at(key, self.now(), cost)
    }

    /// [`try_acquire_for_n`](Self::try_acquire_for_n) as of `now`.
    pub fn try_acquire_for_at<Q: Hash + ?Sized>(&self, key: &Q, now: Tick, cost: u64) -> Decision {
        let fingerprint = self.shared.seed.fingerprint(key);
        let home = self.home_of_key(fingerprint);
        let decision = self.shared.stripes[home].try_acquire_at(now, cost);
        if decision.is_allowed() || self.shared.exempt.binary_search(&fingerprint).is_err() {
            return self.report(Verb::TryAcquire, decision);
        }
        self.report(Verb::TryAcquire, self.insist(home, now, cost))
    }

    /// Tells whether a key is exempt from striping.
    #[must_use]
    pub fn is_exempt<Q: Hash + ?Sized>(&self, key: &Q) -> bool {
        self.shared.exempt.binary_search(&self.shared.seed.fingerprint(key)).is_ok()
    }

    /// Returns how many decisions went which way; all zero unless it is
    /// [`counted`](StripedBuilder::counted).
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.instruments.as_ref().map(|instruments| instruments.counts()).unwrap_or_default()
    }

    /// Tells whether it denies nearly everything: see [`Limiter::health`]. Always
    /// [`Health::Unknown`] unless it is [`counted`](StripedBuilder::counted).
    #[must_use]
    pub fn health(&self) -> Health {
        let instruments = self.shared.instruments.as_ref();
        instruments.map_or(Health::Unknown, |instruments| instruments.health(self.now()))
    }

    /// Counts a decision, if the builder said `counted()`.
    #[inline]
    fn report(&self, verb: Verb, decision: Decision) -> Decision {
        if let Some(instruments) = &self.shared.instruments {
            instruments.decided(verb, &decision, || Event::new(self.name(), verb, &decision));
        }
        decision
    }

    fn home_of_key(&self, fingerprint: u64) -> usize {
        // The upper half as a fraction of the stripes: even for every number of them.
        // OVERFLOW: below 2^32 x 64, and the quotient is below the number of stripes.
        (((fingerprint >> 32) * self.stripes() as u64) >> 32) as usize
    }
}

impl fmt::Debug for StripedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripedLimiter")
            .field("name", &self.name())
            .field("algorithm", &self.algorithm())
            .field("quota", &self.quota().to_string())
            .field("stripes", &self.stripes())
            .field("reach", &self.shared.reach)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

impl Collector for StripedLimiter {
    fn collect(&self, samples: &mut Samples) {
        let (now, quota) = (self.now(), self.quota());
        samples.kind("striped_limiter");
        samples.quota(quota);
        samples.level(self.available_at(now), quota.capacity());
        if let Some(instruments) = &self.shared.instruments {
            instruments.collect(samples, now);
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}
