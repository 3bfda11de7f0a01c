//! Prints the tables of docs/adaptive.md and draws its picture: laws in virtual time.

mod plot;
mod scenario;
mod table;

use plot::{Panel, Plot};
use std::{fs, path::Path};
use tollgate::adaptive::law::LawError;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tuned = scenario::tuned();
    println!("{}", table::compare(&tuned, &table::SEEDS)?);
    println!("{}", table::details(&tuned, &table::SEEDS)?);
    println!("{}", table::compare(&scenario::untuned(), &table::SEEDS)?);
    let plot = Plot {
        title: "Limit (blue) and calls in the server (grey)",
        heading: "Limit (blue) and calls in the server (grey): 0.7 load, 2x, 2x with half of the \
                  workers, 2x, 0.7",
        seconds: (tuned[0].seconds, 60),
        values: (150, 50),
    };
    let laws = [scenario::AIMD, scenario::DAMPED, scenario::PROBING];
    let panel = |law: &scenario::NamedLaw| -> Result<Panel, LawError> {
        let report = tuned[0].run(table::SEEDS[0], law)?;
        let of = |value: fn(&tollgate_simulator::Moment) -> u64| {
            report.trace().iter().map(value).collect()
        };
        let lines = vec![("#b0aca6", of(|it| it.in_flight)), ("#2f6db3", of(|it| it.limit))];
        Ok((law.name.replace('*', ""), lines))
    };
    let panels: Result<Vec<_>, _> = laws.iter().map(panel).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/adaptive-laws.svg");
    fs::write(path, plot.svg(&panels?))?;
    Ok(())
}
