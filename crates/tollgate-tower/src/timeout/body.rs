//! A body that has to arrive in time.

use super::{Bound, SharedTimeouts, TimeoutPhase};
use crate::{body::GuardedBody, timer::Timer};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::Tick;

type BoxError = Box<dyn Error + Send + Sync>;

pin_project! {
    /// The body of a response of [`TimeoutService`](super::TimeoutService). It ends with a
    /// [`TimeoutError`](super::TimeoutError) if it takes too long.
    pub struct TimeoutBody<B> {
        #[pin]
        body: GuardedBody<B, ()>,
        limits: Option<Limits>,
    }
}

/// How long a body may take.
struct Limits {
    shared: Arc<SharedTimeouts>,
    whole: Option<Bound>,
    /// Since when the reader waits for a frame.
    waiting_since: Option<Tick>,
    timer: Timer,
    /// When the timer fires, which may be early: it is not set again for every frame.
    rings_at: Option<Tick>,
}

impl Limits {
    /// Becomes ready when the time is over for good.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Bound> {
        let Self { shared, whole, waiting_since, timer, rings_at } = self;
        let since = *waiting_since.get_or_insert_with(|| shared.clock.now());
        let idle = shared.body_idle.map(|it| Bound::new(since, TimeoutPhase::BodyIdle, it));
        let Some(bound) = Bound::earlier(*whole, idle) else { return Poll::Pending };
        loop {
            let ring = *rings_at.get_or_insert(bound.due);
            let ring = ring.min(bound.due);
            match timer.poll(&shared.clock, ring, context) {
                // Without timers the body continues.
                Poll::Pending | Poll::Ready(Err(_)) => {
                    *rings_at = Some(ring);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) if ring < bound.due => *rings_at = Some(bound.due),
                Poll::Ready(Ok(())) => return Poll::Ready(bound),
            }
        }
    }

    /// Returns the bound of the whole call if it has passed: a body that always has a frame ready
    /// never waits.
    fn overdue(&self) -> Option<Bound> {
        self.whole.filter(|whole| self.shared.clock.now() >= whole.due)
    }
}

impl<B> TimeoutBody<B> {
    pub(super) fn service(body: B, shared: Arc<SharedTimeouts>, whole: Option<Bound>) -> Self {
        let is_bounded = whole.is_some() || shared.body_idle.is_some();
        let limits = is_bounded.then(|| Limits {
            shared,
            whole,
            waiting_since: None,
            timer: Timer::default(),
            rings_at: None,
        });
        Self { body: GuardedBody::service(body, None), limits }
    }

    pub(super) const fn refusal(bytes: Bytes) -> Self {
        Self { body: GuardedBody::refusal(bytes), limits: None }
    }
}

impl<B> Body for TimeoutBody<B>
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
        let mut this = self.project();
        let Some(limits) = this.limits else {
            return this.body.poll_frame(context).map_err(Into::into);
        };
        let late = match limits.overdue() {
            Some(late) => late,
            None => match this.body.as_mut().poll_frame(context) {
                Poll::Ready(frame) => {
                    limits.waiting_since = None;
                    if !matches!(frame, Some(Ok(_))) {
                        *this.limits = None;
                    }
                    return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
                }
                Poll::Pending => match limits.poll(context) {
                    Poll::Ready(late) => late,
                    Poll::Pending => return Poll::Pending,
                },
            },
        };
        limits.shared.count(late.error.phase());
        *this.limits = None;
        // The inner body frees its resources now, even if this one is kept.
        this.body.set(GuardedBody::refusal(Bytes::new()));
        Poll::Ready(Some(Err(late.error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for TimeoutBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimeoutBody").field(&self.body).finish()
    }
}
