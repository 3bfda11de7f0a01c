//! One state with its algorithm, whatever both are.

use super::{
    Algorithm, FixedWindow, Gcra, Idle, Log, Rule, SlidingCounter, SlidingLog, Step, TwoWindows,
};
use crate::{Decision, Quota, QuotaError, Tick, observe::Verb, reservation::Taken};
use std::time::Duration;

/// A state in the hands of its host, for code that does not care which algorithm it is.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    Word(&'a Rule, &'a mut u64),
    Counter(&'a SlidingCounter, &'a mut TwoWindows),
    Log(&'a SlidingLog, &'a mut Log),
}

/// Runs the same code on any entry.
macro_rules! on_entry {
    ($entry:expr, $step:ident, $state:ident => $body:expr) => {
        match $entry {
            Entry::Word($step, $state) => $body,
            Entry::Counter($step, $state) => $body,
            Entry::Log($step, $state) => $body,
        }
    };
}

impl Entry<'_> {
    /// Returns the parameters and the word if this is GCRA with a quota of its own.
    pub(crate) const fn gcra(&mut self) -> Option<(&Gcra, &mut u64)> {
        match self {
            Entry::Word(Rule::Gcra(gcra) | Rule::PerCall(gcra), word) => Some((gcra, word)),
            _ => None,
        }
    }

    /// Tells whether the state is as good as none.
    pub(crate) fn is_idle(&self, now: Tick) -> bool {
        on_entry!(self, step, state => step.is_idle(state, now))
    }

    #[inline(always)]
    pub(crate) fn peek(&self, now: Tick, cost: u64) -> Decision {
        on_entry!(self, step, state => step.peek(state, now, cost))
    }

    #[inline(always)]
    pub(crate) fn decide(&mut self, now: Tick, cost: u64) -> Decision {
        on_entry!(self, step, state => step.decide(state, now, cost))
    }

    pub(crate) fn available(&self, now: Tick) -> u64 {
        on_entry!(self, step, state => step.available(state, now))
    }

    /// Decides as `verb` says.
    pub(crate) fn ask(&mut self, verb: Verb, now: Tick, cost: u64) -> Decision {
        on_entry!(self, step, state => match verb {
            Verb::UpTo => step.up_to(state, now, cost),
            Verb::Force => step.force(state, now, cost),
            Verb::OnCredit => step.on_credit(state, now, cost),
            _ => step.decide(state, now, cost),
        })
    }

    pub(crate) fn force_up_to(&mut self, now: Tick, most: u64) -> Decision {
        on_entry!(self, step, state => step.force_up_to(state, now, most))
    }

    pub(crate) fn charge(&mut self, now: Tick, cost: u64) -> bool {
        on_entry!(self, step, state => step.charge(state, now, cost))
    }

    /// Gives back up to `cost` permits. Returns (units, whole permits).
    pub(crate) fn refund(&mut self, now: Tick, cost: u64) -> (u64, u64) {
        on_entry!(self, step, state => {
            let units = step.refund(state, now, cost);
            (units, step.whole_permits(units))
        })
    }

    /// Gives back up to `cost` permits, or what is still outstanding of `decision`, but nothing of the
    /// `waiting` units that are booked for those who wait. Returns (units, permits); permits that had refilled in part
    /// count, because what is given back makes them whole.
    pub(crate) fn refund_beside(
        &mut self,
        now: Tick,
        (cost, decision): (u64, Option<&Decision>),
        waiting: u64,
    ) -> (u64, u64) {
        if let Some((gcra, tat)) = self.gcra() {
            let most = match decision {
                Some(decision) => gcra.outstanding(decision, now),
                None => gcra.units(cost),
            };
            let units = gcra.refund_beside(tat, now, most, waiting);
            return (units, gcra.touched_permits(units));
        }
        let Some(decision) = decision else { return self.refund(now, cost) };
        let (at, full_at) = (decision.at(), decision.full_at());
        match self {
            // Its number is not known from the time alone, but its end is.
            Entry::Word(Rule::FixedWindow(window), _) if window.is_anchored() => {
                let is_over = full_at.is_some_and(|end| end <= now);
                if is_over { (0, 0) } else { self.refund(now, decision.cost()) }
            }
            _ => on_entry!(self, step, state => {
                let mark = step.mark(&step.initial(at), at);
                let units = step.give_back(state, now, mark, step.units(decision.cost()));
                (units, step.whole_permits(units))
            }),
        }
    }

    /// Forgets what was used.
    pub(crate) fn reset(&mut self, now: Tick) {
        on_entry!(self, step, state => **state = step.initial(now));
    }

    /// Gives back up to `most` units of the charge that left `mark`. Returns (units, whole permits).
    pub(crate) fn give_back(&mut self, now: Tick, mark: u64, most: u64) -> (u64, u64) {
        on_entry!(self, step, state => {
            let units = step.give_back(state, now, mark, most);
            (units, step.whole_permits(units))
        })
    }

    /// Takes `cost` within `max_wait`, with the right to give back; windows only what passes now.
    pub(crate) fn reserve(
        &mut self,
        now: Tick,
        cost: u64,
        max_wait: Duration,
    ) -> (Option<Taken>, Decision) {
        if let Entry::Word(rule, word) = self
            && let Some(gcra) = rule.as_gcra()
        {
            let answer = gcra.peek(word, now, cost);
            let act_at = gcra.reserve(word, now, cost, max_wait);
            let taken = act_at.map(|act_at| Taken::of(gcra, word, (now, act_at), cost));
            let seen = if answer.is_allowed() { answer } else { gcra.peek(word, now, cost) };
            return (taken, seen);
        }
        on_entry!(self, step, state => {
            let answer = step.decide(state, now, cost);
            let taken = Taken::of(*step, state, (now, now), cost);
            (answer.is_allowed().then_some(taken), answer)
        })
    }

    /// Returns what a charge of `cost` just made can claim back.
    pub(crate) fn taken(&self, now: Tick, cost: u64) -> Taken {
        on_entry!(self, step, state => Taken::of(*step, state, (now, now), cost))
    }

    /// Tells whether this is GCRA, whose marks are places and not numbers of windows.
    pub(crate) const fn is_gcra(&self) -> bool {
        matches!(self, Entry::Word(Rule::Gcra(_) | Rule::PerCall(_), _))
    }
}

