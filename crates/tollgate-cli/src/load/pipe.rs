//! One connection whose answers come in the order of the requests: RESP and HTTP/1.1.
//!
//! Closed loop: a batch is written at once, and the next one when all responses have arrived, as
//! `redis-benchmark -P` does. Open loop: all due requests are written at once. The memory of a
//! connection is two buffers, allocated before the first request and never again.

use super::{
    gate::Gate,
    keys::Keys,
    schedule::Pace,
    tally::{Tally, Verdict},
    template::Template,
    worker::Lane,
};
use crate::{
    counted,
    target::{Stream, Target},
};
use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The largest answer, and how much is read at once.
const INBOX_BYTES: usize = 32 * 1024;

/// How much is gathered for one write in an open loop.
const OUTBOX_BYTES: usize = 64 * 1024;

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) length: usize,
    pub(crate) verdict: Verdict,
    /// Whether the server hangs up after it.
    pub(crate) is_last: bool,
}

/// Finds the end of an answer and says what it means.
pub(crate) trait Scan: Send + Sync + 'static {
    /// Returns the first answer, or nothing if its end has not come yet.
    fn scan(&self, bytes: &[u8]) -> Result<Option<Answer>, String>;

    /// Says in words what an answer with [`Verdict::Error`] was.
    fn describe(&self, answer: &[u8]) -> String;
}

/// A connection and what it sends.
pub(crate) struct Pipe<S> {
    pub(crate) lane: Lane,
    pub(crate) target: Arc<Target>,
    pub(crate) template: Arc<Template>,
    pub(crate) scan: S,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<Gate>,
}

impl<S: Scan> Pipe<S> {
    /// Sends and counts until the run is over or the server is gone.
    pub(crate) async fn run(self, mut stream: Stream) {
        let mut state = State::new(self);
        loop {
            match state.session(&mut stream).await {
                End::Done => return,
                End::Lost(why) => {
                    let lost = state.sent - state.answered;
                    let in_vain = state.answered_before == state.answered;
                    let mut tally = lock(&state.pipe.lane);
                    if lost > 0 {
                        tally.explain(|| {
                            format!("{why} with {} in flight", counted(lost, "request"))
                        });
                    }
                    if in_vain {
                        return tally.fail(|| format!("{why} before any response"));
                    }
                    tally.reconnects += 1;
                }
                End::Broken(why) => return lock(&state.pipe.lane).fail(|| why),
            }
            match state.pipe.target.connect().await {
                Ok(fresh) => stream = fresh,
                Err(error) => {
                    let text = || format!("cannot reconnect to {}: {error}", state.pipe.target);
                    return lock(&state.pipe.lane).fail(text);
                }
            }
            state.forget();
        }
    }
}

fn lock(lane: &Lane) -> std::sync::MutexGuard<'_, Tally> {
    lane.tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a session ended.
enum End {
    Done,
    /// The connection is gone; another may do.
    Lost(String),
    /// The responses are invalid.
    Broken(String),
}

/// Why a turn is over.
enum Turn {
    /// So many bytes came; none means the server hung up.
    Read(usize),
    /// There may be something to send.
    Due,
}

struct State<S> {
    pipe: Pipe<S>,
    inbox: Inbox,
    out: Vec<u8>,
    written: usize,
    share: u64,
    sent: u64,
    answered: u64,
    /// How many were answered when this session began.
    answered_before: u64,
    /// When the batch in flight was written; closed loop only.
    batch_ns: u64,
    /// Whether the server said that it hangs up.
    is_last: bool,
}

impl<S: Scan> State<S> {
    fn new(pipe: Pipe<S>) -> Self {
        let out = match pipe.lane.schedule.pace {
            // A plan has no batch above 64 MiB.
            Pace::Closed { depth } => pipe.template.len() * depth as usize,
            Pace::Open { .. } => OUTBOX_BYTES + pipe.template.len(),
        };
        Self {
            share: pipe.lane.schedule.share(pipe.lane.connection),
            pipe,
            inbox: Inbox::new(),
            out: Vec::with_capacity(out),
            written: 0,
            sent: 0,
            answered: 0,
            answered_before: 0,
            batch_ns: 0,
            is_last: false,
        }
    }

    /// Gives up on what was in flight.
    fn forget(&mut self) {
        self.inbox.clear();
        self.out.clear();
        self.written = 0;
        self.is_last = false;
        self.answered = self.sent;
        self.answered_before = self.answered;
    }

