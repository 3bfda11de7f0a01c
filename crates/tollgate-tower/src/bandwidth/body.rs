//! A body that is passed on at a number of bytes per second.

use crate::{
    client::counts::Count,
    timer::{self, NoTimers},
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Pending,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::Timeout;
use tollgate::{Clock, Limiter, Quota, Refused, Wait};

/// The largest piece, in bytes: bodies that share a limiter take turns after each.
const PIECE_MAX: u64 = 65_536;
/// The pause before another try if the queue is full, or if the quota gives nothing: short for a
/// person who raises the quota, and long enough that the tries cost little.
const PAUSE: Duration = Duration::from_millis(250);

/// The limiter from which bodies take their permits.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) kind: Kind,
    pub(super) counters: Arc<ByteCounters>,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Each body has a limiter of its own.
    Each(Arc<Each>),
    Shared(Limiter),
}

/// Bytes that were passed on.
#[derive(Debug, Default)]
pub(super) struct ByteCounters {
    pub(super) at_once: Count,
    pub(super) delayed: Count,
}

#[derive(Debug)]
pub(super) struct Each {
    pub(super) quota: Quota,
    pub(super) clock: Clock,
    /// Built from the same settings, to check that they are valid.
    pub(super) sample: Limiter,
}

impl Source {
    fn limiter(&self) -> Limiter {
        match &self.kind {
            Kind::Shared(limiter) => limiter.clone(),
            Kind::Each(each) => {
                let own = Limiter::builder(each.quota).clock(each.clock.clone()).build();
                // INVARIANT: the sample could be built, so this can.
                debug_assert!(own.is_ok(), "the quota was checked");
                own.unwrap_or_else(|_| each.sample.clone())
            }
        }
    }

    fn count(&self, bytes: usize, has_waited: bool) {
        let counters = &self.counters;
        let counter = if has_waited { &counters.delayed } else { &counters.at_once };
        counter.add(bytes as u64);
    }
}

pin_project! {
    /// A body that is passed on at a number of bytes per second; made by
    /// [`Bandwidth`](super::Bandwidth).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: permits of bytes that were not passed on go to the next body.
    pub struct ShapedBody<B> {
        #[pin]
        body: B,
        source: Option<Source>,
        // Made for the first frame: most requests have none.
        limiter: Option<Limiter>,
        // Bytes that the body has yielded and that were not passed on yet.
        rest: Bytes,
        // Boxed once for all pieces, so that this body is `Unpin` if the inner one is.
        wait: Option<Pin<Box<Option<Wait>>>>,
        pause: Option<Pin<Box<Timeout<Pending<()>>>>>,
        // The next piece has had to wait.
        has_waited: bool,
    }
}

impl<B> ShapedBody<B> {
    pub(super) const fn new(body: B, source: Option<Source>) -> Self {
        Self {
            body,
            source,
            limiter: None,
            rest: Bytes::new(),
            wait: None,
            pause: None,
            has_waited: false,
        }
    }

    /// Passes on the next piece of the rest, when its permits are there.
    fn poll_piece(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Bytes> {
        let this = self.project();
        let Some(source) = this.source else {
            return Poll::Ready(std::mem::take(this.rest));
        };
        if this.limiter.is_none() && lacks_timers() {
            return Poll::Ready(unshaped(this.source, this.rest));
        }
        let limiter = this.limiter.get_or_insert_with(|| source.limiter());
        let slot = this.wait.get_or_insert_with(|| Box::pin(None));
        loop {
            if let Some(pause) = this.pause {
                // The inner future is pending for ever, so the pause always ends by timeout.
                let _over = ready!(pause.as_mut().poll(context));
                *this.pause = None;
            }
            let Some(wait) = slot.as_mut().as_pin_mut() else {
                slot.set(Some(limiter.acquire_n(piece(limiter, this.rest))));
                continue;
            };
            let cost = wait.cost();
            let Poll::Ready(answer) = wait.poll(context) else {
                *this.has_waited = true;
                return Poll::Pending;
            };
            slot.set(None);
            match answer {
                Ok(_) => {
                    // INVARIANT: the rest does not change while a piece of it waits.
                    let length = usize::try_from(cost).unwrap_or(usize::MAX).min(this.rest.len());
                    source.count(length, std::mem::take(this.has_waited));
                    return Poll::Ready(this.rest.split_to(length));
                }
                Err(Refused::NoRuntime(_)) => {
                    return Poll::Ready(unshaped(this.source, this.rest));
                }
                // The queue is full, or the quota was changed meanwhile.
                Err(_) => match timer::timeout(PAUSE, std::future::pending()) {
                    Ok(pause) => {
                        *this.has_waited = true;
                        *this.pause = Some(Box::pin(pause));
                    }
                    Err(NoTimers) => return Poll::Ready(unshaped(this.source, this.rest)),
                },
            }
        }
    }
}

/// Lets the rest of a body pass unshaped.
fn unshaped(source: &mut Option<Source>, rest: &mut Bytes) -> Bytes {
    tracing::warn!(target: "tollgate", 
        "a body passes without shaping: there is no runtime with timers");
    *source = None;
    std::mem::take(rest)
}

/// Tells whether the current runtime has no timers, so that a limiter's wait would panic.
fn lacks_timers() -> bool {
    let is_runtime = tokio::runtime::Handle::try_current().is_ok();
    is_runtime && timer::timeout(PAUSE, std::future::pending::<()>()).is_err()
}

/// Returns how many bytes of the rest to wait for at once.
fn piece(limiter: &Limiter, rest: &Bytes) -> u64 {
    let quota = limiter.quota();
    let capacity = if quota.is_unlimited() { PIECE_MAX } else { quota.capacity().max(1) };
    (rest.len() as u64).min(PIECE_MAX).min(capacity)
}

impl<B: Body<Data = Bytes>> Body for ShapedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(self.as_mut().project().body.poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => *self.as_mut().project().rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        self.poll_piece(context).map(|piece| Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

impl<B> fmt::Debug for ShapedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapedBody").field("rest", &self.rest.len()).finish_non_exhaustive()
    }
}
