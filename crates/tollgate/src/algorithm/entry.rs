//! One state with its algorithm, whatever both are.

use super::{Log, Rule, SlidingCounter, SlidingLog, Step, TwoWindows};
use crate::{Decision, Tick, reservation::Taken};
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

#[allow(clippy::inline_always, reason = "measured: the match folds where the entry is made")]
impl Entry<'_> {
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

    pub(crate) fn up_to(&mut self, now: Tick, most: u64) -> Decision {
        on_entry!(self, step, state => step.up_to(state, now, most))
    }

    pub(crate) fn force(&mut self, now: Tick, cost: u64) -> Decision {
        on_entry!(self, step, state => step.force(state, now, cost))
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

    /// Tells whether this is GCRA, whose marks are places and which can book the future.
    pub(crate) const fn is_gcra(&self) -> bool {
        matches!(self, Entry::Word(Rule::Gcra(_), _))
    }
}
