//! A request without a final decision yet.

use super::{crowd::Place, gate::Gate, pass::Pass};
use crate::timer::{self, NoTimers};
use std::{
    future::{Pending, pending},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::Timeout;
use tollgate::{Tick, observe::Verb, store::StoreError};

/// A request that waits for the store's decision, or until it may try again.
///
/// A request that is dropped during the store call may have been charged by then, and never runs.
/// So the call runs to its end, and the charge is given back. The same happens if the store takes
/// too long.
pub(super) struct Turn {
    gate: Arc<Gate>,
    /// No request waits longer than this.
    until: Tick,
    /// Its place in the wait queue.
    place: Option<Place>,
    step: Step,
}

enum Step {
    Asks(Question),
    Sleeps {
        sleep: Sleep,
        pass: Pass,
    },
    /// There are no timers for the wait.
    Stays {
        pass: Pass,
    },
    Over,
}

/// A store call under way.
struct Question {
    asking: Pin<Box<dyn Future<Output = Pass> + Send>>,
    was_polled: bool,
    /// None without timers: then the call has no time limit.
    timeout: Option<Sleep>,
    /// The state of the request if there is no answer.
    unknown: Pass,
}

type Sleep = Pin<Box<Timeout<Pending<()>>>>;

impl Turn {
    /// Starts a store call.
    pub(super) fn asks(gate: &Arc<Gate>, pass: Pass) -> Self {
        let until = gate.backend.clock().now().saturating_add(gate.max_wait);
        let step = Step::Asks(Question::new(gate, pass));
        Self { gate: Arc::clone(gate), until, place: None, step }
    }

    /// Waits before the next try.
    pub(super) fn sleeps(gate: &Arc<Gate>, pass: Pass, (place, wait): (Place, Duration)) -> Self {
        let until = pass.now.saturating_add(gate.max_wait);
        Self { gate: Arc::clone(gate), until, place: Some(place), step: Step::sleep(pass, wait) }
    }

    const fn take(&mut self) -> Step {
        std::mem::replace(&mut self.step, Step::Over)
    }

    /// Becomes ready when the request passes, or may not wait any longer.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Pass> {
        loop {
            match &mut self.step {
                Step::Asks(question) => {
                    let pass = match ready!(question.poll(context)) {
                        Some(pass) => pass,
                        None => return Poll::Ready(self.give_up()),
                    };
                    self.step = match self.wait(&pass) {
                        Some(wait) => Step::sleep(pass, wait),
                        None => Step::Stays { pass },
                    };
                }
                Step::Sleeps { sleep, .. } => {
                    let _over = ready!(sleep.as_mut().poll(context));
                    if let Step::Sleeps { pass, .. } = self.take() {
                        self.step = Step::Asks(Question::new(&self.gate, pass));
                    }
                }
                Step::Stays { .. } => {
                    if let Step::Stays { pass } = self.take() {
                        return Poll::Ready(pass);
                    }
                }
                Step::Over => {
                    debug_assert!(false, "polled after it was ready");
                    return Poll::Pending;
                }
            }
        }
    }

    /// Returns how long a refused request waits before it tries again, if it may.
    fn wait(&mut self, pass: &Pass) -> Option<Duration> {
        let wait = match &self.place {
            Some(_) => self.gate.wait(pass)?,
            None => {
                let (place, wait) = self.gate.join(pass)?;
                self.place = Some(place);
                wait
            }
        };
        (pass.now.saturating_add(wait) <= self.until).then_some(wait)
    }

    /// Gives up a store call that takes too long.
    fn give_up(&mut self) -> Pass {
        let Step::Asks(question) = self.take() else { return Pass::new(Vec::new(), Verb::Acquire) };
        let mut pass = question.go_on(&self.gate);
        let error = StoreError::timeout(format!("no reply within {:?}", self.gate.store_timeout));
        pass.now = self.gate.backend.clock().now();
        self.gate.without_answer(&mut pass, &error);
        pass
    }
}

impl Question {
    fn new(gate: &Arc<Gate>, mut pass: Pass) -> Self {
        let unknown = pass.without_answer();
        let timeout = match gate.backend.is_memory() {
            true => None,
            false => timer::timeout(gate.store_timeout, pending()).ok().map(Box::pin),
        };
        let gate = Arc::clone(gate);
        let asking = Box::pin(async move {
            gate.ask(&mut pass).await;
            pass
        });
        Self { asking, was_polled: false, timeout, unknown }
    }

    /// Becomes ready when there is an answer, or the time is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Pass>> {
        self.was_polled = true;
        if let Poll::Ready(pass) = self.asking.as_mut().poll(context) {
            return Poll::Ready(Some(pass));
        }
        match &mut self.timeout {
            Some(timeout) => timeout.as_mut().poll(context).map(|_| None),
            None => Poll::Pending,
        }
    }

    /// Runs the call to its end in a task of its own, and gives back its charge. Returns the state
    /// of the request without an answer.
    fn go_on(self, gate: &Arc<Gate>) -> Pass {
        let Self { asking, was_polled, unknown, .. } = self;
        if was_polled
            && let Some(behind) = Behind::new(gate)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            // Bounds the wait for a store that never answers.
            && let Ok(answer) = timer::timeout(gate.life, asking)
        {
            drop(runtime.spawn(async move {
                if let Ok(pass) = answer.await {
                    let _beside = behind.0.give_back(pass);
                }
            }));
        }
        unknown
    }
}

/// A store call whose request is gone. At most 1024 such calls are followed; the charges of others
/// stay spent.
struct Behind(Arc<Gate>);

impl Behind {
    const MOST: usize = 1024;

    fn new(gate: &Arc<Gate>) -> Option<Self> {
        let behind = Self(Arc::clone(gate));
        // ORDERING: Relaxed. A count that publishes nothing.
        (gate.left_behind.fetch_add(1, Relaxed) < Self::MOST).then_some(behind)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // ORDERING: Relaxed, as above.
        self.0.left_behind.fetch_sub(1, Relaxed);
    }
}

impl Step {
    fn sleep(mut pass: Pass, wait: Duration) -> Self {
        pass.verb = Verb::Acquire;
        match timer::timeout(wait, pending()) {
            Ok(sleep) => Self::Sleeps { sleep: Box::pin(sleep), pass },
            Err(NoTimers) => Self::Stays { pass },
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Step::Asks(question) = self.take() {
            let _unknown = question.go_on(&self.gate);
        }
    }
}
