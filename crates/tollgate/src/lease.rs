//! Batches of permits for very hot limiters.

use crate::{Decision, Limiter, Reservation, Tick, algorithm::timeline::Timeline, decision::Level};
use std::time::Duration;

/// A batch of permits held by one thread or task, so that most takes touch nothing shared.
///
/// Made by [`Limiter::lease`]. Permits leave the limiter *before* they are used, so the limit is
/// never exceeded in the long run; they are only used a little later than they were taken.
///
/// | bound | |
/// |---|---|
/// | long run | never over: every permit was taken from the limiter first |
/// | any interval w | at most burst + rate x w + the permits held by all leases when it began |
/// | held permits | at most `batch` per lease, given back after `life` (plus the clock's margin) |
///
/// A lease that expires, or is dropped, gives back what it has not used, by the rule of
/// [`Reservation::settle`]. Choose a batch well below the burst divided by the number of leases:
/// what one lease holds, the others miss.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(1_000_000))?;
/// let mut lease = limiter.lease(64, Duration::from_millis(10));
/// let passed = (0..1000).filter(|_| lease.try_acquire().is_allowed()).count();
/// assert_eq!(passed, 1000);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    limiter: Limiter,
    batch: u64,
    life: Duration,
    /// Permits taken from the limiter and not used yet.
    held: u64,
    expires: Tick,
    source: Option<Reservation>,
}

impl Limiter {
    /// Returns an empty lease that takes `batch` permits at a time and holds them for `life`.
    ///
    /// A batch of zero counts as one: every take then goes to the limiter.
    #[must_use]
    pub fn lease(&self, batch: u64, life: Duration) -> Lease {
        let (batch, expires) = (batch.max(1), Tick::ZERO);
        Lease { limiter: self.clone(), batch, life, held: 0, expires, source: None }
    }
}

impl Lease {
    /// Takes one permit from the batch, or a new batch if that is used up.
    #[inline]
    pub fn try_acquire(&mut self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits from the batch, or more from the limiter if they do not suffice.
    #[inline]
    pub fn try_acquire_n(&mut self, cost: u64) -> Decision {
        let clock = self.limiter.clock();
        // The early reading does: it only lets a batch live a little longer.
        let now = clock.early().unwrap_or_else(|| clock.now());
        if self.held >= cost && now < self.expires {
            self.held -= cost;
            return self.held_decision(now, cost);
        }
        self.refill(cost)
    }

    #[inline]
    fn held_decision(&self, now: Tick, cost: u64) -> Decision {
        let level = Level { at: now, limit: self.batch, remaining: self.held, full: 0 };
        Decision::allowed(Timeline::TICKS, level, cost)
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self, cost: u64) -> Decision {
        self.give_back();
        let now = self.limiter.now();
        if self.limiter.exempt(now, cost).is_some() {
            return self.limiter.try_acquire_at(now, cost);
        }
        let wanted = self.batch.max(cost);
        let batch = wanted.min(self.limiter.available_at(now)).max(cost);
        match self.limiter.reserve_at(now, batch, Duration::ZERO) {
            Ok(reservation) => {
                self.held = batch - cost;
                self.expires = now.saturating_add(self.life);
                self.source = Some(reservation);
                self.held_decision(now, cost)
            }
            // The last permits were taken between the two calls, or there are too few.
            Err(_) => self.limiter.try_acquire_at(now, cost),
        }
    }

    /// Returns the permits held.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Gives back what is not used yet.
    pub fn give_back(&mut self) {
        if let Some(source) = self.source.take() {
            let used = source.cost() - self.held;
            let _level = source.settle(used);
        }
        self.held = 0;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}
