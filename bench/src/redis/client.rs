//! Our client compared with redis-rs and redis-benchmark: is the server the bottleneck?

use super::{
    ask::{Ask, key_of},
    outside::Outside,
    server::{Bench, Sample},
};
use crate::{
    harness::progress,
    redis::grid::Grid,
    table::{Table, figure},
};
use std::sync::Arc;

const CALLERS: [usize; 3] = [1, 50, 800];

const ROWS: [&str; 4] = [
    "redis-benchmark, one connection, pipelined",
    "redis-benchmark, a connection for each caller",
    "our link, one connection",
    "redis-rs 1.8 multiplexed, one connection",
];

/// Prints how fast INCR is by each client.
pub(super) fn run(bench: &Bench) {
    println!("### The client: INCR of one key by 1, 50 and 800 callers\n");
    println!(
        "Each cell: ratio to the first row (thousands each second; share of the time that the server was \
         on a processor; processor time of the client for each call).\n"
    );
    let headings = CALLERS.iter().map(|callers| format!("{callers} callers")).collect();
    let mut grid = Grid::new(ROWS.map(String::from).to_vec(), headings);
    // How many requests redis-benchmark makes, by column: about as many as fit.
    let mut requests = CALLERS.map(|callers| 2_000 * callers.min(16) as u64);
    let mut failed = None;
    for round in 1..=bench.extent.rounds {
        for (column, callers) in CALLERS.into_iter().enumerate() {
            for (row, name) in ROWS.iter().enumerate() {
                progress(&format!("client, round {round}, {callers} callers: {name}"));
                let sample = measure(bench, row, (callers, requests[column]));
                if row == 2
                    && let Ok(ours) = &sample
                {
                    requests[column] = (ours.decisions as u64).max(1_000);
                }
                let sample = sample.map_err(|error| failed = Some(format!("{name}: {error}"))).ok();
                grid.push(row, column, sample);
            }
        }
    }
    progress("");
    println!("{}", table(&grid));
    failed.into_iter().for_each(|error| println!("Failed: {error}.\n"));
}

fn table(grid: &Grid) -> Table {
    let headings = CALLERS.iter().map(|callers| format!("{callers} callers"));
    let mut table = Table::new([String::new()].into_iter().chain(headings));
    for (row, name) in ROWS.iter().enumerate() {
        let cells = (0..CALLERS.len()).map(|column| {
            let Some(rate) = grid.middle(row, column, Sample::rate) else { return "-".into() };
            let busy = grid.middle(row, column, Sample::busy).unwrap_or(f64::NAN);
            let own = grid.middle(row, column, Sample::client_us_each).filter(|it| !it.is_nan());
            format!(
                "{} ({}k, {:.0} %{})",
                figure(grid.ratio((row, 0), column, Sample::rate)),
                figure(Some(rate / 1000.0)),
                busy * 100.0,
                own.map_or(String::new(), |it| format!(", {} us", figure(Some(it))))
            )
        });
        table.line([(*name).to_owned()].into_iter().chain(cells));
    }
    table
}

fn measure(bench: &Bench, row: usize, (callers, requests): (usize, u64)) -> Result<Sample, String> {
    let outside = |connections, pipeline| Outside { connections, pipeline, keys: 1, requests };
    let ask = match row {
        0 => return outside(1, callers).measure(bench),
        // It is slower by this factor, so it would take seconds.
        1 => {
            return Outside { requests: (requests / 4).max(20_000), ..outside(callers, 1) }
                .measure(bench);
        }
        2 => Ask::Incr,
        _ => Ask::IncrPeer,
    };
    let (ask, target) = (Arc::new(ask), bench.target.clone());
    bench.measure(&bench.target.link, callers, move |_| {
        let (ask, target) = (ask.clone(), target.clone());
        async move { ask.ask(&target, &key_of(0)).await }
    })
}
