//! The ledger against a plain list.

use super::*;
use proptest::{prelude::*, sample::Index};

/// The slow model: walks a list of (id, mark, units).
#[derive(Default)]
struct Plain {
    open: Vec<(u64, u64, u64)>,
    next_id: u64,
}

impl Plain {
    fn add(&mut self, mark: u64, units: u64, passed: u64) {
        let gone = self.open.iter().take_while(|open| open.1 <= passed).count();
        self.open.drain(..gone);
        self.open.push((self.next_id, mark, units));
        self.next_id += 1;
    }

    fn lower(&mut self, units: u64, is_lowered: impl Fn(u64, u64) -> bool) {
        for (id, mark, _) in &mut self.open {
            *mark -= if is_lowered(*id, *mark) { units.min(*mark) } else { 0 };
        }
    }
}

fn all(ledger: &Ledger) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    for id in 0..ledger.open.next_id() {
        if let Some(index) = ledger.open.index_of(id) {
            let units = ledger.open.value(index).saturating_sub(ledger.taken);
            all.push((id, ledger.open.place(index), units));
        }
    }
    assert_eq!(all.len(), ledger.len());
    all
}

#[derive(Clone, Debug)]
enum Event {
    Wait(u64),
    Add(u64),
    /// Somebody books who is not in the ledger.
    Book(u64),
    Forget(Index),
    /// Gives back up to so much.
    Cancel(Index, u64),
    Unbook(Index, u64),
    Refund(u64),
    TakeFromAll(u64),
    Reread,
}

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (0u64..20).prop_map(Event::Wait),
        12 => (1u64..20).prop_map(Event::Add),
        2 => (1u64..20).prop_map(Event::Book),
        3 => any::<Index>().prop_map(Event::Forget),
        5 => (any::<Index>(), 0u64..30).prop_map(|(pick, most)| Event::Cancel(pick, most)),
        2 => (any::<Index>(), 0u64..30).prop_map(|(pick, most)| Event::Unbook(pick, most)),
        1 => (0u64..40).prop_map(Event::Refund),
        1 => (0u64..3).prop_map(Event::TakeFromAll),
        1 => Just(Event::Reread),
    ];
    prop::collection::vec(event, 0..most)
}

/// A timeline that is booked up to `booked`, as that of GCRA.
#[derive(Default)]
struct Timeline {
    now: u64,
    booked: u64,
    ledger: Ledger,
    plain: Plain,
    /// (mark, units) of bookings that are not in the ledger.
    others: Vec<(u64, u64)>,
}

impl Timeline {
    fn book(&mut self, units: u64) -> u64 {
        self.booked = self.booked.max(self.now) + units;
        self.booked
    }

    fn outstanding(&self, mark: u64, units: u64, most: u64) -> u64 {
        mark.saturating_sub(self.now).min(units).min(most)
    }

    fn lower_others(&mut self, mark: u64, amount: u64) {
        self.booked -= amount;
        for other in self.others.iter_mut().filter(|other| other.0 > mark) {
            other.0 = other.0.saturating_sub(amount);
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Wait(time) => self.now += time,
            Event::Add(units) => {
                let mark = self.book(units);
                self.ledger.add(mark, units, self.now);
                self.plain.add(mark, units, self.now);
            }
            Event::Book(units) => {
                let mark = self.book(units);
                self.others.push((mark, units));
            }
            Event::Forget(pick) if !self.plain.open.is_empty() => {
                let (id, ..) = self.plain.open.remove(pick.index(self.plain.open.len()));
                assert!(self.ledger.remove(id).is_some());
                assert_eq!(self.ledger.remove(id), None, "a take is removed once");
            }
            Event::Cancel(pick, most) if !self.plain.open.is_empty() => {
                let index = pick.index(self.plain.open.len());
                let (id, mark, units) = self.plain.open.remove(index);
                assert_eq!(self.ledger.remove(id), Some(Open { mark, units }));
                let amount = self.outstanding(mark, units, most);
                self.ledger.lower_younger(id, amount);
                self.plain.lower(amount, |other, _| other > id);
                self.lower_others(mark, amount);
            }
            Event::Unbook(pick, most) if !self.others.is_empty() => {
                let (mark, units) = self.others.remove(pick.index(self.others.len()));
                let amount = self.outstanding(mark, units, most);
                self.ledger.lower_behind(mark, amount);
                self.plain.lower(amount, |_, other| other > mark);
                self.lower_others(mark, amount);
            }
            Event::Refund(most) => {
                let amount = self.booked.saturating_sub(self.now).min(most);
                self.ledger.lower_all(amount);
                self.plain.lower(amount, |_, _| true);
                self.lower_others(0, amount);
            }
            Event::TakeFromAll(units) => {
                self.ledger.take_from_all(units);
                let claims = self.plain.open.iter_mut();
                claims.for_each(|open| open.2 = open.2.saturating_sub(units));
            }
            Event::Reread => {
                let is_large = self.booked >> 40 > 0;
                let reread = |place: u64| if is_large { place / 2 } else { place * 2 };
                self.ledger.reread(reread);
                for (_, mark, units) in &mut self.plain.open {
                    (*mark, *units) = (reread(*mark), reread(*units));
                }
                self.others.iter_mut().for_each(|it| *it = (reread(it.0), reread(it.1)));
                (self.now, self.booked) = (reread(self.now), reread(self.booked));
            }
            _ => {}
        }
    }
}

