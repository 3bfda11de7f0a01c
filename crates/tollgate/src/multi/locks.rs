//! The states of one decision, locked together.
//!
//! | rank | what | locked by |
//! |---|---|---|
//! | 0 | logs and other large states | a mutex |
//! | 1 | a key whose state is a word | the mutex of its shard if it is absent, then the lock bit of its word |
//! | 2 | a limiter whose state is a word | the lock bit of its word |
//!
//! First all mutexes are locked, then all lock bits, both in the order of rank, address and fingerprint. So two
//! decisions never wait for each other in a circle, and a thread that holds a lock bit waits for no mutex.

use super::inline_vec::BorrowedVec;
use crate::{
    Limiter,
    algorithm::{AnyRule, Entry},
    keyed::core::Core,
    limiter::cell::{Cell, HeldCell},
    sync::{Mutex, MutexGuard, lock},
    table::{BoxedShard, BoxedTable, Full, HeldKey, KeyRef, Writer},
};

/// Which state is meant.
#[derive(Clone, Copy)]
pub(crate) enum ResolvedState<'a> {
    Limiter(&'a Cell),
    Key(&'a Core, KeyRef),
}

/// The order in which states are locked; equal for one and the same state.
type LockOrder = (u8, usize, u64);

impl<'a> ResolvedState<'a> {
    pub(crate) fn of_limiter(limiter: &'a Limiter) -> Self {
        Self::Limiter(&limiter.shared.cell)
    }

    /// Returns the rule of a key.
    pub(crate) const fn rule(&self) -> Option<&AnyRule> {
        match self {
            Self::Limiter(_) => None,
            Self::Key(_, key_ref) => Some(&key_ref.rule),
        }
    }

    /// Applies `step` to the state, atomically; `None` if a full table has no room for the key. It may
    /// run several times; the last run counts.
    pub(crate) fn update<R>(&self, step: impl FnMut(&mut Entry<'_>) -> R) -> Option<R> {
        match self {
            Self::Limiter(cell) => Some(cell.update(step)),
            Self::Key(core, key_ref) => core.tables.update(key_ref, step).ok(),
        }
    }

    /// Reads the state as a `peek` does. The time of a key that does not start full begins with the first look at it: else
    /// no wait could be named for it, because the call after that wait would be its first. Without room in the
    /// table its time begins later.
    pub(crate) fn look<R>(&self, mut look: impl FnMut(&mut Entry<'_>) -> R) -> R {
        let kept = match self {
            Self::Key(_, key_ref) if key_ref.rule.is_kept() => self.update(&mut look),
            _ => None,
        };
        kept.unwrap_or_else(|| self.read(look))
    }

    /// Reads the state without changing it.
    pub(crate) fn read<R>(&self, look: impl FnMut(&mut Entry<'_>) -> R) -> R {
        match self {
            Self::Limiter(cell) => cell.update(look),
            Self::Key(core, key_ref) => core.tables.read(key_ref, look),
        }
    }

    pub(crate) fn rank(&self) -> LockOrder {
        match self {
            Self::Limiter(cell) => {
                (if cell.is_word() { 2 } else { 0 }, std::ptr::from_ref(*cell) as usize, 0)
            }
            Self::Key(core, key_ref) => {
                let rank = u8::from(matches!(key_ref.rule, AnyRule::Word(_)));
                (rank, std::ptr::from_ref(*core) as usize, key_ref.fingerprint)
            }
        }
    }
}

/// A state that is locked, or about to be.
enum HeldState<'a> {
    Cell(HeldCell<'a>),
    /// With the number of its guard, if its shard is locked.
    Key(HeldKey<'a>, Option<usize>),
    BoxedTable(&'a BoxedTable, usize),
}

enum ShardGuard<'a> {
    Words(MutexGuard<'a, Writer>),
    BoxedTable(MutexGuard<'a, BoxedShard>),
}

/// All states of a decision, locked until dropped. They are numbered as they were added.
pub(crate) struct Locks<'r, 'a> {
    states: BorrowedVec<'r, (ResolvedState<'a>, Option<HeldState<'a>>)>,
    /// The states in the order in which they are locked, each once.
    order: BorrowedVec<'r, (LockOrder, usize)>,
    guards: BorrowedVec<'r, (usize, ShardGuard<'a>)>,
}

/// Room for the states of as many limits as are usual.
pub(crate) struct LockBuffers<'a> {
    states: [Option<(ResolvedState<'a>, Option<HeldState<'a>>)>; 8],
    order: [Option<(LockOrder, usize)>; 8],
    guards: [Option<(usize, ShardGuard<'a>)>; 8],
}

impl LockBuffers<'_> {
    pub(crate) const fn new() -> Self {
        Self { states: [const { None }; 8], order: [None; 8], guards: [const { None }; 8] }
    }
}

impl<'r, 'a> Locks<'r, 'a> {
    pub(crate) const fn new(
        LockBuffers { states, order, guards }: &'r mut LockBuffers<'a>,
    ) -> Self {
        Self {
            states: BorrowedVec::within(states),
            order: BorrowedVec::within(order),
            guards: BorrowedVec::within(guards),
        }
    }

    /// Adds a state and returns its number.
    pub(crate) fn push(&mut self, state: ResolvedState<'a>) -> usize {
        let number = self.states.len();
        self.states.push((state, None));
        self.order.push((state.rank(), number));
        number
    }

    /// Locks all states. Calls `same` with the numbers of each that was added before, and of the first that is the
    /// same state.
    pub(crate) fn lock(&mut self, mut same: impl FnMut(usize, usize)) {
        self.order.sort_by_key(|known| *known);
        let mut last = None;
        for place in self.order.slice_mut() {
            let Some((rank, number)) = *place else { continue };
            match last {
                Some((known, first)) if known == rank => {
                    same(number, first);
                    *place = None;
                }
                _ => last = Some((rank, number)),
            }
        }
        // A key may leave its slot before its lock bit is set. With all mutexes locked, none does.
        let mut with_mutex = false;
        loop {
            self.lock_mutexes(with_mutex);
            let Some(locked) = self.lock_words() else { return };
            self.give_up(locked);
            with_mutex = true;
        }
    }

    /// Locks what has a mutex: large states, the shards of absent keys, and all shards if `with_mutex`.
    fn lock_mutexes(&mut self, with_mutex: bool) {
        let Self { states, order, guards } = self;
        for (_, number) in order.iter() {
            let Some((state, held)) = states.get_mut(*number) else { continue };
            *held = match state {
                ResolvedState::Limiter(cell) if cell.is_word() => None,
                ResolvedState::Limiter(cell) => Some(HeldState::Cell(cell.hold())),
                ResolvedState::Key(core, key_ref) if matches!(key_ref.rule, AnyRule::Word(_)) => {
                    let key = HeldKey::find(&core.tables.words, key_ref.fingerprint);
                    let is_needed = with_mutex || !key.is_found();
                    let guard = is_needed.then(|| guard(guards, key.mutex(), ShardGuard::Words));
                    Some(HeldState::Key(key, guard))
                }
                ResolvedState::Key(core, key_ref) => {
                    let boxed = &core.tables.boxed;
                    let number =
                        guard(guards, boxed.map.shard(key_ref.fingerprint), ShardGuard::BoxedTable);
                    Some(HeldState::BoxedTable(boxed, number))
                }
            };
        }
        if guards.len() > 0 {
            self.each_guarded(|key, key_ref, writer| key.find_again(writer, key_ref.now));
        }
    }

    /// Calls `each` with the keys whose shards are locked.
    fn each_guarded(&mut self, mut each: impl FnMut(&mut HeldKey<'a>, &KeyRef, &mut Writer)) {
        for (state, held) in self.states.iter_mut() {
            if let (ResolvedState::Key(_, key_ref), Some(HeldState::Key(key, Some(number)))) =
                (state, held)
                && let Some((_, ShardGuard::Words(writer))) = self.guards.get_mut(*number)
            {
                each(key, key_ref, writer);
            }
        }
    }

    /// Sets the lock bits. If a key has left its slot, returns how many were set before.
    fn lock_words(&mut self) -> Option<usize> {
        for (locked, (_, number)) in self.order.iter().enumerate() {
            let Some((state, held)) = self.states.get_mut(*number) else { continue };
            let has_left = match (state, &mut *held) {
                (ResolvedState::Limiter(cell), None) => {
                    *held = Some(HeldState::Cell(cell.hold()));
                    false
                }
                (ResolvedState::Key(_, key_ref), Some(HeldState::Key(key, _))) => {
                    !key.lock(key_ref)
                }
                _ => false,
            };
            if has_left {
                return Some(locked);
            }
        }
        None
    }

    /// Unlocks all, with nothing changed.
    fn give_up(&mut self, locked: usize) {
        for (index, (_, number)) in self.order.iter().enumerate() {
            if let Some((_, held)) = self.states.get_mut(*number)
                && let Some(HeldState::Key(mut key, _)) = held.take()
            {
                key.give_up(index < locked);
            }
        }
        self.guards.clear();
    }

    /// Applies `step` to a state. A key is taken in if the step leaves it not at rest.
    #[inline]
    pub(crate) fn update<R>(
        &mut self,
        number: usize,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let Some((state, Some(held))) = self.states.get_mut(number) else { return Err(Full) };
        match (state, held) {
            (_, HeldState::Cell(held)) => Ok(step(&mut held.entry())),
            (ResolvedState::Key(_, key_ref), HeldState::Key(key, _)) => key.update(key_ref, step),
            (ResolvedState::Key(_, key_ref), HeldState::BoxedTable(boxed, number)) => {
                match self.guards.get_mut(*number) {
                    Some((_, ShardGuard::BoxedTable(shard))) => {
                        boxed.update_held(key_ref, shard, step)
                    }
                    _ => Err(Full),
                }
            }
            _ => Err(Full),
        }
    }
}

/// Returns the number of a guard, after its mutex was locked. Mutexes come in order: what is locked was locked last.
fn guard<'a, T>(
    guards: &mut BorrowedVec<'_, (usize, ShardGuard<'a>)>,
    mutex: &'a Mutex<T>,
    of: impl FnOnce(MutexGuard<'a, T>) -> ShardGuard<'a>,
) -> usize {
    let address = std::ptr::from_ref(mutex) as usize;
    if guards.last().is_none_or(|(last, _)| *last != address) {
        guards.push((address, of(lock(mutex))));
    }
    guards.len() - 1
}

impl Drop for Locks<'_, '_> {
    fn drop(&mut self) {
        // Lock bits first: adding a key may have to move entries, also those that this decision holds.
        for (state, held) in self.states.iter_mut() {
            match (state, &mut *held) {
                (ResolvedState::Key(_, key_ref), Some(HeldState::Key(key, _))) => {
                    key.unlock(key_ref)
                }
                _ => *held = None,
            }
        }
        self.each_guarded(|key, key_ref, writer| key.insert(key_ref, writer));
        self.states.clear();
        self.guards.clear();
        self.order.clear();
    }
}
