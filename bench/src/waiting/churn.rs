//! Many waiting tasks, of which many give up: do their permits go to other tasks?

use super::{Case, Extent, Rate, Rounds, Row, Sample, all, blocks, percent, whole};
use crate::{
    harness::progress,
    table::{Table, figure},
};
use std::time::Duration;

const RATE: Rate = Rate { per_second: 1000, burst: 1 };
const TASKS: usize = 1000;
/// Twice the time in which all are served once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the table.
pub(super) fn run(extent: Extent) {
    let case =
        Case { tasks: TASKS, rate: RATE, time: extent.time, cost: |_| 1, patience: Some(PATIENCE) };
    println!("### Giving up: {TASKS} tasks at 1000/s, burst 1\n");
    println!(
        "Each ask is dropped after a random time up to {PATIENCE:?}, and the task asks again. *Next \
         wait*: when everybody has left, one more ask; where nothing is lost that is 1 ms. {:.1} s \
         for each row and round.\n",
        case.time.as_secs_f64()
    );
    let rows = all();
    let rounds = Rounds::measure(&rows, extent, |row: &Row| {
        progress(&format!("giving up: {}", row.name));
        (row.crowd)(&case).map_err(|error| format!("{}: {error}", row.name))
    });
    progress("");
    println!("{}", table(&rows, &rounds, &case));
    rounds.print_failures();
}

fn table(rows: &[Row], rounds: &Rounds<Sample>, case: &Case) -> Table {
    let mut table =
        Table::new(["", "rate", "gave up", "CPU us", "ratio", "next wait ms", "blocks"]);
    for (at, row) in rows.iter().enumerate() {
        table.line([
            row.name.to_owned(),
            percent(rounds.middle(at, |it| case.achieved(it))),
            percent(rounds.middle(at, |it| it.gave_up / (it.gave_up + it.grants))),
            figure(rounds.middle(at, Sample::cpu_us_each)),
            figure(rounds.ratio(at, Sample::cpu_us_each)),
            whole(rounds.most(at, |it| it.next_ms)),
            blocks(rounds.middle(at, |it| it.allocations / (it.grants + it.gave_up))),
        ]);
    }
    table
}
