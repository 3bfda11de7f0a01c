//! A queue of calls that wait for a lane, in order of arrival.
//!
//! Only the first call in the queue looks at the lane and sets a timer for it. An answer wakes the
//! first; only a stop wakes all, so that calls that would wait too long fail at once.
//!
//! A future that is no longer polled must not hold up the others. So the calls behind the first
//! check on it: the second every second, the third every other second, and so on. That is few
//! checks, however long the queue is. If the first call does not start within a second although it
//! could, it loses its place. When it is polled again, it gets its place back.
//!
//! Between the front of the queue and its start, a call may have to wait for the service further
//! in. It starts only if it is still first then, so that it does not start after a refusal that
//! came meanwhile.

use super::{
    lane::{Lane, Manner},
    learned::Learned,
};
use crate::timer::{NoTimers, Timer};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tollgate::{Clock, Tick};

/// How long the first call in the queue may stay asleep when it could start.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lane and the calls that wait for it.
#[derive(Debug)]
pub(super) struct Line {
    state: Mutex<State>,
    clock: Clock,
    max_waiting: usize,
}

#[derive(Debug)]
struct State {
    lane: Lane,
    /// The waiting calls, by order of arrival.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
    /// When the first call may start, or since when it could, as far as any call has noticed.
    due: Option<Tick>,
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Line>,
    deadline: Tick,
    ticket: Option<u64>,
    timer: Timer,
}

/// A call in flight. If it is dropped without an answer, it counts as lost.
#[derive(Debug)]
pub(super) struct Flight {
    line: Arc<Line>,
    number: Option<u64>,
}

/// The reason why a call does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// It would take at least this long.
    TooLong(Duration),
    /// This many calls wait already.
    Full(usize),
    /// There are no timers for the wait.
    NoTimers,
}

impl Line {
    pub(super) fn new(manner: Manner, clock: Clock, max_waiting: usize) -> Self {
        let lane = Lane::new(manner);
        let state = State { lane, waiting: BTreeMap::new(), next_ticket: 0, due: None };
        Self { state: Mutex::new(state), clock, max_waiting }
    }

    pub(super) fn is_idle(&self, now: Tick) -> bool {
        let state = self.state();
        state.waiting.is_empty() && state.lane.is_idle(now)
    }

