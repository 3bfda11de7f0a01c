//! Calls across several stripes.

use super::{Reach, StripedLimiter, next_turn, share::part};
use crate::{
    Decision, Limiter, Quota, Tick, algorithm::word_time, decision::Level, observe::Verb,
    sync::MutexGuard,
};
use std::time::Duration;

/// What all stripes together hold as of some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) limit: u64,
    pub(super) free: u64,
    /// When the next permit is free on some stripe, if one is to come.
    pub(super) next: Option<Tick>,
    /// When a stripe leaves its debt, if all are in debt.
    solvent: Option<Tick>,
    /// Whether all stripes are in debt.
    in_debt: bool,
    /// When all are full, as a word holds it.
    pub(super) full: u64,
}

impl Sum {
    fn level(&self, at: Tick) -> Level {
        Level { at, limit: self.limit, remaining: self.free, full: self.full }
    }
}

/// Returns the earlier of two times, of which either may never come.
fn earlier(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    a.into_iter().chain(b).min()
}

impl StripedLimiter {
    /// The stripes in order, beginning with one.
    fn stripes_from(&self, first: usize) -> impl Iterator<Item = &Limiter> {
        let stripes = &self.shared.stripes;
        let (before, after) = stripes.split_at(first % stripes.len());
        after.iter().chain(before)
    }

    fn sum(&self, now: Tick) -> Sum {
        let mut sum = Sum { in_debt: true, ..Sum::default() };
        for stripe in &self.shared.stripes {
            let level = stripe.peek_at(now, 0);
            let free = level.remaining();
            // OVERFLOW: bursts add up to at most 10^15.
            sum.limit += level.limit();
            sum.free += free;
            sum.in_debt &= level.is_denied();
            sum.solvent = earlier(sum.solvent, level.retry_at());
            sum.full = sum.full.max(level.booked());
            if free < level.limit() {
                sum.next = earlier(sum.next, stripe.peek_at(now, free + 1).retry_at());
            }
        }
        sum
    }

    /// Takes from another stripe after the stripe `home` has refused, or from several together if none has
    /// the whole cost.
    #[cold]
    #[inline(never)]
    pub(super) fn elsewhere(&self, home: usize, now: Tick, cost: u64) -> Decision {
        if let Some(decision) = self.known_or_taken(home, now, cost) {
            return decision;
        }
        // Look before locking: most calls that get here find nothing.
        if cost > 1 && self.available_at(now) >= cost {
            let all = self.book();
            if let Some(decision) = self.several(home, now, cost, &all) {
                return decision;
            }
        }
        // Whoever does not get the lock refuses without a note.
        match self.shared.book.try_lock() {
            Ok(all) => self.noted_refusal(now, cost, &all),
            Err(_) => self.refusal(now, cost, &self.sum(now)),
        }
    }

    /// As [`elsewhere`](Self::elsewhere), but refuses only under the lock, when no costly call
    /// holds permits that it may give back.
    #[cold]
    #[inline(never)]
    pub(super) fn insist(&self, home: usize, now: Tick, cost: u64) -> Decision {
        if let Some(decision) = self.known_or_taken(home, now, cost) {
            return decision;
        }
        let all = self.book();
        let taken = self.several(home, now, cost, &all);
        taken.unwrap_or_else(|| self.noted_refusal(now, cost, &all))
    }

    /// Answers if all stripes are known to be dry, or one of them has the whole cost.
    fn known_or_taken(&self, home: usize, now: Tick, cost: u64) -> Option<Decision> {
        let known = if cost == 1 { self.shared.next_permit.0.refusal(now) } else { None };
        known.or_else(|| self.one_stripe(home, now, cost))
    }

    fn one_stripe(&self, home: usize, now: Tick, cost: u64) -> Option<Decision> {
        // INVARIANT: 1 to N - 1 steps from home lead to each of the others once.
        let others = self.stripes() - 1;
        let turn = next_turn();
        // And home again: it was asked a moment earlier, before the clock was read for the others.
        (0..others)
            .map(|step| home + 1 + (turn + step) % others)
            .chain([home])
            .map(|index| self.shared.stripes[index % self.stripes()].try_acquire_at(now, cost))
            .find(Decision::is_allowed)
    }