    async fn session(&mut self, stream: &mut Stream) -> End {
        loop {
            self.fill();
            if self.sent == self.answered && self.is_over() {
                return End::Done;
            }
            let turn = poll_fn(|cx| self.turn(Pin::new(&mut *stream), cx)).await;
            let problem = match turn {
                Ok(Turn::Due) => continue,
                Ok(Turn::Read(0)) => End::Lost("the server closed the connection".into()),
                Ok(Turn::Read(_)) => match self.take_answers() {
                    Ok(()) if self.is_last => End::Lost("the server closed the connection".into()),
                    Ok(()) => continue,
                    Err(why) => End::Broken(why),
                },
                Err(error) => End::Lost(format!("the connection failed: {error}")),
            };
            // A server may hang up between two requests, if nothing more is wanted.
            return if self.sent == self.answered && self.is_over() { End::Done } else { problem };
        }
    }

    fn is_over(&self) -> bool {
        let lane = &self.pipe.lane;
        self.sent >= self.share || lane.halt.is_set() || lane.schedule.is_over(lane.clock.now_ns())
    }

    /// Puts what is to be sent now into the outbox, as far as it fits.
    fn fill(&mut self) {
        match self.pipe.lane.schedule.pace {
            Pace::Closed { depth } => {
                if self.sent == self.answered && !self.is_over() {
                    self.batch_ns = self.pipe.lane.clock.now_ns();
                    self.push(depth.min(self.share - self.sent), self.batch_ns);
                }
            }
            Pace::Open { .. } => self.fill_due(),
        }
    }

    fn fill_due(&mut self) {
        let Lane { schedule, connection, .. } = self.pipe.lane;
        let due = self.due();
        while self.sent < due && self.out.len() < OUTBOX_BYTES {
            self.push(1, schedule.due_on(connection, self.sent));
        }
    }

    /// Returns how many requests should have been sent by now; open loop only.
    fn due(&self) -> u64 {
        let Lane { clock, schedule, connection, halt, .. } = &self.pipe.lane;
        if halt.is_set() {
            return self.sent;
        }
        schedule.part(schedule.due_count(clock.now_ns()), *connection).min(self.share)
    }

    /// Whether an open loop has something to do before the next answer.
    fn is_due(&self) -> bool {
        self.due() > self.sent || (self.sent == self.answered && self.is_over())
    }

    fn push(&mut self, count: u64, at_ns: u64) {
        for _ in 0..count {
            self.pipe.template.write(self.pipe.keys.next(), &mut self.out);
        }
        self.sent += count;
        if at_ns >= self.pipe.lane.schedule.measure_from_ns {
            lock(&self.pipe.lane).sent += count;
        }
    }

    /// Writes the rest of the output, and reads.
    fn turn(
        &mut self,
        mut stream: Pin<&mut Stream>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Turn>> {
        while self.written < self.out.len() {
            match stream.as_mut().poll_write(cx, &self.out[self.written..]) {
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
        }
        let all_written = self.written == self.out.len();
        if all_written {
            self.out.clear();
            self.written = 0;
        }
        // TLS may hold records back; for others this does nothing.
        if let Poll::Ready(Err(error)) = stream.as_mut().poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(read) = self.inbox.poll_read(stream, cx) {
            return Poll::Ready(read.map(Turn::Read));
        }
        if all_written && matches!(self.pipe.lane.schedule.pace, Pace::Open { .. }) {
            if self.is_due() {
                return Poll::Ready(Ok(Turn::Due));
            }
            self.pipe.gate.wait(cx.waker());
        }
        Poll::Pending
    }

    fn take_answers(&mut self) -> Result<(), String> {
        let Lane { clock, schedule, connection, .. } = self.pipe.lane;
        let now = clock.now_ns();
        let mut tally = lock(&self.pipe.lane);
        while let Some(answer) = self.pipe.scan.scan(self.inbox.bytes())? {
            let Answer { length, verdict, is_last } = answer;
            if self.answered == self.sent {
                return Err("the server sent a response that belongs to no request".into());
            }
            let from = match schedule.pace {
                Pace::Closed { .. } => self.batch_ns,
                Pace::Open { .. } => schedule.due_on(connection, self.answered),
            };
            if from >= schedule.measure_from_ns {
                tally.answer(verdict, now.saturating_sub(from));
                tally.last_ns = now;
            } else {
                tally.warm_answer(verdict);
            }
            if verdict == Verdict::Error {
                let answer = self.inbox.bytes().get(..length).unwrap_or_default();
                tally.explain(|| self.pipe.scan.describe(answer));
            }
            self.answered += 1;
            self.inbox.consume(length);
            self.is_last = is_last;
        }
        self.inbox.make_room()
    }
}

/// Bytes that came and are not understood yet.
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new() -> Self {
        Self { bytes: vec![0; INBOX_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.clear();
        }
    }

    /// Moves the rest to the front; an answer that fills the inbox is too long.
    fn make_room(&mut self) -> Result<(), String> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            return Err(format!("a response is longer than {INBOX_BYTES} bytes"));
        }
        Ok(())
    }

    fn poll_read(
        &mut self,
        stream: Pin<&mut Stream>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        match stream.poll_read(cx, &mut room) {
            Poll::Ready(Ok(())) => {
                let count = room.filled().len();
                self.end += count;
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}
