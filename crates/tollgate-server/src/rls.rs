//! Envoy's rate limit protocol over gRPC, with health and reflection.
//!
//! ```text
//! session  a connection: gathers calls            bridge  health and reflection, by tonic
//! late     calls that wait for their client or a store
//! desk     one call: bytes in, reply out          grpc    frames, heads, statuses
//! request  wire  the question, read in place      response  metadata  the answer, written
//! json     the same over HTTP
//! ```
//!
//! The `h2` crate itself speaks HTTP/2: Envoy sends a call for each request that it proxies, so a
//! call must cost little more than its frames. [docs/envoy.md] explains how to set up Envoy.
//!
//! [docs/envoy.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/envoy.md

mod bridge;
mod decide;
mod desk;
mod grpc;
pub mod json;
mod late;
mod metadata;
pub mod request;
mod response;
mod session;
mod wire;

pub(crate) use bridge::Bridge;
pub use bridge::DESCRIPTORS;
pub use session::METHOD;
pub use wire::WireError;

use crate::net::{Client, Connection, Http2Stream, Stream};
use bytes::BytesMut;
use session::Session;
use std::sync::Arc;
use tokio::time::timeout;

/// Serves one connection until it ends.
pub async fn serve(stream: Stream, mut connection: Connection) {
    let (shared, client) = (Arc::clone(&connection.shared), Client::new(&stream, &connection));
    let settings = &shared.settings;
    let (stream, stall) = Http2Stream::new(BytesMut::new(), stream);
    let progress = Arc::clone(stream.progress());
    let shaken = session::builder(settings.max_request).handshake(stream);
    let Ok(Ok(http)) = timeout(settings.request_timeout, shaken).await else {
        // No HTTP/2, or not in time. A probe that only connects makes no request.
        if progress.has_begun() {
            connection.traffic().bad_request();
        }
        return;
    };
    let owner = (Arc::clone(&shared), client, Arc::clone(&connection.memory));
    Session::new(http, owner, (progress, stall)).run(connection.draining()).await;
}
