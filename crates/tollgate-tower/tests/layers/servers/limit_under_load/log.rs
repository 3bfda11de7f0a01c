//! The requests that a server has seen, and the bounds that a limit sets on them.
//!
//! Each request is stamped outside of the layer, before and after, by the clock of its store. So
//! its decision lies between the two stamps, and the bounds below hold however slow the machine is
//! meanwhile: no figure here depends on speed.

use std::sync::{Mutex, PoisonError};
use tollgate::{Quota, Tick};

/// A request and its decision, somewhere between the two ticks.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) before: Tick,
    pub(super) after: Tick,
    /// The last part of `X-Forwarded-For`.
    pub(super) address: String,
    /// The policy that refused it, if one did: the one with the longest wait.
    pub(super) refused_by: Option<String>,
}

/// All requests of a run.
#[derive(Default)]
pub(super) struct Log {
    seen: Mutex<Vec<Seen>>,
}

impl Log {
    pub(super) fn note(&self, seen: Seen) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    pub(super) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns how many permits refill in this many nanoseconds, rounded down.
fn permits(quota: Quota, ns: u64) -> u64 {
    let permits = u128::from(ns) * u128::from(quota.count()) / quota.period().as_nanos();
    u64::try_from(permits).unwrap()
}

/// Checks that no stretch of time has more requests than the burst and the refill meanwhile.
///
/// A stretch begins with the first stamp of some request and ends with the last stamp of another;
/// the requests that certainly lie within are counted. One more is for rounding.
pub(super) fn never_above(quota: Quota, admitted: &[&Seen]) {
    let mut by_end = admitted.to_vec();
    by_end.sort_by_key(|seen| seen.after);
    for first in admitted {
        let within = by_end.iter().filter(|seen| seen.before >= first.before);
        for (count, last) in (1..).zip(within) {
            let ns = last.after.as_nanos() - first.before.as_nanos();
            let most = quota.capacity() + permits(quota, ns) + 1;
            assert!(count <= most, "{count} in {ns} ns, with {most} allowed by {quota}");
        }
    }
}

/// Checks that the limit is used: all available permits were given out. Returns how many these are
/// at least.
///
/// At a refusal less than one permit is available. So the burst was given out before the first
/// refusal, and between two refusals the whole refill; unless they are so far apart that the bucket
/// was full meanwhile, which is subtracted. Two more are for the fractions at either end.
pub(super) fn used(quota: Quota, admitted: &[&Seen], refused: &[&Seen]) -> u64 {
    // The n-th decision in time lies between the n-th of the first stamps and of the last stamps.
    let mut earliest: Vec<_> = refused.iter().map(|seen| seen.before).collect();
    let mut latest: Vec<_> = refused.iter().map(|seen| seen.after).collect();
    earliest.sort_unstable();
    latest.sort_unstable();
    let (Some(first), Some(last)) = (latest.first(), earliest.last()) else {
        panic!("nobody was refused by {quota}: the load was no load");
    };
    let ns = |from: &Tick, to: &Tick| to.as_nanos().saturating_sub(from.as_nanos());
    let gaps = earliest.iter().zip(&latest[1..]).map(|(from, to)| ns(from, to));
    let lost = gaps.map(|gap| (permits(quota, gap) + 2).saturating_sub(quota.capacity()));
    let back = permits(quota, ns(first, last)).saturating_sub(lost.sum::<u64>() + 2);
    let least = quota.capacity() + back;
    let all = admitted.len() as u64;
    assert!(all >= least, "{all} admitted, and {least} were there by {quota}");
    let between =
        |seen: &&&Seen| seen.after >= earliest[0] && seen.before <= latest[latest.len() - 1];
    let given = admitted.iter().filter(between).count() as u64;
    assert!(given >= back, "{given} admitted between refusals, and {back} came back by {quota}");
    least
}
