//! The cost of each kind of decision.

use super::{
    ask::{Ask, key_of},
    cases::{self, Case},
    grid::{Grid, micros, thousands},
    load,
    outside::Outside,
    server::{Bench, Sample},
};
use crate::harness::progress;
use std::sync::Arc;

/// How many callers, and whether they use many keys.
#[derive(Clone, Copy)]
struct Column {
    callers: usize,
    is_many: bool,
}

const COLUMNS: [Column; 5] = [
    Column { callers: 16, is_many: false },
    Column { callers: 16, is_many: true },
    Column { callers: 1, is_many: false },
    Column { callers: 256, is_many: false },
    Column { callers: 256, is_many: true },
];

/// How many of them are measured with `--quick`.
const QUICK: usize = 3;

/// The only key of the columns with one key.
const HOT: u64 = 0;

/// Prints the cost of each kind of decision to the server and the client, and their rates.
pub(super) fn run(bench: &Bench) {
    println!("### What a decision costs\n");
    let cases = match cases::all().and_then(|cases| prepare(bench, &cases).map(|()| cases)) {
        Ok(cases) => cases,
        Err(error) => return println!("Not measured: {error}.\n"),
    };
    let columns = if bench.extent.quick { &COLUMNS[..QUICK] } else { &COLUMNS[..] };
    let mut rows: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    rows.push("INCR, redis-benchmark".into());
    let headings = columns.iter().map(|column| {
        let keys = if column.is_many { bench.extent.keys_text() } else { "1 key".into() };
        format!("{keys}, {} in flight", column.callers)
    });
    let mut grid = Grid::new(rows, headings.collect());
    let mut errors = Vec::new();
    for round in 1..=bench.extent.rounds {
        for (at, column) in columns.iter().enumerate() {
            for (row, case) in cases.iter().enumerate() {
                progress(&format!("scripts, round {round}, column {}: {}", at + 1, case.name));
                grid.push(row, at, note(measure(bench, case, *column), &mut errors));
            }
            let sample = outside(bench, *column, grid.last(0, at));
            grid.push(cases.len(), at, note(sample, &mut errors));
        }
    }
    progress("");
    print(&grid, &cases);
    errors.into_iter().for_each(|error| println!("Failed: {error}.\n"));
}

fn print(grid: &Grid, cases: &[Case]) {
    println!("Server: time of its main thread for each decision, as a ratio to INCR.\n");
    println!("{}", grid.table(0, Sample::server_us_each, micros));
    println!("Decisions each second, as a ratio to INCR.\n");
    println!("{}", grid.table(0, Sample::rate, thousands));
    println!("Client: processor time of this process for each decision, as a ratio to INCR.\n");
    println!("{}", grid.table(0, Sample::client_us_each, micros));
    let strays = grid.strays(|row| cases.get(row).is_none_or(|case| case.is_allowed));
    if !strays.is_empty() {
        println!("Not as the row says were: {}.\n", strays.join("; "));
    }
}

/// Keeps the first few errors, each once.
fn note(sample: Result<Option<Sample>, String>, errors: &mut Vec<String>) -> Option<Sample> {
    match sample {
        Ok(sample) => sample,
        Err(error) => {
            if errors.len() < 10 && !errors.contains(&error) {
                errors.push(error);
            }
            None
        }
    }
}

/// Uses up the keys whose calls should be denied, and makes each call once: the server has all
/// scripts afterwards.
fn prepare(bench: &Bench, cases: &[Case]) -> Result<(), String> {
    let target = &bench.target;
    for case in cases {
        progress(&format!("scripts, keys of: {}", case.name));
        if !case.is_allowed {
            fill(bench, case)?;
        }
        for (ask, key) in case.many.iter().map(|ask| (ask, 1)).chain([(&case.hot, HOT)]) {
            bench
                .block_on(ask.ask(target, &key_of(key)))
                .map_err(|error| format!("{}: {error}", case.name))?;
        }
    }
    Ok(())
}

fn fill(bench: &Bench, case: &Case) -> Result<(), String> {
    let take = |ask: &Ask, cost: u64, key: fn(u64) -> u64| {
        let (ask, store) = (Arc::new(ask.clone()), bench.target.store.clone());
        move |number: u64| {
            let (ask, store) = (ask.clone(), store.clone());
            async move { ask.take(&store, &key_of(key(number)), cost).await }
        }
    };
    // The hot key permit by permit, so that a log has all its entries.
    bench.block_on(load::each(case.hot.limit(), take(&case.hot, 1, |_| HOT)))?;
    let Some(many) = &case.many else { return Ok(()) };
    bench.block_on(load::each(bench.extent.keys, take(many, many.limit(), |number| number)))
}

fn measure(bench: &Bench, case: &Case, column: Column) -> Result<Option<Sample>, String> {
    let ask = if column.is_many { case.many.clone() } else { Some(case.hot.clone()) };
    let Some(ask) = ask else { return Ok(None) };
    let keys = if column.is_many { bench.extent.keys } else { HOT + 1 };
    let (ask, target) = (Arc::new(ask), bench.target.clone());
    let sample = bench.measure(&bench.target.link, column.callers, move |number| {
        let (ask, target) = (ask.clone(), target.clone());
        async move { ask.ask(&target, &key_of(number % keys)).await }
    });
    sample.map(Some).map_err(|error| format!("{}: {error}", case.name))
}

/// INCR by redis-benchmark, over one connection with as many in flight, for about as long as ours.
fn outside(bench: &Bench, column: Column, ours: Option<Sample>) -> Result<Option<Sample>, String> {
    let Some(ours) = ours else { return Ok(None) };
    let outside = Outside {
        connections: 1,
        pipeline: column.callers,
        keys: if column.is_many { bench.extent.keys } else { 1 },
        requests: (ours.decisions as u64).max(1000),
    };
    outside.measure(bench).map(Some)
}
