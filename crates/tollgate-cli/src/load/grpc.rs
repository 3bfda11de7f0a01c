//! gRPC: Envoy's `ShouldRateLimit`, or any unary method that takes such a request.
//!
//! Messages are encoded by hand: a request is a template like any other, because a key has always
//! the same length. Streams of a connection are tasks that send one request after the other; the
//! HTTP/2 library writes together what they send in one go.

use super::{
    gate::Gate,
    keys::Keys,
    schedule::Pace,
    tally::{Tally, Verdict},
    template::Template,
    worker::Lane,
};
use crate::target::{Stream, Target};
use bytes::Bytes;
use h2::{RecvStream, client::SendRequest};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// The method that Envoy calls.
pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The answer of Envoy's protocol that refuses a request.
const OVER_LIMIT: u64 = 2;

/// The longest answer that is looked into.
const ANSWER_BYTES: usize = 64 * 1024;

/// Encodes a request: a domain, and descriptors made of entries (name and value).
pub(crate) fn encode(
    domain: &str,
    descriptors: &[Vec<(String, String)>],
    prefix: &str,
) -> Template {
    let mut message = Template::default();
    field(&mut message, 1, &Template::of(domain, prefix));
    for entries in descriptors {
        let mut descriptor = Template::default();
        for (name, value) in entries {
            let mut entry = Template::default();
            field(&mut entry, 1, &Template::of(name, prefix));
            field(&mut entry, 2, &Template::of(value, prefix));
            field(&mut descriptor, 1, &entry);
        }
        field(&mut message, 2, &descriptor);
    }
    let mut framed = Template::default();
    framed.raw(&[0]);
    framed.raw(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.append(&message);
    framed
}

/// Writes a field that has a length: a string or a message.
fn field(out: &mut Template, number: u8, content: &Template) {
    out.raw(&[number << 3 | 2]);
    let mut length = content.len();
    while length >= 0x80 {
        out.raw(&[(length & 0x7f) as u8 | 0x80]);
        length >>= 7;
    }
    out.raw(&[length as u8]);
    out.append(content);
}

/// Reads the overall code of a framed answer; 0 if it has none.
fn overall_code(answer: &[u8]) -> u64 {
    let Some([0x08, rest @ ..]) = answer.get(5..) else { return 0 };
    let mut code = 0;
    for (index, byte) in rest.iter().take(9).enumerate() {
        code |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return code;
        }
    }
    0
}

/// A connection and what it sends.
pub(crate) struct Grpc {
    pub(crate) lane: Lane,
    pub(crate) template: Arc<Template>,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<Gate>,
    pub(crate) uri: Uri,
    pub(crate) streams: u64,
}

/// Returns the address of a method for HTTP/2.
pub(crate) fn uri(target: &Target, path: &str) -> Result<Uri, String> {
    let built =
        Uri::builder().scheme(target.scheme()).authority(target.authority()).path_and_query(path);
    built.build().map_err(|error| {
        format!(
            "\"{path}\" is not the path of a gRPC method ({error}); write it as \
             /package.Service/Method"
        )
    })
}

impl Grpc {
    /// Sends and counts until the run is over or the server is gone.
    pub(crate) async fn run(self, stream: Stream) {
        let shaken = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .handshake::<_, Bytes>(stream)
            .await;
        let (send, connection) = match shaken {
            Ok(pair) => pair,
            Err(error) => {
                return lock(&self.lane)
                    .fail(|| format!("cannot open an HTTP/2 connection: {error}"));
            }
        };
        let mut tasks = JoinSet::new();
        let driver = tasks.spawn(async move {
            // Each waiting stream gets the error of the connection.
            let _ = connection.await;
        });
        let shared = Arc::new(Shared {
            share: self.lane.schedule.share(self.lane.connection),
            keys: Mutex::new((self.keys, 0)),
            lane: self.lane,
            template: self.template,
            gate: self.gate,
            request: request(self.uri),
        });
        for _ in 0..self.streams {
            tasks.spawn(Arc::clone(&shared).stream(send.clone()));
        }
        drop(send);
        // The driver ends by itself when all streams are done, unless the server keeps it open.
        for _ in 0..self.streams {
            tasks.join_next().await;
        }
        driver.abort();
    }
}

