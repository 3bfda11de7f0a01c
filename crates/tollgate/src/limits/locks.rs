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
    table::{Held, Miss, Shard, Stripe, Who, WideShard, Words},
};

/// A place to lock.
#[derive(Clone, Copy)]
enum Place<'a> {
    Cell(&'a Cell),
    Shard(&'a Mutex<Shard>),
    Stripe(&'a Stripe),
    Wide(&'a Mutex<WideShard>),
}

impl Place<'_> {
    fn address(&self) -> usize {
        match self {
            Self::Cell(cell) => std::ptr::from_ref::<Cell>(cell) as usize,
            Self::Shard(shard) => std::ptr::from_ref::<Mutex<Shard>>(shard) as usize,
            Self::Stripe(stripe) => std::ptr::from_ref::<Stripe>(stripe) as usize,
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
    Stripe(Held<'a>),
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
            Words::Bounded(table) => table.stripes_of(key).map(|it| Some(Place::Stripe(it))),
        }
    }
}

impl<'a> Charge<'a> {
    /// Returns the state that the charge is about.
    pub(crate) fn state(&self, who: Option<Who>) -> State<'a> {
        match (self.target, who) {
            (Target::Limiter(limiter), _) => State::Limiter(&limiter.shared.cell),
            (Target::Key(core, ..), Some(who)) => State::Key(core, who),
            (Target::Key(core, key), None) => State::Key(core, core.who(key, core.clock.now()).0),
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
                Place::Stripe(stripe) => Locked::Stripe(stripe.lock()),
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
        if let Some(Locked::Stripe(held)) =
            second.map(|place| self.index(place)).and_then(|index| self.locked.get_mut(index))
        {
            held.changed();
        }
        match (self.locked.get_mut(first), state) {
            (Some(Locked::Cell(cell)), _) => Ok(step(&mut cell.entry())),
            (Some(Locked::Shard(shard)), State::Key(core, who)) => match &core.tables.words {
                Words::Growing(table) => table.update_held(who, shard, step),
                Words::Bounded(_) => Err(Miss::Stale),
            },
            (Some(Locked::Stripe(held)), State::Key(core, who)) => match &core.tables.words {
                Words::Bounded(table) => {
                    held.changed();
                    table.update_held(who, held, step)
                }
                Words::Growing(_) => Err(Miss::Stale),
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
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let mut state = *state;
        if let State::Key(_, who) = &mut state {
            who.stamp = Who::SEEN;
        }
        self.update(&state, step)
    }
}
