//! HTTP: `/v1`, `/json` and forward-auth.
//!
//! ```text
//! one   HTTP/1.1, read strictly  \
//! two   HTTP/2, by hyper          -> call -> route -> engine -> limits -> reply
//! ```
//!
//! What a path does is in `route`; it does not know which version of HTTP asks. Bodies are read by
//! their shape (`body`, `json`), and what clients are told is written in `limits`. Proxies ask by
//! `forward`. How to use it: [docs/service-http.md] and [docs/forward-auth.md].
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
/// HTTP/1.1 and HTTP/2 share the port: a client of the latter begins with its preface.
pub async fn serve(stream: Stream, mut connection: Connection) {
    if let one::End::Http2(stream, first) = one::serve(stream, &mut connection).await {
        two::serve(stream, first, &mut connection).await;
    }
}

/// Reads the body of a request to `/v1`, for tests that feed it anything.
///
/// # Errors
///
/// What is wrong with it.
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
