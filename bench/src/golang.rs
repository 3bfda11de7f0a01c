//! Go's `golang.org/x/time/rate`, measured by a program of its own in the same rounds.

use crate::{
    Options,
    grid::Case,
    harness::progress,
    peers, stats,
    table::{Table, figure},
};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

const HOW_TO_INSTALL: &str = "\
Not measured: Go or golang.org/x/time/rate is missing. On Debian and its kin:

    apt-get install golang-go golang-golang-x-time-dev
";

const CASES: [(Case, &str); 3] =
    [(Case::Full, "full"), (Case::Partly, "partly"), (Case::Denied, "denied")];
const THREADS: [usize; 2] = [1, 2];

/// Builds the program with the distribution's copy of the library, without a network.
fn build() -> Result<PathBuf, String> {
    let program = std::env::temp_dir().join(format!("tollgate-bench-go-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/rate.go");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .output();
    match built {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn measure(program: &Path, case: &str, threads: usize) -> Option<f64> {
    (0..3).find_map(|_| {
        let output = Command::new(program).args([case, &threads.to_string()]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    })
}

/// Prints Go's limiter with governor and tollgate.
pub(crate) fn run(options: &Options) {
    println!("\n## go: golang.org/x/time/rate\n");
    let program = match build() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("{error}");
            return println!("{HOW_TO_INSTALL}");
        }
    };
    println!("Nanoseconds per call; ratio to {} in the same round.\n", peers::BASELINE);
    let rows = [peers::crates::governor(), peers::tollgate::default()];
    let mut names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    names.push("Go x/time/rate, Allow".into());
    let mut table =
        Table::new(["", "threads", "full", "ratio", "partly used", "ratio", "denied", "ratio"]);
    for threads in THREADS {
        let mut values = vec![vec![Vec::new(); CASES.len()]; names.len()];
        for round in 0..options.rounds() {
            for (column, (case, name)) in CASES.into_iter().enumerate() {
                progress(&format!("go, {threads} threads, round {}, {name}", round + 1));
                for (row, values) in rows.iter().zip(&mut values) {
                    let value = row.build(case).and_then(|it| it.ns_per_call(threads));
                    values[column].push(value);
                }
                values[rows.len()][column].push(measure(&program, name, threads));
            }
        }
        for (name, ours) in names.iter().zip(&values) {
            let mut line = vec![name.clone(), threads.to_string()];
            for (ours, base) in ours.iter().zip(&values[0]) {
                let ratio = stats::median_ratio(ours, base);
                line.extend([figure(stats::median(ours.iter().copied())), figure(ratio)]);
            }
            table.line(line);
        }
    }
    progress("");
    println!("{table}");
    // A leftover in the temporary directory is not worth a failure.
    let _ = std::fs::remove_file(program);
}
