//! The hook.

use crate::Decision;
use std::fmt;

/// Which verb was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `try_acquire` and its forms.
    TryAcquire,
    /// `acquire` and its forms: told when the wait is over.
    Acquire,
    /// `up_to`.
    UpTo,
    /// `reserve` and its forms.
    Reserve,
    /// `force`.
    Force,
    /// `try_acquire_on_credit`.
    OnCredit,
}

impl Verb {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TryAcquire => "try_acquire",
            Self::Acquire => "acquire",
            Self::UpTo => "up_to",
            Self::Reserve => "reserve",
            Self::Force => "force",
            Self::OnCredit => "try_acquire_on_credit",
        }
    }

    /// Returns how many permits must be free for a call of `cost` to pass, if it asks at all.
    pub(crate) fn least(self, cost: u64) -> u64 {
        if self == Self::OnCredit { cost.min(1) } else { cost }
    }
}

/// What an [`Observer`] is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Name of the limiter.
    pub name: &'a str,
    /// The verb.
    pub verb: Verb,
    /// The answer.
    pub decision: &'a Decision,
    /// Whether the answer was followed. If not, it was only watched, and the event passed all the
    /// same: a limit that is tried out.
    pub is_enforced: bool,
}

impl<'a> Event<'a> {
    /// Returns an event that was decided as told, and enforced: for layers that decide by
    /// themselves, and for tests of observers.
    #[must_use]
    pub const fn new(name: &'a str, verb: Verb, decision: &'a Decision) -> Self {
        Self { name, verb, decision, is_enforced: true }
    }

    /// Says that the answer was only watched.
    #[must_use]
    pub const fn watched(mut self) -> Self {
        self.is_enforced = false;
        self
    }
}

/// Is told of every decision, on the thread that asked, after the decision was made.
///
/// Keep it short: the caller waits for it. It cannot change the decision.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Hears of one decision.
    fn decided(&self, event: &Event<'_>);
}

/// Several observers at once.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn decided(&self, event: &Event<'_>) {
        self.0.decided(event);
        self.1.decided(event);
    }
}

impl<T: Observer + ?Sized> Observer for std::sync::Arc<T> {
    fn decided(&self, event: &Event<'_>) {
        (**self).decided(event);
    }
}
