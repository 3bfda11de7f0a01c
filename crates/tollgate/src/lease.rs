//! Batches of permits for very hot limiters.

use crate::{
    Decision, Limiter, Tick,
    decision::Level,
    limiter::{Shared, cell::Cell},
};
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
/// | held permits | at most `batch` per lease; older than `life` they are not used any more |
///
/// A lease gives back what it has not used, and time has not refilled already, when it is next asked
/// after its life, or dropped. A change of the quota ends its batch. A limiter that is watched,
/// bypassed or unlimited is asked for every permit. Choose a batch well below the burst divided by
/// the number of leases: what one lease holds, the others miss.
///
/// Decisions of a lease are about its batch: [`limit`](Decision::limit) and
/// [`remaining`](Decision::remaining) count the permits it holds.
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
    claim: Claim,
}

/// What a lease can give back: as an entry of the ledger, but kept here, because most batches are
/// used up and never come back.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    mark: u64,
    /// Units refunded, and changes of the quota, before the batch was taken.
    base: (u64, u64),
}

impl Limiter {
    /// Returns an empty lease that takes `batch` permits at a time and holds them for `life`.
    ///
    /// A batch of zero counts as one: every take then goes to the limiter.
    #[must_use]
    pub fn lease(&self, batch: u64, life: Duration) -> Lease {
        let (batch, expires) = (batch.max(1), Tick::ZERO);
        Lease { limiter: self.clone(), batch, life, held: 0, expires, claim: Claim::default() }
    }
}

#[allow(clippy::inline_always, reason = "measured: a call costs more than the take itself")]
impl Lease {
    /// Takes one permit from the batch, or a new batch if that is used up.
    #[inline(always)]
    pub fn try_acquire(&mut self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits from the batch, or more from the limiter if they do not suffice.
    #[inline(always)]
    pub fn try_acquire_n(&mut self, cost: u64) -> Decision {
        // The early reading does: it only lets a batch live a little longer.
        let Shared { early, clock, .. } = &*self.limiter.shared;
        let now = match early.margin() {
            Duration::ZERO => clock.now(),
            _ => early.read().unwrap_or_else(|| clock.now()),
        };
        if self.held >= cost && now < self.expires && self.is_good() {
            self.held -= cost;
            return self.held_decision(now, cost);
        }
        self.refill(cost).taken_apart()
    }

    /// Tells whether the batch still counts: nothing special is going on, the quota is the same,
    /// and there is a batch at all.
    #[inline(always)]
    fn is_good(&self) -> bool {
        let (_, changes) = self.limiter.shared.claim_base();
        self.held > 0 && !self.limiter.is_special() && changes == self.claim.base.1
    }

    #[inline(always)]
    fn held_decision(&self, now: Tick, cost: u64) -> Decision {
        let level = Level { at: now, limit: self.batch, remaining: self.held, full: 0 };
        Decision::allowed(level, cost)
    }

    /// Takes a batch, or as much of it as is free, and `cost` from it.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, cost: u64) -> Decision {
        self.give_back();
        let (limiter, wanted) = (&self.limiter, self.batch.max(cost));
        let now = limiter.now();
        if limiter.is_special() {
            return limiter.try_acquire_at(now, cost);
        }
        let base = limiter.shared.claim_base();
        let (decision, mark) = limiter.shared.cell.update(|entry| {
            let batch = wanted.min(entry.available(now)).max(cost);
            (entry.decide(now, batch), entry.taken(now, batch).mark)
        });
        if decision.is_denied() {
            return decision;
        }
        self.held = decision.cost() - cost;
        self.expires = now.saturating_add(self.life);
        self.claim = Claim { mark, base };
        self.held_decision(now, cost)
    }

    /// Returns the permits held.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Gives back what is not used yet.
    pub fn give_back(&mut self) {
        if self.held > 0 {
            let now = self.limiter.now();
            self.limiter.take_back(now, self.claim, std::mem::take(&mut self.held));
        }
    }
}

impl Limiter {
    /// Takes back what is still outstanding of the last `held` permits of a batch.
    ///
    /// The rule of the ledger, but every refund since the take counts as one of an older take, so
    /// it may give back less. The claims of open reservations are lowered likewise.
    fn take_back(&self, now: Tick, claim: Claim, held: u64) {
        let mut book = self.book();
        let ((refunded, changes), (refunded_then, changes_then)) =
            (self.shared.claim_base(), claim.base);
        // While somebody waits, only a take whose place is known exactly may be given back.
        if changes != changes_then || book.waiting_units() > 0 {
            return;
        }
        let is_gcra = matches!(self.shared.cell, Cell::Gcra(_));
        let since = refunded.wrapping_sub(refunded_then);
        // A refund of an older take moves the place of this one (GCRA), or may have been this one.
        let (mark, lost) =
            if is_gcra { (claim.mark.saturating_sub(since), 0) } else { (claim.mark, since) };
        let (amount, whole) = self.shared.cell.update(|entry| {
            let units = entry.taken(now, held).units;
            entry.give_back(now, mark, units.saturating_sub(lost))
        });
        if is_gcra {
            book.ledger.lower_all(amount);
        }
        self.shared.note_refund(amount);
        self.release(book);
        if let Some(watch) = self.watch() {
            watch.refunded(whole);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}
