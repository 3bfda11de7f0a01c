//! Bodies that can be sent again although they cannot be cloned.
//!
//! The idea: all attempts at one call read the same body, one after the other. Each frame that is
//! read is passed on at once, and also kept. The next attempt gets the kept frames first, and then
//! continues reading where the one before has stopped. If the frames are too long to be kept, they
//! are dropped: the attempt under way does not notice, and there is no other attempt.
//!
//! 1. The attempts share the body under a lock, and take it out to poll it: it is foreign code,
//!    which must not run under a lock.
//! 2. Only the latest attempt reads. One that was recalled gets an error, and its transport gives
//!    it up. If that happens while it polls the body, the frame that it gets is kept for the next
//!    one.
//! 3. When no attempt can follow any more (the last attempt has begun, or there is an answer), no
//!    further frame is kept, and the kept frames are dropped as they are read.

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

/// Keeps the frames read of a body, to send it again; made by
/// [`RetryBuilder::replay`](super::RetryBuilder::replay).
pub struct Replay<B> {
    wrap: Arc<dyn Fn(ReplayBody<B>) -> B + Send + Sync>,
    pub(super) max_bytes: usize,
}

impl<B> Replay<B> {
    /// The default bound on the bytes kept of a body.
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

/// The parts of a request that [`Replay`] keeps. Once it is dropped, nothing more is kept.
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

/// One attempt to send a body whose frames are kept meanwhile; see
/// [`RetryBuilder::replay`](super::RetryBuilder::replay).
///
/// Its frames are those of the body, trailers included. It fails as the body does, and when the call
/// is sent again while it is still being read.
///
/// # Cancel safety
///
/// It may be dropped at any time: the frames that it has read are kept for the next attempt.
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
