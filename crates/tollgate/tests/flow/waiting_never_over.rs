//! Never over the rate, in any mix of waiting calls, reservations, overtaking calls, leases and
//! refunds.
//!
//! The test records every admission at the millisecond at which it acts, and every give-back as a
//! negative one. Then it checks every interval: the sum is at most burst + rate x w. In the end
//! every waiting call has passed.
#![cfg(feature = "tokio")]

use proptest::prelude::*;
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{Clock, Lease, Limiter, ManualClock, Quota, Reservation, Wait};

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A call with a cost and a patience in milliseconds.
    Come(u64, Option<u64>),
    /// A call that waits, or has passed and was not polled since, is dropped.
    Leave(usize),
    Try(u64),
    Overtake(u64),
    Reserve(u64, u64),
    Cancel(usize),
    Refund(u64),
    Lease(u64),
    EndLease,
    /// Cost that is booked although it is not free: not an admission of this limiter.
    Force(u64),
    Pass(u64),
}

/// The mix of one run: the other calls beside the waiting ones.
#[derive(Clone, Copy, Debug)]
struct Mix {
    leavers: u32,
    overtakers: u32,
    reservations: u32,
    refunds: u32,
    leases: u32,
    forces: u32,
}

const NONE: Mix =
    Mix { leavers: 4, overtakers: 0, reservations: 0, refunds: 0, leases: 0, forces: 0 };
const ALL: Mix =
    Mix { leavers: 4, overtakers: 2, reservations: 4, refunds: 1, leases: 2, forces: 1 };

fn event(mix: Mix) -> impl Strategy<Value = Event> {
    let come = (1_u64..7, prop::option::weighted(0.3, 0_u64..30));
    let reserve = (1_u64..7, 0_u64..40);
    let kinds = [
        (8, come.prop_map(|(cost, patience)| Event::Come(cost, patience)).boxed()),
        (mix.leavers, (0_usize..6).prop_map(Event::Leave).boxed()),
        (2, (1_u64..4).prop_map(Event::Try).boxed()),
        (8, (1_u64..6).prop_map(Event::Pass).boxed()),
        (mix.overtakers, (1_u64..4).prop_map(Event::Overtake).boxed()),
        (mix.reservations, reserve.prop_map(|(cost, ms)| Event::Reserve(cost, ms)).boxed()),
        (mix.reservations.min(mix.leavers), (0_usize..4).prop_map(Event::Cancel).boxed()),
        (mix.refunds, (1_u64..6).prop_map(Event::Refund).boxed()),
        (mix.leases, (1_u64..3).prop_map(Event::Lease).boxed()),
        (mix.leases, Just(Event::EndLease).boxed()),
        (mix.forces, (1_u64..5).prop_map(Event::Force).boxed()),
    ];
    prop::strategy::Union::new_weighted(kinds.into_iter().filter(|kind| kind.0 > 0).collect())
}

fn events(mix: Mix) -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(mix), 1..60)
}

struct Host {
    hand: ManualClock,
    limiter: Limiter,
    waits: Vec<Pin<Box<Wait>>>,
    /// With the first millisecond since which it may have been due, because a call ahead of it gave
    /// back; `None` if none did. The reservation itself keeps the time that was computed at first.
    reservations: Vec<(Reservation, Option<u64>)>,
    lease: Lease,
    /// From which millisecond to which, and the cost.
    admitted: Vec<(u64, u64, i64)>,
}

impl Host {
    fn new(burst: u64, newest_first: bool) -> Self {
        let (clock, hand) = Clock::manual();
        // Far from the origin, so that nothing saturates.
        hand.advance(Duration::from_secs(100));
        let builder = Limiter::builder(Quota::per_second(1000).burst(burst)).clock(clock);
        let limiter = if newest_first { builder.newest_first() } else { builder }.build().unwrap();
        let lease = limiter.lease(3, Duration::from_millis(10));
        let (waits, reservations, admitted) = (Vec::new(), Vec::new(), Vec::new());
        Self { hand, limiter, waits, reservations, lease, admitted }
    }

    fn now(&self) -> u64 {
        self.hand.now().as_nanos() / 1_000_000
    }

    fn note(&mut self, at: u64, cost: u64) {
        self.admitted.push((at, at, i64::try_from(cost).unwrap()));
    }

    fn give_back(&mut self, cost: u64) {
        let now = self.now();
        self.admitted.push((now, now, -i64::try_from(cost).unwrap()));
        self.move_up();
    }

    /// Permits were given back, so reservations behind may be due earlier.
    fn move_up(&mut self) {
        let now = self.now();
        self.reservations.iter_mut().for_each(|it| it.1 = it.1.or(Some(now)));
    }

