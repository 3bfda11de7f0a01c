//! Runs the playbooks of docs/resilience.md in virtual time: each shows a failure, and how a remedy
//! changes it for the callers. `--example playbooks NAME` runs one, without a name all.

mod degradation;
mod failure;
mod playbook;
#[path = "../laws/plot.rs"]
mod plot;
#[path = "../priorities/queue.rs"]
mod queue;

use playbook::{PLAYBOOKS, SEED};
use plot::{Panel, Plot};
use std::{env, error::Error, fs, path::Path};
use tollgate_simulator::Report;

fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1);
    let wanted: Vec<_> =
        PLAYBOOKS.iter().filter(|it| name.as_ref().is_none_or(|name| it.name == name)).collect();
    if wanted.is_empty() {
        let names: Vec<_> = PLAYBOOKS.iter().map(|it| it.name).collect();
        let name = name.unwrap_or_default();
        return Err(format!("no playbook {name:?}; there are {}", names.join(", ")).into());
    }
    for playbook in wanted {
        println!("{}", playbook.print(SEED)?);
    }
    if name.is_none() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/retry-storm.svg");
        fs::write(path, picture())?;
    }
    Ok(())
}

/// Draws attempts and good calls of each second, without and with a retry budget.
fn picture() -> String {
    let title = "Attempts (grey) and calls served in time (blue) in each second";
    let heading = "Attempts (grey) and calls served in time (blue) in each second; the server is slow from \
                   10 s to 20 s";
    let plot = Plot { title, heading, seconds: (60, 10), values: (4000, 1000) };
    let panel = |name: &str, report: &Report| -> Panel {
        // One value for each second, ten times.
        let of = |value: fn(&tollgate_simulator::Second) -> u64| {
            report.seconds().iter().flat_map(|second| [value(second); 10]).collect()
        };
        let lines = vec![("#b0aca6", of(|it| it.attempts)), ("#2f6db3", of(|it| it.good))];
        (name.to_owned(), lines)
    };
    let [_, storm, budget, ..] = failure::retry_storms(SEED);
    plot.svg(&[panel(storm.0, &storm.1), panel(budget.0, &budget.1)])
}
