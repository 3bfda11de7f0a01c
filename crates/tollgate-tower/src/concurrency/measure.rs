//! What a response says about the load of the service, for limits that adapt.

use crate::{
    NotRun,
    limit::status::{self, tells_grpc_status},
};
use http::{HeaderMap, StatusCode, header, response::Parts};
use std::sync::Arc;
use tollgate::CallOutcome;

/// Turns the head of a response into an outcome.
pub(super) type Classify = Arc<dyn Fn(&Parts) -> CallOutcome + Send + Sync>;

/// How calls become samples of a law.
#[derive(Clone)]
pub(super) struct Measurement {
    pub(super) classify: Classify,
    /// The outcome of a call that ends with an error instead of a response.
    pub(super) on_error: CallOutcome,
    /// A call ends with its body instead of the head of its response.
    pub(super) until_body: bool,
    /// Calls of gRPC and event streams are samples, too.
    pub(super) has_streams: bool,
}

impl Measurement {
    pub(super) fn new() -> Self {
        let (classify, on_error) = (Arc::new(Self::outcome_of), CallOutcome::Overload);
        Self { classify, on_error, until_body: false, has_streams: false }
    }

    /// Returns what a response says. A request that was refused further in says nothing: it did
    /// not reach the service.
    pub(super) fn outcome(&self, head: &Parts) -> CallOutcome {
        let is_no_sample = head.extensions.get::<NotRun>().is_some()
            || (!self.has_streams && is_stream(&head.headers));
        if is_no_sample { CallOutcome::Ignore } else { (self.classify)(head) }
    }

    /// The default: what status and `grpc-status` say.
    pub(super) fn outcome_of(head: &Parts) -> CallOutcome {
        // A status in the trailers is still to come.
        status::of(head).map_or(CallOutcome::Success, Self::outcome_of_status)
    }

    pub(super) fn outcome_of_status(status: StatusCode) -> CallOutcome {
        match status.as_u16() {
            429 | 503 | 504 => CallOutcome::Overload,
            499 => CallOutcome::Ignore,
            501 | 505 => CallOutcome::Success,
            500.. => CallOutcome::Failure,
            _ => CallOutcome::Success,
        }
    }
}

/// Tells whether a body may last as long as client and server like.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let is_events = kind.is_some_and(|kind| {
        let name = kind.split(|byte| *byte == b';').next().unwrap_or(kind);
        name.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    });
    is_events || tells_grpc_status(headers)
}
