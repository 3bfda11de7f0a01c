//! The permit of an admitted call.

use crate::{CallOutcome, Pass, Permit, Tick};

/// One admitted call. End it with how the call went.
///
/// | end | slot | breaker | permits of the rate |
/// |---|---|---|---|
/// | [`end`](Self::end) | is free again | counts the outcome | stay spent |
/// | drop | is free again | counts nothing; a trial's slot is free again | stay spent |
///
/// It borrows nothing, so it may move into a task or another thread.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once limits nothing; hold it while you work, then end it"]
pub struct AdmissionPermit {
    pub(super) pass: Option<Pass<'static>>,
    pub(super) slot: Option<Permit>,
}

impl AdmissionPermit {
    /// Ends the call: tells the breaker how it went, and frees the slot.
    pub fn end(self, outcome: CallOutcome) {
        if let Some(pass) = self.pass {
            pass.end(outcome);
        }
    }

    /// Ends the call, and opens the breaker until the tick that the dependency named; see
    /// [`Pass::end_until`].
    pub fn end_until(self, outcome: CallOutcome, until: Tick) {
        if let Some(pass) = self.pass {
            pass.end_until(outcome, until);
        }
    }

    /// Tells whether this call is a trial of a half-open breaker.
    #[must_use]
    pub fn is_trial(&self) -> bool {
        self.pass.as_ref().is_some_and(Pass::is_trial)
    }

    /// Tells whether the call holds a slot of a concurrency limit.
    #[must_use]
    pub const fn holds_slot(&self) -> bool {
        self.slot.is_some()
    }
}
