//! Calls that wait in a task of their own: for the rest of a body, for a store, or for the client
//! to read its reply.

use super::{
    desk::{Desk, Served},
    grpc::{self, GrpcCode, GrpcError, LateReply},
    session::Asker,
};
use crate::{
    net::{Claim, Listener, MemoryError, Progress, RefusalReason},
    server::Shared,
};
use bytes::{Bytes, BytesMut};
use h2::{RecvStream, server::SendResponse};
use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::timeout;

/// Memory of a call with its own task, without its body and its reply.
pub(super) const CALL: usize = 16 * 1024;

/// The received part of a body when its task starts.
pub(super) enum Body {
    Whole(Bytes),
    Partial(Partial),
}

impl Body {
    /// Prepares to wait. Returns how many bytes the body holds.
    pub(super) fn wait(&mut self) -> usize {
        match self {
            Self::Whole(whole) => whole.len(),
            Self::Partial(partial) => {
                // A copy, because a piece is a slice of the library's buffer and would keep all of
                // it alive.
                let first = std::mem::take(&mut partial.first);
                partial.more.get_or_insert_with(|| BytesMut::from(&first[..])).capacity()
            }
        }
    }
}

/// A body that arrives in pieces; most arrive in one.
pub(super) struct Partial {
    pub(super) stream: RecvStream,
    pub(super) first: Bytes,
    pub(super) more: Option<BytesMut>,
    /// Counts its memory while its call waits.
    pub(super) claim: Option<Claim>,
}

impl Partial {
    /// Reads on. Ready with `None` if the client has reset the stream.
    pub(super) fn poll_whole(
        &mut self,
        most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, GrpcError>> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Ok(piece))) => {
                    self.push(piece).map_err(|error| no_memory(&error))?;
                }
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

    fn push(&mut self, piece: Bytes) -> Result<(), MemoryError> {
        match &mut self.more {
            Some(more) => {
                // OVERFLOW: a body and a frame are bounded.
                let length = more.len() + piece.len();
                if length > more.capacity() {
                    let capacity = length.next_power_of_two();
                    self.claim.as_mut().map_or(Ok(()), |claim| claim.resize(CALL + capacity))?;
                    more.reserve(capacity - more.len());
                }
                more.extend_from_slice(&piece);
            }
            None if self.first.is_empty() => self.first = piece,
            None => {
                let mut more = BytesMut::with_capacity(self.first.len() + piece.len());
                more.extend_from_slice(&std::mem::take(&mut self.first));
                more.extend_from_slice(&piece);
                self.more = Some(more);
            }
        }
        Ok(())
    }
}

pub(super) fn no_memory(error: &MemoryError) -> GrpcError {
    GrpcError::new(GrpcCode::ResourceExhausted, error)
}

/// Sends a reply as the client's window grows, for at most the request timeout.
pub(super) async fn send_in_time(shared: &Shared, listener: Listener, reply: LateReply) {
    // An error means that the client is gone. Dropping a reply resets its stream.
    if timeout(shared.settings.request_timeout, reply.send()).await.is_err() {
        shared.traffic(listener).refused(RefusalReason::Unread);
    }
}

/// The context of a call with its own task.
pub(super) struct Late {
    pub(super) shared: Arc<Shared>,
    pub(super) listener: Listener,
    pub(super) progress: Arc<Progress>,
    /// Held while the call goes on, so that the connection can tell.
    pub(super) _task: Arc<()>,
}

impl Late {
    /// Waits for a body, then for a store, then for the client's window.
    pub(super) async fn serve(
        self,
        (body, mut claim): (Body, Claim),
        (caller, granted): Asker,
        respond: SendResponse<Bytes>,
    ) {
        let (shared, traffic) = (&*self.shared, self.shared.traffic(self.listener));
        let whole = match body {
            Body::Whole(whole) => whole,
            Body::Partial(mut partial) => {
                partial.claim = Some(claim);
                let whole = self.read(&mut partial).await;
                let Some(kept) = partial.claim else { return };
                claim = kept;
                match whole {
                    Ok(Some(whole)) => whole,
                    Ok(None) => return,
                    Err(error) => {
                        traffic.bad_request();
                        return grpc::refuse(respond, &error);
                    }
                }
            }
        };
        let engine = &shared.engine;
        let (plan, now) = (engine.plan_arc(), engine.now());
        let (at, asked) = ((&*plan, now), (&whole[..], caller, granted));
        match Desk::new().serve(shared, at, asked, respond).await {
            Served::Replied(bytes) => {
                self.progress.sent(bytes);
                // Its memory is counted until it is written.
                if self.progress.is_full() && claim.resize(CALL + bytes).is_ok() {
                    let limit = shared.settings.request_timeout;
                    let _ = timeout(limit, self.progress.until_written()).await;
                }
            }
            Served::Late(reply) if claim.resize(CALL + reply.len()).is_ok() => {
                drop(whole);
                send_in_time(shared, self.listener, reply).await;
            }
            Served::Late(_) => traffic.refused(RefusalReason::Memory),
            Served::Bad => traffic.bad_request(),
        }
    }

    async fn read(&self, partial: &mut Partial) -> Result<Option<Bytes>, GrpcError> {
        let settings = &self.shared.settings;
        let reading = poll_fn(|cx| partial.poll_whole(settings.max_request, cx));
        timeout(settings.request_timeout, reading).await.unwrap_or_else(|_| {
            self.shared.traffic(self.listener).refused(RefusalReason::Slow);
            let text = "the rest of the message did not arrive in time";
            Err(GrpcError::new(GrpcCode::DeadlineExceeded, &text))
        })
    }
}
