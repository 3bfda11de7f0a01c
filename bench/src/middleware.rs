//! The overhead of limiting a request of an axum application, compared with tower_governor.
//!
//! In process: one thread calls the router with a request that has an address and a user in its
//! extensions, and reads the answer to the end of its body. All rows make the same requests, and
//! that is part of every figure; the overhead of a layer is the difference to the row without it in
//! the same round. Over loopback: see [`load`].

mod app;
pub(crate) mod instructions;
mod load;
mod slots;
pub(crate) mod stacks;

use crate::{
    Options,
    harness::{Runner, Subject, progress},
    machine,
    stats::{median, median_ratio},
    table::{Table, figure},
};
use app::{Case, Driver, Guard, Place};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// How many clients send requests, in turn.
const KEYS: [u32; 2] = [1, 10_000];
/// Requests whose memory blocks are counted.
const COUNTED: u64 = 20_000;

const ABOUT: &str = "\
Nanoseconds of a request to an axum application with one route, called in process by one thread and \
taken to the end of its body; what that is more than without the layer, in the same round; and that \
as a share of what tower_governor adds with the same headers switched on. Limits are by the address \
of the connection. Blocks of memory are those that the layer adds to a request.";

/// The measurements in process.
const TABLES: [(&str, Case, Place); 3] = [
    ("all requests pass", Case::Allowed, Place::Inside),
    ("all requests are refused", Case::Refused, Place::Inside),
    ("all requests pass, the layer is around the router", Case::Allowed, Place::Around),
];

/// Prints the tables.
pub(crate) fn run(options: &Options) {
    println!("\n## middleware: an axum application behind a limit\n\n{ABOUT}");
    for (title, case, place) in TABLES {
        let table = table(case, place, options.rounds());
        println!("\n### middleware, {title}\n\n{table}");
    }
    slots::run(options.rounds());
    instructions::run();
    load::run(options);
}

/// Nanoseconds per request: by number of keys, by row, one per round.
type Values = Vec<Vec<Vec<Option<f64>>>>;

fn table(case: Case, place: Place, rounds: usize) -> Table {
    let values = measure(case, place, rounds);
    let blocks = Guard::ALL.map(|guard| blocks(guard, case, place));
    let keys = |count: u32| if count == 1 { "1 key".into() } else { format!("{count} keys") };
    let mut headings = vec![String::new()];
    for count in KEYS {
        headings.extend([keys(count), "added".into(), "of tower_governor".into()]);
    }
    headings.push("blocks".into());
    let mut table = Table::new(headings);
    for (row, guard) in Guard::ALL.into_iter().enumerate() {
        // There are no requests that this layer could admit.
        if guard == Guard::Idle && case == Case::Refused {
            continue;
        }
        let mut line = vec![guard.name(case).to_owned()];
        for column in &values {
            let added = added(&column[row], &column[0]);
            let peer = guard.peer().map(|peer| added_by(column, peer));
            let share = peer.and_then(|peer| median_ratio(&added, &peer));
            line.push(figure(median(column[row].iter().copied())));
            line.push(if row == 0 { "-".into() } else { figure(median(added)) });
            line.push(share.map_or_else(|| "-".into(), |share| format!("{share:.2}")));
        }
        let more = blocks[row].zip(blocks[0]).filter(|_| row > 0).map(|(all, bare)| all - bare);
        line.push(figure(more));
        table.line(line);
    }
    table
}

/// Returns the overhead of a row over the one without a layer, round by round.
fn added(row: &[Option<f64>], bare: &[Option<f64>]) -> Vec<Option<f64>> {
    row.iter().zip(bare).map(|(row, bare)| Some((*row)? - (*bare)?)).collect()
}

fn added_by(column: &[Vec<Option<f64>>], guard: Guard) -> Vec<Option<f64>> {
    let row = Guard::ALL.iter().position(|it| *it == guard).unwrap_or_default();
    added(&column[row], &column[0])
}

fn measure(case: Case, place: Place, rounds: usize) -> Values {
    let mut values = vec![vec![Vec::new(); Guard::ALL.len()]; KEYS.len()];
    for round in 0..rounds {
        for (column, keys) in KEYS.into_iter().enumerate() {
            // Each round begins with another row, so that no row always follows the same one.
            for turn in 0..Guard::ALL.len() {
                let row = (turn + round) % Guard::ALL.len();
                let guard = Guard::ALL[row];
                progress(&format!("round {}/{rounds}, {keys} keys: {guard:?}", round + 1));
                values[column][row].push(ns(guard, case, (place, keys)));
            }
        }
    }
    progress("");
    values
}

/// Returns nanoseconds per request, if all were answered as they should be.
fn ns(guard: Guard, case: Case, at: (Place, u32)) -> Option<f64> {
    let wrong = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&wrong);
    let subject = Subject::new(move || -> Runner {
        let (mut driver, wrong) = (Driver::new(guard, case, at), Arc::clone(&counted));
        Box::new(move |calls| {
            let Some(driver) = &mut driver else {
                // ORDERING: SeqCst for simplicity, here and below: nothing is counted in a correct
                // run.
                wrong.fetch_add(calls, SeqCst);
                return;
            };
            (0..calls).for_each(|_| driver.ask());
            if driver.wrong > 0 {
                wrong.fetch_add(std::mem::take(&mut driver.wrong), SeqCst);
            }
        })
    });
    let ns = subject.ns_per_call(1);
    // ORDERING: as above; the threads that count are joined.
    let wrong = wrong.load(SeqCst);
    if wrong > 0 {
        eprintln!("\n{guard:?}, {case:?}, {at:?}: {wrong} answers were others; left out");
    }
    ns.filter(|_| wrong == 0)
}

/// Returns how many blocks of memory a request allocates.
fn blocks(guard: Guard, case: Case, place: Place) -> Option<f64> {
    let mut driver = Driver::new(guard, case, (place, 1))?;
    (0..COUNTED).for_each(|_| driver.ask());
    let before = machine::allocations();
    (0..COUNTED).for_each(|_| driver.ask());
    Some((machine::allocations() - before) as f64 / COUNTED as f64)
}