/// What a call brings when its quota comes with it, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerCall {
    Gcra(Gcra),
    /// The limit of an aligned window.
    Window(u64),
}

impl PerCall {
    /// Checks a quota for a policy whose quota comes with each call; `nominal` is the policy's,
    /// which says how long a window is.
    pub(crate) fn new(
        algorithm: Algorithm,
        nominal: &Quota,
        quota: &Quota,
    ) -> Result<Self, QuotaError> {
        if !quota.starts_full() {
            return Err(QuotaError::InitialPerCall);
        }
        if algorithm == Algorithm::Gcra {
            let gcra = Gcra::new(quota)?;
            // Keys are forgotten when they are full, and a budget never is again.
            if quota.count() == 0 {
                return Err(QuotaError::RateZero { burst: quota.capacity() });
            }
            return Ok(Self::Gcra(gcra));
        }
        FixedWindow::aligned(quota, Duration::ZERO)?;
        if quota.period() != nominal.period() {
            let (period, window) = (quota.period(), nominal.period());
            return Err(QuotaError::OtherWindow { period, window });
        }
        Ok(Self::Window(quota.count()))
    }

    /// Returns the rule of the call, given that of its policy.
    #[inline]
    pub(crate) fn rule(&self, policy: &Rule) -> Rule {
        match (self, policy) {
            (Self::Gcra(gcra), Rule::PerCall(_)) => Rule::PerCall(*gcra),
            (Self::Window(limit), Rule::FixedWindow(window)) => {
                Rule::FixedWindow(window.with_limit(*limit))
            }
            _ => *policy,
        }
    }
}
