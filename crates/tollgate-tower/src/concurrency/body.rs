//! The body of a response, which holds a slot until it has ended.

use super::slot::HeldSlot;
use crate::body::HeldBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// The body of a response of [`ConcurrencyLimit`](super::ConcurrencyLimit). It holds the slot of
    /// its request until it has ended, has failed, or is dropped.
    pub struct ConcurrencyBody<B> {
        #[pin]
        body: HeldBody<B, HeldSlot>,
    }
}

impl<B> ConcurrencyBody<B> {
    pub(super) const fn service(body: B, held: Option<HeldSlot>) -> Self {
        Self { body: HeldBody::Service { body, held } }
    }

    pub(super) const fn told(bytes: Bytes) -> Self {
        Self { body: HeldBody::told(bytes) }
    }
}

impl<B: Body<Data = Bytes>> Body for ConcurrencyBody<B> {
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

impl<B> fmt::Debug for ConcurrencyBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyBody").field(&self.body).finish()
    }
}
