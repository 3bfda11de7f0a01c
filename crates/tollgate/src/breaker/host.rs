//! The host of one breaker: a word that every caller reads, a window, and the machine in a lock.
//!
//! | bits of the word | meaning |
//! |---|---|
//! | 0-1 | phase: 0 closed, 1 open, 2 half-open |
//! | 2-3 | hold: 0 automatic, 1 shadow, 2 held open, 3 held closed |
//! | 4-7 | why it opened, an index of `OpenReason::ALL` |
//! | 8-63 | generation |
//!
//! Beside it stands the first tick at which a refused caller should take the lock. Both are written
//! under the lock, the word last.

use super::{
    builder::Template,
    machine::{Hold, Machine, OpenReason, Phase, Role, Rules, Ticket},
    pass::{BreakerState, Open},
    window::{CallWindow, Mark, Threshold, Totals, Trip, stripe},
};
use crate::{
    CallOutcome, Clock, Tick,
    sync::{
        AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        Padded, lock,
    },
};
use std::time::Duration;

/// What happened at a [`Breaker`](super::Breaker) since it was built.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, CallOutcome};
///
/// let breaker = Breaker::builder().build()?;
/// breaker.try_pass()?.end(CallOutcome::Success);
/// breaker.try_pass()?.end(CallOutcome::Failure);
/// assert_eq!((breaker.counts().ended, breaker.counts().failed), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BreakerCounts {
    /// Calls that ended with a result that was counted in a window, or as a trial.
    pub ended: u64,
    /// Those among them that failed.
    pub failed: u64,
    /// Those among them that were slow.
    pub slow: u64,
    /// Results that decided nothing: of calls that began before the last transition, or that passed
    /// because the breaker was held closed or in shadow mode.
    pub without_effect: u64,
    /// Calls that ended without a result: dropped, such as by a panic, or with [`CallOutcome::Ignore`].
    pub ignored: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls that passed in shadow mode and would have been refused.
    pub would_refuse: u64,
    /// Calls that passed as trials.
    pub trials: u64,
    /// How often it opened.
    pub opened: u64,
}

#[derive(Debug)]
pub(super) struct Host {
    word: AtomicU64,
    /// Nanoseconds of the tick from which on a caller takes the lock.
    retry_at: AtomicU64,
    /// Failures since the last success.
    run: AtomicU64,
    window: CallWindow,
    pub(super) trips: Box<[Trip]>,
    min_calls: u64,
    /// A call that takes so long is slow; `None` if that does not matter.
    slow_after: Option<Duration>,
    counts_runs: bool,
    inner: Mutex<Inner>,
    without_effect: AtomicU64,
    ignored: AtomicU64,
    would_refuse: AtomicU64,
    /// Striped: an open breaker may refuse millions each second.
    refused: Box<[Padded<AtomicU64>]>,
    pub(super) clock: Clock,
    pub(super) name: Box<str>,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    /// Ended calls that are not in the window: trials, and those that brought the server's time.
    outside: Totals,
    started: u64,
    opened: u64,
}

/// The state that is lost when a breaker is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Nothing,
    /// A window of calls, with so many that failed or were slow.
    Calls {
        bad: u64,
    },
    /// A break until a tick, or the trials after one.
    Break {
        until: Tick,
    },
}

const PHASE: u64 = 0b11;
const HALF_OPEN: u64 = 2;
const HOLD_SHIFT: u32 = 2;
const WHY_SHIFT: u32 = 4;
const GENERATION_SHIFT: u32 = 8;

/// The bits that are zero while calls pass and count: phase closed, hold automatic or shadow.
const NOT_COUNTED: u64 = PHASE | 2 << HOLD_SHIFT;

