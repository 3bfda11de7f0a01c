//! Rate limiting for axum, tonic, hyper and any tower stack: servers that say no well, clients that
//! pace themselves.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::Quota;
//! use tollgate_tower::{Key, LayerError, Policy, RateLimitLayer};
//!
//! fn app() -> Result<Router, LayerError> {
//!     let limits = RateLimitLayer::builder()
//!         .policy(Policy::new("per-address", Quota::per_minute(60)).key(Key::peer()))
//!         .policy(Policy::new("global", Quota::per_second(1000)))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "hello" })).layer(limits))
//! }
//! # assert!(app().is_ok());
//! ```
//!
//! Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that addresses are known,
//! and with the feature `axum`, so that they are read.
//!
//! # I want ... -> use ...
//!
//! | I want | use |
//! |---|---|
//! | to limit requests, by one or several limits in one decision | [`RateLimitLayer`], [`Policy`] |
//! | to count by address, user, token, route | [`Key`], and [`key`] for a table |
//! | to count the right address behind proxies | [`key::ClientAddress`], [`key::Trust`] |
//! | requests without identity to pass, or to share a quota | [`Key::or_skip`], [`Key::or_anonymous`] |
//! | other quotas for some users | [`Policy::tier`], [`Policy::tier_by`] |
//! | to leave some requests out | [`Policy::only`] |
//! | a cost by request, or by its length | [`Policy::cost_by`], [`Policy::cost_by_length`] |
//! | a cost that the response tells: tokens, bytes | [`Policy::settle`], [`Settle`] |
//! | to charge failures only, as for logins | [`Policy::charge`], [`Charge::on_failure`] |
//! | to try a limit out first | [`Mode::Shadow`], [`Mode::Percent`] |
//! | the service to know, instead of a refusal | [`Mode::Tag`], [`OverLimit`] |
//! | to see what is refused, in metrics, spans or a log | [`RateLimitBuilder::observer`] and those beside it |
//! | one limit over several processes | [`RateLimitBuilder::store`] |
//! | other headers, another body, a response of my own | [`answer::Headers`], [`answer::Body`], [`RateLimitBuilder::refuse_with`] |
//! | a limit on requests in flight, until their bodies have ended | [`ConcurrencyLayer`] |
//! | bytes per second, of requests or responses | [`BandwidthLayer`] |
//! | a client that keeps to the server's limits | [`client::PaceLayer`] |
//! | to repeat refused calls without making things worse | [`client::RetryLayer`] |
//!
//! The pages [docs/http.md] and [docs/clients.md] tell more: where in a stack the layer belongs,
//! proxies, settling, and all error codes. Each of the `examples` is tested.
//!
//! # What holds, and what does not
//!
//! * All policies of a layer are charged, or none; a refusal costs nothing; clones share one limit;
//!   what never ran is given back; a retry exactly at `Retry-After` passes in an idle system, by
//!   every algorithm (`tests/layers/limit.rs`).
//! * Of addresses in headers only those are taken that a trusted proxy has written
//!   (`tests/layers/keys_proxies.rs`). Tokens and API keys are counted, not checked.
//! * Attempts at the same time get no further than one by one where failures are charged
//!   (`examples/tests/examples.rs`).
//! * Every header parses with an independent parser of structured fields (`tests/layers/response`).
//! * A request that is cut off while it runs keeps what was reserved for it spent (`tests/layers/page_examples.rs`); who
//!   leaves while a store is asked has paid nothing, and a shadow is settled as if it were enforced
//!   (`tests/layers/modes.rs`).
//! * [`client`] says what holds for clients.
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `axum` | reads the address and the matched route that axum leaves in a request |
//! | `tonic` | reads the address that tonic leaves in a request |
//! | `metrics` | counts decisions through the `metrics` facade |
//!
//! None is on by default, and the layers work without them. MSRV: 1.89.
//!
//! [docs/http.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md
//! [docs/clients.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/clients.md

/// Returns the address of a section of the documentation.
macro_rules! docs {
    ($section:literal) => {
        concat!("https://github.com/tollgate-rs/tollgate/blob/main/docs/", $section)
    };
}

pub mod answer;
mod bandwidth;
mod body;
mod calendar;
pub mod client;
mod coded;
mod info;
pub mod key;
mod limit;
mod misuse;
mod queued;
mod room;
mod seldom;
mod timer;
mod watch;

pub use bandwidth::{
    Bandwidth, BandwidthBuilder, BandwidthError, BandwidthFuture, BandwidthLayer, ShapedBody,
    Shaping,
};
pub use info::{Info, Peer};
pub use key::Key;
pub use limit::{
    Charge, LayerError, LimitBody, LimitFuture, Mode, NotRun, OnStoreError, OverLimit, Policy,
    RateLimit, RateLimitBuilder, RateLimitLayer, SameBody, SameBodyFuture, SameBodyLayer, Settle,
    Usage,
};
pub use room::{
    ConcurrencyLayer, ConcurrencyLayerBuilder, ConcurrencyLayerError, Room, RoomBody, RoomFuture,
};

/// The user's pages, compiled: their examples are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct CrateReadme;
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/quickstart.md")]
    struct Quickstart;
    #[doc = include_str!("../../../docs/http.md")]
    struct Middleware;
    #[doc = include_str!("../../../docs/clients.md")]
    struct Clients;
}