    fn poll_all(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let (now, mut passed, mut left) = (self.now(), Vec::new(), false);
        self.waits.retain_mut(|wait| match wait.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(Ok(_)) => {
                passed.push(wait.cost());
                false
            }
            Poll::Ready(Err(_)) => {
                left = true;
                false
            }
        });
        passed.into_iter().for_each(|cost| self.note(now, cost));
        if left {
            self.move_up();
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.hand.advance(Duration::from_millis(1));
            self.poll_all();
            let now = self.now();
            let admitted = &mut self.admitted;
            self.reservations.retain(|(it, from)| {
                let act_at = it.act_at().as_nanos().div_ceil(1_000_000);
                if act_at <= now {
                    let cost = i64::try_from(it.cost()).unwrap();
                    admitted.push((from.unwrap_or(act_at), act_at, cost));
                }
                act_at > now
            });
        }
    }

    fn play(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Come(cost, patience) => {
                let wait = self.limiter.acquire_n(cost);
                let wait = match patience {
                    Some(ms) => wait.within(Duration::from_millis(ms)),
                    None => wait,
                };
                self.waits.push(Box::pin(wait));
                self.poll_all();
            }
            Event::Leave(index) if index < self.waits.len() => {
                drop(self.waits.remove(index));
                self.move_up();
                self.poll_all();
            }
            Event::Try(cost) => {
                if self.limiter.try_acquire_n(cost).is_allowed() {
                    self.note(now, cost);
                }
            }
            Event::Overtake(cost) => {
                if self.limiter.try_overtake_n(cost).is_allowed() {
                    self.note(now, cost);
                }
            }
            Event::Reserve(cost, ms) => {
                let max_wait = Duration::from_millis(ms);
                if let Ok(reservation) = self.limiter.reserve_within(cost, max_wait) {
                    if reservation.act_at() <= self.hand.now() {
                        self.note(now, cost);
                        reservation.keep();
                    } else {
                        self.reservations.push((reservation, None));
                    }
                }
            }
            // It has not acted, so it is not an admission.
            Event::Cancel(index) if index < self.reservations.len() => {
                self.reservations.remove(index).0.cancel();
                self.move_up();
                self.poll_all();
            }
            Event::Refund(cost) => {
                let given_back = self.limiter.refund(cost);
                self.give_back(given_back);
                self.poll_all();
            }
            Event::Lease(cost) => self.lease(cost),
            Event::EndLease => {
                let held = self.lease.held();
                self.lease.give_back();
                self.give_back(held);
                self.poll_all();
            }
            Event::Force(cost) => assert!(self.limiter.force(cost).is_allowed()),
            Event::Pass(ms) => self.pass(ms),
            Event::Leave(_) | Event::Cancel(_) => {}
        }
    }

    /// A batch counts when it is taken. At most the rest of the last batch is given back.
    fn lease(&mut self, cost: u64) {
        let held = self.lease.held();
        let is_allowed = self.lease.try_acquire_n(cost).is_allowed();
        if is_allowed && self.lease.held() + cost == held {
            return;
        }
        self.give_back(held);
        let taken = self.lease.held() + if is_allowed { cost } else { 0 };
        self.note(self.now(), taken);
        self.poll_all();
    }

    /// Returns the worst interval: by how much it is over, from when to when.
    fn worst(&self, burst: u64) -> (i64, u64, u64) {
        let (first, last) = (100_000, self.now());
        let mut worst = (i64::MIN, 0, 0);
        for from in first..=last {
            let mut inside: Vec<_> = self.admitted.iter().filter(|it| it.0 >= from).collect();
            inside.sort_unstable_by_key(|it| it.1);
            let mut sum = -i64::try_from(burst).unwrap();
            for (index, (_, to, cost)) in inside.iter().enumerate() {
                sum += cost;
                if inside.get(index + 1).is_none_or(|next| next.1 > *to) {
                    let refilled = i64::try_from(to - from).unwrap();
                    worst = worst.max((sum - refilled, from, *to));
                }
            }
        }
        worst
    }
}

fn check(burst: u64, newest_first: bool, events: &[Event]) -> Result<(), TestCaseError> {
    let mut host = Host::new(burst, newest_first);
    for event in events {
        host.play(*event);
    }
    host.pass(600);
    prop_assert_eq!(host.waits.len(), 0, "everybody has passed");
    prop_assert_eq!((host.limiter.waiting(), host.limiter.available()), (0, burst));
    let (over, from, to) = host.worst(burst);
    prop_assert!(over <= 0, "over by {over} from {from} to {to} ms: {:?}", host.admitted);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_overtakers(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(Mix { overtakers: 2, ..NONE }),
    ) {
        check(burst, newest, &events)?;
    }

    #[test]
    fn with_leases(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(Mix { leases: 3, ..NONE }),
    ) {
        check(burst, newest, &events)?;
    }

    #[test]
    fn with_refunds_and_forces(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(Mix { refunds: 1, forces: 1, ..NONE }),
    ) {
        check(burst, newest, &events)?;
    }

    #[test]
    fn with_all_but_reservations(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(Mix { reservations: 0, ..ALL }),
    ) {
        check(burst, newest, &events)?;
    }

    #[test]
    fn with_reservations_that_stay(
        burst in 6_u64..12,
        events in events(Mix { leavers: 0, reservations: 4, ..NONE }),
    ) {
        check(burst, false, &events)?;
    }

    #[test]
    fn with_reservations(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(Mix { reservations: 4, ..NONE }),
    ) {
        check(burst, newest, &events)?;
    }

    #[test]
    fn with_reservations_and_overtakers(
        burst in 6_u64..12,
        events in events(Mix { leavers: 0, reservations: 4, overtakers: 2, ..NONE }),
    ) {
        check(burst, false, &events)?;
    }

    #[test]
    fn with_all_of_them(
        (burst, newest) in (6_u64..12, any::<bool>()),
        events in events(ALL),
    ) {
        check(burst, newest, &events)?;
    }
}
