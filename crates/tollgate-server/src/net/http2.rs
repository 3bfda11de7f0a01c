//! Watches an HTTP/2 connection for progress.
//!
//! The HTTP/2 library has no timeouts. It cannot detect that a client has begun a block of headers
//! or a frame and does not end it, or that it does not read the output. [`Http2Stream`] sees the
//! bytes in both directions and records their progress in [`Progress`]; the task that serves the
//! connection checks it [`LOOKS`] times per request timeout, and closes a stalled connection.

use super::{RefusalReason, Stream};
use bytes::{Buf, BytesMut};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{self, Relaxed},
        },
    },
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// How often [`Stall::look`] is called in the time that a request may take.
pub(crate) const LOOKS: u32 = 4;

/// Bytes of the table that compresses headers. This and the next three are the library's defaults,
/// which the bounds of a connection rely on.
pub(crate) const HEADER_TABLE: u32 = 4 << 10;
/// The longest frame.
pub(crate) const MAX_FRAME: u32 = 16 << 10;
/// Streams that a client may reset before they are accepted.
pub(crate) const MAX_PENDING_RESETS: usize = 20;
/// Streams that are reset because the client breaks the protocol.
pub(crate) const MAX_ERROR_RESETS: usize = 1024;

/// Replies that wait in the HTTP/2 library to be written, in bytes. Then it writes before it gets more.
const UNSENT: usize = 256 << 10;

/// How many bytes come before the first frame of a client.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// How far the bytes of a connection have come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether the client has sent anything.
    has_begun: AtomicBool,
    /// Bytes that were written.
    written: AtomicU64,
    /// Whether the last write had to wait.
    is_blocked: AtomicBool,
    /// Bytes of replies since all was written.
    unsent: AtomicUsize,
    all_written: Notify,
    /// Frames that were read, blocks of headers counted as one.
    units: AtomicU64,
    /// Whether one has begun and is not complete.
    is_inside: AtomicBool,
}

// ORDERING: Relaxed, everywhere. One task reads and writes all of it.
const ORDER: Ordering = Relaxed;

impl Progress {
    /// Counts bytes of a reply that was given to the HTTP/2 library.
    pub(crate) fn sent(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, ORDER);
    }

    /// Tells whether the client has sent anything.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(ORDER)
    }

    /// Tells whether so many bytes of replies wait in the library that it should write first.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent.load(ORDER) >= UNSENT
    }

    /// Waits until replies may be given to the library again. Cancel-safe.
    pub(crate) async fn until_written(&self) {
        let written = self.all_written.notified();
        if self.is_full() {
            written.await;
        }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        self.is_blocked.store(written.is_pending(), ORDER);
        if let Poll::Ready(Ok(bytes)) = written {
            self.written.fetch_add(*bytes as u64, ORDER);
        }
    }
}

/// Finds connections that stand still.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    progress: Arc<Progress>,
    written: u64,
    unread_looks: u32,
    units: u64,
    slow_looks: u32,
}

impl Stall {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self { progress, ..Self::default() }
    }

    /// Looks whether something has moved. Returns why to give the connection up, if nothing has for
    /// more than [`LOOKS`] looks.
    pub(crate) fn look(&mut self) -> Option<RefusalReason> {
        let (progress, mut counts) = (&self.progress, [0; 2]);
        for (count, (has_begun, moved, seen, looks)) in counts.iter_mut().zip([
            (&progress.is_blocked, &progress.written, &mut self.written, &mut self.unread_looks),
            (&progress.is_inside, &progress.units, &mut self.units, &mut self.slow_looks),
        ]) {
            let now = moved.load(ORDER);
            let stands = has_begun.load(ORDER) && now == *seen;
            (*seen, *looks) = (now, if stands { *looks + 1 } else { 0 });
            *count = *looks;
        }
        match counts {
            [unread, _] if unread > LOOKS => Some(RefusalReason::Unread),
            [_, slow] if slow > LOOKS => Some(RefusalReason::Slow),
            _ => None,
        }
    }
}

/// Follows frames without reading their payload.
#[derive(Debug)]
struct Frames {
    /// Bytes of the preface or of a payload that are still to come.
    skip: usize,
    head: [u8; FRAME_HEAD],
    /// How many bytes of the head have come.
    have: usize,
    /// Whether a block of headers is open.
    is_open: bool,
}

impl Frames {
    const fn new() -> Self {
        Self { skip: PREFACE, head: [0; FRAME_HEAD], have: 0, is_open: false }
    }

    const fn is_inside(&self) -> bool {
        self.skip > 0 || self.have > 0 || self.is_open
    }

