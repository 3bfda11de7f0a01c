//! Looking at every slot of a bounded table, and putting slots back.

use super::{Bounded, Found, Place};
use crate::{
    Tick,
    sync::{
        Ordering::{Relaxed, SeqCst},
        fence, lock,
    },
    table::{bucket::SLOTS, slots::Slot},
};

/// Moves that are noted during one visit of all slots.
const MOVED_MAX: usize = 1 << 16;

impl Bounded {
    /// Notes a move for whoever visits all slots. Returns false if there are too many to note.
    pub(super) fn note_moved(&self, bucket: usize, tag: u64) -> bool {
        let mut moved = lock(&self.moved);
        let has_room = moved.len() < MOVED_MAX;
        if has_room {
            moved.push((bucket, tag));
        }
        has_room
    }

    /// Returns how many buckets there are: what a slot's place depends on.
    pub(crate) fn buckets(&self) -> u64 {
        self.buckets.len() as u64
    }

    /// Calls `visit` with every used slot and the number of its bucket; no lock is taken.
    pub(in crate::table) fn visit(&self, mut visit: impl FnMut(u64, &Slot)) {
        self.visitors.fetch_add(1, Relaxed);
        // ORDERING: SeqCst, see `make_room`.
        fence(SeqCst);
        for (number, bucket) in self.buckets.iter().enumerate() {
            let stripe = self.stripe(number);
            let copies = loop {
                let version = stripe.version();
                let copies: [Slot; SLOTS] = std::array::from_fn(|index| bucket.slot(index));
                if stripe.is_still(version) {
                    break copies;
                }
            };
            let used = copies.iter().filter(|slot| !slot.is_empty());
            used.for_each(|slot| visit(number as u64, slot));
        }
        // Once more what has moved meanwhile, as it is now.
        let moved: Vec<_> = lock(&self.moved).clone();
        for (first, tag) in moved {
            let place = Place { tag, first, second: self.other(tag, first) };
            if let Some(slot) = self.copy(place) {
                visit(first as u64, &slot);
            }
        }
        // ORDERING: Relaxed. A move that sees it late is noted and forgotten.
        if self.visitors.fetch_sub(1, Relaxed) == 1 {
            lock(&self.moved).clear();
        }
    }

    /// Puts a slot back where [`visit`](Self::visit) found it, or beside. Tells whether there was
    /// room.
    pub(in crate::table) fn put_back(&self, number: u64, slot: Slot, now: Tick) -> bool {
        let first = (number as usize).min(self.buckets.len() - 1);
        let second = self.other(slot.tag(), first);
        let place = Place { tag: slot.tag(), first, second };
        let (mut low, mut high) = self.lock_both(place);
        let room = match self.find(place) {
            Some(Found { bucket, index, .. }) => Some((bucket, index)),
            None => self.make_room(place, now),
        };
        if let Some((bucket, index)) = room {
            self.buckets[bucket].put(index, slot);
            low.changed();
            if let Some(high) = &mut high {
                high.changed();
            }
        }
        room.is_some()
    }
}
