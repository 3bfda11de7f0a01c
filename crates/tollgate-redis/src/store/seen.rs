//! A state in a reply, and the decision that follows from it.
//!
//! The scripts only admit or refuse and show the state. This module computes the remaining permits
//! and the wait, in whole numbers.

use super::rule::{Kind, Rule};
use tollgate::{Answer, Decision, Outcome, Tick};

/// A state as of the server's time.
///
/// OVERFLOW: the numbers of a malformed reply can be any below 2^53, so their sums fit, and
/// products with a length saturate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    /// Microseconds since the Unix epoch.
    pub(crate) now: u64,
    /// The numbers of the state, as the scripts show it.
    pub(crate) numbers: [u64; 4],
}

/// The offset that a sliding counter adds to its previous count if an excess lies in later windows
/// (`lua/counter.lua`).
const CARRIED: u64 = 1 << 50;

/// Reads numbers from bytes: doubles that hold whole numbers, below 2^53.
pub(crate) fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, eight) in numbers.iter_mut().zip(bytes.chunks(8)) {
        let double = f64::from_le_bytes(eight.try_into().ok()?);
        if !(0.0..9_007_199_254_740_992.0).contains(&double) {
            return None;
        }
        *number = double as u64;
    }
    Some(numbers)
}

impl Seen {
    /// Reads a state from a reply.
    pub(crate) fn parse(kind: Kind, now: u64, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != kind.shown() {
            return None;
        }
        Some(Self { now, numbers: numbers(bytes)? })
    }

    /// Returns how far a GCRA state is booked ahead, in units of 1/c microseconds.
    pub(crate) fn ahead(&self, rule: &Rule) -> u128 {
        let [at, n, ..] = self.numbers;
        match at.checked_sub(self.now) {
            Some(whole) => u128::from(whole) * rule.c + u128::from(n),
            None => 0,
        }
    }

    /// Returns the used permits of a window.
    pub(crate) fn used(&self, rule: &Rule) -> u64 {
        let [first, second, third, _] = self.numbers;
        match rule.kind {
            Kind::Counter => self.counted(rule, second, third),
            Kind::Log => first,
            _ => second,
        }
    }

    fn counted(&self, rule: &Rule, previous: u64, current: u64) -> u64 {
        if previous >= CARRIED {
            let windows = self.numbers[0].saturating_sub(self.now / rule.length);
            return windows.saturating_mul(rule.limit).saturating_add(current);
        }
        let elapsed = self.now.saturating_sub(self.numbers[0].saturating_mul(rule.length));
        let weight = u128::from(rule.length.saturating_sub(elapsed));
        // ceil(x) - 1. OVERFLOW: the quotient is at most `previous`.
        let product = u128::from(previous) * weight;
        (product.saturating_sub(1) / u128::from(rule.length)) as u64 + current
    }

    /// Returns the decision about `cost`, from the script's verdict and the arrival of the reply.
    pub(crate) fn decision(&self, rule: &Rule, cost: u64, passed: bool, at: Tick) -> Decision {
        let (remaining, retry, full) = if rule.kind.is_gcra() {
            self.of_gcra(rule, cost)
        } else {
            self.of_window(rule, cost, passed)
        };
        let outcome = match passed {
            true => Outcome::Allowed,
            false if cost > rule.limit => Outcome::Never,
            false => Outcome::Later,
        };
        let after = |micros: u64| {
            Tick::from_nanos(at.as_nanos().saturating_add(micros.saturating_mul(1000)))
        };
        Decision::answered(Answer {
            outcome,
            at,
            cost,
            limit: rule.limit,
            remaining,
            retry_at: after(retry),
            full_at: Some(if full == 0 { Tick::ZERO } else { after(full) }),
        })
    }

    /// Returns the remaining permits, and when `cost` passes and when all permits are back, in
    /// microseconds.
    fn of_gcra(&self, rule: &Rule, cost: u64) -> (u64, u64, u64) {
        let (ahead, burst) = (self.ahead(rule), rule.span(rule.limit));
        let remaining = burst.saturating_sub(ahead) / rule.p;
        let wait = ahead.saturating_add(rule.span(cost)).saturating_sub(burst).div_ceil(rule.c);
        (remaining as u64, wait as u64, ahead.div_ceil(rule.c) as u64)
    }

    fn of_window(&self, rule: &Rule, cost: u64, passed: bool) -> (u64, u64, u64) {
        let used = self.used(rule);
        let remaining = rule.limit.saturating_sub(used);
        let since = |end: u64| end.saturating_sub(self.now);
        let [first, second, third, fourth] = self.numbers;
        let (retry, full) = match rule.kind {
            Kind::Fixed => {
                let end = since((first + 1).saturating_mul(rule.length));
                (end, end)
            }
            Kind::Anchored => {
                let end = since(first + rule.length);
                (end, end)
            }
            Kind::Log => {
                let newest = if passed && cost > 0 { fourth } else { third };
                (since(second), since(newest + rule.length))
            }
            _ => {
                let until = |room| since(self.counter_until(rule, room));
                (until(rule.limit.saturating_sub(cost)), until(0))
            }
        };
        let is_idle = if rule.kind == Kind::Counter { second + third == 0 } else { used == 0 };
        (remaining, retry, if is_idle { 0 } else { full })
    }

    /// Returns when a sliding counter has at most `room` in use, if no permits are added.
    fn counter_until(&self, rule: &Rule, room: u64) -> u64 {
        let [number, previous, current, _] = self.numbers;
        let previous = if previous < CARRIED { previous } else { rule.limit };
        let elapsed = |count: u64, room: u64| elapsed_until(rule.length, count, room);
        let here = room.checked_sub(current).and_then(|left| elapsed(previous, left));
        let (number, elapsed) = match here {
            Some(elapsed) => (number, elapsed),
            None => match elapsed(current, room) {
                Some(elapsed) => (number + 1, elapsed),
                None => (number + 2, 0),
            },
        };
        number.saturating_mul(rule.length).saturating_add(elapsed)
    }
}

/// Returns the first `e` at which ceil(count x (length - e) / length) - 1 <= room, if there is one
/// within the window.
fn elapsed_until(length: u64, count: u64, room: u64) -> Option<u64> {
    if count <= room {
        return Some(0);
    }
    let bound = (u128::from(room) + 1) * u128::from(length);
    // OVERFLOW: count > room, so the quotient is at most the length.
    let weight = (bound / u128::from(count)) as u64;
    let elapsed = length - weight;
    (elapsed < length).then_some(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tollgate::{Algorithm, Quota};

    #[test]
    fn no_number_that_a_reply_can_hold_is_too_large() {
        const EDGES: [u64; 5] = [0, 1, 1_700_000_000_000_000, 1 << 52, (1 << 53) - 1];
        for algorithm in Algorithm::ALL {
            for quota in [Quota::per_year(10), Quota::per(3, Duration::from_micros(1_000))] {
                let rule = Rule::new(&quota, algorithm, 0, 0).unwrap();
                for places in 0..EDGES.len().pow(5) {
                    let edge = |place: u32| EDGES[places / EDGES.len().pow(place) % EDGES.len()];
                    let seen = Seen { now: edge(4), numbers: [edge(0), edge(1), edge(2), edge(3)] };
                    for passed in [false, true] {
                        let decision = seen.decision(&rule, 1, passed, Tick::ZERO);
                        assert_eq!(decision.is_allowed(), passed, "{algorithm}: {seen:?}");
                    }
                }
            }
        }
    }
}
