//! One connection: gathers calls that are there, decides them together, and flushes once.
//!
//! HTTP/2's library reads all frames that have arrived when it is asked for the next stream, and
//! writes all replies when it is asked again. So calls whose bodies are there are gathered first and
//! decided then, with one look at plan and clock, and their replies leave in one write. A body that is
//! late, a store that must be waited for, and calls of other services are tasks of their own.

use super::{
    bridge,
    desk::Desk,
    grpc::{self, GrpcCode, GrpcError},
};
use crate::{
    net::{AuthError, Client, Listener, Penalty, Permission, Permissions, Stream, bearer},
    server::Shared,
    trace::Caller,
};
use bytes::{Bytes, BytesMut};
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, Connection, SendResponse},
};
use http::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::{Interval, interval, timeout};

/// The method of Envoy's protocol.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Streams of a connection at once. Envoy opens one per request that it waits for.
const MAX_STREAMS: u32 = 1024;

/// The longest head of a call, in bytes: names and values, and 32 for each.
const MAX_HEAD: u32 = 16 * 1024;

/// The most calls that are decided before replies are flushed.
const BATCH: usize = 256;

/// Room in windows beside a body of the longest kind.
const WINDOW_ROOM: usize = 64 * 1024;

/// An idle connection is looked at so many times in the time that it may be idle.
const LOOKS: u32 = 4;

/// Returns how HTTP/2 is spoken. Windows are as large as the longest call, and are given back when a
/// call is over, so they bound what a client can make a connection hold.
pub(super) fn builder(max_request: usize) -> Builder {
    let window = u32::try_from(max_request.saturating_add(WINDOW_ROOM)).unwrap_or(u32::MAX);
    // The most that HTTP/2 has is 2^31 - 1.
    let window = window.min(i32::MAX as u32);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .initial_window_size(window)
        .initial_connection_window_size(window.saturating_mul(2).min(i32::MAX as u32));
    builder
}

/// A connection being served.
pub(super) struct Session {
    http: Connection<Stream, Bytes>,
    shared: Arc<Shared>,
    client: Client,
    /// Calls to be decided, with their bodies.
    ready: Vec<(Bytes, Asker, SendResponse<Bytes>)>,
    desk: Desk,
    /// Whether no store must be waited for.
    is_immediate: bool,
    /// Calls that are no decisions, since the last batch.
    others: u64,
    /// Calls since the connection slept.
    awake: u64,
    /// Whether calls come one by one: then each is answered at once, without a look for others.
    is_single: bool,
    /// Each task holds one.
    tasks: Arc<()>,
    idle: Idle,
}

/// Who asks: the parent of its trace, and what it may do.
type Asker = (Caller, Permissions);

/// How long nothing has happened.
struct Idle {
    look: Interval,
    quiet: u32,
    is_closing: bool,
    /// Asks whether the client is there, while a call of it goes on and says nothing.
    ping: Option<PingPong>,
    is_pinged: bool,
}

impl Idle {
    /// Notes an answer to a ping.
    fn poll_pong(&mut self, cx: &mut Context<'_>) {
        if self.is_pinged
            && let Some(ping) = &mut self.ping
            && ping.poll_pong(cx).is_ready()
        {
            self.is_pinged = false;
        }
    }
}

/// What a session is woken for.
enum Event {
    Calls,
    Drain,
    Look,
    Closed,
}

impl Session {
    pub(super) fn new(
        mut http: Connection<Stream, Bytes>,
        shared: Arc<Shared>,
        client: Client,
    ) -> Self {
        let is_immediate = shared.engine.is_immediate();
        let every = shared.settings.idle_timeout / LOOKS;
        let look = interval(every.max(std::time::Duration::from_millis(1)));
        let ping = http.ping_pong();
        Self {
            http,
            shared,
            client,
            ready: Vec::new(),
            desk: Desk::new(),
            is_immediate,
            others: 0,
            awake: 0,
            is_single: true,
            tasks: Arc::default(),
            idle: Idle { look, quiet: 0, is_closing: false, ping, is_pinged: false },
        }
    }

