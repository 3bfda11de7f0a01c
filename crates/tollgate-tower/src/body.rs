//! The body of a response behind a layer: that of the service, or what a refused client is told.

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// What a body holds until it has ended, has failed, or is dropped.
pub(crate) trait Hold {
    /// So many bytes are sent.
    fn sent(&mut self, _bytes: u64) {}

    /// These came at the end.
    fn trailers(&mut self, _trailers: &HeaderMap) {}

    /// The body is complete.
    fn ended(&mut self) {}
}

pin_project! {
    #[project = Projection]
    pub(crate) enum HeldBody<B, H> {
        // What is held goes after the body: fields are dropped in this order.
        Service { #[pin] body: B, held: Option<H> },
        Told { bytes: Option<Bytes> },
    }
}

impl<B, H> HeldBody<B, H> {
    pub(crate) const fn told(bytes: Bytes) -> Self {
        Self::Told { bytes: Some(bytes) }
    }
}

impl<B: Body<Data = Bytes>, H: Hold> Body for HeldBody<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project() {
            Projection::Told { bytes } => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            // Nearly always there is nothing to see to.
            Projection::Service { body, held: None } => body.poll_frame(context),
            Projection::Service { mut body, held } => {
                let polled = body.as_mut().poll_frame(context);
                let is_complete = match &polled {
                    Poll::Pending | Poll::Ready(Some(Err(_))) => false,
                    Poll::Ready(Some(Ok(frame))) => {
                        let bytes = frame.data_ref().map_or(0, Buf::remaining) as u64;
                        held.iter_mut().for_each(|held| held.sent(bytes));
                        if let (Some(held), Some(trailers)) = (&mut *held, frame.trailers_ref()) {
                            held.trailers(trailers);
                        }
                        body.is_end_stream()
                    }
                    Poll::Ready(None) => true,
                };
                if is_complete {
                    held.iter_mut().for_each(Hold::ended);
                }
                if is_complete || matches!(polled, Poll::Ready(Some(Err(_)))) {
                    *held = None;
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body, .. } => body.is_end_stream(),
            Self::Told { bytes } => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Service { body, .. } => body.size_hint(),
            Self::Told { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B, H> fmt::Debug for HeldBody<B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service { .. } => "service",
            Self::Told { .. } => "told",
        })
    }
}
