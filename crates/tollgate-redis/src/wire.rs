//! The Redis protocol, as a client speaks it.

mod command;
mod reply;

pub use command::Command;
pub use reply::Reply;
