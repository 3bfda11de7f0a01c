//! The layer that shapes bodies to a number of bytes per second.
//!
//! One permit is one byte. The layer passes on a frame of a body after waiting for its bytes. It
//! splits a frame that is larger than the burst, or than 64 KiB, into pieces, so that nothing is
//! sent on credit and bodies that share a limiter take turns. While a piece waits, the inner body
//! is not polled, so the sender slows down. At most one frame is held.

mod body;
mod builder;
mod future;

pub use body::ShapedBody;
pub use builder::{BandwidthBuilder, BandwidthError, Shaping};
pub use future::BandwidthFuture;

use crate::observe::metric;
use body::{Kind, Source};
use http::{Request, Response};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::observe::{Collector, Samples, WeakCollector};
use tower_layer::Layer;
use tower_service::Service;

/// Shapes bodies of requests, of responses, or both, to a number of bytes per second.
///
/// Nothing is ever refused, and the error of the inner service stays as it is. The layer counts the
/// bytes of bodies as they are at its place in the stack: put it outside of compression to shape
/// the bytes that are sent. Headers and trailers are not counted.
///
/// The layer notices at once if a client hangs up in the middle of a response. In the middle of a
/// request over HTTP/1 it notices only after it has read what the client had sent, at its own rate,
/// since a server that does not read does not see the end: so set a timeout for requests, too.
///
/// It waits on tokio's timers. Without a runtime that has timers, bodies pass unshaped, with a
/// warning in the log.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, Quota};
/// use tollgate_tower::{BandwidthLayer, Shaping};
///
/// // Each download at 1 MB/s after the first 256 KiB, and all uploads together at 10 MB/s.
/// let uploads = Limiter::new(Quota::per_second(10_000_000).burst(65_536))?;
/// let layer = BandwidthLayer::builder()
///     .response(Shaping::each(Quota::per_second(1_000_000).burst(262_144)))
///     .request(Shaping::shared(uploads))
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct BandwidthLayer {
    pipes: Arc<Pipes>,
}

/// The shaping of each direction.
#[derive(Debug)]
struct Pipes {
    request: Option<Source>,
    response: Option<Source>,
}

impl BandwidthLayer {
    /// Starts a layer.
    pub fn builder() -> BandwidthBuilder {
        BandwidthBuilder::new()
    }

    /// Returns the bytes that were passed on so far.
    #[must_use]
    pub fn counts(&self) -> BandwidthCounts {
        let of = |source: &Option<Source>| {
            let counters = source.as_ref().map(|source| &source.counters);
            counters.map_or(ShapedBytes::default(), |it| ShapedBytes {
                at_once: it.at_once.get(),
                delayed: it.delayed.get(),
            })
        };
        BandwidthCounts { request: of(&self.pipes.request), response: of(&self.pipes.response) }
    }
}

/// Has a part for each direction, and the limiter that bodies share as a part of that.
impl Collector for BandwidthLayer {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("bandwidth_layer");
        let Pipes { request, response } = &*self.pipes;
        for (direction, source) in [("request", request), ("response", response)] {
            let Some(Source { kind, counters }) = source else { continue };
            samples.part_by(direction, |samples| {
                samples.kind("bandwidth");
                samples.count_by(&metric::SHAPED_BYTES, "at_once", counters.at_once.get());
                samples.count_by(&metric::SHAPED_BYTES, "delayed", counters.delayed.get());
                match kind {
                    Kind::Each(each) => samples.quota(each.quota),
                    Kind::Shared(limiter) => samples.part("limiter", limiter),
                }
            });
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.pipes, |pipes| Self { pipes })
    }
}

/// Bytes that a [`BandwidthLayer`] has passed on, all its clones together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BandwidthCounts {
    /// Bytes of request bodies.
    pub request: ShapedBytes,
    /// Bytes of response bodies.
    pub response: ShapedBytes,
}

/// Bytes of bodies, by whether they had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapedBytes {
    /// Bytes that passed at once.
    pub at_once: u64,
    /// Bytes that had to wait.
    pub delayed: u64,
}

impl<S> Layer<S> for BandwidthLayer {
    type Service = Bandwidth<S>;

    fn layer(&self, inner: S) -> Bandwidth<S> {
        Bandwidth { inner, pipes: Arc::clone(&self.pipes) }
    }
}

impl fmt::Debug for BandwidthLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BandwidthLayer").field(&self.pipes).finish()
    }
}

/// A service whose bodies are shaped; made by [`BandwidthLayer`].
#[derive(Clone)]
pub struct Bandwidth<S> {
    inner: S,
    pipes: Arc<Pipes>,
}

impl<S, B, R> Service<Request<B>> for Bandwidth<S>
where
    S: Service<Request<ShapedBody<B>>, Response = Response<R>>,
{
    type Response = Response<ShapedBody<R>>;
    type Error = S::Error;
    type Future = BandwidthFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let source = self.pipes.request.clone();
        let future = self.inner.call(request.map(|body| ShapedBody::new(body, source)));
        BandwidthFuture::new(future, self.pipes.response.clone())
    }
}

impl<S: fmt::Debug> fmt::Debug for Bandwidth<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bandwidth").field("inner", &self.inner).finish_non_exhaustive()
    }
}
