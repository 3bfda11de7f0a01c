//! A request whose answer is not there yet.

use super::{gate::Gate, pass::Pass};
use crate::timer::{self, NoTimers};
use std::{
    future::{Pending, pending},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::Timeout;
use tollgate::{Tick, watch::Verb};

/// The store is asked, or the request waits until it may ask again.
///
/// Whoever leaves while the store is asked may have been charged by then, and never runs: the answer
/// is heard to its end, and what it took is given back.
pub(super) struct Turn {
    gate: Arc<Gate>,
    /// Nobody waits for longer.
    until: Tick,
    step: Step,
}

enum Step {
    Asks {
        asking: Asking,
        was_polled: bool,
    },
    Sleeps {
        sleep: Pin<Box<Timeout<Pending<()>>>>,
        pass: Pass,
    },
    /// There are no timers to wait by.
    Stays {
        pass: Pass,
    },
    Over,
}

type Asking = Pin<Box<dyn Future<Output = Pass> + Send>>;

impl Turn {
    /// Asks the store.
    pub(super) fn asks(gate: &Arc<Gate>, pass: Pass) -> Self {
        let until = gate.backend.clock().now().saturating_add(gate.max_wait);
        Self { gate: Arc::clone(gate), until, step: Step::ask(gate, pass) }
    }

    /// Waits before it asks again.
    pub(super) fn sleeps(gate: &Arc<Gate>, pass: Pass, wait: Duration) -> Self {
        let until = pass.now.saturating_add(gate.max_wait);
        Self { gate: Arc::clone(gate), until, step: Step::sleep(pass, wait) }
    }

    const fn take(&mut self) -> Step {
        std::mem::replace(&mut self.step, Step::Over)
    }

    /// Is ready when the request passes, or may not wait any longer.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Pass> {
        loop {
            match &mut self.step {
                Step::Asks { asking, was_polled } => {
                    *was_polled = true;
                    let pass = ready!(asking.as_mut().poll(context));
                    let wait = self.gate.wait(&pass);
                    let wait = wait.filter(|wait| pass.now.saturating_add(*wait) <= self.until);
                    let Some(wait) = wait else {
                        self.step = Step::Over;
                        return Poll::Ready(pass);
                    };
                    self.step = Step::sleep(pass, wait);
                }
                Step::Sleeps { sleep, .. } => {
                    let _over = ready!(sleep.as_mut().poll(context));
                    if let Step::Sleeps { pass, .. } = self.take() {
                        self.step = Step::ask(&self.gate, pass);
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
}

impl Step {
    fn ask(gate: &Arc<Gate>, mut pass: Pass) -> Self {
        let gate = Arc::clone(gate);
        let asking = Box::pin(async move {
            gate.ask(&mut pass).await;
            pass
        });
        Self::Asks { asking, was_polled: false }
    }

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
        if let Step::Asks { asking, was_polled: true } = self.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let gate = Arc::clone(&self.gate);
            drop(runtime.spawn(async move { gate.give_back(asking.await) }));
        }
    }
}
