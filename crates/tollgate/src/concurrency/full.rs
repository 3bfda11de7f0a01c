//! The refusal of a call that may not enter.

use std::fmt;

/// Why no permit was given out, with the numbers of that moment.
///
/// A refusal is an answer, not a fault: it changes nothing. The predicates say what would help.
///
/// | predicate | what it says |
/// |---|---|
/// | [`is_never`](Self::is_never) | no release can help: ask for less, or raise the limit |
/// | [`is_queue_full`](Self::is_queue_full) | as many wait as may |
/// | [`is_too_many_keys`](Self::is_too_many_keys) | the key is new, and too many are in use |
/// | [`is_timed_out`](Self::is_timed_out) | it waited until its deadline |
/// | [`is_displaced`](Self::is_displaced) | it waited, and left its place to a more urgent call |
/// | [`is_closed`](Self::is_closed) | the limit is closed for good |
/// | none of them | it does not fit now, or other calls wait ahead |
///
/// # Examples
///
/// ```
/// use tollgate::Concurrency;
///
/// let limit = Concurrency::new(2)?;
/// let _both = limit.try_acquire_n(2)?;
/// let full = limit.try_acquire().unwrap_err();
/// assert_eq!((full.in_flight(), full.limit(), full.is_never()), (2, 2, false));
/// assert_eq!(full.to_string(), "2 of 2 permits are in flight; retry cost 1 after a release");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub(super) limit: u64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) cost: u64,
    pub(super) why: Why,
}

/// The rule that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It does not fit beside what is in flight, or other calls wait ahead.
    Busy,
    /// The cost is above the limit.
    Never,
    /// Busy, and as many wait as may.
    QueueFull { max_waiting: u64 },
    /// Busy, and as many wait as may, all keys together.
    QueuesFull { max_waiting_total: u64 },
    /// As many keys are in use as may be.
    TooManyKeys { max_keys: u64 },
    /// It waited until its deadline.
    TimedOut,
    /// It waited, and left its place to a more urgent call.
    Displaced,
    /// The limit is closed.
    Closed,
}

impl Full {
    /// Returns the limit in force; for keys, that of the key.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many permits were in flight. More than the limit if that was lowered.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns how many waited.
    #[must_use]
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Returns how many permits were asked for.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Tells whether no release can help, because the cost is above the limit.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        matches!(self.why, Why::Never)
    }

    /// Tells whether the caller would have waited, but as many wait already as may.
    #[must_use]
    pub const fn is_queue_full(&self) -> bool {
        matches!(self.why, Why::QueueFull { .. } | Why::QueuesFull { .. })
    }

    /// Tells whether the key is new and as many keys are in use as may be.
    #[must_use]
    pub const fn is_too_many_keys(&self) -> bool {
        matches!(self.why, Why::TooManyKeys { .. })
    }

    /// Tells whether it waited until its deadline, and no permit came free for it.
    #[must_use]
    #[doc(alias = "timeout")]
    pub const fn is_timed_out(&self) -> bool {
        matches!(self.why, Why::TimedOut)
    }

    /// Tells whether it waited, and left its place in a full queue to a call of a higher
    /// [`Priority`](crate::Priority).
    #[must_use]
    pub const fn is_displaced(&self) -> bool {
        matches!(self.why, Why::Displaced)
    }

    /// Tells whether the limit is closed: no permit is given out any more.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.why, Why::Closed)
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, in_flight, waiting, cost, why } = self;
        match why {
            Why::Never => write!(
                f,
                "cost {cost} is above the limit of {limit} in flight, so no release helps; ask for \
                 less, or raise the limit"
            ),
            Why::TooManyKeys { max_keys } => write!(
                f,
                "{max_keys} keys are in use, the maximum of max_keys, and this one is new; retry \
                 when one of them is done, or raise max_keys"
            ),
            Why::TimedOut => write!(
                f,
                "{in_flight} of {limit} permits are in flight, and none came free for cost {cost} until the deadline; \
                 retry later, or wait longer (max_wait, within)"
            ),
            Why::Displaced => write!(
                f,
                "{in_flight} of {limit} permits are in flight, and a more urgent call took the place of cost {cost} in \
                 the full queue; retry later, or raise max_waiting"
            ),
            Why::Closed => {
                f.write_str("the limit is closed and grants no permits; build a new one")
            }
            Why::Busy if *waiting == 0 => write!(
                f,
                "{in_flight} of {limit} permits are in flight; retry cost {cost} after a release"
            ),
            Why::Busy => write!(
                f,
                "{in_flight} of {limit} permits are in flight and {waiting} wait ahead; retry cost \
                 {cost} later, or wait with acquire"
            ),
            Why::QueueFull { max_waiting: 0 } => write!(
                f,
                "{in_flight} of {limit} permits are in flight and waiting is off; retry cost \
                 {cost} after a release, or set max_waiting"
            ),
            Why::QueueFull { max_waiting } => write!(
                f,
                "{in_flight} of {limit} permits are in flight and {max_waiting} wait, the maximum \
                 of max_waiting; retry cost {cost} later, or raise max_waiting"
            ),
            Why::QueuesFull { max_waiting_total } => write!(
                f,
                "{in_flight} of {limit} permits are in flight and {max_waiting_total} wait on all \
                 keys, the maximum of max_waiting_total; retry cost {cost} later, or raise it"
            ),
        }
    }
}

impl std::error::Error for Full {}
