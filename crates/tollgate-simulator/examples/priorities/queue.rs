//! Calls of three priorities to a server that cannot serve them all.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tollgate::{Acquire, Concurrency, ManualClock, Permit, Priority, Tick};
use tollgate_simulator::Workload;

/// Priority of a class, and how many of a hundred calls belong to it.
pub(crate) const CLASSES: [(Priority, u8); 3] =
    [(Priority::CRITICAL, 10), (Priority::NORMAL, 50), (Priority::BACKGROUND, 40)];

const WORKERS: u64 = 20;
const MAX_WAITING: u64 = 2 * WORKERS;
const SERVICE: Duration = Duration::from_millis(20);
/// A call that takes longer is of no use. No call waits for more than half of it.
const DEADLINE: Duration = Duration::from_millis(200);
const LENGTH: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queueing {
    Equal,
    ByPriority,
}

/// How many calls arrived and were served in time, by urgency.
#[derive(Debug, Default)]
pub(crate) struct Served {
    came: BTreeMap<u8, u64>,
    in_time: BTreeMap<u8, u64>,
}

impl Served {
    /// Returns the share of a class that was served in time.
    pub(crate) fn share(&self, class: Priority) -> f64 {
        let of = |counts: &BTreeMap<u8, u64>| counts.get(&class.urgency()).copied().unwrap_or(0);
        of(&self.in_time) as f64 / of(&self.came) as f64
    }

    /// Returns the calls served in time as a share of the server's capacity.
    pub(crate) fn goodput(&self) -> f64 {
        let capacity = WORKERS as f64 / SERVICE.as_secs_f64() * LENGTH.as_secs_f64();
        self.in_time.values().sum::<u64>() as f64 / capacity
    }
}

/// A call that waits for a worker.
struct Waiting {
    acquire: Pin<Box<Acquire>>,
    call: Call,
    /// Its number in the list of woken calls.
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    came: Tick,
    urgency: u8,
}

/// Records which calls were woken.
struct Woken(Arc<Mutex<VecDeque<u64>>>, u64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if let Ok(mut woken) = self.0.lock() {
            woken.push_back(self.1);
        }
    }
}

struct Run {
    random: fastrand::Rng,
    hand: ManualClock,
    limit: Concurrency,
    waiting: BTreeMap<u64, Waiting>,
    woken: Arc<Mutex<VecDeque<u64>>>,
    /// Running calls by the time at which they end; a number keeps the order of equal ones.
    in_work: BinaryHeap<Reverse<(Tick, u64)>>,
    slots: BTreeMap<u64, (Permit, Call)>,
    next: u64,
    served: Served,
}

/// Runs twenty seconds of calls at `load` times the capacity.
pub(crate) fn served(
    queueing: Queueing,
    load: f64,
    seed: u64,
) -> Result<Served, Box<dyn std::error::Error>> {
    let hand = ManualClock::new();
    let limit = Concurrency::builder(WORKERS).max_waiting(MAX_WAITING).max_wait(DEADLINE / 2);
    let mut run = Run {
        random: fastrand::Rng::with_seed(seed),
        limit: limit.clock(hand.clock()).build()?,
        hand,
        waiting: BTreeMap::new(),
        woken: Arc::default(),
        in_work: BinaryHeap::new(),
        slots: BTreeMap::new(),
        next: 0,
        served: Served::default(),
    };
    let rate = load * WORKERS as f64 / SERVICE.as_secs_f64();
    for came in Workload::new().poisson(rate, LENGTH).arrivals(seed) {
        run.advance(came);
        run.arrive(came, queueing);
    }
    run.advance(Tick::MAX);
    Ok(run.served)
}

impl Run {
    /// Ends the calls that are due by `now`, and starts those that are then admitted.
    fn advance(&mut self, now: Tick) {
        while let Some(Reverse((ends, number))) = self.in_work.peek().copied()
            && ends <= now
        {
            self.in_work.pop();
            self.hand.set(ends);
            self.serve_woken();
            if let Some((permit, call)) = self.slots.remove(&number) {
                if ends.since(call.came) <= DEADLINE {
                    *self.served.in_time.entry(call.urgency).or_default() += 1;
                }
                drop(permit);
            }
            self.serve_woken();
        }
        if now < Tick::MAX {
            self.hand.set(now);
            self.serve_woken();
        }
    }

    fn arrive(&mut self, came: Tick, queueing: Queueing) {
        let mut percent = self.random.u8(..100);
        let class = CLASSES.into_iter().find(|(_, share)| {
            let is_it = percent < *share;
            percent = percent.saturating_sub(*share);
            is_it
        });
        let priority = class.map_or(Priority::BACKGROUND, |(priority, _)| priority);
        let call = Call { came, urgency: priority.urgency() };
        *self.served.came.entry(call.urgency).or_default() += 1;
        let acquire = self.limit.acquire();
        let acquire = match queueing {
            Queueing::Equal => acquire,
            Queueing::ByPriority => acquire.priority(priority),
        };
        self.next += 1;
        let number = self.next;
        self.poll(Waiting { acquire: Box::pin(acquire), call, number });
        self.serve_woken();
    }

    fn serve_woken(&mut self) {
        while let Some(number) = self.woken.lock().ok().and_then(|mut woken| woken.pop_front()) {
            if let Some(waiting) = self.waiting.remove(&number) {
                self.poll(waiting);
            }
        }
    }

    fn poll(&mut self, mut waiting: Waiting) {
        let number = waiting.number;
        let waker = Waker::from(Arc::new(Woken(Arc::clone(&self.woken), number)));
        match waiting.acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => drop(self.waiting.insert(number, waiting)),
            Poll::Ready(Err(_)) => {}
            Poll::Ready(Ok(permit)) => {
                // Between half and one and a half times the mean.
                let takes = SERVICE.mul_f64(0.5 + self.random.f64());
                let ends = self.hand.now().saturating_add(takes);
                self.in_work.push(Reverse((ends, number)));
                self.slots.insert(number, (permit, waiting.call));
            }
        }
    }
}
