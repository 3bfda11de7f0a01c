//! The body of a response, which settles the cost of its request when it has ended.

use super::{
    correct::{Actual, End},
    gate::Gate,
    pass::Pass,
    status,
};
use crate::body::{BodyGuard, GuardedBody};
use http::HeaderMap;
use std::{fmt, sync::Arc};

/// The body of a response of [`RateLimit`](super::RateLimit). It settles the cost of its request
/// when it has ended, has failed, or is dropped.
pub type LimitBody<B> = GuardedBody<B, Box<Meter>>;

/// Counts the bytes that are sent, and settles the cost at the end, or when it is dropped.
pub struct Meter {
    pub(super) gate: Arc<Gate>,
    /// Taken when it is settled.
    pub(super) pass: Option<Pass>,
    pub(super) actual: Actual,
    pub(super) end: End,
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            let _beside = self.gate.settle(pass, &self.actual, self.end);
        }
    }
}

impl BodyGuard for Box<Meter> {
    fn sent(&mut self, bytes: u64) {
        self.end.sent = self.end.sent.saturating_add(bytes);
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.end.status = status::of_grpc(trailers);
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("end", &self.end).finish_non_exhaustive()
    }
}
