//! Lists of public names that stand in sources and schemas. `docs/stability.md` says what a change of
//! one means; lists that need a running service are recorded by the crate that serves.

use super::root;
use regex::Regex;
use std::{collections::BTreeSet, fs};
use tollgate_rig::golden;
use tollgate_server::config::schema;

#[test]
fn configuration_keys_are_as_recorded() {
    let mut found = BTreeSet::new();
    for (section, about) in schema()["$defs"].as_object().unwrap() {
        let keys = about["properties"].as_object().into_iter().flatten();
        found.extend(keys.map(|(key, _)| format!("{section}.{key}")));
    }
    golden("config", &found);
}

/// The names at the root of each library, with the feature that they need.
#[test]
fn root_names_are_as_recorded() {
    let item = Regex::new(r"(?m)^((?:#\[[^\n]*\]\n)*)pub (use|mod) ([^;]+);").unwrap();
    let feature = Regex::new(r#"feature = "([a-z]+)""#).unwrap();
    let mut found = BTreeSet::new();
    for name in ["tollgate", "tollgate-redis", "tollgate-tower", "tollgate-server"] {
        let text = fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        for item in item.captures_iter(&text).filter(|item| !item[1].contains("doc(hidden)")) {
            let feature = feature.captures(&item[1]).map(|it| format!(" (feature {})", &it[1]));
            let names = item[3].rsplit_once("::").map_or(&item[3], |(_, names)| names);
            let names = names.trim_matches(['{', '}']).split(',').map(str::trim);
            found.extend(names.filter(|name| !name.is_empty()).map(|root_name| {
                let root_name = root_name.rsplit(' ').next().unwrap_or(root_name);
                let feature = feature.as_deref().unwrap_or("");
                format!("{}::{root_name}{feature}", name.replace('-', "_"))
            }));
        }
    }
    golden("names", &found);
}
