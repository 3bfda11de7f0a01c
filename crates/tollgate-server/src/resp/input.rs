//! The received bytes, and the commands in them.

use super::parse::{Args, Bounds, Parser, ProtocolError};
use crate::net::Stream;
use std::io;
use tokio::io::AsyncReadExt;

/// How many bytes one read takes: at first, and at most.
const CHUNKS: (usize, usize) = (4 << 10, 64 << 10);

/// One buffer, which grows with its input.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Vec<u8>,
    /// Where the first command starts that has not been returned.
    start: usize,
    parser: Parser,
    chunk: usize,
}

impl Input {
    pub(super) fn new(max_request: usize) -> Self {
        let parser = Parser::new(Bounds::of(max_request));
        Self { buffer: Vec::new(), start: 0, parser, chunk: CHUNKS.0 }
    }

    /// Tells whether no input waits, not even a part of a command.
    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Returns the memory of the buffer during a read.
    pub(super) fn reading(&self) -> usize {
        // OVERFLOW: the bytes are in memory, or are about to be.
        self.buffer.capacity().max(self.buffer.len() + self.chunk)
    }

    /// Reads the available bytes, at least one; zero is the end of the stream. Cancel-safe.
    pub(super) async fn read(&mut self, stream: &mut Stream) -> io::Result<usize> {
        // The parser refuses commands and lines above their bounds, so the buffer does not grow
        // beyond a bound plus one chunk, or beyond twice that, because vectors grow by doubling.
        self.buffer.reserve(self.chunk);
        let room = self.buffer.capacity() - self.buffer.len();
        let read = stream.read_buf(&mut self.buffer).await?;
        if read == room && self.chunk < CHUNKS.1 {
            self.chunk *= 2;
        }
        Ok(read)
    }

    /// Returns the next command, if it is complete.
    #[inline]
    pub(super) fn next(&mut self, is_stranger: bool) -> Result<Option<Args<'_>>, ProtocolError> {
        self.parser.stranger(is_stranger);
        let start = self.start;
        let Some(length) = self.parser.parse(&mut self.buffer[start..])? else { return Ok(None) };
        self.start += length;
        Ok(Some(self.parser.args(&self.buffer[start..])))
    }

    /// Moves the rest to the start of the buffer; if no input waits, frees the memory above `keep`.
    pub(super) fn compact(&mut self, keep: usize) {
        if self.is_empty() {
            self.buffer.clear();
            if self.buffer.capacity() > CHUNKS.1 {
                self.buffer.shrink_to(keep);
                self.chunk = CHUNKS.0;
            }
        } else if self.start > 0 {
            // Happens once for each command that arrives in parts: it is at the start afterwards.
            self.buffer.drain(..self.start);
        }
        self.start = 0;
    }
}
