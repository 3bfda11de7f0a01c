//! Interleavings of the lock-free paths, by loom:
//!
//! `RUSTFLAGS="--cfg tollgate_loom" cargo test --profile loom -p tollgate --test loom`
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(tollgate_loom)]

mod breaker;
mod concurrency;
mod engine;
mod keyed;
mod limiter;
mod table;

/// Explores every interleaving with at most this many preemptions; as many as five seconds allow,
/// unless `TOLLGATE_LONG` is set, as `./test long` does.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let is_long = std::env::var_os("TOLLGATE_LONG").is_some();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_duration = (!is_long).then_some(std::time::Duration::from_secs(5));
    builder.check(model);
}
