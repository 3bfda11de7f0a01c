//! A response whose body will be shaped.

use super::body::{ShapedBody, Source};
use http::Response;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// The response future of [`Bandwidth`](super::Bandwidth).
    pub struct BandwidthFuture<F> {
        #[pin]
        future: F,
        source: Option<Source>,
    }
}

impl<F> BandwidthFuture<F> {
    pub(super) const fn new(future: F, source: Option<Source>) -> Self {
        Self { future, source }
    }
}

impl<F, R, E> Future for BandwidthFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ShapedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let source = this.source;
        this.future.poll(context).map(|response| {
            response.map(|response| response.map(|body| ShapedBody::new(body, source.take())))
        })
    }
}

impl<F> fmt::Debug for BandwidthFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BandwidthFuture")
    }
}
