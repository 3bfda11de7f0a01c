//! HTTP/2 by hyper: for clients that begin with it, or that negotiated it in TLS.

use super::{
    call::{Call, Fields, Span},
    chunk::too_large,
    head::MAX_HEAD,
    reply::{Kind, Problem, Reply},
    route::{Desk, Moment},
};
use crate::{
    net::{
        Claim, Client, Connection, HEADER_TABLE, Http2Stream, LOOKS, MAX_ERROR_RESETS, MAX_FRAME,
        MAX_PENDING_RESETS, RefusalReason, Stream, Traffic,
    },
    server::Shared,
};
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Interval, MissedTickBehavior, interval, timeout},
};

/// Requests in flight on one connection: as few as the standard recommends, because each refused
/// one still costs a task and a reply.
const MOST_STREAMS: u32 = 100;

/// Bytes that clients may send ahead: on one stream, and on a connection. Bodies are read as they
/// arrive, so these bound the bytes that wait in the HTTP/2 library.
const WINDOWS: (u32, u32) = (64 << 10, 256 << 10);

/// Bytes of a reply that wait in the HTTP/2 library.
const SEND_BUFFER: usize = 64 << 10;

/// Memory of a stream without its head, body and reply: its task, and its state in the library.
const STREAM: usize = 16 << 10;

/// The activity of a connection's streams.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Notified when the connection must not take more requests.
    cut_off: Notify,
    /// How often [`Activity::has_unread`] has been called.
    looks: AtomicU32,
    /// Replies that are not sent yet, by the call of `has_unread` before which they began.
    unsent: [AtomicU32; LOOKS as usize + 2],
}

// ORDERING: Relaxed, for all of it. Only tasks of this connection's thread use it.
impl Activity {
    /// Counts a new request.
    fn begin(self: Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Relaxed);
        InFlight { activity: self, slot: None }
    }

    /// Tells whether a reply has waited for more than [`LOOKS`] checks.
    fn has_unread(&self) -> bool {
        let looks = self.looks.fetch_add(1, Relaxed).wrapping_add(2);
        self.unsent[looks as usize % self.unsent.len()].load(Relaxed) > 0
    }
}

/// A request that has begun, until its reply is written or its client has reset it.
#[derive(Debug)]
struct InFlight {
    activity: Arc<Activity>,
    /// The index under which its reply is counted as unsent, once there is one.
    slot: Option<usize>,
}

impl InFlight {
    /// Counts its reply as unsent.
    fn reply(&mut self) {
        let Activity { looks, unsent, .. } = &*self.activity;
        let slot = looks.load(Relaxed) as usize % unsent.len();
        unsent[slot].fetch_add(1, Relaxed);
        self.slot = Some(slot);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // ORDERING: Relaxed, as above.
        if let Some(slot) = self.slot {
            self.activity.unsent[slot].fetch_sub(1, Relaxed);
        }
        self.activity.ended.fetch_add(1, Relaxed);
    }
}

/// The body of a reply. The HTTP/2 library drops it after writing it.
struct ReplyBody {
    bytes: Vec<u8>,
    _claim: Claim,
    _in_flight: InFlight,
}

