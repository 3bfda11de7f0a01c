//! The body of a response, which settles what its request has cost when it has ended.

use super::{
    correct::{Actual, End},
    gate::Gate,
    pass::Pass,
    status,
};
use crate::body::{HeldBody, Hold};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

pin_project! {
    /// The body of a response of [`RateLimit`](super::RateLimit).
    pub struct LimitBody<B> {
        #[pin]
        body: HeldBody<B, Box<Meter>>,
    }
}

/// Counts what is sent, and settles with it at the end, or when it is dropped.
pub(crate) struct Meter {
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

impl Hold for Box<Meter> {
    fn sent(&mut self, bytes: u64) {
        self.end.sent = self.end.sent.saturating_add(bytes);
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.end.status = status::of_grpc(trailers);
    }
}

impl<B> LimitBody<B> {
    pub(super) const fn service(body: B, meter: Option<Box<Meter>>) -> Self {
        Self { body: HeldBody::Service { body, held: meter } }
    }

    /// Returns the body of the service as it came, if there is nothing to see to at its end.
    pub(super) fn into_service(self) -> B
    where
        B: From<Self>,
    {
        match self.body {
            HeldBody::Service { body, held: None } => body,
            body => Self { body }.into(),
        }
    }

    pub(super) const fn told(bytes: Bytes) -> Self {
        Self { body: HeldBody::told(bytes) }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for LimitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitBody").field(&self.body).finish()
    }
}
