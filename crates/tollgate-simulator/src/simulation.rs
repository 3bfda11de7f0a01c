//! Discrete events: a workload, limits and a server on one manual clock.

use crate::{Admission, Report, Server, Workload, server::Change};
use fastrand::Rng;
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};
use tollgate::{CallOutcome, Clock, ManualClock, Tick};

/// A workload that meets a server, with limits in between.
///
/// A call is good if it ends within its deadline. A call that ends later ends with
/// [`CallOutcome::Overload`], and holds its place in the limit until then. A refused call is gone,
/// or comes back if [`Retries`] say so.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_simulator::{FixedLimit, Server, ServiceTime, Simulation, Workload, limited_by};
///
/// let server = Server::new(1, ServiceTime::Constant(Duration::from_millis(100)));
/// let workload = Workload::new().constant(20.0, Duration::from_secs(10));
/// let report = Simulation::new(workload, server).run(1, |clock| vec![limited_by(FixedLimit(1), clock)]);
/// assert!(report.goodput(0..10) > 0.98); // of the ten a second that the server can do
/// assert_eq!(report.refused(0..10), 0.5);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Simulation {
    workload: Workload,
    server: Server,
    deadline: Duration,
    retries: Option<Retries>,
}

/// How clients repeat calls that were refused or late.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// How often one call is repeated at most.
    pub max: u32,
    /// The longest pause before the first repetition. It doubles with each, and a random share of
    /// it is waited.
    pub backoff: Duration,
    /// Repetitions per good call (a retry budget), or any number.
    pub budget: Option<f64>,
}

/// The most repetitions that a budget saves up, and those that it starts with.
const BUDGET_MAX: f64 = 100.0;
const BUDGET_INITIAL: f64 = 10.0;

impl Simulation {
    /// Returns a simulation with a deadline of 200 ms and clients that do not retry.
    pub fn new(workload: Workload, server: Server) -> Self {
        Self { workload, server, deadline: Duration::from_millis(200), retries: None }
    }

    /// Sets within which time a call is good, by default 200 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Lets clients retry.
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Runs it with the limits that `build` returns; calls are spread over them in turn.
    ///
    /// # Panics
    ///
    /// When `build` returns no limit.
    pub fn run<A: Admission>(&self, seed: u64, build: impl FnOnce(&Clock) -> Vec<A>) -> Report {
        let hand = ManualClock::new();
        let limits = build(&hand.clock());
        assert!(!limits.is_empty(), "a simulation needs a limit; FixedLimit::none refuses nothing");
        let length = self.workload.length();
        let mut run = Run {
            simulation: self,
            hand,
            limits,
            random: Rng::with_seed(seed ^ 0x5eed_5e41_ce71_3e55),
            events: BinaryHeap::new(),
            events_so_far: 0,
            workers: self.server.workers(),
            slowdown: 1.0,
            busy: 0,
            queue: VecDeque::new(),
            answered: Vec::new(),
            budget: BUDGET_INITIAL,
            report: Report::new(length, |at| self.server.capacity(at)),
        };
        for (at, change) in self.server.changes() {
            run.schedule(*at, Step::Change(*change));
        }
        let end = Tick::ZERO.saturating_add(length);
        let mut arrivals = self.workload.arrivals(seed).peekable();
        loop {
            let event = run.events.peek().map(|event| event.at);
            let arrival = arrivals.peek().copied();
            let Some(now) = [event, arrival].into_iter().flatten().min().filter(|at| *at < end)
            else {
                break;
            };
            run.advance_to(now);
            // What ends at this instant makes room for what arrives.
            if event == Some(now) {
                run.next_event(now);
            } else {
                arrivals.next();
                run.report.second(now).offered += 1;
                run.attempt(now, 0);
            }
        }
        run.advance_to(end);
        run.report
    }
}

struct Run<'a, A: Admission> {
    simulation: &'a Simulation,
    hand: ManualClock,
    limits: Vec<A>,
    random: Rng,
    events: BinaryHeap<Event<A::Guard>>,
    events_so_far: u64,
    workers: usize,
    slowdown: f64,
    /// Calls that a worker works on, and those that wait for one.
    busy: usize,
    queue: VecDeque<Job<A::Guard>>,
    /// For each attempt whether its client has its answer; empty if clients do not retry.
    answered: Vec<bool>,
    budget: f64,
    report: Report,
}

