//! Refusals that need no store.
//!
//! A refusal says when the same call passes. Until then only a refund, a reset, a settlement or
//! another quota can make it pass; so the same call, or one with a higher cost, is refused without
//! a store call. When this process gives permits back, it drops the entry at once. When another
//! process does, this one notices when the entry ends: after its wait, and at the latest after the
//! cap.
//!
//! | call | answer from a remembered refusal |
//! |---|---|
//! | the same cost | the store's own answer, exact to the tick |
//! | a higher cost, GCRA | the wait for the permits that it needs more, rounded up to 1 ns |
//! | a higher cost, windows | the end of the window |
//! | a higher cost, sliding counter or log | none: the store decides |
//! | a lower cost | none: it may pass |
//!
//! The remaining permits are exact, too: with GCRA they grow with time, in windows they do not
//! change. For the sliding algorithms a refusal is remembered only if one permit was missing,
//! because then the number of remaining permits does not change before the wait is over.

use super::table::{Slot, Table, Tally};
use std::time::Duration;
use tollgate::{Algorithm, Answer, Decision, Outcome, Quota, Reason, Tick, store::Demand};

pub(super) struct Denial {
    quota: Quota,
    algorithm: Algorithm,
    cost: u64,
    limit: u64,
    remaining: u64,
    until: Tick,
    /// When the entry ends, regardless of the wait.
    ends: Tick,
    full_at: Option<Tick>,
}

impl Denial {
    /// Returns the refusal of a demand; `None` if the store must be asked.
    fn refuse(&self, now: Tick, demand: &Demand<'_>) -> Option<Decision> {
        let cost = demand.cost();
        let is_same = self.quota == demand.quota()
            && self.algorithm == demand.policy().algorithm()
            && now < self.until.min(self.ends);
        if !is_same || cost < self.cost || cost > self.limit {
            return None;
        }
        let more = cost - self.cost;
        let retry_at = match self.algorithm {
            _ if more == 0 => self.until,
            Algorithm::Gcra => self.until.saturating_add(refill_time(&self.quota, more)?),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => self.until,
            _ => return None,
        };
        Some(Decision::answered(Answer {
            outcome: Outcome::Later,
            at: now,
            cost,
            limit: self.limit,
            remaining: self.remaining_at(now),
            retry_at,
            full_at: self.full_at,
        }))
    }

    fn remaining_at(&self, now: Tick) -> u64 {
        if self.algorithm != Algorithm::Gcra {
            return self.remaining;
        }
        // At `until`, `cost` permits remain; before it, fewer by the number that refills meanwhile.
        // OVERFLOW: a wait of 64 bits by a count of 55.
        let wait = u128::from(self.until.since(now).as_nanos() as u64);
        let missing =
            (wait * u128::from(self.quota.count())).div_ceil(self.quota.period().as_nanos().max(1));
        self.cost.saturating_sub(u64::try_from(missing).unwrap_or(u64::MAX))
    }
}

impl Slot for Denial {
    fn rank(&self) -> Option<u64> {
        Some(self.until.min(self.ends).as_nanos())
    }
}

/// Returns how long `permits` take to refill, rounded up.
fn refill_time(quota: &Quota, permits: u64) -> Option<Duration> {
    let nanos = u128::from(permits).checked_mul(quota.period().as_nanos())?;
    let nanos = nanos.div_ceil(u128::from(quota.count()).max(1));
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// The refusals of this process.
pub(super) struct DenialCache {
    table: Table<Denial>,
    cap: Duration,
}

impl DenialCache {
    pub(super) fn new(entries: usize, cap: Duration) -> Self {
        Self { table: Table::new(entries), cap }
    }

    pub(super) fn cap(&self) -> Duration {
        self.cap
    }

    /// Refuses a demand that is known to be refused. Otherwise returns the epoch, for
    /// [`note`](Self::note).
    pub(super) fn refuse(&self, id: u128, now: Tick, demand: &Demand<'_>) -> Result<Decision, u64> {
        if self.cap.is_zero() {
            return Err(0);
        }
        let mut bucket = self.table.bucket(id);
        let refusal = bucket.get(id).and_then(|(denial, tally)| {
            let refusal = denial.refuse(now, demand)?;
            tally.refused += 1;
            Some(refusal)
        });
        refusal.ok_or(bucket.epoch)
    }

    /// Remembers a refusal, unless permits were given back since `epoch`; a take removes an older
    /// refusal.
    pub(super) fn note(&self, demand: &Demand<'_>, (id, epoch): (u128, u64), own: &Decision) {
        let cost = demand.cost();
        if self.cap.is_zero() || cost == 0 {
            return;
        }
        let mut bucket = self.table.bucket(id);
        let algorithm = demand.policy().algorithm();
        let known = bucket.get(id).map(|(denial, _)| (denial.cost, denial.until.min(denial.ends)));
        if own.is_allowed() {
            bucket.remove(id);
            return;
        }
        let is_told = cost.saturating_sub(own.remaining()) == 1
            || !matches!(algorithm, Algorithm::SlidingCounter | Algorithm::SlidingLog);
        let is_cheaper = known.is_some_and(|(known, ends)| known < cost && own.at() < ends);
        let (Some(until), true) = (own.retry_at(), own.reason() == Reason::Quota) else { return };
        if !is_told || is_cheaper || bucket.epoch != epoch {
            return;
        }
        bucket.remove(id);
        bucket.insert(
            id,
            Denial {
                quota: demand.quota(),
                algorithm,
                cost,
                limit: own.limit(),
                remaining: own.remaining(),
                until,
                ends: own.at().saturating_add(self.cap),
                full_at: own.full_at(),
            },
        );
    }

    /// Forgets the refusal of a key: another verb has given back or taken permits.
    pub(super) fn forget(&self, id: u128) {
        let mut bucket = self.table.bucket(id);
        bucket.epoch = bucket.epoch.wrapping_add(1);
        bucket.remove(id);
    }

    pub(super) fn count(&self) -> (usize, Tally) {
        self.table.count()
    }
}
