//! The discrete events of one run.

use crate::{
    Admission, Client, Moment, Report, Simulation, admission::Ending, numbered::Numbered,
    server::Change,
};
use fastrand::Rng;
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
};
use tollgate::{
    Attempts, CallOutcome, ManualClock, ShouldRetry, Tick,
    hedge::{HedgePolicy, HedgedAttempts},
};

/// The handle of the clock, the callers, and the limits in front of the server.
type Parties = (ManualClock, Vec<Client>, Vec<Box<dyn Admission>>);

pub(crate) struct Run<'a> {
    simulation: &'a Simulation,
    seed: u64,
    hand: ManualClock,
    clients: Vec<Client>,
    limits: Vec<Box<dyn Admission>>,
    random: Rng,
    events: BinaryHeap<Event>,
    events_so_far: u64,
    /// When clients give up on their attempts: all after the same time, so in order.
    timeouts: VecDeque<(Tick, u64)>,
    workers: usize,
    slowdown: f64,
    failing: f64,
    /// Attempts that a worker handles, and those that wait for a worker.
    busy: usize,
    queue: VecDeque<Job>,
    /// Calls without an answer, and the attempts that their clients wait for.
    calls: Numbered<Call>,
    attempts: Numbered<Attempt>,
    report: Report,
}

/// A call whose client waits for an answer, or pauses before the next attempt.
struct Call {
    came: Tick,
    client: usize,
    tries: Option<Attempts>,
    hedged: Option<HedgedAttempts>,
    /// The attempts that its client waits for.
    running: Vec<u64>,
}

/// An attempt that its client waits for.
struct Attempt {
    call: u64,
    /// 0 for the first one, others are hedges.
    number: u32,
    /// The actions of the client's gates at its end.
    endings: Vec<Ending>,
}

/// Work of the server, whether a client waits for it or not.
struct Job {
    attempt: u64,
    came: Tick,
    began: Tick,
    fails: bool,
    /// The action of the limit at its end; `None` if the limit refused and the work is the refusal.
    ending: Option<Ending>,
}

enum Step {
    Change(Change),
    Done(Job),
    /// The first attempt of a call, or its repetition.
    Try(u64),
    Hedge(u64),
}

impl<'a> Run<'a> {
    pub(crate) fn new(simulation: &'a Simulation, seed: u64, parties: Parties) -> Self {
        let (hand, clients, limits) = parties;
        assert!(!limits.is_empty(), "a simulation needs a limit; FixedLimit::none refuses nothing");
        assert!(!clients.is_empty(), "a simulation needs a client; Client::new sends calls once");
        let server = &simulation.server;
        let mut run = Self {
            simulation,
            seed,
            hand,
            clients,
            limits,
            random: Rng::with_seed(seed ^ 0x5eed_5e41_ce71_3e55),
            events: BinaryHeap::new(),
            events_so_far: 0,
            timeouts: VecDeque::new(),
            workers: server.workers(),
            slowdown: 1.0,
            failing: 0.0,
            busy: 0,
            queue: VecDeque::new(),
            calls: Numbered::new(),
            attempts: Numbered::new(),
            report: Report::new(simulation.workload.length(), |at| server.capacity(at)),
        };
        for (at, change) in server.changes() {
            run.schedule(*at, Step::Change(*change));
        }
        run
    }

    pub(crate) fn until(mut self, end: Tick) -> Report {
        let mut arrivals = self.simulation.workload.arrivals(self.seed).peekable();
        loop {
            // Of events at one instant, those that end a call come first, because they free places
            // for arrivals.
            let event = self.events.peek().map(|event| event.at);
            let timeout = self.timeouts.front().map(|(at, _)| *at);
            let arrival = arrivals.peek().copied();
            let next = [event, timeout, arrival].into_iter().flatten().min();
            let Some(now) = next.filter(|at| *at < end) else { break };
            self.advance_to(now);
            if event == Some(now) {
                self.next_event(now);
            } else if timeout == Some(now) {
                if let Some((_, attempt)) = self.timeouts.pop_front() {
                    self.answer(now, attempt, CallOutcome::Overload);
                }
            } else {
                arrivals.next();
                self.arrive(now);
            }
        }
        self.advance_to(end);
        self.report
    }