/// An attempt that was let in.
struct Job<G> {
    began: Tick,
    guard: G,
    /// The index of its limit.
    limit: usize,
    /// Its index in `answered`.
    number: usize,
}

enum Step<G> {
    Change(Change),
    Done(Job<G>),
    /// The client of an attempt gives up.
    Timeout {
        number: usize,
        tries: u32,
    },
    Retry {
        tries: u32,
    },
}

impl<A: Admission> Run<'_, A> {
    fn schedule(&mut self, at: Tick, step: Step<A::Guard>) {
        self.events_so_far += 1;
        self.events.push(Event { at, number: self.events_so_far, step });
    }

    fn advance_to(&mut self, now: Tick) {
        let in_flight = self.busy + self.queue.len();
        let limits = &self.limits;
        self.report
            .trace_until(now, || (limits.iter().map(Admission::limit).sum(), in_flight as u64));
        self.hand.set(now);
    }

    fn next_event(&mut self, now: Tick) {
        let Some(event) = self.events.pop() else { return };
        match event.step {
            Step::Change(Change::Workers(workers)) => {
                self.workers = workers;
                while self.busy < self.workers
                    && let Some(job) = self.queue.pop_front()
                {
                    self.start(now, job);
                }
            }
            Step::Change(Change::Slowdown(factor)) => self.slowdown = factor,
            Step::Done(job) => self.done(now, job),
            Step::Timeout { number, tries } => {
                if !std::mem::replace(&mut self.answered[number], true) {
                    self.retry(now, tries);
                }
            }
            Step::Retry { tries } => self.attempt(now, tries),
        }
    }

    fn attempt(&mut self, now: Tick, tries: u32) {
        let second = self.report.second(now);
        second.attempts += 1;
        let limit = second.attempts as usize % self.limits.len();
        let Some(guard) = self.limits[limit].try_enter() else {
            self.report.second(now).refused += 1;
            return self.retry(now, tries);
        };
        if self.simulation.server.is_full(self.queue.len()) {
            self.limits[limit].leave(guard, CallOutcome::Overload);
            self.report.second(now).refused += 1;
            return self.retry(now, tries);
        }
        let number = self.answered.len();
        if self.simulation.retries.is_some() {
            self.answered.push(false);
            let deadline = now.saturating_add(self.simulation.deadline);
            self.schedule(deadline, Step::Timeout { number, tries });
        }
        let job = Job { began: now, guard, limit, number };
        match self.busy < self.workers {
            true => self.start(now, job),
            false => self.queue.push_back(job),
        }
    }

    fn start(&mut self, now: Tick, job: Job<A::Guard>) {
        self.busy += 1;
        let inside = self.busy + self.queue.len();
        let takes = self.simulation.server.draw(inside, self.slowdown, &mut self.random);
        self.schedule(now.saturating_add(takes), Step::Done(job));
    }

    fn done(&mut self, now: Tick, job: Job<A::Guard>) {
        self.busy -= 1;
        let is_good = now.since(job.began) <= self.simulation.deadline;
        self.report.end(now, now.since(job.began), is_good);
        let outcome = if is_good { CallOutcome::Success } else { CallOutcome::Overload };
        self.limits[job.limit].leave(job.guard, outcome);
        if let Some(retries) = self.simulation.retries
            && is_good
        {
            self.answered[job.number] = true;
            self.budget = (self.budget + retries.budget.unwrap_or(0.0)).min(BUDGET_MAX);
        }
        if self.busy < self.workers
            && let Some(job) = self.queue.pop_front()
        {
            self.start(now, job);
        }
    }

    /// Repeats a call later if its client does that.
    fn retry(&mut self, now: Tick, tries: u32) {
        let Some(retries) = self.simulation.retries.filter(|retries| tries < retries.max) else {
            return;
        };
        if retries.budget.is_some() {
            if self.budget < 1.0 {
                return;
            }
            self.budget -= 1.0;
        }
        let pause = retries.backoff.mul_f64(f64::from(1_u32 << tries) * self.random.f64());
        self.schedule(now.saturating_add(pause), Step::Retry { tries: tries + 1 });
    }
}

/// Ordered so that the heap gives the earliest first; of two at one time, the one set first.
struct Event<G> {
    at: Tick,
    number: u64,
    step: Step<G>,
}

impl<G> Ord for Event<G> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<G> PartialOrd for Event<G> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<G> PartialEq for Event<G> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<G> Eq for Event<G> {}