    /// Takes `cost` from as many stripes as it needs, or from none.
    fn several(
        &self,
        home: usize,
        now: Tick,
        cost: u64,
        all: &MutexGuard<'_, Quota>,
    ) -> Option<Decision> {
        if cost == 0 || self.available_at(now) < cost {
            return None;
        }
        let (mut held, mut missing) = (Vec::with_capacity(self.stripes()), cost);
        for stripe in self.stripes_from(home) {
            // A refusal means that another call was faster since the look. Then this stripe has less
            // than before, so the loop ends.
            while missing > 0 {
                let most = missing.min(stripe.available_at(now));
                if most == 0 {
                    break;
                }
                if let Ok(reservation) = stripe.reserve_at(now, most, Duration::ZERO) {
                    missing -= most;
                    held.push(reservation);
                    break;
                }
            }
        }
        if missing == 0 {
            held.into_iter().for_each(crate::Reservation::keep);
            return Some(Decision::allowed(self.sum(now).level(now), cost));
        }
        self.shared.next_permit.0.forget(all);
        // As of the latest time known: what time has refilled meanwhile is not given back too.
        let now = now.max(self.now());
        for reservation in held {
            reservation.cancel_at(now);
        }
        None
    }

    fn noted_refusal(&self, now: Tick, cost: u64, all: &MutexGuard<'_, Quota>) -> Decision {
        let sum = self.sum(now);
        self.shared.next_permit.0.store(now, &sum, all);
        self.refusal(now, cost, &sum)
    }

    fn refusal(&self, now: Tick, cost: u64, sum: &Sum) -> Decision {
        let level = sum.level(now);
        let retry = (cost <= sum.limit).then(|| self.passes_at(now, cost, sum)).flatten();
        match retry {
            Some(retry) => Decision::later(level, cost, word_time::from_nanos(retry.as_nanos())),
            None => Decision::never(level, cost),
        }
    }

