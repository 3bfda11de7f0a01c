//! The task that serves a queue of tasks: one timer, for the head.
//!
//! It lives while somebody waits and a second longer, so that a queue that fills and empties all
//! the time starts no task each time. If its runtime shuts down, those who wait elsewhere are woken
//! and start another.

use super::super::line::{Answer, Driving, Line};
use crate::{
    Limiter, Refused, Tick,
    wait::{Sleeper, Wakes},
};
use std::{
    pin::pin,
    task::{Poll, Waker},
    time::Duration,
};
use tokio::runtime::Handle;

/// How long the task outlives the queue.
const LINGER: Duration = Duration::from_secs(1);

/// Tells whether somebody serves the queue, or could be started here.
pub(super) fn can_start(limiter: &Limiter, line: &Line) -> bool {
    limiter.shared.clock.hand().is_some()
        || line.alarm.driver.is_some()
        || Handle::try_current().is_ok()
}

/// Starts the task in this runtime.
pub(super) fn start(limiter: &Limiter) {
    let guard = Guard { limiter: limiter.clone(), has_ended: false };
    // Without a runtime the guard is dropped, and whoever waits tries again when polled.
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(drive(guard)));
    }
}

async fn drive(mut guard: Guard) {
    let limiter = guard.limiter.clone();
    let clock = &limiter.shared.clock;
    let mut sleeper = pin!(Sleeper::task());
    let mut idle_until = None;
    std::future::poll_fn(|context| {
        loop {
            let target = limiter.drive(context.waker());
            let until = match target {
                Some(target) => {
                    idle_until = None;
                    target
                }
                None => *idle_until.get_or_insert_with(|| clock.now().saturating_add(LINGER)),
            };
            if sleeper.as_mut().poll_until(clock, until, context).is_pending() {
                return Poll::Pending;
            }
            if target.is_none() && limiter.dismiss() {
                guard.has_ended = true;
                return Poll::Ready(());
            }
        }
    })
    .await;
}

impl Limiter {
    /// Serves who is due, and returns when to come again.
    fn drive(&self, waker: &Waker) -> Option<Tick> {
        let (mut book, mut wakes) = (self.book(), Wakes::new());
        // While it is awake nobody needs to wake it.
        let awake = Driving { waker: None, until: Some(Tick::ZERO) };
        let old = book.line.as_mut().and_then(|line| line.alarm.driver.replace(awake));
        let target = self.settle(&mut book, self.now(), &mut wakes);
        if let Some(line) = &mut book.line {
            let waker = Some(waker.clone());
            line.alarm.driver = Some(Driving { waker, until: target });
        }
        drop(book);
        wakes.fire();
        drop(old);
        target
    }

    /// Ends the task if nobody waits.
    fn dismiss(&self) -> bool {
        let mut book = self.book();
        let Some(line) = &mut book.line else { return true };
        let is_over = line.queue.is_empty();
        let old = if is_over { line.alarm.driver.take() } else { None };
        drop(book);
        drop(old);
        is_over
    }
}

/// Sees that a task that is dropped, with its runtime or by a panic, is missed.
struct Guard {
    limiter: Limiter,
    has_ended: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (mut book, mut wakes) = (self.limiter.book(), Wakes::new());
        let Some(line) = &mut book.line else { return };
        let old = line.alarm.driver.take();
        let has_panicked = std::thread::panicking();
        let decision = self.limiter.level_at(self.limiter.now());
        let mut costs = Vec::new();
        let mut next = line.queue.first();
        while let Some(ticket) = next {
            next = line.queue.after(ticket);
            if has_panicked {
                // The runtime has no timers: nobody could be woken.
                costs.extend(line.queue.wish(ticket).map(|(cost, _)| cost));
                let refused = Answer::Refused(Refused::NoRuntime(decision));
                wakes.push(line.queue.answer(ticket, refused));
            } else {
                wakes.push(line.queue.waker(ticket).cloned());
            }
        }
        let now = self.limiter.now();
        costs.into_iter().for_each(|cost| self.limiter.unbook(&mut book, now, cost));
        drop(book);
        wakes.fire();
        drop(old);
    }
}
