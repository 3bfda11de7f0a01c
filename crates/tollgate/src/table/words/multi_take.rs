//! The fast path of a decision about several keys.

use super::{Content, NAME, Place, Slot, WordTable};
use crate::{
    Decision, Tick,
    algorithm::{Rule, Step, word_time},
};

/// One of several keys, with its part of the cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// With the salt of the rule.
    pub(crate) fingerprint: u64,
    pub(crate) rule: &'a Rule,
    pub(crate) cost: u64,
}

/// A key as it was read: its slot, unless it is absent, what that held, and its word as it is to become.
#[derive(Clone, Copy)]
struct Seen<'t> {
    slot: Option<&'t Slot>,
    content: Content,
    word: u64,
}

impl WordTable {
    /// Takes from at most `N` keys, from all or none. Calls `tell` with the decision of each, and returns a mask of
    /// those that refused. `None` if anything is unusual: a key is to be charged and absent, twice there, in use, or
    /// was written by another quota.
    ///
    /// It decides by what it reads without a lock. If any key refuses, that is the answer, and nothing was written.
    /// Else it sets the lock bits of all words, each only if it is still as it was read, and stores.
    pub(crate) fn take_all<const N: usize>(
        &self,
        asks: &[Ask<'_>],
        now: Tick,
        mut tell: impl FnMut(usize, Decision),
    ) -> Option<u64> {
        let mut order = [(0, 0); N];
        let order = order.get_mut(..asks.len())?;
        for (index, (place, ask)) in order.iter_mut().zip(asks).enumerate() {
            *place = (ask.fingerprint, index);
        }
        order.sort_unstable();
        if order.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let (mut keys, mut refused) = ([const { None::<Seen<'_>> }; N], 0);
        for (index, (ask, key)) in asks.iter().zip(&mut keys).enumerate() {
            let mut seen = self.read_like(ask, now)?;
            let mut told = |decision: Decision| {
                refused |= u64::from(decision.is_denied()) << index;
                tell(index, decision);
            };
            // The compiler sees the usual rule, and writes its decision where it is told.
            match ask.rule {
                Rule::Gcra(gcra) => told(gcra.decide(&mut seen.word, now, ask.cost)),
                rule => told(rule.decide(&mut seen.word, now, ask.cost)),
            }
            *key = Some(seen);
        }
        if refused == 0 {
            return Self::store_all(asks, &keys, order, now).then_some(0);
        }
        for (index, (ask, key)) in asks.iter().zip(keys.iter().flatten()).enumerate() {
            if refused >> index & 1 == 0 {
                // It is not charged: it shows its level as it is.
                tell(index, ask.rule.peek(&key.content.word, now, 0).forced(ask.cost));
            }
        }
        Some(refused)
    }

    /// Reads a key whose word a quota like this one wrote, so that it means what it says. `None` if anything is
    /// unusual.
    #[inline]
    fn read_like(&self, ask: &Ask<'_>, now: Tick) -> Option<Seen<'_>> {
        let Place { shard: index, name } = Place::of(ask.fingerprint);
        let shard = &self.shards[index];
        let head = shard.head.0.load();
        let Some(slot) = self.find(index, head, name, NAME) else {
            let is_absent =
                shard.overflow.find(name, NAME).is_none() && shard.head.0.is_still(head);
            let content = Content { tag: name, word: 0 };
            return is_absent.then_some(Seen { slot: None, content, word: 0 });
        };
        let content = slot.load();
        let Content { word, .. } = content;
        let is_like = !content.hint().is_time() || content.hint() == ask.rule.hint(word, now);
        let is_usual = content.name() == name && word < word_time::OWED && is_like;
        let is_settled = is_usual && slot.is_still(content) && shard.head.0.is_still(head);
        is_settled.then_some(Seen { slot: Some(slot), content, word })
    }

    /// Stores the words of all keys, if they are as they were read. Sets their lock bits in the order of fingerprints.
    fn store_all(
        asks: &[Ask<'_>],
        keys: &[Option<Seen<'_>>],
        order: &[(u64, usize)],
        now: Tick,
    ) -> bool {
        let lock = |(_, index): &(u64, usize)| {
            let key = keys[*index].as_ref();
            key.is_some_and(|key| key.slot.is_some_and(|slot| slot.try_lock(key.content)))
        };
        let locked = order.iter().take_while(|place| lock(place)).count();
        let (is_all, order) = (locked == order.len(), &order[..locked]);
        for (_, index) in order {
            let Some(Seen { slot: Some(slot), content, word }) = keys[*index] else { continue };
            if is_all && word != content.word {
                let hint = asks[*index].rule.hint(word, now);
                slot.store(content, Content::new(content.name(), hint, word));
            } else {
                slot.unlock(content);
            }
        }
        is_all
    }
}