    /// Returns why a call that arrived now would not wait, if its start is certain to come after
    /// the deadline.
    pub(super) fn too_long(&self, deadline: Tick) -> Option<NoTurn> {
        let now = self.clock.now();
        let mut state = self.state();
        let ahead = state.waiting.len() as u64;
        let earliest = state.lane.earliest(now, ahead);
        (earliest > deadline).then(|| NoTurn::TooLong(earliest.since(now)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state machine changes in whole steps, so a panic leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the lane, and then wakes the calls that have to look at it: the first, or all.
    fn change(&self, change: impl FnOnce(&mut Lane, Tick) -> Whom) {
        let now = self.clock.now();
        let mut state = self.state();
        let many = match change(&mut state.lane, now) {
            Whom::First => 1,
            Whom::All => usize::MAX,
        };
        let wakers: Vec<Waker> = state.waiting.values_mut().take(many).map(take).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Takes a waker out. A woken call leaves another when it looks. Wakers are foreign code, which
/// must not run, nor be cloned or dropped, under the lock.
fn take(waker: &mut Waker) -> Waker {
    std::mem::replace(waker, Waker::noop().clone())
}

/// The calls that have to look at a lane that has changed.
enum Whom {
    First,
    All,
}

impl Turn {
    pub(super) fn new(line: Arc<Line>, deadline: Tick) -> Self {
        Self { line, deadline, ticket: None, timer: Timer::default() }
    }

    /// Becomes ready as soon as the call may start.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoTurn>> {
        loop {
            let until = match self.look(context.waker()) {
                Ok(answer) => return Poll::Ready(answer),
                Err(until) => until,
            };
            let clock = &self.line.clock;
            if let Err(NoTimers) = ready!(self.timer.poll(clock, until, context)) {
                return Poll::Ready(Err(NoTurn::NoTimers));
            }
        }
    }

    /// Starts the call, if it is still first.
    pub(super) fn start(&self) -> Option<Flight> {
        let now = self.line.clock.now();
        let mut state = self.line.state();
        if state.place(self.ticket) > 0 || state.lane.next_at(now) > now {
            return None;
        }
        state.due = None;
        let number = Some(state.lane.start(now));
        Some(Flight { line: Arc::clone(&self.line), number })
    }

    /// Returns the result if it is known, otherwise until when to wait unless woken.
    fn look(&mut self, waker: &Waker) -> Result<Result<(), NoTurn>, Tick> {
        let line = Arc::clone(&self.line);
        let now = line.clock.now();
        // Both are dropped after the lock is released, because they are declared before it.
        let (mut spare, _deposed);
        spare = waker.clone();
        let mut guard = line.state();
        let state = &mut *guard;
        let next = state.lane.next_at(now);
        _deposed = state.depose(self.ticket, next, now);
        let place = state.place(self.ticket);
        if place == 0 && next <= now {
            return Ok(Ok(()));
        }
        let ahead = if self.ticket.is_none() { state.waiting.len() as u64 } else { 0 };
        let earliest = state.lane.earliest(now, ahead);
        if earliest > self.deadline || now >= self.deadline {
            return Ok(Err(NoTurn::TooLong(earliest.since(now))));
        }
        if self.ticket.is_none() && state.waiting.len() >= line.max_waiting {
            return Ok(Err(NoTurn::Full(line.max_waiting)));
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        let stored = state.waiting.entry(ticket).or_insert_with(|| Waker::noop().clone());
        std::mem::swap(stored, &mut spare);
        let due = state.due.unwrap_or(next);
        let until = match u32::try_from(place) {
            Ok(0) => next,
            Ok(place) => due.max(now).saturating_add(PATIENCE.saturating_mul(place)),
            Err(_) => self.deadline,
        };
        Err(until.min(self.deadline))
    }
}

impl State {
    /// Returns how many calls are ahead. A call without a ticket is behind all.
    fn place(&self, ticket: Option<u64>) -> usize {
        match ticket {
            Some(ticket) => self.waiting.range(..ticket).count(),
            None => self.waiting.len(),
        }
    }

    /// Notes when the first call may start. If it has been asleep too long since, it loses its
    /// place to the next. Returns wakers to be used and dropped without the lock.
    fn depose(&mut self, ticket: Option<u64>, next: Tick, now: Tick) -> Option<Deposed> {
        if next > now {
            self.due = Some(next);
            return None;
        }
        let due = self.due.map_or(now, |due| due.min(now));
        self.due = Some(due);
        let is_behind = self.waiting.keys().next().is_some_and(|first| Some(*first) != ticket);
        if !is_behind || now.since(due) < PATIENCE {
            return None;
        }
        self.due = Some(now);
        let sleeper = self.waiting.pop_first().map(|(_, waker)| waker);
        let next = self.waiting.values_mut().next().map(take);
        Some(Deposed { _sleeper: sleeper, next })
    }
}

/// The next call to wake when the first has lost its place, and the waker of the first.
struct Deposed {
    _sleeper: Option<Waker>,
    next: Option<Waker>,
}

impl Drop for Deposed {
    fn drop(&mut self) {
        if let Some(next) = self.next.take() {
            next.wake();
        }
    }
}

impl Drop for Turn {
    /// Leaves the queue. If this was the first call, the next one looks at the lane.
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.line.state();
        let own = state.waiting.remove(&ticket);
        let was_first = state.place(Some(ticket)) == 0;
        let next = state.waiting.values_mut().next().filter(|_| was_first).map(take);
        drop(state);
        drop(own);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Flight {
    /// Processes the answer. Tells whether it stopped all calls.
    pub(super) fn answer(mut self, learned: &Learned) -> bool {
        let mut has_stopped = false;
        if let Some(number) = self.number.take() {
            self.line.change(|lane, now| {
                has_stopped = lane.answer(now, number, learned);
                if has_stopped { Whom::All } else { Whom::First }
            });
        }
        has_stopped
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.line.change(|lane, _| {
                lane.lose(number);
                Whom::First
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Reader, Spend};
    use http::{HeaderMap, StatusCode};

    #[test]
    fn of_two_whose_turn_it_is_one_starts_if_one_is_left() {
        let (clock, _hand) = Clock::manual();
        let manner = Manner { spend: Spend::Burst, longest: Duration::from_secs(60) };
        let line = Arc::new(Line::new(manner, clock, 9));
        let turn = || Turn::new(Arc::clone(&line), Tick::from_secs(30));
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", http::HeaderValue::from_static("\"a\";r=1;t=5"));
        let learned = Reader::new().read(StatusCode::OK, &headers, Duration::ZERO);
        turn().start().unwrap().answer(&learned);
        let (mut one, mut other) = (turn(), turn());
        let mut context = Context::from_waker(Waker::noop());
        for turn in [&mut one, &mut other] {
            assert_eq!(turn.poll(&mut context), Poll::Ready(Ok(())));
        }
        assert!(other.start().is_some());
        assert!(one.start().is_none());
    }
}
