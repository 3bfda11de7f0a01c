//! The response to a request that gets no slot.

use super::shared::SharedLimit;
use crate::{
    Info, NotRun,
    answer::{Refusal, Told, Verdict},
};
use bytes::Bytes;
use http::Response;
use std::sync::Arc;
use tollgate::{Answer, Decision, Full, Outcome, Tick};

/// Changes the response to a refused request.
pub(super) type RefusalHook =
    Arc<dyn Fn(&Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    /// The request has no key.
    NoKey,
    /// So many requests may be in flight, and are.
    Full { limit: u64 },
    /// The key is new, and too many are in use.
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
        let is_grpc = info.is_grpc();
        let now = self.clock.now();
        let told = |limit| [Told::new(&self.label, full(now, limit))];
        let mut response = match why {
            Why::NoKey => {
                let verdict = Verdict::new(&self.clock, now, &[]).refused(Refusal::Unidentified);
                self.write(&verdict, is_grpc)
            }
            Why::Full { limit } => self.write_full(&told(limit), self.refusal, is_grpc),
            Why::TooManyKeys { limit } | Why::Shed { limit } | Why::Closed { limit } => {
                self.write_full(&told(limit), Refusal::ReducedCapacity, is_grpc)
            }
        };
        self.write_lowest_served(response.headers_mut());
        // A hook may have made another response: it did not run either.
        response.extensions_mut().insert(NotRun);
        response
    }

    fn write_full(&self, told: &[Told<'_>], refusal: Refusal, is_grpc: bool) -> Response<Bytes> {
        let mut verdict = Verdict::new(&self.clock, self.clock.now(), told).refused(refusal);
        if let Some(wait) = self.settings.retry_after {
            verdict = verdict.wait_at_least(wait);
        }
        self.write(&verdict, is_grpc)
    }

    fn write(&self, verdict: &Verdict<'_>, is_grpc: bool) -> Response<Bytes> {
        let settings = &self.settings;
        let response = if is_grpc {
            settings.headers.grpc_response(verdict).map(|()| Bytes::new())
        } else {
            settings.headers.response(verdict, settings.body)
        };
        match &settings.hook {
            Some(hook) => hook(verdict, response),
            None => response,
        }
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
