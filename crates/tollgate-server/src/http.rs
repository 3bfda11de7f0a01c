//! HTTP: `/v1`, `/json` and forward-auth.
//!
//! ```text
//! one   HTTP/1.1, read strictly  \
//! two   HTTP/2, by hyper          -> call -> route -> engine -> limits -> reply
//! ```
//!
//! `route` maps a path to its handler; it does not know the version of HTTP. `body` and `json` read
//! bodies by their shape, `limits` writes the figures of a decision for clients, and `forward`
//! handles forward-auth requests of proxies. How to use it: [docs/service-http.md] and
//! [docs/forward-auth.md].
//!
//! [docs/service-http.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/service-http.md
//! [docs/forward-auth.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/forward-auth.md

mod body;
mod call;
mod chunk;
mod forward;
mod head;
mod in_flight;
mod json;
mod limits;
mod one;
mod reply;
mod report;
mod route;
mod two;

use crate::net::{Connection, Stream};

/// Serves one connection until it ends.
///
/// HTTP/1.1 and HTTP/2 share the port: an HTTP/2 client begins with its preface.
pub async fn serve(stream: Stream, mut connection: Connection) {
    if let one::End::Http2(stream, first) = one::serve(stream, &mut connection).await {
        two::serve(stream, first, &mut connection).await;
    }
}

/// Reads the body of a request to `/v1`, for tests with arbitrary input.
///
/// # Errors
///
/// When the body is invalid, with the mistake.
#[doc(hidden)]
pub fn read_body(text: &str) -> Result<(), String> {
    let read = body::Body::read(text, body::Extra::Life).map(|body| {
        let values = body.values();
        debug_assert!(!body.asks(&values).as_slice().is_empty(), "it asks about something");
    });
    let settled = body::Settlement::settle(text).map(drop);
    let reported = report::ReportBody::read(text).map(drop);
    read.or(settled).or(reported).map_err(|bad| bad.0)
}
