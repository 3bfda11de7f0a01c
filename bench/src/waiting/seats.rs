//! Counts how often each seat was served, and how long it waited.
//!
//! A seat belongs to one task or thread that calls, waits, is served and calls again. It takes its
//! place in the order of arrival just before it calls the limiter, so two seats that call at the
//! same moment on two threads may reach it in the other order: a seat counts as *overtaken* only if
//! a seat more than [`SLACK`] places behind was served first.

use crate::machine::{all_allocations, monotonic_ns, process_cpu_ns};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many places threads may swap that call or wake at the same moment.
pub(super) const SLACK: u64 = 4;

/// The highest cost of a call; each cost up to this one is counted separately.
pub(super) const COST_MAX: usize = 10;

// ORDERING: Relaxed is enough for all atomics here. They are statistics: nothing else is published
// through them, and a reader that comes a moment early misses one event of thousands.

#[derive(Default)]
struct Seat {
    cost: u64,
    grants: AtomicU64,
    gave_up: AtomicU64,
    /// Since when it waits; zero while it does not.
    since_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Seat {
    /// Returns the longest wait, including the current one.
    fn longest_ns(&self, now_ns: u64) -> u64 {
        let since = self.since_ns.load(Relaxed);
        let current = if since == 0 { 0 } else { now_ns.saturating_sub(since) };
        self.longest_ns.load(Relaxed).max(current)
    }
}

/// All seats of one measurement.
pub(super) struct Seats {
    seats: Vec<Seat>,
    /// How many places in the order of arrival were given out.
    places: AtomicU64,
    /// The last place that was served.
    last_served: AtomicU64,
    overtaken: AtomicU64,
}

/// A call that waits for its answer.
#[must_use]
pub(super) struct Ask {
    seat: usize,
    place: u64,
}

/// The counters when the measured time began.
#[must_use]
pub(super) struct Opening {
    ns: u64,
    cpu_ns: u64,
    allocations: u64,
    gave_up: u64,
    overtaken: u64,
    grants: Vec<u64>,
}

/// The results of one measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) cpu_us: f64,
    pub(super) allocations: f64,
    pub(super) grants: f64,
    /// The cost of the grants.
    pub(super) permits: f64,
    /// Calls that gave up.
    pub(super) gave_up: f64,
    pub(super) overtaken: f64,
    /// Grants of the seat that got the fewest, and of the one that got the most.
    pub(super) least: f64,
    pub(super) most: f64,
    /// The longest wait by cost: the first is of cost 1.
    pub(super) longest_ms: [f64; COST_MAX],
    /// How long one more call waited when all seats had left.
    pub(super) next_ms: f64,
}

impl Sample {
    pub(super) fn cpu_us_each(&self) -> f64 {
        self.cpu_us / self.grants
    }

    pub(super) fn cpu_us_per_permit(&self) -> f64 {
        self.cpu_us / self.permits
    }

    pub(super) fn allocations_each(&self) -> f64 {
        self.allocations / self.grants
    }

    pub(super) fn permits_per_second(&self) -> f64 {
        self.permits / self.seconds
    }

    pub(super) fn longest_ms(&self) -> f64 {
        self.longest_ms.into_iter().fold(0.0, f64::max)
    }

    pub(super) fn spread(&self) -> f64 {
        self.most - self.least
    }
}

impl Seats {
    /// Makes seats, each with the cost of its calls.
    pub(super) fn new(costs: impl IntoIterator<Item = u64>) -> Self {
        let seat = |cost| Seat { cost, ..Seat::default() };
        Self {
            seats: costs.into_iter().map(seat).collect(),
            places: AtomicU64::new(0),
            last_served: AtomicU64::new(0),
            overtaken: AtomicU64::new(0),
        }
    }

    pub(super) fn cost(&self, seat: usize) -> u64 {
        self.seats[seat].cost
    }

    /// Takes a place in the order of arrival.
    pub(super) fn ask(&self, seat: usize) -> Ask {
        self.seats[seat].since_ns.store(monotonic_ns(), Relaxed);
        Ask { seat, place: self.places.fetch_add(1, Relaxed) }
    }

    /// Returns whether every seat has called once.
    pub(super) fn all_have_asked(&self) -> bool {
        self.seats.iter().all(|seat| {
            seat.since_ns.load(Relaxed) != 0
                || seat.grants.load(Relaxed) != 0
                || seat.gave_up.load(Relaxed) != 0
        })
    }

