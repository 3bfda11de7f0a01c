//! Decides one call after the other with memory that is used again.

use super::{
    decide::{self, Decided},
    grpc::{self, GrpcCode, GrpcError, Heads, LateReply, PREFIX},
    metadata,
    request::{BadRequest, Decoder},
    response::{self, Headers},
    session::METHOD,
};
use crate::{
    engine::Answer,
    net::Permissions,
    plan::Plan,
    server::Shared,
    trace::{Caller, Done, Outcome, Tally},
};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use tollgate::Tick;

/// Replies of a connection share pieces of memory of this size.
const PIECE: usize = 16 * 1024;

/// The result of a call.
#[derive(Debug)]
pub(super) enum Served {
    /// The HTTP/2 library has its reply of this many bytes.
    Replied(usize),
    /// Its reply waits for the client's window.
    Late(LateReply),
    /// It made no sense.
    Bad,
}

/// Answers calls.
#[derive(Debug)]
pub(super) struct Desk {
    decoder: Decoder,
    answer: Answer,
    out: Vec<u8>,
    piece: BytesMut,
    heads: Heads,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            decoder: Decoder::new(),
            answer: Answer::new(),
            out: Vec::new(),
            piece: BytesMut::new(),
            heads: Heads::new(),
        }
    }

    /// Answers a call whose body is there.
    pub(super) async fn serve(
        &mut self,
        shared: &Shared,
        at: (&Plan, Tick),
        (body, caller, granted): (&[u8], Caller, Permissions),
        respond: SendResponse<Bytes>,
    ) -> Served {
        let traced = shared.trace.begin(caller);
        let decided = self.decide((shared, granted), at, body).await;
        if let Some(traced) = traced {
            shared.trace.end(traced, &shared.engine, self.done(at, &decided));
        }
        match decided {
            Ok(()) => {
                let length = self.out.len();
                if self.piece.capacity() < self.out.len() {
                    self.piece.reserve(self.out.len().max(PIECE));
                }
                self.piece.extend_from_slice(&self.out);
                let late = self.heads.reply(respond, self.piece.split().freeze());
                self.shrink();
                late.map_or(Served::Replied(length), Served::Late)
            }
            Err(error) => {
                grpc::refuse(respond, &error);
                Served::Bad
            }
        }
    }

    /// Gives memory back after a large call.
    fn shrink(&mut self) {
        self.out.shrink_to(PIECE);
        self.answer.trim(PIECE);
        if self.piece.capacity() > PIECE {
            self.piece = BytesMut::new();
        }
    }

    /// Returns the trace data of a call.
    #[cold]
    fn done(&self, (plan, now): (&Plan, Tick), decided: &Result<(), GrpcError>) -> Done {
        let (tally, code) = match decided {
            Ok(()) => (Tally::of(&self.answer, plan, now), 0),
            Err(error) => (Tally::default(), error.code as u16),
        };
        Done {
            // Without the slash before it, as other libraries have it.
            name: METHOD[1..].into(),
            protocol: "grpc",
            begun: now,
            tally,
            outcome: Outcome::Grpc(code),
        }
    }

    /// Leaves the framed reply in `out`.
    async fn decide(
        &mut self,
        (shared, granted): (&Shared, Permissions),
        (plan, now): (&Plan, Tick),
        body: &[u8],
    ) -> Result<(), GrpcError> {
        let message = grpc::message(body, shared.settings.max_request)?;
        let request = self.decoder.decode(message).map_err(|error| bad(&error))?;
        let memory = (&mut self.decoder, &mut self.answer);
        let decided = decide::decide((shared, granted), (plan, now), &request, memory).await;
        if decided.is_ok() {
            let (answer, out) = (&self.answer, &mut self.out);
            out.clear();
            out.extend_from_slice(&[0; PREFIX]);
            let settings = &shared.settings;
            let headers = settings.response_headers.then(|| Headers::new(answer, plan, now));
            response::write(out, (answer, plan, now), headers.flatten());
            if settings.dynamic_metadata {
                metadata::write(out, &metadata::metadata(&request, answer, plan));
            }
            // OVERFLOW: a reply is as long as some 64 statuses.
            let length = (out.len() - PREFIX) as u32;
            out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        }
        self.decoder.put_back(request);
        decided.map_err(|error| match error {
            Decided::Bad(error) => bad(&error),
            Decided::Engine(error) => GrpcError::new(GrpcCode::InvalidArgument, &error),
            Decided::Store(text) => GrpcError::new(GrpcCode::Unavailable, &text),
            Decided::Forbidden(text) => GrpcError::new(GrpcCode::PermissionDenied, &text),
        })
    }
}

fn bad(error: &BadRequest) -> GrpcError {
    let code = match error {
        BadRequest::Wire(_) => GrpcCode::Internal,
        // The reference's code for them.
        BadRequest::NoDomain | BadRequest::NoDescriptors => GrpcCode::Unknown,
        BadRequest::TooManyDescriptors | BadRequest::TooManyEntries | BadRequest::Unit(_) => {
            GrpcCode::InvalidArgument
        }
    };
    GrpcError::new(code, error)
}
