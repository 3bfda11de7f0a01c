//! The timing pictures of the docs show what the state machines do.
#![cfg(feature = "tokio")]

#[path = "../../../../examples/timing_pictures/drawing.rs"]
mod drawing;
#[path = "../../../../examples/timing_pictures/scenes/mod.rs"]
mod scenes;

use std::{fs, path::Path};

#[test]
fn the_committed_pictures_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    for picture in scenes::all().unwrap() {
        let committed = fs::read_to_string(folder.join(picture.name)).unwrap_or_default();
        let is_same = committed == drawing::svg(&picture);
        assert!(
            is_same,
            "{} is out of date: run tollgate-examples --bin timing_pictures",
            picture.name
        );
    }
}
