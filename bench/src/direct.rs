//! One limiter, every peer, one and two threads; leases; observing.

use crate::{
    Options,
    grid::{Case, Grid, Row},
    peers::{self, BASELINE},
};

fn print(title: &str, rows: &[Row], cases: &[Case], options: &Options) {
    print_against(BASELINE, title, rows, cases, options);
}

fn print_against(base: &str, title: &str, rows: &[Row], cases: &[Case], options: &Options) {
    for threads in [1, 2] {
        let noun = if threads == 1 { "thread" } else { "threads" };
        println!("\n### {title}, {threads} {noun}\n");
        let grid = Grid::measure(rows, cases, threads, options.rounds());
        println!("{}", grid.table(base));
    }
}

/// Prints one limiter and its peers.
pub(crate) fn run(options: &Options) {
    println!("\n## direct: one limiter\n");
    println!(
        "Nanoseconds per call as each thread sees them; ratio to {BASELINE} in the same round."
    );
    let mut rows = vec![
        peers::tollgate::default(),
        peers::tollgate::on_cached_clock(),
        peers::tollgate::given_time(),
    ];
    rows.extend(peers::tollgate::rich());
    rows.extend(peers::tollgate::windows());
    rows.extend(peers::stored::rows());
    rows.push(peers::crates::governor());
    rows.extend(peers::crates::others());
    rows.push(peers::textbook::mutex());
    rows.push(peers::textbook::channel());
    print("direct", &rows, &Case::ALL, options);
}

/// Prints leases.
pub(crate) fn leases(options: &Options) {
    println!("\n## leases: batches of permits held by a thread\n");
    println!("Nanoseconds per call, all allowed; ratio to {BASELINE} in the same round.");
    let rows = [
        peers::crates::governor(),
        peers::tollgate::default(),
        peers::tollgate::leased(32, None),
        peers::tollgate::leased(128, None),
        peers::tollgate::leased(32, Some(peers::tollgate::cached)),
        peers::tollgate::leased(128, Some(peers::tollgate::cached)),
    ];
    print("leases", &rows, &[Case::Full, Case::Partly], options);
}

/// Prints the cost of observing.
pub(crate) fn observed(options: &Options) {
    println!("\n## observed: what counting and observing cost\n");
    println!("Nanoseconds per call; ratio to {BASELINE} in the same round.");
    let mut rows = vec![peers::crates::governor(), peers::tollgate::default()];
    rows.extend(peers::tollgate::observed());
    let cases = [Case::Full, Case::Partly, Case::Denied];
    print("observed", &rows, &cases, options);
    println!("\nOne hot key; ratio to the plain keyed limiter.");
    let rows = peers::tollgate::observed_keys();
    print_beside("observed keys", &rows, &[Case::Full, Case::Denied], options);
    println!("\nAn addition; ratio to one atomic that all threads share.");
    print_beside("counters", &peers::tollgate::counters(), &[Case::Full], options);
}

/// [`print()`] with ratios to the first row.
fn print_beside(title: &str, rows: &[Row], cases: &[Case], options: &Options) {
    let first = rows.first().map_or("", Row::name);
    print_against(first, title, rows, cases, options);
}
