//! The body that all attempts at one call share, and the frames kept of it.

use super::replay::BoxError;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// The overhead of keeping a frame, so that empty frames are not free.
const FRAME_BYTES: usize = 64;

/// The result of polling a body.
type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// The body, and the frames kept of it.
pub(super) struct Shared<B> {
    state: Mutex<State<B>>,
    max_bytes: usize,
}

struct State<B> {
    source: Source<B>,
    /// While everything is kept, all frames so far; afterwards, the frames that the reader has not
    /// had yet.
    pieces: VecDeque<Piece>,
    /// The cost of the pieces.
    bytes: usize,
    /// How many of the pieces the reader has had.
    at: usize,
    /// Whether all frames so far are in the pieces.
    is_whole: bool,
    /// The number of the attempt that reads.
    number: u64,
    /// The waker of that attempt, if it waits.
    reader: Option<Waker>,
    /// The source's own size hint, so that nothing calls the source under the lock.
    hint: SizeHint,
    is_end: bool,
}

enum Source<B> {
    There(Pin<Box<B>>),
    /// An attempt polls it.
    Out,
    /// It has ended or failed. The error is for the reader, if no reader has had it.
    Over(Option<BoxError>),
}

/// A frame that can be cloned.
#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn of(frame: Frame<Bytes>) -> Result<Self, Frame<Bytes>> {
        match frame.into_data() {
            Ok(data) => Ok(Self::Data(data)),
            Err(other) => other.into_trailers().map(Self::Trailers),
        }
    }

    fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }

    fn cost(&self) -> usize {
        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len() + FRAME_BYTES
        };
        let fields = match self {
            Self::Data(_) => 0,
            Self::Trailers(trailers) => trailers.iter().map(field).sum(),
        };
        // OVERFLOW: all of these bytes are in memory.
        FRAME_BYTES + self.length() + fields
    }
}

/// The next step of the reader.
enum Next<B> {
    Ready(Option<Result<Frame<Bytes>, BoxError>>),
    Waits,
    Polls(Pin<Box<B>>),
}

impl<B> Shared<B> {
    pub(super) fn number(&self) -> u64 {
        self.state().number
    }

    pub(super) fn is_whole(&self) -> bool {
        self.state().is_whole
    }

    /// Lets the next attempt read from the start, if all is kept.
    pub(super) fn recall(&self) -> bool {
        let mut state = self.state();
        if !state.is_whole {
            return false;
        }
        state.number += 1;
        state.at = 0;
        let old = state.reader.take();
        drop(state);
        // The old reader finds that it was recalled.
        old.into_iter().for_each(Waker::wake);
        true
    }

    /// Drops the frames that the reader has had, and keeps no more.
    pub(super) fn keep_no_more(&self) {
        let mut state = self.state();
        let old = state.keep_no_more();
        drop(state);
        drop(old);
    }

    pub(super) fn is_end_stream(&self, number: u64) -> bool {
        let state = self.state();
        let is_over = match &state.source {
            Source::Over(error) => error.is_none(),
            Source::There(_) | Source::Out => state.is_end,
        };
        number == state.number && state.at == state.pieces.len() && is_over
    }

    pub(super) fn size_hint(&self, number: u64) -> SizeHint {
        let state = self.state();
        if number != state.number {
            return SizeHint::default();
        }
        let kept: usize = state.pieces.iter().skip(state.at).map(Piece::length).sum();
        let (kept, source) = (kept as u64, &state.hint);
        let mut hint = SizeHint::new();
        hint.set_lower(source.lower().saturating_add(kept));
        if let Some(upper) = source.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        // Nothing panics under the lock, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Shared<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(body: B, max_bytes: usize) -> Self {
        let state = State {
            hint: body.size_hint(),
            is_end: body.is_end_stream(),
            source: Source::There(Box::pin(body)),
            pieces: VecDeque::new(),
            bytes: 0,
            at: 0,
            is_whole: true,
            number: 0,
            reader: None,
        };
        Self { state: Mutex::new(state), max_bytes }
    }

    /// Returns the next frame of an attempt.
    pub(super) fn poll_frame(&self, number: u64, context: &mut Context<'_>) -> Polled {
        // Wakers are foreign code: they are cloned before the lock is taken, and dropped after it
        // is released.
        let mut waker = Some(context.waker().clone());
        loop {
            let next = self.state().next(number, &mut waker);
            let source = match next {
                Next::Ready(frame) => return Poll::Ready(frame),
                Next::Waits => return Poll::Pending,
                Next::Polls(source) => source,
            };
            let mut out = Out { shared: self, source: Some(source) };
            let Some(source) = &mut out.source else { return Poll::Pending };
            let polled = source.as_mut().poll_frame(context);
            let told = (source.size_hint(), source.is_end_stream());
            let Poll::Ready(frame) = polled else {
                out.back(None, told, number);
                let next = self.state().wait(number, &mut waker);
                return next.map_or(Poll::Pending, |recalled| Poll::Ready(Some(Err(recalled))));
            };
            // The current reader reads it: this attempt, unless it was recalled meanwhile.
            out.back(Some(frame.map(|frame| frame.map_err(Into::into))), told, number);
        }
    }
}

