//! One connection: gathers complete calls, decides them together, and flushes once.
//!
//! When it is polled for the next stream, the HTTP/2 library reads all frames that have arrived and
//! writes all pending replies. So a session first gathers the calls whose bodies are complete and
//! then decides them, with one reading of plan and clock, and their replies leave in one write. A
//! body that is late, a store that must be waited for, and calls of other services have tasks of
//! their own.

use super::{
    bridge,
    desk::{Desk, Served},
    grpc::{self, GrpcCode, GrpcError, LateReply},
    late::{Body, CALL, Late, Partial, no_memory, send_in_time},
};
use crate::{
    net::{
        self, AuthError, Client, ConnectionMemory, HEADER_TABLE, Http2Stream, MAX_ERROR_RESETS,
        MAX_FRAME, MAX_PENDING_RESETS, Penalty, Permission, Permissions, Progress, RefusalReason,
        Stall, Traffic, bearer,
    },
    server::Shared,
    trace::Caller,
};
use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, Connection, SendResponse},
};
use http::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The method of Envoy's protocol.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Streams of a connection at once. Envoy opens one per request that it waits for.
const MAX_STREAMS: u32 = 256;

/// The longest head of a call, in bytes: names and values, and 32 for each.
const MAX_HEAD: u32 = 16 * 1024;

/// The most calls that are decided before their replies are flushed.
const BATCH: usize = 256;

/// Space in the windows beyond a body of the maximum length.
const WINDOW_ROOM: usize = 64 * 1024;

/// Bytes of a reply that wait in the HTTP/2 library.
const SEND_BUFFER: usize = 64 * 1024;

/// An idle connection is checked this many times during the idle timeout.
const LOOKS: u32 = 4;

/// Returns the settings of HTTP/2. Windows are as large as the longest call, and their capacity is
/// released when a call is over, so they bound the memory that a client can make a connection hold.
/// The library bounds the rest: unread tiny DATA frames by half of the connection's window; frames
/// that continue a block of headers by its length; and it acknowledges PING and SETTINGS one by
/// one.
pub(super) fn builder(max_request: usize) -> Builder {
    let window = u32::try_from(max_request.saturating_add(WINDOW_ROOM)).unwrap_or(u32::MAX);
    // The largest window of HTTP/2 is 2^31 - 1.
    let window = window.min(i32::MAX as u32);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .header_table_size(HEADER_TABLE)
        .max_frame_size(MAX_FRAME)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
        .initial_window_size(window)
        .initial_connection_window_size(window.saturating_mul(2).min(i32::MAX as u32));
    builder
}

/// A connection being served.
pub(super) struct Session {
    http: Connection<Http2Stream, Bytes>,
    shared: Arc<Shared>,
    client: Client,
    memory: Arc<ConnectionMemory>,
    progress: Arc<Progress>,
    stall: (Stall, Interval),
    /// Calls to decide, with their bodies.
    ready: VecDeque<(Bytes, Asker, SendResponse<Bytes>)>,
    desk: Desk,
    /// Whether all stores answer without waiting.
    is_immediate: bool,
    /// Calls since the last batch that need no decision.
    others: u64,
    /// Calls since the connection last slept.
    awake: u64,
    /// Whether calls come one by one: each is then answered at once, without gathering others.
    is_single: bool,
    /// Each task holds one.
    tasks: Arc<()>,
    /// Each call of health or reflection holds one.
    bridged: Arc<()>,
    idle: Idle,
}

/// The caller: the parent of its trace, and its permissions.
pub(super) type Asker = (Caller, Permissions);

/// Measures how long the connection has been idle.
struct Idle {
    look: Interval,
    quiet: u32,
    is_closing: bool,
    /// Pings the client while a call goes on and is silent.
    ping: Option<PingPong>,
    is_pinged: bool,
}

impl Idle {
    /// Records the answer to a ping.
    fn poll_pong(&mut self, cx: &mut Context<'_>) {
        if self.is_pinged
            && let Some(ping) = &mut self.ping
            && ping.poll_pong(cx).is_ready()
        {
            self.is_pinged = false;
        }
    }
}

