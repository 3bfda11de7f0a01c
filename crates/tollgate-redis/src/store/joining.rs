//! Combines many takes of one key into one call.
//!
//! The first few calls for a permit of a key are sent as they come. Calls that arrive while these
//! are under way wait in a queue, and the next call asks for as many permits as there are waiters.
//! The first waiters get the granted permits; the others are refused. That is exact: the permits
//! are taken before any waiter gets its decision. A waiter leaves the queue at the link's deadline.

use super::{
    RedisStore,
    calls::{State, Wanted},
};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{sync::oneshot, time::timeout};
use tollgate::{Answer, Decision, Outcome, Tick, store::StoreError};

/// The most waiters in one queue.
const LINE_MAX: usize = 100_000;
const SHARDS: usize = 16;

/// The queues of all keys with calls under way.
pub(super) struct Lines {
    above: u32,
    next: AtomicU64,
    shards: [Mutex<HashMap<Vec<u8>, Line>>; SHARDS],
}

#[derive(Default)]
struct Line {
    /// Calls of single requests under way.
    alone: u32,
    /// The waiters in the order of their arrival, with ascending numbers.
    waiting: VecDeque<Waiter>,
    /// Whether a lead task calls for the waiters.
    is_led: bool,
}

struct Waiter {
    number: u64,
    since: Tick,
    answer: oneshot::Sender<Result<Decision, Failure>>,
}

/// The waiter's end of its entry.
struct Ticket {
    number: u64,
    answer: oneshot::Receiver<Result<Decision, Failure>>,
}

/// A failure that several waiters receive.
#[derive(Clone)]
struct Failure {
    is_unknown: bool,
    text: String,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure.is_unknown {
            true => Self::timeout(failure.text),
            false => Self::unavailable(failure.text),
        }
    }
}

/// How a call proceeds.
enum Place {
    Alone,
    Wait(Ticket),
    Full,
}

impl Lines {
    pub(super) fn new(above: u32) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { above, next: AtomicU64::new(0), shards }
    }

    fn with<R>(&self, name: &[u8], work: impl FnOnce(&mut HashMap<Vec<u8>, Line>) -> R) -> R {
        // The names of a store differ at their ends.
        let sum = name
            .iter()
            .rev()
            .take(8)
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        let shard = &self.shards[sum % SHARDS];
        work(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn place(&self, name: &[u8], now: Tick) -> Place {
        self.with(name, |lines| {
            let Some(line) = lines.get_mut(name) else {
                lines.insert(name.to_vec(), Line { alone: 1, ..Line::default() });
                return Place::Alone;
            };
            if line.alone < self.above && line.waiting.is_empty() {
                line.alone += 1;
                return Place::Alone;
            }
            if line.waiting.len() >= LINE_MAX {
                return Place::Full;
            }
            let (sender, receiver) = oneshot::channel();
            // ORDERING: Relaxed. Each number is used once; the lock keeps them in order.
            let number = self.next.fetch_add(1, Relaxed);
            line.waiting.push_back(Waiter { number, since: now, answer: sender });
            Place::Wait(Ticket { number, answer: receiver })
        })
    }

    /// Ends a call of a single request. Returns whether the waiters need a lead task.
    fn done(&self, name: &[u8]) -> bool {
        self.with(name, |lines| {
            let Some(line) = lines.get_mut(name) else { return false };
            line.alone = line.alone.saturating_sub(1);
            if line.waiting.is_empty() {
                if line.alone == 0 && !line.is_led {
                    lines.remove(name);
                }
                return false;
            }
            !std::mem::replace(&mut line.is_led, true)
        })
    }

    /// Leaves a queue. Returns whether the waiter was still in it: no call had begun for it.
    fn leave(&self, name: &[u8], number: u64) -> bool {
        self.with(name, |lines| {
            let Some(line) = lines.get_mut(name) else { return false };
            let place = line.waiting.binary_search_by_key(&number, |waiter| waiter.number);
            place.is_ok_and(|place| line.waiting.remove(place).is_some())
        })
    }

    /// Takes all waiters; if there are none, the lead of the queue ends.
    fn take(&self, name: &[u8]) -> VecDeque<Waiter> {
        self.with(name, |lines| {
            let Some(line) = lines.get_mut(name) else { return VecDeque::new() };
            let mut waiting = std::mem::take(&mut line.waiting);
            waiting.retain(|waiter| !waiter.answer.is_closed());
            if waiting.is_empty() {
                line.is_led = false;
                if line.alone == 0 {
                    lines.remove(name);
                }
            }
            waiting
        })
    }
}

/// Ends a single request's call on drop, even if it was cancelled.
struct Alone<'a> {
    store: &'a RedisStore,
    state: &'a State,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let Self { store, state } = *self;
        if store.shared.lines.done(&line_of(state)) {
            lead(store.clone(), state.clone());
        }
    }
}

/// Returns the name of a queue: states of one name under two quotas have two queues.
fn line_of(state: &State) -> Vec<u8> {
    [&state.rule.taking(1)[..], &state.name].concat()
}

