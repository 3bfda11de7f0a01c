//! Waiting callers, in the order of service, with their deadlines: a pure queue.
//!
//! The idea: a slab of slots. Those of callers who wait are on a list for each priority, in the order in which they are
//! served. A slot that has a deadline is also in a heap of deadlines. All of it lives in vectors
//! that only grow to the largest crowd so far, so a queue that is warm allocates nothing.
//!
//! Cost: O(1), and O(log w) among w deadlines. No clock, no lock, and wakers are only handed over:
//! the host of a queue fires and drops them where no lock is held.

use super::DeadlineHeap;
use crate::{Priority, Tick};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

/// Which of the waiters of one priority the queue serves first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// What a caller waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    /// [`Tick::MAX`] if there is none.
    pub(crate) deadline: Tick,
    /// When the caller came.
    pub(crate) since: Tick,
    /// A task needs a timer; a thread looks at the clock itself.
    pub(crate) is_task: bool,
}

impl Request {
    /// Returns the longest wait from `now` on.
    pub(crate) fn max_wait(&self, now: Tick) -> Duration {
        match self.deadline {
            Tick::MAX => Duration::MAX,
            deadline => deadline.since(now),
        }
    }
}

/// A place in the queue, until its owner fetches the answer or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    index: u32,
    /// Tells the owners of one slot apart.
    generation: u32,
}

/// The queue; `A` is an answer.
#[derive(Debug)]
pub(crate) struct Queue<A> {
    order: Order,
    slots: Vec<Slot<A>>,
    /// The first free slot; the others follow by `next`.
    free: u32,
    /// By priority.
    waiting: [List; Priority::LEVELS],
    /// A bit for each list that is not empty.
    levels: u8,
    /// How many callers have an answer and have not fetched it.
    answered: usize,
    /// Slots by their deadlines. Among equal deadlines the first is the one that would be served first:
    /// when that one is refused, the others may still pass.
    deadlines: DeadlineHeap,
    len: usize,
    /// Sum of the costs of the waiting callers.
    total: u128,
}

#[derive(Debug)]
struct Slot<A> {
    state: SlotState<A>,
    request: Request,
    generation: u32,
    previous: u32,
    next: u32,
}

/// What a slot holds, and a caller who leaves gives up.
#[derive(Debug)]
pub(crate) enum SlotState<A> {
    Free,
    Waits(Waker),
    Answered(A),
}

/// The ends of a list of slots.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const NONE: u32 = u32::MAX;
const EMPTY: List = List { first: NONE, last: NONE };

