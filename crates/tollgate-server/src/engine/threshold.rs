//! Thresholds of a rule (`warn`): a report when a call carries the use of a key across one.
//!
//! The use of a key is its limit minus the permits that remain after the call; its use before the
//! call is less by the call's charge. The charges of a key follow one another, so exactly one call
//! crosses. A key that swings around a threshold would cross it again and again, so a crossing is
//! remembered until its window ends.

use super::{Answer, Engine, Part, health::logged_key, limit_report::since};
use crate::plan::{Plan, Rule};
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hasher,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{Algorithm, Tick};

/// The most crossings that are remembered: at most 4 MB.
const REMEMBERED_MAX: usize = 1 << 16;

/// Crossings that were reported, by a hash of rule, key and threshold.
#[derive(Debug, Default)]
pub(super) struct Crossings {
    reported: Mutex<Reported>,
    unreported: AtomicU64,
}

#[derive(Debug, Default)]
struct Reported {
    /// When the window of a crossing ends.
    ends: HashMap<u64, Tick>,
    /// The same, the earliest end first.
    by_end: BTreeSet<(Tick, u64)>,
}

impl Reported {
    /// Remembers a crossing for its window. Tells whether it is the first; `None` if the table is
    /// full.
    fn first(&mut self, crossing: u64, now: Tick, end: Tick) -> Option<bool> {
        while let Some((ended, old)) = self.by_end.first().copied().filter(|(end, _)| *end <= now) {
            self.by_end.remove(&(ended, old));
            self.ends.remove(&old);
        }
        if self.ends.contains_key(&crossing) {
            return Some(false);
        }
        if self.ends.len() >= REMEMBERED_MAX {
            return None;
        }
        self.ends.insert(crossing, end);
        self.by_end.insert((end, crossing));
        Some(true)
    }
}

/// How many permits a key has used before and after a call.
struct Use {
    before: u64,
    after: u64,
    limit: u64,
}

impl Use {
    /// Returns the use of a part's key; `None` if the call did not charge it, or its use is
    /// unknown.
    fn of(answer: &Answer, part: &Part) -> Option<Self> {
        let decision = part.decision.as_ref().filter(|_| part.charged > 0)?;
        let limit = decision.limit();
        let after = limit.saturating_sub(decision.remaining());
        let before = match part.before {
            // A refusal was charged: it may have gone into debt.
            Some(left) => limit.saturating_sub(left),
            // If a request has a descriptor twice, it is charged twice, and both decisions report
            // the permits that remain after both.
            None => answer
                .parts
                .iter()
                .filter(|other| is_same(answer, part, other))
                .fold(after, |before, other| before.saturating_sub(other.charged)),
        };
        Some(Self { before, after, limit })
    }

    /// Tells whether the call has carried the use from below a percentage of the limit to it or
    /// above it.
    fn crosses(&self, percent: u8) -> bool {
        let reaches =
            |used: u64| u128::from(used) * 100 >= u128::from(self.limit) * u128::from(percent);
        !reaches(self.before) && reaches(self.after)
    }
}

fn is_same(answer: &Answer, one: &Part, other: &Part) -> bool {
    one.rule == other.rule && !other.gives && answer.key(one) == answer.key(other)
}

impl Engine {
    /// Reports the thresholds of a part's rule that its call has crossed.
    #[cold]
    pub(super) fn warn(&self, plan: &Plan, now: Tick, answer: &Answer, part: &Part) {
        let (rule, key) = (plan.rule(part.rule), answer.key(part));
        let Some(used) = Use::of(answer, part) else { return };
        for percent in rule.warn().iter().copied().filter(|percent| used.crosses(*percent)) {
            let end = window_end(part, now);
            let crossing = self.crossing(rule, key, percent);
            let mut reported =
                self.crossings.reported.lock().unwrap_or_else(PoisonError::into_inner);
            let first = reported.first(crossing, now, end);
            drop(reported);
            match first {
                Some(true) => report(plan, (rule, key), percent, &used),
                Some(false) => {}
                None => {
                    // ORDERING: Relaxed, here and below. The count is a statistic.
                    self.crossings.unreported.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Returns how many crossings were not reported because too many are remembered.
    pub fn unreported_thresholds(&self) -> u64 {
        self.crossings.unreported.load(Relaxed)
    }

    fn crossing(&self, rule: &Rule, key: &[u8], percent: u8) -> u64 {
        let (first, second) = self.secret;
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(first, second);
        hasher.write_u8(percent);
        hasher.write(rule.id().as_bytes());
        // No id has this byte, so id and key cannot be split at another place.
        hasher.write_u8(0xff);
        hasher.write(key);
        hasher.finish()
    }
}

/// Returns when a crossing may be reported again: when a fixed window ends; otherwise after the
/// length of a sliding window, or after the time in which a bucket fills.
fn window_end(part: &Part, now: Tick) -> Tick {
    let (Some(limit), Some(decision)) = (part.limit, part.decision.as_ref()) else { return now };
    let length = match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::AnchoredWindow => {
            return decision.full_at().unwrap_or(Tick::MAX);
        }
        Algorithm::Gcra => {
            // OVERFLOW: a limit is below 2^50, and a period in nanoseconds below 2^64.
            let nanos = limit.per.as_nanos() * u128::from(decision.limit());
            let nanos = nanos.checked_div(u128::from(limit.count)).unwrap_or(u128::MAX);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        }
        _ => limit.per,
    };
    since(decision, now).saturating_add(length)
}

fn report(plan: &Plan, (rule, key): (&Rule, &[u8]), percent: u8, used: &Use) {
    rule.live().add_crossed(percent, 1);
    let (policy, threshold) = (rule.label(), format_args!("{percent}%"));
    let Use { after: used, limit, .. } = *used;
    let key = (plan.config().server.log_keys == Some(true)).then(|| logged_key(rule, key));
    let key = key.as_deref();
    tracing::warn!(
        target: "tollgate::threshold", policy, %threshold, used, limit, key, "a key nears its limit"
    );
}
