//! Deadlines of numbered slots, in a list of those that came in order and one heap of the others.
//!
//! The heap knows where each slot lies in it, so it moves or removes any deadline in O(log n), and a
//! warm heap does not allocate. Four children for each node,
//! because neighbours share a cache line.
//!
//! Callers who all wait equally long come in the order of their deadlines, and mostly leave in it.
//! So [`insert`](DeadlineHeap::insert) appends a deadline that is not before the last of the list:
//! O(1). A deadline that leaves from the middle is only marked, and goes when it is at the front, or
//! when more are marked than not: O(1) on average, and at most twice the memory. With 100 waiting
//! callers, a grant takes 250 instructions less than with the heap alone
//! (docs/benchmarks/waiting.md).
//!
//! Keyed debouncers number their slots without gaps and give each one a deadline. In a wait queue
//! only some of the slots have one.

use crate::Tick;
use std::collections::VecDeque;

const CHILDREN: usize = 4;

/// Capacity below which nothing is given back.
const CAPACITY_MIN: usize = 64;

/// The place of a slot that has no deadline, and the slot of a deadline that has left the list.
const NOWHERE: u32 = u32::MAX;

/// In a place: the other bits are a number in the list, not a place in the heap.
const LISTED: u32 = 1 << 31;
/// Numbers of the list wrap around here, so that none is [`NOWHERE`]. It is also the most that the list holds.
const NUMBERS: u32 = 1 << 30;

#[derive(Clone, Copy, Debug)]
struct Item {
    at: Tick,
    /// Orders those of the same tick.
    rank: u64,
    slot: u32,
}

impl Item {
    const fn key(&self) -> (Tick, u64) {
        (self.at, self.rank)
    }
}

#[derive(Debug, Default)]
pub(crate) struct DeadlineHeap {
    heap: Vec<Item>,
    /// Deadlines in their order. INVARIANT: the first has not left.
    list: VecDeque<Item>,
    /// The number of the first in the list.
    first_number: u32,
    /// How many in the list have left.
    left: usize,
    /// Where each slot lies.
    places: Vec<u32>,
    last_rank: u64,
}

impl DeadlineHeap {
    /// Returns the first deadline and its slot.
    pub(crate) fn first(&self) -> Option<(Tick, u32)> {
        let first = match (self.heap.first(), self.list.front()) {
            (Some(heap), Some(list)) if heap.key() < list.key() => heap,
            (heap, list) => list.or(heap)?,
        };
        Some((first.at, first.slot))
    }

    /// Returns the deadline of a slot that [`push`](Self::push) gave one.
    pub(crate) fn at(&self, slot: u32) -> Tick {
        self.heap[self.places[slot as usize] as usize].at
    }

    /// Returns a rank behind all others.
    pub(crate) const fn next_rank(&mut self) -> u64 {
        self.last_rank += 1; // OVERFLOW: 2^64 take centuries.
        self.last_rank
    }

    /// Adds the next slot, behind those of the same tick. All of its deadlines are in the heap.
    pub(crate) fn push(&mut self, at: Tick) {
        let (rank, slot) = (self.next_rank(), narrow(self.places.len()));
        self.places.push(NOWHERE);
        self.insert_into_heap(Item { at, rank, slot });
    }

