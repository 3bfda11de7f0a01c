//! The commands of the program beside `serve`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod arguments;
mod load;
mod load_grpc;
