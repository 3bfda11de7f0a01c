//! The task of a connection: writes what is queued, and hands out the replies.

use super::{LinkError, connect::Connection, pipe::Pipe, stream::Stream};
use crate::{Reply, wire::ReplyParser};
use bytes::BytesMut;
use std::{
    collections::VecDeque,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};
use tokio::io::{AsyncReadExt, AsyncWrite};

/// How many bytes are taken from the queue before they are written. Commands that stay in the queue
/// can still be withdrawn.
const OUT_MAX: usize = 64 << 10;

/// How many bytes one read takes.
const READ_SIZE: usize = 16 << 10;

/// How many replies are handed out at once.
const BATCH: usize = 256;

const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The slot of a reply that no caller waits for.
const NOBODY: u32 = u32::MAX;

/// Runs a connection until it breaks; then it says why. Dropping it fails the calls that wait.
#[derive(Debug)]
pub(super) struct Io<'a> {
    pipe: &'a Pipe,
    address: &'a str,
    stream: Stream,
    parser: ReplyParser,
    buffer: BytesMut,
    out: Vec<u8>,
    /// How much of `out` was written.
    written: usize,
    /// Bytes written before those in `out`.
    before: u64,
    /// Whose replies are to come, in this order.
    sent: VecDeque<Sent>,
    replies: Vec<(u32, Result<Reply, LinkError>)>,
    wakers: Vec<Waker>,
    /// Others were let run before the queue is taken.
    has_waited: bool,
    /// How many commands were taken last.
    last_batch: usize,
    unflushed: bool,
    why: String,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: u32,
    /// Where its command starts, in bytes since the connection was made.
    start: u64,
}

impl<'a> Io<'a> {
    /// Starts to take calls.
    pub(super) fn new(pipe: &'a Pipe, address: &'a str, connection: Connection) -> Self {
        pipe.opened();
        Self {
            pipe,
            address,
            stream: connection.stream,
            parser: connection.parser,
            buffer: connection.buffer,
            out: Vec::new(),
            written: 0,
            before: 0,
            sent: VecDeque::new(),
            replies: Vec::new(),
            wakers: Vec::new(),
            has_waited: false,
            last_batch: 0,
            unflushed: false,
            why: "the connection is closed".into(),
        }
    }

    /// Takes queued commands, if there is space. Returns whether there were any.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        if self.out.len() - self.written >= OUT_MAX {
            return false;
        }
        let is_busy = self.last_batch > 1 || !self.sent.is_empty();
        if is_busy && !self.has_waited && self.pipe.has_queued() {
            // The caller that woke this task is not alone: the others that are ready to run come
            // first, and all their commands are one write.
            self.has_waited = true;
            context.waker().wake_by_ref();
            return false;
        }
        self.has_waited = false;
        // Also while a connection that takes little at a time is never done with all of it.
        if self.written == self.out.len() || self.written >= OUT_MAX {
            self.out.drain(..self.written);
            self.before += self.written as u64;
            self.written = 0;
            self.out.shrink_to(4 * OUT_MAX);
        }
        let (out, sent, written, before) =
            (&mut self.out, &mut self.sent, self.written, self.before);
        let mut batch = 0;
        let took = self.pipe.take(context.waker(), |taken| {
            if out.len() - written >= OUT_MAX {
                return false;
            }
            let start = before + out.len() as u64;
            if taken.asking {
                out.extend_from_slice(ASKING);
                sent.push_back(Sent { at: NOBODY, start });
            }
            out.extend_from_slice(taken.command);
            sent.push_back(Sent { at: taken.at, start });
            batch += 1;
            true
        });
        if took {
            self.last_batch = batch;
        }
        took
    }

    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.written < self.out.len() {
            let rest = &self.out[self.written..];
            match Pin::new(&mut self.stream).poll_write(context, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => {
                    self.written += count;
                    self.unflushed = true;
                }
                Poll::Pending => return Ok(()),
            }
        }
        if self.unflushed && Pin::new(&mut self.stream).poll_flush(context)?.is_ready() {
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads once, and hands out the replies that are complete.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.buffer.reserve(READ_SIZE);
        let read = pin!(self.stream.read_buf(&mut self.buffer));
        match ready!(read.poll(context)) {
            Ok(0) => return Poll::Ready(Err("the server closed the connection".into())),
            Ok(_) => {}
            Err(error) => return Poll::Ready(Err(error.to_string())),
        }
        // Those that are complete are handed out even if what follows is no reply.
        let parsed = self.parse();
        self.hand_out();
        Poll::Ready(parsed)
    }

    fn parse(&mut self) -> Result<(), String> {
        while let Some(reply) = self.parser.next(&mut self.buffer).map_err(|it| it.to_string())? {
            let sent = self.sent.pop_front().ok_or("the server sent a reply without a command")?;
            if sent.at != NOBODY {
                self.replies.push((sent.at, Ok(reply)));
            }
            if self.replies.len() == BATCH {
                self.hand_out();
            }
        }
        Ok(())
    }

    fn hand_out(&mut self) {
        if !self.replies.is_empty() {
            self.pipe.finish(self.replies.drain(..), &mut self.wakers);
            self.wakers.drain(..).for_each(Waker::wake);
        }
    }
}

impl Future for Io<'_> {
    type Output = String;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<String> {
        let io = self.get_mut();
        let why = loop {
            let took = io.collect(context);
            if let Err(error) = io.write(context) {
                break error.to_string();
            }
            match io.read(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => break error,
                Poll::Pending if took => {}
                Poll::Pending => return Poll::Pending,
            }
        };
        io.why = why;
        Poll::Ready(io.why.clone())
    }
}

impl Drop for Io<'_> {
    fn drop(&mut self) {
        let text = format!("{}: {}", self.address, self.why);
        let written = self.before + self.written as u64;
        let lost = self.sent.drain(..).map(|sent| {
            // A command of which no byte left this process was not carried out.
            let error = match sent.start >= written {
                true => LinkError::unavailable(text.as_str()),
                false => LinkError::unknown(text.as_str()),
            };
            (sent.at, Err(error))
        });
        self.pipe.finish(lost, &mut self.wakers);
        self.pipe.refuse(&text);
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ReplyBounds;
    use tokio::{
        io::AsyncReadExt,
        net::{TcpListener, TcpSocket},
    };

    /// A server that is always a little slower than we are: what was written must not stay in memory.
    #[tokio::test]
    async fn what_was_written_is_forgotten_although_more_comes() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(8 << 10).unwrap();
        let (stream, accepted) = tokio::join!(socket.connect(address), listener.accept());
        let mut server = accepted.unwrap().0;
        let parser = ReplyParser::new(ReplyBounds::default());
        let stream = Stream::Tcp(stream.unwrap());
        let connection = Connection { stream, parser, buffer: BytesMut::new() };
        let pipe = Pipe::new(10_000);
        let mut io = Io::new(&pipe, "h", connection);
        let mut waiting = Vec::new();
        let mut read = vec![0; 32 << 10];
        let mut largest = 0;
        for round in 0..200 {
            for _ in 0..4 {
                let pushed = pipe.push(&mut vec![b'x'; 16 << 10], false, Waker::noop());
                waiting.extend(pushed);
            }
            // Only once the connection is full is the server behind.
            tokio::select! {
                biased;
                why = &mut io => panic!("{why}"),
                _ = server.read(&mut read), if round > 40 => {}
                () = tokio::task::yield_now(), if round <= 40 => {}
            }
            largest = largest.max(io.out.len());
        }
        assert!(largest <= 4 * OUT_MAX, "{largest} bytes are kept");
    }
}
