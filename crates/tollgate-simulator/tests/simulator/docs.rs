//! The tables of the documentation.

use std::{fs, path::Path};

/// Returns the rows of a page's table that begins with `head`: name and figures.
pub(crate) fn rows(page: &str, head: &str) -> Vec<(String, Vec<f64>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once(head).unwrap_or_else(|| panic!("{page} has no {head}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        (cells.next().unwrap().into(), cells.map(|cell| cell.parse().unwrap()).collect())
    };
    rows.map(row).collect()
}
