//! Waiting for keys against independent limiters: every key behaves as a limiter of its own that is
//! fed the same events. Same times, same refusals.
#![cfg(feature = "tokio")]

use proptest::prelude::*;
use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Algorithm, Bypass, Clock, Inherit, KeyedLimiter, Limiter, Quota, Refused, Reservation, Wait,
};

const KEYS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    /// A call for a key, with a cost and a patience in milliseconds.
    Come(usize, u64, Option<u64>),
    /// A call that waits, or has just passed, is dropped.
    Leave(usize),
    Try(usize, u64),
    UpTo(usize, u64),
    Force(usize, u64),
    Overtake(usize, u64),
    Refund(usize, u64),
    Reserve(usize, u64),
    /// An open reservation is given back.
    Cancel(usize),
    Reset(usize),
    /// All keys get a limit.
    Change(u64),
    /// One key gets a limit of its own.
    Own(usize, u64),
    Bypass,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..KEYS, 1u64..7, prop::option::of(0u64..30))
            .prop_map(|(key, cost, wait)| Event::Come(key, cost, wait)),
        4 => (0usize..8).prop_map(Event::Leave),
        3 => (0..KEYS, 1u64..4).prop_map(|(key, cost)| Event::Try(key, cost)),
        1 => (0..KEYS, 1u64..4).prop_map(|(key, cost)| Event::UpTo(key, cost)),
        1 => (0..KEYS, 1u64..4).prop_map(|(key, cost)| Event::Force(key, cost)),
        2 => (0..KEYS, 1u64..3).prop_map(|(key, cost)| Event::Overtake(key, cost)),
        2 => (0..KEYS, 1u64..5).prop_map(|(key, cost)| Event::Refund(key, cost)),
        2 => (0..KEYS, 1u64..5).prop_map(|(key, cost)| Event::Reserve(key, cost)),
        2 => (0usize..4).prop_map(Event::Cancel),
        1 => (0..KEYS).prop_map(Event::Reset),
        1 => (5u64..12).prop_map(Event::Change),
        1 => (0..KEYS, 5u64..12).prop_map(|(key, limit)| Event::Own(key, limit)),
        1 => Just(Event::Bypass),
        8 => (1u64..9).prop_map(Event::Pass),
    ]
}

fn quota(algorithm: Algorithm, rate: u64, burst: u64) -> Quota {
    match algorithm {
        Algorithm::Gcra => Quota::per_second(rate).burst(burst),
        _ => Quota::per(burst, Duration::from_millis(10)),
    }
}

/// The end of a wait: its number, its time, and its result without the text of the decision.
type End = (usize, u64, Result<(u64, Duration), mem::Discriminant<Refused>>);

/// The waiting calls.
#[derive(Default)]
struct Waits {
    open: Vec<(usize, Pin<Box<Wait>>)>,
    ends: Vec<End>,
}

impl Waits {
    fn come(&mut self, who: usize, wait: Wait, patience: Option<u64>) {
        let wait = match patience {
            Some(patience) => wait.within(Duration::from_millis(patience)),
            None => wait,
        };
        self.open.push((who, Box::pin(wait)));
    }

    fn poll(&mut self, now: u64) {
        let mut context = Context::from_waker(Waker::noop());
        self.open.retain_mut(|(who, wait)| match wait.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                let answer = answer.map(|passed| (passed.decision().cost(), passed.waited()));
                self.ends.push((*who, now, answer.map_err(|refused| mem::discriminant(&refused))));
                false
            }
        });
    }
}

/// The keys of one limiter beside limiters of their own.
struct Hosts {
    keyed: KeyedLimiter<usize>,
    single: Vec<Limiter>,
    waits: [Waits; 2],
    open: Vec<(usize, [Reservation; 2])>,
    /// Which keys have a quota of their own.
    own: [bool; KEYS],
    algorithm: Algorithm,
    /// The largest limit so far.
    limit: u64,
    /// Whether a sliding window may carry an excess. A change of quota leaves it as it is for a
    /// key, but moves it into the free places of the new limit for a limiter, so the two are no
    /// longer alike.
    carries: bool,
}

impl Hosts {
    fn new(algorithm: Algorithm, burst: u64, newest_first: bool, clock: &Clock) -> Self {
        let quota = quota(algorithm, 1000, burst);
        let keyed = KeyedLimiter::builder(quota).algorithm(algorithm).clock(clock.clone());
        let single = || {
            let single = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
            if newest_first { single.newest_first() } else { single }.build().unwrap()
        };
        let keyed = if newest_first { keyed.newest_first() } else { keyed };
        Self {
            keyed: keyed.build().unwrap(),
            single: (0..KEYS).map(|_| single()).collect(),
            waits: Default::default(),
            open: Vec::new(),
            own: [false; KEYS],
            algorithm,
            limit: burst,
            carries: false,
        }
    }

    /// A key keeps its time, and a limiter its permits: that is the same as long as the rate stays and the
    /// burst does not fall.
    fn raised(&mut self, limit: u64) -> Quota {
        self.limit = self.limit.max(limit);
        quota(self.algorithm, 1000, self.limit)
    }

