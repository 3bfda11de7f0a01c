//! Random sequences of calls compared with a slow model that shares no code with the
//! implementation.
//!
//! The model keeps every waiter of a key in a `VecDeque` and walks it from the front. One limit is
//! the case of one key without bounds on keys.

use super::host::Waiter;
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, VecDeque},
    task::Poll,
};
use tollgate::{Acquire, Concurrency, Full, KeyedConcurrency, Permit};

const KEYS: u64 = 3;
const MAX_KEYS: u64 = 2;
const MAX_WAITING: u64 = 3;
const MAX_WAITING_TOTAL: u64 = 4;

/// One call. Places are taken modulo the number of places.
#[derive(Clone, Copy, Debug)]
enum Op {
    Try {
        key: u64,
        cost: u64,
    },
    /// Makes a future and polls it once.
    Ask {
        key: u64,
        cost: u64,
    },
    Poll {
        place: usize,
    },
    Leave {
        place: usize,
    },
    GiveBack {
        place: usize,
    },
    SetLimit(u64),
    SetKeyLimit {
        key: u64,
        limit: u64,
    },
    ClearKeyLimit {
        key: u64,
    },
    Close,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        10 => (0..KEYS, 0..5_u64).prop_map(|(key, cost)| Op::Try { key, cost }),
        14 => (0..KEYS, 0..5_u64).prop_map(|(key, cost)| Op::Ask { key, cost }),
        12 => (0..8_usize).prop_map(|place| Op::Poll { place }),
        5 => (0..8_usize).prop_map(|place| Op::Leave { place }),
        14 => (0..8_usize).prop_map(|place| Op::GiveBack { place }),
        3 => (0..6_u64).prop_map(Op::SetLimit),
        2 => (0..KEYS, 0..6_u64).prop_map(|(key, limit)| Op::SetKeyLimit { key, limit }),
        1 => (0..KEYS).prop_map(|key| Op::ClearKeyLimit { key }),
        1 => prop_oneof![19 => Just(Op::SetLimit(4)), 1 => Just(Op::Close)],
    ];
    prop::collection::vec(op, 1..100)
}

/// The answer to a call, in a form that both the model and the implementation have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Passed,
    Waits,
    /// Limit, in flight and waiting of that moment, and the reason.
    Refused(u64, u64, u64, Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Busy,
    Never,
    QueueFull,
    TooManyKeys,
    Closed,
}

fn refused(full: &Full) -> Answer {
    let reason = match () {
        () if full.is_never() => Reason::Never,
        () if full.is_queue_full() => Reason::QueueFull,
        () if full.is_too_many_keys() => Reason::TooManyKeys,
        () if full.is_closed() => Reason::Closed,
        () => Reason::Busy,
    };
    Answer::Refused(full.limit(), full.in_flight(), full.waiting(), reason)
}

#[derive(Default)]
struct ModelKey {
    in_flight: u64,
    /// (id, cost) from the head.
    queue: VecDeque<(usize, u64)>,
    /// For waiters that were not polled since: cost and answer.
    answers: BTreeMap<usize, (u64, Answer)>,
}

struct Model {
    keys: [ModelKey; KEYS as usize],
    limit: u64,
    own: [Option<u64>; KEYS as usize],
    closed: bool,
    max_keys: u64,
    max_waiting_total: u64,
}

impl Model {
    fn limit_of(&self, key: usize) -> u64 {
        self.own[key].unwrap_or(self.limit)
    }

    fn used(&self) -> u64 {
        let used =
            |key: &&ModelKey| key.in_flight > 0 || !key.queue.is_empty() || !key.answers.is_empty();
        self.keys.iter().filter(used).count() as u64
    }

    fn waiting(&self) -> u64 {
        self.keys.iter().map(|key| key.queue.len() as u64).sum()
    }

    /// `id` identifies a future, which may wait.
    fn ask(&mut self, key: usize, cost: u64, id: Option<usize>) -> Answer {
        let (limit, used, all) = (self.limit_of(key), self.used(), self.waiting());
        let at = &mut self.keys[key];
        let waiting = at.queue.len() as u64;
        let refuse = |reason| Answer::Refused(limit, at.in_flight, waiting, reason);
        let fresh = at.in_flight == 0 && at.queue.is_empty() && at.answers.is_empty();
        if self.closed {
            return refuse(Reason::Closed);
        }
        if cost > limit {
            return refuse(Reason::Never);
        }
        if at.queue.is_empty() && at.in_flight + cost <= limit {
            if fresh && cost > 0 && used == self.max_keys {
                return refuse(Reason::TooManyKeys);
            }
            at.in_flight += cost;
            return Answer::Passed;
        }
        match id {
            None => refuse(Reason::Busy),
            Some(_) if waiting == MAX_WAITING || all == self.max_waiting_total => {
                refuse(Reason::QueueFull)
            }
            Some(id) => {
                at.queue.push_back((id, cost));
                Answer::Waits
            }
        }
    }