impl<A> Queue<A> {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            order,
            slots: Vec::new(),
            free: NONE,
            waiting: [EMPTY; Priority::LEVELS],
            levels: 0,
            answered: 0,
            deadlines: DeadlineHeap::default(),
            len: 0,
            total: 0,
        }
    }

    /// Returns how many callers wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tells whether no caller waits and every answer was fetched.
    pub(crate) const fn is_idle(&self) -> bool {
        self.len == 0 && self.answered == 0
    }

    /// Returns how many slots it has memory for.
    pub(crate) const fn places(&self) -> usize {
        self.slots.capacity()
    }

    pub(crate) const fn order(&self) -> Order {
        self.order
    }

    /// Returns the sum of the costs of the waiting callers.
    pub(crate) const fn total(&self) -> u128 {
        self.total
    }

    /// Takes a place. Returns `None`, and leaves the waker, if there are 2^32 - 1 already.
    pub(crate) fn push(&mut self, request: Request, waker: Waker) -> Option<Ticket> {
        let index = match self.free {
            NONE => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index != NONE)?;
                self.slots.push(Slot {
                    state: SlotState::Free,
                    request,
                    generation: 0,
                    previous: NONE,
                    next: NONE,
                });
                index
            }
            index => {
                self.free = self.slots[index as usize].next;
                index
            }
        };
        let level = request.priority.level();
        let slot = &mut self.slots[index as usize];
        (slot.state, slot.request) = (SlotState::Waits(waker), request);
        slot.generation = slot.generation.wrapping_add(1);
        let ticket = Ticket { index, generation: slot.generation };
        let came = self.deadlines.next_rank();
        let rank = match self.order {
            Order::OldestFirst => {
                link_last(&mut self.slots, &mut self.waiting[level], index);
                came
            }
            Order::NewestFirst => {
                link_first(&mut self.slots, &mut self.waiting[level], index);
                !came
            }
        };
        self.levels |= 1 << level;
        if request.deadline < Tick::MAX {
            // OVERFLOW: the upper byte is for the priority; 2^56 waits take centuries.
            let rank = (level as u64) << 56 | rank & (u64::MAX >> 8);
            self.deadlines.insert(index, request.deadline, rank);
        }
        self.len += 1;
        self.total += u128::from(request.cost);
        Some(ticket)
    }

    /// Tells whether a caller of this priority would be served before all who wait.
    pub(crate) const fn would_be_first(&self, priority: Priority) -> bool {
        let ahead = match self.order {
            Order::OldestFirst => u8::MAX >> (Priority::LEVELS - 1 - priority.level()),
            Order::NewestFirst => (1 << priority.level()) - 1,
        };
        self.levels & ahead == 0
    }

    /// Returns the newest caller of the lowest priority, with that priority.
    pub(crate) fn least(&self) -> Option<(Priority, Ticket)> {
        let list = &self.waiting[self.levels.checked_ilog2()? as usize];
        let newest = match self.order {
            Order::OldestFirst => list.last,
            Order::NewestFirst => list.first,
        };
        let ticket = self.ticket(newest)?;
        Some((self.slot(ticket)?.request.priority, ticket))
    }

    /// Returns the caller who is served next.
    pub(crate) fn first(&self) -> Option<Ticket> {
        self.first_from(0)
    }

    /// Returns the caller who is served after `ticket`.
    pub(crate) fn after(&self, ticket: Ticket) -> Option<Ticket> {
        let slot = self.slot(ticket)?;
        self.ticket(slot.next).or_else(|| self.first_from(slot.request.priority.level() + 1))
    }

    /// Returns the first of this level, or of the next one that is not empty.
    fn first_from(&self, level: usize) -> Option<Ticket> {
        let levels = u32::from(self.levels) >> level;
        self.ticket(self.waiting.get(level + levels.trailing_zeros() as usize)?.first)
    }

    /// Returns the request of a caller who waits, or has not fetched the answer.
    pub(crate) fn request(&self, ticket: Ticket) -> Option<&Request> {
        self.slot(ticket).map(|slot| &slot.request)
    }

    pub(crate) fn is_task(&self, ticket: Ticket) -> bool {
        self.request(ticket).is_some_and(|request| request.is_task)
    }

    pub(crate) fn is_thread(&self, ticket: Ticket) -> bool {
        self.request(ticket).is_some_and(|request| !request.is_task)
    }

    /// Returns the waker of a waiting caller.
    pub(crate) fn waker(&self, ticket: Ticket) -> Option<&Waker> {
        match &self.slot(ticket)?.state {
            SlotState::Waits(waker) => Some(waker),
            _ => None,
        }
    }

    /// Returns the answer of a caller who has not fetched it.
    pub(crate) fn answer_of(&self, ticket: Ticket) -> Option<&A> {
        match &self.slot(ticket)?.state {
            SlotState::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the first deadline, and its caller.
    pub(crate) fn first_deadline(&self) -> Option<(Tick, Ticket)> {
        let (deadline, index) = self.deadlines.first()?;
        Some((deadline, self.ticket(index)?))
    }

    /// Answers a waiting caller, and returns the waker to fire.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: A) -> Option<Waker> {
        self.waker(ticket)?;
        self.take_out(ticket.index);
        self.answered += 1;
        let state = &mut self.slots[ticket.index as usize].state;
        match std::mem::replace(state, SlotState::Answered(answer)) {
            SlotState::Waits(waker) => Some(waker),
            _ => None,
        }
    }

    /// Fetches the answer of a ticket, which is then no more; or leaves `waker` to be woken.
    ///
    /// A waker that is no longer needed is left in `waker`, so that it is dropped without a lock.
    pub(crate) fn fetch(&mut self, ticket: Ticket, waker: &mut Waker) -> Poll<Option<A>> {
        if self.slot(ticket).is_none() {
            return Poll::Ready(None);
        }
        if let SlotState::Waits(old) = &mut self.slots[ticket.index as usize].state {
            std::mem::swap(old, waker);
            return Poll::Pending;
        }
        match self.leave(ticket) {
            Some(SlotState::Answered(answer)) => Poll::Ready(Some(answer)),
            _ => Poll::Ready(None),
        }
    }

    /// Takes a ticket out, with its waker or answer.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<SlotState<A>> {
        let index = ticket.index;
        match self.slot(ticket)?.state {
            SlotState::Waits(_) => self.take_out(index),
            _ => self.answered -= 1,
        }
        let slot = &mut self.slots[index as usize];
        slot.next = std::mem::replace(&mut self.free, index);
        Some(std::mem::replace(&mut slot.state, SlotState::Free))
    }

    fn ticket(&self, index: u32) -> Option<Ticket> {
        let slot = self.slots.get(index as usize)?;
        Some(Ticket { index, generation: slot.generation })
    }

    fn slot(&self, ticket: Ticket) -> Option<&Slot<A>> {
        let slot = self.slots.get(ticket.index as usize)?;
        let is_live =
            slot.generation == ticket.generation && !matches!(slot.state, SlotState::Free);
        is_live.then_some(slot)
    }

    /// Takes a caller out of the list of those who wait.
    fn take_out(&mut self, index: u32) {
        let Request { cost, priority, .. } = self.slots[index as usize].request;
        let list = &mut self.waiting[priority.level()];
        unlink(&mut self.slots, list, index);
        if list.first == NONE {
            self.levels &= !(1 << priority.level());
        }
        self.deadlines.remove(index);
        self.len -= 1;
        self.total -= u128::from(cost);
    }
}

