//! The Redis protocol: rate limits for everything that has a Redis client.
//!
//! ```text
//! input    the received bytes         -> parse    commands, as ranges of them
//! session  runs a command             -> throttle · policy · in_flight · client · about · transaction
//! reply    the replies
//! ```
//!
//! All received commands are decided with one plan and one reading of the clock, and answered by
//! one write. `CL.THROTTLE` and the usual `TG.CHECK` allocate nothing.
//!
//! The resources of a client are bounded: its unread command and its transaction by the settings,
//! unsent replies by [`REPLIES_MAX`], silence by the idle timeout, and an unfinished command or
//! unread replies by the request timeout.

mod about;
mod client;
mod command;
mod docs;
mod in_flight;
mod input;
pub mod parse;
mod policy;
pub mod reply;
mod report;
mod session;
mod throttle;
mod together;
mod transaction;

use crate::{
    net::{Claim, Client, Connection, RefusalReason, Stream},
    server::Shared,
    trace::{Caller, Done, Outcome, Tally},
};
use input::Input;
use session::{Batch, Session};
use std::{
    future::{pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use together::Together;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Interval, MissedTickBehavior, Timeout, interval, timeout},
};

/// Once the replies have this many bytes, they are written before more commands are read.
pub const REPLIES_MAX: usize = 1 << 20;

/// How much of its buffers a connection keeps between batches.
const KEEP: usize = 16 << 10;

/// The idle timeout is checked this many times while it runs, so it may be late by that part.
const IDLE_LOOKS: u32 = 4;

/// The events that a connection waits for.
enum Woken {
    Read(io::Result<usize>),
    /// The server is shutting down.
    Drain,
    /// Time to check whether the connection is idle.
    Look,
    /// A command has not been completed in time.
    Late,
}

/// The next step after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// All complete commands are answered.
    Read,
    /// The replies must be written first.
    Write,
    /// The replies up to here must be written first, and the rest after a delay: the client has
    /// sent a wrong password.
    Wait(usize),
    /// The connection closes after the replies.
    Close,
}

/// A timer.
type Deadline = Pin<Box<Timeout<std::future::Pending<()>>>>;

/// Serves one connection until it ends.
pub async fn serve(mut stream: Stream, mut connection: Connection) {
    if let Stream::Tcp(stream) = &stream {
        // A reply is written as a whole, so delaying it gains nothing. An error means that the
        // connection is gone, which the first read reports, too.
        let _ = stream.set_nodelay(true);
    }
    let shared = Arc::clone(&connection.shared);
    let mut session = Session::new(&shared, Client::new(&stream, &connection));
    let settings = &shared.settings;
    let (request_timeout, mut input) = (settings.request_timeout, Input::new(settings.max_request));
    let mut claim = Arc::clone(&connection.memory).claim();
    // Commands that wait for a store are copied.
    let copies = if shared.engine.is_immediate() { 1 } else { 2 };
    let mut idle = looks(settings.idle_timeout).await;
    let mut draining = pin!(connection.draining());
    let (mut is_draining, mut silent_looks) = (false, 0);
    let mut late: Option<Deadline> = None;
    loop {
        // OVERFLOW: an input is bounded by the longest request.
        if let Err(error) = claim.hold(copies * input.reading() + session.held()) {
            session.traffic().refused(RefusalReason::Memory);
            session.wrong(format_args!("ERR {error}"));
            let _ = write(&mut stream, session.replies.bytes(), request_timeout).await;
            linger(&mut stream).await;
            break;
        }
        let woken = tokio::select! {
            biased;
            read = input.read(&mut stream) => Woken::Read(read),
            () = &mut draining, if !is_draining => Woken::Drain,
            () = passed(&mut late), if late.is_some() => Woken::Late,
            _ = idle.tick() => Woken::Look,
        };
        match woken {
            Woken::Read(Ok(0) | Err(_)) => break,
            Woken::Late => {
                session.traffic().refused(RefusalReason::Slow);
                break;
            }
            Woken::Read(Ok(_)) => silent_looks = 0,
            // A command that has begun may still be completed.
            Woken::Drain if input.is_empty() => break,
            Woken::Drain => is_draining = true,
            Woken::Look if silent_looks == IDLE_LOOKS => break,
            Woken::Look => silent_looks += 1,
        }
        if !matches!(woken, Woken::Read(_)) {
            continue;
        }
        let answered = answer(&shared, &mut stream, &mut session, (&mut input, &mut claim)).await;
        let answered = match answered {
            Ok(Some(answered)) => answered,
            Ok(None) => break,
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::TimedOut => session.traffic().refused(RefusalReason::Unread),
                    io::ErrorKind::OutOfMemory => session.traffic().refused(RefusalReason::Memory),
                    _ => {}
                }
                break;
            }
        };
        if input.is_empty() {
            if is_draining {
                break;
            }
            late = None;
        } else if late.is_none() || answered > 0 {
            late = Some(Box::pin(timeout(request_timeout, pending())));
        }
    }
    // The connection ends, whether or not the client receives the shutdown.
    let _ = timeout(request_timeout, stream.shutdown()).await;
}

