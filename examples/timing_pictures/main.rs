//! Draws the timing pictures of `docs/waiting.md` and `docs/debounce.md` from the behaviour of the
//! shipped state machines.
//!
//! `cargo run -p tollgate-examples --bin timing_pictures` writes
//! `docs/pictures/timing-*.svg`. Time is virtual.

mod drawing;
mod scenes;

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures");
    fs::create_dir_all(&folder)?;
    for picture in scenes::all()? {
        fs::write(folder.join(picture.name), drawing::svg(&picture))?;
        println!("{}", picture.name);
    }
    Ok(())
}
