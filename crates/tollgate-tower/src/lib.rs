//! Rate limits, concurrency limits and bandwidth limits for axum, tonic, hyper and any tower stack,
//! clients that keep to a server's limits, and circuit breakers, timeouts and fallbacks for both.
//!
//! A [`RateLimitLayer`] checks all its policies in one decision. If one of them denies a request, the
//! layer responds with 429, `Retry-After` and the `RateLimit` headers; the service is not called and no
//! policy is charged.
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
//! [`Key::peer`] needs the client's address: turn on the feature `axum`, and serve the application with
//! `into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # Which type for what
//!
//! | I want | use |
//! |---|---|
//! | to limit requests by one or several limits | [`RateLimitLayer`], [`Policy`] |
//! | to count by address, user, token or route | [`Key`], and [`key`] for a table |
//! | to count the client's address behind proxies | [`key::ClientAddress`], [`key::Trust`] |
//! | requests without identity to pass, or to share a quota | [`Key::or_skip`], [`Key::or_anonymous`] |
//! | other quotas for some users | [`Policy::tier`], [`Policy::tier_by`] |
//! | to exclude some requests | [`Policy::only`] |
//! | a cost by request, or by its length | [`Policy::cost_by`], [`Policy::cost_by_length`] |
//! | a cost that the response determines, such as tokens or bytes | [`Policy::settle`], [`Settle`] |
//! | to charge failures only, for example failed logins | [`Policy::charge`], [`Charge::on_failure`] |
//! | to try out a limit before it denies requests | [`Mode::Shadow`], [`Mode::Percent`] |
//! | to mark requests over the limit, and let the service decide what to do with them | [`Mode::Tag`], [`OverLimit`] |
//! | to know which keys use a limit most, or are refused most | [`RateLimitBuilder::top_keys`] |
//! | spans or logs of denials | [`RateLimitBuilder::observer`] and the methods next to it |
//! | metrics of every layer, for Prometheus or another system | [`RateLimitBuilder::counted`], `tollgate::observe::Registry` |
//! | `/metrics` and `/debug/limiters` in three lines | [`RegistryEndpoint`] |
//! | limits shared by several processes | [`RateLimitBuilder::store`] |
//! | other headers, another body or a response of my own | [`answer::Headers`], [`answer::Body`], [`RateLimitBuilder::refuse_with`] |
//! | to limit requests in flight, until their bodies have ended | [`ConcurrencyLayer`] |
//! | a limit on requests in flight that follows what the service can do | [`AdaptiveLayer`] |
//! | urgent requests first, and the others refused under load | [`ConcurrencyLayerBuilder::priority_by`], [`Shedding`] |
//! | to limit bytes per second of requests or responses | [`BandwidthLayer`] |
//! | a client that keeps to the server's limits | [`client::PaceLayer`] |
//! | a client that retries denied calls within a budget | [`client::RetryLayer`] |
//! | to stop calling a service that fails (circuit breaker), for all calls or by server | [`BreakerLayer`] |
//! | timeouts for the head, the body, an attempt and the whole call; deadlines that travel | [`TimeoutLayer`], [`Deadline`] |
//! | an answer when the service has none: a value, a function, another service | [`FallbackLayer`], [`Degraded`] |
//! | to know which layer refused a call, why, and for how long | [`RefusedBy`], [`NotRun`] |
//! | a client that sends slow calls a second time | [`client::HedgeLayer`] |
//! | a client that sends less to an overloaded server | [`client::SelfThrottleLayer`] |
//! | all of these in the order that works, for a client or a server | [`ClientStack`], [`ServerStack`] |
//! | a dependency that misbehaves, for tests | `testing::ChaosLayer` (feature `testing`) |
//!
//! [docs/http.md] says where in a stack the layer belongs, how to configure proxies, how to settle costs,
//! and what each error code means. [docs/clients.md] does the same for clients, and [docs/resilience.md] for
//! breakers, timeouts and fallbacks.
//!
//! # Guarantees
//!
//! * A layer charges all its policies or none. A denied request costs nothing, a request that never ran
//!   gets its permits back, and clones of a layer share its limits. With every algorithm, a retry exactly
//!   at `Retry-After` passes in an idle system (`tests/layers/limit.rs`).
//! * From address headers the layer takes only entries that a trusted proxy wrote
//!   (`tests/layers/keys_proxies.rs`). It counts tokens and API keys, but does not verify them.
//! * Where failures are charged, simultaneous attempts get no further than sequential ones
//!   (`examples/tests/examples.rs`).
//! * An independent parser of structured fields accepts every header (`tests/layers/response`).
//! * A request that is cancelled while it runs stays charged (`tests/layers/page_examples.rs`). A request
//!   that is cancelled while the store decides is not charged, and a policy in shadow mode is settled as
//!   if it were enforced (`tests/layers/modes.rs`).
//! * A refusal of one layer is no failure for another: breakers and adaptive limits ignore it, and limits
//!   further out give back what they took for a call that never ran (`tests/layers/resilience/breaker.rs`).
//! * [`client`] lists the guarantees for clients.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `axum` | reads the address and the matched route that axum stores in a request |
//! | `tonic` | reads the address that tonic stores in a request |
//! | `json` | [`RegistryEndpoint::limiters`] answers in JSON, too |
//! | `testing` | `testing::ChaosLayer`, which injects faults |
//!
//! No feature is on by default, and the layers work without them. MSRV: 1.89.
//!
//! [docs/http.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md
//! [docs/clients.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/clients.md
//! [docs/resilience.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/resilience.md

/// Returns the address of a section of the documentation.
macro_rules! docs {
    ($section:literal) => {
        concat!("https://github.com/tollgate-rs/tollgate/blob/main/docs/", $section)
    };
}

pub mod answer;
mod bandwidth;
mod body;
pub mod breaker;
mod calendar;
mod classify;
pub mod client;
mod coded;
mod concurrency;
mod deadline;
mod endpoint;
pub mod fallback;
mod info;
pub mod key;
mod limit;
mod misuse;
mod observe;
mod queued;
mod refusal;
pub mod stack;
#[cfg(feature = "testing")]
pub mod testing;
pub mod timeout;
mod timer;

pub use bandwidth::{
    Bandwidth, BandwidthBuilder, BandwidthCounts, BandwidthError, BandwidthFuture, BandwidthLayer,
    ShapedBody, ShapedBytes, Shaping,
};
pub use body::GuardedBody;
pub use breaker::BreakerLayer;
pub use concurrency::{
    AdaptiveLayer, AdaptiveLayerBuilder, ConcurrencyBody, ConcurrencyFuture, ConcurrencyLayer,
    ConcurrencyLayerBuilder, ConcurrencyLayerError, ConcurrencyLimit, Degradation, Shedding,
};
pub use deadline::Deadline;
pub use endpoint::RegistryEndpoint;
pub use fallback::{Degraded, FallbackLayer};
pub use info::{Info, Peer};
pub use key::Key;
pub use limit::{
    Charge, LayerError, LimitBody, LimitFuture, Mode, OnStoreError, OverLimit, Policy, RateLimit,
    RateLimitBuilder, RateLimitLayer, SameBody, SameBodyFuture, SameBodyLayer, Settle, Usage,
};
pub use observe::LayerCounts;
pub use refusal::{NotRun, RefusedBy};
pub use stack::{ClientStack, ServerStack};
pub use timeout::{TimeoutError, TimeoutLayer};

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
    #[doc = include_str!("../../../docs/resilience.md")]
    struct Resilience;
}
