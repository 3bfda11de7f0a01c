// One of the two trees. `main.rs` includes this file twice; `subject` is the crate in question.

use crate::trace::{Call, Host, Kind, Seen, Target, Trace};
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use subject::{
    Algorithm, Clock, Decision, Inherit, KeyedLimiter, Limiter, ManualClock, Outcome, Quota,
    Refused, Reservation, Seed, Tick,
    store::{Demand, MemoryStore, Policy, ReservationId, Store, StoreError},
};

pub(crate) struct Side {
    hand: ManualClock,
    quotas: Vec<Quota>,
    state: State,
    open: Vec<Open>,
}

enum State {
    Limiter(Limiter),
    Keyed(KeyedLimiter<u64>),
    Store(MemoryStore, Vec<Policy>),
}

enum Open {
    One(Reservation),
    /// Of a store, with the number of demands.
    Several(ReservationId, usize),
}

const HOW: [Inherit; 4] = [Inherit::Reset, Inherit::AsIs, Inherit::Proportional, Inherit::Additive];

impl Side {
    /// An error if the quota makes no sense for the algorithm.
    pub(crate) fn new(trace: &Trace) -> Result<Self, String> {
        let (clock, hand) = Clock::manual();
        clock.set_wall_offset(Duration::from_nanos(trace.epoch_ns));
        hand.set(Tick::from_nanos(trace.calls.first().map_or(0, |(at, _)| *at)));
        let parsed = trace.quotas.iter().map(|text| text.parse().map_err(text_of));
        let quotas: Vec<Quota> = parsed.collect::<Result<_, _>>()?;
        let state = match &trace.host {
            Host::Limiter(algorithm) => {
                let builder = Limiter::builder(quotas[0]).algorithm(Algorithm::ALL[*algorithm]);
                State::Limiter(builder.clock(clock).build().map_err(text_of)?)
            }
            Host::Keyed(algorithm) => {
                let builder =
                    KeyedLimiter::builder(quotas[0]).algorithm(Algorithm::ALL[*algorithm]);
                State::Keyed(builder.clock(clock).seed(seed()).build().map_err(text_of)?)
            }
            Host::Store(kinds) => {
                let policy = |(number, kind): (usize, &Kind)| match kind {
                    Kind::Plain(algorithm) => {
                        let algorithm = Algorithm::ALL[*algorithm];
                        Policy::with_algorithm(format!("p{number}"), quotas[number], algorithm)
                    }
                    Kind::AdHoc => Ok(Policy::ad_hoc(format!("p{number}"))),
                    Kind::AdHocWindow => {
                        Policy::ad_hoc_window(format!("p{number}"), quotas[number].period())
                    }
                };
                let policies = kinds.iter().enumerate().map(policy).collect::<Result<_, _>>();
                let store =
                    MemoryStore::builder().clock(clock).seed(seed()).build().map_err(text_of)?;
                State::Store(store, policies.map_err(text_of)?)
            }
        };
        Ok(Self { hand, quotas, state, open: Vec::new() })
    }

    pub(crate) fn call(&mut self, at_ns: u64, call: &Call) -> Vec<Seen> {
        let now = Tick::from_nanos(at_ns);
        self.hand.set(now);
        match self.try_call(now, call) {
            Ok(seen) => seen,
            Err(error) => vec![Seen::Refused(text_of(error))],
        }
    }

    fn try_call(&mut self, now: Tick, call: &Call) -> Result<Vec<Seen>, StoreError> {
        let seen = match call {
            Call::Try(targets) | Call::Peek(targets) => {
                let is_take = matches!(call, Call::Try(_));
                return self.decide(now, targets, is_take);
            }
            Call::UpTo(target) => decision(match &self.state {
                State::Limiter(limiter) => limiter.up_to_at(now, target.cost),
                State::Keyed(keyed) => keyed.up_to_at(&target.key, now, target.cost),
                State::Store(store, policies) => {
                    ready(store.up_to(&mut self.demand(policies, target)?))?
                }
            }),
            Call::Force(target) => decision(match &self.state {
                State::Limiter(limiter) => limiter.force_at(now, target.cost),
                State::Keyed(keyed) => keyed.force_at(&target.key, now, target.cost),
                State::Store(store, policies) => {
                    store.force_at(now, &self.demand(policies, target)?)?
                }
            }),
            Call::Available(target) => Seen::Number(match &self.state {
                State::Limiter(limiter) => limiter.available_at(now),
                State::Keyed(keyed) => keyed.available_at(&target.key, now),
                State::Store(store, policies) => {
                    u64::from(store.contains_at(now, &self.demand(policies, target)?)?)
                }
            }),
            Call::Refund(target) => Seen::Number(match &self.state {
                State::Limiter(limiter) => limiter.refund_at(now, target.cost),
                State::Keyed(keyed) => keyed.refund_at(&target.key, now, target.cost),
                State::Store(store, policies) => {
                    store.refund_at(now, &self.demand(policies, target)?)?
                }
            }),
            Call::Reset(target) => {
                match &self.state {
                    State::Limiter(limiter) => limiter.reset_at(now),
                    State::Keyed(keyed) => keyed.reset(&target.key),
                    State::Store(store, policies) => {
                        store.reset_now(&self.demand(policies, target)?)?;
                    }
                }
                Seen::Nothing
            }
            Call::Reserve(targets, wait) => {
                return self.reserve(now, targets, Duration::from_nanos(*wait));
            }
            Call::Cancel(pick) => self.finish(now, *pick, Some(0))?,
            Call::Settle(pick, actual) => self.finish(now, *pick, Some(*actual))?,
            Call::Keep(pick) => self.finish(now, *pick, None)?,
            Call::Change { quota, how } => self.change(now, *quota, HOW[*how]),
        };
        Ok(vec![seen])
    }

