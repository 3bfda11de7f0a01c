//! Waiting to be admitted: in a task, or on a thread.

use super::{Admission, AdmissionError, AdmissionPermit};
use crate::{
    Acquire, NoRuntime, Priority, Refused, Tick,
    pace::Booked,
    wait::{Sleeper, block_for, guarded},
};
use pin_project_lite::pin_project;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

pin_project! {
    /// Waits for the rate and then for a slot; made by [`Admission::acquire`].
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Self::block) a thread.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time. The permits of the rate go back, as far as time has not refilled
    /// them already, and the place in the queue goes to the next caller (`tests/flow/admission.rs`).
    #[derive(Debug)]
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct Admit {
        admission: Admission,
        cost: u64,
        max_wait: Duration,
        priority: Priority,
        stage: Stage,
        booked: Booked,
        #[pin]
        sleeper: Sleeper,
        is_task: bool,
    }
}

#[derive(Debug)]
enum Stage {
    Start,
    /// Waits for the rate that it booked at this tick of the limiter's clock.
    Rate(Tick),
    Slot(Acquire),
}

impl Admit {
    pub(super) const fn new(admission: Admission, cost: u64, max_wait: Duration) -> Self {
        Self {
            admission,
            cost,
            max_wait,
            priority: Priority::NORMAL,
            stage: Stage::Start,
            booked: Booked::NONE,
            sleeper: Sleeper::ANY,
            is_task: true,
        }
    }

    /// Sets how urgent the call is in the queue of the concurrency limit. The default is
    /// [`Priority::NORMAL`].
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Waits on this thread. In async code it would block the runtime.
    ///
    /// # Errors
    ///
    /// As [`Admission::acquire`].
    pub fn block(mut self) -> Result<AdmissionPermit, AdmissionError> {
        (self.sleeper, self.is_task) = (Sleeper::thread(), false);
        let mut this = pin!(self);
        block_for(|context| match this.as_mut().poll_admission(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(this.next_look()),
        })
    }

    /// Returns for how long a thread may sleep unless it is woken.
    fn next_look(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Start => None,
            Stage::Rate(_) => {
                let clock = self.admission.rate.as_ref()?.clock();
                // On a manual clock, the timer of the sleeper wakes the thread.
                let act_at = self.booked.get().filter(|_| clock.hand().is_none())?.act_at();
                Some(act_at.since(clock.now()))
            }
            Stage::Slot(acquire) => acquire.next_look(),
        }
    }

    /// Once it was ready, another poll asks anew.
    fn poll_admission(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<AdmissionPermit, AdmissionError>> {
        let mut this = self.project();
        let admission = &*this.admission;
        loop {
            match this.stage {
                Stage::Start => {
                    admission.check_breaker()?;
                    let began = admission.rate.as_ref().map_or(Tick::ZERO, crate::Limiter::now);
                    *this.booked = admission.book(*this.cost, *this.max_wait)?;
                    *this.stage = Stage::Rate(began);
                }
                Stage::Rate(began) => {
                    let mut left = *this.max_wait;
                    if let (Some(rate), Some(booked)) = (&admission.rate, this.booked.get()) {
                        let (decision, act_at) = (booked.decision(), booked.act_at());
                        let sleeper = this.sleeper.as_mut();
                        // Tokio panics if its runtime has no timers.
                        match guarded(|| sleeper.poll_until(rate.clock(), act_at, context)) {
                            Ok(Poll::Pending) => return Poll::Pending,
                            Ok(Poll::Ready(Ok(()))) => {}
                            Ok(Poll::Ready(Err(NoRuntime))) | Err(_) => {
                                drop(std::mem::take(this.booked));
                                *this.stage = Stage::Start;
                                return Poll::Ready(Err(Refused::NoRuntime(decision).into()));
                            }
                        }
                        left = left.saturating_sub(rate.now().since(*began));
                    }
                    let Some(limit) = &admission.concurrency else {
                        *this.stage = Stage::Start;
                        return Poll::Ready(admission.pass(std::mem::take(this.booked), None));
                    };
                    let mut acquire = limit.acquire().within(left).priority(*this.priority);
                    if !*this.is_task {
                        acquire = acquire.on_thread();
                    }
                    *this.stage = Stage::Slot(acquire);
                }
                Stage::Slot(acquire) => {
                    let Poll::Ready(answer) = Pin::new(acquire).poll(context) else {
                        return Poll::Pending;
                    };
                    *this.stage = Stage::Start;
                    let booked = std::mem::take(this.booked);
                    return Poll::Ready(admission.pass(booked, Some(answer?)));
                }
            }
        }
    }
}

#[cfg(feature = "tokio")]
impl Future for Admit {
    type Output = Result<AdmissionPermit, AdmissionError>;

    /// Once it was ready, another poll asks anew.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_admission(context)
    }
}
