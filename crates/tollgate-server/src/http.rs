//! HTTP: `/v1`, `/json` and forward-auth.

use crate::net::{Connection, Stream};

/// Serves one connection until it ends.
pub async fn serve(stream: Stream, connection: Connection) {
    drop((stream, connection));
}
