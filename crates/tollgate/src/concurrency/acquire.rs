//! Waiting: the future, and its twin for plain threads.

use super::{Full, Permit, permit::Place};
use crate::sync::thread::{self, Thread};
use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

/// Waits its turn for permits; made by [`Concurrency::acquire`](super::Concurrency::acquire).
///
/// It needs no runtime: anything that polls it and honours its waker will do. It takes its place in
/// the queue when it is polled first, and permits may be set aside for it before it is polled
/// again.
///
/// # Cancel safety
///
/// It may be dropped at any time. Its place goes to the next, and permits that were set aside for
/// it go back, which wakes the next (`tests/limiting/concurrency.rs`:
/// `dropping_a_future_anywhere_conserves_everything`).
#[must_use = "a future does nothing until it is polled or awaited"]
pub struct Acquire {
    place: Place,
    cost: u64,
    /// The place in the queue, while it waits.
    ticket: Option<u64>,
}

impl Acquire {
    pub(super) const fn new(place: Place, cost: u64) -> Self {
        Self { place, cost, ticket: None }
    }

    /// Waits on this thread.
    pub(super) fn block(self) -> Result<Permit, Full> {
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(self);
        loop {
            if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
                return answer;
            }
            // A wake-up since the poll has left its token, so this returns at once.
            thread::park();
        }
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Full>;

    /// Once it was ready, another poll asks anew.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(ticket) = this.ticket else {
            return match this.place.enter(this.cost, context.waker()) {
                Ok(answer) => Poll::Ready(answer),
                Err(ticket) => {
                    this.ticket = Some(ticket);
                    Poll::Pending
                }
            };
        };
        let answer = this.place.fetch(ticket, this.cost, context.waker());
        if answer.is_ready() {
            this.ticket = None;
        }
        answer
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.place.leave(ticket);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("cost", &self.cost)
            .field("waits", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}

/// A thread that waits.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
