//! Batches of permits for very hot limiters and keys.

use crate::{
    Decision, KeyedLimiter, Limiter, Reservation, Tick, decision::Level, keyed::core::Key,
    limiter::cell::Cell, observe::Verb, reservation::Owner, verbs::StateRef,
};
use std::{fmt, hash::Hash, time::Duration};

/// A batch of permits held by one thread or task, so that most takes touch nothing shared.
///
/// Made by [`Limiter::lease`] and [`KeyedLimiter::lease`]. Permits leave the limiter *before* they are
/// used, so the limit is never exceeded in the long run; they are only used a little later than they
/// were taken.
///
/// | bound | |
/// |---|---|
/// | long run | never over: every permit was taken from the limiter first |
/// | any interval w | at most burst + rate x w + the permits held by all leases when it began |
/// | held permits | at most `batch` per lease; older than `life` they are not used any more |
///
/// A lease gives back what it has not used, and time has not refilled already, when it is next asked
/// after its life, or dropped. A change of the quota ends its batch; for a key, a change of any quota.
/// A limiter that is counted, observed, bypassed or unlimited decides about every permit, and so does a key that is
/// blocked, listed or counted. Choose a batch well below the burst divided by the number of leases:
/// what one lease holds, the others miss.
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
pub struct Lease {
    owner: Owner,
    batch: u64,
    life: Duration,
    /// Permits taken from the limiter and not used yet.
    held: u64,
    expires: Tick,
    /// How often quotas had changed before the batch was taken.
    changes: u64,
    claim: Claim,
}

/// What a lease can give back.
#[derive(Default)]
enum Claim {
    #[default]
    Nothing,
    /// As an entry of the ledger, but kept here, because most batches are used up and never come back.
    Limiter {
        mark: u64,
        /// Units refunded before the batch was taken.
        refunded: u64,
    },
    Key(Reservation),
}

impl Limiter {
    /// Returns an empty lease that takes `batch` permits at a time and holds them for `life`.
    ///
    /// A batch of zero counts as one: every take then goes to the limiter.
    #[must_use]
    pub fn lease(&self, batch: u64, life: Duration) -> Lease {
        Lease::new(&StateRef::Limiter(self), batch, life)
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Returns an empty lease that takes `batch` permits of a key at a time and holds them for
    /// `life`. A batch of zero counts as one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Quota};
    ///
    /// let tenants = KeyedLimiter::<str>::new(Quota::per_second(100_000))?;
    /// let mut lease = tenants.lease("acme", 64, Duration::from_millis(10));
    /// assert!((0..1000).all(|_| lease.try_acquire().is_allowed()));
    /// # Ok::<(), tollgate::KeyedError>(())
    /// ```
    #[must_use]
    pub fn lease(&self, key: &K, batch: u64, life: Duration) -> Lease {
        Lease::new(&StateRef::Key(&self.core, Key::plain(self.named(key))), batch, life)
    }
}

impl Lease {
    fn new(of: &StateRef<'_>, batch: u64, life: Duration) -> Self {
        let (batch, expires, claim) = (batch.max(1), Tick::ZERO, Claim::Nothing);
        Self { owner: of.owner(), batch, life, held: 0, expires, changes: 0, claim }
    }

