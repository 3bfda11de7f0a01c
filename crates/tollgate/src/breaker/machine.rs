//! When a breaker opens, tries and closes: a pure state machine.
//!
//! ```text
//! closed --trip--> open --now >= until, a caller comes--> half-open --close_after successes--> closed
//!    ^               ^----------- the first trial that fails --------------|
//!    hold_open, hold_closed, shadow: from any state; automatic returns to closed
//! ```
//!
//! The machine knows no clock, no lock and no window: a host says when the thresholds are crossed
//! ([`trip`](Machine::trip)). Every transition begins a new generation. A [`Ticket`] carries the
//! generation of its call, and a result of an older generation changes nothing.
//!
//! A break lasts `open_for x growth^k`, at most `most`, where k counts the breaks since the breaker
//! was last closed; jitter then shortens it by up to `jitter_percent`. In half-open, running trials
//! and successful ones together are at most `trials`. A trial that is dropped returns its slot; one
//! that runs for `patience` loses it to the next caller, so nothing sticks. Time that goes backwards
//! counts as standing still; time far ahead ends a break, and still starts only `trials` trials.

use crate::{CallOutcome, Tick, wait::Random};
use std::time::Duration;

/// How long breaks last and how trials decide.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) open_for: Duration,
    pub(super) growth: u32,
    pub(super) most: Duration,
    pub(super) jitter_percent: u32,
    pub(super) trials: u32,
    pub(super) close_after: u32,
    pub(super) patience: Duration,
}

/// Why a breaker opened.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, CallOutcome, OpenReason, Trip};
///
/// let breaker = Breaker::builder().trip(Trip::consecutive(1)).build()?;
/// breaker.try_pass()?.end(CallOutcome::Failure);
/// assert_eq!(breaker.try_pass().unwrap_err().why(), OpenReason::ConsecutiveFailures);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpenReason {
    /// Too many of the calls in the window failed.
    FailureShare,
    /// So many calls in the window failed.
    FailureCount,
    /// So many calls failed without a success between them.
    ConsecutiveFailures,
    /// Too many of the calls in the window were slow.
    SlowShare,
    /// A trial call failed.
    TrialFailed,
    /// The dependency named a time before which it wants no calls.
    ServerTime,
    /// An operator opened it.
    Operator,
    /// A [`KeyedBreaker`](super::KeyedBreaker) has no room for the key.
    TableFull,
}

impl OpenReason {
    /// What a single breaker opens for.
    pub(super) const ALL: [Self; 7] = [
        Self::FailureShare,
        Self::FailureCount,
        Self::ConsecutiveFailures,
        Self::SlowShare,
        Self::TrialFailed,
        Self::ServerTime,
        Self::Operator,
    ];

    /// Returns the reason as a clause for logs: `a trial call failed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureShare => "too large a share of the calls failed",
            Self::FailureCount => "too many calls failed",
            Self::ConsecutiveFailures => "too many calls failed in a row",
            Self::SlowShare => "too large a share of the calls was slow",
            Self::TrialFailed => "a trial call failed",
            Self::ServerTime => "the dependency asked for a pause",
            Self::Operator => "an operator opened it",
            Self::TableFull => "every key that the breaker has room for is open or held",
        }
    }
}

/// Whether the machine decides, or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The machine.
    Automatic,
    /// The machine, but refused calls pass, uncounted.
    Shadow,
    /// An operator: nothing passes.
    Open,
    /// An operator: everything passes.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Closed,
    Open {
        until: Tick,
    },
    HalfOpen {
        succeeded: u32,
        /// The running trials: number and start, the oldest first.
        running: Vec<(u64, Tick)>,
    },
}

/// What a call that passed may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) generation: u64,
    pub(super) role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Its result goes into the window.
    Counted,
    /// Its result decides; the number of the trial.
    Trial(u64),
    /// Its result is only counted: an operator or shadow mode let it pass.
    Uncounted,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) rules: Rules,
    pub(super) hold: Hold,
    pub(super) phase: Phase,
    /// Begins anew with every transition.
    pub(super) generation: u64,
    pub(super) why: OpenReason,
    /// Breaks since it was last closed.
    breaks: u32,
    random: Random,
    trial: u64,
}

