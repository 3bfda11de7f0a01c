//! The client side: layers that call a server no faster than it allows.
//!
//! | I want to | use |
//! |---|---|
//! | stay below the limit that the server reports in its headers | [`PaceLayer`] |
//! | stay below a limit that I know myself | [`PaceLayer`] with a [`quota`](PaceBuilder::quota) |
//! | repeat calls that the server refused, without making things worse | [`RetryLayer`] |
//! | send a slow call a second time, and take the first answer | [`HedgeLayer`] |
//! | send less to a server that refuses for overload | [`SelfThrottleLayer`] |
//! | only read what a response says about the server's limits | [`Reader`] |
//!
//! The layers fit any tower stack whose requests and responses are those of the crate `http`: the
//! client of hyper-util and a channel of tonic are tested (`tests/layers/client_wire.rs`,
//! `tests/layers/client_replay_wire.rs`). reqwest has requests and responses of its own, which can be turned
//! into those of `http` and back (`examples/client_follows.rs`). Put [`RetryLayer`] outside and [`PaceLayer`] inside of it:
//!
//! ```
//! use tollgate_tower::client::{PaceLayer, RetryLayer};
//! use tower_layer::Layer;
//!
//! let (retry, pace) = (RetryLayer::builder().build()?, PaceLayer::builder().build()?);
//! # let client = ();
//! let client = retry.layer(pace.layer(client));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees and non-guarantees
//!
//! * Before the time that a server names has passed, no more calls start than the server said are
//!   left, and none after a refusal (`src/client/lane/tests.rs`). That holds for one process:
//!   clients in different processes that share a limit do not coordinate.
//! * A server that reports its remaining calls is followed without a refusal, whatever its
//!   algorithm is (`tests/layers/client_follows.rs`, `tests/layers/roundtrip.rs`), and in whatever
//!   order it counts calls and answers them (`src/client/lane/tests.rs`). A server that reports
//!   nothing has to refuse a call before the client learns anything, and then also refuses the
//!   calls in flight.
//! * A body that cannot be cloned is sent again as it was, and by one attempt at a time
//!   (`tests/layers/client_replay.rs`), if [`replay`](RetryBuilder::replay) is on and the body is
//!   short.
//! * Each hedge has a service of its own that was ready, and attempts that lose are dropped before
//!   the answer is returned (`tests/layers/client_hedge.rs`).
//! * A client that throttles itself never refuses all of its calls, and a cancelled call counts for
//!   nothing (`tests/layers/client_self_throttle.rs`).
//! * Without tokio's timers no call waits, and nothing panics (`tests/layers/client_no_timers.rs`).
//! * No call waits longer than [`max_wait`](PaceBuilder::max_wait) in all; a call that would have
//!   to fails at once. Queues and memory are bounded. A waiting call may be dropped
//!   (`tests/layers/client_pace.rs`).
//! * A refusal at the end of a gRPC stream, after messages, is in the trailers, and is not seen.

pub(crate) mod counts;
mod family;
mod field;
mod grpc;
mod hedge;
mod http_client;
mod lane;
mod lanes;
mod learned;
mod pace;
mod retry;
mod self_throttle;
mod spend;
mod time;
mod turn;

pub use counts::PaceCounts;
pub use hedge::{Hedge, HedgeFuture, HedgeLayer, HedgeLayerBuilder};
pub use http_client::{HttpClient, HttpClientFuture};
pub use learned::{Learned, LearnedPolicy, Reader, Refusal, RetryWhen, Unit};
pub use pace::{
    Pace, PaceAnswer, PaceAnswerFuture, PaceAnswerLayer, PaceBuildError, PaceBuilder, PaceError,
    PaceFuture, PaceLayer, Unsent,
};
pub use retry::{
    Backoff, CloneBody, Repeat, Replay, ReplayBody, ReplaySpare, Retry, RetryBudget,
    RetryBudgetBuilder, RetryBuildError, RetryBuilder, RetryFuture, RetryLayer,
};
pub use self_throttle::{
    SelfThrottleBody, SelfThrottleFuture, SelfThrottleLayer, SelfThrottleLayerBuilder,
    SelfThrottleService,
};
pub use spend::Spend;
