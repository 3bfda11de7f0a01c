//! One shard of the table: room for new keys, growth, and entries that leave.
//!
//! Every call here is the writer's: it holds the mutex of the shard. It takes lock bits only if they are free.

use super::{
    Bucket, Content, Head, LOAD, ROWS_MAX, SHARDS, SLOTS, Shard, Slot, WordTable,
    eviction::CANDIDATES, homes,
};
use crate::{Tick, limiter::backoff::Backoff};

/// What the holder of a shard's mutex knows.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Entries.
    pub(super) len: usize,
    /// The row that was looked at last.
    hand: usize,
    /// Entries in the overflow bucket.
    pub(super) overflowing: usize,
}

/// How far from full an entry is, where it is, and what it holds.
type Candidate<'a> = (u64, &'a Slot, Content);

/// A shard whose mutex the caller holds, at the time of a call.
pub(super) struct LockedShard<'t, 'w> {
    pub(super) table: &'t WordTable,
    shard: &'t Shard,
    index: usize,
    writer: &'w mut Writer,
    pub(super) now: Tick,
}

impl WordTable {
    /// Works on a shard, with what its mutex protects.
    pub(super) fn locked<'t, 'w>(
        &'t self,
        index: usize,
        writer: &'w mut Writer,
        now: Tick,
    ) -> LockedShard<'t, 'w> {
        LockedShard { table: self, shard: &self.shards[index], index, writer, now }
    }

    fn rows(&self, shard: usize) -> usize {
        Head::rows(self.heads[shard].load())
    }

    fn slots_of(&self, shard: usize, row: usize) -> &[Slot] {
        let bucket = self.bucket(shard, row);
        debug_assert!(bucket.is_some(), "rows of a shard are allocated");
        bucket.map_or(&self.shards[shard].overflow.0[..], |Bucket(slots)| &slots[..])
    }

    /// Returns all slots of a shard.
    pub(super) fn slots(&self, shard: usize) -> impl Iterator<Item = &Slot> {
        let rows = (0..self.rows(shard)).flat_map(move |row| self.slots_of(shard, row));
        rows.chain(&self.shards[shard].overflow.0)
    }

    /// Changes which entries of a shard lie where; its readers notice.
    fn change(&self, shard: usize, change: impl FnOnce()) {
        self.heads[shard].unsettle();
        change();
        self.heads[shard].settle(0);
    }

    /// Frees a slot whose lock bit the caller holds.
    pub(super) fn free(&self, shard: usize, writer: &mut Writer, slot: &Slot) {
        self.change(shard, || slot.free());
        writer.len -= 1;
        if self.shards[shard].overflow.0.as_ptr_range().contains(&std::ptr::from_ref(slot)) {
            writer.overflowing -= 1;
        }
    }
}