    /// Takes bytes. Returns how many units have ended in them.
    fn read(&mut self, mut bytes: &[u8]) -> u64 {
        let mut units = 0;
        while !bytes.is_empty() {
            let part = if self.skip > 0 { self.skip } else { FRAME_HEAD - self.have };
            let (here, rest) = bytes.split_at(part.min(bytes.len()));
            bytes = rest;
            if self.skip > 0 {
                self.skip -= here.len();
            } else {
                self.head[self.have..self.have + here.len()].copy_from_slice(here);
                self.have += here.len();
                if self.have == FRAME_HEAD {
                    let [high, middle, low, kind, flags, ..] = self.head;
                    // OVERFLOW: 24 bits.
                    self.skip = u32::from_be_bytes([0, high, middle, low]) as usize;
                    self.have = 0;
                    if matches!(kind, HEADERS | CONTINUATION) {
                        self.is_open = flags & END_HEADERS == 0;
                    }
                }
            }
            units += u64::from(!self.is_inside());
        }
        units
    }
}

/// A stream of HTTP/2 frames, of which the first bytes may have been read already.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    first: BytesMut,
    stream: Stream,
    frames: Frames,
    progress: Arc<Progress>,
}

impl Http2Stream {
    pub(crate) fn new(first: BytesMut, stream: Stream) -> (Self, Stall) {
        let progress = Arc::<Progress>::default();
        let stall = Stall::new(Arc::clone(&progress));
        (Self { first, stream, frames: Frames::new(), progress }, stall)
    }

    pub(crate) const fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl AsyncRead for Http2Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = if self.first.is_empty() {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        } else {
            let here = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..here]);
            self.first.advance(here);
            Poll::Ready(Ok(()))
        };
        let this = &mut *self;
        if buffer.filled().len() > before {
            this.progress.has_begun.store(true, ORDER);
        }
        let units = this.frames.read(&buffer.filled()[before..]);
        this.progress.units.fetch_add(units, ORDER);
        this.progress.is_inside.store(this.frames.is_inside(), ORDER);
        polled
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.progress.note(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.progress.note(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        // The library flushes when it has written all that it may.
        self.progress.is_blocked.store(polled.is_pending(), ORDER);
        if polled.is_ready() {
            self.progress.unsent.store(0, ORDER);
            self.progress.all_written.notify_waiters();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, flags, 0, 0, 0, 1][..], payload].concat()
    }

    #[test]
    fn frames_are_followed_however_they_arrive() {
        let mut bytes = vec![b'P'; PREFACE];
        bytes.extend(frame(4, 0, b""));
        bytes.extend(frame(HEADERS, END_HEADERS, b"abc"));
        bytes.extend(frame(0, 1, b"data"));
        // One unit: a block of headers in three frames.
        bytes.extend(frame(HEADERS, 0, b"abc"));
        bytes.extend(frame(CONTINUATION, 0, b""));
        bytes.extend(frame(CONTINUATION, END_HEADERS, b"c"));
        for size in [1, 2, 7, bytes.len()] {
            let mut frames = Frames::new();
            let units: u64 = bytes.chunks(size).map(|chunk| frames.read(chunk)).sum();
            assert_eq!((units, frames.is_inside()), (5, false), "{size}");
        }
        for (cut, is_inside) in [(0, true), (PREFACE, false), (PREFACE + 3, true)] {
            let mut frames = Frames::new();
            frames.read(&bytes[..cut]);
            assert_eq!(frames.is_inside(), is_inside, "{cut}");
        }
        let mut frames = Frames::new();
        frames.read(&bytes[..bytes.len() - FRAME_HEAD - 1]);
        assert!(frames.is_inside(), "the block of headers is not at its end");
    }

    #[test]
    fn what_stands_still_is_found_and_what_moves_is_not() {
        let progress = Arc::<Progress>::default();
        let mut stall = Stall::new(Arc::clone(&progress));
        let looks = |stall: &mut Stall| (0..=LOOKS).fold(None, |_, _| stall.look());
        assert_eq!(looks(&mut stall), None, "nothing has begun");
        progress.note(&Poll::Pending);
        assert_eq!(looks(&mut stall), Some(RefusalReason::Unread));
        progress.note(&Poll::Ready(Ok(1)));
        progress.note(&Poll::Pending);
        assert_eq!(stall.look(), None, "something was read");
        progress.note(&Poll::Ready(Ok(1)));
        progress.is_inside.store(true, ORDER);
        assert_eq!(looks(&mut stall), Some(RefusalReason::Slow));
        progress.units.fetch_add(1, ORDER);
        assert_eq!(stall.look(), None);
    }
}
