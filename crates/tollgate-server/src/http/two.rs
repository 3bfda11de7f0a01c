//! HTTP/2, by hyper: for clients that begin with it, or that chose it by TLS.

use super::{
    call::{Call, Fields, Span},
    chunk::too_large,
    head::MAX_HEAD,
    reply::{Kind, Problem},
    route::{Desk, Moment},
};
use crate::{
    net::{Client, Connection, Stream},
    server::Shared,
};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{MissedTickBehavior, interval, timeout},
};

/// Requests in flight on one connection.
const MOST_STREAMS: u32 = 256;

/// What the streams of a connection have done.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Notified when the connection is to take no more requests.
    cut_off: Notify,
}

/// Serves a connection whose first bytes were read already.
pub(super) async fn serve(stream: Stream, first: BytesMut, connection: &mut Connection) {
    let shared = connection.shared.clone();
    let client = Client::new(&stream, connection);
    let activity = Arc::new(Activity::default());
    let idle = shared.settings.idle_timeout.max(Duration::from_millis(1));
    let service = service_fn(|request: Request<Incoming>| {
        let (shared, activity) = (shared.clone(), activity.clone());
        async move {
            // ORDERING: Relaxed. Only this connection's task looks at them, to see whether they move.
            activity.begun.fetch_add(1, Relaxed);
            let response = answer(shared, client, &activity, request).await;
            activity.ended.fetch_add(1, Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(MAX_HEAD as u32);
    let io = TokioIo::new(Rewound { first, stream });
    let mut served = pin!(builder.serve_connection(io, service));
    let mut draining = pin!(connection.draining());
    let mut ticks = interval(idle);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let (mut is_ending, mut seen) = (false, 0);
    loop {
        tokio::select! {
            _ = &mut served => return,
            () = activity.cut_off.notified(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
            () = &mut draining, if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
            _ = ticks.tick() => {
                // ORDERING: Relaxed, as above.
                let (begun, ended) = (activity.begun.load(Relaxed), activity.ended.load(Relaxed));
                if begun == ended && begun == seen {
                    // Nothing was asked for this long. A client that does not go now is left.
                    if is_ending {
                        return;
                    }
                    is_ending = true;
                    served.as_mut().graceful_shutdown();
                }
                seen = begun;
            }
        }
    }
}

async fn answer(
    shared: Arc<Shared>,
    client: Client,
    activity: &Activity,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let mut desk = Desk::new(shared.clone(), client);
    desk.reply.clear();
    match body_of(body, &shared).await {
        Err(problem) => desk.reply.problem(&problem),
        Ok(body) => {
            let (mut bytes, mut spans) = (Vec::new(), Vec::with_capacity(parts.headers.len() + 1));
            let mut add = |name: &str, value: &[u8]| {
                // OVERFLOW: a head is short: hyper was told so.
                let start = bytes.len() as u32;
                bytes.extend_from_slice(name.as_bytes());
                let middle = bytes.len() as u32;
                bytes.extend_from_slice(value);
                let end = bytes.len() as u32;
                spans.push(Span { name: (start, middle), value: (middle, end) });
            };
            if let (Some(authority), None) =
                (parts.uri.authority(), parts.headers.get(header::HOST))
            {
                add("host", authority.as_str().as_bytes());
            }
            for (name, value) in &parts.headers {
                add(name.as_str(), value.as_bytes());
            }
            let call = Call {
                method: parts.method.as_str(),
                path: parts.uri.path(),
                query: parts.uri.query().unwrap_or_default(),
                fields: Fields { bytes: &bytes, spans: &spans },
                body: &body,
            };
            let moment = Moment::new(&shared);
            desk.answer(&moment, &call).await;
            if let Some(penalty) = desk.reply.penalty
                && penalty.served(&shared).await
            {
                activity.cut_off.notify_one();
            }
            if desk.reply.penalty.is_none() && shared.engine.timing().is_due() {
                shared.engine.timing().note(shared.engine.now().since(moment.now()));
            }
        }
    }
    let traffic = shared.traffic(client.listener);
    traffic.requests(1);
    if desk.reply.is_bad {
        traffic.bad_request();
    }
    response(desk, parts.method == http::Method::HEAD)
}

async fn body_of(body: Incoming, shared: &Shared) -> Result<Bytes, Problem> {
    let (most, limit) = (shared.settings.max_request, shared.settings.request_timeout);
    match timeout(limit, Limited::new(body, most).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(most)),
        Ok(Err(error)) => Err(Problem::new(Kind::BadHttp, format!("the body broke off: {error}"))),
        Err(_) => {
            let text = format!("the body did not arrive within {} ms", limit.as_millis());
            Err(Problem::new(Kind::Slow, text))
        }
    }
}

fn response(desk: Desk, is_head: bool) -> Response<Full<Bytes>> {
    let reply = desk.reply;
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(reply.body.len()));
    for (name, value) in reply.headers() {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    if !is_head {
        *response.body_mut() = Full::new(reply.body.into());
    }
    response
}

/// A stream of which the first bytes were read already.
#[derive(Debug)]
struct Rewound {
    first: BytesMut,
    stream: Stream,
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let here = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..here]);
        self.first.advance(here);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
