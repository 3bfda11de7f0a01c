//! Waiting for a slot: the future, and its twin for plain threads.

use super::{Overflow, Pacer, error::Why};
use crate::{
    NoRuntime, Tick,
    wait::{Sleeper, block_until},
};
use pin_project_lite::pin_project;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

/// A place in the queue. Dropped before its turn, it is given back.
#[derive(Debug)]
struct Place {
    pacer: Pacer,
    cost: u64,
    at: Option<Tick>,
}

impl Place {
    /// Takes a slot, or holds on to it. Whoever drops the queue wakes those who do.
    fn keep(&mut self, waker: &Waker) -> Result<Tick, Overflow> {
        let (engine, waker) = (&self.pacer.engine, waker.clone());
        let kept = match self.at {
            None => engine.event(|pace, now| {
                let at = pace.tell(now, self.cost)?;
                Ok((at, if at > now { pace.watch(at, waker) } else { Some(waker) }))
            }),
            Some(at) if engine.driver().clock().now() >= at => return Ok(at),
            Some(at) => engine.amend(|pace, _| Ok((at, pace.watch(at, waker)))),
        };
        let kept = kept.unwrap_or_else(|| Err(self.pacer.refusal(self.cost, Why::Stopped)));
        // What was replaced is dropped here, where no lock is held.
        self.at = kept.as_ref().ok().map(|(at, _)| *at);
        kept.map(|(at, _)| at)
    }

    /// Takes the place out of its turn, so that dropping it gives nothing back.
    fn served(&mut self, at: Tick) {
        self.at = None;
        drop(self.pacer.engine.amend(|pace, _| pace.unwatch(at)));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(at) = self.at else { return };
        drop(self.pacer.engine.amend(|pace, now| {
            pace.cancel_slot(now, at);
            pace.unwatch(at)
        }));
    }
}

pin_project! {
    /// Waits for a slot; made by [`Pacer::wait`].
    ///
    /// Await it in a task (feature `tokio`), or [`block`](Self::block) a thread.
    ///
    /// It takes its slot when it is polled first, and is ready with the slot's tick once that has
    /// come. Once it was ready, another poll asks anew.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: its slot is given back, as by
    /// [`Slot::cancel`](super::Slot::cancel).
    #[derive(Debug)]
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct PacerWait {
        place: Place,
        #[pin]
        sleeper: Sleeper,
    }
}

impl PacerWait {
    /// Waits on this thread, and returns when the slot was.
    ///
    /// # Errors
    ///
    /// As [`Pacer::wait`].
    pub fn block(mut self) -> Result<Tick, Overflow> {
        self.sleeper = Sleeper::thread();
        let clock = self.place.pacer.clock().clone();
        let mut this = pin!(self);
        block_until(&clock, |context| match this.as_mut().poll_slot(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(this.place.at),
        })
    }

    fn poll_slot(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Tick, Overflow>> {
        let mut this = self.project();
        let slot = match this.place.keep(context.waker()) {
            Ok(slot) => slot,
            Err(overflow) => return Poll::Ready(Err(overflow)),
        };
        let Place { pacer, cost, .. } = &mut *this.place;
        let clock = pacer.clock();
        match this.sleeper.as_mut().poll_until(clock, slot, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                this.place.served(slot);
                Poll::Ready(Ok(slot))
            }
            Poll::Ready(Err(NoRuntime)) => Poll::Ready(Err(pacer.refusal(*cost, Why::NoRuntime))),
        }
    }
}

impl Pacer {
    /// Waits for the next slot.
    ///
    /// # Errors
    ///
    /// [`Overflow`], at once, if the queue is full; also if the pacer is stopped, before or while
    /// this waits, or if this is polled outside a tokio runtime with its timers enabled.
    pub fn wait(&self) -> PacerWait {
        self.wait_n(1)
    }

    /// Waits for the first of the next `cost` slots.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and if the cost can never fit.
    pub fn wait_n(&self, cost: u64) -> PacerWait {
        PacerWait { place: Place { pacer: self.clone(), cost, at: None }, sleeper: Sleeper::ANY }
    }
}

#[cfg(feature = "tokio")]
impl Future for PacerWait {
    type Output = Result<Tick, Overflow>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_slot(context)
    }
}
