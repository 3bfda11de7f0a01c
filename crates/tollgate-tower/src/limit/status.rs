//! How a call has ended, in HTTP and in gRPC.

use crate::info::is_grpc;
use http::{HeaderMap, StatusCode, response::Parts};

/// Returns the status of a response; `None` for a gRPC response that has it in its trailers.
pub(crate) fn of(head: &Parts) -> Option<StatusCode> {
    if head.status != StatusCode::OK || !tells_grpc_status(&head.headers) {
        return Some(head.status);
    }
    of_grpc(&head.headers)
}

/// Tells whether this is a response of gRPC, or of gRPC-web, whose trailers are part of the body.
pub(crate) fn tells_grpc_status(headers: &HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    is_grpc(headers) || kind.is_some_and(|kind| kind.starts_with(b"application/grpc-web"))
}

/// Returns the HTTP status that corresponds to the `grpc-status` in headers or trailers.
pub(crate) fn of_grpc(fields: &HeaderMap) -> Option<StatusCode> {
    let code: u8 = fields.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    // As in `google/rpc/code.proto`.
    let status = match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        // UNKNOWN, INTERNAL, DATA_LOSS, and unassigned codes.
        _ => 500,
    };
    StatusCode::from_u16(status).ok()
}