    fn schedule(&mut self, at: Tick, step: Step) {
        self.events_so_far += 1;
        self.events.push(Event { at, number: self.events_so_far, step });
    }

    fn advance_to(&mut self, now: Tick) {
        let in_flight = (self.busy + self.queue.len()) as u64;
        let (limits, callers) = (&self.limits, self.calls.len() as u64);
        let limit = || limits.iter().map(|it| it.limit()).sum();
        self.report.trace_until(now, || Moment { limit: limit(), in_flight, callers });
        self.hand.set(now);
    }

    fn next_event(&mut self, now: Tick) {
        let Some(event) = self.events.pop() else { return };
        match event.step {
            Step::Change(Change::Workers(workers)) => {
                self.workers = workers;
                self.start_waiting(now);
            }
            Step::Change(Change::Slowdown(factor)) => self.slowdown = factor,
            Step::Change(Change::Failing(share)) => self.failing = share,
            Step::Done(job) => self.done(now, job),
            Step::Try(call) => self.try_call(now, call),
            Step::Hedge(call) => self.hedge(now, call),
        }
    }

    fn arrive(&mut self, now: Tick) {
        let second = self.report.second(now);
        let client = second.offered as usize % self.clients.len();
        second.offered += 1;
        let tries = self.clients[client].retry.as_ref().map(|policy| policy.start(now));
        let call = Call { came: now, client, tries, hedged: None, running: Vec::new() };
        let call = self.calls.add(call);
        self.try_call(now, call);
    }

    fn try_call(&mut self, now: Tick, number: u64) {
        let Some(call) = self.calls.get_mut(number) else { return };
        call.hedged = self.clients[call.client].hedge.as_ref().map(|policy| policy.start(now));
        self.schedule_hedge(number);
        self.attempt(now, number, 0);
    }

    fn schedule_hedge(&mut self, number: u64) {
        let hedged = self.calls.get_mut(number).and_then(|call| call.hedged.as_ref());
        if let Some(due) = hedged.and_then(HedgedAttempts::next_due) {
            self.schedule(due, Step::Hedge(number));
        }
    }

    fn hedge(&mut self, now: Tick, number: u64) {
        let Some((policy, hedged)) = self.hedged(number) else { return };
        if hedged.next_due() == Some(now) && policy.try_hedge(hedged, now) {
            let number_of_hedge = hedged.made() - 1;
            self.schedule_hedge(number);
            self.attempt(now, number, number_of_hedge);
        }
    }

    fn hedged(&mut self, call: u64) -> Option<(&HedgePolicy, &mut HedgedAttempts)> {
        let call = self.calls.get_mut(call)?;
        self.clients[call.client].hedge.as_ref().zip(call.hedged.as_mut())
    }

    /// Sends a call to the server, if its client's gates admit it.
    fn attempt(&mut self, now: Tick, call: u64, number: u32) {
        let Some(&mut Call { came, client, .. }) = self.calls.get_mut(call) else { return };
        let mut endings: Vec<Ending> = Vec::new();
        for gate in &mut self.clients[client].gates {
            let Some(ending) = gate.try_enter() else {
                endings.into_iter().for_each(|ending| ending(CallOutcome::Ignore));
                self.report.second(now).not_sent += 1;
                return self.fail(now, call, ShouldRetry::No);
            };
            endings.push(ending);
        }
        let second = self.report.second(now);
        second.attempts += 1;
        let limit = second.attempts as usize % self.limits.len();
        let attempt = self.attempts.add(Attempt { call, number, endings });
        if let Some(call) = self.calls.get_mut(call) {
            call.running.push(attempt);
        }
        let ending = self.limits[limit].try_enter();
        let server = &self.simulation.server;
        let is_free = ending.is_none() && server.refusal().is_zero();
        if is_free || server.is_full(self.queue.len()) {
            if let Some(ending) = ending {
                ending(CallOutcome::Overload);
            }
            self.report.second(now).refused += 1;
            return self.answer(now, attempt, CallOutcome::Overload);
        }
        self.timeouts.push_back((now.saturating_add(self.simulation.deadline), attempt));
        self.queue.push_back(Job { attempt, came, began: now, fails: false, ending });
        self.start_waiting(now);
    }