impl AsRef<[u8]> for ReplyBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Serves a connection whose first bytes have been read already.
pub(super) async fn serve(stream: Stream, first: BytesMut, connection: &mut Connection) {
    let shared = connection.shared.clone();
    let client = Client::new(&stream, connection);
    let activity = Arc::new(Activity::default());
    let idle = shared.settings.idle_timeout.max(Duration::from_millis(1));
    let memory = Arc::clone(&connection.memory);
    let service = service_fn(|request: Request<Incoming>| {
        let (shared, in_flight) = (shared.clone(), activity.clone().begin());
        let mut claim = Arc::clone(&memory).claim();
        // Counted before its task runs: the heads of many streams may wait for their tasks. The
        // head of a refused one is dropped here.
        let head = head_bytes(&request);
        let request = claim.resize(head).map(|()| (request, head)).map_err(Problem::from);
        async move { Ok::<_, Infallible>(answer(shared, client, request, (claim, in_flight)).await) }
    });
    let (io, mut stall) = Http2Stream::new(first, stream);
    let mut served = pin!(builder().serve_connection(TokioIo::new(io), service));
    let mut draining = pin!(connection.draining());
    let (mut ticks, mut looks) = (every(idle), every(shared.settings.request_timeout / LOOKS));
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
            _ = looks.tick() => {
                let unread = activity.has_unread().then_some(RefusalReason::Unread);
                if let Some(reason) = stall.look().or(unread) {
                    return shared.traffic(client.listener).refused(reason);
                }
            }
            _ = ticks.tick() => {
                // ORDERING: Relaxed, as above.
                let (begun, ended) = (activity.begun.load(Relaxed), activity.ended.load(Relaxed));
                if begun == ended && begun == seen {
                    // No request has come for the idle timeout. A client that ignores the GOAWAY is
                    // dropped.
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

/// Returns the settings of HTTP/2. The library bounds the rest: unread tiny DATA frames by half of
/// the connection's window; frames that continue a block of headers by its length; and it
/// acknowledges PING and SETTINGS one by one.
fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .header_table_size(HEADER_TABLE)
        .max_frame_size(MAX_FRAME)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS);
    builder
}

/// Returns ticks, the first of them after a full period.
fn every(period: Duration) -> Interval {
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}

/// Returns the memory of a stream with this head: the stream, and the head as it arrived and as its
/// copy for `Call`.
fn head_bytes(request: &Request<Incoming>) -> usize {
    /// An entry of a map of headers, with its place in the index; and a further value of a name.
    const ENTRY: usize = 128;
    let headers = request.headers();
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    // OVERFLOW: the head of a request is bounded.
    let entries = headers.capacity() + headers.len();
    STREAM + 2 * fields.sum::<usize>() + ENTRY * entries + request.uri().path().len()
}

/// Counts a request that a bound refuses.
fn count(traffic: &Traffic, problem: &Problem) {
    match problem.kind {
        Kind::NoMemory => traffic.refused(RefusalReason::Memory),
        Kind::Slow => traffic.refused(RefusalReason::Slow),
        _ => {}
    }
}

async fn answer(
    shared: Arc<Shared>,
    client: Client,
    request: Result<(Request<Incoming>, usize), Problem>,
    (mut claim, mut in_flight): (Claim, InFlight),
) -> Response<Full<Bytes>> {
    let traffic = shared.traffic(client.listener);
    let mut desk = Desk::new(shared.clone(), client);
    desk.reply.clear();
    let mut is_head = false;
    let whole = match request {
        Err(problem) => Err(problem),
        Ok((request, head)) => {
            let (parts, body) = request.into_parts();
            is_head = parts.method == http::Method::HEAD;
            body_of(body, &shared, &mut claim, head).await.map(|body| (parts, body))
        }
    };
    match whole {
        Err(problem) => {
            count(traffic, &problem);
            desk.reply.problem(&problem);
        }
        Ok((parts, body)) => {
            let (mut bytes, mut spans) = (Vec::new(), Vec::with_capacity(parts.headers.len() + 1));
            let mut add = |name: &str, value: &[u8]| {
                // OVERFLOW: hyper bounds the length of a head.
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
                in_flight.activity.cut_off.notify_one();
            }
            if desk.reply.penalty.is_none() && shared.engine.timing().is_due() {
                shared.engine.timing().note(shared.engine.now().since(moment.now()));
            }
        }
    }
    traffic.requests(1);
    if desk.reply.is_bad {
        traffic.bad_request();
    }
    if let Err(error) = claim.resize(STREAM + desk.reply.body.capacity()) {
        traffic.refused(RefusalReason::Memory);
        desk.reply.clear();
        // A cleared buffer would keep its memory.
        desk.reply.body = Vec::new();
        desk.reply.problem(&Problem::from(error));
    }
    in_flight.reply();
    response(desk.reply, is_head, (claim, in_flight))
}

/// Reads a body; `beside` is the memory that its stream already holds.
async fn body_of(
    mut body: Incoming,
    shared: &Shared,
    claim: &mut Claim,
    beside: usize,
) -> Result<Bytes, Problem> {
    let (most, limit) = (shared.settings.max_request, shared.settings.request_timeout);
    let read = async {
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken =
                |error| Problem::new(Kind::BadHttp, format!("the body ended early: {error}"));
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            // OVERFLOW: both are bounded: by `most`, and by the longest frame.
            let length = bytes.len() + data.len();
            if length > most {
                return Err(too_large(most));
            }
            if body.is_end_stream() && bytes.is_empty() {
                return Ok(data);
            }
            if length > bytes.capacity() {
                let capacity = length.next_power_of_two();
                claim.resize(beside + capacity)?;
                bytes.reserve(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    };
    timeout(limit, read).await.unwrap_or_else(|_| {
        let text = format!("the body did not arrive within {} ms", limit.as_millis());
        Err(Problem::new(Kind::Slow, text))
    })
}

fn response(
    reply: Reply,
    is_head: bool,
    (claim, in_flight): (Claim, InFlight),
) -> Response<Full<Bytes>> {
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
        let body = ReplyBody { bytes: reply.body, _claim: claim, _in_flight: in_flight };
        *response.body_mut() = Full::new(Bytes::from_owner(body));
    }
    response
}