impl Machine {
    pub(super) fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            hold: Hold::Automatic,
            phase: Phase::Closed,
            generation: 0,
            why: OpenReason::Operator,
            breaks: 0,
            random: Random::new(seed),
            trial: 0,
        }
    }

    /// Lets a call pass, or refuses it.
    pub(super) fn admit(&mut self, now: Tick) -> Option<Ticket> {
        match self.hold {
            Hold::Open => return None,
            Hold::Closed => return Some(self.ticket(Role::Uncounted)),
            Hold::Automatic | Hold::Shadow => {}
        }
        match &self.phase {
            Phase::Closed => return Some(self.ticket(Role::Counted)),
            Phase::Open { until } if now < *until => return None,
            Phase::Open { .. } => self.half_open(),
            Phase::HalfOpen { .. } => {}
        }
        let Phase::HalfOpen { succeeded, running } = &mut self.phase else { return None };
        // OVERFLOW: both are at most `trials`.
        if running.len() as u64 + u64::from(*succeeded) >= u64::from(self.rules.trials) {
            // INVARIANT: fewer than close_after <= trials have succeeded, so one is running.
            let (_, oldest) = *running.first()?;
            if now.since(oldest) < self.rules.patience {
                return None;
            }
            running.remove(0);
        }
        self.trial += 1;
        running.push((self.trial, now));
        Some(self.ticket(Role::Trial(self.trial)))
    }

    /// Returns the first tick at which [`admit`](Self::admit) may let a call pass, if nothing else
    /// happens until then.
    pub(super) fn retry_at(&self) -> Tick {
        match (&self.hold, &self.phase) {
            (Hold::Open, _) => Tick::MAX,
            (Hold::Closed, _) | (_, Phase::Closed) => Tick::ZERO,
            (_, Phase::Open { until }) => *until,
            (_, Phase::HalfOpen { succeeded, running }) => {
                let is_free =
                    running.len() as u64 + u64::from(*succeeded) < self.rules.trials.into();
                let oldest = running.first().filter(|_| !is_free);
                oldest.map_or(Tick::ZERO, |(_, began)| began.saturating_add(self.rules.patience))
            }
        }
    }

    /// Opens a closed breaker whose thresholds were crossed by a call of this generation. Returns
    /// whether anything changed, as the other events do.
    pub(super) fn trip(&mut self, generation: u64, why: OpenReason, now: Tick) -> bool {
        let is_current = generation == self.generation && self.phase == Phase::Closed;
        if is_current {
            let until = self.next_break(now);
            self.open(until, why);
        }
        is_current
    }

    /// Ends a trial.
    pub(super) fn end_trial(&mut self, ticket: Ticket, outcome: CallOutcome, now: Tick) -> bool {
        let (Role::Trial(number), true) = (ticket.role, ticket.generation == self.generation)
        else {
            return false;
        };
        let Phase::HalfOpen { succeeded, running } = &mut self.phase else { return false };
        let Some(place) = running.iter().position(|(it, _)| *it == number) else { return false };
        running.remove(place);
        match outcome {
            CallOutcome::Ignore => {}
            CallOutcome::Success => {
                *succeeded += 1;
                if *succeeded >= self.rules.close_after {
                    self.close();
                }
            }
            CallOutcome::Failure | CallOutcome::Overload => {
                let until = self.next_break(now);
                self.open(until, OpenReason::TrialFailed);
            }
        }
        true
    }

    /// Opens it until a tick: a call of this generation brought the dependency's own time. Nothing
    /// extends a break.
    pub(super) fn open_until(&mut self, ticket: Ticket, until: Tick) -> bool {
        let decides = match ticket.role {
            Role::Counted => self.phase == Phase::Closed,
            Role::Trial(number) => matches!(&self.phase, Phase::HalfOpen { running, .. }
                if running.iter().any(|(it, _)| *it == number)),
            Role::Uncounted => false,
        };
        let decides = decides && ticket.generation == self.generation;
        if decides {
            self.open(until, OpenReason::ServerTime);
        }
        decides
    }

    /// Opens it until a tick, whatever it does now; an operator wants that. A breaker that is held
    /// stays held.
    pub(super) fn trip_until(&mut self, until: Tick) -> bool {
        let decides = matches!(self.hold, Hold::Automatic | Hold::Shadow);
        if decides {
            self.open(until, OpenReason::Operator);
        }
        decides
    }

    /// Ends a break: the next calls are trials. Does nothing unless it is open by itself.
    pub(super) fn try_now(&mut self) -> bool {
        let is_open = matches!(self.phase, Phase::Open { .. });
        if is_open {
            self.half_open();
        }
        is_open
    }

    /// Hands the decision over. The machine begins anew, closed.
    pub(super) fn hold(&mut self, hold: Hold) {
        (self.hold, self.why) = (hold, OpenReason::Operator);
        self.close();
    }

    const fn ticket(&self, role: Role) -> Ticket {
        Ticket { generation: self.generation, role }
    }

    fn enter(&mut self, phase: Phase) {
        // OVERFLOW: 2^56 transitions, which is what a host can show, take 2000 years at one each
        // microsecond.
        self.generation += 1;
        self.phase = phase;
    }

    fn close(&mut self) {
        self.breaks = 0;
        self.enter(Phase::Closed);
    }

    fn half_open(&mut self) {
        self.enter(Phase::HalfOpen { succeeded: 0, running: Vec::new() });
    }

    fn open(&mut self, until: Tick, why: OpenReason) {
        self.breaks = self.breaks.saturating_add(1);
        self.why = why;
        self.enter(Phase::Open { until });
    }

    /// Returns the end of a break that begins now.
    fn next_break(&mut self, now: Tick) -> Tick {
        let Rules { open_for, growth, most, jitter_percent, .. } = self.rules;
        let factor = growth.saturating_pow(self.breaks);
        let longest = open_for.saturating_mul(factor).min(most);
        // OVERFLOW: nanoseconds of a duration are below 2^94 and a percentage below 2^7.
        let spread = longest.as_nanos() * u128::from(jitter_percent) / 100;
        let spread = Duration::from_nanos(u64::try_from(spread).unwrap_or(u64::MAX));
        now.saturating_add(longest.saturating_sub(self.random.up_to(spread)))
    }
}

#[cfg(test)]
mod tests;
