//! Room in a table that has a cap: entries are counted, idle ones leave, and a full table evicts the one nearest to full.

use super::{SHARDS, WordTable, Writer, shard::LockedShard};
use crate::sync::{MutexGuard, Ordering::Relaxed};

/// Entries that are looked at, in as many shards as that takes, before a table counts as full.
const ASKED: usize = 64;
/// Buckets of a shard of which that are.
const SWEEP_FULL: usize = 4;
/// Entries from which the one nearest to full is chosen.
pub(super) const CANDIDATES: usize = 16;

impl WordTable {
    pub(super) fn count_one(&self, cap: u64) -> bool {
        let more = |len: u64| (len < cap).then_some(len + 1);
        // ORDERING: Relaxed, here and below. A count that guards nothing but itself.
        self.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives up the room that was counted for so many.
    pub(super) fn give_up(&self, count: u64) {
        if count > 0 && self.cap.is_some() {
            self.len.fetch_sub(count, Relaxed);
        }
    }

    /// Locks another shard if its mutex is free. It does not wait: the other thread may wait for this one's.
    fn next_shard(&self) -> Option<(usize, MutexGuard<'_, Writer>)> {
        // ORDERING: Relaxed. A hint that spreads the search.
        let index = self.hand.fetch_add(1, Relaxed) as usize & (SHARDS - 1);
        Some((index, self.shards[index].writer.try_lock().ok()?))
    }
}

impl LockedShard<'_, '_> {
    /// Counts one more entry if the cap allows it, or if idle ones can be found that leave.
    pub(super) fn make_room(&mut self) -> bool {
        let (table, now) = (self.table, self.now);
        let Some(cap) = table.cap else { return true };
        if table.count_one(cap) {
            return true;
        }
        let mut asked = self.sweep(SWEEP_FULL);
        for _ in 0..SHARDS {
            if table.count_one(cap) {
                return true;
            }
            if asked >= ASKED {
                return false;
            }
            if let Some((other, mut writer)) = table.next_shard() {
                asked += table.locked(other, &mut writer, now).sweep(SWEEP_FULL);
            }
        }
        table.count_one(cap)
    }

    /// Removes the entry nearest to full of some, for a new one that takes its place in the count.
    pub(super) fn evict(&mut self) {
        let (table, now, mut seen) = (self.table, self.now, 0);
        let mut best = self.lightest(&mut seen);
        let mut elsewhere = None;
        for _ in 0..2 * SHARDS {
            if seen >= CANDIDATES {
                break;
            }
            let Some((other, mut guard)) = table.next_shard() else { continue };
            let found = table.locked(other, &mut guard, now).lightest(&mut seen);
            if let Some(found) = found.filter(|found| best.is_none_or(|best| found.0 < best.0)) {
                (best, elsewhere) = (Some(found), Some((other, guard)));
            }
        }
        let left = best.is_some_and(|(_, slot, content)| match &mut elsewhere {
            Some((other, guard)) => table.locked(*other, guard, now).leave(slot, content),
            None => self.leave(slot, content),
        });
        match best.map_or(0, |(burden, ..)| burden) {
            0 => table.eviction.count_idle(1),
            _ => table.eviction.count_live(),
        }
        if !left {
            // None was found, or it is just being used. The count says what is there, and the next new key makes
            // up for it.
            table.len.fetch_add(1, Relaxed);
        }
    }

    /// Removes one more if the table has more entries than its cap.
    pub(super) fn make_up(&mut self) {
        let over = |len| self.table.cap.is_some_and(|cap| len > cap).then(|| len - 1);
        if self.table.len.fetch_update(Relaxed, Relaxed, over).is_ok() {
            self.evict();
        }
    }
}
