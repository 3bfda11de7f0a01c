//! How a call went: the outcome for the service by its response, its trailers or its error.

use crate::{
    NotRun, RefusedBy,
    limit::status::{self, tells_grpc_status},
};
use http::{Extensions, HeaderMap, StatusCode, header, response::Parts};
use std::{any::Any, sync::Arc};
use tollgate::CallOutcome;

/// Turns the head of a response into an outcome.
type ByHead = Arc<dyn Fn(&Parts) -> CallOutcome + Send + Sync>;
/// Turns an error into an outcome; `None` if it has another type.
type ByError = Arc<dyn Fn(&dyn Any) -> Option<CallOutcome> + Send + Sync>;

/// How calls become outcomes.
#[derive(Clone)]
pub(crate) struct Classify {
    pub(crate) by_head: ByHead,
    by_error: Option<ByError>,
    /// The outcome of a call that ends with an error instead of a response.
    pub(crate) on_error: CallOutcome,
    /// A call ends with its body instead of the head of its response.
    pub(crate) until_body: bool,
    /// Calls of gRPC and event streams have outcomes, too.
    pub(crate) has_streams: bool,
}

impl Default for Classify {
    fn default() -> Self {
        Self {
            by_head: Arc::new(Self::outcome_of),
            by_error: None,
            on_error: CallOutcome::Overload,
            until_body: false,
            has_streams: false,
        }
    }
}

impl Classify {
    /// Returns the outcome by a response. A refusal of another layer says nothing about the
    /// service.
    pub(crate) fn outcome(&self, head: &Parts) -> CallOutcome {
        let is_ignored =
            is_refusal(&head.extensions) || (!self.has_streams && is_stream(&head.headers));
        if is_ignored { CallOutcome::Ignore } else { (self.by_head)(head) }
    }

    /// Returns the outcome by an error.
    pub(crate) fn outcome_of_error<E: 'static>(&self, error: &E) -> CallOutcome {
        let by_error = self.by_error.as_ref().and_then(|by_error| by_error(error));
        by_error.unwrap_or(self.on_error)
    }

    /// Classifies errors of one type; others have the outcome `on_error`.
    pub(crate) fn by_error<E: 'static>(
        &mut self,
        classify: impl Fn(&E) -> CallOutcome + Send + Sync + 'static,
    ) {
        self.by_error = Some(Arc::new(move |error| error.downcast_ref().map(&classify)));
    }

    /// The default: the outcome by status and `grpc-status`.
    pub(crate) fn outcome_of(head: &Parts) -> CallOutcome {
        // A status in the trailers is still to come.
        status::of(head).map_or(CallOutcome::Success, Self::outcome_of_status)
    }

    fn outcome_of_status(status: StatusCode) -> CallOutcome {
        match status.as_u16() {
            429 | 503 | 504 => CallOutcome::Overload,
            499 => CallOutcome::Ignore,
            501 | 505 => CallOutcome::Success,
            500.. => CallOutcome::Failure,
            _ => CallOutcome::Success,
        }
    }

    /// Returns the outcome by gRPC trailers; `None` if they have no status.
    pub(crate) fn outcome_of_trailers(trailers: &HeaderMap) -> Option<CallOutcome> {
        status::of_grpc(trailers).map(Self::outcome_of_status)
    }
}

/// Tells whether a layer of this crate, or of the user, has refused the call.
pub(crate) fn is_refusal(extensions: &Extensions) -> bool {
    extensions.get::<NotRun>().is_some() || extensions.get::<RefusedBy>().is_some()
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
