//! Who may borrow from whom: the rule of a borrowing tree, without locks and tables.
//!
//! # The idea
//!
//! Every class has two buckets: the *rate* bucket holds what it is guaranteed, the *ceiling* bucket
//! what it may use at most. An event comes to the last class of a path, the leaf, and looks for
//! somebody whose rate bucket pays: itself first, then its ancestors from the bottom up. Whoever
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
//! The classes above the lender are not asked, but charged, into debt if need be. So a guaranteed
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
//! come, there is no queue, so what is idle goes to whoever comes first and not by deficit round
//! robin; (2) a bucket must hold the whole cost, where the kernel sends as long as it is not
//! negative; (3) no hysteresis; (4) hard ceilings; (5) priority by a reserve, because there is no
//! queue to serve first.

use crate::{
    Decision, Tick,
    algorithm::{Gcra, Step, word_time},
    decision::Level,
    limits::inline_vec::InlineVec,
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

/// One class of a path. Rungs are numbered from the root, 0, down to the leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rung {
    pub(super) rate: Bucket,
    pub(super) ceiling: Bucket,
    pub(super) is_hard: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) now: Tick,
    pub(super) cost: u64,
    /// Of the leaf.
    pub(super) priority: u8,
}

/// What is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    /// The number of the class that pays, if the event passes.
    pub(super) lender: Option<usize>,
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

    fn charge(&mut self, ask: &Ask) {
        self.gcra.charge_within(&mut self.tat, ask.now, ask.cost, DEBT_MAX);
    }
}

/// A way for the event to pass, from `ready` on.
#[derive(Clone, Copy)]
struct Way {
    lender: usize,
    ready: u64,
}

/// Decides. If the event passes, the rungs are charged.
pub(super) fn decide(rungs: &mut InlineVec<Rung>, ask: &Ask) -> Verdict {
    let Ask { now, cost, .. } = *ask;
    let way = earliest(rungs, ask);
    let is_allowed = way.ready <= now.as_nanos();
    if is_allowed {
        charge(rungs, way.lender, ask);
    }
    let available = |bucket: &Bucket| bucket.gcra.available(&bucket.tat, now);
    let level = Level {
        at: now,
        limit: most(rungs, ask.priority, |bucket| bucket.gcra.burst()),
        remaining: most(rungs, ask.priority, available),
        full: rungs.iter().map(|it| it.rate.full(now).max(it.ceiling.full(now))).max().unwrap_or(0),
    };
    if is_allowed {
        let decision = Decision::allowed(level, cost);
        return Verdict { decision, lender: Some(way.lender) };
    }
    let decision = match way.ready {
        NEVER => Decision::never(level, cost),
        ready => Decision::later(level, cost, word_time::from_nanos(ready)),
    };
    Verdict { decision: decision.naming(refusing(rungs, way.lender, ask)), lender: None }
}

/// What a lender keeps for higher priorities; the leaf keeps nothing from itself.
fn reserve(bucket: &Bucket, (lender, leaf): (usize, usize), priority: u8) -> u64 {
    // OVERFLOW: a burst is at most 10^15, and a priority below 8.
    let kept = bucket.gcra.burst() * u64::from(priority) / u64::from(PRIORITIES);
    if lender == leaf { 0 } else { kept }
}

/// Tells whether the ceiling of class `index` counts when `lender` lends.
const fn is_asked(index: usize, lender: usize, is_hard: bool) -> bool {
    index >= lender || is_hard
}

/// Returns the lender that can lend first; of several, the one nearest to the leaf.
fn earliest(rungs: &InlineVec<Rung>, ask: &Ask) -> Way {
    let Ask { now, cost, priority } = *ask;
    let leaf = rungs.len().saturating_sub(1);
    let mut best = Way { lender: leaf, ready: NEVER };
    // The ceilings from the leaf up to the lender.
    let mut below = 0;
    for lender in (0..rungs.len()).rev() {
        let Some(rung) = rungs.get(lender) else { break };
        below = below.max(rung.ceiling.ready(now, cost));
        let hard = rungs.iter().take(lender).filter(|it| it.is_hard);
        let above = hard.map(|it| it.ceiling.ready(now, cost)).max().unwrap_or(0);
        let wanted = cost.saturating_add(reserve(&rung.rate, (lender, leaf), priority));
        let ready = rung.rate.ready(now, wanted).max(below).max(above);
        if ready < best.ready {
            best = Way { lender, ready };
        }
        if ready <= now.as_nanos() {
            break;
        }
    }
    best
}

/// Returns the largest cost that some lender would lend, if buckets held what `held` says.
fn most(rungs: &InlineVec<Rung>, priority: u8, held: impl Fn(&Bucket) -> u64) -> u64 {
    let leaf = rungs.len().saturating_sub(1);
    let lent = rungs.iter().enumerate().map(|(lender, rung)| {
        let ceilings = rungs.iter().enumerate();
        let ceilings = ceilings.filter(|(index, it)| is_asked(*index, lender, it.is_hard));
        let least = ceilings.map(|(_, it)| held(&it.ceiling)).min().unwrap_or(0);
        let kept = reserve(&rung.rate, (lender, leaf), priority);
        held(&rung.rate).saturating_sub(kept).min(least)
    });
    lent.max().unwrap_or(0)
}

/// Returns the classes that the earliest way waits for, one bit each.
fn refusing(rungs: &InlineVec<Rung>, lender: usize, ask: &Ask) -> u64 {
    let Ask { now, cost, priority } = *ask;
    let leaf = rungs.len().saturating_sub(1);
    let mut refused = 0;
    for (index, it) in rungs.iter().enumerate() {
        let kept = reserve(&it.rate, (lender, leaf), priority);
        let wanted = cost.saturating_add(kept);
        let ceiling =
            is_asked(index, lender, it.is_hard) && it.ceiling.ready(now, cost) > now.as_nanos();
        let rate = index == lender && it.rate.ready(now, wanted) > now.as_nanos();
        refused |= u64::from(ceiling || rate) << index;
    }
    refused
}

fn charge(rungs: &mut InlineVec<Rung>, lender: usize, ask: &Ask) {
    for (index, rung) in rungs.slice_mut().iter_mut().flatten().enumerate() {
        rung.ceiling.charge(ask);
        if index <= lender {
            rung.rate.charge(ask);
        }
    }
}