fn request(uri: Uri) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    request
}

fn lock(lane: &Lane) -> MutexGuard<'_, Tally> {
    lane.tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that the streams of a connection share.
struct Shared {
    lane: Lane,
    template: Arc<Template>,
    gate: Arc<Gate>,
    request: Request<()>,
    share: u64,
    /// The keys, and how many requests were taken on.
    keys: Mutex<(Keys, u64)>,
}

impl Shared {
    /// Sends one request after the other.
    async fn stream(self: Arc<Self>, mut send: SendRequest<Bytes>) {
        while let Some((key, from_ns)) = self.next().await {
            send = match send.ready().await {
                Ok(send) => send,
                Err(error) => {
                    return lock(&self.lane).fail(|| format!("the connection failed: {error}"));
                }
            };
            let measured = from_ns >= self.lane.schedule.measure_from_ns;
            if measured {
                lock(&self.lane).sent += 1;
            }
            let answer = self.call(&mut send, key).await;
            let now = self.lane.clock.now_ns();
            let mut tally = lock(&self.lane);
            let verdict = match answer {
                Ok(verdict) => verdict,
                Err(text) => {
                    tally.explain(|| text);
                    Verdict::Error
                }
            };
            if measured {
                tally.answer(verdict, now.saturating_sub(from_ns));
                tally.last_ns = now;
            } else {
                tally.warm_answer(verdict);
            }
        }
    }

    /// Takes on the next request, when it is due: its key, and from when its latency counts.
    async fn next(&self) -> Option<(u64, u64)> {
        let Lane { clock, schedule, connection, .. } = self.lane;
        let now = clock.now_ns();
        if self.lane.halt.is_set() || schedule.is_over(now) {
            return None;
        }
        let (key, index) = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if keys.1 >= self.share {
                return None;
            }
            keys.1 += 1;
            (keys.0.next(), keys.1 - 1)
        };
        if matches!(schedule.pace, Pace::Closed { .. }) {
            return Some((key, now));
        }
        let due = schedule.due_on(connection, index);
        self.gate.until(due, clock, &self.lane.halt).await;
        (!self.lane.halt.is_set()).then_some((key, due))
    }

    async fn call(&self, send: &mut SendRequest<Bytes>, key: u64) -> Result<Verdict, String> {
        let failed = |error: h2::Error| format!("a call failed: {error}");
        let mut message = Vec::with_capacity(self.template.len());
        self.template.write(key, &mut message);
        let (response, mut body) =
            send.send_request(self.request.clone(), false).map_err(failed)?;
        body.send_data(message.into(), true).map_err(failed)?;
        let (head, mut body) = response.await.map_err(failed)?.into_parts();
        if !head.status.is_success() {
            return Err(format!("the server answered HTTP status {}", head.status));
        }
        // An answer without a message carries its status in the first headers.
        if head.headers.contains_key("grpc-status") {
            return status(&head.headers).map(|()| Verdict::Allowed);
        }
        let verdict = read(&mut body).await?;
        match body.trailers().await.map_err(failed)? {
            Some(trailers) => status(&trailers)?,
            None => return Err("the response has no grpc-status".into()),
        }
        Ok(verdict)
    }
}

/// Reads the message, and says what it means.
async fn read(body: &mut RecvStream) -> Result<Verdict, String> {
    let failed = |error: h2::Error| format!("a call failed: {error}");
    // The code is at the very start, and may be cut in two. An answer without limits is short.
    let (mut start, mut length) = ([0; 64], 0);
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(failed)?;
        body.flow_control().release_capacity(piece.len()).map_err(failed)?;
        if let Some(room) = start.get_mut(length..) {
            let count = room.len().min(piece.len());
            room[..count].copy_from_slice(&piece[..count]);
        }
        length += piece.len();
        if length > ANSWER_BYTES {
            return Err(format!("a response is longer than {ANSWER_BYTES} bytes"));
        }
    }
    let message = &start[..length.min(start.len())];
    Ok(match overall_code(message) {
        OVER_LIMIT => Verdict::Denied,
        _ if length <= start.len() && is_unmatched(message) => Verdict::Unmatched,
        _ => Verdict::Allowed,
    })
}

