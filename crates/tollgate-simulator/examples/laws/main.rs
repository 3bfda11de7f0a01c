//! Prints the tables of docs/adaptive.md and draws its picture: laws in virtual time.

mod plot;
mod scenario;
mod table;

use std::{fs, path::Path};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tuned = scenario::tuned();
    println!("{}", table::compare(&tuned, &table::SEEDS)?);
    println!("{}", table::details(&tuned, &table::SEEDS)?);
    println!("{}", table::compare(&scenario::untuned(), &table::SEEDS)?);
    let laws = [scenario::AIMD, scenario::DAMPED, scenario::PROBING];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/adaptive-laws.svg");
    fs::write(path, plot::svg(&tuned[0], &laws, table::SEEDS[0])?)?;
    Ok(())
}
