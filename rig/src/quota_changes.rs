//! The table of docs/keys.md that says when an exhausted key passes next after its quota has changed.
//!
//! Tests of limiters, stores and the service read it, so that it cannot differ from what they do. The crate
//! `tollgate` includes this file, because its tests must not need this crate's servers.

use std::{fs, path::Path, time::Duration};

/// One cell of the table.
#[derive(Clone, Debug)]
pub struct QuotaChange {
    /// The name of the algorithm, as in a configuration.
    pub algorithm: &'static str,
    /// The quota by which the key has used its burst or its limit, and the one that follows at once.
    pub quotas: [String; 2],
    /// How long the key waits. A window has just begun when the quota changes.
    pub wait: Duration,
}

/// Reads the table.
///
/// # Panics
///
/// Panics if it is not there or does not read as expected.
#[must_use]
pub fn quota_changes() -> Vec<QuotaChange> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = place.ancestors().map(|it| it.join("docs/keys.md")).find(|it| it.is_file());
    let page = fs::read_to_string(page.expect("docs/keys.md is there")).expect("it is text");
    let head = "| before | after | `gcra` | `fixed-window` |";
    let rows = page.lines().skip_while(|line| *line != head).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let changes: Vec<_> = rows.flat_map(changes).collect();
    assert!(changes.len() >= 12, "docs/keys.md has no table of changes below {head}");
    changes
}

fn changes(row: &str) -> [QuotaChange; 2] {
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [before, after, gcra, window] = cells[..] else { panic!("{row} has four cells") };
    let change = |algorithm, cell| {
        let quotas = [before, after].map(str::to_owned);
        QuotaChange { algorithm, quotas, wait: wait(cell) }
    };
    [change("gcra", gcra), change("fixed-window", window)]
}

/// Reads `at once`, `after 600 ms` or `within 60 s`, and leaves out the reason behind it.
fn wait(cell: &str) -> Duration {
    let words: Vec<_> = cell.split([' ', ',', ':']).collect();
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{cell} has no number"));
    match words[..] {
        ["at", "once", ..] => Duration::ZERO,
        ["after" | "within", count, "ms", ..] => Duration::from_millis(number(count)),
        ["after" | "within", count, "s", ..] => Duration::from_secs(number(count)),
        _ => panic!("{cell} says no time"),
    }
}