    /// Gives a deadline to a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, at: Tick, rank: u64) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, NOWHERE);
            // At most half of the list has left.
            let room = self.places.len() * 2;
            self.list.reserve(room.saturating_sub(self.list.len()));
        }
        let item = Item { at, rank, slot };
        let is_last = self.list.back().is_none_or(|last| last.key() <= item.key());
        if is_last && self.list.len() < NUMBERS as usize {
            self.places[slot as usize] = self.number(self.list.len());
            self.list.push_back(item);
        } else {
            self.insert_into_heap(item);
        }
    }

    fn insert_into_heap(&mut self, item: Item) {
        self.heap.push(item);
        self.rise(self.heap.len() - 1);
    }

    /// Returns the place of what lies at `index` in the list.
    fn number(&self, index: usize) -> u32 {
        // OVERFLOW: both are below 2^30: see `insert`.
        LISTED | ((self.first_number + narrow(index)) % NUMBERS)
    }

    /// Takes a deadline out of the list.
    fn remove_from_list(&mut self, place: u32) {
        let index = (place & !LISTED).wrapping_sub(self.first_number) % NUMBERS;
        if let Some(item) = self.list.get_mut(index as usize) {
            item.slot = NOWHERE;
            self.left += 1;
        }
        while self.list.front().is_some_and(|first| first.slot == NOWHERE) {
            self.list.pop_front();
            self.left -= 1;
            self.first_number = (self.first_number + 1) % NUMBERS;
        }
        if self.left * 2 > self.list.len() {
            self.list.retain(|item| item.slot != NOWHERE);
            self.left = 0;
            for index in 0..self.list.len() {
                self.places[self.list[index].slot as usize] = self.number(index);
            }
        }
    }

    /// Moves the deadline of a slot, which must have one, behind those of the same tick.
    pub(crate) fn set(&mut self, slot: u32, at: Tick) {
        let place = self.places[slot as usize] as usize;
        if self.heap[place].at != at {
            let rank = self.next_rank();
            self.heap[place] = Item { at, rank, slot };
            self.restore(place);
        }
    }

    /// Takes the deadline of a slot out, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize) else { return };
        let place = std::mem::replace(place, NOWHERE);
        if place != NOWHERE && place & LISTED != 0 {
            return self.remove_from_list(place);
        }
        let place = place as usize;
        if place < self.heap.len() {
            self.heap.swap_remove(place);
        }
        if place < self.heap.len() {
            self.restore(place);
        }
    }

    /// Takes a slot out, and gives its number to the last one.
    pub(crate) fn swap_remove(&mut self, slot: u32) {
        self.remove(slot);
        self.places.swap_remove(slot as usize);
        if let Some(&moved) = self.places.get(slot as usize) {
            self.heap[moved as usize].slot = slot;
        }
        shrink(&mut self.heap);
        shrink(&mut self.places);
    }

    /// Visits every slot in the order of the deadlines, and gives it the deadline that `visit`
    /// returns. Those of the same tick keep their order. O(n log n).
    pub(crate) fn rearrange(&mut self, mut visit: impl FnMut(u32, Tick) -> Tick) {
        self.heap.sort_unstable_by_key(Item::key);
        for item in &mut self.heap {
            item.at = visit(item.slot, item.at);
            self.last_rank += 1; // OVERFLOW: 2^64 take centuries.
            item.rank = self.last_rank;
        }
        // A sorted list is a heap.
        self.heap.sort_unstable_by_key(Item::key);
        (0..self.heap.len()).for_each(|place| self.settle(place));
    }

    /// Notes where the item at `place` lies.
    fn settle(&mut self, place: usize) {
        let slot = self.heap[place].slot;
        self.places[slot as usize] = narrow(place);
    }

    /// Moves the item at `place` to where it belongs.
    fn restore(&mut self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].key() <= self.heap[place].key() {
                break;
            }
            self.heap.swap(parent, place);
            self.settle(place);
            place = parent;
        }
        self.settle(place);
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let first = place * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child].key()) else { break };
            if self.heap[place].key() <= self.heap[least].key() {
                break;
            }
            self.heap.swap(place, least);
            self.settle(place);
            place = least;
        }
        self.settle(place);
    }
}

/// INVARIANT: there are fewer slots than 2^32, see `KEYS_MAX` and `Queue::push`, and fewer than 2^31 in a heap:
/// that is 48 GiB of deadlines.
fn narrow(number: usize) -> u32 {
    debug_assert!(u32::try_from(number).is_ok());
    number as u32
}