/// Starts the lead task, which calls for the waiters until there are none. It runs on the runtime
/// of the link: a caller's runtime may stand still as soon as its own call is done, and the waiters
/// may be on others.
fn lead(store: RedisStore, state: State) {
    let runtime = store.shared.link.runtime().clone();
    let lead = Lead { line: line_of(&state), store, is_over: false };
    runtime.spawn(async move {
        loop {
            let waiting = lead.store.shared.lines.take(&lead.line);
            if waiting.is_empty() {
                // From here on the queue may have another lead, with its own waiters.
                return lead.end();
            }
            lead.store.serve(&state, waiting).await;
        }
    });
}

/// The lead of a queue. If the runtime drops it, its waiters get an error.
struct Lead {
    store: RedisStore,
    line: Vec<u8>,
    is_over: bool,
}

impl Lead {
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // The last take, of an empty queue, ends the lead.
        while !self.is_over && !self.store.shared.lines.take(&self.line).is_empty() {}
    }
}

impl RedisStore {
    /// Takes one permit, in a call of its own or together with others.
    pub(super) async fn take_or_join(&self, state: &State) -> Result<Decision, StoreError> {
        if self.shared.lines.above == u32::MAX {
            return Ok(self.decide_one(state, Wanted::Take).await?.decision(state));
        }
        match self.shared.lines.place(&line_of(state), self.now()) {
            Place::Alone => {
                let _done = Alone { store: self, state };
                Ok(self.decide_one(state, Wanted::Take).await?.decision(state))
            }
            Place::Wait(ticket) => self.wait(state, ticket).await,
            Place::Full => Err(StoreError::unavailable(format!(
                "{LINE_MAX} calls are already waiting for one key; use more keys, or call less \
                 often"
            ))),
        }
    }

    /// Waits in a queue, for at most the deadline of a call.
    async fn wait(&self, state: &State, mut ticket: Ticket) -> Result<Decision, StoreError> {
        let deadline = self.shared.link.settings().deadline;
        let answer = match timeout(deadline, &mut ticket.answer).await {
            Ok(Ok(answer)) => answer,
            // The runtime that called for this queue is gone.
            Ok(Err(_)) => return Err(StoreError::timeout("the call was abandoned")),
            Err(_) if self.shared.lines.leave(&line_of(state), ticket.number) => {
                return Err(self.waited_too_long().into());
            }
            Err(_) => match ticket.answer.try_recv() {
                Ok(answer) => answer,
                Err(_) => {
                    let text = format!("a batched call for one key: no reply within {deadline:?}");
                    return Err(StoreError::timeout(text));
                }
            },
        };
        Ok(answer?)
    }

    fn waited_too_long(&self) -> Failure {
        let deadline = self.shared.link.settings().deadline;
        let text = format!("earlier calls for the same key had no reply within {deadline:?}");
        Failure { is_unknown: false, text }
    }

    /// Takes a permit for each waiter, as far as permits remain.
    async fn serve(&self, state: &State, waiting: VecDeque<Waiter>) {
        // A waiter with almost no time left is skipped: its answer would come too late.
        let enough = self.shared.link.settings().deadline * 9 / 10;
        let now = self.now();
        let is_early = |waiter: &Waiter| now.since(waiter.since) < enough;
        let (waiting, late): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_early);
        for waiter in late {
            let _gone = waiter.answer.send(Err(self.waited_too_long()));
        }
        if waiting.is_empty() {
            return;
        }
        let all = State { cost: waiting.len() as u64, ..state.clone() };
        let (granted, seen) = match self.granted(&all, None).await {
            Ok(granted) => granted,
            Err(error) => {
                let failure = Failure { is_unknown: error.is_timeout(), text: error.to_string() };
                for waiter in waiting {
                    let _gone = waiter.answer.send(Err(failure.clone()));
                }
                return;
            }
        };
        let (at, rule) = (self.now(), &state.rule);
        let last = seen.decision(rule, 1, true, at);
        let refused = seen.decision(rule, 1, false, at);
        let mut left = granted;
        for waiter in waiting {
            if left == 0 {
                let _gone = waiter.answer.send(Ok(refused));
                continue;
            }
            let answer = Answer {
                outcome: Outcome::Allowed,
                at,
                cost: 1,
                limit: last.limit(),
                remaining: last.remaining() + left - 1,
                retry_at: at,
                full_at: last.full_at(),
            };
            // If a waiter is gone, the next one gets its permit.
            if waiter.answer.send(Ok(Decision::answered(answer))).is_ok() {
                left -= 1;
            }
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("above", &self.above).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(place: Place) -> Ticket {
        match place {
            Place::Wait(ticket) => ticket,
            _ => panic!("it should wait"),
        }
    }

    /// Between a lead's last check of its queue and the lead's end, the queue may get another lead.
    #[tokio::test]
    async fn the_end_of_a_lead_is_not_the_end_of_the_next() {
        let link = crate::Link::open("redis://127.0.0.1:1".parse().unwrap()).unwrap();
        let store = RedisStore::builder(link).join_above(1).build().unwrap();
        let (lines, now) = (&store.shared.lines, Tick::ZERO);
        let lead = || Lead { store: store.clone(), line: b"line".to_vec(), is_over: false };
        assert!(matches!(lines.place(b"line", now), Place::Alone));
        let mut ticket = waits(lines.place(b"line", now));
        lead().end();
        assert!(matches!(ticket.answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        // A lead that is dropped on the way leaves no waiter behind.
        drop(lead());
        assert!(matches!(ticket.answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
}