    fn demand<'a>(
        &self,
        policies: &'a [Policy],
        target: &Target,
    ) -> Result<Demand<'a>, StoreError> {
        let (policy, key) =
            (&policies[target.policy], [&b"a"[..], b"b", b"c"][target.key as usize]);
        if policy.is_ad_hoc() {
            Ok(Demand::ad_hoc(policy, key, target.cost, self.quotas[target.quota])?)
        } else {
            Ok(Demand::new(policy, key, target.cost))
        }
    }

    fn demands<'a>(
        &self,
        policies: &'a [Policy],
        targets: &[Target],
    ) -> Result<Vec<Demand<'a>>, StoreError> {
        targets.iter().map(|target| self.demand(policies, target)).collect()
    }

    fn decide(
        &self,
        now: Tick,
        targets: &[Target],
        is_take: bool,
    ) -> Result<Vec<Seen>, StoreError> {
        let Target { key, cost, .. } = targets[0];
        let one = match &self.state {
            State::Limiter(limiter) if is_take => limiter.try_acquire_at(now, cost),
            State::Limiter(limiter) => limiter.peek_at(now, cost),
            State::Keyed(keyed) if is_take => keyed.try_acquire_at(&key, now, cost),
            State::Keyed(keyed) => keyed.peek_at(&key, now, cost),
            State::Store(store, policies) => {
                let mut demands = self.demands(policies, targets)?;
                let joined = match is_take {
                    true => store.acquire_at(now, &mut demands)?,
                    false => store.peek_at(now, &mut demands)?,
                };
                return Ok(told(joined, &demands));
            }
        };
        Ok(vec![decision(one)])
    }

    fn reserve(
        &mut self,
        now: Tick,
        targets: &[Target],
        max_wait: Duration,
    ) -> Result<Vec<Seen>, StoreError> {
        let Target { key, cost, .. } = targets[0];
        let reserved = match &self.state {
            State::Limiter(limiter) => limiter.reserve_at(now, cost, max_wait),
            State::Keyed(keyed) => keyed.reserve_at(&key, now, (cost, max_wait)),
            State::Store(store, policies) => {
                let mut demands = self.demands(policies, targets)?;
                let life = Duration::from_secs(3600);
                let reserved = ready(store.reserve(&mut demands, life))?;
                let seen = told(reserved.decision, &demands);
                self.open.extend(reserved.id.map(|id| Open::Several(id, targets.len())));
                return Ok(seen);
            }
        };
        Ok(match reserved {
            Ok(reservation) => {
                let act_at = Seen::Time(reservation.act_at().as_nanos());
                let seen = vec![decision(reservation.decision()), act_at];
                self.open.push(Open::One(reservation));
                seen
            }
            Err(refused) => {
                let kind = match refused {
                    Refused::Never(_) => "never",
                    Refused::TooLong { .. } => "too long",
                    Refused::BookedUp(_) => "booked up",
                    Refused::OnlyNow(_) => "only now",
                    _ => "other",
                };
                vec![decision(refused.decision()), Seen::Refused(kind.to_owned())]
            }
        })
    }

    /// Ends an open reservation: keeps it, cancels it, or settles it.
    fn finish(&mut self, now: Tick, pick: usize, actual: Option<u64>) -> Result<Seen, StoreError> {
        if self.open.is_empty() {
            return Ok(Seen::Nothing);
        }
        let open = self.open.swap_remove(pick % self.open.len());
        Ok(match (open, actual) {
            (Open::One(reservation), Some(0)) => Seen::Number(reservation.cancel_at(now)),
            (Open::One(reservation), Some(actual)) => decision(reservation.settle_at(now, actual)),
            (Open::Several(id, number), Some(actual)) => match &self.state {
                State::Store(store, _) => {
                    Seen::Number(ready(store.settle(id, &vec![actual; number]))?.into())
                }
                _ => Seen::Nothing,
            },
            (_, None) => Seen::Nothing,
        })
    }

    fn change(&self, now: Tick, quota: usize, how: Inherit) -> Seen {
        let State::Limiter(limiter) = &self.state else { return Seen::Nothing };
        let changed = limiter.set_quota_at(now, self.quotas[quota], how);
        changed.map_or_else(|error| Seen::Refused(text_of(error)), |()| Seen::Nothing)
    }
}

/// Both trees place keys alike, so that tables of one kind evict the same ones at the same time.
fn seed() -> Seed {
    static SEED: std::sync::OnceLock<Seed> = std::sync::OnceLock::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/old-tree/seed");
    let load = || Seed::load_or_create(file).expect("`compare/run` has made this folder");
    *SEED.get_or_init(load)
}

/// The joint decision, and each demand's own.
fn told(joined: Decision, demands: &[Demand<'_>]) -> Vec<Seen> {
    let own = demands.iter().filter_map(Demand::decision);
    [joined].into_iter().chain(own).map(decision).collect()
}

fn decision(decision: Decision) -> Seen {
    Seen::Decision {
        outcome: match decision.outcome() {
            Outcome::Allowed => "allowed",
            Outcome::Later => "later",
            _ => "never",
        },
        cost: decision.cost(),
        limit: decision.limit(),
        remaining: decision.remaining(),
        at: decision.at().as_nanos(),
        retry_at: decision.retry_at().map(Tick::as_nanos),
        full_at: decision.full_at().map(Tick::as_nanos),
        reason: decision.reason().name(),
        refusing: decision.refusing().collect(),
    }
}

fn text_of(error: impl ToString) -> String {
    error.to_string()
}

/// A store in memory answers at once.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory does not wait"),
    }
}
