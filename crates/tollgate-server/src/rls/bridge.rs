//! Health and reflection, by tonic's services. They are rare, so each call is a task of its own.

use bytes::Bytes;
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};
use tokio::sync::OnceCell;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service;

/// The messages of this service, for reflection. Made from `proto/` by the test `rls_proto`.
pub const DESCRIPTORS: &[u8] = include_bytes!("../../proto/rls.bin");

/// What health checks may ask about: everything, and the name that the reference has.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// The services of one server, made when they are first called.
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
    /// Answers health checks with `NOT_SERVING` from now on, and tells the clients that watch.
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
    let routes = Routes::new(health);
    // A set that cannot be read is caught by the tests; here it only means no reflection.
    let routes = match reflection().build_v1() {
        Ok(service) => routes.add_service(service),
        Err(_) => routes,
    };
    let routes = match reflection().build_v1alpha() {
        Ok(service) => routes.add_service(service),
        Err(_) => routes,
    };
    (reporter, routes.prepare())
}

/// Answers one call. Ends when the client resets it, too.
pub(super) async fn call(
    bridge: &Bridge,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let mut routes = bridge.routes.get_or_init(routes).await.1.clone();
    let request = request.map(|stream| Incoming { stream, is_data_done: false });
    let response = match routes.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (parts, body) = response.into_parts();
    let response = Response::from_parts(parts, ());
    if let Ok(stream) = respond.send_response(response, body.is_end_stream()) {
        // An error means that the client is gone.
        let _ = pump(body, stream).await;
    }
}

/// Sends a body and its trailers.
async fn pump(body: tonic::body::Body, mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
    if body.is_end_stream() {
        return Ok(());
    }
    let mut body = pin!(body);
    loop {
        let next = std::future::poll_fn(|cx| {
            // A stream that says nothing for long, such as a watch, can still be reset.
            if let Poll::Ready(reset) = stream.poll_reset(cx) {
                return Poll::Ready(Err(reset.map_or_else(|error| error, h2::Error::from)));
            }
            pin!(body.frame()).poll(cx).map(Ok)
        });
        let Some(Ok(frame)) = next.await? else { break };
        match frame.into_data() {
            Ok(data) => send(data, &mut stream).await?,
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => return stream.send_trailers(trailers),
                Err(_) => break,
            },
        }
    }
    stream.send_data(Bytes::new(), true)
}

/// Sends bytes as the client has room for them.
async fn send(mut data: Bytes, stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(room) = room.transpose()? else { return Ok(()) };
        let part = data.split_to(room.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// The body of a request, for tonic.
struct Incoming {
    stream: RecvStream,
    is_data_done: bool,
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.is_data_done {
            if let Some(data) = ready!(self.stream.poll_data(cx)?) {
                self.stream.flow_control().release_capacity(data.len())?;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.is_data_done = true;
        }
        let trailers = ready!(self.stream.poll_trailers(cx)?);
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}