    /// Serves until the client goes, or is idle, or the server has drained.
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
                self.idle.look.poll_tick(cx).map(|_| Event::Look)
            });
            match event.await {
                Event::Calls => self.decide().await,
                Event::Closed => return,
                Event::Drain => {
                    is_draining = true;
                    self.http.graceful_shutdown();
                }
                Event::Look if self.is_over() => return,
                Event::Look => {}
            }
        }
    }

    /// Accepts what has arrived. Returns true when the connection is closed.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
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

    /// Puts a call where it is answered.
    fn sort(
        &mut self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) {
        let is_ours = request.uri().path() == METHOD;
        if !is_ours && !bridge::is_known(request.uri().path()) {
            let text = format!("there is no method {}", request.uri().path());
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
            self.others += 1;
            let (task, mut drain) = (Arc::clone(&self.tasks), self.shared.drain());
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = bridge::call(&shared.bridge, request, respond) => {}
                    // A watch never ends by itself; dropped, it is reset.
                    _ = drain.wait_for(|draining| *draining) => {}
                }
                drop(task);
            });
            return;
        }
        let parent = || request.headers().get("traceparent").map(|value| value.as_bytes());
        let asker = (self.shared.trace.caller(parent), granted);
        let mut body = Partial { stream: request.into_body(), first: Bytes::new(), more: None };
        let most = self.shared.settings.max_request;
        match body.poll_whole(most, cx) {
            Poll::Ready(Ok(Some(whole))) if self.is_immediate => {
                self.ready.push((whole, asker, respond));
            }
            Poll::Ready(Ok(Some(whole))) => self.start(Body::Whole(whole), asker, respond),
            // Reset by the client: nobody waits.
            Poll::Ready(Ok(None)) => {}
            Poll::Ready(Err(error)) => self.wrong(respond, &error),
            Poll::Pending => self.start(Body::Partial(body), asker, respond),
        }
    }

    /// Returns what the client of a call may do, if that includes the call. Health needs nothing.
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

    /// Refuses a call with a wrong token, when its turn has come.
    fn slow_down(&mut self, respond: SendResponse<Bytes>, error: GrpcError, penalty: Penalty) {
        if penalty == Penalty::Close {
            self.http.graceful_shutdown();
            return self.wrong(respond, &error);
        }
        self.others += 1;
        self.shared.traffic(self.client.listener).bad_request();
        let (task, shared) = (Arc::clone(&self.tasks), Arc::clone(&self.shared));
        tokio::spawn(async move {
            penalty.served(&shared).await;
            grpc::refuse(respond, &error);
            drop(task);
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
    fn start(&mut self, body: Body, asker: Asker, respond: SendResponse<Bytes>) {
        self.others += 1;
        let (task, shared) = (Arc::clone(&self.tasks), Arc::clone(&self.shared));
        let listener = self.client.listener;
        tokio::spawn(async move {
            serve_late(&shared, listener, (body, asker), respond).await;
            drop(task);
        });
    }

    /// Decides all calls that were gathered.
    async fn decide(&mut self) {
        self.idle.quiet = 0;
        let Self { shared, ready, desk, .. } = self;
        let count = ready.len() as u64;
        self.awake += count;
        self.is_single &= self.awake <= 1;
        let traffic = shared.traffic(self.client.listener);
        traffic.requests(count + std::mem::take(&mut self.others));
        if ready.is_empty() {
            return;
        }
        let engine = &shared.engine;
        let (plan, now) = (engine.plan(), engine.now());
        for (body, (caller, granted), respond) in ready.drain(..) {
            if !desk.serve(shared, (&plan, now), (&body, caller, granted), respond).await {
                traffic.bad_request();
            }
        }
        if engine.timing().is_due() {
            // OVERFLOW: a batch has at most `BATCH` calls.
            engine.timing().note(engine.now().since(now) / count as u32);
        }
    }

    /// Tells whether to give the connection up: it was idle for too long and has not gone when told,
    /// or a call goes on and the client does not answer a ping.
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

/// What is there of a body when a task is started for it.
enum Body {
    Whole(Bytes),
    Partial(Partial),
}

/// A body that comes in pieces; most come in one.
struct Partial {
    stream: RecvStream,
    first: Bytes,
    more: Option<BytesMut>,
}

impl Partial {
    /// Reads on. Ready with `None` if the client has reset the stream.
    fn poll_whole(
        &mut self,
        most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, GrpcError>> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Ok(piece))) => self.push(piece),
            }
            if self.stream.is_end_stream() {
                break;
            }
            let so_far = self.more.as_deref().unwrap_or(&self.first);
            let length = grpc::frame_length(so_far, most)?;
            if so_far.len() > length.unwrap_or(most) {
                return Poll::Ready(grpc::message(so_far, most).map(|_| None));
            }
        }
        let whole = self.more.take().map_or_else(|| std::mem::take(&mut self.first), Into::into);
        Poll::Ready(Ok(Some(whole)))
    }

    fn push(&mut self, piece: Bytes) {
        match &mut self.more {
            Some(more) => more.extend_from_slice(&piece),
            None if self.first.is_empty() => self.first = piece,
            None => {
                let mut more = BytesMut::with_capacity(self.first.len() + piece.len());
                more.extend_from_slice(&std::mem::take(&mut self.first));
                more.extend_from_slice(&piece);
                self.more = Some(more);
            }
        }
    }
}

/// Waits for a body, and then for a store.
async fn serve_late(
    shared: &Shared,
    listener: Listener,
    (body, (caller, granted)): (Body, Asker),
    respond: SendResponse<Bytes>,
) {
    let whole = match body {
        Body::Whole(whole) => whole,
        Body::Partial(mut partial) => {
            let most = shared.settings.max_request;
            let reading = poll_fn(|cx| partial.poll_whole(most, cx));
            match timeout(shared.settings.request_timeout, reading).await {
                Ok(Ok(Some(whole))) => whole,
                Ok(Ok(None)) => return,
                Ok(Err(error)) => {
                    shared.traffic(listener).bad_request();
                    return grpc::refuse(respond, &error);
                }
                Err(_) => {
                    shared.traffic(listener).bad_request();
                    let text = "the rest of the message did not come in time";
                    let error = GrpcError::new(GrpcCode::DeadlineExceeded, &text);
                    return grpc::refuse(respond, &error);
                }
            }
        }
    };
    let engine = &shared.engine;
    let (plan, now) = (engine.plan_arc(), engine.now());
    if !Desk::new().serve(shared, (&plan, now), (&whole, caller, granted), respond).await {
        shared.traffic(listener).bad_request();
    }
}
