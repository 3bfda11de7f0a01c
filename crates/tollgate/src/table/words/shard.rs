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

impl WordTable {
    fn rows(&self, shard: usize) -> usize {
        Head::rows(self.shards[shard].head.0.load())
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

    /// Adds an entry that was counted if `has_room`, and else takes the place of another in the count.
    pub(super) fn insert(
        &self,
        shard: usize,
        writer: &mut Writer,
        (content, has_room): (Content, bool),
        now: Tick,
    ) {
        if !has_room {
            self.make_up(shard, writer, now);
            self.evict(shard, writer, now);
        }
        let slot = self.place(shard, writer, &content, now);
        slot.publish(content);
        writer.len += 1;
        self.tidy(shard, writer, now);
    }

    /// Returns a free slot for a key.
    fn place(&self, shard: usize, writer: &mut Writer, content: &Content, now: Tick) -> &Slot {
        let mut backoff = Backoff::new();
        loop {
            if let Some(slot) = self.free_home(shard, writer, content.name(), now) {
                return slot;
            }
            let overflow = &self.shards[shard].overflow.0;
            if let Some(slot) = overflow.iter().find(|slot| self.claim(shard, writer, slot, now)) {
                writer.overflowing += 1;
                return slot;
            }
            if self.rows(shard) < ROWS_MAX {
                // A shard that can grow evicts no live entry, also if one that has to move is just in use.
                if !self.split(shard, writer, now) {
                    backoff.wait();
                }
                continue;
            }
            // The shard cannot grow: the lightest of its neighbours leaves.
            let neighbours = homes(content.name(), self.rows(shard));
            let slots = neighbours.into_iter().flat_map(|row| self.slots_of(shard, row));
            let candidates = slots.map(|slot| (slot, slot.load()));
            let lightest = candidates.min_by_key(|(_, content)| content.burden(now));
            if let Some((slot, seen)) = lightest
                && self.leave(&self.shards[shard], writer, (slot, seen))
            {
                self.base.tally.evicted();
                self.give_up(1);
                return slot;
            }
            backoff.wait();
        }
    }

    /// Returns a free slot in one of the homes of a key, after a neighbour has moved if need be.
    fn free_home(&self, shard: usize, writer: &mut Writer, name: u64, now: Tick) -> Option<&Slot> {
        let rows = self.rows(shard);
        let homes_of = homes(name, rows);
        for home in homes_of {
            // All idle entries of the bucket leave, and not only one: so idle entries leave faster than new ones
            // come, as soon as a quarter of the slots has one.
            let mut free = None;
            for slot in self.slots_of(shard, home) {
                if self.claim(shard, writer, slot, now) {
                    free = Some(slot);
                }
            }
            if free.is_some() {
                return free;
            }
        }
        for home in homes_of {
            for slot in self.slots_of(shard, home) {
                let seen = slot.load();
                let [first, second] = homes(seen.name(), rows);
                let other = if first == home { second } else { first };
                let mut others = self.slots_of(shard, other).iter();
                if let Some(target) = others.find(|target| self.claim(shard, writer, target, now))
                    && slot.try_lock(seen)
                {
                    Self::change(&self.shards[shard], || {
                        target.publish(seen);
                        slot.free();
                    });
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Changes which entries lie where; readers of the shard notice.
    fn change(shard: &Shard, change: impl FnOnce()) {
        shard.head.0.unsettle();
        change();
        shard.head.0.settle(0);
    }

    /// Makes a slot free if it is, or if its entry is idle.
    #[inline]
    fn claim(&self, shard: usize, writer: &mut Writer, slot: &Slot, now: Tick) -> bool {
        let seen = slot.load();
        seen.tag == 0 || (seen.is_idle(now) && self.forget(shard, writer, (slot, seen)))
    }

    /// Frees the slot of an idle entry, and counts it.
    #[cold]
    fn forget(&self, shard: usize, writer: &mut Writer, (slot, seen): (&Slot, Content)) -> bool {
        let left = self.leave(&self.shards[shard], writer, (slot, seen));
        if left {
            self.base.tally.forgot(1);
            self.give_up(1);
        }
        left
    }

    /// Frees a slot, if its lock bit is free and it holds what was seen.
    pub(super) fn leave(
        &self,
        shard: &Shard,
        writer: &mut Writer,
        (slot, seen): (&Slot, Content),
    ) -> bool {
        let is_locked = slot.try_lock(seen);
        if is_locked {
            self.free(shard, writer, slot);
        }
        is_locked
    }

    /// Frees a slot whose lock bit the caller holds.
    pub(super) fn free(&self, shard: &Shard, writer: &mut Writer, slot: &Slot) {
        Self::change(shard, || slot.free());
        writer.len -= 1;
        if shard.overflow.0.as_ptr_range().contains(&std::ptr::from_ref(slot)) {
            writer.overflowing -= 1;
        }
    }

    /// Looks at the next buckets and frees the slots of idle entries. Returns how many entries there were.
    pub(super) fn sweep(
        &self,
        shard: usize,
        writer: &mut Writer,
        count: usize,
        now: Tick,
    ) -> usize {
        let (rows, mut seen) = (self.rows(shard), 0);
        for _ in 0..count.min(rows) {
            writer.hand = (writer.hand + 1) % rows;
            for slot in self.slots_of(shard, writer.hand) {
                if slot.load().tag != 0 {
                    seen += 1;
                    self.claim(shard, writer, slot, now);
                }
            }
        }
        seen
    }

    /// Returns the lightest of the next entries, until `seen` of them are `most`.
    pub(super) fn lightest(
        &self,
        shard: usize,
        writer: &mut Writer,
        (seen, most): (&mut usize, usize),
        now: Tick,
    ) -> Option<Candidate<'_>> {
        let (rows, mut lightest) = (self.rows(shard), None::<Candidate<'_>>);
        for _ in 0..rows.min(CANDIDATES) {
            writer.hand = (writer.hand + 1) % rows;
            let own = self.slots_of(shard, writer.hand).iter();
            for (slot, content) in own.map(|slot| (slot, slot.load())) {
                if content.tag == 0 {
                    continue;
                }
                *seen += 1;
                let burden = content.burden(now);
                if lightest.is_none_or(|lightest| burden < lightest.0) {
                    lightest = Some((burden, slot, content));
                }
            }
            if *seen >= most {
                break;
            }
        }
        lightest
    }

    /// After a new entry: a shard that is rather full grows.
    fn tidy(&self, shard: usize, writer: &mut Writer, now: Tick) {
        if writer.overflowing > 0 {
            self.take_home(shard, writer, now);
        }
        if !self.is_reserved && writer.len * 16 > self.rows(shard) * SLOTS * LOAD {
            self.split(shard, writer, now);
        }
    }

    /// Moves an entry of the overflow bucket to one of its homes, if there is room by now.
    fn take_home(&self, shard: usize, writer: &mut Writer, now: Tick) {
        for slot in &self.shards[shard].overflow.0 {
            let seen = slot.load();
            if seen.tag != 0
                && let Some(home) = self.free_home(shard, writer, seen.name(), now)
                && slot.try_lock(seen)
            {
                Self::change(&self.shards[shard], || {
                    home.publish(seen);
                    slot.free();
                });
                writer.overflowing -= 1;
                return;
            }
        }
    }

    /// Adds a bucket to a shard. Tells whether that was possible.
    pub(super) fn split(&self, shard: usize, writer: &mut Writer, now: Tick) -> bool {
        let rows = self.rows(shard);
        if rows == ROWS_MAX {
            return false;
        }
        self.allocate(rows);
        let parent = rows - (1 << rows.ilog2());
        let mut moving = [const { None::<(&Slot, Content)> }; SLOTS];
        for (slot, place) in self.slots_of(shard, parent).iter().zip(&mut moving) {
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
        self.shards[shard].head.0.unsettle();
        let mut fresh = self.slots_of(shard, rows).iter();
        for (slot, seen) in moving.iter().flatten() {
            if seen.is_idle(now) {
                writer.len -= 1;
                self.base.tally.forgot(1);
                self.give_up(1);
            } else if let Some(target) = fresh.next() {
                target.publish(*seen);
            }
            slot.free();
        }
        self.shards[shard].head.0.settle(1);
        true
    }
}

const _: () = assert!(SHARDS.is_power_of_two());
