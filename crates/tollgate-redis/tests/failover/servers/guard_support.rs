//! A store that fails on command.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::sync::{Arc, Mutex};
use tollgate::{
    Clock, Decision, ManualClock, Quota,
    store::{Demand, MemoryStore, Operation, Policy, Store, StoreError, forward_store},
};

/// How the store handles the next calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Up,
    /// Fails, and nothing is charged.
    Down,
    /// Fails about every second call, like a cluster with half of its nodes away.
    Half,
    /// Carries out the call, and loses the reply.
    Deaf,
    /// Does nothing, and the outcome is unknown.
    Lost,
    Full,
    Invalid,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// The mode to change to after so many calls.
    then: Option<(u64, Mode)>,
    calls: u64,
    forced: u64,
}

/// A store that fails on command. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Flaky {
    pub inner: MemoryStore,
    state: Arc<Mutex<State>>,
}

impl Flaky {
    pub fn new() -> (Self, ManualClock) {
        let (clock, hand) = Clock::manual();
        (Self::on(clock), hand)
    }

    pub fn on(clock: Clock) -> Self {
        let state = State { mode: Mode::Up, then: None, calls: 0, forced: 0 };
        let inner = MemoryStore::builder().clock(clock).build().unwrap();
        Self { inner, state: Arc::new(Mutex::new(state)) }
    }

    pub fn set(&self, mode: Mode) {
        let mut state = self.state.lock().unwrap();
        (state.mode, state.then) = (mode, None);
    }

    /// Changes the mode after `calls` more.
    pub fn set_after(&self, calls: u64, mode: Mode) {
        self.state.lock().unwrap().then = Some((calls, mode));
    }

    pub fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    /// Returns the permits that were booked by force.
    pub fn forced(&self) -> u64 {
        self.state.lock().unwrap().forced
    }

    fn next_mode(&self) -> Mode {
        let mut state = self.state.lock().unwrap();
        state.calls += 1;
        match &mut state.then {
            Some((0, mode)) => {
                state.mode = *mode;
                state.then = None;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        match state.mode {
            // As random as a coin, and the same in every run.
            Mode::Half if state.calls.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1 => Mode::Down,
            Mode::Half => Mode::Up,
            mode => mode,
        }
    }
}

impl Flaky {
    async fn run<T>(
        &self,
        _operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.next_mode() {
            Mode::Up => call.await,
            Mode::Down | Mode::Half => Err(StoreError::unavailable("the store is down")),
            Mode::Deaf => {
                let _ = call.await;
                Err(StoreError::timeout("no answer in time"))
            }
            Mode::Lost => Err(StoreError::timeout("no answer in time")),
            Mode::Full => Err(StoreError::full("the store is full")),
            Mode::Invalid => Err(StoreError::invalid("nonsense")),
        }
    }
}

impl Store for Flaky {
    forward_store!(self => &self.inner, through run, except force);

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        let force = async {
            self.state.lock().unwrap().forced += demand.cost();
            self.inner.force(demand).await
        };
        self.run(Operation::Force, force).await
    }
}

pub fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, quota).unwrap()
}

/// Takes `cost` permits of the key "alice".
pub async fn take<S: Store>(store: &S, policy: &Policy, cost: u64) -> Decision {
    store.acquire(&mut [Demand::new(policy, b"alice", cost)]).await.unwrap()
}

/// Takes one permit at a time, until none remains or `most` were taken. Returns how many.
pub async fn drain<S: Store>(store: &S, policy: &Policy, most: u64) -> u64 {
    let mut taken = 0;
    while taken < most && take(store, policy, 1).await.is_allowed() {
        taken += 1;
    }
    taken
}

/// Returns the remaining permits of "alice" in a store.
pub async fn left<S: Store>(store: &S, policy: &Policy) -> u64 {
    store.peek(&mut [Demand::new(policy, b"alice", 0)]).await.unwrap().remaining()
}