    /// Takes one permit from the batch, or a new batch if that is used up.
    #[inline(always)]
    pub fn try_acquire(&mut self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits from the batch, or more from the limiter if they do not suffice.
    #[inline(always)]
    pub fn try_acquire_n(&mut self, cost: u64) -> Decision {
        let (clock, is_special, changes) = match &self.owner {
            Owner::Limiter(limiter) => {
                (limiter.clock(), limiter.is_special(), limiter.shared.claim_base().1)
            }
            Owner::Key { core, .. } => (&core.clock, core.mode() != 0, core.changes()),
        };
        // About now is enough: it only lets a batch live a little longer.
        let now = clock.about_now();
        let is_good = !is_special && changes == self.changes && now < self.expires;
        if is_good && self.held >= cost && self.held > 0 {
            self.held -= cost;
            return self.held_decision(now, cost);
        }
        self.refill(is_special, changes, cost).taken_apart()
    }

    #[inline(always)]
    fn held_decision(&self, now: Tick, cost: u64) -> Decision {
        let level = Level { at: now, limit: self.batch, remaining: self.held, full: 0 };
        Decision::allowed(level, cost)
    }

    /// Takes a batch, or as much of it as is free, and `cost` from it.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, is_special: bool, changes: u64, cost: u64) -> Decision {
        self.give_back();
        let (of, wanted) = (self.owner.state_ref(), self.batch.max(cost));
        let now = of.clock().now();
        if is_special {
            return of.ask(Verb::TryAcquire, now, cost);
        }
        let taken = match of {
            StateRef::Limiter(limiter) => {
                let (refunded, _) = limiter.shared.claim_base();
                let (decision, mark) = limiter.shared.cell.update(|entry| {
                    let batch = wanted.min(entry.available(now)).max(cost);
                    (entry.decide(now, batch), entry.taken(now, batch).mark)
                });
                if decision.is_denied() {
                    return decision;
                }
                self.claim = Claim::Limiter { mark, refunded };
                decision.cost()
            }
            StateRef::Key(..) => match of.lease(now, wanted).1 {
                Some(reserved) if reserved.cost() >= cost => {
                    let taken = reserved.cost();
                    self.claim = Claim::Key(reserved);
                    taken
                }
                // Not enough: what there is goes back, and the key says when there will be.
                reserved => {
                    reserved.map(Reservation::cancel);
                    return of.ask(Verb::TryAcquire, now, cost);
                }
            },
        };
        (self.held, self.changes) = (taken - cost, changes);
        self.expires = now.saturating_add(self.life);
        self.held_decision(now, cost)
    }

    /// Returns the permits held.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Gives back what is not used yet, and time has not refilled already.
    pub fn give_back(&mut self) {
        let held = std::mem::take(&mut self.held);
        if let (Claim::Limiter { mark, refunded }, Owner::Limiter(limiter)) =
            (&self.claim, &self.owner)
        {
            if held > 0 {
                limiter.take_back(self.changes, (*mark, *refunded), held);
            }
        } else if let Claim::Key(reserved) = std::mem::take(&mut self.claim) {
            let used = reserved.cost().saturating_sub(held);
            let _ = reserved.settle(used);
        }
    }
}

impl Limiter {
    /// Takes back what is still outstanding of the last `held` permits of a batch.
    ///
    /// The rule of the ledger, but every refund since the take counts as one of an older take, so
    /// it may give back less. The claims of open reservations are lowered likewise.
    fn take_back(&self, changes_then: u64, (mark, refunded_then): (u64, u64), held: u64) {
        let (now, mut book) = (self.now(), self.book());
        let (refunded, changes) = self.shared.claim_base();
        // While a caller waits, only a take whose place is known exactly may be given back.
        if changes != changes_then || book.waiting_units() > 0 {
            return;
        }
        let is_gcra = matches!(self.shared.cell, Cell::Gcra(_));
        let since = refunded.wrapping_sub(refunded_then);
        // A refund of an older take moves the place of this one (GCRA), or may have been this one.
        let (mark, lost) = if is_gcra { (mark.saturating_sub(since), 0) } else { (mark, since) };
        let (amount, whole) = self.shared.cell.update(|entry| {
            let units = entry.taken(now, held).units;
            entry.give_back(now, mark, units.saturating_sub(lost))
        });
        if is_gcra {
            book.ledger.lower_all(amount);
        }
        self.shared.count_refund(amount);
        self.release(book);
        if let Some(instruments) = self.instruments() {
            instruments.counters.refund(whole);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("batch", &self.batch)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
