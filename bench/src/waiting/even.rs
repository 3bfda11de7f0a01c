//! Tasks of one cost: the rate, its cost, and whether all tasks get the same.

use super::{Case, Extent, Rate, Rounds, Row, Sample, all, blocks, percent, seats::SLACK, whole};
use crate::{
    harness::progress,
    table::{Table, figure},
};
use std::time::Duration;

const RATE: Rate = Rate { per_second: 1000, burst: 1 };

/// Prints a table for each number of tasks.
pub(super) fn run(extent: Extent) {
    for tasks in [100, 1000, 10_000] {
        // In this time every task gets at least one permit, if all get the same.
        let turns = Duration::from_millis(tasks as u64 * 5 / 4);
        let time = extent.time.max(turns);
        let case = Case { tasks, rate: RATE, time, cost: |_| 1, patience: None };
        let turn = case.turn_ms();
        println!("### {tasks} tasks at 1000/s, burst 1\n");
        println!(
            "{:.1} s for each row and round. If all were served in turn, each would wait {turn:.0} ms. \
             *Overtaken* are grants to somebody who had asked more than {SLACK} places before one who \
             was served already.\n",
            time.as_secs_f64()
        );
        let rows = all();
        let rounds = Rounds::measure(&rows, extent, |row: &Row| {
            progress(&format!("{tasks} tasks: {}", row.name));
            (row.crowd)(&case).map_err(|error| format!("{}: {error}", row.name))
        });
        progress("");
        println!("{}", table(&rows, &rounds, &case));
        rounds.print_failures();
    }
}

fn table(rows: &[Row], rounds: &Rounds<Sample>, case: &Case) -> Table {
    let mut table = Table::new([
        "",
        "rate",
        "CPU us",
        "ratio",
        "grants per task",
        "differ by",
        "longest wait ms",
        "overtaken",
        "blocks",
    ]);
    for (at, row) in rows.iter().enumerate() {
        let (least, most) = (rounds.least(at, |it| it.least), rounds.most(at, |it| it.most));
        table.line([
            row.name.to_owned(),
            percent(rounds.middle(at, |it| case.achieved(it))),
            figure(rounds.middle(at, Sample::cpu_us_each)),
            figure(rounds.ratio(at, Sample::cpu_us_each)),
            format!("{} to {}", whole(least), whole(most)),
            whole(rounds.most(at, Sample::spread)),
            whole(rounds.most(at, Sample::longest_ms)),
            percent(rounds.most(at, |it| it.overtaken / it.grants)),
            blocks(rounds.middle(at, Sample::allocations_each)),
        ]);
    }
    table
}
