//! The body of a response: that of the service, or what a refused client is told.

use super::gate::{Actual, Gate, Pass};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

pin_project! {
    /// The body of a response of [`RateLimit`](super::RateLimit).
    pub struct LimitBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        Service { #[pin] body: B, meter: Option<Meter> },
        Told { bytes: Option<Bytes> },
    }
}

/// Counts what is sent, and settles with it at the end, or when it is dropped.
pub(super) struct Meter {
    pub(super) gate: Arc<Gate>,
    pub(super) pass: Pass,
    pub(super) actual: Actual,
    pub(super) sent: u64,
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Actual { costs, by_body } = &self.actual;
        let costs = costs.iter().zip(by_body).map(|(cost, by_body)| match by_body {
            true => self.sent,
            false => *cost,
        });
        let costs = costs.collect();
        self.gate.settle(&self.pass, costs);
    }
}

impl<B> LimitBody<B> {
    pub(super) const fn service(body: B, meter: Option<Meter>) -> Self {
        Self { kind: Kind::Service { body, meter } }
    }

    pub(super) const fn told(bytes: Bytes) -> Self {
        Self { kind: Kind::Told { bytes: Some(bytes) } }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
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
            KindProjection::Service { body, meter } => {
                let polled = body.poll_frame(context);
                match (&polled, &mut *meter) {
                    (Poll::Ready(Some(Ok(frame))), Some(meter)) => {
                        let length = frame.data_ref().map_or(0, Buf::remaining) as u64;
                        meter.sent = meter.sent.saturating_add(length);
                    }
                    (Poll::Ready(None), _) => *meter = None,
                    _ => {}
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

impl<B> fmt::Debug for LimitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Service { .. } => "LimitBody(service)",
            Kind::Told { .. } => "LimitBody(told)",
        })
    }
}
