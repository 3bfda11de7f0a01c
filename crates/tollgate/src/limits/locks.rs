//! The states of one decision, locked together.
//!
//! Every state has a place whose lock keeps others away: the word of a limiter, the shard or the
//! two buckets of a key. Places are locked in the order of their addresses, each once, so two
//! decisions never wait for each other in a circle. Whoever holds the lock of a single place waits
//! for no other one, or only tries.

use super::{Charge, Target, few::Few};
use crate::{
    algorithm::Entry,
    keyed::core::Core,
    limiter::cell::{Cell, HeldCell},
    sync::{Mutex, MutexGuard, lock},
    table::{Bucket, Held, Miss, Pair, Shard, Who, WideShard, Words},
};

/// A place to lock.
#[derive(Clone, Copy)]
enum Place<'a> {
    Cell(&'a Cell),
    Shard(&'a Mutex<Shard>),
    Bucket(&'a Bucket),
    Wide(&'a Mutex<WideShard>),
}

impl Place<'_> {
    fn address(&self) -> usize {
        match self {
            Self::Cell(cell) => std::ptr::from_ref::<Cell>(cell) as usize,
            Self::Shard(shard) => std::ptr::from_ref::<Mutex<Shard>>(shard) as usize,
            Self::Bucket(bucket) => std::ptr::from_ref::<Bucket>(bucket) as usize,
            Self::Wide(shard) => std::ptr::from_ref::<Mutex<WideShard>>(shard) as usize,
        }
    }
}

impl PartialEq for Place<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Place<'_> {}

impl PartialOrd for Place<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.address().cmp(&other.address())
    }
}

/// A locked place.
enum Locked<'a> {
    Cell(HeldCell<'a>),
    Shard(MutexGuard<'a, Shard>),
    Bucket(Held<'a>),
    Wide(MutexGuard<'a, WideShard>),
}

/// All places of a decision, locked until dropped.
pub(crate) struct Locks<'a> {
    places: Few<Place<'a>>,
    locked: Few<Locked<'a>>,
}

/// Which state is meant.
#[derive(Clone, Copy)]
pub(crate) enum State<'a> {
    Limiter(&'a Cell),
    Key(&'a Core, Who),
}

impl<'a> State<'a> {
    /// The place or places of a state.
    fn places(&self) -> [Option<Place<'a>>; 2] {
        let (core, who) = match *self {
            Self::Limiter(cell) => return [Some(Place::Cell(cell)), None],
            Self::Key(core, who) => (core, who),
        };
        let (tables, key) = (&core.tables, who.fingerprint);
        if !tables.base.classes.any_rule(who.class).is_word() {
            return [Some(Place::Wide(tables.wide.shard_of(key))), None];
        }
        match &tables.words {
            Words::Growing(table) => [Some(Place::Shard(table.shard_of(key))), None],
            Words::Bounded(table) => table.buckets_of(key).map(|it| Some(Place::Bucket(it))),
        }
    }
}

impl<'a> Charge<'a> {
    /// Returns the state that the charge is about.
    pub(crate) fn state(&self, who: Option<Who>) -> State<'a> {
        match (self.target, who) {
            (Target::Key(core, _), Some(who)) => State::Key(core, who),
            (Target::Key(core, key), None) => State::Key(core, core.who(key, core.clock.now())),
            (Target::Limiter(limiter), _) => State::Limiter(&limiter.shared.cell),
        }
    }
}

impl<'a> Locks<'a> {
    /// Locks the places of all states, in the order of their addresses.
    pub(crate) fn take(states: impl Iterator<Item = State<'a>>) -> Self {
        let mut wanted = Few::new();
        states.flat_map(|state| state.places()).flatten().for_each(|place| wanted.push(place));
        wanted.sort();
        let (mut places, mut locked) = (Few::new(), Few::new());
        let mut last = None;
        for place in wanted.iter().copied().filter(|place| last.replace(*place) != Some(*place)) {
            places.push(place);
            locked.push(match place {
                Place::Cell(cell) => Locked::Cell(cell.hold()),
                Place::Shard(shard) => Locked::Shard(lock(shard)),
                Place::Bucket(bucket) => Locked::Bucket(bucket.lock()),
                Place::Wide(shard) => Locked::Wide(lock(shard)),
            });
        }
        Self { places, locked }
    }

    fn index(&self, place: Place<'a>) -> usize {
        self.places.iter().position(|known| *known == place).unwrap_or(usize::MAX)
    }

    /// Applies `step` to a state. A key is taken in if the step leaves it not at rest.
    pub(crate) fn update<R>(
        &mut self,
        state: &State<'a>,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let [first, second] = state.places();
        let first = first.map_or(usize::MAX, |place| self.index(place));
        if let (State::Key(core, who), Some(second)) = (state, second) {
            let second = self.index(second);
            let Words::Bounded(table) = &core.tables.words else { return Err(Miss::Stale) };
            let pair = self.pair(first, second).ok_or(Miss::Stale)?;
            return table.update_held(who, pair, step);
        }
        match (self.locked.get_mut(first), state) {
            (Some(Locked::Cell(cell)), _) => Ok(step(&mut cell.entry())),
            (Some(Locked::Shard(shard)), State::Key(core, who)) => match &core.tables.words {
                Words::Growing(table) => table.update_held(who, shard, step),
                Words::Bounded(_) => Err(Miss::Stale),
            },
            (Some(Locked::Wide(shard)), State::Key(core, who)) => {
                core.tables.wide.update_held(who, shard, step)
            }
            _ => Err(Miss::Stale),
        }
    }

    /// [`update`](Self::update) for a state that was looked at under these locks already.
    ///
    /// A class that was retired since then does not matter: the walk that carries its slots over
    /// waits for the locks, and so finds what is written here. It must not matter, because the
    /// other states of the decision may have been written.
    pub(crate) fn update_seen<R>(
        &mut self,
        state: &State<'a>,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let mut state = *state;
        loop {
            if let State::Key(core, who) = &mut state {
                who.stamp = core.tables.base.classes.stamp();
            }
            match self.update(&state, &mut step) {
                Err(Miss::Stale) if matches!(state, State::Key(..)) => {}
                answer => return answer,
            }
        }
    }

    /// Returns two locked buckets, which may be one.
    fn pair(&mut self, first: usize, second: usize) -> Option<Pair<'_, 'a>> {
        let slice = self.locked.slice_mut();
        let bucket = |locked| match locked {
            &mut Some(Locked::Bucket(ref mut held)) => Some(held),
            _ => None,
        };
        if first == second {
            return Some(Pair { first: bucket(slice.get_mut(first)?)?, second: None });
        }
        let (low, high) = (first.min(second), first.max(second));
        let (lower, upper) = slice.split_at_mut_checked(high)?;
        let (low, high) = (bucket(lower.get_mut(low)?)?, bucket(upper.first_mut()?)?);
        Some(if first < second {
            Pair { first: low, second: Some(high) }
        } else {
            Pair { first: high, second: Some(low) }
        })
    }
}
