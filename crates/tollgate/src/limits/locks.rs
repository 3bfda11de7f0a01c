//! The states of one decision, locked together.
//!
//! Every state has a place whose lock keeps others away: the word of a limiter, the shard or the
//! two buckets of a key. Places are locked in the order of their addresses, each once, so two
//! decisions never wait for each other in a circle. Whoever holds the lock of a single place waits
//! for no other one, or only tries.

use super::few::Lent;
use crate::{
    Limiter,
    algorithm::{AnyRule, Entry, Rule},
    keyed::core::Core,
    limiter::cell::{Cell, HeldCell},
    sync::{Mutex, MutexGuard, lock},
    table::{Bounded, Full, Growing, Held, Shard, Stripe, Who, Wide, WideShard, Words},
};

/// A place to lock.
#[derive(Clone, Copy)]
enum Place<'a> {
    Cell(&'a Cell),
    Shard(&'a Mutex<Shard>),
    Stripe(&'a Stripe),
    Wide(&'a Mutex<WideShard>),
}

/// A locked place.
enum Locked<'a> {
    Cell(HeldCell<'a>),
    Shard(MutexGuard<'a, Shard>),
    Stripe(Held<'a>),
    Wide(MutexGuard<'a, WideShard>),
}

/// All places of a decision with their addresses, locked until dropped.
pub(crate) struct Locks<'r, 'a> {
    locked: Lent<'r, (usize, Locked<'a>)>,
}

/// Room for the locks of as many limits as are usual: two for each of eight.
pub(crate) struct Room<'a>([Option<(usize, Locked<'a>)>; 16]);

impl Room<'_> {
    pub(crate) const fn new() -> Self {
        Self([const { None }; 16])
    }
}

impl Drop for Locks<'_, '_> {
    fn drop(&mut self) {
        self.locked.clear();
    }
}

/// Which state is meant, and where it is.
#[derive(Clone, Copy)]
pub(crate) enum State<'a> {
    Limiter(&'a Cell),
    Growing(&'a Growing, &'a Mutex<Shard>, Who, Rule),
    Bounded(&'a Bounded, [&'a Stripe; 2], Who, Rule),
    Wide(&'a Wide, &'a Mutex<WideShard>, Who),
}

fn address<T>(place: &T) -> usize {
    std::ptr::from_ref(place) as usize
}

impl<'a> State<'a> {
    pub(crate) fn of_limiter(limiter: &'a Limiter) -> Self {
        Self::Limiter(&limiter.shared.cell)
    }

    /// Finds the place of a key.
    pub(crate) fn of_key(core: &'a Core, who: Who) -> Self {
        let (tables, key) = (&core.tables, who.fingerprint);
        match (who.rule, &tables.words) {
            (AnyRule::Word(rule), Words::Growing(table)) => {
                Self::Growing(table, table.shard_of(key), who, rule)
            }
            (AnyRule::Word(rule), Words::Bounded(table)) => {
                Self::Bounded(table, table.stripes_of(key), who, rule)
            }
            _ => Self::Wide(&tables.wide, tables.wide.shard_of(key), who),
        }
    }

    /// Returns under which name the key was looked for, if it is one.
    pub(crate) const fn who(&self) -> Option<&Who> {
        match self {
            Self::Limiter(_) => None,
            Self::Growing(_, _, who, _) | Self::Bounded(_, _, who, _) | Self::Wide(_, _, who) => {
                Some(who)
            }
        }
    }
}

impl<'r, 'a> Locks<'r, 'a> {
    /// Locks the places of all states, in the order of their addresses.
    pub(crate) fn take(
        Room(room): &'r mut Room<'a>,
        states: impl Iterator<Item = State<'a>>,
    ) -> Self {
        let mut places = [const { None }; 16];
        let mut wanted: Lent<'_, (usize, Place<'a>)> = Lent::new(&mut places);
        for state in states {
            match state {
                State::Limiter(cell) => wanted.push((address(cell), Place::Cell(cell))),
                State::Growing(_, shard, ..) => wanted.push((address(shard), Place::Shard(shard))),
                State::Wide(_, shard, _) => wanted.push((address(shard), Place::Wide(shard))),
                State::Bounded(_, stripes, ..) => {
                    for stripe in stripes {
                        wanted.push((address(stripe), Place::Stripe(stripe)));
                    }
                }
            }
        }
        wanted.sort_by_key(|(address, _)| *address);
        let mut locks = Self { locked: Lent::new(room) };
        // No place has the address zero.
        let mut last = 0;
        for (address, place) in wanted.iter() {
            if std::mem::replace(&mut last, *address) == *address {
                continue;
            }
            let locked = match place {
                Place::Cell(cell) => Locked::Cell(cell.hold()),
                Place::Shard(shard) => Locked::Shard(lock(shard)),
                Place::Stripe(stripe) => Locked::Stripe(stripe.lock()),
                Place::Wide(shard) => Locked::Wide(lock(shard)),
            };
            locks.locked.push((*address, locked));
        }
        locks
    }

    #[inline]
    fn at<T>(&mut self, place: &T) -> Option<&mut Locked<'a>> {
        let wanted = address(place);
        self.locked.iter_mut().find(|(known, _)| *known == wanted).map(|(_, locked)| locked)
    }

    /// Applies `step` to a state. A key is taken in if the step leaves it not at rest.
    #[inline]
    pub(crate) fn update<R>(
        &mut self,
        state: &State<'a>,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        match state {
            State::Limiter(cell) => match self.at(*cell) {
                Some(Locked::Cell(held)) => Ok(step(&mut held.entry())),
                _ => Err(Full),
            },
            State::Growing(table, shard, who, rule) => match self.at(*shard) {
                Some(Locked::Shard(held)) => table.update_held(who, rule, held, step),
                _ => Err(Full),
            },
            State::Bounded(table, [first, second], who, rule) => {
                if let Some(Locked::Stripe(held)) = self.at(*second) {
                    held.changed();
                }
                match self.at(*first) {
                    Some(Locked::Stripe(held)) => {
                        held.changed();
                        table.update_held(who, rule, held, step)
                    }
                    _ => Err(Full),
                }
            }
            State::Wide(table, shard, who) => match self.at(*shard) {
                Some(Locked::Wide(held)) => table.update_held(who, held, step),
                _ => Err(Full),
            },
        }
    }
}