    pub(super) fn served(&self, Ask { seat, place }: Ask) {
        let (seat, now_ns) = (&self.seats[seat], monotonic_ns());
        seat.longest_ns.fetch_max(seat.longest_ns(now_ns), Relaxed);
        seat.since_ns.store(0, Relaxed);
        seat.grants.fetch_add(1, Relaxed);
        if self.last_served.fetch_max(place, Relaxed) > place + SLACK {
            self.overtaken.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn gave_up(&self, Ask { seat, .. }: Ask) {
        let seat = &self.seats[seat];
        seat.since_ns.store(0, Relaxed);
        seat.gave_up.fetch_add(1, Relaxed);
    }

    fn all_gave_up(&self) -> u64 {
        self.seats.iter().map(|seat| seat.gave_up.load(Relaxed)).sum()
    }

    /// Begins the measured time.
    pub(super) fn open(&self) -> Opening {
        let grants = self.seats.iter().map(|seat| {
            seat.longest_ns.store(0, Relaxed);
            seat.grants.load(Relaxed)
        });
        let grants = grants.collect();
        Opening {
            grants,
            gave_up: self.all_gave_up(),
            overtaken: self.overtaken.load(Relaxed),
            allocations: all_allocations(),
            cpu_ns: process_cpu_ns(),
            ns: monotonic_ns(),
        }
    }

    /// Ends the measured time.
    pub(super) fn close(&self, opening: &Opening) -> Sample {
        let now_ns = monotonic_ns();
        let mut sample = Sample {
            seconds: (now_ns - opening.ns) as f64 / 1e9,
            cpu_us: (process_cpu_ns() - opening.cpu_ns) as f64 / 1e3,
            allocations: (all_allocations() - opening.allocations) as f64,
            gave_up: (self.all_gave_up() - opening.gave_up) as f64,
            overtaken: (self.overtaken.load(Relaxed) - opening.overtaken) as f64,
            least: f64::INFINITY,
            ..Sample::default()
        };
        for (seat, before) in self.seats.iter().zip(&opening.grants) {
            let grants = (seat.grants.load(Relaxed) - before) as f64;
            sample.grants += grants;
            sample.permits += grants * seat.cost as f64;
            sample.least = sample.least.min(grants);
            sample.most = sample.most.max(grants);
            let longest = &mut sample.longest_ms[(seat.cost as usize - 1).min(COST_MAX - 1)];
            *longest = longest.max(seat.longest_ns(now_ns) as f64 / 1e6);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_counted_from_the_opening_on() {
        let seats = Seats::new([1, 10]);
        seats.served(seats.ask(0));
        let opening = seats.open();
        for seat in [0, 1, 1, 1] {
            seats.served(seats.ask(seat));
        }
        seats.gave_up(seats.ask(0));
        let sample = seats.close(&opening);
        assert_eq!((sample.grants, sample.permits, sample.gave_up), (4.0, 31.0, 1.0));
        assert_eq!((sample.least, sample.most, sample.spread()), (1.0, 3.0, 2.0));
        assert_eq!(sample.overtaken, 0.0);
    }

    #[test]
    fn a_wait_that_goes_on_counts_with_what_it_took_so_far() {
        let seats = Seats::new([1, 2]);
        let opening = seats.open();
        assert!(!seats.all_have_asked());
        let _waits = seats.ask(1);
        let sample = seats.close(&opening);
        assert_eq!(sample.longest_ms[0], 0.0);
        assert!(sample.longest_ms[1] > 0.0);
        seats.served(seats.ask(0));
        assert!(seats.all_have_asked());
    }

    #[test]
    fn who_is_served_after_a_much_later_ask_is_overtaken() {
        let seats = Seats::new([1; 20]);
        let opening = seats.open();
        let mut asks: Vec<Ask> = (0..20).map(|seat| seats.ask(seat)).collect();
        // The first two swap, as threads may do. Then the last comes before all the others.
        asks.swap(0, 1);
        let last = asks.pop().unwrap();
        let rest = asks.split_off(2);
        asks.into_iter().chain([last]).chain(rest).for_each(|ask| seats.served(ask));
        // Of the places 2 to 18, those that are more than the slack before 19.
        assert_eq!(seats.close(&opening).overtaken, 13.0);
    }
}
