//! Waiting for a slot: the future, and its twin for plain threads.

use super::{Overflow, Pacer, error::OverflowKind};
use crate::{
    NoRuntime, Tick,
    wait::{Sleeper, block_until},
};
use pin_project_lite::pin_project;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

/// The slot of a caller that waits. Dropped before its time, it is given back.
#[derive(Debug)]
struct WaitingSlot {
    pacer: Pacer,
    cost: u64,
    at: Option<Tick>,
}

impl WaitingSlot {
    /// Takes a slot, or keeps it. A stop that drops the queue wakes its waker.
    fn keep(&mut self, waker: &Waker) -> Result<Tick, Overflow> {
        let (engine, waker) = (&self.pacer.engine, waker.clone());
        let kept = match self.at {
            None => engine.event(|machine, now| {
                let at = machine.reserve(now, self.cost)?;
                Ok((at, if at > now { machine.set_waker(at, waker) } else { Some(waker) }))
            }),
            Some(at) if engine.driver().clock().now() >= at => return Ok(at),
            Some(at) => engine.amend(|machine, _| Ok((at, machine.set_waker(at, waker)))),
        };
        let kept =
            kept.unwrap_or_else(|| Err(self.pacer.refusal(self.cost, OverflowKind::Stopped)));
        // A replaced waker is dropped here, where no lock is held.
        self.at = kept.as_ref().ok().map(|(at, _)| *at);
        kept.map(|(at, _)| at)
    }

    /// Marks the slot as used, so that dropping it gives nothing back.
    fn served(&mut self, at: Tick) {
        self.at = None;
        drop(self.pacer.engine.amend(|machine, _| machine.remove_waker(at)));
    }
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        let Some(at) = self.at else { return };
        drop(self.pacer.engine.amend(|machine, now| {
            machine.cancel_slot(now, at);
            machine.remove_waker(at)
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
        waiting: WaitingSlot,
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
        let clock = self.waiting.pacer.clock().clone();
        let mut this = pin!(self);
        block_until(&clock, |context| match this.as_mut().poll_slot(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(this.waiting.at),
        })
    }

    fn poll_slot(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Tick, Overflow>> {
        let mut this = self.project();
        let slot = match this.waiting.keep(context.waker()) {
            Ok(slot) => slot,
            Err(overflow) => return Poll::Ready(Err(overflow)),
        };
        let WaitingSlot { pacer, cost, .. } = &mut *this.waiting;
        let clock = pacer.clock();
        match this.sleeper.as_mut().poll_until(clock, slot, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                this.waiting.served(slot);
                Poll::Ready(Ok(slot))
            }
            Poll::Ready(Err(NoRuntime)) => {
                Poll::Ready(Err(pacer.refusal(*cost, OverflowKind::NoRuntime)))
            }
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
        PacerWait {
            waiting: WaitingSlot { pacer: self.clone(), cost, at: None },
            sleeper: Sleeper::ANY,
        }
    }
}

#[cfg(feature = "tokio")]
impl Future for PacerWait {
    type Output = Result<Tick, Overflow>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_slot(context)
    }
}