impl<B> State<B> {
    /// Returns a kept frame, or the source to be polled.
    fn next(&mut self, number: u64, waker: &mut Option<Waker>) -> Next<B> {
        if number != self.number {
            return Next::Ready(Some(Err(Recalled.into())));
        }
        if let Some(piece) = self.read() {
            return Next::Ready(Some(Ok(piece.into_frame())));
        }
        match std::mem::replace(&mut self.source, Source::Out) {
            Source::There(source) => Next::Polls(source),
            Source::Out => {
                std::mem::swap(&mut self.reader, waker);
                Next::Waits
            }
            Source::Over(error) => {
                self.source = Source::Over(None);
                Next::Ready(error.map(Err))
            }
        }
    }

    fn read(&mut self) -> Option<Piece> {
        if self.is_whole {
            let piece = self.pieces.get(self.at)?.clone();
            self.at += 1;
            return Some(piece);
        }
        // The costs do not matter any more.
        self.pieces.pop_front()
    }

    /// Returns the frames to drop after the lock is released.
    fn keep_no_more(&mut self) -> VecDeque<Piece> {
        if !std::mem::take(&mut self.is_whole) {
            return VecDeque::new();
        }
        let unread = self.pieces.split_off(self.at);
        self.at = 0;
        std::mem::replace(&mut self.pieces, unread)
    }

    /// Stores the waker of the reader; returns an error if this attempt is no longer the reader.
    fn wait(&mut self, number: u64, waker: &mut Option<Waker>) -> Option<BoxError> {
        if number != self.number {
            return Some(Recalled.into());
        }
        std::mem::swap(&mut self.reader, waker);
        None
    }

    /// Adds a piece that has arrived. If all pieces together are too much, nothing is kept from now
    /// on. Returns the frames to drop after the lock is released.
    fn add(&mut self, piece: Piece, max_bytes: usize) -> VecDeque<Piece> {
        let cost = piece.cost();
        let fits = cost <= max_bytes.saturating_sub(self.bytes);
        let dropped = if fits { VecDeque::new() } else { self.keep_no_more() };
        self.bytes = self.bytes.saturating_add(cost);
        self.pieces.push_back(piece);
        dropped
    }
}

/// The source, while an attempt polls it. If that panics, the body has failed.
struct Out<'s, B> {
    shared: &'s Shared<B>,
    source: Option<Pin<Box<B>>>,
}

impl<B> Out<'_, B> {
    /// Puts the source back, with the result of the poll: a frame, the end, or nothing yet.
    fn back(
        mut self,
        came: Option<Option<Result<Frame<Bytes>, BoxError>>>,
        told: (SizeHint, bool),
        number: u64,
    ) {
        let source = self.source.take();
        let mut ended = None;
        let mut state = self.shared.state();
        (state.hint, state.is_end) = told;
        let mut dropped = VecDeque::new();
        state.source = match came {
            Some(Some(Err(error))) => {
                ended = source;
                dropped = state.keep_no_more();
                Source::Over(Some(error))
            }
            Some(None) => {
                ended = source;
                Source::Over(None)
            }
            Some(Some(Ok(frame))) => {
                // A kind of frame that does not exist yet may be left out.
                if let Ok(piece) = Piece::of(frame) {
                    dropped = state.add(piece, self.shared.max_bytes);
                }
                source.map_or(Source::Over(None), Source::There)
            }
            None => source.map_or(Source::Over(None), Source::There),
        };
        // A reader that was polled meanwhile did not find the source.
        let reader = if number == state.number { None } else { state.reader.take() };
        drop(state);
        drop((dropped, ended));
        reader.into_iter().for_each(Waker::wake);
    }
}

impl<B> Drop for Out<'_, B> {
    fn drop(&mut self) {
        if self.source.is_some() {
            let mut state = self.shared.state();
            let dropped = state.keep_no_more();
            state.source = Source::Over(Some(Panicked.into()));
            let reader = state.reader.take();
            drop(state);
            drop(dropped);
            reader.into_iter().for_each(Waker::wake);
        }
    }
}

impl<B> fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Shared")
            .field("pieces", &state.pieces.len())
            .field("bytes", &state.bytes)
            .field("is_whole", &state.is_whole)
            .finish_non_exhaustive()
    }
}

/// The error of an attempt that was given up for another.
#[derive(Clone, Copy, Debug)]
struct Recalled;

impl fmt::Display for Recalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was denied and is sent again; this attempt is over")
    }
}

impl Error for Recalled {}

/// The error of a body that has panicked in another attempt.
#[derive(Clone, Copy, Debug)]
struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request has panicked")
    }
}

impl Error for Panicked {}

#[cfg(test)]
mod tests;
