//! Lists of public names, recorded in `rig/golden`.

use std::{collections::BTreeSet, env, fs, path::Path};

/// Compares names with those that `rig/golden/LIST.txt` records, one on each line. Writes the file
/// first if the variable `TOLLGATE_WRITE_GOLDEN` is set.
///
/// # Panics
///
/// Panics if a name is gone or new.
pub fn golden(list: &str, names: &BTreeSet<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{list}.txt"));
    if env::var_os("TOLLGATE_WRITE_GOLDEN").is_some() {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        fs::write(&path, text).expect("the list can be written");
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let recorded: BTreeSet<String> = recorded.lines().map(Into::into).collect();
    let (gone, new) = (recorded.difference(names), names.difference(&recorded));
    let changes: Vec<String> =
        gone.map(|name| format!("- {name}")).chain(new.map(|name| format!("+ {name}"))).collect();
    assert!(
        changes.is_empty(),
        "public names differ from rig/golden/{list}.txt; if that is intended, name the change in \
         CHANGELOG.md and run the test with TOLLGATE_WRITE_GOLDEN=1\n{}",
        changes.join("\n")
    );
}
