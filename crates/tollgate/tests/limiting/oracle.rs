//! Every algorithm and every verb against an independent exact model.
//!
//! Random quotas (common and awkward ones), costs, gaps and verbs; time also stands still and goes
//! backwards. Every decision is compared in every field, and every tick that it names is tried.
//! proptest prints the seed.

mod quotas;

use crate::{model::Model, support::*};
use proptest::{prelude::*, sample::Index};
use quotas::{filled, gcra_quotas, window_quotas};
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Decision, Inherit, Limiter, Quota, QuotaError, Refused, Reservation, Tick,
};

/// One event of a random trace: the gap since the event before, and a call.
#[derive(Clone, Copy, Debug)]
struct Event {
    gap_ns: i64,
    call: Call,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Try(u64),
    Peek(u64),
    UpTo(u64),
    Force(u64),
    OnCredit(u64),
    /// A cost, and how long it may wait.
    Reserve(u64, Duration),
    Cancel(Index),
    /// Corrects an open reservation to this cost.
    Settle(Index, u64),
    Keep(Index),
    Refund(u64),
    Reset,
    Change(Quota, Inherit),
}

/// A limiter, its model, and the reservations that are open in both.
struct Trial {
    limiter: Limiter,
    model: Model,
    open: Vec<(Reservation, Option<u64>)>,
    now: Tick,
}

type Checked = Result<(), TestCaseError>;