    /// Returns the first tick at which all stripes together have `cost`, if nobody takes meanwhile.
    ///
    /// Free permits only grow while no call takes any, so bisection finds the tick. One missing
    /// permit, the common case, needs no search.
    fn passes_at(&self, now: Tick, cost: u64, sum: &Sum) -> Option<Tick> {
        if cost == 0 {
            return sum.solvent;
        }
        let missing = cost.saturating_sub(sum.free);
        let next = if missing == 0 { Some(now) } else { sum.next }?;
        if missing <= 1 || self.available_at(next) >= cost {
            return Some(next);
        }
        let (mut early, mut late) = (next.as_nanos(), next.as_nanos());
        // The first guess: the other permits come as the next one does.
        // OVERFLOW: ticks are 64 bits of nanoseconds, and so are their distances.
        let mut step = next.since(now).as_nanos() as u64;
        step = step.max(1).saturating_mul(missing);
        let horizon = Tick::HORIZON.as_nanos();
        let suffices = |nanos| self.available_at(Tick::from_nanos(nanos)) >= cost;
        while !suffices(late) {
            if late >= horizon {
                return None;
            }
            early = late;
            late = late.saturating_add(step).min(horizon);
            step = step.saturating_mul(2);
        }
        // INVARIANT: not at `early`, but at `late`.
        while late - early > 1 {
            let middle = early + (late - early) / 2;
            if suffices(middle) { late = middle } else { early = middle }
        }
        Some(Tick::from_nanos(late))
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing.
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    ///
    /// Under [`Reach::All`] it speaks of the whole: `remaining` is what would be left on all
    /// stripes, and [`full_at`](Decision::full_at) is when all are full as they are now.
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.peek_at(self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    pub fn peek_at(&self, now: Tick, cost: u64) -> Decision {
        if self.shared.reach == Reach::Home {
            return self.shared.stripes[self.home()].peek_at(now, cost);
        }
        let sum = self.sum(now);
        // A cost of nothing passes unless every stripe is in debt.
        if sum.free < cost || cost == 0 && sum.in_debt {
            return self.refusal(now, cost, &sum);
        }
        let level = Level { remaining: sum.free - cost, ..sum.level(now) };
        Decision::allowed(level, cost)
    }

    /// Returns how many whole permits are free now on all stripes together.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.available_at(self.now())
    }

    /// [`available`](Self::available) as of `now`.
    #[must_use]
    pub fn available_at(&self, now: Tick) -> u64 {
        self.shared.stripes.iter().map(|stripe| stripe.available_at(now)).sum()
    }

    /// Books `cost` permits even if they are not free: for a cost that is known only afterwards.
    ///
    /// Free permits of any stripe are taken first; the rest is a debt in equal parts on all of
    /// them, so that the others do not go on as if nothing had happened. (Equal but for one permit;
    /// a stripe that has paid its part goes on while another still owes that one.) Refused as
    /// never, with nothing booked, only if a stripe cannot hold its part of the debt.
    pub fn force(&self, cost: u64) -> Decision {
        self.force_at(self.now(), cost)
    }

    /// [`force`](Self::force) as of `now`.
    pub fn force_at(&self, now: Tick, cost: u64) -> Decision {
        self.report(Verb::Force, self.book_into_debt(now, cost))
    }

    fn book_into_debt(&self, now: Tick, cost: u64) -> Decision {
        let all = self.book();
        self.shared.next_permit.0.forget(&all);
        let (mut booked, mut rest) = (Vec::with_capacity(2 * self.stripes()), cost);
        for stripe in self.stripes_from(self.home()) {
            let most = rest.min(stripe.available_at(now));
            if most == 0 {
                continue;
            }
            let taken = stripe.up_to_at(now, most);
            if taken.is_allowed() {
                rest -= taken.cost();
                booked.push((stripe, taken.cost()));
            }
        }
        // The remainder falls to other stripes each time.
        for (index, stripe) in self.stripes_from(next_turn()).enumerate() {
            let debt = part(rest, index as u64, self.stripes() as u64);
            if debt > 0 && stripe.force_at(now, debt).is_denied() {
                let now = now.max(self.now());
                for (stripe, cost) in booked {
                    stripe.refund_at(now, cost);
                }
                return Decision::never(self.sum(now).level(now), cost);
            }
            booked.push((stripe, debt));
        }
        Decision::allowed(self.sum(now).level(now), cost)
    }

    /// Gives back up to `cost` permits of what is outstanding on any stripe. Returns how many.
    ///
    /// Begins with stripes that owe, then with this thread's. Never above full, and never more than
    /// asked for. It counts whole permits, so on each stripe that has fractions or debts one permit
    /// may stay outstanding.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund(&self, cost: u64) -> u64 {
        self.refund_at(self.now(), cost)
    }

    /// [`refund`](Self::refund) as of `now`.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund_at(&self, now: Tick, cost: u64) -> u64 {
        let all = self.book();
        self.shared.next_permit.0.forget(&all);
        let (mut rest, mut given) = (cost, 0);
        let mut ask = |asked_of: &dyn Fn(Decision) -> u64| {
            let before = given;
            for stripe in self.stripes_from(self.home()) {
                let asked = asked_of(stripe.peek_at(now, 0)).min(rest);
                let got = stripe.refund_at(now, asked);
                // If it had less, a fraction came with it, which counts as a whole permit against
                // what was asked for: the sum is never more.
                (rest, given) = (rest - asked.min(got + 1), given + got);
            }
            given > before
        };
        // First the debts, or stripes that owe nothing would spend what is given back: an N-th of
        // the cost to each that owes, again and again, so there are at most N rounds.
        let share = cost.div_ceil(self.stripes() as u64);
        while ask(&|level| if level.is_denied() { share } else { 0 }) {}
        // Then what is surely outstanding in whole permits: a level is below what is free plus one.
        ask(&|level| level.limit().saturating_sub(level.remaining() + 1));
        // Then the last permit of each, which may be a fraction.
        ask(&|level| u64::from(level.remaining() < level.limit()));
        if let Some(instruments) = &self.shared.instruments {
            instruments.counters.refund(given);
        }
        given
    }

    /// Forgets what was taken, as if the limiter were new.
    pub fn reset(&self) {
        self.reset_at(self.now());
    }

    /// [`reset`](Self::reset) as of `now`.
    pub fn reset_at(&self, now: Tick) {
        let all = self.book();
        self.shared.next_permit.0.forget(&all);
        self.shared.stripes.iter().for_each(|stripe| stripe.reset_at(now));
    }
}
