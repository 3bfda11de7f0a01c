//! How fast the counts grow: one sample a second of each rule, for a minute.
//!
//! A slot of a ring holds the counts added since the previous sample. A slot is as long as the time
//! between two calls of [`Sampler::tick`], so a late call makes a longer slot and no wrong rate.
//! Memory: 496 bytes for each rule. A rule that survives a reload keeps its slots.

use crate::{
    engine::Engine,
    plan::{Live, Plan, RuleIndex},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tollgate::Tick;

/// Slots of a ring: a minute of seconds.
const SLOTS: usize = 60;

/// A store that failed in this many consecutive samples is failing.
const FAILING: u32 = 3;

/// Samples the counts of all rules. The server calls [`tick`](Self::tick) every second.
#[derive(Debug, Default)]
pub struct Sampler {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    version: u64,
    tracks: Vec<Track>,
    /// Tracks by the address of their counts.
    index: HashMap<usize, usize>,
    /// When the slots ended; the first entry is when the oldest slot began.
    ends: VecDeque<Tick>,
    /// The slot to write next.
    next: usize,
    /// The decisions of all rules together in each slot.
    totals: [[u64; 2]; SLOTS],
    /// Samples so far.
    samples: u64,
    errors: u64,
    failing: u32,
}

#[derive(Debug)]
struct Track {
    live: Arc<Live>,
    /// Allowed and denied so far.
    last: [u64; 2],
    slots: Box<[[u32; 2]; SLOTS]>,
}

impl Track {
    fn new(live: &Arc<Live>) -> Self {
        let live = Arc::clone(live);
        Self { last: counts(&live), live, slots: Box::new([[0; 2]; SLOTS]) }
    }
}

fn counts(live: &Live) -> [u64; 2] {
    let counts = live.counts();
    [counts.allowed(), counts.denied()]
}

fn address(live: &Arc<Live>) -> usize {
    Arc::as_ptr(live) as usize
}

/// The rules that are busy.
#[derive(Debug)]
pub(super) struct Busy {
    /// The number of the rule in the plan, its rates, and what it allowed and denied in the last sample.
    pub(super) rows: Vec<(usize, Rates, [u32; 2])>,
    /// How many rules made decisions.
    pub(super) busy: usize,
    /// All of them together.
    pub(super) total: Rates,
    /// All of them together in the last sample.
    pub(super) last: [u64; 2],
}

/// How far back a rate looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Ten samples.
    Short,
    /// Sixty samples.
    Long,
}

impl Window {
    const fn slots(self) -> usize {
        match self {
            Self::Short => 10,
            Self::Long => SLOTS,
        }
    }
}

/// The decisions in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Admissions.
    pub allowed: u64,
    /// Denials.
    pub denied: u64,
    /// The actual length of the window; shorter than its name says if the samples do not go back
    /// that far.
    pub span: Duration,
}

impl Rates {
    /// Returns the admissions per second.
    #[must_use]
    pub fn allowed_per_second(&self) -> f64 {
        per_second(self.allowed, self.span)
    }

    /// Returns the denials per second.
    #[must_use]
    pub fn denied_per_second(&self) -> f64 {
        per_second(self.denied, self.span)
    }

    /// Tells whether denials are at least `percent` of all decisions.
    #[must_use]
    pub fn is_denied_by(&self, percent: u8) -> bool {
        let all = u128::from(self.allowed) + u128::from(self.denied);
        u128::from(self.denied) * 100 >= all * u128::from(percent)
    }
}

fn per_second(count: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { count as f64 / span.as_secs_f64() }
}

/// When the denials of a rule deserve attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Denials were at least this percentage of the decisions of a whole minute,
    pub percent: u8,
    /// and there were at least this many decisions.
    pub least: u64,
}

impl Default for Alarm {
    /// 95 % of at least 20 decisions: fewer decisions say little.
    fn default() -> Self {
        Self { percent: 95, least: 20 }
    }
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample. Call it every second. The first call only records the current counts.
    pub fn tick(&self, engine: &Engine) {
        let (plan, now) = (engine.plan_arc(), engine.now());
        let mut state = self.lock();
        if state.version != plan.version() || state.tracks.len() != plan.all_rules().len() {
            state.adopt(&plan);
        }
        let is_first = state.ends.is_empty();
        if state.ends.back().is_some_and(|last| *last >= now) {
            return; // No time has passed: there is no rate.
        }
        let State { tracks, ends, next, errors, failing, totals, samples, .. } = &mut *state;
        let mut total = [0; 2];
        for track in tracks {
            let found = counts(&track.live);
            let added = [0, 1].map(|at| found[at].saturating_sub(track.last[at]));
            track.last = found;
            for at in [0, 1] {
                // OVERFLOW: a sum of counts of one second.
                total[at] += added[at];
            }
            if !is_first {
                // OVERFLOW: no process decides four billion times in a second. If a sample comes so
                // late, its slot is too low.
                track.slots[*next] = added.map(|added| u32::try_from(added).unwrap_or(u32::MAX));
            }
        }
        let found = engine.health().errors();
        *failing = if found > *errors && !is_first { *failing + 1 } else { 0 };
        *errors = found;
        *samples += 1;
        if !is_first {
            totals[*next] = total;
            *next = (*next + 1) % SLOTS;
        }
        ends.push_back(now);
        if ends.len() > SLOTS + 1 {
            ends.pop_front();
        }
    }

