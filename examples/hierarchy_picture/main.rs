//! Draws the pictures of `docs/hierarchy.md` from the decisions of the shipped trees.
//!
//! `cargo run --release -p tollgate-examples --bin hierarchy_picture` writes `docs/pictures/hierarchy-*.svg`
//! and prints the table of outcomes. Time is virtual: sixty seconds take about one.

mod drawing;
mod scenario;

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let outcomes = scenario::run_all()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures");
    fs::create_dir_all(&folder)?;
    for (name, text) in drawing::pictures(&outcomes) {
        fs::write(folder.join(name), text)?;
    }
    print!("{}", scenario::table(&outcomes));
    Ok(())
}
