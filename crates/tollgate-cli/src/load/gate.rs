//! Wakes connections when their next request is due.
//!
//! Timers of the runtime tick once a millisecond, which would be most of the latency of a fast
//! server. So each worker of an open loop has a thread that parks until the next due time, far more
//! exactly, and then nudges one task of the worker; that task wakes those who have something to send.

use super::{clock::Clock, schedule::Schedule, worker::Halt};
use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Poll, Waker},
    thread,
    time::Duration,
};
use tokio::sync::Notify;

/// The shortest nap: waking more often costs more than it tells.
const NAP_NS: u64 = 50_000;

/// The longest nap, so that the end of a run is seen soon.
const LONG_NAP_NS: u64 = 50_000_000;

/// Those of one connection that wait for their next request, in order.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    waiting: Mutex<VecDeque<Waker>>,
}

impl Gate {
    /// Asks to be woken; asking twice is the same as once.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push_back(waker.clone());
        }
    }

    /// Waits until a time. Only for tasks that wait for nothing else.
    pub(crate) async fn until(&self, due_ns: u64, clock: Clock, halt: &Halt) {
        poll_fn(|cx| {
            if clock.now_ns() >= due_ns || halt.is_set() {
                return Poll::Ready(());
            }
            self.wait(cx.waker());
            Poll::Pending
        })
        .await;
    }

    fn open(&self) {
        let first = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(waker) = first {
            waker.wake();
        }
    }

    fn open_wide(&self) {
        let all = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().for_each(Waker::wake);
    }
}

/// The gates of one worker, by the number of the connection; `None` for those of other workers.
pub(crate) type Gates = Vec<Option<Arc<Gate>>>;

/// Opens the gates of a worker, each when its request is due. Never returns.
pub(crate) async fn keep(gates: Gates, schedule: Schedule, clock: Clock, halt: Arc<Halt>) {
    let nudge = Arc::new(Notify::new());
    let weak = Arc::downgrade(&nudge);
    let thread = thread::Builder::new().name("pacer".into());
    let started = thread.spawn(move || pace(&weak, &schedule, clock));
    let mut opened = 0;
    loop {
        if started.is_ok() {
            nudge.notified().await;
        } else {
            // No thread to be had: busy, but in time.
            tokio::task::yield_now().await;
        }
        let due = schedule.due_count(clock.now_ns());
        if halt.is_set() || due.saturating_sub(opened) >= schedule.connections {
            gates.iter().flatten().for_each(|gate| gate.open_wide());
        } else {
            for number in opened..due {
                let connection = (number % schedule.connections) as usize;
                if let Some(Some(gate)) = gates.get(connection) {
                    gate.open();
                }
            }
        }
        opened = due;
    }
}

/// Notifies whenever a request is due, until no receiver is left.
fn pace(nudge: &Weak<Notify>, schedule: &Schedule, clock: Clock) {
    loop {
        let now = clock.now_ns();
        let next = schedule.due_ns(schedule.due_count(now));
        let nap = next.saturating_sub(now).clamp(NAP_NS, LONG_NAP_NS);
        thread::park_timeout(Duration::from_nanos(nap));
        match nudge.upgrade() {
            Some(nudge) => nudge.notify_one(),
            None => return,
        }
    }
}
