//! The lines `cargo add ...` of the pages fit the manifests.

use super::{markdown::Page, pages, report, root};
use regex::Regex;
use std::fs;

/// Crates of ours that a page may add. Other names are crates of other people.
const CRATES: [&str; 5] =
    ["tollgate", "tollgate-redis", "tollgate-tower", "tollgate-server", "tollgate-cli"];

/// Cargo gives features without a crate's name to every crate of the line.
#[test]
fn every_cargo_add_names_crates_and_features_that_exist() {
    let readmes = CRATES.map(|name| Page::read(&root(), format!("crates/{name}/README.md").into()));
    let line = Regex::new(r"(?m)^cargo add ([^#\n]*)").unwrap();
    let mut mistakes = Vec::new();
    let mut lines = 0;
    for page in pages().iter().chain(&readmes) {
        for block in &page.blocks {
            for found in line.captures_iter(&block.text) {
                lines += 1;
                let wrong = mistakes_of(&found[1]).into_iter();
                mistakes.extend(wrong.map(|wrong| format!("{}: {wrong}", page.at(block.line))));
            }
        }
    }
    assert!(lines > 10, "{lines} lines: the pages begin with them");
    report(&mistakes);
}

fn mistakes_of(arguments: &str) -> Vec<String> {
    let (mut crates, mut features, mut words) = (Vec::new(), Vec::new(), arguments.split(' '));
    while let Some(word) = words.next() {
        match word {
            "--features" | "-F" => features.extend(words.next().unwrap_or("").split(',')),
            "" => {}
            flag if flag.starts_with('-') => {}
            name => crates.push(name.split('@').next().unwrap_or(name)),
        }
    }
    let (ours, foreign): (Vec<_>, _) =
        crates.into_iter().partition(|name| name.starts_with("tollgate"));
    let is_alone = foreign.is_empty() && ours.len() == 1;
    let mut mistakes = Vec::new();
    for name in ours.iter().filter(|name| !CRATES.contains(name)) {
        mistakes.push(format!("there is no crate {name}"));
    }
    for feature in features {
        let (owner, feature) = feature.split_once('/').unwrap_or(("", feature));
        let wanted = ours.iter().filter(|name| owner == **name || owner.is_empty());
        for name in wanted {
            let path = root().join(format!("crates/{name}/Cargo.toml"));
            let manifest = fs::read_to_string(path).unwrap_or_default();
            if !manifest.contains(&format!("\n{feature} = [")) {
                mistakes.push(format!("{name} has no feature {feature}"));
            } else if owner.is_empty() && !is_alone {
                mistakes.push(format!("which crate has the feature {feature}?"));
            }
        }
    }
    mistakes
}

#[test]
fn wrong_lines_are_found() {
    for (line, wrong) in [
        ("tollgate axum", ""),
        ("tollgate-tower --features axum", ""),
        ("axum tokio --features tokio/full", ""),
        ("tollgate --features tokio,serde", ""),
        ("tollgate -F axum", "tollgate has no feature axum"),
        ("tollgate-axum", "there is no crate tollgate-axum"),
        ("tollgate axum --features tokio", "which crate has the feature tokio?"),
    ] {
        assert_eq!(mistakes_of(line).concat(), wrong, "{line}");
    }
}
