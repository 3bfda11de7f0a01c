//! Bodies that can be sent again although they cannot be cloned.
//!
//! The idea: all attempts at one call read the same body, one after the other. Whatever is read from
//! it is handed on at once, and kept besides. The next attempt is given what was kept, and then goes
//! on reading where the one before has stopped. What is too long to be kept is forgotten: the
//! attempt under way does not notice, and there is no other.
//!
//! 1. The body is in the middle, under a lock, and is taken out to be polled: it is other people's
//!    code, which must not run under a lock.
//! 2. Only the latest attempt reads. One that was recalled gets an error, and its transport gives it
//!    up. If that happens while it polls the body, what it gets is kept for the next one.
//! 3. When nothing is to be sent again any more (the last attempt has begun, or there is an answer),
//!    nothing more is kept, and what was kept goes as it is read.

use super::{Repeat, state::Shared};
use bytes::Bytes;
use http::{Request, request::Parts};
use http_body::{Body, Frame, SizeHint};
use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// An error of a body, whatever its type.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Keeps what was read of a body, to send it again; made by
/// [`RetryBuilder::replay`](super::RetryBuilder::replay).
pub struct Replay<B> {
    wrap: Arc<dyn Fn(ReplayBody<B>) -> B + Send + Sync>,
    pub(super) max_bytes: usize,
}

impl<B> Replay<B> {
    /// What is kept of a body, unless told otherwise.
    pub(super) const MAX_BYTES: usize = 64 * 1024;

    pub(crate) fn new(wrap: impl Fn(ReplayBody<B>) -> B + Send + Sync + 'static) -> Self {
        Self { wrap: Arc::new(wrap), max_bytes: Self::MAX_BYTES }
    }

    fn request(&self, head: Parts, shared: &Arc<Shared<B>>) -> Request<B> {
        let number = shared.number();
        let body = ReplayBody { shared: Arc::clone(shared), number };
        Request::from_parts(head, (self.wrap)(body))
    }
}

impl<B> Repeat<B> for Replay<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Spare = ReplaySpare<B>;

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Self::Spare>) {
        let (head, body) = request.into_parts();
        let keeper = Keeper(Arc::new(Shared::new(body, self.max_bytes)));
        let request = self.request(head.clone(), &keeper.0);
        (request, Some(ReplaySpare { head, keeper }))
    }

    fn is_whole(&self, spare: &Self::Spare) -> bool {
        spare.keeper.0.is_whole()
    }

    fn recall(&self, spare: &Self::Spare) -> bool {
        spare.keeper.0.recall()
    }

    fn again(&self, spare: Self::Spare) -> (Request<B>, Option<Self::Spare>) {
        let request = self.request(spare.head.clone(), &spare.keeper.0);
        (request, Some(spare))
    }

    fn last(&self, spare: Self::Spare) -> Request<B> {
        self.request(spare.head, &spare.keeper.0)
    }
}

impl<B> fmt::Debug for Replay<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

/// What is kept of a request by [`Replay`]. Once it is dropped, nothing more is kept.
pub struct ReplaySpare<B> {
    head: Parts,
    keeper: Keeper<B>,
}

impl<B> fmt::Debug for ReplaySpare<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplaySpare").field("body", &self.keeper.0).finish_non_exhaustive()
    }
}

struct Keeper<B>(Arc<Shared<B>>);

impl<B> Drop for Keeper<B> {
    fn drop(&mut self) {
        self.0.keep_no_more();
    }
}

/// One attempt to send a body that is kept meanwhile; see
/// [`RetryBuilder::replay`](super::RetryBuilder::replay).
///
/// Its frames are those of the body, trailers included. It fails as the body does, and when the call
/// is sent again while it is still being read.
///
/// # Cancel safety
///
/// It may be dropped at any time: what it has read is kept for the next attempt.
pub struct ReplayBody<B> {
    shared: Arc<Shared<B>>,
    number: u64,
}

impl<B> Body for ReplayBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.shared.poll_frame(self.number, context)
    }

    fn is_end_stream(&self) -> bool {
        self.shared.is_end_stream(self.number)
    }

    fn size_hint(&self) -> SizeHint {
        self.shared.size_hint(self.number)
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("number", &self.number)
            .field("body", &self.shared)
            .finish()
    }
}
