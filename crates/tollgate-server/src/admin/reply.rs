//! Responses: JSON, text, metrics, and problems.

use super::events::Events;
use crate::metrics::Exposition;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tollgate::{Clock, Tick};
use tollgate_tower::answer::raw::civil;

pub(super) type Reply = Response<ReplyBody>;

type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of a response.
pub(super) enum ReplyBody {
    /// All at once.
    Full(Full<Bytes>),
    /// Metrics, in pieces.
    Metrics {
        /// The metrics that are not sent yet.
        rest: Box<Exposition>,
        /// Set while the task yields to others.
        pause: Option<Pause>,
    },
    /// Live figures, until the reader leaves.
    Events(Box<Events>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(full) => Pin::new(full).poll_frame(cx),
            Self::Metrics { rest, pause } => {
                if let Some(waiting) = pause {
                    ready!(waiting.as_mut().poll(cx));
                }
                // Decisions of other connections of this worker come before the next piece. Waking
                // the task at once is not enough: tokio polls sockets only occasionally while a
                // task is ready.
                *pause = Some(Box::pin(tokio::task::yield_now()));
                Poll::Ready(rest.next().map(|text| Ok(Frame::data(Bytes::from(text)))))
            }
            Self::Events(events) => {
                events.poll_next(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(full) => full.is_end_stream(),
            Self::Metrics { .. } | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(full) => full.size_hint(),
            Self::Metrics { .. } | Self::Events(_) => SizeHint::default(),
        }
    }
}

/// Answers with bytes of a type.
pub(super) fn reply(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::Full(Full::new(text.into())));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // The figures are out of date a second later.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// Answers with JSON, and a line end for those who read it in a terminal.
pub(super) fn json_reply(status: StatusCode, value: &Value) -> Reply {
    reply(status, "application/json", format!("{value}\n"))
}

/// Answers with JSON that is text already.
pub(super) fn json_text_reply(text: String) -> Reply {
    reply(StatusCode::OK, "application/json", text)
}

pub(super) fn text_reply(text: String) -> Reply {
    reply(StatusCode::OK, "text/plain; charset=utf-8", text)
}

/// Answers with live figures.
pub(super) fn events_reply(events: Events) -> Reply {
    let mut reply = reply(StatusCode::OK, "text/event-stream", "");
    *reply.body_mut() = ReplyBody::Events(Box::new(events));
    reply
}

/// Sends a browser to another page of this server.
pub(super) fn redirect(to: &'static str) -> Reply {
    let mut reply = reply(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "");
    reply.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    reply
}

/// Adds a `Set-Cookie` header, if there is one to add.
pub(super) fn with_cookie(mut reply: Reply, cookie: Option<String>) -> Reply {
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
        reply.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    reply
}

pub(super) fn metrics_reply(metrics: Exposition) -> Reply {
    let kind = metrics.content_type();
    let mut reply = Response::new(ReplyBody::Metrics { rest: Box::new(metrics), pause: None });
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Why a request failed, as RFC 9457 describes it.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) detail: String,
    pub(super) extra: Option<Extra>,
}

/// Details that belong to some statuses.
#[derive(Debug)]
pub(super) enum Extra {
    /// 405: the allowed method.
    Allow(&'static str),
    /// 401: how to authenticate, and whether the connection ends after too many wrong tokens.
    Authenticate {
        /// Whether it ends.
        closes: bool,
    },
    /// 404: the existing endpoints.
    Endpoints(Vec<String>),
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), extra: None }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn into_reply(self) -> Reply {
        let mut value = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Problem"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(Extra::Endpoints(endpoints)) = &self.extra {
            value["endpoints"] = json!(endpoints);
        }
        let mut reply = reply(self.status, "application/problem+json", format!("{value}\n"));
        if let Some(Extra::Authenticate { closes: true }) = self.extra {
            reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let (name, value) = match self.extra {
            Some(Extra::Allow(method)) => (header::ALLOW, method),
            Some(Extra::Authenticate { .. }) => {
                (header::WWW_AUTHENTICATE, "Bearer realm=\"tollgate\"")
            }
            _ => return reply,
        };
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
        reply
    }
}

/// Returns a tick as a time of day in UTC, for example `2026-03-01T12:00:00.250Z`.
pub(super) fn time(clock: &Clock, tick: Tick) -> String {
    let wall = clock.to_wall(tick);
    let (days, second) = (wall.as_secs() / 86_400, wall.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let milli = wall.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Returns whole milliseconds, rounded up.
pub(super) fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns when something ends, and how long that is from now.
pub(super) fn until(clock: &Clock, now: Tick, end: Tick) -> Value {
    json!({ "at": time(clock, end), "left_ms": millis_up(end.since(now)) })
}

/// Returns when something was, and how long ago that is.
pub(super) fn ago(clock: &Clock, now: Tick, then: Tick) -> Value {
    json!({ "at": time(clock, then), "ago_ms": millis_up(now.since(then)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let (clock, _) = Clock::manual();
        assert_eq!(time(&clock, Tick::from_millis(86_399_250)), "1970-01-01T23:59:59.250Z");
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
    }
}