    /// Serves the queues until nothing changes.
    fn serve(&mut self) {
        for key in 0..KEYS as usize {
            let limit = self.limit_of(key);
            let at = &mut self.keys[key];
            while let Some(&(id, cost)) = at.queue.front()
                && at.in_flight + cost <= limit
            {
                at.queue.pop_front();
                at.in_flight += cost;
                at.answers.insert(id, (cost, Answer::Passed));
            }
        }
    }

    /// Refuses the waiters that can never pass, from the front.
    fn sift(&mut self) {
        for key in 0..KEYS as usize {
            let limit = self.limit_of(key);
            let at = &mut self.keys[key];
            let hopeless = |cost: u64| self.closed || cost > limit;
            let reason = if self.closed { Reason::Closed } else { Reason::Never };
            while let Some(place) = at.queue.iter().position(|&(_, cost)| hopeless(cost)) {
                let (id, cost) = at.queue.remove(place).unwrap();
                let left = at.queue.len() as u64;
                let answer = Answer::Refused(limit, at.in_flight, left, reason);
                at.answers.insert(id, (cost, answer));
            }
        }
        self.serve();
    }

    fn fetch(&mut self, key: usize, id: usize) -> Answer {
        self.keys[key].answers.remove(&id).map_or(Answer::Waits, |(_, answer)| answer)
    }

    fn leave(&mut self, key: usize, id: usize) {
        let at = &mut self.keys[key];
        at.queue.retain(|&(other, _)| other != id);
        if let Some((cost, Answer::Passed)) = at.answers.remove(&id) {
            at.in_flight -= cost;
        }
        self.serve();
    }
}

/// The implementation.
enum Real {
    Single(Concurrency),
    Keyed(KeyedConcurrency<u64>),
}

impl Real {
    fn try_acquire_n(&self, key: u64, cost: u64) -> Result<Permit, Full> {
        match self {
            Self::Single(limit) => limit.try_acquire_n(cost),
            Self::Keyed(limit) => limit.try_acquire_n(&key, cost),
        }
    }

    fn acquire_n(&self, key: u64, cost: u64) -> Acquire {
        match self {
            Self::Single(limit) => limit.acquire_n(cost),
            Self::Keyed(limit) => limit.acquire_n(&key, cost),
        }
    }
}

struct Asked {
    key: u64,
    id: usize,
    waiter: Waiter,
}

struct Run {
    real: Real,
    model: Model,
    asked: Vec<Asked>,
    held: Vec<(u64, Permit)>,
    ids: usize,
}

impl Run {
    fn new(real: Real, limit: u64) -> Self {
        let (max_keys, max_waiting_total) = match real {
            Real::Single(_) => (u64::MAX, u64::MAX),
            Real::Keyed(_) => (MAX_KEYS, MAX_WAITING_TOTAL),
        };
        let (keys, own) = (Default::default(), Default::default());
        let model = Model { keys, limit, own, closed: false, max_keys, max_waiting_total };
        Self { real, model, asked: Vec::new(), held: Vec::new(), ids: 0 }
    }

    /// One limit has one key.
    fn key(&self, key: u64) -> u64 {
        match self.real {
            Real::Single(_) => 0,
            Real::Keyed(_) => key,
        }
    }

    fn hold(&mut self, key: u64, answer: Result<Permit, Full>) -> Answer {
        match answer {
            Ok(permit) => {
                self.held.push((key, permit));
                Answer::Passed
            }
            Err(full) => refused(&full),
        }
    }

