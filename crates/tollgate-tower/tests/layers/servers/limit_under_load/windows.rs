//! The bounds that the window algorithms set on the requests that a server has seen.
//!
//! As in [`log`](super::log), a decision lies somewhere between the two stamps of its request. The
//! requests that certainly lie in a span must not be too many; those that may lie in it must be
//! enough, if a request was refused.

use super::log::Seen;
use tollgate::{Algorithm, Clock, Quota, Tick};

/// A quota in windows, and the requests that it admitted.
pub(super) struct Windows<'a> {
    algorithm: Algorithm,
    length_ns: u64,
    limit: u64,
    /// From the Unix epoch, at which the windows of all processes are aligned, to the clock's start.
    epoch_ns: u64,
    admitted: &'a [&'a Seen],
    /// The stamps of the admitted requests, each in order.
    befores: Vec<u64>,
    afters: Vec<u64>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(
        (algorithm, quota): (Algorithm, Quota),
        clock: &Clock,
        admitted: &'a [&'a Seen],
    ) -> Self {
        let sorted = |stamp: fn(&Seen) -> Tick| {
            let mut stamps: Vec<_> = admitted.iter().map(|seen| stamp(seen).as_nanos()).collect();
            stamps.sort_unstable();
            stamps
        };
        Self {
            algorithm,
            length_ns: quota.period().as_nanos().try_into().unwrap(),
            limit: quota.count(),
            epoch_ns: clock.wall_offset().as_nanos().try_into().unwrap(),
            admitted,
            befores: sorted(|seen| seen.before),
            afters: sorted(|seen| seen.after),
        }
    }

    /// Checks that it is never exceeded.
    pub(super) fn never_above(&self) {
        self.of_any_length();
        match self.algorithm {
            Algorithm::FixedWindow => {
                for seen in self.admitted {
                    let Some((start, _)) = self.aligned(seen) else { continue };
                    let count = self.surely(start, start + self.length_ns - 1);
                    assert!(count <= self.limit, "{count} in the window from {start}");
                }
            }
            // Only the limiter knows where the other windows begin.
            Algorithm::AnchoredWindow => {
                let count = self.surely(0, self.befores[0] + self.length_ns - 1);
                assert!(count <= self.limit, "{count} in the first window");
            }
            Algorithm::SlidingCounter => {
                for seen in self.admitted {
                    let Some((start, elapsed)) = self.aligned(seen) else { continue };
                    let previous = self.surely(start - self.length_ns, start - 1);
                    // The requests that were certainly decided before this one.
                    let current = self.surely(start, seen.before.as_nanos().saturating_sub(1)) + 1;
                    let used = self.left_of(previous, elapsed.1) + current;
                    assert!(used <= self.limit, "{used} by {previous} and {current}");
                }
            }
            _ => {}
        }
    }

    /// Checks stretches of time of any length, each from one request to another.
    fn of_any_length(&self) {
        let mut by_end = self.admitted.to_vec();
        by_end.sort_by_key(|seen| seen.after);
        for first in self.admitted {
            let within = by_end.iter().filter(|seen| seen.before >= first.before);
            for (count, last) in (1..).zip(within) {
                let ns = last.after.as_nanos() - first.before.as_nanos();
                let windows = match self.algorithm {
                    // A span that is shorter than n windows, by at least a tick, lies in n windows.
                    Algorithm::SlidingLog => ns / self.length_ns + 1,
                    // As many windows as its length, and a part of one more.
                    _ => ns.div_ceil(self.length_ns) + 1,
                };
                let most = self.limit * windows;
                assert!(count <= most, "{count} in {ns} ns, with {most} allowed");
            }
        }
    }

    /// Checks that the limit is used: no permit was left for a refused request.
    pub(super) fn used(&self, refused: &[&Seen]) {
        assert!(!refused.is_empty(), "nobody was refused: the load was no load");
        for seen in refused {
            let (before, after) = (seen.before.as_nanos(), seen.after.as_nanos());
            let count = match self.algorithm {
                Algorithm::SlidingLog => self.maybe(before.saturating_sub(self.length_ns), after),
                // Windows begin rounded up, and are longer by that.
                Algorithm::AnchoredWindow => {
                    let longest = self.length_ns + self.length_ns / 1024;
                    self.maybe(before.saturating_sub(longest), after)
                }
                Algorithm::FixedWindow => match self.aligned(seen) {
                    Some((start, _)) => self.maybe(start, after),
                    None => continue,
                },
                Algorithm::SlidingCounter => match self.aligned(seen) {
                    Some((start, elapsed)) => {
                        let previous = self.maybe(start - self.length_ns, start - 1);
                        self.left_of(previous, elapsed.0) + self.maybe(start, after)
                    }
                    None => continue,
                },
                other => panic!("{other:?} does not count in windows"),
            };
            assert!(count >= self.limit, "refused after {count} of {}", self.limit);
        }
    }

    /// Returns where the aligned window begins that certainly contains a decision, and how much of
    /// it has passed at least and at most.
    fn aligned(&self, seen: &Seen) -> Option<(u64, (u64, u64))> {
        let (before, after) = (seen.before.as_nanos(), seen.after.as_nanos());
        let into = |tick: u64| (tick + self.epoch_ns) % self.length_ns;
        // The first window of all, and the one after it, have begun before the clock.
        let start = before.checked_sub(into(before)).filter(|start| *start >= self.length_ns)?;
        (after < start + self.length_ns).then(|| (start, (into(before), into(after))))
    }

    /// Returns how much of the last window a sliding counter still counts.
    fn left_of(&self, previous: u64, elapsed: u64) -> u64 {
        previous * (self.length_ns - elapsed) / self.length_ns
    }

    /// Returns how many were certainly decided from one tick to another, both included.
    fn surely(&self, from: u64, to: u64) -> u64 {
        let lies = |seen: &&&Seen| seen.before.as_nanos() >= from && seen.after.as_nanos() <= to;
        self.admitted.iter().filter(lies).count() as u64
    }

    /// Returns how many may have been decided from one tick to another, both included.
    fn maybe(&self, from: u64, to: u64) -> u64 {
        let begun = self.befores.partition_point(|before| *before <= to);
        let over = self.afters.partition_point(|after| *after < from);
        (begun - over) as u64
    }
}
