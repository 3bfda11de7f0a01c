//! The rule of a borrowing tree, which class may borrow from which, without locks and tables.
//!
//! # The idea
//!
//! Every class has two buckets: the *rate* bucket holds what it is guaranteed, the *ceiling* bucket
//! what it may use at most. An event comes to the last class of a path, the leaf, and looks for
//! a class whose rate bucket pays: the leaf first, then its ancestors from the bottom up. The class that
//! pays is the *lender*.
//!
//! ```text
//! class i can lend to the leaf  if  rate_i has cost, and the reserve below unless i is the leaf
//!                              and  ceiling_j has cost for every class j from the leaf up to i
//!                              and  ceiling_j has cost for every hard class j above i
//! charged                          ceiling of every class on the path,
//!                                  rate of the lender and of every class above it
//! ```
//!
//! The classes above the lender do not decide, but are charged, into debt if need be. So a guaranteed
//! share is had whatever the others do, and the debt it leaves above stops those who borrow.
//!
//! # Priority
//!
//! A lender keeps an eighth of its burst for each step of priority: an event of priority k borrows
//! only if k/8 of the burst stay behind, rounded down to whole permits. Under pressure the level of
//! the lender falls to where only the first priority still gets in.
//!
//! # Waits
//!
//! In an idle system buckets only fill, so every condition above holds from some tick on. A lender
//! can lend from the latest of its ticks on, and the call passes from the earliest of all lenders
//! on: that is the `retry_at` of a denial, and it is exact.
//!
//! # Exact and approximate
//!
//! Buckets are those of [`Gcra`], with its bounds. A debt is at most what 60 seconds refill
//! ([`DEBT_MAX`]); beyond that, it is forgiven.
//!
//! Source: Linux `net/sched/sch_htb.c`. Departures: (1) events are admitted or refused when they
//! come, there is no queue, so what is idle goes to the first event and not by deficit round
//! robin; (2) a bucket must hold the whole cost, where the kernel sends as long as it is not
//! negative; (3) no hysteresis; (4) hard ceilings; (5) priority by a reserve, because there is no
//! queue to serve first.

use super::BorrowingDecision;
use crate::{
    Decision, Tick,
    algorithm::{Gcra, Step, word_time},
    decision::Level,
    multi::inline_vec::InlineVec,
};
use std::time::Duration;

/// The most debt of a bucket, as the time it takes to refill: that of the kernel's `mbuffer`.
pub(super) const DEBT_MAX: Duration = Duration::from_secs(60);

/// Steps of priority that a burst is divided into.
pub(super) const PRIORITIES: u8 = 8;

/// A bucket as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) gcra: Gcra,
    pub(super) tat: u64,
}

/// The buckets of one class of a path. The root is number 0, the leaf the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathBuckets {
    pub(super) rate: Bucket,
    pub(super) ceiling: Bucket,
    /// What the class keeps when it lends, see [`Bucket::reserve`]; the leaf keeps nothing from itself.
    pub(super) reserve: u64,
    pub(super) is_hard: bool,
}

/// An event that wants to pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) now: Tick,
    pub(super) cost: u64,
}

/// No wait helps.
const NEVER: u64 = u64::MAX;

impl Bucket {
    /// Returns from when on, in nanoseconds, the bucket has `cost`; `now` if it has.
    fn ready(&self, now: Tick, cost: u64) -> u64 {
        let decision = self.gcra.peek(&self.tat, now, cost);
        if decision.is_allowed() {
            return now.as_nanos();
        }
        decision.retry_at().map_or(NEVER, Tick::as_nanos)
    }

    fn full(&self, now: Tick) -> u64 {
        self.gcra.peek(&self.tat, now, 0).booked()
    }

    fn charge(&mut self, Request { now, cost }: Request) {
        self.gcra.charge_within(&mut self.tat, now, cost, DEBT_MAX);
    }

    /// Returns the part of the burst that is not lent to events of this priority.
    pub(super) fn reserve(&self, priority: u8) -> u64 {
        // OVERFLOW: a burst is at most 10^15, and a priority below 8.
        self.gcra.burst() * u64::from(priority) / u64::from(PRIORITIES)
    }
}

