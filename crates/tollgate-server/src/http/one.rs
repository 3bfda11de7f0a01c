//! HTTP/1.1, by hand.
//!
//! Answers all requests that have arrived, and writes their replies at once. A connection keeps its
//! buffers; a usual request allocates nothing. hyper takes as much processor time to answer a
//! constant as this takes with the decision.

use super::{
    call::{Call, Fields, Span},
    chunk::{Chunks, too_large},
    head::{self, Framing, Head},
    reply::{Kind, Problem, put},
    route::{Desk, Moment},
};
use crate::net::{Claim, Client, Connection, MemoryError, RefusalReason, Stream, Traffic};
use bytes::{Buf, BytesMut};
use std::{io, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tollgate_tower::answer::raw::Date;

/// Replies are written once they have this many bytes, even if more requests have arrived.
const MOST_OUT: usize = 64 << 10;
/// How many bytes one read takes.
const READ: usize = 4 << 10;
/// Buffers that have grown beyond this are freed.
const KEPT: usize = 64 << 10;
/// The idle timeout is measured in this many parts.
const IDLE_PARTS: u32 = 4;
/// After an error, this much input is read and discarded; the client might never see the reply
/// otherwise.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 256 << 10);
/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How serving a connection as HTTP/1.1 ended.
#[derive(Debug)]
pub(super) enum End {
    /// The connection is closed.
    Closed,
    /// It is HTTP/2. These are its first bytes.
    Http2(Stream, BytesMut),
}

/// Serves a connection until it ends, or turns out to be HTTP/2.
pub(super) async fn serve(stream: Stream, connection: &mut Connection) -> End {
    let shared = connection.shared.clone();
    let traffic = shared.traffic(connection.listener);
    let client = Client::new(&stream, connection);
    let claim = Arc::clone(&connection.memory).claim();
    let mut draining = pin!(connection.draining());
    let mut wire = Wire::new(stream, Desk::new(shared.clone(), client), claim);
    let mut is_first = true;
    loop {
        let more = tokio::select! {
            biased;
            more = wire.idle() => more,
            () = &mut draining => false,
        };
        if !more {
            return End::Closed;
        }
        if is_first {
            match wire.is_http2().await {
                Ok(true) => return End::Http2(wire.stream, wire.input),
                Ok(false) => is_first = false,
                Err(()) => return End::Closed,
            }
        }
        loop {
            wire.batch(traffic).await;
            if let Err(unsent) = wire.flush().await {
                unsent.count(traffic);
                return End::Closed;
            }
            if wire.is_closing {
                wire.linger().await;
                return End::Closed;
            }
            if wire.input.is_empty() {
                break;
            }
            wire.complete(traffic).await;
        }
        wire.shrink();
    }
}

/// A connection and its buffers.
struct Wire {
    stream: Stream,
    desk: Desk,
    /// Counts the memory of the buffers while the connection waits for the client.
    claim: Claim,
    input: BytesMut,
    out: Vec<u8>,
    spans: Vec<Span>,
    pending: Pending,
    date: Date,
    ticks: Interval,
    quiet: u32,
    is_closing: bool,
    /// Whether the client may still be sending input that the server will not read.
    is_cut: bool,
}

/// A request that is arriving.
#[derive(Debug, Default)]
struct Pending {
    scanned: usize,
    head: Option<Head>,
    chunks: Option<Chunks>,
    /// How many bytes after the head have been read as chunks.
    used: usize,
    body: Vec<u8>,
    /// The length of the whole request, once the last chunk has arrived.
    whole: Option<usize>,
    is_told: bool,
}

impl Pending {
    /// Returns the length of the request once it is complete.
    fn step(
        &mut self,
        input: &[u8],
        spans: &mut Vec<Span>,
        most: usize,
    ) -> Result<Option<usize>, Problem> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let Some(end) = head::end(input, &mut self.scanned)? else { return Ok(None) };
                let head = Head::parse(&input[..end], spans)?;
                *self.head.insert(head)
            }
        };
        match head.framing {
            Framing::Length(length) if length > most => Err(too_large(most)),
            Framing::Length(length) => {
                // OVERFLOW: both are bounded.
                let whole = head.length + length;
                Ok((input.len() >= whole).then_some(whole))
            }
            Framing::Chunks if self.whole.is_some() => Ok(self.whole),
            Framing::Chunks => {
                let chunks = self.chunks.get_or_insert_with(|| Chunks::new(most));
                let from = head.length + self.used;
                let (used, is_done) = chunks.read(&input[from..], &mut self.body)?;
                self.used += used;
                // The framing of many small chunks is larger than their data.
                if self.used > most.saturating_mul(2).saturating_add(MOST_OUT) {
                    return Err(too_large(most));
                }
                self.whole = is_done.then_some(head.length + self.used);
                Ok(self.whole)
            }
        }
    }

    fn clear(&mut self) {
        (self.scanned, self.head, self.is_told) = (0, None, false);
        (self.used, self.whole) = (0, None);
        if self.chunks.take().is_some() {
            self.body.clear();
            self.body.shrink_to(KEPT);
        }
    }
}