impl<'t> LockedShard<'t, '_> {
    /// Adds an entry that was counted if `has_room`, and else takes the place of another in the count.
    pub(super) fn insert(&mut self, content: Content, has_room: bool) {
        if !has_room {
            self.make_up();
            self.evict();
        }
        self.place(&content).publish(content);
        self.writer.len += 1;
        self.tidy();
    }

    fn rows(&self) -> usize {
        self.table.rows(self.index)
    }

    fn slots_of(&self, row: usize) -> &'t [Slot] {
        self.table.slots_of(self.index, row)
    }

    /// Returns a free slot for a key.
    fn place(&mut self, content: &Content) -> &'t Slot {
        let mut backoff = Backoff::new();
        loop {
            if let Some(slot) = self.free_home(content.name()) {
                return slot;
            }
            let overflow = &self.shard.overflow.0;
            if let Some(slot) = overflow.iter().find(|slot| self.claim(slot)) {
                self.writer.overflowing += 1;
                return slot;
            }
            if self.rows() < ROWS_MAX {
                // A shard that can grow evicts no live entry, also if one that has to move is just in use.
                if !self.split() {
                    backoff.wait();
                }
                continue;
            }
            // The shard cannot grow: the lightest of its neighbours leaves.
            let neighbours = homes(content.name(), self.rows());
            let slots = neighbours.into_iter().flat_map(|row| self.slots_of(row));
            let candidates = slots.map(|slot| (slot, slot.load()));
            let lightest = candidates.min_by_key(|(_, content)| content.burden(self.now));
            if let Some((slot, seen)) = lightest
                && self.leave(slot, seen)
            {
                self.table.eviction.count_live();
                self.table.give_up(1);
                return slot;
            }
            backoff.wait();
        }
    }

    /// Returns a free slot in one of the homes of a key, after neighbours have moved if need be.
    fn free_home(&mut self, name: u64) -> Option<&'t Slot> {
        let homes_of = homes(name, self.rows());
        for home in homes_of {
            // All idle entries of the bucket leave, and not only one: so idle entries leave faster than new ones
            // come, as soon as a quarter of the slots has one.
            let mut free = None;
            for slot in self.slots_of(home) {
                if self.claim(slot) {
                    free = Some(slot);
                }
            }
            if free.is_some() {
                return free;
            }
        }
        // A neighbour moves alone, or up to two before it. With one at most, shards of a reserved table that get many
        // keys would grow, and with them the memory for all shards: by a third for a million keys.
        let mut searches = [0, 1, 2].into_iter().flat_map(|more| homes_of.map(|home| (home, more)));
        searches.find_map(|(home, more)| self.vacate(home, more))
    }

    /// Moves an entry of a bucket to its other home, where up to `more` entries move likewise to make room for it.
    /// Returns the slot that it leaves.
    fn vacate(&mut self, home: usize, more: usize) -> Option<&'t Slot> {
        self.slots_of(home).iter().find(|slot| {
            let seen = slot.load();
            let [first, second] = homes(seen.name(), self.rows());
            let other = if first == home { second } else { first };
            let mut others = self.slots_of(other).iter();
            let target = match others.find(|target| self.claim(target)) {
                None if more > 0 && other != home => self.vacate(other, more - 1),
                target => target,
            };
            let Some(target) = target.filter(|_| slot.try_lock(seen)) else { return false };
            self.table.change(self.index, || {
                target.publish(seen);
                slot.free();
            });
            true
        })
    }

    /// Makes a slot free if it is, or if its entry is idle.
    #[inline]
    fn claim(&mut self, slot: &Slot) -> bool {
        let seen = slot.load();
        seen.tag == 0 || (seen.is_idle(self.now) && self.forget(slot, seen))
    }

    /// Frees the slot of an idle entry, and counts it.
    #[cold]
    fn forget(&mut self, slot: &Slot, seen: Content) -> bool {
        let left = self.leave(slot, seen);
        if left {
            self.table.eviction.count_idle(1);
            self.table.give_up(1);
        }
        left
    }

    /// Frees a slot, if its lock bit is free and it holds what was seen.
    pub(super) fn leave(&mut self, slot: &Slot, seen: Content) -> bool {
        let is_locked = slot.try_lock(seen);
        if is_locked {
            self.table.free(self.index, self.writer, slot);
        }
        is_locked
    }

    /// Looks at the next buckets and frees the slots of idle entries. Returns how many entries there were.
    pub(super) fn sweep(&mut self, count: usize) -> usize {
        let (rows, mut seen) = (self.rows(), 0);
        for _ in 0..count.min(rows) {
            self.writer.hand = (self.writer.hand + 1) % rows;
            for slot in self.slots_of(self.writer.hand) {
                if slot.load().tag != 0 {
                    seen += 1;
                    self.claim(slot);
                }
            }
        }
        seen
    }

    /// Returns the lightest of the next entries, until `seen` of them are enough.
    pub(super) fn lightest(&mut self, seen: &mut usize) -> Option<Candidate<'t>> {
        let (rows, mut lightest) = (self.rows(), None::<Candidate<'_>>);
        for _ in 0..rows.min(CANDIDATES) {
            self.writer.hand = (self.writer.hand + 1) % rows;
            let own = self.slots_of(self.writer.hand).iter();
            for (slot, content) in own.map(|slot| (slot, slot.load())) {
                if content.tag == 0 {
                    continue;
                }
                *seen += 1;
                let burden = content.burden(self.now);
                if lightest.is_none_or(|lightest| burden < lightest.0) {
                    lightest = Some((burden, slot, content));
                }
            }
            if *seen >= CANDIDATES {
                break;
            }
        }
        lightest
    }

    /// After a new entry: a shard that is rather full grows.
    fn tidy(&mut self) {
        if self.writer.overflowing > 0 {
            self.take_home();
        }
        if !self.table.is_reserved && self.writer.len * 16 > self.rows() * SLOTS * LOAD {
            self.split();
        }
    }

    /// Moves an entry of the overflow bucket to one of its homes, if there is room by now.
    fn take_home(&mut self) {
        for slot in &self.shard.overflow.0 {
            let seen = slot.load();
            if seen.tag != 0
                && let Some(home) = self.free_home(seen.name())
                && slot.try_lock(seen)
            {
                self.table.change(self.index, || {
                    home.publish(seen);
                    slot.free();
                });
                self.writer.overflowing -= 1;
                return;
            }
        }
    }

    /// Adds a bucket to a shard. Tells whether that was possible.
    pub(super) fn split(&mut self) -> bool {
        let rows = self.rows();
        if rows == ROWS_MAX {
            return false;
        }
        self.table.allocate(rows);
        let parent = rows - (1 << rows.ilog2());
        let mut moving = [const { None::<(&Slot, Content)> }; SLOTS];
        for (slot, place) in self.slots_of(parent).iter().zip(&mut moving) {
            let seen = slot.load();
            if seen.tag == 0 || homes(seen.name(), rows + 1).contains(&parent) {
                continue;
            }
            if !slot.try_lock(seen) {
                // It is in use. The next new key tries again.
                moving.iter().flatten().for_each(|(slot, seen)| slot.unlock(*seen));
                return false;
            }
            *place = Some((slot, seen));
        }
        self.table.heads[self.index].unsettle();
        let mut fresh = self.slots_of(rows).iter();
        for (slot, seen) in moving.iter().flatten() {
            if seen.is_idle(self.now) {
                self.writer.len -= 1;
                self.table.eviction.count_idle(1);
                self.table.give_up(1);
            } else if let Some(target) = fresh.next() {
                target.publish(*seen);
            }
            slot.free();
        }
        self.table.heads[self.index].settle(1);
        true
    }
}

const _: () = assert!(SHARDS.is_power_of_two());
