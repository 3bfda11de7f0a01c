//! The same requests, counted in instructions: the counts do not depend on other load of the
//! machine.
//!
//! Each row runs in a process of its own under callgrind, with few requests and with more; the
//! difference is the cost of the additional ones.

use super::app::{Case, Driver, Guard, Place};
use crate::{harness::progress, table::Table};
use std::process::{Command, ExitCode};

/// The argument by which this program is its own child.
const CHILD: &str = "--requests-of";
/// How many requests are sent: so many that the work for the first ones is over.
const REQUESTS: [u64; 2] = [2_000, 12_000];

const ABOUT: &str = "\
Instructions of a request by `valgrind --tool=callgrind`, all requests pass, one key, the layer inside: \
those of 10 000 requests after the first 2000.";

/// Sends requests, if this is such a child: `--requests-of ROW COUNT`.
pub(crate) fn answer(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    arguments.next().filter(|first| first == CHILD)?;
    let row = arguments.next().and_then(|row| row.parse::<usize>().ok());
    let guard = row.and_then(|row| Guard::ALL.get(row));
    let count = arguments.next().and_then(|count| count.parse::<u64>().ok());
    let driver = guard.and_then(|guard| Driver::new(*guard, Case::Allowed, (Place::Inside, 1)));
    let (Some(mut driver), Some(count)) = (driver, count) else { return Some(ExitCode::FAILURE) };
    (0..count).for_each(|_| driver.ask());
    Some(if driver.wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the table.
pub(super) fn run() {
    println!("\n### middleware, instructions\n\n{ABOUT}\n");
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("There is no valgrind here; `apt-get install valgrind`.");
        return;
    }
    let counts = Guard::ALL.map(|guard| (guard, of(guard)));
    progress("");
    let of = |wanted: Guard| counts.iter().find(|(guard, _)| *guard == wanted)?.1;
    let bare = of(Guard::Bare);
    let mut table = Table::new(["", "instructions", "added", "of tower_governor"]);
    for (guard, count) in counts {
        let added = |count: Option<u64>| Some(count? as f64 - bare? as f64);
        let share = guard.peer().and_then(|peer| Some(added(count)? / added(of(peer))?));
        let text = |number: Option<String>| number.unwrap_or_else(|| "-".into());
        table.line(vec![
            guard.name(Case::Allowed).to_owned(),
            text(count.map(|count| count.to_string())),
            text(added(count).filter(|_| guard != Guard::Bare).map(|more| format!("{more:.0}"))),
            text(share.map(|share| format!("{share:.2}"))),
        ]);
    }
    println!("{table}");
}

/// Returns the instructions of one request.
fn of(guard: Guard) -> Option<u64> {
    progress(&format!("instructions: {guard:?}"));
    let row = Guard::ALL.iter().position(|it| *it == guard)?;
    let [few, more] = REQUESTS.map(|count| counted(CHILD, row, count));
    more?.checked_sub(few?).map(|all| all / (REQUESTS[1] - REQUESTS[0]))
}

/// Counts the instructions of a child in all.
pub(super) fn counted(child: &str, row: usize, count: u64) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([child, &row.to_string(), &count.to_string()])
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&valgrind.stderr);
    let line = said.lines().find(|line| line.contains("Collected"))?;
    let number = line.rsplit(' ').next().filter(|_| valgrind.status.success())?;
    number.parse().ok()
}
