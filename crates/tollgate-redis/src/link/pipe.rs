//! One connection that many calls share.
//!
//! A call puts its command into the queue under a short lock and waits for its slot to be done. The
//! task of the connection ([`Io`](super::io::Io)) takes all that is queued, writes it in one go, and
//! hands out the replies, which come in the order of the commands. Each of the two takes the lock once
//! for a batch, and a slot is used again, so a call allocates nothing here.
//!
//! ```text
//!             push             take              reply
//!   Free ------------> Queued ------> Sent ------------> Done ------> Free
//!                        |              |
//!        caller is gone  v              v
//!                    Withdrawn      Abandoned: the reply that comes late is dropped
//!                  (never written)
//! ```

use super::LinkError;
use crate::Reply;
use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// One connection that many calls share.
#[derive(Debug)]
pub(super) struct Pipe {
    shared: Mutex<Shared>,
    /// The most slots.
    bound: usize,
}

#[derive(Debug)]
pub(super) struct Shared {
    phase: Phase,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots whose command is to be written, in this order.
    queue: VecDeque<u32>,
    /// Wakes the task of the connection, if it waits for commands.
    io: Option<Waker>,
}

/// Whether there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first one is being made: calls wait for it.
    First,
    Up,
    Down,
}

#[derive(Debug)]
struct Slot {
    state: State,
    command: Vec<u8>,
    asking: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum State {
    Free,
    Queued,
    Withdrawn,
    Sent,
    Abandoned,
    Done(Result<Reply, LinkError>),
}

/// Why a call was not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Down,
    Full,
}

/// A command and what became of it.
pub(super) type Outcome = (Vec<u8>, Result<Reply, LinkError>);

impl Pipe {
    pub(super) fn new(bound: usize) -> Self {
        let shared = Shared {
            phase: Phase::First,
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            io: None,
        };
        Self { shared: Mutex::new(shared), bound }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command, which is taken out of `command`. The waker is called when it is done. The
    /// future must be polled at once, in the same context.
    pub(super) fn push(
        &self,
        command: &mut Vec<u8>,
        asking: bool,
        waker: &Waker,
    ) -> Result<Exchange<'_>, Refusal> {
        self.push_within(self.bound, command, asking, waker)
    }