impl Trial {
    /// `None` if the algorithm cannot count this quota, for example an anchored window that is too
    /// short.
    fn new(algorithm: Algorithm, quota: Quota, epoch_ns: u64, start_ns: u64) -> Option<Self> {
        let (clock, hand) = Clock::manual();
        clock.set_wall_offset(Duration::from_nanos(epoch_ns));
        hand.advance(Duration::from_nanos(start_ns));
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock).build().ok()?;
        let now = ns(start_ns);
        let model = Model::new(algorithm, quota, epoch_ns, now);
        Some(Self { limiter, model, open: Vec::new(), now })
    }

    fn step(&mut self, event: Event) -> Checked {
        let last = Tick::HORIZON.as_nanos() - (1 << 56);
        self.now = ns(self.now.as_nanos().saturating_add_signed(event.gap_ns).min(last));
        let now = self.now;
        self.apply(event.call)?;
        // A change of quota may leave a debt that the state is not guaranteed to hold.
        let is_change = matches!(event.call, Call::Change(..));
        if self.model.is_vague() || (is_change && self.model.may_refuse_debt(now, 0)) {
            self.reset();
        }
        let (left, available) = (self.model.left(now), self.limiter.available_at(now));
        prop_assert!(left.contains(&available), "{available} available of {left:?}");
        self.check_peek(1)
    }

    fn apply(&mut self, call: Call) -> Checked {
        let now = self.now;
        match call {
            Call::Try(cost) => {
                let decision = self.limiter.try_acquire_at(now, cost);
                prop_assert_eq!(decision.cost(), cost);
                self.check_take(&decision)?;
            }
            Call::Peek(cost) => self.check_peek(cost)?,
            Call::UpTo(most) => {
                let (left, decision) = (self.model.left(now), self.limiter.up_to_at(now, most));
                // If none is free, it is the denial of one permit.
                let [least, most] =
                    [left.start(), left.end()].map(|left| most.min(*left).max(most.min(1)));
                prop_assert!((least..=most).contains(&decision.cost()), "{:?}", decision);
                self.check_take(&decision)?;
            }
            Call::Force(cost) => {
                let decision = self.limiter.force_at(now, cost);
                prop_assert_eq!(decision.cost(), cost);
                if decision.is_allowed() {
                    self.model.take(now, cost);
                } else {
                    prop_assert!(decision.is_never() && self.model.may_refuse_debt(now, cost));
                }
                self.check_level(&decision)?;
            }
            Call::OnCredit(cost) => self.on_credit(cost)?,
            Call::Reserve(cost, max_wait) => self.reserve(cost, max_wait)?,
            Call::Cancel(pick) => {
                let Some((reservation, id)) = self.pick(pick) else { return Ok(()) };
                let cost = reservation.cost();
                let back = id.map_or(0..=0, |id| self.model.give_back(now, id, (cost, cost)));
                let given = reservation.cancel_at(now);
                prop_assert!(back.contains(&given), "gave back {given} of {back:?}");
            }
            Call::Settle(pick, actual) => {
                let Some((reservation, id)) = self.pick(pick) else { return Ok(()) };
                self.settle(reservation, id, actual)?;
            }
            Call::Keep(pick) => {
                let Some((reservation, id)) = self.pick(pick) else { return Ok(()) };
                id.into_iter().for_each(|id| self.model.forget(id));
                reservation.keep();
            }
            // One refund gives back no more than the largest debt; time that goes back can add to that.
            Call::Refund(_) if self.model.may_refuse_debt(now, 0) => {}
            Call::Refund(cost) => {
                let back = self.model.refund(now, cost);
                let given = self.limiter.refund_at(now, cost);
                prop_assert!(back.contains(&given), "refunded {given} of {back:?}");
            }
            Call::Reset => self.reset(),
            Call::Change(quota, how) => {
                match self.limiter.set_quota_at(now, quota, how) {
                    Ok(()) => self.model.change(now, quota, how),
                    // The word of a sliding counter does not grow.
                    Err(QuotaError::Outgrown { .. }) => {}
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.limiter.reset_at(self.now);
        self.model.reset(self.now);
    }

    fn pick(&mut self, pick: Index) -> Option<(Reservation, Option<u64>)> {
        (!self.open.is_empty()).then(|| self.open.swap_remove(pick.index(self.open.len())))
    }

    fn on_credit(&mut self, cost: u64) -> Checked {
        let (now, least) = (self.now, cost.min(1));
        let (first, passes) = (self.limiter.peek_at(now, least), self.model.passes(now, least));
        let decision = self.limiter.try_acquire_on_credit_at(now, cost);
        prop_assert_eq!(decision.cost(), cost);
        if decision.is_allowed() {
            prop_assert!(passes != Some(false), "{decision:?}");
            self.model.take(now, cost);
            return self.check_level(&decision);
        }
        if first.is_allowed() {
            prop_assert!(decision.is_never() && self.model.may_refuse_debt(now, cost));
            return Ok(());
        }
        // It waits for one permit, and the model knows when that is free.
        prop_assert!(passes != Some(true), "{decision:?}");
        prop_assert_eq!(decision.retry_at(), first.retry_at());
        check_by_model(&self.model, &first)
    }

    fn reserve(&mut self, cost: u64, max_wait: Duration) -> Checked {
        let now = self.now;
        let is_first = |at: Tick| match at == now {
            true => self.model.passes(now, cost) != Some(false),
            false => self.model.is_first(at, cost),
        };
        match self.limiter.reserve_at(now, cost, max_wait) {
            Ok(reservation) => {
                let act_at = reservation.act_at();
                prop_assert!(is_first(act_at), "{reservation:?}");
                prop_assert!(act_at >= now && reservation.delay(now) <= max_wait);
                let is_gcra = self.limiter.algorithm() == Algorithm::Gcra;
                prop_assert!(is_gcra || act_at == now, "{reservation:?}");
                let decision = reservation.decision();
                prop_assert!(decision.is_allowed() && decision.cost() == cost);
                let id = self.model.reserve(now, cost);
                self.open.push((reservation, id));
                self.check_level(&decision)?;
                // Only earlier times could show whether this moves an idle bucket up to now.
                if cost == 0 && self.model.is_full(now) != Some(false) {
                    self.reset();
                }
                Ok(())
            }
            Err(refused) => {
                let decision = refused.decision();
                let wait = decision.retry_after(now);
                let is_right = match refused {
                    Refused::Never(_) => decision.is_never(),
                    Refused::TooLong { .. } => wait.is_some_and(|wait| wait > max_wait),
                    Refused::BookedUp(_) => self.model.may_refuse_debt(now, cost),
                    Refused::OnlyNow(_) => self.limiter.algorithm() != Algorithm::Gcra,
                    _ => false,
                };
                prop_assert!(is_right, "{refused:?}");
                prop_assert!(decision.is_denied() && decision.cost() == cost);
                self.check_level(&decision)
            }
        }
    }

    fn settle(&mut self, reservation: Reservation, id: Option<u64>, actual: u64) -> Checked {
        let (now, cost) = (self.now, reservation.cost());
        let is_free = id.is_none() && cost > 0;
        let decision = reservation.settle_at(now, actual);
        prop_assert!(decision.is_allowed() && decision.cost() <= actual);
        match id {
            // Taken while there was no limit, or for a cost of zero: there is no charge to correct.
            None if is_free || actual == 0 => {
                prop_assert_eq!(decision.cost(), actual);
                return Ok(());
            }
            Some(id) if actual <= cost => {
                prop_assert_eq!(decision.cost(), actual);
                let _ = self.model.give_back(now, id, (cost - actual, cost));
            }
            _ => {
                id.into_iter().for_each(|id| self.model.forget(id));
                if decision.cost() < actual {
                    // As much as fits: after that, not one more does.
                    prop_assert!(self.model.may_refuse_debt(now, actual - cost));
                    prop_assert!(self.limiter.force_at(now, 1).is_never(), "{decision:?}");
                }
                self.model.take(now, decision.cost() - cost);
            }
        }
        self.check_level(&decision)
    }

    /// Checks a decision that took its cost if it was allowed.
    fn check_take(&mut self, decision: &Decision) -> Checked {
        let passes = self.model.passes(self.now, decision.cost());
        prop_assert!(passes.is_none_or(|passes| passes == decision.is_allowed()), "{decision:?}");
        if decision.is_allowed() {
            self.model.take(self.now, decision.cost());
        }
        self.check_level(decision)
    }

    /// Peeks, and compares with the effect of a take on the model.
    fn check_peek(&self, cost: u64) -> Checked {
        let (decision, mut model) = (self.limiter.peek_at(self.now, cost), self.model.clone());
        let passes = model.passes(self.now, cost);
        prop_assert!(passes.is_none_or(|passes| passes == decision.is_allowed()), "{decision:?}");
        if decision.is_allowed() {
            model.take(self.now, cost);
        }
        check_by_model(&model, &decision)
    }

    /// Checks the state in a decision: by the model, and by the limiter itself.
    fn check_level(&self, decision: &Decision) -> Checked {
        prop_assert_eq!(decision.at(), self.now);
        check_by_model(&self.model, decision)?;
        check_retry(&self.limiter, decision)?;
        check_full(&self.limiter, decision)
    }
}

fn check_by_model(model: &Model, decision: &Decision) -> Checked {
    let (now, cost, left) = (decision.at(), decision.cost(), model.left(decision.at()));
    prop_assert_eq!(decision.limit(), model.limit());
    prop_assert!(left.contains(&decision.remaining()), "left {:?}: {:?}", left, decision);
    let is_full_at = match decision.full_at() {
        Some(at) if at == now => model.is_full(now) != Some(false),
        Some(at) => {
            at > now && model.is_full(at) != Some(false) && model.is_full(before(at)) != Some(true)
        }
        None => model.is_full(Tick::HORIZON) != Some(true),
    };
    prop_assert!(is_full_at, "full: {:?}", decision);
    let is_retry_at = match decision.retry_at() {
        Some(at) => decision.is_denied() && at > now && model.is_first(at, cost),
        None if decision.is_allowed() => true,
        None => {
            let is_never = model.passes(Tick::HORIZON, cost) != Some(true);
            decision.is_never() && (is_never || model.may_refuse_debt(now, cost))
        }
    };
    prop_assert!(is_retry_at, "retry: {:?}", decision);
    Ok(())
}

fn before(tick: Tick) -> Tick {
    ns(tick.as_nanos() - 1)
}

/// G4: one tick before `retry_at` the same call is denied, at that tick it passes.
fn check_retry(limiter: &Limiter, decision: &Decision) -> Checked {
    let Some(retry_at) = decision.retry_at() else { return Ok(()) };
    prop_assert!(limiter.peek_at(retry_at, decision.cost()).is_allowed(), "{decision:?}");
    prop_assert!(limiter.peek_at(before(retry_at), decision.cost()).is_denied(), "{decision:?}");
    Ok(())
}

/// `full_at` is the first tick at which everything is free.
fn check_full(limiter: &Limiter, decision: &Decision) -> Checked {
    let Some(full_at) = decision.full_at() else { return Ok(()) };
    prop_assert_eq!(limiter.available_at(full_at), decision.limit(), "{:?}", decision);
    if full_at > decision.at() && decision.limit() > 0 {
        let reset = limiter.peek_at(before(full_at), 0).full_at();
        prop_assert_eq!(reset, Some(full_at), "not full one tick earlier: {:?}", decision);
    }
    Ok(())
}

// ---- random quotas and traces -------------------------------------------------------------------

/// The scale of a trace: typical times and numbers of permits.
#[derive(Clone, Copy)]
struct Scale {
    ns: u64,
    permits: u64,
    /// Costs beyond all bounds, which a change of quota could not carry over.
    is_huge: bool,
}

/// Gaps of zero, of a few ticks, and of about the time of a permit or a window; some go backwards.
fn events(scale: Scale, quotas: Vec<Quota>) -> impl Strategy<Value = Vec<Event>> {
    let Scale { ns, permits, is_huge } = scale;
    let gap = prop_oneof![
        6 => Just(0),
        4 => 1..5_i64,
        8 => 0..=ns as i64,
        2 => 0..=ns.saturating_mul(20).min(1 << 58) as i64,
        1 => -4..0_i64,
        1 => -(ns as i64)..=0,
    ];
    let few = || 0..=permits.saturating_mul(5) / 4 + 1;
    let shift = if is_huge { 0..64_u32 } else { 0..1 };
    let used = prop_oneof![6 => Just(0), 1 => shift];
    let used = (few(), used).prop_map(|(cost, shift)| cost.saturating_mul(1 << shift));
    // Far above the limit: the debt lasts for some windows, for thousands, or does not fit.
    let times = prop_oneof![5 => Just(1), 2 => 1..8_u64, 1 => 1..5000_u64];
    let booked = (few(), times).prop_map(|(cost, times)| cost.saturating_mul(times));
    let booked = || prop_oneof![4 => booked.clone(), 1 => used.clone()];
    let wait = prop_oneof![Just(0), 0..=ns, 0..=ns.saturating_mul(100), Just(1 << 60)];
    let quota = prop::sample::select(quotas);
    let how = prop::sample::select(
        &[Inherit::Reset, Inherit::AsIs, Inherit::Proportional, Inherit::Additive][..],
    );
    let call = prop_oneof![
        24 => few().prop_map(Call::Try),
        4 => few().prop_map(Call::Peek),
        6 => few().prop_map(Call::UpTo),
        3 => booked().prop_map(Call::Force),
        2 => booked().prop_map(Call::OnCredit),
        12 => (few(), wait)
            .prop_map(|(cost, wait)| Call::Reserve(cost, Duration::from_nanos(wait))),
        5 => any::<Index>().prop_map(Call::Cancel),
        5 => (any::<Index>(), booked()).prop_map(|(pick, used)| Call::Settle(pick, used)),
        1 => any::<Index>().prop_map(Call::Keep),
        4 => booked().prop_map(Call::Refund),
        1 => Just(Call::Reset),
        3 => (quota, how).prop_map(|(quota, how)| Call::Change(quota, how)),
    ];
    let event = (gap, call).prop_map(|(gap_ns, call)| Event { gap_ns, call });
    prop::collection::vec(event, 1..120)
}

/// A first quota, some that follow it (often none), and a trace.
fn traces(
    quotas: impl Strategy<Value = Quota>,
    scale: impl Fn(&Quota) -> (u64, u64) + Copy,
) -> impl Strategy<Value = (Quota, Vec<Event>)> {
    let several = prop::collection::vec(quotas, 1..4);
    (several, any::<u64>()).prop_flat_map(move |(mut quotas, fill)| {
        quotas.truncate(if fill & 64 == 0 { 1 } else { 3 });
        let (first, is_huge) = (quotas[0], quotas.len() == 1);
        let (ns, permits) = scale(&first);
        let first = filled(first, if is_huge { fill } else { 7 });
        let scale = Scale { ns: ns.clamp(1, 1 << 50), permits, is_huge };
        (Just(first), events(scale, quotas))
    })
}

fn gcra_traces() -> impl Strategy<Value = (Quota, Vec<Event>)> {
    traces(gcra_quotas(), |quota| {
        let permit_ns = quota.period().as_nanos() as u64 / quota.count().max(1);
        (permit_ns.max(1).saturating_mul(quota.capacity().clamp(1, 20)), quota.capacity())
    })
}

fn window_traces() -> impl Strategy<Value = (Quota, Vec<Event>)> {
    traces(window_quotas(), |quota| (quota.period().as_nanos() as u64, quota.count()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn gcra_decides_like_an_exact_bucket(
        (quota, events) in gcra_traces(), start in 0..1_u64 << 57,
    ) {
        let mut trial = Trial::new(Algorithm::Gcra, quota, 0, start).unwrap();
        for event in events {
            trial.step(event)?;
        }
    }

    #[test]
    fn windows_decide_like_a_diary(
        (quota, events) in window_traces(), which in 1..5_usize, (shift, wall) in (0..40_u32, any::<u64>()),
        start in 0..1_u64 << 56,
    ) {
        let algorithm = Algorithm::ALL[which];
        let trial = Trial::new(algorithm, quota, wall >> (4 + shift), start);
        prop_assert!(trial.is_some() || algorithm == Algorithm::AnchoredWindow);
        prop_assume!(trial.is_some());
        let mut trial = trial.unwrap();
        for event in events {
            trial.step(event)?;
        }
    }
}

proptest! {
    /// G3: a denied call leaves the limiter as it was, to the last permit and tick.
    #[test]
    fn a_denial_changes_nothing(
        which in 0..5_usize, cost in 1..30_u64, used in 0..20_u64, at in 0..3_000_000_000_u64,
    ) {
        let (limiter, _) = manual(Algorithm::ALL[which], "10/s");
        let _ = limiter.up_to_at(ns(at / 2), used);
        let _ = limiter.force_at(ns(at), used * used / 4);
        let picture = |limiter: &Limiter| {
            let peeks = (0..=11).map(|cost| limiter.peek_at(ns(at), cost)).collect::<Vec<_>>();
            (peeks, format!("{:?}", limiter.snapshot_at(ns(at))))
        };
        let before = picture(&limiter);
        let decision = limiter.try_acquire_at(ns(at), cost);
        prop_assume!(decision.is_denied());
        prop_assert_eq!(picture(&limiter), before.clone());
        prop_assert!(limiter.reserve_at(ns(at), 11, Duration::ZERO).is_err());
        prop_assert_eq!(picture(&limiter), before);
    }
}
