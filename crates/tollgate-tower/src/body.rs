//! The body of a response behind a layer: that of the service, or that of a refusal.

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// A value that a body holds until it has ended, has failed, or is dropped.
pub trait BodyGuard {
    /// Called when this many bytes are sent.
    fn sent(&mut self, _bytes: u64) {}

    /// Called with the trailers of the body.
    fn trailers(&mut self, _trailers: &HeaderMap) {}

    /// Called when the body is complete.
    fn ended(&mut self) {}

    /// Called when the body has failed.
    fn failed(&mut self) {}
}

/// A body without a guard.
impl BodyGuard for () {}

pin_project! {
    /// The body of a response of a layer of this crate: that of the service, or that of a refusal.
    ///
    /// The body of the service also holds a resource that the layer has to free or to settle (a
    /// slot, a reservation, a pass) until the body has ended, has failed, or is dropped. Each layer
    /// has a name for its own: [`LimitBody`](crate::LimitBody),
    /// [`ConcurrencyBody`](crate::ConcurrencyBody).
    pub struct GuardedBody<B, G> {
        #[pin]
        source: Source<B, G>,
    }
}

pin_project! {
    #[project = SourceProjection]
    enum Source<B, G> {
        // The guard goes after the body: fields are dropped in this order.
        Service { #[pin] body: B, guard: Option<G> },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B, G> GuardedBody<B, G> {
    pub(crate) const fn service(body: B, guard: Option<G>) -> Self {
        Self { source: Source::Service { body, guard } }
    }

    pub(crate) const fn refusal(bytes: Bytes) -> Self {
        Self { source: Source::Refusal { bytes: Some(bytes) } }
    }

    /// Returns the body of the service as it came, if it holds nothing to release at its end.
    pub(crate) fn into_service(self) -> B
    where
        B: From<Self>,
    {
        match self.source {
            Source::Service { body, guard: None } => body,
            source => Self { source }.into(),
        }
    }
}

impl<B: Body<Data = Bytes>, G: BodyGuard> Body for GuardedBody<B, G> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().source.project() {
            SourceProjection::Refusal { bytes } => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            // Nearly always there is no guard.
            SourceProjection::Service { body, guard: None } => body.poll_frame(context),
            SourceProjection::Service { mut body, guard: guarded @ Some(_) } => {
                let polled = body.as_mut().poll_frame(context);
                let Some(guard) = guarded.as_mut() else { return polled };
                let is_over = match &polled {
                    Poll::Pending => false,
                    Poll::Ready(Some(Err(_))) => {
                        guard.failed();
                        true
                    }
                    Poll::Ready(Some(Ok(frame))) => {
                        guard.sent(frame.data_ref().map_or(0, Buf::remaining) as u64);
                        frame.trailers_ref().into_iter().for_each(|it| guard.trailers(it));
                        let is_complete = body.is_end_stream();
                        if is_complete {
                            guard.ended();
                        }
                        is_complete
                    }
                    Poll::Ready(None) => {
                        guard.ended();
                        true
                    }
                };
                if is_over {
                    *guarded = None;
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Service { body, .. } => body.is_end_stream(),
            Source::Refusal { bytes } => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Service { body, .. } => body.size_hint(),
            Source::Refusal { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B, G> fmt::Debug for GuardedBody<B, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.source {
            Source::Service { .. } => "service",
            Source::Refusal { .. } => "refusal",
        };
        f.debug_tuple("GuardedBody").field(&of).finish()
    }
}
