//! The Redis store on one real server.
//!
//! The server is a `redis-server` of its own, on a free port, without persistence. The client is
//! this process, with one thread and one connection. Every table measures all its rows in each
//! round, so that a slow moment of the machine affects all of them; ratios are taken inside a
//! round, and the printed figure is the median over rounds. The server's cost of a decision is the
//! time that the server reports (`INFO cpu`, its main thread), divided by the decisions.

mod ask;
mod cases;
mod client;
mod grid;
mod load;
mod memory;
mod outside;
mod scripts;
mod server;
mod tiers;

use crate::Options;
use server::Bench;
use std::time::Duration;

/// The extent of the measurements.
#[derive(Clone, Copy)]
struct Extent {
    rounds: usize,
    /// How long each cell is measured in each round.
    time: Duration,
    /// The number of keys in the columns with many keys.
    keys: u64,
    quick: bool,
}

impl Extent {
    const fn new(quick: bool) -> Self {
        let (rounds, time_ms, keys) = if quick { (3, 60, 10_000) } else { (7, 120, 100_000) };
        Self { rounds, time: Duration::from_millis(time_ms), keys, quick }
    }

    /// Returns the number of keys as a short text.
    fn keys_text(&self) -> String {
        format!("{}k keys", self.keys / 1000)
    }
}

/// Prints the tables of the Redis store.
pub(crate) fn run(options: &Options) {
    let extent = Extent::new(options.quick);
    println!("\n## redis: the Redis store on one server\n");
    let bench = match Bench::start(extent) {
        Ok(bench) => bench,
        Err(error) => return println!("Not measured: {error}.\n"),
    };
    println!(
        "{}, one thread, no persistence. The client has one thread and one connection; {} ms for each \
         cell and round, medians of {} rounds.\n",
        bench.version(),
        extent.time.as_millis(),
        extent.rounds
    );
    scripts::run(&bench);
    client::run(&bench);
    tiers::run(&bench);
    memory::run(&bench);
}