/// Answers all received commands. Returns how many; `None` if the connection ends.
async fn answer(
    shared: &Shared,
    stream: &mut Stream,
    session: &mut Session,
    (input, claim): (&mut Input, &mut Claim),
) -> io::Result<Option<u64>> {
    let mut answered = 0;
    loop {
        let (count, next) = decide(shared, session, input).await;
        answered += count;
        if !session.replies.bytes().is_empty() {
            let held = claim.hold(input.reading() + session.held());
            held.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        }
        let limit = shared.settings.request_timeout;
        let mut written = 0;
        if let (Next::Wait(end), Some(penalty)) = (next, session.penalty.take()) {
            write(stream, &session.replies.bytes()[..end], limit).await?;
            written = end;
            if penalty.served(shared).await {
                session.close();
            }
        }
        write(stream, &session.replies.bytes()[written..], limit).await?;
        session.replies.clear(KEEP);
        match next {
            Next::Wait(_) if session.is_closing() => return Ok(None),
            Next::Write | Next::Wait(_) => {}
            Next::Close => return Ok(None),
            Next::Read => break,
        }
    }
    input.compact(KEEP);
    session.answer.trim(KEEP);
    Ok(Some(answered))
}

/// Decides commands with one plan and one reading of the clock.
async fn decide(shared: &Shared, session: &mut Session, input: &mut Input) -> (u64, Next) {
    let engine = &shared.engine;
    let (plan, now) = (engine.plan(), engine.now());
    let batch = Batch { engine, plan: &plan, now };
    let is_timed = engine.timing().is_due();
    let traced = shared.trace.begin(Caller::NOBODY);
    if traced.is_some() {
        session.tally = Tally::on();
    }
    if !session.renew_access() {
        return (0, Next::Close);
    }
    let (mut count, is_immediate, mut together) = (0, engine.is_immediate(), Together::default());
    let next = loop {
        if together.is_full() {
            together.run(session, &batch).await;
        }
        if session.replies.bytes().len() >= REPLIES_MAX {
            break Next::Write;
        }
        let queued = session.next_queued();
        let args = match &queued {
            Some(words) => Ok(Some(words.args())),
            None => input.next(session.is_stranger()),
        };
        match args {
            Ok(Some(args)) if args.is_empty() => {}
            Ok(Some(args)) => {
                // A command of a transaction was counted when it arrived.
                count += u64::from(queued.is_none());
                if !is_immediate {
                    if together.takes(session, &args) {
                        continue;
                    }
                    together.run(session, &batch).await;
                }
                let end = session.replies.bytes().len();
                session.run(&batch, &args).await;
                if session.penalty.is_some() {
                    break Next::Wait(end);
                }
                if session.is_closing() {
                    break Next::Close;
                }
            }
            Ok(None) => {
                together.run(session, &batch).await;
                break Next::Read;
            }
            Err(error) => {
                together.run(session, &batch).await;
                session.wrong(format_args!("ERR {error}"));
                break Next::Close;
            }
        }
    };
    if is_timed && count > 0 {
        let took = engine.now().since(now);
        engine.timing().note(took / u32::try_from(count).unwrap_or(u32::MAX));
    }
    if let Some(traced) = traced {
        let tally = std::mem::take(&mut session.tally);
        if count > 0 {
            let (name, outcome) = ("RESP".into(), Outcome::Commands(count));
            let done = Done { name, protocol: "resp", begun: now, tally, outcome };
            shared.trace.end(traced, engine, done);
        }
    }
    session.traffic().requests(count);
    (count, next)
}

/// Writes all bytes. Starts the timer only if the socket does not take them at once.
async fn write(stream: &mut Stream, bytes: &[u8], limit: Duration) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_write(cx, bytes))).await;
    let written = match first {
        Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(written) => written?,
        Poll::Pending => 0,
    };
    if written == bytes.len() && matches!(stream, Stream::Tcp(_) | Stream::Unix(_)) {
        return Ok(());
    }
    let rest = async {
        stream.write_all(&bytes[written..]).await?;
        // TLS buffers records.
        stream.flush().await
    };
    timeout(limit, rest).await?
}

/// Discards some of the input that the client still sends; the client might never see the last
/// reply otherwise.
async fn linger(stream: &mut Stream) {
    let (limit, reads) = (Duration::from_secs(1), 64);
    let discard = async {
        let mut bytes = [0; 4 << 10];
        for _ in 0..reads {
            if !matches!(stream.read(&mut bytes).await, Ok(1..)) {
                return;
            }
        }
    };
    let _ = timeout(limit, discard).await;
}

/// Returns the times to check whether a connection is idle.
async fn looks(idle_timeout: Duration) -> Interval {
    let every = (idle_timeout / IDLE_LOOKS).max(Duration::from_millis(1));
    let mut looks = interval(every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
    looks.tick().await;
    looks
}

async fn passed(deadline: &mut Option<Deadline>) {
    match deadline {
        Some(deadline) => drop(deadline.as_mut().await),
        None => pending().await,
    }
}