/// A take right behind somebody else's booking is cancelled. When that booking is given back too, the place where the
/// take began moves to before it, as all places behind.
#[test]
fn what_was_cancelled_moves_with_those_behind() {
    let mut ledger = Ledger::default();
    let [_, first, second] =
        [(10, 10), (43, 5), (47, 4)].map(|(mark, units)| ledger.add(mark, units, 0));
    ledger.remove(first);
    ledger.lower_younger(first, 5);
    ledger.lower_behind(38, 23);
    ledger.lower_behind(34, 15);
    assert_eq!(ledger.remove(second), Some(Open { mark: 19, units: 4 }));
}

proptest! {
    #[test]
    fn agrees_with_a_plain_list_on_a_timeline(events in events(300)) {
        let mut timeline = Timeline::default();
        for event in &events {
            timeline.apply(event);
            prop_assert_eq!(all(&timeline.ledger), &timeline.plain.open[..], "{:?}", event);
        }
    }

    /// Sums that do not fit a word, and claims that would fall below zero.
    #[test]
    fn no_amount_overflows(
        events in prop::collection::vec((0usize..4, any::<Index>(), 0u32..65), 0..200),
    ) {
        let (mut ledger, mut plain) = (Ledger::default(), Plain::default());
        for (verb, pick, bits) in events {
            let amount = u64::MAX.checked_shr(bits).unwrap_or(0);
            let id = pick.index(1 + plain.next_id as usize) as u64;
            match verb {
                0 => {
                    let (mark, units) = (amount.min((1 << 63) - 1), amount >> 1);
                    ledger.add(mark, units, 0);
                    plain.add(mark, units, 0);
                }
                1 => {
                    let index = plain.open.iter().position(|open| open.0 == id);
                    let known = index.map(|index| plain.open.remove(index));
                    let known = known.map(|(_, mark, units)| Open { mark, units });
                    prop_assert_eq!(ledger.remove(id), known);
                    ledger.lower_younger(id, amount);
                    plain.lower(amount, |other, _| other > id);
                }
                2 => {
                    ledger.take_from_all(amount);
                    let claims = plain.open.iter_mut();
                    claims.for_each(|open| open.2 = open.2.saturating_sub(amount));
                }
                _ => {
                    ledger.lower_all(amount);
                    plain.lower(amount, |_, _| true);
                }
            }
            prop_assert_eq!(all(&ledger), &plain.open[..]);
        }
    }
}

#[test]
fn memory_follows_the_open_reservations() {
    // From the front, from the back, and every second one first.
    let orders: [fn(u64) -> u64; 3] =
        [|it| it, |it| 9999 - it, |it| if it < 5000 { 2 * it } else { 2 * (it - 5000) + 1 }];
    for order in orders {
        let mut ledger = Ledger::default();
        (0..10_000).for_each(|it| _ = ledger.add(it + 1, 1, 0));
        for (closed, id) in (0..10_000).map(order).enumerate() {
            assert!(ledger.remove(id).is_some());
            let open = 10_000 - closed - 1;
            assert!(ledger.open.room() <= 4 * open + 256, "{open}: {}", ledger.open.room());
        }
    }
}
