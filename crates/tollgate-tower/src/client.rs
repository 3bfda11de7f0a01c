//! The client's side: to call a server no faster than it allows.

mod family;
mod field;
mod grpc;
mod learned;
mod time;

pub use learned::{Learned, LearnedPolicy, Reader, Refusal, Retry, Unit};