fn link_last<A>(slots: &mut [Slot<A>], list: &mut List, index: u32) {
    let last = std::mem::replace(&mut list.last, index);
    (slots[index as usize].previous, slots[index as usize].next) = (last, NONE);
    match slots.get_mut(last as usize) {
        Some(slot) => slot.next = index,
        None => list.first = index,
    }
}

fn link_first<A>(slots: &mut [Slot<A>], list: &mut List, index: u32) {
    let first = std::mem::replace(&mut list.first, index);
    (slots[index as usize].previous, slots[index as usize].next) = (NONE, first);
    match slots.get_mut(first as usize) {
        Some(slot) => slot.previous = index,
        None => list.last = index,
    }
}

fn unlink<A>(slots: &mut [Slot<A>], list: &mut List, index: u32) {
    let Slot { previous, next, .. } = slots[index as usize];
    match slots.get_mut(previous as usize) {
        Some(slot) => slot.next = next,
        None => list.first = next,
    }
    match slots.get_mut(next as usize) {
        Some(slot) => slot.previous = previous,
        None => list.last = previous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(queue: &mut Queue<u8>, cost: u64, deadline: u64, level: u8) -> Ticket {
        let priority = Priority::new(level).unwrap();
        let deadline = Tick::from_nanos(deadline);
        let request = Request { cost, priority, deadline, since: Tick::ZERO, is_task: true };
        queue.push(request, Waker::noop().clone()).unwrap()
    }

    #[test]
    fn a_ticket_of_a_slot_used_again_is_none() {
        let mut queue = Queue::new(Order::OldestFirst);
        let old = push(&mut queue, 1, 9, 3);
        assert_eq!(queue.request(old).map(|request| request.cost), Some(1));
        assert!(matches!(queue.leave(old), Some(SlotState::Waits(_))));
        let new = push(&mut queue, 2, 9, 3);
        assert_ne!(old, new);
        assert!(queue.leave(old).is_none());
        assert!(queue.request(old).is_none());
        let wants = queue.request(new).map(|request| (request.cost, request.deadline));
        assert_eq!(wants, Some((2, Tick::from_nanos(9))));
        assert!(queue.fetch(old, &mut Waker::noop().clone()).is_ready());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Push(u64, u64, u8),
        AnswerFirst,
        Leave(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (1u64..9, 0u64..20, 0u8..8).prop_map(|(cost, deadline, level)| Event::Push(cost, deadline, level)),
            1 => Just(Event::AnswerFirst),
            1 => (0usize..8).prop_map(Event::Leave),
        ]
    }

    proptest! {
        /// The model is a plain list.
        #[test]
        fn serves_in_order_and_knows_the_first_deadline(
            newest in any::<bool>(),
            events in prop::collection::vec(event(), 0..60),
        ) {
            let order = if newest { Order::NewestFirst } else { Order::OldestFirst };
            let mut queue: Queue<u8> = Queue::new(order);
            let mut model: Vec<(Ticket, u64, u64, u8)> = Vec::new();
            for event in events {
                match event {
                    Event::Push(cost, deadline, level) => {
                        let ahead = |known: &(Ticket, u64, u64, u8)| {
                            if newest { known.3 < level } else { known.3 <= level }
                        };
                        let at = model.iter().filter(|known| ahead(known)).count();
                        let priority = Priority::new(level).unwrap();
                        prop_assert_eq!(queue.would_be_first(priority), at == 0);
                        let ticket = push(&mut queue, cost, deadline, level);
                        model.insert(at, (ticket, cost, deadline, level));
                    }
                    Event::AnswerFirst => {
                        prop_assert_eq!(queue.first(), model.first().map(|known| known.0));
                        if !model.is_empty() {
                            let (ticket, ..) = model.remove(0);
                            prop_assert!(queue.answer(ticket, 7).is_some());
                            let fetched = queue.fetch(ticket, &mut Waker::noop().clone());
                            prop_assert_eq!(fetched, Poll::Ready(Some(7)));
                        }
                    }
                    Event::Leave(index) if index < model.len() => {
                        let (ticket, cost, ..) = model.remove(index);
                        let left = queue.request(ticket).map(|request| request.cost);
                        prop_assert_eq!(left, Some(cost));
                        prop_assert!(matches!(queue.leave(ticket), Some(SlotState::Waits(_))));
                    }
                    Event::Leave(_) => {}
                }
                let total: u64 = model.iter().map(|known| known.1).sum();
                prop_assert_eq!((queue.len(), queue.total()), (model.len(), u128::from(total)));
                let first = model.iter().map(|known| known.2).min().map(Tick::from_nanos);
                prop_assert_eq!(queue.first_deadline().map(|(deadline, _)| deadline), first);
                let lowest = model.iter().map(|known| known.3).max();
                let mut least = model.iter().filter(|known| Some(known.3) == lowest);
                let least = if newest { least.next() } else { least.next_back() };
                let found = queue.least().map(|(priority, ticket)| (ticket, priority.urgency()));
                prop_assert_eq!(found, least.map(|known| (known.0, known.3)));
                let mut walk = Vec::new();
                let mut at = queue.first();
                while let Some(ticket) = at {
                    walk.push(ticket);
                    at = queue.after(ticket);
                }
                prop_assert_eq!(walk, model.iter().map(|known| known.0).collect::<Vec<_>>());
            }
        }
    }
}