/// Tells whether a framed answer has statuses, and none of them says more than `OK`: no limit fits.
fn is_unmatched(answer: &[u8]) -> bool {
    let Some([0x08, 0x01, statuses @ ..]) = answer.get(5..) else { return false };
    !statuses.is_empty() && statuses.chunks(4).all(|status| status == [0x12, 0x02, 0x08, 0x01])
}

/// Judges `grpc-status`; anything but 0 is an error.
fn status(headers: &HeaderMap) -> Result<(), String> {
    let text =
        |name: &str| headers.get(name).map(|value| value.as_bytes().escape_ascii().to_string());
    match text("grpc-status") {
        Some(code) if code == "0" => Ok(()),
        Some(code) => {
            let message = text("grpc-message").unwrap_or_default();
            Err(format!("the server answered gRPC status {code} {message}"))
        }
        None => Err("the response has no grpc-status".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_encoded_as_the_protocol_says() {
        let descriptors = [vec![("user".to_owned(), "{key}".to_owned())]];
        let mut out = Vec::new();
        encode("api", &descriptors, "u").write(7, &mut out);
        let entry = [b"\x0a\x04user\x12\x0du000000000007".as_slice()].concat();
        let descriptor = [&[0x0a, entry.len() as u8][..], &entry].concat();
        let message =
            [b"\x0a\x03api\x12".as_slice(), &[descriptor.len() as u8], &descriptor].concat();
        assert_eq!(out, [&[0, 0, 0, 0, message.len() as u8][..], &message].concat());
    }

    #[test]
    fn lengths_above_127_take_two_bytes() {
        let mut out = Template::default();
        field(&mut out, 1, &Template::of(&"x".repeat(300), ""));
        let mut bytes = Vec::new();
        out.write(0, &mut bytes);
        assert_eq!(&bytes[..3], [0x0a, 0xac, 0x02]);
        assert_eq!(bytes.len(), 303);
    }

    #[test]
    fn the_overall_code_is_the_first_field() {
        for (answer, expected) in [
            (&b"\0\0\0\0\x02\x08\x01"[..], 1),
            (b"\0\0\0\0\x04\x08\x02\x12\x00", 2),
            (b"\0\0\0\0\x00", 0),
            (b"\0\0\0\0\x02\x0a\x00", 0),
            (b"\0\0\0\0\x02\x08", 0),
            (b"", 0),
        ] {
            assert_eq!(overall_code(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn an_answer_whose_statuses_name_no_limit_is_unmatched() {
        for (answer, expected) in [
            (&b"\0\0\0\0\x06\x08\x01\x12\x02\x08\x01"[..], true),
            (b"\0\0\0\0\x0a\x08\x01\x12\x02\x08\x01\x12\x02\x08\x01", true),
            // Without statuses nothing is known; the last is unlimited, which is a limit's answer.
            (b"\0\0\0\0\x02\x08\x01", false),
            (b"\0\0\0\0\x08\x08\x01\x12\x04\x08\x01\x18\x07", false),
            (b"\0\0\0\0\x06\x08\x02\x12\x02\x08\x02", false),
            (b"", false),
        ] {
            assert_eq!(is_unmatched(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_status_other_than_zero_is_an_error() {
        let mut headers = HeaderMap::new();
        assert!(status(&headers).is_err());
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        assert_eq!(status(&headers), Ok(()));
        headers.insert("grpc-status", HeaderValue::from_static("14"));
        headers.insert("grpc-message", HeaderValue::from_static("gone"));
        let text = status(&headers).unwrap_err();
        assert_eq!(text, "the server answered gRPC status 14 gone");
    }
}