fn word_of(machine: &Machine) -> u64 {
    let phase = match machine.phase {
        Phase::Closed => 0,
        Phase::Open { .. } => 1,
        Phase::HalfOpen { .. } => HALF_OPEN,
    };
    let hold = machine.hold as u64;
    machine.generation << GENERATION_SHIFT
        | (machine.why as u64) << WHY_SHIFT
        | hold << HOLD_SHIFT
        | phase
}

fn state_of(word: u64) -> BreakerState {
    match ((word >> HOLD_SHIFT) & 3, word & PHASE) {
        (2, _) => BreakerState::HeldOpen,
        (3, _) => BreakerState::HeldClosed,
        (_, 0) => BreakerState::Closed,
        (_, HALF_OPEN) => BreakerState::HalfOpen,
        _ => BreakerState::Open,
    }
}

/// ORDERING: Relaxed. Statistics: each count stands for itself.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Host {
    /// Returns the host of a key's breaker, whose counters spread over `stripes` cache lines. Breakers
    /// of different keys draw different jitter.
    pub(super) fn new(template: &Template, key: u64, stripes: usize) -> Self {
        let machine = Machine::new(template.rules.clone(), template.seed ^ key);
        let slow = template.trips.iter().filter_map(|trip| match trip.0 {
            Threshold::SlowPercent(_, longer_than) => Some(longer_than),
            _ => None,
        });
        let is_run = |trip: &Trip| matches!(trip.0, Threshold::Consecutive(_));
        Self {
            word: AtomicU64::new(word_of(&machine)),
            retry_at: AtomicU64::new(0),
            run: AtomicU64::new(0),
            slow_after: slow.min(),
            counts_runs: template.trips.iter().any(is_run),
            window: CallWindow::new(template.window, stripes),
            trips: template.trips.clone(),
            min_calls: template.min_calls,
            inner: Mutex::new(Inner { machine, outside: Totals::default(), started: 0, opened: 0 }),
            without_effect: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            refused: (0..stripes).map(|_| Padded::default()).collect(),
            clock: template.clock.clone(),
            name: template.name.clone(),
        }
    }

    fn word(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `publish`: a caller that sees a word sees the tick
        // that was written before it, or a later one. A caller that reads an old word passes or is
        // refused as it would have been a moment earlier.
        self.word.load(Acquire)
    }

    /// Lets a call pass if the breaker is closed and does not need the time: the fast path.
    #[inline]
    pub(super) fn pass_closed(&self) -> Option<Ticket> {
        let word = self.word();
        (word & NOT_COUNTED == 0 && self.slow_after.is_none())
            .then_some(Ticket { generation: word >> GENERATION_SHIFT, role: Role::Counted })
    }

    /// Lets a call pass, or says why not.
    pub(super) fn admit(&self, now: Tick) -> Result<Ticket, Open> {
        let word = self.word();
        if word & NOT_COUNTED == 0 {
            return Ok(Ticket { generation: word >> GENERATION_SHIFT, role: Role::Counted });
        }
        if (word >> HOLD_SHIFT) & 3 == Hold::Closed as u64 {
            let generation = word >> GENERATION_SHIFT;
            return Ok(Ticket { generation, role: Role::Uncounted });
        }
        // ORDERING: Relaxed; see `word`.
        let retry_at = Tick::from_nanos(self.retry_at.load(Relaxed));
        if now < retry_at {
            return self.refuse(word, retry_at);
        }
        let mut inner = lock(&self.inner);
        let Some(ticket) = inner.machine.admit(now) else {
            let (word, retry_at) = (word_of(&inner.machine), inner.machine.retry_at());
            drop(inner);
            return self.refuse(word, retry_at);
        };
        if let Role::Trial(_) = ticket.role {
            inner.started += 1;
            self.publish(&inner);
        }
        Ok(ticket)
    }

    fn refuse(&self, word: u64, retry_at: Tick) -> Result<Ticket, Open> {
        if word >> HOLD_SHIFT & 3 == Hold::Shadow as u64 {
            count(&self.would_refuse);
            let generation = word >> GENERATION_SHIFT;
            return Ok(Ticket { generation, role: Role::Uncounted });
        }
        self.count_refusal();
        Err(self.open(word, retry_at))
    }

    pub(super) fn count_refusal(&self) {
        count(&self.refused[stripe() % self.refused.len()].0);
    }

    /// Tells whether calls pass and are counted: closed, and not held.
    pub(super) fn is_closed(&self) -> bool {
        self.word() & NOT_COUNTED == 0
    }

    fn open(&self, word: u64, retry_at: Tick) -> Open {
        let why = OpenReason::ALL[(word >> WHY_SHIFT & 15) as usize % OpenReason::ALL.len()];
        Open { state: state_of(word), why, retry_at: (retry_at < Tick::MAX).then_some(retry_at) }
    }

    pub(super) fn peek(&self, now: Tick) -> Result<(), Open> {
        let inner = lock(&self.inner);
        let (word, retry_at) = (word_of(&inner.machine), inner.machine.retry_at());
        let passes = now >= retry_at || inner.machine.hold == Hold::Shadow;
        if passes { Ok(()) } else { Err(self.open(word, retry_at)) }
    }

    /// Tells whether the end of a successful call needs the time.
    pub(super) fn needs_time(&self) -> bool {
        self.slow_after.is_some() || matches!(self.window, CallWindow::Time(_))
    }

    fn is_slow(&self, took: Duration) -> bool {
        self.slow_after.is_some_and(|slow_after| took >= slow_after)
    }

    /// Ends a call.
    pub(super) fn end(&self, ticket: Ticket, outcome: CallOutcome, (began, now): (Tick, Tick)) {
        let failed = matches!(outcome, CallOutcome::Failure | CallOutcome::Overload);
        let is_ignored = outcome == CallOutcome::Ignore;
        let mark = Mark { failed, slow: !is_ignored && self.is_slow(now.since(began)) };
        let is_current = self.word() >> GENERATION_SHIFT == ticket.generation;
        match ticket.role {
            Role::Trial(_) => self.end_trial(ticket, outcome, mark, now),
            _ if is_ignored => count(&self.ignored),
            Role::Counted if is_current => self.end_counted(ticket, mark, now),
            Role::Counted | Role::Uncounted => count(&self.without_effect),
        }
    }

    fn end_counted(&self, ticket: Ticket, mark: Mark, now: Tick) {
        self.window.add(now, mark);
        // ORDERING: Relaxed. The run is one word; calls that end at the same moment have no order.
        let run = match (self.counts_runs, mark.failed) {
            (true, true) => self.run.fetch_add(1, Relaxed) + 1,
            (true, false) if self.run.load(Relaxed) != 0 => {
                self.run.store(0, Relaxed);
                0
            }
            _ => 0,
        };
        if !mark.is_bad() {
            return;
        }
        let seen = self.window.seen(now);
        let why = self.trips.iter().find_map(|it| it.check(&seen, run, self.min_calls));
        if let Some(why) = why {
            self.change(|machine| machine.trip(ticket.generation, why, now));
        }
    }

    fn end_trial(&self, ticket: Ticket, outcome: CallOutcome, mark: Mark, now: Tick) {
        // A trial that takes too long is no sign of recovery.
        let judged = match outcome {
            CallOutcome::Success if mark.slow => CallOutcome::Failure,
            outcome => outcome,
        };
        let decides = self.change(|machine| machine.end_trial(ticket, judged, now));
        match outcome {
            CallOutcome::Ignore => count(&self.ignored),
            _ if !decides => count(&self.without_effect),
            _ => lock(&self.inner).outside.add_one(mark),
        }
    }

    /// Ends a call whose reply named the time before which the dependency wants no more.
    pub(super) fn end_until(
        &self,
        ticket: Ticket,
        outcome: CallOutcome,
        (began, now): (Tick, Tick),
        until: Tick,
    ) {
        let is_named = until > now && outcome != CallOutcome::Ignore;
        if is_named && self.change(|machine| machine.open_until(ticket, until)) {
            let failed = outcome != CallOutcome::Success;
            let mark = Mark { failed, slow: self.is_slow(now.since(began)) };
            lock(&self.inner).outside.add_one(mark);
            return;
        }
        self.end(ticket, outcome, (began, now));
    }

    pub(super) fn hold(&self, hold: Hold) {
        self.change(|machine| {
            machine.hold(hold);
            true
        });
    }

    /// Applies an event, and shows the new state if it changed anything. Tells whether it did.
    pub(super) fn change(&self, event: impl FnOnce(&mut Machine) -> bool) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.machine.generation;
        if !event(&mut inner.machine) {
            return false;
        }
        if inner.machine.generation != before {
            match inner.machine.phase {
                Phase::Open { .. } => inner.opened += 1,
                Phase::Closed => {
                    self.window.clear();
                    // ORDERING: Relaxed; see `end_counted`.
                    self.run.store(0, Relaxed);
                }
                Phase::HalfOpen { .. } => {}
            }
        }
        self.publish(&inner);
        true
    }

    fn publish(&self, inner: &Inner) {
        // ORDERING: Relaxed, then Release: the tick goes before the word; see `word`.
        self.retry_at.store(inner.machine.retry_at().as_nanos(), Relaxed);
        self.word.store(word_of(&inner.machine), Release);
    }

    pub(super) fn state(&self) -> BreakerState {
        state_of(self.word())
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.word() >> HOLD_SHIFT & 3 == Hold::Shadow as u64
    }

    /// Returns what would be lost if it began anew, closed and empty; `None` if an operator holds it.
    /// After `idle_after` without a call a window of a number of calls is forgotten, too.
    pub(super) fn loss(
        &self,
        now: Tick,
        (idle_for, idle_after): (Duration, Duration),
    ) -> Option<Loss> {
        let word = self.word();
        if word & (3 << HOLD_SHIFT) != 0 {
            return None;
        }
        Some(match word & PHASE {
            0 => {
                let seen = self.window.seen(now);
                let is_empty = match &self.window {
                    CallWindow::Time(_) => seen == Totals::default(),
                    CallWindow::Calls(_) => idle_for >= idle_after,
                };
                match is_empty {
                    true => Loss::Nothing,
                    false => Loss::Calls { bad: seen.failures + seen.slow },
                }
            }
            HALF_OPEN => Loss::Break { until: Tick::ZERO },
            // ORDERING: Relaxed; see `word`.
            _ => Loss::Break { until: Tick::from_nanos(self.retry_at.load(Relaxed)) },
        })
    }

    pub(super) fn summary(&self) -> String {
        let trips = self.trips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or at ");
        let window = self.window.summary(self.min_calls);
        let rules = lock(&self.inner).machine.rules.clone();
        let Rules { open_for, growth, most, trials, close_after, .. } = rules;
        let grows = match growth {
            2.. if most > open_for => format!(", growing to {most:?}"),
            _ => String::new(),
        };
        format!(
            "opens at {trips}, {window}; open for {open_for:?}{grows}; {trials} trials, of which \
             {close_after} must succeed"
        )
    }

    pub(super) fn counts(&self) -> BreakerCounts {
        let all = self.window.all();
        let inner = lock(&self.inner);
        // ORDERING: Relaxed. Statistics.
        BreakerCounts {
            ended: all.calls + inner.outside.calls,
            failed: all.failures + inner.outside.failures,
            slow: all.slow + inner.outside.slow,
            without_effect: self.without_effect.load(Relaxed),
            ignored: self.ignored.load(Relaxed),
            refused: self.refused.iter().map(|it| it.0.load(Relaxed)).sum(),
            would_refuse: self.would_refuse.load(Relaxed),
            trials: inner.started,
            opened: inner.opened,
        }
    }
}