    /// Returns the decisions of a rule in a window up to the last sample.
    #[must_use]
    pub fn rates(&self, live: &Arc<Live>, window: Window) -> Rates {
        self.lock().rates(live, window)
    }

    /// Returns the allowed and denied decisions of the last `most` samples, the oldest first.
    #[must_use]
    pub fn history(&self, live: &Arc<Live>, most: usize) -> Vec<[u32; 2]> {
        let state = self.lock();
        let Some(track) = state.track(live) else { return Vec::new() };
        state.recent(most).map(|slot| track.slots[slot]).collect()
    }

    /// Returns how many samples were taken.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.lock().samples
    }

    /// Returns the allowed and denied decisions of all rules together in each of the last samples,
    /// the oldest first.
    #[must_use]
    pub fn totals(&self) -> Vec<[u64; 2]> {
        let state = self.lock();
        state.recent(SLOTS).map(|slot| state.totals[slot]).collect()
    }

    /// Returns the rules with the most decisions in the last ten samples, those with the most
    /// denials first, at most `most`.
    pub(super) fn busiest(&self, most: usize) -> Busy {
        let state = self.lock();
        let newest = state.recent(1).next();
        let numbered = 0..state.tracks.len();
        let mut rows: Vec<(usize, Rates)> = numbered
            .map(|index| (index, state.rates_of(index, Window::Short)))
            .filter(|(_, rates)| rates.allowed > 0 || rates.denied > 0)
            .collect();
        let total = rows.iter().fold(Rates::default(), |sum, (_, rates)| Rates {
            allowed: sum.allowed + rates.allowed,
            denied: sum.denied + rates.denied,
            span: rates.span,
        });
        let busy = rows.len();
        let order = |(_, rates): &(usize, Rates)| std::cmp::Reverse((rates.denied, rates.allowed));
        if busy > most {
            rows.select_nth_unstable_by_key(most, order);
            rows.truncate(most);
        }
        rows.sort_by_key(order);
        let last = |index: usize| newest.map_or([0; 2], |slot| state.tracks[index].slots[slot]);
        Busy {
            rows: rows.into_iter().map(|(index, rates)| (index, rates, last(index))).collect(),
            busy,
            total,
            last: newest.map_or([0; 2], |slot| state.totals[slot]),
        }
    }

    /// Returns the rules that deny too much, if the samples go back a minute.
    #[must_use]
    pub fn alarms(&self, plan: &Plan, alarm: Alarm) -> Vec<(RuleIndex, Rates)> {
        let state = self.lock();
        if state.ends.len() <= SLOTS {
            return Vec::new();
        }
        let rules = plan.all_rules().iter().enumerate();
        let rated = rules.map(|(index, rule)| {
            // OVERFLOW: a rule's number has this type.
            (index as RuleIndex, state.rates(rule.live(), Window::Long))
        });
        let is_alarming = |(_, rates): &(RuleIndex, Rates)| {
            rates.allowed + rates.denied >= alarm.least.max(1) && rates.is_denied_by(alarm.percent)
        };
        rated.filter(is_alarming).collect()
    }

    /// Tells whether a store could not answer in each of the last three samples.
    #[must_use]
    pub fn is_store_failing(&self) -> bool {
        self.lock().failing >= FAILING
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: 0,
            tracks: Vec::new(),
            index: HashMap::new(),
            ends: VecDeque::new(),
            next: 0,
            totals: [[0; 2]; SLOTS],
            samples: 0,
            errors: 0,
            failing: 0,
        }
    }
}

impl State {
    /// Takes over the rules of a plan.
    fn adopt(&mut self, plan: &Plan) {
        let mut old: HashMap<usize, Track> =
            self.tracks.drain(..).map(|track| (address(&track.live), track)).collect();
        let taken = plan.all_rules().iter().map(|rule| {
            let known = old.remove(&address(rule.live()));
            known.unwrap_or_else(|| Track::new(rule.live()))
        });
        self.tracks = taken.collect();
        let numbered = self.tracks.iter().enumerate();
        self.index = numbered.map(|(index, track)| (address(&track.live), index)).collect();
        self.version = plan.version();
    }

    fn track(&self, live: &Arc<Live>) -> Option<&Track> {
        self.tracks.get(*self.index.get(&address(live))?)
    }

    /// Returns the slots of the last `most` samples, the oldest first.
    fn recent(&self, most: usize) -> impl Iterator<Item = usize> + use<> {
        let (count, next) = (self.ends.len().saturating_sub(1).min(most), self.next);
        (0..count).map(move |at| (next + SLOTS - count + at) % SLOTS)
    }

    fn rates(&self, live: &Arc<Live>, window: Window) -> Rates {
        let index = self.index.get(&address(live));
        index.map_or_else(Rates::default, |index| self.rates_of(*index, window))
    }

    fn rates_of(&self, index: usize, window: Window) -> Rates {
        let track = &self.tracks[index];
        let mut rates = Rates::default();
        let mut count = 0;
        for slot in self.recent(window.slots()) {
            let [allowed, denied] = track.slots[slot];
            rates.allowed += u64::from(allowed);
            rates.denied += u64::from(denied);
            count += 1;
        }
        let begun = self.ends.len().checked_sub(count + 1).and_then(|at| self.ends.get(at));
        if let (Some(begun), Some(end)) = (begun, self.ends.back()) {
            rates.span = end.since(*begun);
        }
        rates
    }
}
