//! Health and reflection, by tonic's services. They are rare, so each call has its own task.
//!
//! The memory of a call is bounded: a message has at most [`MAX_MESSAGE`] bytes, and unanswered
//! messages have at most [`MAX_UNANSWERED`] together. An unfinished message or an unread reply ends
//! the call after the request timeout, and reflection ends after the idle timeout.

use super::grpc::send;
use crate::server::Settings;
use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{sync::OnceCell, time::timeout};
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service;

/// The messages of this service, for reflection. Made from `proto/` by the test `rls_proto`.
pub const DESCRIPTORS: &[u8] = include_bytes!("../../proto/rls.bin");

/// The longest message that these services read. Requests are names.
const MAX_MESSAGE: usize = 16 << 10;

/// Bytes of a call that have arrived and that its service has not read yet.
const MAX_UNANSWERED: usize = 2 * MAX_MESSAGE;

/// The memory of a call: tonic's buffers for a message and its reply, which repeats the request,
/// and the bytes that arrive meanwhile.
pub(super) const CALL: usize = 32 << 10;

/// Calls of these services that a connection may have at once.
pub(super) const MAX_CALLS: usize = 16;

/// The names that health checks may use: everything, and the reference's name.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// The services of one server, created at their first call.
#[derive(Default)]
pub(crate) struct Bridge {
    routes: OnceCell<(HealthReporter, Routes)>,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").finish_non_exhaustive()
    }
}

impl Bridge {
    /// Answers health checks with `NOT_SERVING` from now on, and notifies the clients that watch.
    pub(crate) async fn leave(&self) {
        let (reporter, _) = self.routes.get_or_init(routes).await;
        for name in HEALTH_NAMES {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    }
}

/// Returns true if a path is a health check, which needs no permission.
pub(super) fn is_health(path: &str) -> bool {
    path.starts_with("/grpc.health.v1.Health/")
}

/// Tells whether a path belongs to these services.
pub(super) fn is_known(path: &str) -> bool {
    const SERVICES: [&str; 2] =
        ["/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"];
    is_health(path) || SERVICES.iter().any(|service| path.starts_with(service))
}

async fn routes() -> (HealthReporter, Routes) {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(health.max_decoding_message_size(MAX_MESSAGE));
    // The tests check that the descriptors can be read; here an error only disables reflection.
    let routes = match reflection().build_v1() {
        Ok(service) => routes.add_service(service.max_decoding_message_size(MAX_MESSAGE)),
        Err(_) => routes,
    };
    let routes = match reflection().build_v1alpha() {
        Ok(service) => routes.add_service(service.max_decoding_message_size(MAX_MESSAGE)),
        Err(_) => routes,
    };
    (reporter, routes.prepare())
}

/// Answers one call. Ends when the client resets it, too.
pub(super) async fn call(
    bridge: &Bridge,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    settings: &Settings,
) {
    let is_health = is_health(request.uri().path());
    let (head, stream) = request.into_parts();
    let arrived = Arc::<Mutex<Arrived>>::default();
    let mut feed = Feed { stream, arrived: Arc::clone(&arrived) };
    let answered = async {
        let mut routes = bridge.routes.get_or_init(routes).await.1.clone();
        if is_health {
            // The one message must arrive before the service is called.
            let whole = timeout(settings.request_timeout, whole(&arrived)).await;
            whole.map_err(|_| Reason::CANCEL)?;
        }
        let incoming = Incoming(Arc::clone(&arrived));
        let response = match routes.call(Request::from_parts(head, incoming)).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        pump(response, respond, settings.request_timeout).await
    };
    // A watch lasts as long as its client; the library sends pings.
    let limit = if is_health { Duration::MAX } else { settings.idle_timeout };
    tokio::select! {
        biased;
        () = feed.fill() => {}
        // An error means that the client is gone or too slow; dropping the stream resets it.
        _ = timeout(limit, answered) => {}
    }
}

/// Sends a response, its body and its trailers.
async fn pump(
    response: Response<tonic::body::Body>,
    mut respond: SendResponse<Bytes>,
    limit: Duration,
) -> Result<(), h2::Error> {
    let (parts, body) = response.into_parts();
    let mut stream =
        respond.send_response(Response::from_parts(parts, ()), body.is_end_stream())?;
    if body.is_end_stream() {
        return Ok(());
    }
    let mut body = pin!(body);
    loop {
        let next = poll_fn(|cx| {
            // A stream that is silent for a long time, such as a watch, can still be reset.
            if let Poll::Ready(reset) = stream.poll_reset(cx) {
                return Poll::Ready(Err(reset.map_or_else(|error| error, h2::Error::from)));
            }
            pin!(body.frame()).poll(cx).map(Ok)
        });
        let Some(Ok(frame)) = next.await? else { break };
        match frame.into_data() {
            Ok(data) => match timeout(limit, send(data, &mut stream)).await {
                Ok(sent) => sent?,
                Err(_) => return Err(Reason::CANCEL.into()),
            },
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => return stream.send_trailers(trailers),
                Err(_) => break,
            },
        }
    }
    stream.send_data(Bytes::new(), true)
}

/// The received part of a call, shared by the task that reads it and the service, which may be
/// another task.
#[derive(Debug, Default)]
struct Arrived {
    bytes: BytesMut,
    /// Whether the body has ended.
    is_over: bool,
    /// Wakes the service.
    waker: Option<Waker>,
}

impl Arrived {
    fn lock(arrived: &Mutex<Self>) -> MutexGuard<'_, Self> {
        arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits until a body is complete.
async fn whole(arrived: &Mutex<Arrived>) {
    poll_fn(|cx| {
        let mut arrived = Arrived::lock(arrived);
        if arrived.is_over {
            return Poll::Ready(());
        }
        arrived.waker = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Reads the body of a request as it arrives, so that this module bounds the waiting bytes and not
/// the windows of the connection. When it is dropped, the body ends for the service.
#[derive(Debug)]
struct Feed {
    stream: RecvStream,
    arrived: Arc<Mutex<Arrived>>,
}

impl Feed {
    /// Reads. Returns when the client resets the call, or sends more than [`MAX_UNANSWERED`] bytes
    /// ahead of the service.
    async fn fill(&mut self) {
        while let Some(data) = poll_fn(|cx| self.stream.poll_data(cx)).await {
            let Ok(data) = data else { return };
            let mut arrived = Arrived::lock(&self.arrived);
            // OVERFLOW: the first is bounded here, the other by the longest frame.
            if arrived.bytes.len() + data.len() > MAX_UNANSWERED {
                return;
            }
            arrived.bytes.extend_from_slice(&data);
            arrived.wake();
            if self.stream.flow_control().release_capacity(data.len()).is_err() {
                return;
            }
        }
        self.end();
        pending().await
    }

    fn end(&self) {
        let mut arrived = Arrived::lock(&self.arrived);
        arrived.is_over = true;
        arrived.wake();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of a request, for tonic.
struct Incoming(Arc<Mutex<Arrived>>);

impl Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let mut arrived = Arrived::lock(&self.0);
        if !arrived.bytes.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(arrived.bytes.split().freeze()))));
        }
        if arrived.is_over {
            return Poll::Ready(None);
        }
        arrived.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
