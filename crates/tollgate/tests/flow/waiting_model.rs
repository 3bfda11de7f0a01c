//! Waiting compared with a slow model: a bucket that is filled millisecond by millisecond, and a
//! list of waiting calls.
#![cfg(feature = "tokio")]

use proptest::prelude::*;
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{Algorithm, Clock, Limiter, ManualClock, Quota, Refused, Wait};

#[derive(Clone, Debug)]
enum Event {
    /// A call with a cost and a patience in milliseconds.
    Come(u64, Option<u64>),
    /// A call that waits, or has just passed, is dropped.
    Leave(usize),
    Try(u64),
    Overtake(u64),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u64..7, prop::option::of(0u64..30)).prop_map(|(cost, wait)| Event::Come(cost, wait)),
        2 => (0usize..6).prop_map(Event::Leave),
        1 => (1u64..4).prop_map(Event::Try),
        1 => (1u64..3).prop_map(Event::Overtake),
        4 => (1u64..6).prop_map(Event::Pass),
    ]
}

/// A bucket of whole permits that gains one each millisecond, and the calls that wait for it.
struct Model {
    burst: u64,
    level: u64,
    now: u64,
    newest_first: bool,
    /// Number, cost, deadline; in the order of service.
    line: Vec<(usize, u64, u64)>,
    passed: Vec<(usize, u64)>,
    refused: Vec<usize>,
}

impl Model {
    /// Admits the calls that the level allows, then refuses those whose time is over.
    fn settle(&mut self) {
        loop {
            while let Some(&(who, cost, _)) = self.line.first() {
                if cost > self.level {
                    break;
                }
                self.level -= cost;
                self.passed.push((who, self.now));
                self.line.remove(0);
            }
            let Some(late) = self.line.iter().position(|&(.., deadline)| deadline <= self.now)
            else {
                break;
            };
            self.refused.push(self.line.remove(late).0);
        }
    }

    fn pass_a_millisecond(&mut self) {
        self.now += 1;
        self.level = (self.level + 1).min(self.burst);
        self.settle();
    }

    /// Adds a call. It is refused at once if the current wait exceeds its patience.
    fn come(&mut self, who: usize, cost: u64, patience: Option<u64>) {
        let ahead: u64 = match self.newest_first {
            true => 0,
            false => self.line.iter().map(|known| known.1).sum(),
        };
        // Waiting calls take whole permits only, so none is lost while any call waits.
        let wait = (ahead + cost).saturating_sub(self.level);
        if wait > patience.unwrap_or(u64::MAX) {
            self.refused.push(who);
            return;
        }
        let deadline = patience.map_or(u64::MAX, |patience| self.now + patience);
        let at = if self.newest_first { 0 } else { self.line.len() };
        self.line.insert(at, (who, cost, deadline));
        self.settle();
    }

    fn try_take(&mut self, cost: u64, overtakes: bool) -> bool {
        let passes = cost <= self.level && (overtakes || self.line.is_empty());
        if passes {
            self.level -= cost;
        }
        passes
    }
}

struct Host {
    hand: ManualClock,
    limiter: Limiter,
    waits: Vec<(usize, Pin<Box<Wait>>)>,
    passed: Vec<(usize, u64)>,
    refused: Vec<usize>,
}

impl Host {
    fn new(burst: u64, newest_first: bool) -> Self {
        let (clock, hand) = Clock::manual();
        let quota = Quota::per_second(1000).burst(burst);
        let builder = Limiter::builder(quota).clock(clock);
        let limiter = if newest_first { builder.newest_first() } else { builder }.build().unwrap();
        Self { hand, limiter, waits: Vec::new(), passed: Vec::new(), refused: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.hand.now().as_nanos() / 1_000_000
    }

    fn poll_all(&mut self) {
        let now = self.now();
        let mut context = Context::from_waker(Waker::noop());
        self.waits.retain_mut(|(who, wait)| match wait.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(Ok(_)) => {
                self.passed.push((*who, now));
                false
            }
            Poll::Ready(Err(refused)) => {
                assert!(matches!(refused, Refused::TooLong { .. } | Refused::Late(_)));
                self.refused.push(*who);
                false
            }
        });
    }
}

