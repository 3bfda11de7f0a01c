//! When requests are sent, and which of them count.
//!
//! Requests of a run have numbers. In an open loop number `n` is due `n / rate` seconds after the
//! start, and belongs to connection `n % connections`. So the program keeps neither a list of due
//! times nor a queue of late requests: the number of requests that a connection has sent determines
//! its next one.

const SECOND_NS: u128 = 1_000_000_000;

/// The pace of a run: responses or the clock determine when the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The responses: each connection keeps so many requests in flight, and a response allows the
    /// next.
    Closed {
        /// Requests in flight on one connection.
        depth: u64,
    },
    /// The clock: so many requests are due each second, whatever the server does.
    Open {
        /// Requests each second, over all connections.
        rate: u64,
    },
}

/// The timetable of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) pace: Pace,
    pub(crate) connections: u64,
    /// Requests that are sent or due before this are not measured.
    pub(crate) measure_from_ns: u64,
    /// No request is sent from here on.
    pub(crate) end_ns: Option<u64>,
    /// The most requests of the run.
    pub(crate) requests: Option<u64>,
}

impl Schedule {
    /// Returns the most requests that one connection sends.
    pub(crate) fn share(&self, connection: u64) -> u64 {
        let by_time = match self.pace {
            Pace::Open { .. } => self.end_ns.map(|end| self.due_count(end.saturating_sub(1))),
            Pace::Closed { .. } => None,
        };
        let total = match (self.requests, by_time) {
            (Some(requests), Some(by_time)) => Some(requests.min(by_time)),
            (one, other) => one.or(other),
        };
        total.map_or(u64::MAX, |total| self.part(total, connection))
    }

    /// Returns how many of the first `total` requests belong to one connection.
    pub(crate) fn part(&self, total: u64, connection: u64) -> u64 {
        total / self.connections + u64::from(connection < total % self.connections)
    }

    /// Returns how many requests are due at a time; always 0 in a closed loop.
    pub(crate) fn due_count(&self, now_ns: u64) -> u64 {
        let Pace::Open { rate } = self.pace else { return 0 };
        // OVERFLOW: two numbers of 64 bits in 128.
        let due = ((u128::from(now_ns) + 1) * u128::from(rate)).div_ceil(SECOND_NS);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// Returns when a request of the whole run is due.
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        let Pace::Open { rate } = self.pace else { return 0 };
        u64::try_from(u128::from(number) * SECOND_NS / u128::from(rate)).unwrap_or(u64::MAX)
    }

    /// Returns when the `index`-th request of a connection is due.
    pub(crate) fn due_on(&self, connection: u64, index: u64) -> u64 {
        self.due_ns(index.saturating_mul(self.connections).saturating_add(connection))
    }

    /// Tells whether the time for new requests is over.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        matches!(self.pace, Pace::Closed { .. }) && self.end_ns.is_some_and(|end| now_ns >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(rate: u64, end_ns: Option<u64>, requests: Option<u64>) -> Schedule {
        let pace = Pace::Open { rate };
        Schedule { pace, connections: 3, measure_from_ns: 0, end_ns, requests }
    }

    #[test]
    fn a_request_is_due_from_its_due_time_on() {
        for rate in [1, 3, 7, 20_000, 333_333, 10_000_000] {
            let schedule = open(rate, None, None);
            for number in [0, 1, 2, 99, 12_345] {
                let due = schedule.due_ns(number);
                assert_eq!(schedule.due_count(due), number + 1, "{rate} {number}");
                if due > 0 {
                    assert_eq!(schedule.due_count(due - 1), number, "{rate} {number}");
                }
            }
        }
    }

    #[test]
    fn shares_add_up() {
        let second = Some(1_000_000_000);
        for (schedule, total) in [
            (open(100, second, None), 100),
            (open(100, second, Some(7)), 7),
            (open(100, None, Some(1000)), 1000),
        ] {
            let sum: u64 = (0..3).map(|connection| schedule.share(connection)).sum();
            assert_eq!(sum, total, "{schedule:?}");
        }
        assert_eq!(open(1, None, None).share(0), u64::MAX);
    }

    #[test]
    fn connections_take_turns() {
        let schedule = open(1000, None, None);
        let due: Vec<u64> = [(0, 0), (1, 0), (2, 0), (0, 1)]
            .map(|(connection, index)| schedule.due_on(connection, index))
            .to_vec();
        assert_eq!(due, [0, 1_000_000, 2_000_000, 3_000_000]);
    }
}