    /// Assigns waiting attempts to free workers.
    fn start_waiting(&mut self, now: Tick) {
        while self.busy < self.workers
            && let Some(mut job) = self.queue.pop_front()
        {
            self.busy += 1;
            let server = &self.simulation.server;
            let inside = self.busy + self.queue.len();
            let takes = match job.ending {
                Some(_) => server.draw(inside, self.slowdown, &mut self.random),
                None => server.refusal(),
            };
            job.fails = self.failing > 0.0 && self.random.f64() < self.failing;
            self.schedule(now.saturating_add(takes), Step::Done(job));
        }
    }

    fn done(&mut self, now: Tick, job: Job) {
        self.busy -= 1;
        let is_late = now.since(job.began) > self.simulation.deadline;
        let is_waited_for = self.attempts.get_mut(job.attempt).is_some();
        let second = self.report.second(now);
        let outcome = match job.ending {
            None => CallOutcome::Overload,
            Some(_) if job.fails => CallOutcome::Failure,
            Some(_) if is_late => CallOutcome::Overload,
            Some(_) => CallOutcome::Success,
        };
        match (&job.ending, outcome) {
            (None, _) => second.refused += 1,
            (_, CallOutcome::Failure) => second.failed += 1,
            // Another attempt was faster.
            (_, CallOutcome::Success) if !is_waited_for => {}
            (_, outcome) => {
                self.report.end(now, now.since(job.came), outcome == CallOutcome::Success);
            }
        }
        if let Some(ending) = job.ending {
            ending(outcome);
        }
        self.answer(now, job.attempt, outcome);
        self.start_waiting(now);
    }

    /// Ends an attempt for its client, if the client still waits for it.
    fn answer(&mut self, now: Tick, attempt: u64, outcome: CallOutcome) {
        let Some(Attempt { call, number, endings }) = self.attempts.remove(attempt) else { return };
        endings.into_iter().for_each(|ending| ending(outcome));
        if let Some((policy, hedged)) = self.hedged(call) {
            // The policy waits for a success, so its answer is known.
            let _is_success = policy.ended(hedged, number, now, outcome);
        }
        if outcome != CallOutcome::Success {
            if let Some(call) = self.calls.get_mut(call) {
                call.running.retain(|it| *it != attempt);
            }
            return self.fail(now, call, ShouldRetry::Yes);
        }
        let Some(call) = self.calls.remove(call) else { return };
        if let Some(policy) = &self.clients[call.client].retry {
            policy.succeeded();
        }
        // The server continues to work, but no client waits.
        let others = call.running.into_iter().filter_map(|other| self.attempts.remove(other));
        others.flat_map(|it| it.endings).for_each(|ending| ending(CallOutcome::Ignore));
    }

    /// Repeats a call later if its client retries, unless another attempt runs; otherwise the call
    /// has failed.
    fn fail(&mut self, now: Tick, number: u64, should_retry: ShouldRetry) {
        let Some(call) = self.calls.get_mut(number).filter(|call| call.running.is_empty()) else {
            return;
        };
        call.hedged = None;
        let policy = self.clients[call.client].retry.as_ref().zip(call.tries.as_mut());
        let due = policy.and_then(|(policy, tries)| {
            policy.next_attempt(tries, now, should_retry).filter(|_| policy.withdraw())
        });
        match due {
            Some(due) => self.schedule(due, Step::Try(number)),
            None => drop(self.calls.remove(number)),
        }
    }
}

/// Ordered so that the heap yields the earliest first; of two at one time, the one that was set
/// first.
struct Event {
    at: Tick,
    number: u64,
    step: Step,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}