    /// Returns the answers of the implementation and of the model.
    fn step(&mut self, op: Op) -> (Answer, Answer) {
        const NOTHING: (Answer, Answer) = (Answer::Passed, Answer::Passed);
        match op {
            Op::Try { key, cost } => {
                let key = self.key(key);
                let answer = self.real.try_acquire_n(key, cost);
                (self.hold(key, answer), self.model.ask(key as usize, cost, None))
            }
            Op::Ask { key, cost } => {
                let (key, id) = (self.key(key), self.ids);
                self.ids += 1;
                let mut waiter = Waiter::new(self.real.acquire_n(key, cost));
                let seen = match waiter.poll() {
                    Poll::Ready(answer) => self.hold(key, answer),
                    Poll::Pending => {
                        self.asked.push(Asked { key, id, waiter });
                        Answer::Waits
                    }
                };
                (seen, self.model.ask(key as usize, cost, Some(id)))
            }
            Op::Poll { place } if !self.asked.is_empty() => {
                let place = place % self.asked.len();
                let Asked { key, id, waiter } = &mut self.asked[place];
                let (key, id) = (*key, *id);
                let seen = match waiter.poll() {
                    Poll::Ready(answer) => {
                        self.asked.remove(place);
                        self.hold(key, answer)
                    }
                    Poll::Pending => Answer::Waits,
                };
                (seen, self.model.fetch(key as usize, id))
            }
            Op::Leave { place } if !self.asked.is_empty() => {
                let gone = self.asked.remove(place % self.asked.len());
                self.model.leave(gone.key as usize, gone.id);
                NOTHING
            }
            Op::GiveBack { place } if !self.held.is_empty() => {
                let (key, permit) = self.held.remove(place % self.held.len());
                self.model.keys[key as usize].in_flight -= permit.cost();
                drop(permit);
                self.model.serve();
                NOTHING
            }
            Op::Poll { .. } | Op::Leave { .. } | Op::GiveBack { .. } => NOTHING,
            _ => {
                self.change(op);
                NOTHING
            }
        }
    }

    fn change(&mut self, op: Op) {
        match (op, &self.real) {
            (Op::SetLimit(limit), Real::Single(real)) => real.set_limit(limit).unwrap(),
            (Op::SetLimit(limit), Real::Keyed(real)) => real.set_limit(limit).unwrap(),
            (Op::Close, Real::Single(real)) => real.close(),
            (Op::Close, Real::Keyed(real)) => real.close(),
            (Op::SetKeyLimit { key, limit }, Real::Keyed(real)) => {
                real.set_key_limit(&key, limit).unwrap();
                self.model.own[key as usize] = Some(limit);
            }
            (Op::ClearKeyLimit { key }, Real::Keyed(real)) => {
                real.clear_key_limit(&key);
                self.model.own[key as usize] = None;
            }
            _ => {}
        }
        match op {
            Op::SetLimit(limit) => self.model.limit = limit,
            Op::Close => self.model.closed = true,
            _ => {}
        }
        self.model.sift();
    }

    /// Checks every number, and that exactly the waiters with an answer were woken.
    fn check(&self) -> Result<(), TestCaseError> {
        for (key, at) in self.model.keys.iter().enumerate() {
            let free = match self.model.closed || !at.queue.is_empty() {
                true => 0,
                false => self.model.limit_of(key).saturating_sub(at.in_flight),
            };
            let model = (at.in_flight, at.queue.len() as u64, free);
            match &self.real {
                Real::Single(real) if key == 0 => {
                    prop_assert_eq!((real.in_flight(), real.waiting(), real.available()), model);
                }
                Real::Single(_) => {}
                Real::Keyed(real) => {
                    let key = key as u64;
                    let seen = (real.in_flight(&key), real.waiting(&key), real.available(&key));
                    prop_assert_eq!(seen, model, "key {}", key);
                }
            }
        }
        if let Real::Keyed(real) = &self.real {
            let in_flight: u64 = self.model.keys.iter().map(|key| key.in_flight).sum();
            let seen = (real.len() as u64, real.total_in_flight(), real.total_waiting());
            prop_assert_eq!(seen, (self.model.used(), in_flight, self.model.waiting()));
        }
        for Asked { key, id, waiter } in &self.asked {
            let answered = self.model.keys[*key as usize].answers.contains_key(id);
            prop_assert_eq!(waiter.wakes(), usize::from(answered), "waiter {}", id);
        }
        Ok(())
    }
}

fn agree(real: Real, limit: u64, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut run = Run::new(real, limit);
    for (row, &op) in ops.iter().enumerate() {
        let (seen, model) = run.step(op);
        prop_assert_eq!(seen, model, "row {}, {:?}", row, op);
        run.check()?;
    }
    while !run.asked.is_empty() || !run.held.is_empty() {
        run.step(Op::Leave { place: 0 });
        run.step(Op::GiveBack { place: 0 });
        run.check()?;
    }
    prop_assert_eq!(run.model.used(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_limit_agrees_with_the_model(limit in 0..6_u64, ops in ops()) {
        let real = Concurrency::builder(limit).max_waiting(MAX_WAITING).build().unwrap();
        agree(Real::Single(real), limit, &ops)?;
    }

    #[test]
    fn many_keys_agree_with_the_model(limit in 0..6_u64, ops in ops()) {
        let builder = KeyedConcurrency::builder(limit).max_waiting(MAX_WAITING);
        let builder = builder.max_waiting_total(MAX_WAITING_TOTAL).max_keys(MAX_KEYS);
        agree(Real::Keyed(builder.build().unwrap()), limit, &ops)?;
    }
}
