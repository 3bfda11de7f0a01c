//! States as they are written to a snapshot: without the clock's origin, and without the layout of
//! a word.
//!
//! | algorithm | words |
//! |---|---|
//! | gcra | ninths of a nanosecond booked ahead of the snapshot's time; permits used of a budget that never refills |
//! | fixed and anchored window | wall time of its start in ns, count |
//! | sliding counter | wall time of the current window's start in ns, previous count, current count |
//! | sliding log | of each entry: wall time in ns, cost |
//!
//! Wall time is what two processes have in common, so the time between them counts as elapsed.

use super::{class::ClassRule, wide::State};
use crate::{
    Clock, Tick,
    algorithm::{Idle, Packed, Rule},
};
use std::time::Duration;

/// When a snapshot is written or read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) clock: &'a Clock,
    /// Now, by that clock.
    pub(crate) now: Tick,
    /// Wall time of the snapshot, in nanoseconds since the Unix epoch.
    pub(crate) wall_ns: u64,
}

impl Moment<'_> {
    fn wall(&self, tick: Tick) -> u64 {
        nanos(self.clock.to_wall(tick))
    }

    fn tick(&self, wall_ns: u64) -> Tick {
        self.clock.from_wall(Duration::from_nanos(wall_ns))
    }

    /// Returns how much time has passed since the snapshot; none if the wall clock went back.
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.wall(self.now).saturating_sub(self.wall_ns))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds the words of a state that is not idle; returns false if it is.
pub(crate) fn write(
    rule: &ClassRule,
    state: &State,
    moment: &Moment<'_>,
    words: &mut Vec<u64>,
) -> bool {
    let now = moment.now;
    match (rule, state) {
        (ClassRule::Word(rule), State::Word(word)) if rule.is_idle(word, now) => false,
        (ClassRule::Word(rule) | ClassRule::Kept(rule), State::Word(word)) => {
            match rule {
                Rule::Unlimited => return false,
                Rule::Gcra(gcra) | Rule::PerCall(gcra) => words.push(gcra.ahead(*word, now)),
                Rule::FixedWindow(window) | Rule::AnchoredWindow(window) => {
                    let (start, count) = window.opened(*word, now);
                    words.extend([moment.wall(start), count]);
                }
                Rule::SlidingCounter(counter) => {
                    let (start, counts) = counter.opened(&counter.unpack(*word), now);
                    words.extend([moment.wall(start), counts.0, counts.1]);
                }
            }
            true
        }
        (ClassRule::Counter(counter), State::Counter(windows)) => {
            let (start, counts) = counter.opened(windows, now);
            words.extend([moment.wall(start), counts.0, counts.1]);
            counts != (0, 0) || rule.is_kept()
        }
        (ClassRule::Log(log), State::Log(entries)) => {
            let most = crate::snapshot::WORDS_MAX / 2;
            let live = log.live(entries, now, most);
            let is_live = !live.is_empty();
            words.extend(live.into_iter().flat_map(|(tick, cost)| [moment.wall(tick), cost]));
            is_live || rule.is_kept()
        }
        _ => false,
    }
}

/// Returns the state that a snapshot's words stand for now; `None` if it is idle meanwhile, or the
/// words are not those of this algorithm.
pub(crate) fn read(rule: &ClassRule, words: &[u64], moment: &Moment<'_>) -> Option<State> {
    let now = moment.now;
    match (rule, words) {
        (ClassRule::Word(inner) | ClassRule::Kept(inner), words) => {
            let word = match (inner, words) {
                (Rule::Gcra(gcra) | Rule::PerCall(gcra), [ahead]) => {
                    gcra.booked(*ahead, moment.elapsed(), now)
                }
                (Rule::FixedWindow(window) | Rule::AnchoredWindow(window), [start, count]) => {
                    window.reopened(moment.tick(*start), *count, now).unwrap_or(0)
                }
                (Rule::SlidingCounter(counter), [start, previous, current]) => {
                    let counts = (*previous, *current);
                    let windows = counter.reopened(moment.tick(*start), counts, now);
                    windows.map_or(0, |windows| counter.pack(&windows))
                }
                _ => return None,
            };
            // A kept key at rest differs from a fresh one.
            (rule.is_kept() || !inner.is_idle(&word, now)).then_some(State::Word(word))
        }
        (ClassRule::Counter(counter), [start, previous, current]) => {
            let counts = (*previous, *current);
            let windows = counter.reopened(moment.tick(*start), counts, now);
            windows.or_else(|| rule.is_kept().then(Default::default)).map(State::Counter)
        }
        (ClassRule::Log(log), words) => {
            let (pairs, []) = words.as_chunks::<2>() else { return None };
            let entries = pairs.iter().map(|[wall, cost]| (moment.tick(*wall), *cost));
            let entries = log.rebuilt(entries, now);
            entries.or_else(|| rule.is_kept().then(Default::default)).map(State::Log)
        }
        _ => None,
    }
}
