//! The response to a request that gets no slot.

use super::shared::SharedLimit;
use crate::{
    Info, NotRun, RefusedBy,
    answer::{Refusal, Told, Verdict},
};
use bytes::Bytes;
use http::Response;
use tollgate::{Answer, Decision, Full, Outcome, Tick};

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    /// The request has no key.
    NoKey,
    /// As many requests as allowed are in flight.
    Full { limit: u64 },
    /// The key is new, and too many keys are in use.
    TooManyKeys { limit: u64 },
    /// The request is not urgent enough for the load.
    Shed { limit: u64 },
    /// The limit is closed for good.
    Closed { limit: u64 },
}

impl From<Full> for Why {
    fn from(full: Full) -> Self {
        let limit = full.limit();
        match (full.is_too_many_keys(), full.is_closed()) {
            (_, true) => Self::Closed { limit },
            (true, false) => Self::TooManyKeys { limit },
            (false, false) => Self::Full { limit },
        }
    }
}

impl SharedLimit {
    /// Returns the response to a refused request.
    pub(super) fn refusal(&self, why: Why, info: &Info<'_>) -> Response<Bytes> {
        let now = self.clock.now();
        let (limit, refusal, reason) = match why {
            Why::NoKey => (None, Refusal::Unidentified, Refusal::Unidentified.why()),
            Why::Full { limit } => (Some(limit), self.refusal, "all slots are taken"),
            Why::TooManyKeys { limit } => {
                (Some(limit), Refusal::ReducedCapacity, "too many keys are in use")
            }
            Why::Shed { limit } => {
                (Some(limit), Refusal::ReducedCapacity, "the request is not urgent enough")
            }
            Why::Closed { limit } => (Some(limit), Refusal::ReducedCapacity, "it is closed"),
        };
        let told = limit.map(|limit| Told::new(&self.label, full(now, limit)));
        let mut verdict = Verdict::new(&self.clock, now, told.as_slice()).refused(refusal);
        if let Some(wait) = self.settings.retry_after.filter(|_| limit.is_some()) {
            verdict = verdict.wait_at_least(wait);
        }
        let mut response = self.refusals.write(&verdict, info, |_| {});
        self.write_lowest_served(response.headers_mut());
        let part = self.part.get().copied().unwrap_or("concurrency");
        let refused = RefusedBy::new(part, reason, verdict.retry_after());
        // A hook may have made another response: the request did not run either.
        response.extensions_mut().insert(NotRun);
        response.extensions_mut().insert(refused);
        response
    }
}

/// Returns the decision of a limit that is full. When it ends is unknown: a request has to finish.
fn full(at: Tick, limit: u64) -> Decision {
    let outcome = Outcome::Never;
    Decision::answered(Answer {
        outcome,
        at,
        cost: 1,
        limit,
        remaining: 0,
        retry_at: at,
        full_at: None,
    })
}