/// Why a session wakes up.
enum Event {
    Calls,
    Drain,
    Look,
    /// The client stopped within a frame, or does not read.
    Stalled(RefusalReason),
    Closed,
}

impl Session {
    pub(super) fn new(
        mut http: Connection<Http2Stream, Bytes>,
        (shared, client, memory): (Arc<Shared>, Client, Arc<ConnectionMemory>),
        (progress, stall): (Arc<Progress>, Stall),
    ) -> Self {
        let is_immediate = shared.engine.is_immediate();
        let every = shared.settings.idle_timeout / LOOKS;
        let look = interval(every.max(Duration::from_millis(1)));
        let every = shared.settings.request_timeout / net::LOOKS;
        let mut looks = interval(every.max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stall = (stall, looks);
        let ping = http.ping_pong();
        Self {
            http,
            shared,
            client,
            memory,
            progress,
            stall,
            ready: VecDeque::new(),
            desk: Desk::new(),
            is_immediate,
            others: 0,
            awake: 0,
            is_single: true,
            tasks: Arc::default(),
            bridged: Arc::default(),
            idle: Idle { look, quiet: 0, is_closing: false, ping, is_pinged: false },
        }
    }

    /// Serves until the client disconnects, the connection is idle, or the server has drained.
    pub(super) async fn run(mut self, draining: impl Future<Output = ()>) {
        let mut draining = pin!(draining);
        let mut is_draining = false;
        loop {
            let event = poll_fn(|cx| {
                let is_closed = self.gather(cx);
                if !self.ready.is_empty() || self.others > 0 {
                    return Poll::Ready(Event::Calls);
                }
                if is_closed {
                    return Poll::Ready(Event::Closed);
                }
                // Nothing has arrived, so the connection is about to sleep.
                self.is_single = self.awake <= 1;
                self.awake = 0;
                if !is_draining && draining.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Event::Drain);
                }
                self.idle.poll_pong(cx);
                let (stall, look) = &mut self.stall;
                while look.poll_tick(cx).is_ready() {
                    if let Some(reason) = stall.look() {
                        return Poll::Ready(Event::Stalled(reason));
                    }
                }
                self.idle.look.poll_tick(cx).map(|_| Event::Look)
            });
            match event.await {
                Event::Calls => self.decide().await,
                Event::Closed => return,
                Event::Stalled(reason) => return self.traffic().refused(reason),
                Event::Drain => {
                    is_draining = true;
                    self.http.graceful_shutdown();
                }
                Event::Look if self.is_over() => return,
                Event::Look => {}
            }
        }
    }

    /// Accepts the calls that have arrived. Returns true when the connection is closed.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
        // Remaining calls wait until the earlier replies are written.
        if !self.ready.is_empty() && self.http.poll_closed(cx).is_ready() {
            return true;
        }
        let most = if self.is_single { 1 } else { BATCH };
        while self.ready.len() < most {
            match self.http.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.sort(request, respond, cx),
                Poll::Ready(Some(Err(_)) | None) => return true,
                Poll::Pending => return false,
            }
        }
        false
    }

    /// Dispatches a call.
    fn sort(
        &mut self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) {
        let is_ours = request.uri().path() == METHOD;
        if !is_ours && !bridge::is_known(request.uri().path()) {
            let path: String = request.uri().path().chars().take(200).collect();
            let text = format!("there is no method {path} on this server");
            return self.wrong(respond, &GrpcError::new(GrpcCode::Unimplemented, &text));
        }
        if request.method() != Method::POST {
            return self.wrong_http(respond, StatusCode::METHOD_NOT_ALLOWED);
        }
        if !grpc::is_grpc(request.headers().get(CONTENT_TYPE)) {
            return self.wrong_http(respond, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        let granted = match self.authorize(&request) {
            Ok(granted) => granted,
            Err((error, None)) => return self.wrong(respond, &error),
            Err((error, Some(penalty))) => return self.slow_down(respond, error, penalty),
        };
        if !is_ours {
            return self.start_bridged(request, respond);
        }
        let parent = || request.headers().get("traceparent").map(|value| value.as_bytes());
        let asker = (self.shared.trace.caller(parent), granted);
        let stream = request.into_body();
        let mut body = Partial { stream, first: Bytes::new(), more: None, claim: None };
        let most = self.shared.settings.max_request;
        match body.poll_whole(most, cx) {
            Poll::Ready(Ok(Some(whole))) if self.is_immediate => {
                self.ready.push_back((whole, asker, respond));
            }
            Poll::Ready(Ok(Some(whole))) => self.start(Body::Whole(whole), asker, respond),
            // The client has reset the call: it needs no answer.
            Poll::Ready(Ok(None)) => {}
            Poll::Ready(Err(error)) => self.wrong(respond, &error),
            Poll::Pending => self.start(Body::Partial(body), asker, respond),
        }
    }

    fn traffic(&self) -> &Traffic {
        self.shared.traffic(self.client.listener)
    }

    /// Answers a call of health or reflection.
    fn start_bridged(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let mut claim = Arc::clone(&self.memory).claim();
        let claimed = if Arc::strong_count(&self.bridged) > bridge::MAX_CALLS {
            Err(GrpcError::new(
                GrpcCode::ResourceExhausted,
                &"too many simultaneous calls; try again later",
            ))
        } else {
            claim.resize(bridge::CALL).map_err(|error| no_memory(&error))
        };
        if let Err(error) = claimed {
            return self.refuse(respond, &error);
        }
        self.others += 1;
        let (task, shared) = (Arc::clone(&self.tasks), Arc::clone(&self.shared));
        let bridged = Arc::clone(&self.bridged);
        tokio::spawn(async move {
            let mut drain = shared.drain();
            tokio::select! {
                biased;
                () = bridge::call(&shared.bridge, request, respond, &shared.settings) => {}
                // A watch never ends by itself; dropping it resets it.
                _ = drain.wait_for(|draining| *draining) => {}
            }
            drop((task, bridged, claim));
        });
    }

    /// Refuses a call that would exceed the memory bound.
    fn refuse(&mut self, respond: SendResponse<Bytes>, error: &GrpcError) {
        self.others += 1;
        self.traffic().refused(RefusalReason::Memory);
        grpc::refuse(respond, error);
    }

    /// Returns the permissions of the client of a call, if they include the call. Health needs
    /// none.
    fn authorize(
        &self,
        request: &Request<RecvStream>,
    ) -> Result<Permissions, (GrpcError, Option<Penalty>)> {
        let needed = match request.uri().path() {
            METHOD => Permission::Check,
            path if bridge::is_health(path) => return Ok(Permissions::NONE),
            _ => Permission::Read,
        };
        let secret = request.headers().get(AUTHORIZATION);
        let secret = secret.and_then(|value| bearer(value.as_bytes()));
        match self.shared.access().authenticate(&self.client, secret) {
            Ok(granted) if granted.has(needed) => Ok(granted),
            Ok(_) => {
                let text = format!(
                    "this call needs the permission `{needed}`, which this token does not grant"
                );
                Err((GrpcError::new(GrpcCode::PermissionDenied, &text), None))
            }
            Err(error) => {
                let is_wrong = error == AuthError::WrongSecret;
                let penalty = is_wrong.then(|| Penalty::of(&self.shared, &self.client));
                let text = "send a token of the server's `tokens` as `authorization: Bearer ..`";
                Err((GrpcError::new(GrpcCode::Unauthenticated, &text), penalty))
            }
        }
    }

    /// Refuses a call with a wrong token after a delay.
    fn slow_down(&mut self, respond: SendResponse<Bytes>, error: GrpcError, penalty: Penalty) {
        if penalty == Penalty::Close {
            self.http.graceful_shutdown();
        }
        self.others += 1;
        self.shared.traffic(self.client.listener).bad_request();
        let mut claim = Arc::clone(&self.memory).claim();
        if claim.resize(CALL).is_err() {
            // Dropping the call resets it.
            return self.traffic().refused(RefusalReason::Memory);
        }
        let (task, shared) = (Arc::clone(&self.tasks), Arc::clone(&self.shared));
        tokio::spawn(async move {
            penalty.served(&shared).await;
            grpc::refuse(respond, &error);
            drop((task, claim));
        });
    }

    fn wrong(&mut self, respond: SendResponse<Bytes>, error: &GrpcError) {
        self.others += 1;
        self.shared.traffic(self.client.listener).bad_request();
        grpc::refuse(respond, error);
    }

    fn wrong_http(&mut self, respond: SendResponse<Bytes>, status: StatusCode) {
        self.others += 1;
        self.shared.traffic(self.client.listener).bad_request();
        grpc::refuse_http(respond, status);
    }

    /// Answers a call in a task of its own.
    fn start(&mut self, mut body: Body, asker: Asker, respond: SendResponse<Bytes>) {
        let mut claim = Arc::clone(&self.memory).claim();
        if let Err(error) = claim.resize(CALL + body.wait()) {
            return self.refuse(respond, &no_memory(&error));
        }
        self.others += 1;
        let late = Late {
            shared: Arc::clone(&self.shared),
            listener: self.client.listener,
            progress: Arc::clone(&self.progress),
            _task: Arc::clone(&self.tasks),
        };
        tokio::spawn(late.serve((body, claim), asker, respond));
    }

    /// Sends a reply as the client's window grows.
    fn send_late(&mut self, reply: LateReply) {
        let mut claim = Arc::clone(&self.memory).claim();
        if claim.resize(CALL + reply.len()).is_err() {
            // Dropping the reply resets the stream.
            return self.traffic().refused(RefusalReason::Memory);
        }
        let (task, shared, listener) =
            (Arc::clone(&self.tasks), Arc::clone(&self.shared), self.client.listener);
        tokio::spawn(async move {
            send_in_time(&shared, listener, reply).await;
            drop((task, claim));
        });
    }

    /// Decides the gathered calls, until the replies should be written.
    async fn decide(&mut self) {
        self.idle.quiet = 0;
        if self.progress.is_full() {
            self.refuse_unread();
        }
        let Self { shared, ready, desk, progress, .. } = self;
        let traffic = shared.traffic(self.client.listener);
        let engine = &shared.engine;
        let (plan, now) = (engine.plan(), engine.now());
        let (mut count, mut late) = (0_u32, Vec::new());
        while let Some((body, (caller, granted), respond)) = ready.pop_front() {
            count += 1;
            match desk.serve(shared, (&plan, now), (&body, caller, granted), respond).await {
                Served::Replied(bytes) => progress.sent(bytes),
                Served::Late(reply) => late.push(reply),
                Served::Bad => traffic.bad_request(),
            }
            if progress.is_full() {
                break;
            }
        }
        if count > 0 && engine.timing().is_due() {
            engine.timing().note(engine.now().since(now) / count);
        }
        traffic.requests(u64::from(count) + std::mem::take(&mut self.others));
        self.awake += u64::from(count);
        self.is_single &= self.awake <= 1;
        late.into_iter().for_each(|reply| self.send_late(reply));
    }

    /// Refuses the gathered calls: the earlier replies could not be written.
    fn refuse_unread(&mut self) {
        let text = "the earlier replies were not read; read them first";
        let error = GrpcError::new(GrpcCode::ResourceExhausted, &text);
        while let Some((_, _, respond)) = self.ready.pop_front() {
            self.others += 1;
            self.traffic().refused(RefusalReason::Unread);
            grpc::refuse(respond, &error);
        }
    }

    /// Tells whether to give the connection up: it stayed after a GOAWAY for being idle, or a call
    /// goes on and the client does not answer a ping.
    fn is_over(&mut self) -> bool {
        let idle = &mut self.idle;
        idle.quiet += 1;
        if idle.quiet <= LOOKS {
            return false;
        }
        idle.quiet = 0;
        let is_over = idle.is_closing || idle.is_pinged;
        if Arc::strong_count(&self.tasks) == 1 {
            idle.is_closing = true;
            self.http.graceful_shutdown();
        } else if let Some(ping) = &mut idle.ping {
            idle.is_pinged = ping.send_ping(Ping::opaque()).is_ok();
        }
        is_over
    }
}
