//! The open reservations and leases of a store in memory, and their bounds.
//!
//! Each limit of a reservation takes a slot, whatever it costs: a reservation of zero permits is held
//! in memory like any other. Slots are bounded in all, so that memory is; per policy, so that one policy
//! cannot keep the others from reserving; and per key, so that one client cannot do that to its policy.
//!
//! A reservation takes its slots before the quotas decide, so a bound refuses without a charge.

use crate::{Reservation, Tick, store::StoreError};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// How many slots may be taken at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    pub(super) total: usize,
    pub(super) per_policy: usize,
    pub(super) per_key: usize,
}

/// One limit of a reservation: the ids of its policy and of its key, which has the policy in it.
pub(super) type Slot = (u64, u64);

/// Open reservations and leases.
#[derive(Debug, Default)]
pub(super) struct OpenReservations {
    bounds: Bounds,
    next_id: u64,
    open: HashMap<u64, Open>,
    /// By the time at which they expire.
    ends: BTreeSet<(Tick, u64)>,
    taken: usize,
    by_policy: HashMap<u64, usize>,
    by_key: HashMap<u64, usize>,
}

/// One reservation.
#[derive(Debug)]
struct Open {
    until: Tick,
    slots: Box<[Slot]>,
    /// None while the quotas decide.
    reservations: Vec<Reservation>,
}

impl OpenReservations {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, next_id: 1, ..Self::default() }
    }

    /// Takes a slot for each limit, and returns the id of the reservation to come. `name_of` returns
    /// the policy's name of a slot, for the error.
    pub(super) fn hold<'a>(
        &mut self,
        (now, life): (Tick, Duration),
        slots: Box<[Slot]>,
        name_of: impl Fn(usize) -> &'a str,
    ) -> Result<u64, StoreError> {
        self.expire(now);
        for (index, slot) in slots.iter().enumerate() {
            if let Err(error) = self.take(*slot, || name_of(index)) {
                slots[..index].iter().for_each(|slot| self.free(*slot));
                return Err(error);
            }
        }
        let (id, until) = (self.next_id, now.saturating_add(life));
        self.next_id += 1;
        self.ends.insert((until, id));
        self.open.insert(id, Open { until, slots, reservations: Vec::new() });
        Ok(id)
    }

    /// Says what the slots of a reservation are for. If its life has ended meanwhile, it is final.
    pub(super) fn fill(&mut self, id: u64, reservations: Vec<Reservation>) {
        if let Some(open) = self.open.get_mut(&id) {
            open.reservations = reservations;
        }
    }

    /// Returns how many limits a reservation has, if it is open.
    pub(super) fn limits(&mut self, id: u64, now: Tick) -> Option<usize> {
        self.expire(now);
        self.open.get(&id).map(|open| open.slots.len())
    }

    /// Removes a reservation, and frees its slots.
    pub(super) fn remove(&mut self, id: u64) -> Option<Vec<Reservation>> {
        let Open { until, slots, reservations } = self.open.remove(&id)?;
        self.ends.remove(&(until, id));
        slots.iter().for_each(|slot| self.free(*slot));
        Some(reservations)
    }

    /// Makes final what has expired.
    fn expire(&mut self, now: Tick) {
        while let Some((until, id)) = self.ends.first().copied()
            && until <= now
        {
            self.remove(id);
        }
    }

    fn take<'a>(
        &mut self,
        (policy, key): Slot,
        name: impl Fn() -> &'a str,
    ) -> Result<(), StoreError> {
        let Bounds { total, per_policy, per_key } = self.bounds;
        let count = |of: &HashMap<u64, usize>, id| of.get(&id).copied().unwrap_or(0);
        let (whose, most, setting) = match () {
            () if count(&self.by_key, key) >= per_key => {
                (format!("a key of policy \"{}\"", name()), per_key, "max_reservations_per_key")
            }
            () if count(&self.by_policy, policy) >= per_policy => {
                (format!("policy \"{}\"", name()), per_policy, "max_reservations_per_policy")
            }
            () if self.taken >= total => ("the store".to_owned(), total, "max_reservations"),
            () => {
                self.taken += 1;
                *self.by_policy.entry(policy).or_default() += 1;
                *self.by_key.entry(key).or_default() += 1;
                return Ok(());
            }
        };
        Err(StoreError::full(format!(
            "{whose} has {most} open reservations, the maximum; settle or cancel some, give them a \
             shorter life, or raise {setting}"
        )))
    }

    fn free(&mut self, (policy, key): Slot) {
        self.taken -= 1;
        for (counts, id) in [(&mut self.by_policy, policy), (&mut self.by_key, key)] {
            if let Some(count) = counts.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&id);
                }
            }
        }
    }
}