impl Wire {
    fn new(stream: Stream, desk: Desk, claim: Claim) -> Self {
        let idle = desk.shared.settings.idle_timeout / IDLE_PARTS;
        let mut ticks = interval(idle.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        Self {
            stream,
            desk,
            claim,
            input: BytesMut::with_capacity(READ / 2),
            out: Vec::with_capacity(READ / 4),
            spans: Vec::with_capacity(16),
            pending: Pending::default(),
            date: Date::default(),
            ticks,
            quiet: 0,
            is_closing: false,
            is_cut: false,
        }
    }

    fn most(&self) -> usize {
        self.desk.shared.settings.max_request
    }

    fn timeout(&self) -> Duration {
        self.desk.shared.settings.request_timeout
    }

    /// Waits for the first bytes of a request. Returns false if the connection is closed, or has
    /// been silent for longer than the idle timeout. Cancel-safe.
    async fn idle(&mut self) -> bool {
        self.quiet = 0;
        self.input.reserve(READ / 2);
        loop {
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => return matches!(read, Ok(1..)),
                _ = self.ticks.tick() => {
                    self.quiet += 1;
                    // One more, because the first tick may come at once.
                    if self.quiet > IDLE_PARTS {
                        return false;
                    }
                }
            }
        }
    }

    /// Tells whether the connection speaks HTTP/2. An error means that the connection is over.
    async fn is_http2(&mut self) -> Result<bool, ()> {
        let timeout_ = self.timeout();
        while self.input.len() < PREFACE.len() && PREFACE.starts_with(&self.input) {
            self.input.reserve(READ / 2);
            match timeout(timeout_, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(1..)) => {}
                _ => return Err(()),
            }
        }
        Ok(self.input.starts_with(PREFACE))
    }

    /// Answers all complete requests in the buffer.
    async fn batch(&mut self, traffic: &Traffic) {
        let most = self.most();
        let shared = self.desk.shared.clone();
        let mut is_timed = shared.engine.timing().is_due();
        let mut moment: Option<Moment> = None;
        let mut count = 0_u32;
        while !self.is_closing {
            while self.pending.head.is_none() && self.input.starts_with(b"\r\n") {
                // Some clients send an extra line end after a body.
                self.input.advance(2);
            }
            if self.input.is_empty() || self.input[..] == *b"\r" {
                break;
            }
            match self.pending.step(&self.input, &mut self.spans, most) {
                Ok(Some(length)) => {
                    let at = moment.get_or_insert_with(|| Moment::new(&shared));
                    self.answer(at, length).await;
                    count += 1;
                    if self.desk.reply.penalty.is_some() {
                        // The delay has made the moment out of date.
                        (moment, is_timed) = (None, false);
                    }
                    if self.desk.reply.is_bad {
                        traffic.bad_request();
                    }
                    if self.out.len() > MOST_OUT
                        && let Err(unsent) = self.flush().await
                    {
                        unsent.count(traffic);
                        self.is_closing = true;
                    }
                }
                Ok(None) => break,
                Err(problem) => {
                    self.refuse(&problem, traffic);
                    count += 1;
                }
            }
        }
        if count > 0 {
            traffic.requests(u64::from(count));
        }
        if let (true, Some(moment)) = (is_timed && count > 0, &moment) {
            shared.engine.timing().note(shared.engine.now().since(moment.now()) / count);
        }
    }

    /// Answers the complete request at the start of the buffer.
    async fn answer(&mut self, moment: &Moment, length: usize) {
        let Self { desk, input, spans, pending, .. } = self;
        let Some(head) = pending.head else { return };
        let (method, target) = head.start(input);
        let (path, query) = Call::split(target);
        let body = match pending.chunks {
            Some(_) => &pending.body[..],
            None => &input[head.length..length],
        };
        let call = Call { method, path, query, fields: Fields { bytes: input, spans }, body };
        let is_head = method == "HEAD";
        desk.answer(moment, &call).await;
        if let Some(penalty) = desk.reply.penalty {
            // The replies to earlier requests do not wait.
            if self.flush().await.is_err() {
                self.is_closing = true;
                return;
            }
            self.desk.reply.closes |= penalty.served(&self.desk.shared).await;
        }
        let Self { desk, out, date, .. } = self;
        let keeps = head.keeps_alive && !desk.reply.closes && !desk.is_draining();
        let connection = match (keeps, head.is_old) {
            (true, false) => "",
            (true, true) => "Connection: keep-alive\r\n",
            (false, _) => "Connection: close\r\n",
        };
        let now = desk.shared.engine.clock().to_wall(moment.now()).as_secs();
        put(out, &desk.reply, (date.text(now), connection), is_head);
        self.is_closing = !keeps;
        self.pending.clear();
        self.input.advance(length);
        if length > KEPT {
            // The bytes after a large request do not keep its memory.
            self.input = BytesMut::from(&self.input[..]);
        }
    }

    /// Answers a request that cannot be read.
    fn refuse(&mut self, problem: &Problem, traffic: &Traffic) {
        traffic.bad_request();
        let engine = &self.desk.shared.engine;
        let now = engine.clock().to_wall(engine.now()).as_secs();
        self.desk.reply.clear();
        self.desk.reply.problem(problem);
        put(&mut self.out, &self.desk.reply, (self.date.text(now), "Connection: close\r\n"), false);
        (self.is_closing, self.is_cut) = (true, true);
        // The rest of the request is not read, and the buffers may hold the memory that is short.
        (self.input, self.pending.body) = (BytesMut::new(), Vec::new());
    }

    /// Reads until the current request is complete. If it takes too long or is invalid, sends an
    /// error and closes the connection.
    async fn complete(&mut self, traffic: &Traffic) {
        let limit = self.timeout();
        match timeout(limit, self.rest()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => self.is_closing = true,
            Ok(Err(problem)) => {
                traffic.requests(1);
                if problem.kind == Kind::NoMemory {
                    traffic.refused(RefusalReason::Memory);
                }
                self.refuse(&problem, traffic);
            }
            Err(_) => {
                traffic.requests(1);
                traffic.refused(RefusalReason::Slow);
                let text = format!("the request did not arrive within {} ms", limit.as_millis());
                self.refuse(&Problem::new(Kind::Slow, text), traffic);
            }
        }
    }

    /// Reads the rest of a request. Returns false if the client has closed the connection.
    async fn rest(&mut self) -> Result<bool, Problem> {
        loop {
            let head = self.pending.head;
            if head.is_some_and(|head| head.expects_continue) && !self.pending.is_told {
                self.pending.is_told = true;
                self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                if self.flush().await.is_err() {
                    return Ok(false);
                }
            }
            self.input.reserve(READ);
            self.hold()?;
            if !matches!(self.stream.read_buf(&mut self.input).await, Ok(1..)) {
                return Ok(false);
            }
            if self.pending.head.is_none() && self.input.starts_with(b"\r\n") {
                return Ok(true);
            }
            let most = self.most();
            if self.pending.step(&self.input, &mut self.spans, most)?.is_some() {
                return Ok(true);
            }
        }
    }

    /// Counts the memory of the buffers.
    fn hold(&mut self) -> Result<(), MemoryError> {
        let Self { input, out, pending, desk, .. } = self;
        // OVERFLOW: all of it is in memory.
        let replies = out.capacity() + desk.reply.body.capacity();
        self.claim.hold(input.capacity() + pending.body.capacity() + replies)
    }

    /// Writes the replies in the buffer.
    async fn flush(&mut self) -> Result<(), Unsent> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.hold().map_err(|_| Unsent::NoMemory)?;
        let limit = self.timeout();
        let write = async {
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await
        };
        let written: Result<io::Result<()>, _> = timeout(limit, write).await;
        self.out.clear();
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Unsent::Gone),
            Err(_) => Err(Unsent::Unread),
        }
    }

    /// Closes the connection so that the client sees the last reply.
    async fn linger(&mut self) {
        let (limit, most) = LINGER;
        let drained = async {
            if self.stream.shutdown().await.is_err() || !self.is_cut {
                return;
            }
            let mut left = most;
            while left > 0 {
                self.input.clear();
                self.input.reserve(READ);
                match self.stream.read_buf(&mut self.input).await {
                    Ok(read @ 1..) => left = left.saturating_sub(read),
                    _ => return,
                }
            }
        };
        let _ = timeout(limit, drained).await;
    }

    /// Frees memory after a large request.
    fn shrink(&mut self) {
        if self.input.capacity() > KEPT {
            self.input = BytesMut::with_capacity(READ / 2);
        }
        self.out.shrink_to(KEPT);
        self.desk.reply.body.shrink_to(KEPT);
        self.desk.answer.trim(KEPT);
        // Holding less always succeeds.
        let _ = self.hold();
    }
}

/// Why replies were not written.
#[derive(Clone, Copy, Debug)]
enum Unsent {
    /// The client has gone.
    Gone,
    /// It did not read them in time.
    Unread,
    /// They are larger than the connection may hold while it waits.
    NoMemory,
}

impl Unsent {
    fn count(self, traffic: &Traffic) {
        match self {
            Self::Gone => {}
            Self::Unread => traffic.refused(RefusalReason::Unread),
            Self::NoMemory => traffic.refused(RefusalReason::Memory),
        }
    }
}
