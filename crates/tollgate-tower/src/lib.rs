//! Rate limiting for axum, tonic, hyper and any tower stack.
//!
//! Being built: see the modules.

pub mod answer;
mod bandwidth;
pub mod client;
mod info;
pub mod key;
mod limit;
mod room;

pub use bandwidth::{
    Bandwidth, BandwidthBuilder, BandwidthError, BandwidthFuture, BandwidthLayer, ShapedBody,
    Shaping,
};
pub use info::{Info, Peer};
pub use key::Key;
pub use limit::{
    Charge, LayerError, LimitBody, LimitFuture, Mode, NotRun, OnStoreError, Policy, RateLimit,
    RateLimitBuilder, RateLimitLayer, Settle,
};
pub use room::{
    ConcurrencyLayer, ConcurrencyLayerBuilder, ConcurrencyLayerError, Room, RoomBody, RoomFuture,
};
