//! The body of a response, which holds a slot until it has ended.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tollgate::Permit;

pin_project! {
    /// The body of a response of [`Room`](super::Room). It holds the slot of its request until it
    /// has ended, has failed, or is dropped.
    pub struct RoomBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        // The slot is free after the body is gone: fields are dropped in this order.
        Service { #[pin] body: B, permit: Option<Permit> },
        Told { bytes: Option<Bytes> },
    }
}

impl<B> RoomBody<B> {
    pub(super) const fn service(body: B, permit: Option<Permit>) -> Self {
        Self { kind: Kind::Service { body, permit } }
    }

    pub(super) const fn told(bytes: Bytes) -> Self {
        Self { kind: Kind::Told { bytes: Some(bytes) } }
    }
}

impl<B: Body<Data = Bytes>> Body for RoomBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Told { bytes } => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            KindProjection::Service { mut body, permit } => {
                let polled = body.as_mut().poll_frame(context);
                let has_ended = match &polled {
                    Poll::Pending => false,
                    Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                    Poll::Ready(Some(Err(_)) | None) => true,
                };
                if has_ended {
                    *permit = None;
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Service { body, .. } => body.is_end_stream(),
            Kind::Told { bytes } => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Service { body, .. } => body.size_hint(),
            Kind::Told { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B> fmt::Debug for RoomBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Service { .. } => "RoomBody(service)",
            Kind::Told { .. } => "RoomBody(told)",
        })
    }
}
