//! Several keys at once, by the short way.

use super::{Growing, Shard};
use crate::{
    Decision, Tick,
    algorithm::{Step, word_time},
    sync::{MutexGuard, lock},
    table::{Hint, slots::Slot},
};

/// One of several keys that are taken from together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<R> {
    pub(crate) fingerprint: u64,
    /// One algorithm, or any.
    pub(crate) rule: R,
    pub(crate) cost: u64,
}

impl Growing {
    /// The short way of a take from several keys, from all or none: each is in a shard of its own, and
    /// there is room for those that are new. Returns what each says, and a mask of those that refused.
    pub(crate) fn take_all<R: Step<State = u64>, const N: usize>(
        &self,
        asks: &[Ask<R>; N],
        now: Tick,
        hint: impl Fn(&R, u64) -> Hint,
    ) -> Option<([Decision; N], u64)> {
        let mut shards = self.lock_all(asks)?;
        let (mut found, mut new) = ([(None, Slot::default()); N], 0);
        for ((ask, shard), found) in asks.iter().zip(&shards).zip(&mut found) {
            let (slots, tag) = (&shard.as_ref()?.slots, Self::tag(ask.fingerprint));
            *found = match slots.find(tag) {
                Ok(index) => (Some(index), slots.get(index)),
                Err(_) => {
                    new += 1;
                    // A key that is not there is idle.
                    (None, Slot::new(tag, Hint::default(), 0))
                }
            };
            let (known, word) = found.1.state();
            let is_like = !known.is_time() || known == hint(&ask.rule, word);
            if found.0.is_some() && (!is_like || word >= word_time::OWED) {
                return None;
            }
        }
        if new > 0 && !self.cap.is_none_or(|cap| self.count_more(new, cap)) {
            return None;
        }
        let mut refused = 0;
        let mut decided: [_; N] = std::array::from_fn(|at| {
            let (Ask { rule, cost, .. }, mut word) = (&asks[at], found[at].1.word());
            let decision = rule.decide(&mut word, now, *cost);
            refused |= u64::from(decision.is_denied()) << at;
            (decision, word)
        });
        if refused != 0 {
            self.give_up(new);
            for ((ask, (_, slot)), (decision, _)) in asks.iter().zip(&found).zip(&mut decided) {
                if decision.is_allowed() {
                    // It is not charged: what it tells is its level as it is.
                    *decision = ask.rule.peek(&slot.word(), now, 0).forced(ask.cost);
                }
            }
        } else {
            for at in 0..N {
                let ((index, slot), word) = (found[at], decided[at].1);
                if index.is_none() && word_time::is_idle(word, now) {
                    self.give_up(1);
                    continue;
                }
                let next = Slot::new(slot.tag(), hint(&asks[at].rule, word), word);
                let Some(shard) = &mut shards[at] else { continue };
                match index {
                    Some(index) => shard.slots.set(index, next),
                    None => self.insert(shard, next, now),
                }
            }
        }
        Some((decided.map(|(decision, _)| decision), refused))
    }

    /// Locks the shards of several keys in the order of their addresses; `None` if two are one.
    #[inline]
    fn lock_all<R, const N: usize>(
        &self,
        asks: &[Ask<R>; N],
    ) -> Option<[Option<MutexGuard<'_, Shard>>; N]> {
        let wanted = asks.each_ref().map(|ask| self.index(ask.fingerprint));
        let mut order: [usize; N] = std::array::from_fn(|at| at);
        for end in 1..N {
            for at in (1..=end).rev() {
                if wanted[order[at - 1]] > wanted[order[at]] {
                    order.swap(at - 1, at);
                }
            }
        }
        if order.windows(2).any(|pair| wanted[pair[0]] == wanted[pair[1]]) {
            return None;
        }
        let mut shards = [const { None }; N];
        for at in order {
            shards[at] = Some(lock(&self.shards[wanted[at]].0));
        }
        Some(shards)
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use crate::{
        Clock, Quota,
        store::{Demand, MemoryStore, Policy, Store},
        sync::Ordering::Relaxed,
        table::Words,
    };
    use proptest::prelude::*;

    proptest! {
        /// What a cap counts is what is there, whichever way keys come and go. Else a store would be
        /// full too early, or never.
        #[test]
        fn entries_are_counted_as_they_are(
            cap in 1_u64..24,
            steps in prop::collection::vec(
                (prop::collection::vec((0_u64..40, 0_u64..4), 1..5), 0_u64..300), 1..120,
            ),
        ) {
            let (clock, hand) = Clock::manual();
            let store = MemoryStore::builder().clock(clock).max_keys(cap).build().expect("sound");
            let policy = Policy::new("p", Quota::per_second(10).burst(3)).expect("sound");
            for (keys, pause_ms) in steps {
                hand.advance(std::time::Duration::from_millis(pause_ms));
                let keys: Vec<_> = keys.iter().map(|(key, cost)| (key.to_be_bytes(), *cost)).collect();
                let mut demands: Vec<_> =
                    keys.iter().map(|(key, cost)| Demand::new(&policy, key, *cost)).collect();
                let _ = store.acquire_at(store.clock().now(), &mut demands);
                let Words::Growing(table) = &store.core().tables.words else { unreachable!() };
                // ORDERING: Relaxed. There is one thread.
                let counted = table.len.load(Relaxed);
                prop_assert_eq!(counted, table.len() as u64);
            }
        }
    }
}