    /// Applies an event that takes no time to both. Returns their answers.
    fn feed(&mut self, who: usize, event: &Event) -> [Option<u64>; 2] {
        let (keyed, single) = (&self.keyed, &self.single);
        let cost = |decision: tollgate::Decision| decision.is_allowed().then(|| decision.cost());
        match *event {
            Event::Come(key, cost, patience) => {
                self.waits[0].come(who, keyed.acquire_n(&key, cost), patience);
                self.waits[1].come(who, single[key].acquire_n(cost), patience);
                [None, None]
            }
            Event::Leave(index) => {
                if index < self.waits[0].open.len() {
                    self.waits.iter_mut().for_each(|waits| drop(waits.open.remove(index)));
                }
                [None, None]
            }
            Event::Try(key, n) => {
                [keyed.try_acquire_n(&key, n), single[key].try_acquire_n(n)].map(cost)
            }
            Event::UpTo(key, n) => [keyed.up_to(&key, n), single[key].up_to(n)].map(cost),
            Event::Force(key, n) => {
                let sliding = [Algorithm::SlidingCounter, Algorithm::SlidingLog];
                self.carries |= sliding.contains(&self.algorithm);
                [keyed.force(&key, n), single[key].force(n)].map(cost)
            }
            Event::Change(_) | Event::Own(..) if self.carries => [None, None],
            Event::Overtake(key, n) => {
                [keyed.try_overtake_n(&key, n), single[key].try_overtake_n(n)].map(cost)
            }
            Event::Refund(key, n) => [keyed.refund(&key, n), single[key].refund(n)].map(Some),
            Event::Reserve(key, n) => match [keyed.reserve(&key, n), single[key].reserve(n)] {
                [Ok(a), Ok(b)] => {
                    let acts = [&a, &b].map(|made| Some(made.act_at().as_nanos()));
                    self.open.push((key, [a, b]));
                    acts
                }
                both => both.map(|made| made.ok().map(|_| 0)),
            },
            Event::Cancel(index) if index < self.open.len() => {
                self.open.remove(index).1.map(|made| Some(made.cancel()))
            }
            Event::Reset(key) => {
                keyed.reset(&key);
                single[key].reset();
                [None, None]
            }
            Event::Change(limit) => {
                let quota = self.raised(limit);
                self.keyed.set_quota(quota).unwrap();
                for (single, _) in self.single.iter().zip(self.own).filter(|(_, own)| !own) {
                    single.set_quota(quota, Inherit::Additive).unwrap();
                }
                self.open.clear();
                [None, None]
            }
            Event::Own(key, limit) => {
                let quota = self.raised(limit);
                self.keyed.override_quota(&key, quota, None).unwrap();
                self.single[key].set_quota(quota, Inherit::Additive).unwrap();
                self.own[key] = true;
                self.open.clear();
                [None, None]
            }
            Event::Bypass => {
                for bypass in [Bypass::On, Bypass::Off] {
                    keyed.bypass(bypass);
                    single.iter().for_each(|single| single.bypass(bypass));
                }
                [None, None]
            }
            Event::Cancel(_) | Event::Pass(_) => [None, None],
        }
    }
}

fn check(
    algorithm: Algorithm,
    (burst, newest_first): (u64, bool),
    events: Vec<Event>,
) -> Result<(), TestCaseError> {
    let (clock, hand) = Clock::manual();
    // The other limiters have timers of their own.
    let (own_clock, own_hand) = Clock::manual();
    let mut hosts = Hosts::new(algorithm, burst, newest_first, &clock);
    hosts.single = Hosts::new(algorithm, burst, newest_first, &own_clock).single;
    for (who, event) in events.into_iter().enumerate() {
        let [keyed, single] = hosts.feed(who, &event);
        prop_assert_eq!(keyed, single, "{:?}", event);
        let steps = if let Event::Pass(steps) = event { steps } else { 0 };
        for step in 0..=steps {
            if step > 0 {
                hand.advance(Duration::from_micros(500));
                own_hand.advance(Duration::from_micros(500));
            }
            let now = hand.now().as_nanos();
            hosts.waits.iter_mut().for_each(|waits| waits.poll(now));
        }
        prop_assert_eq!(&hosts.waits[0].ends, &hosts.waits[1].ends, "{:?}", event);
        let mut waiting = 0;
        for (key, single) in hosts.single.iter().enumerate() {
            prop_assert_eq!(hosts.keyed.waiting(&key), single.waiting());
            prop_assert_eq!(hosts.keyed.available(&key), single.available());
            prop_assert_eq!(hosts.keyed.peek(&key).retry_at(), single.peek().retry_at());
            waiting += single.waiting();
        }
        prop_assert_eq!(hosts.keyed.waiting_total(), waiting);
        prop_assert_eq!(hand.timers(), usize::from(waiting > 0), "one timer for all keys");
    }
    hosts.waits = Default::default();
    prop_assert_eq!((hosts.keyed.waiting_total(), hand.timers()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_key_is_as_a_limiter_of_its_own(
        burst in 6u64..12,
        newest_first in any::<bool>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        check(Algorithm::Gcra, (burst, newest_first), events)?;
    }

    #[test]
    fn every_key_of_windows_is_as_a_limiter_of_its_own(
        which in 0usize..4,
        burst in 6u64..12,
        newest_first in any::<bool>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let windows = [
            Algorithm::FixedWindow,
            Algorithm::AnchoredWindow,
            Algorithm::SlidingCounter,
            Algorithm::SlidingLog,
        ];
        check(windows[which], (burst, newest_first), events)?;
    }
}
