//! Refusals that need no store.
//!
//! A refusal says from when the same call passes. Until then nothing can make it pass but a refund, a
//! reset, a settlement or another quota; so the same call, or a dearer one, is refused without
//! asking. What this process gives back drops the entry at once. What others give back is noticed
//! when the entry ends: after its wait, and at the latest after the cap.
//!
//! | | what a remembered refusal answers |
//! |---|---|
//! | the same cost | the store's own answer, exact to the tick |
//! | a dearer call, GCRA | the wait for what it needs more, rounded up to 1 ns |
//! | a dearer call, windows | the end of the window |
//! | a dearer call, sliding counter or log | not answered: the store is asked |
//! | a cheaper call | not answered: it may pass |
//!
//! What remains is told exactly too: by GCRA it grows with time, in windows it does not change. Of the
//! sliding algorithms a refusal is remembered only if one permit was missing, because then nothing
//! remains to be told but what was left.

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
    /// When it is forgotten, whatever the wait is.
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
        // At `until` there will be `cost`; before it, less by what refills meanwhile.
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

    /// Refuses what is known to be refused. Else returns the epoch, for [`note`](Self::note).
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

    /// Remembers a refusal, unless something was given back since `epoch`; a take makes an older
    /// refusal stale.
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

    /// Forgets a key: something was given back, or taken in another way.
    pub(super) fn forget(&self, id: u128) {
        let mut bucket = self.table.bucket(id);
        bucket.epoch = bucket.epoch.wrapping_add(1);
        bucket.remove(id);
    }

    pub(super) fn count(&self) -> (usize, Tally) {
        self.table.count()
    }
}
