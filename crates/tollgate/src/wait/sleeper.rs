//! Wakes one future at a tick of a clock.

use super::{NoRuntime, parked};
use crate::{Clock, ManualClock, Tick, TimerId};
use pin_project_lite::pin_project;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

#[cfg(feature = "tokio")]
use tokio::time::Sleep;
/// There is no runtime to sleep in.
#[cfg(not(feature = "tokio"))]
type Sleep = std::future::Pending<()>;

pin_project! {
    /// A timer that costs nothing until it is used, and nothing on the heap then.
    ///
    /// On a manual clock it is a timer of the hand. For a task it is a timer of the tokio runtime
    /// that polls it. For a thread it is nothing: that parks until it is due.
    #[derive(Debug)]
    pub(crate) struct Sleeper {
        is_task: bool,
        hand: Option<HandTimer>,
        #[pin]
        sleep: Option<Sleep>,
        // What the tokio timer is set to.
        set_to: Option<Tick>,
    }
}

#[derive(Debug)]
struct HandTimer {
    hand: ManualClock,
    id: TimerId,
    due: Tick,
    waker: Waker,
}

impl Drop for HandTimer {
    fn drop(&mut self) {
        self.hand.cancel(self.id);
    }
}

impl Sleeper {
    /// A timer for a task; without the feature `tokio`, for a thread.
    pub(crate) const ANY: Self =
        Self { is_task: cfg!(feature = "tokio"), hand: None, sleep: None, set_to: None };

    /// Returns a timer for a thread that parks at most until the due tick by itself.
    pub(crate) const fn thread() -> Self {
        Self { is_task: false, hand: None, sleep: None, set_to: None }
    }

    /// Is ready from `due` on; before that the context is woken then.
    pub(crate) fn poll_until(
        self: Pin<&mut Self>,
        clock: &Clock,
        due: Tick,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NoRuntime>> {
        if clock.now() >= due {
            self.disarm();
            return Poll::Ready(Ok(()));
        }
        if let Some(hand) = clock.hand() {
            self.set_hand(hand, due, context.waker());
            // The hand may have moved before the timer was set.
            return if clock.now() >= due { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        #[cfg(feature = "tokio")]
        if self.is_task {
            return self.poll_tokio(clock, due, context);
        }
        Poll::Pending
    }

    /// Forgets what it was set to. A timer of tokio stays registered until it fires or is dropped.
    pub(crate) fn disarm(self: Pin<&mut Self>) {
        *self.project().hand = None;
    }

    fn set_hand(self: Pin<&mut Self>, hand: &ManualClock, due: Tick, waker: &Waker) {
        let slot = self.project().hand;
        if slot.as_ref().is_some_and(|timer| timer.due == due && timer.waker.will_wake(waker)) {
            return;
        }
        *slot = None;
        let (hand, waker) = (hand.clone(), waker.clone());
        let wakes = waker.clone();
        let id = hand.call_at(due, move |_| wakes.wake());
        *slot = Some(HandTimer { hand, id, due, waker });
    }

    #[cfg(feature = "tokio")]
    #[allow(clippy::disallowed_methods, reason = "this is the sleeper")]
    fn poll_tokio(
        self: Pin<&mut Self>,
        clock: &Clock,
        due: Tick,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NoRuntime>> {
        let mut this = self.project();
        loop {
            if *this.set_to != Some(due) {
                if tokio::runtime::Handle::try_current().is_err() {
                    return Poll::Ready(Err(NoRuntime));
                }
                let wait = due.since(clock.now());
                // OVERFLOW: tokio takes what is beyond its horizon for 30 years from now.
                match this.sleep.as_mut().as_pin_mut() {
                    Some(sleep) => {
                        let now = tokio::time::Instant::now();
                        sleep.reset(now.checked_add(wait).unwrap_or(now + FAR));
                    }
                    None => this.sleep.set(Some(tokio::time::sleep(wait))),
                }
                *this.set_to = Some(due);
            }
            let Some(sleep) = this.sleep.as_mut().as_pin_mut() else { return Poll::Pending };
            if sleep.poll(context).is_pending() {
                return Poll::Pending;
            }
            *this.set_to = None;
            if clock.now() >= due {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Parks this thread until `due`.
pub(crate) fn park_until(clock: &Clock, due: Tick) {
    let mut sleeper = pin!(Sleeper::thread());
    parked::block_until(clock, |context| match sleeper.as_mut().poll_until(clock, due, context) {
        Poll::Ready(_) => Ok(()),
        Poll::Pending => Err(Some(due)),
    });
}

/// As far ahead as a timer of tokio is set.
#[cfg(feature = "tokio")]
const FAR: std::time::Duration = std::time::Duration::from_secs(30 * 365 * 86_400);
