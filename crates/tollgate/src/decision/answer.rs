//! Decisions of stores outside this crate.

use super::{Decision, Level, Outcome, Reason};
use crate::{algorithm::word_time, clock::Tick};

/// What a store outside this crate has found out, for [`Decision::answered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Now, later or never.
    pub outcome: Outcome,
    /// When it was decided.
    pub at: Tick,
    /// The permits that were taken, or asked for and refused.
    pub cost: u64,
    /// The most that can pass at once.
    pub limit: u64,
    /// How many permits are left afterwards.
    pub remaining: u64,
    /// When the same call would pass; only read if the outcome is [`Outcome::Later`].
    pub retry_at: Tick,
    /// When the limit is full again; `None` if never.
    pub full_at: Option<Tick>,
}

impl Decision {
    /// Returns the decision that a store outside this crate has come to.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Answer, Decision, Outcome, Tick};
    ///
    /// let decision = Decision::answered(Answer {
    ///     outcome: Outcome::Later,
    ///     at: Tick::from_millis(5),
    ///     cost: 1,
    ///     limit: 10,
    ///     remaining: 0,
    ///     retry_at: Tick::from_millis(105),
    ///     full_at: Some(Tick::from_millis(1005)),
    /// });
    /// assert!(decision.is_denied());
    /// assert_eq!(decision.retry_at(), Some(Tick::from_millis(105)));
    /// ```
    pub fn answered(answer: Answer) -> Self {
        let Answer { outcome, at, cost, limit, remaining, retry_at, full_at } = answer;
        let time = |tick: Tick| word_time::from_nanos(tick.as_nanos());
        let level = Level { at, limit, remaining, full: full_at.map_or(word_time::NEVER, time) };
        Self::new(outcome, level, cost, time(retry_at))
    }

    /// Returns one decision over several limits, of which each has its own: allowed if all are, the
    /// longest wait, the fewest permits left. `None` if there are none, or more than 64.
    #[must_use]
    pub fn join(each: &[Self]) -> Option<Self> {
        let refused =
            |mask, (index, own): (usize, &Self)| mask | u64::from(own.is_denied()) << index;
        match each.len() {
            1..=64 => Self::joined(each.iter(), each.iter().enumerate().fold(0, refused)),
            _ => None,
        }
    }

    /// Returns the same decision, marked as one that was made without the store.
    pub const fn degraded(self) -> Self {
        self.because(Reason::Degraded)
    }

    /// Tells whether the store could not be asked, and its failure policy has decided.
    #[must_use]
    pub const fn is_degraded(&self) -> bool {
        matches!(self.reason(), Reason::Degraded)
    }
}
