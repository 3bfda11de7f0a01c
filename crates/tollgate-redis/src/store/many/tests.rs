//! In `servers`, takes of several keys are undone on a real server.

#[cfg(feature = "test-servers")]
mod servers;
