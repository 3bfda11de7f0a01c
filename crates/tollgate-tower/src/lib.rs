//! Rate limiting for axum, tonic, hyper and any tower stack.
//!
//! Being built: see the modules.

pub mod answer;
pub mod client;
mod info;
pub mod key;

pub use info::{Info, Peer};
pub use key::Key;
