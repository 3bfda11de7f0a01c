//! The Redis protocol, as a client speaks it.

mod command;
mod parse;
mod reply;

pub use command::Command;
pub use parse::{ReplyBounds, ReplyError, ReplyParser};
pub use reply::Reply;