/// Gives memory back once three quarters of it are not used.
pub(crate) fn shrink<V>(list: &mut Vec<V>) {
    if list.capacity() > CAPACITY_MIN && list.len() < list.capacity() / 4 {
        list.shrink_to((list.len() * 2).max(CAPACITY_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        Set(usize, u64),
        Remove(usize),
        Cap(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0_u64..50).prop_map(Step::Push),
            3 => (0_usize..40, 0_u64..50).prop_map(|(slot, at)| Step::Set(slot, at)),
            2 => (0_usize..40).prop_map(Step::Remove),
            1 => (0_u64..50).prop_map(Step::Cap),
        ]
    }

    proptest! {
        #[test]
        fn the_first_is_the_least(steps in prop::collection::vec(step(), 1..300)) {
            let (mut queue, mut model) = (DeadlineHeap::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Push(at) => {
                        queue.push(Tick::from_nanos(at));
                        model.push(at);
                    }
                    Step::Set(slot, at) if slot < model.len() => {
                        queue.set(slot as u32, Tick::from_nanos(at));
                        model[slot] = at;
                    }
                    Step::Remove(slot) if slot < model.len() => {
                        queue.swap_remove(slot as u32);
                        model.swap_remove(slot);
                    }
                    Step::Cap(most) => {
                        let mut last = Tick::ZERO;
                        queue.rearrange(|_, at| {
                            assert!(at >= last);
                            last = at;
                            at.min(Tick::from_nanos(most))
                        });
                        model.iter_mut().for_each(|at| *at = (*at).min(most));
                    }
                    _ => {}
                }
                for (slot, at) in model.iter().enumerate() {
                    prop_assert_eq!(queue.at(slot as u32).as_nanos(), *at);
                }
                let least = model.iter().min().copied();
                prop_assert_eq!(queue.first().map(|(at, _)| at.as_nanos()), least);
            }
        }
    }

    proptest! {
        /// Slots of a wait queue: some come in order, some do not, and each leaves from wherever it is.
        #[test]
        fn the_first_is_the_least_whatever_the_order(
            steps in prop::collection::vec((0_u32..40, 0_u64..6, 0_u64..4), 1..400),
        ) {
            let (mut queue, mut model) = (DeadlineHeap::default(), [None; 40]);
            let mut clock = 0;
            for (slot, forward, back) in steps {
                clock += forward;
                match model[slot as usize] {
                    None => {
                        let (at, rank) = ((clock + 3).saturating_sub(back), queue.next_rank());
                        queue.insert(slot, Tick::from_nanos(at), rank);
                        model[slot as usize] = Some((at, rank));
                    }
                    Some(_) => {
                        queue.remove(slot);
                        queue.remove(slot);
                        model[slot as usize] = None;
                    }
                }
                let known = (0..40).filter_map(|slot| Some((model[slot as usize]?, slot)));
                let least = known.min().map(|((at, _), slot)| (Tick::from_nanos(at), slot));
                prop_assert_eq!(queue.first(), least);
                prop_assert!(queue.list.len() <= 80 && queue.left * 2 <= queue.list.len());
            }
        }
    }

    /// The oldest stays at the front, so that those who leave behind it are only marked.
    #[test]
    fn a_list_that_was_as_full_before_asks_for_no_memory() {
        let mut queue = DeadlineHeap::default();
        let insert = |queue: &mut DeadlineHeap, slot: u32, at: u64| {
            queue.insert(slot, Tick::from_nanos(at), at);
        };
        (0..10).for_each(|slot| insert(&mut queue, slot, slot.into()));
        let (capacity, mut longest) = (queue.list.capacity(), 0);
        for at in 10..200 {
            let slot = 1 + (at % 9) as u32;
            queue.remove(slot);
            insert(&mut queue, slot, at);
            longest = longest.max(queue.list.len());
        }
        assert!(longest > 16, "{longest} of 10");
        assert_eq!(queue.list.capacity(), capacity);
    }

    #[test]
    fn numbers_of_the_list_wrap_around() {
        let mut queue = DeadlineHeap { first_number: NUMBERS - 2, ..DeadlineHeap::default() };
        (0..5).for_each(|slot| queue.insert(slot, Tick::from_nanos(slot.into()), 0));
        for slot in [3, 0, 1, 2] {
            queue.remove(slot);
        }
        assert_eq!(queue.first(), Some((Tick::from_nanos(4), 4)));
        queue.remove(4);
        assert_eq!((queue.first(), queue.list.len()), (None, 0));
    }

    #[test]
    fn deadlines_of_one_tick_come_in_the_order_they_were_set() {
        let mut queue = DeadlineHeap::default();
        (0..5).for_each(|_| queue.push(Tick::from_secs(9)));
        [3, 1, 4, 0, 2].into_iter().for_each(|slot| queue.set(slot, Tick::from_secs(1)));
        queue.rearrange(|_, at| at);
        let mut order = Vec::new();
        for _ in 0..5 {
            let (_, slot) = queue.first().unwrap();
            order.push(slot);
            queue.set(slot, Tick::from_secs(20));
        }
        assert_eq!(order, [3, 1, 4, 0, 2]);
    }
}