/// A class that can lend, from `ready` on.
#[derive(Clone, Copy)]
struct Lending {
    lender: usize,
    ready: u64,
}

/// Decides. If the event passes, the buckets are charged.
pub(super) fn decide(path: &mut InlineVec<PathBuckets>, request: &Request) -> BorrowingDecision {
    let Request { now, cost } = *request;
    let Lending { lender, ready } = earliest(path, request);
    let is_allowed = ready <= now.as_nanos();
    if is_allowed {
        charge(path, lender, *request);
    }
    let available = |bucket: &Bucket| bucket.gcra.available(&bucket.tat, now);
    let level = Level {
        at: now,
        limit: most(path, |bucket| bucket.gcra.burst()),
        remaining: most(path, available),
        full: path.iter().map(|it| it.rate.full(now).max(it.ceiling.full(now))).max().unwrap_or(0),
    };
    if is_allowed {
        let (decision, is_own) = (Decision::allowed(level, cost), lender + 1 == path.len());
        return BorrowingDecision { decision, lender: Some(lender), is_own };
    }
    let decision = match ready {
        NEVER => Decision::never(level, cost),
        ready => Decision::later(level, cost, word_time::from_nanos(ready)),
    };
    let decision = decision.naming(refusing(path, lender, request));
    BorrowingDecision { decision, lender: None, is_own: false }
}

/// Tells whether the ceiling of class `index` counts when `lender` lends.
const fn ceiling_counts(index: usize, lender: usize, is_hard: bool) -> bool {
    index >= lender || is_hard
}

/// Returns the lender that can lend first; of several, the one nearest to the leaf.
fn earliest(path: &InlineVec<PathBuckets>, request: &Request) -> Lending {
    let Request { now, cost } = *request;
    let mut best = Lending { lender: path.len().saturating_sub(1), ready: NEVER };
    // The ceilings from the leaf up to the lender.
    let mut below = 0;
    for lender in (0..path.len()).rev() {
        let Some(buckets) = path.get(lender) else { break };
        below = below.max(buckets.ceiling.ready(now, cost));
        let hard = path.iter().take(lender).filter(|it| it.is_hard);
        let above = hard.map(|it| it.ceiling.ready(now, cost)).max().unwrap_or(0);
        let wanted = cost.saturating_add(buckets.reserve);
        let ready = buckets.rate.ready(now, wanted).max(below).max(above);
        if ready < best.ready {
            best = Lending { lender, ready };
        }
        if ready <= now.as_nanos() {
            break;
        }
    }
    best
}

/// Returns the largest cost that some lender would lend, if buckets held what `held` says.
fn most(path: &InlineVec<PathBuckets>, held: impl Fn(&Bucket) -> u64) -> u64 {
    let lent = path.iter().enumerate().map(|(lender, buckets)| {
        let ceilings = path.iter().enumerate();
        let ceilings = ceilings.filter(|(index, it)| ceiling_counts(*index, lender, it.is_hard));
        let least = ceilings.map(|(_, it)| held(&it.ceiling)).min().unwrap_or(0);
        held(&buckets.rate).saturating_sub(buckets.reserve).min(least)
    });
    lent.max().unwrap_or(0)
}

/// Returns the classes that the earliest lender waits for, one bit each.
fn refusing(path: &InlineVec<PathBuckets>, lender: usize, request: &Request) -> u64 {
    let Request { now, cost } = *request;
    let mut refused = 0;
    for (index, it) in path.iter().enumerate() {
        let wanted = cost.saturating_add(it.reserve);
        let ceiling = ceiling_counts(index, lender, it.is_hard)
            && it.ceiling.ready(now, cost) > now.as_nanos();
        let rate = index == lender && it.rate.ready(now, wanted) > now.as_nanos();
        refused |= u64::from(ceiling || rate) << index;
    }
    refused
}

fn charge(path: &mut InlineVec<PathBuckets>, lender: usize, request: Request) {
    for (index, buckets) in path.slice_mut().iter_mut().flatten().enumerate() {
        buckets.ceiling.charge(request);
        if index <= lender {
            buckets.rate.charge(request);
        }
    }
}
