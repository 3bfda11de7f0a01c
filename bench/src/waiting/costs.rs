//! Waiting tasks of mixed costs: do small requests starve a large one?

use super::{
    Case, Extent, Rate, Rounds, Row, Sample, blocks, percent, seats::COST_MAX, weighing, whole,
};
use crate::{
    harness::progress,
    table::{Table, figure},
};

const RATE: Rate = Rate { per_second: 10_000, burst: COST_MAX as u64 };
const TASKS: usize = 1000;

/// Prints the table.
pub(super) fn run(extent: Extent) {
    let cost = |task| 1 + (task % COST_MAX) as u64;
    let case = Case { tasks: TASKS, rate: RATE, time: extent.time, cost, patience: None };
    println!("### Mixed costs: {TASKS} tasks at 10 000 permits/s, burst {COST_MAX}\n");
    println!(
        "A tenth of the tasks asks for 1 permit at a time, a tenth for 2, and so on to {COST_MAX}, \
         which is the burst. If all were served in turn, each would wait {:.0} ms, whatever its \
         cost. A limiter that starves large requests has more grants for its permits, so CPU is given \
         for each grant and for each permit. {:.1} s for each row and round.\n",
        case.turn_ms(),
        case.time.as_secs_f64()
    );
    let rows = weighing();
    let rounds = Rounds::measure(&rows, extent, |row: &Row| {
        progress(&format!("mixed costs: {}", row.name));
        (row.crowd)(&case).map_err(|error| format!("{}: {error}", row.name))
    });
    progress("");
    println!("{}", table(&rows, &rounds, &case));
    rounds.print_failures();
}

fn table(rows: &[Row], rounds: &Rounds<Sample>, case: &Case) -> Table {
    let mut table = Table::new([
        "",
        "permits/s",
        "rate",
        "CPU us",
        "ratio",
        "CPU us per permit",
        "ratio",
        "grants per task",
        "longest wait ms: cost 1",
        "cost 5",
        "cost 10",
        "blocks",
    ]);
    for (at, row) in rows.iter().enumerate() {
        let (least, most) = (rounds.least(at, |it| it.least), rounds.most(at, |it| it.most));
        let longest = |cost: usize| whole(rounds.most(at, |it| it.longest_ms[cost - 1]));
        table.line([
            row.name.to_owned(),
            whole(rounds.middle(at, Sample::permits_per_second)),
            percent(rounds.middle(at, |it| case.achieved(it))),
            figure(rounds.middle(at, Sample::cpu_us_each)),
            figure(rounds.ratio(at, Sample::cpu_us_each)),
            figure(rounds.middle(at, Sample::cpu_us_per_permit)),
            figure(rounds.ratio(at, Sample::cpu_us_per_permit)),
            format!("{} to {}", whole(least), whole(most)),
            longest(1),
            longest(5),
            longest(10),
            blocks(rounds.middle(at, Sample::allocations_each)),
        ]);
    }
    table
}