    /// Queues a probe, for which one slot beyond the bound is reserved.
    pub(super) fn push_probe(
        &self,
        command: &mut Vec<u8>,
        waker: &Waker,
    ) -> Result<Exchange<'_>, Refusal> {
        self.push_within(self.bound + 1, command, false, waker)
    }

    fn push_within(
        &self,
        bound: usize,
        command: &mut Vec<u8>,
        asking: bool,
        waker: &Waker,
    ) -> Result<Exchange<'_>, Refusal> {
        let mut shared = self.lock();
        if shared.phase == Phase::Down {
            return Err(Refusal::Down);
        }
        let slot =
            Slot { state: State::Queued, command: Vec::new(), asking, waker: Some(waker.clone()) };
        if shared.slots.len() - shared.free.len() >= bound {
            return Err(Refusal::Full);
        }
        let at = match shared.free.pop() {
            Some(at) => {
                shared.slots[at as usize] = slot;
                at
            }
            None => {
                shared.slots.push(slot);
                // OVERFLOW: the bound is at most a million.
                (shared.slots.len() - 1) as u32
            }
        };
        shared.slots[at as usize].command = mem::take(command);
        shared.queue.push_back(at);
        let io = shared.io.take();
        drop(shared);
        if let Some(io) = io {
            io.wake();
        }
        Ok(Exchange { pipe: self, at, is_fresh: true, is_over: false })
    }

    /// Returns how many slots are in use.
    pub(super) fn in_flight(&self) -> usize {
        let shared = self.lock();
        shared.slots.len() - shared.free.len()
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase
    }

    pub(super) fn opened(&self) {
        self.lock().phase = Phase::Up;
    }

    /// Refuses calls from now on, and fails those that wait in the queue: they were not sent.
    pub(super) fn refuse(&self, text: &str) {
        let mut wakers = Vec::new();
        {
            let mut shared = self.lock();
            shared.phase = Phase::Down;
            shared.io = None;
            for at in mem::take(&mut shared.queue) {
                wakers.extend(shared.finish(at, || Err(LinkError::unavailable(text))));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Gives every queued command to `write`, until that says it has enough. Returns whether there
    /// were any; if not, `io` is called when there are.
    pub(super) fn take(&self, io: &Waker, mut write: impl FnMut(Taken<'_>) -> bool) -> bool {
        let shared = &mut *self.lock();
        let mut took = false;
        while let Some(at) = shared.queue.front().copied() {
            let slot = &mut shared.slots[at as usize];
            if !matches!(slot.state, State::Withdrawn) {
                if !write(Taken { at, command: &slot.command, asking: slot.asking }) {
                    return took;
                }
                slot.state = State::Sent;
                took = true;
            } else {
                slot.state = State::Free;
                shared.free.push(at);
            }
            shared.queue.pop_front();
        }
        if !shared.io.as_ref().is_some_and(|known| known.will_wake(io)) {
            shared.io = Some(io.clone());
        }
        took
    }

    /// Tells whether commands wait to be taken.
    pub(super) fn has_queued(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// Finishes slots, and puts those to be woken into `wakers`.
    pub(super) fn finish(
        &self,
        results: impl Iterator<Item = (u32, Result<Reply, LinkError>)>,
        wakers: &mut Vec<Waker>,
    ) {
        let mut shared = self.lock();
        for (at, result) in results {
            wakers.extend(shared.finish(at, || result));
        }
    }
}

/// A command on its way to the connection.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) at: u32,
    pub(super) command: &'a [u8],
    pub(super) asking: bool,
}

impl Shared {
    /// Stores the result for the caller of a slot, or frees the slot if the caller is gone. Returns
    /// the waker of the caller.
    fn finish(
        &mut self,
        at: u32,
        result: impl FnOnce() -> Result<Reply, LinkError>,
    ) -> Option<Waker> {
        let slot = self.slots.get_mut(at as usize)?;
        match slot.state {
            State::Queued | State::Sent => {
                slot.state = State::Done(result());
                slot.waker.take()
            }
            State::Withdrawn | State::Abandoned => {
                self.release(at);
                None
            }
            State::Free | State::Done(_) => None,
        }
    }

    fn release(&mut self, at: u32) -> Vec<u8> {
        let slot = &mut self.slots[at as usize];
        slot.state = State::Free;
        slot.waker = None;
        self.free.push(at);
        mem::take(&mut slot.command)
    }
}

/// A call that waits for its reply. Dropping it withdraws the command, if it was not sent yet.
#[derive(Debug)]
#[must_use]
pub(super) struct Exchange<'a> {
    pipe: &'a Pipe,
    at: u32,
    /// The waker was given when it was queued, and the first poll comes at once after that.
    is_fresh: bool,
    is_over: bool,
}

impl Exchange<'_> {
    /// Ends it. Returns whether the command was sent.
    pub(super) fn give_up(&mut self) -> bool {
        if mem::replace(&mut self.is_over, true) {
            return false;
        }
        let mut guard = self.pipe.lock();
        let shared = &mut *guard;
        let slot = &mut shared.slots[self.at as usize];
        match slot.state {
            State::Queued => {
                slot.state = State::Withdrawn;
                slot.command = Vec::new();
                slot.waker = None;
                // Calls mostly give up in the order they came, so this keeps the queue short while a
                // connection takes nothing.
                while let Some(at) = shared.queue.front().copied()
                    && matches!(shared.slots[at as usize].state, State::Withdrawn)
                {
                    shared.queue.pop_front();
                    shared.release(at);
                }
                false
            }
            State::Sent => {
                slot.state = State::Abandoned;
                slot.command = Vec::new();
                slot.waker = None;
                true
            }
            State::Done(_) => {
                shared.release(self.at);
                true
            }
            State::Free | State::Withdrawn | State::Abandoned => false,
        }
    }
}

impl Future for Exchange<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if mem::take(&mut self.is_fresh) {
            return Poll::Pending;
        }
        let at = self.at;
        let mut shared = self.pipe.lock();
        let slot = &mut shared.slots[at as usize];
        if let State::Done(result) = &mut slot.state {
            let result = mem::replace(result, Ok(Reply::Nil));
            let command = shared.release(at);
            drop(shared);
            self.is_over = true;
            return Poll::Ready((command, result));
        }
        if !slot.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            slot.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