fn sorted<T: Ord + Clone>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whoever_waits_passes_when_the_model_says(
        burst in 6u64..12,
        newest_first in any::<bool>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut host = Host::new(burst, newest_first);
        let mut model = Model {
            burst, level: burst, now: 0, newest_first,
            line: Vec::new(), passed: Vec::new(), refused: Vec::new(),
        };
        for (who, event) in events.into_iter().enumerate() {
            match event {
                Event::Come(cost, patience) => {
                    model.come(who, cost, patience);
                    let wait = host.limiter.acquire_n(cost);
                    let wait = match patience {
                        Some(patience) => wait.within(Duration::from_millis(patience)),
                        None => wait,
                    };
                    host.waits.push((who, Box::pin(wait)));
                }
                Event::Leave(index) => {
                    if index < host.waits.len() {
                        let (who, wait) = host.waits.remove(index);
                        model.line.retain(|known| known.0 != who);
                        model.settle();
                        drop(wait);
                    }
                }
                Event::Try(cost) => {
                    let expected = model.try_take(cost, false);
                    prop_assert_eq!(host.limiter.try_acquire_n(cost).is_allowed(), expected);
                }
                Event::Overtake(cost) => {
                    let expected = model.try_take(cost, true);
                    prop_assert_eq!(host.limiter.try_overtake_n(cost).is_allowed(), expected);
                }
                Event::Pass(millis) => for _ in 0..millis {
                    model.pass_a_millisecond();
                    host.hand.advance(Duration::from_millis(1));
                    host.poll_all();
                },
            }
            host.poll_all();
            prop_assert_eq!(sorted(&host.passed), sorted(&model.passed));
            prop_assert_eq!(sorted(&host.refused), sorted(&model.refused));
            prop_assert_eq!(host.limiter.waiting(), model.line.len());
            let free = if model.line.is_empty() { model.level } else { 0 };
            prop_assert_eq!(host.limiter.available(), free);
            // One timer, for the head or the first deadline; none if no call waits.
            prop_assert_eq!(host.hand.timers(), usize::from(!model.line.is_empty()));
        }
    }

    /// Calls that wait at a window pass in order, within the limit of each window, and not later
    /// than they could.
    #[test]
    fn windows_serve_in_order_and_never_over(
        which in 0usize..4,
        costs in prop::collection::vec(1u64..6, 1..40),
        steps in prop::collection::vec(0u64..40, 1..40),
    ) {
        let algorithm = [
            Algorithm::FixedWindow,
            Algorithm::AnchoredWindow,
            Algorithm::SlidingCounter,
            Algorithm::SlidingLog,
        ][which];
        let (clock, hand) = Clock::manual();
        let quota = Quota::per(10, Duration::from_millis(100));
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock).build().unwrap();
        let mut waits: Vec<_> =
            costs.iter().map(|cost| Some(Box::pin(limiter.acquire_n(*cost)))).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut passed = Vec::new();
        for step in steps.into_iter().chain(std::iter::repeat_n(50, 120)) {
            for (wait, cost) in waits.iter_mut().zip(&costs) {
                if let Some(pending) = wait
                    && let Poll::Ready(answer) = pending.as_mut().poll(&mut context)
                {
                    // The time of the grant, not of the poll.
                    passed.push((answer.unwrap().decision().at().as_nanos() / 1_000_000, *cost));
                    *wait = None;
                }
            }
            if limiter.waiting() > 0 {
                prop_assert!(limiter.try_acquire().is_denied());
                prop_assert!(limiter.reserve(1).is_err());
                prop_assert_eq!(limiter.available(), 0);
            }
            hand.advance(Duration::from_millis(step));
        }
        prop_assert_eq!(passed.iter().map(|known| known.1).collect::<Vec<_>>(), costs);
        prop_assert_eq!(hand.timers(), 0);
        let limit = if algorithm == Algorithm::SlidingLog { 10 } else { 20 };
        for &(end, _) in &passed {
            let window = passed.iter().filter(|known| known.0 <= end && known.0 + 100 > end);
            prop_assert!(window.map(|known| known.1).sum::<u64>() <= limit);
        }
    }
}
