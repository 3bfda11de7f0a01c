//! gRPC over HTTP/2, as far as one unary method needs it: the frame of a message, the heads of
//! replies, and statuses.

use bytes::Bytes;
use h2::{SendStream, server::SendResponse};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use std::fmt::{self, Write};

/// The length of the prefix of a message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// The statuses in use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcCode {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcError {
    pub(super) code: GrpcCode,
    pub(super) text: String,
    /// Whether the response must say that only uncompressed messages are accepted.
    is_encoding: bool,
}

impl GrpcError {
    pub(super) fn new(code: GrpcCode, text: &dyn fmt::Display) -> Self {
        Self { code, text: text.to_string(), is_encoding: false }
    }
}

/// Returns the length of a call's frame, with its prefix, once it is known.
///
/// # Errors
///
/// When the message is compressed or too long.
pub(super) fn frame_length(bytes: &[u8], most: usize) -> Result<Option<usize>, GrpcError> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [flag, length @ ..] = *prefix;
    if flag != 0 {
        let text = "compressed messages are not supported; send them without grpc-encoding";
        let error = GrpcError::new(GrpcCode::Unimplemented, &text);
        return Err(GrpcError { is_encoding: true, ..error });
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        let text = format!(
            "a message of {length} bytes is above the maximum of {most}; send less at once"
        );
        return Err(GrpcError::new(GrpcCode::ResourceExhausted, &text));
    }
    Ok(Some(PREFIX + length))
}

/// Returns the message in the whole body of a call.
pub(super) fn message(body: &[u8], most: usize) -> Result<&[u8], GrpcError> {
    match frame_length(body, most)? {
        Some(length) if length == body.len() => Ok(&body[PREFIX..]),
        _ => {
            let text = "the body is not one length-prefixed message";
            Err(GrpcError::new(GrpcCode::Internal, &text))
        }
    }
}

/// Tells whether a content type is gRPC.
pub(super) fn is_grpc(content_type: Option<&HeaderValue>) -> bool {
    let Some(value) = content_type else { return false };
    match value.as_bytes().strip_prefix(b"application/grpc") {
        Some([]) => true,
        Some([b'+' | b';', ..]) => !value.as_bytes().starts_with(b"application/grpc+json"),
        _ => false,
    }
}

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const CONTENT_GRPC: &str = "application/grpc";

/// The heads of replies, made once per connection: a copy is cheaper than a new one.
#[derive(Debug)]
pub(super) struct Heads {
    head: HeaderMap,
    trailers: HeaderMap,
}

impl Heads {
    pub(super) fn new() -> Self {
        let (mut head, mut trailers) = (HeaderMap::new(), HeaderMap::new());
        head.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT_GRPC));
        trailers.insert(GRPC_STATUS.clone(), HeaderValue::from_static("0"));
        Self { head, trailers }
    }

    /// Answers with a message. A client that is gone does not matter. Returns the reply if it does
    /// not fit in the client's window and must wait.
    pub(super) fn reply(
        &self,
        mut respond: SendResponse<Bytes>,
        framed: Bytes,
    ) -> Option<LateReply> {
        let mut response = Response::new(());
        *response.headers_mut() = self.head.clone();
        let mut stream = respond.send_response(response, false).ok()?;
        let trailers = self.trailers.clone();
        stream.reserve_capacity(framed.len());
        if stream.capacity() < framed.len() {
            // A copy, because the message is a slice that would keep a larger buffer alive.
            return Some(LateReply { stream, framed: Bytes::copy_from_slice(&framed), trailers });
        }
        stream.send_data(framed, false).ok()?;
        let _ = stream.send_trailers(trailers);
        None
    }
}

/// A reply that waits for the client's window.
#[derive(Debug)]
pub(super) struct LateReply {
    stream: SendStream<Bytes>,
    framed: Bytes,
    trailers: HeaderMap,
}

impl LateReply {
    /// Returns how long the message is.
    pub(super) const fn len(&self) -> usize {
        self.framed.len()
    }

    /// Sends the reply as the client's window grows. If it is dropped before, the stream is reset.
    pub(super) async fn send(mut self) -> Result<(), h2::Error> {
        send(self.framed, &mut self.stream).await?;
        self.stream.send_trailers(self.trailers)
    }
}

/// Sends bytes as the client's window grows.
pub(super) async fn send(mut data: Bytes, stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(room) = room.transpose()? else { return Ok(()) };
        let part = data.split_to(room.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// Answers with an error, in one frame of headers.
pub(super) fn refuse(mut respond: SendResponse<Bytes>, error: &GrpcError) {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT_GRPC));
    headers.insert(GRPC_STATUS.clone(), HeaderValue::from(error.code as u16));
    if let Ok(text) = HeaderValue::try_from(percent_encoded(&error.text)) {
        headers.insert(GRPC_MESSAGE.clone(), text);
    }
    if error.is_encoding {
        headers.insert(GRPC_ACCEPT_ENCODING.clone(), HeaderValue::from_static("identity"));
    }
    let _ = respond.send_response(response, true);
}

/// Answers a request that is not gRPC.
pub(super) fn refuse_http(mut respond: SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    let _ = respond.send_response(response, true);
}

/// Encodes a text for a gRPC header: printable ASCII as it is, the rest percent-encoded.
fn percent_encoded(text: &str) -> String {
    /// A longer text is of no use.
    const LONGEST: usize = 1024;
    let mut encoded = String::with_capacity(text.len().min(LONGEST));
    for byte in text.bytes() {
        if encoded.len() > LONGEST {
            break;
        }
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_message_with_its_length_before_it() {
        let wrong = |code| Err(code);
        for (body, expected) in [
            (&[0, 0, 0, 0, 2, 7, 8][..], Ok(&[7, 8][..])),
            (&[0, 0, 0, 0, 0], Ok(&[])),
            (&[], wrong(GrpcCode::Internal)),
            (&[0, 0, 0, 0], wrong(GrpcCode::Internal)),
            (&[0, 0, 0, 0, 2, 7], wrong(GrpcCode::Internal)),
            (&[0, 0, 0, 0, 1, 7, 8], wrong(GrpcCode::Internal)),
            (&[1, 0, 0, 0, 1, 7], wrong(GrpcCode::Unimplemented)),
            (&[0, 0, 0, 1, 1, 7], wrong(GrpcCode::ResourceExhausted)),
        ] {
            assert_eq!(message(body, 256).map_err(|error| error.code), expected, "{body:?}");
        }
    }

    #[test]
    fn content_types_of_grpc() {
        for (text, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(Some(&HeaderValue::from_static(text))), expected, "{text}");
        }
        assert!(!is_grpc(None));
    }

    #[test]
    fn messages_are_printable() {
        assert_eq!(percent_encoded("50% is ä\n"), "50%25 is %C3%A4%0A");
        assert!(percent_encoded(&"x".repeat(5000)).len() < 1100);
    }
}
