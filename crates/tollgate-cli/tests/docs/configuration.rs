//! Configurations on the pages load, and every key, flag and variable that a page names exists.

use super::{
    files,
    markdown::{Page, codes},
    pages, report, root,
};
use regex::Regex;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};
use tollgate_server::config::{Config, schema};

/// Pages about the service. A word with an underscore there is a word of the service.
const SERVICE: [&str; 11] = [
    "admin",
    "config",
    "envoy",
    "forward-auth",
    "load",
    "operating",
    "resp",
    "security",
    "service-http",
    "tls",
    "tracing",
];

/// Words and settings of other programs that these pages name.
const FOREIGN_WORDS: [(&str, &str); 13] = [
    ("apply_on_stream_done", "Envoy"),
    ("auth_request", "nginx"),
    ("direct_response", "Envoy"),
    ("enable_x_ratelimit_headers", "Envoy"),
    ("failure_mode_deny", "Envoy"),
    ("header_to_metadata", "Envoy"),
    ("http2_protocol_options", "Envoy"),
    ("max_burst", "redis-cell"),
    ("protocol", "ioredis"),
    ("redis_version", "Redis"),
    ("status_on_error", "Envoy"),
    ("type", "Envoy"),
    ("typed_per_filter_config", "Envoy"),
];

/// The first key of YAML blocks that are for other programs.
const FOREIGN_YAML: [(&str, &str); 6] = [
    ("static_resources", "Envoy"),
    ("clusters", "Envoy"),
    ("typed_per_filter_config", "Envoy"),
    ("grpc_service", "Envoy"),
    ("scrape_configs", "Prometheus"),
    ("http", "Traefik"),
];

/// All names of keys in the schema of the configuration.
fn keys() -> BTreeSet<String> {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        if let Some(keys) = value.get("properties").and_then(Value::as_object) {
            found.extend(keys.keys().cloned());
        }
        match value {
            Value::Object(map) => map.values().for_each(|value| collect(value, found)),
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    collect(&schema(), &mut found);
    found
}

#[test]
fn every_configuration_loads() {
    let mut mistakes = Vec::new();
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "yaml") {
            let Some(text) = completed(&block.text) else { continue };
            if let Err(errors) = Config::from_text("block", &text) {
                mistakes.push(format!("{}: {errors}\n{text}", page.at(block.line)));
            }
        }
    }
    report(&mistakes);
}

/// Makes a whole configuration of a block: a list is the `descriptors` of a domain, keys of a
/// descriptor or of a limit belong to one. `None` for comments and for files of other programs,
/// which `servers` checks.
fn completed(block: &str) -> Option<String> {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with([' ', '#', '\t']);
    let top: Vec<&str> = block.lines().filter(is_content).collect();
    let first = top.first()?.split(':').next()?;
    if FOREIGN_YAML.iter().any(|(key, _)| *key == first) {
        return None;
    }
    let file_keys = schema()["$defs"]["file"]["properties"].as_object().unwrap().clone();
    if file_keys.contains_key(first) {
        // Paths of proxies may ask about a domain that another block has.
        let domain = block.split("domain: ").nth(1).and_then(|rest| rest.lines().next());
        let has_domain = top.iter().any(|line| line.starts_with("domain:"));
        let missing = domain.filter(|_| !has_domain);
        return Some(missing.map_or(block.into(), |name| format!("domain: {name}\n{block}")));
    }
    let indented = |by: &str| block.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
    if first.starts_with('-') {
        return Some(format!("domain: page\ndescriptors:\n{}", indented("  ")));
    }
    let limit = "rate_limit: {unit: second, requests_per_unit: 1}";
    let descriptor = indented("    ");
    Some(format!("domain: page\ndescriptors:\n  - key: page\n    {limit}\n{descriptor}"))
}

#[test]
fn every_key_of_the_configuration_is_on_its_page_and_no_other() {
    let keys = keys();
    let pages = pages();
    let page = pages.iter().find(|page| page.path.ends_with("config.md")).unwrap();
    let word = Regex::new("[a-z0-9_]+").unwrap();
    let mut named = BTreeSet::new();
    let mut mistakes = Vec::new();
    for (line, text) in &page.prose {
        for code in codes(text) {
            named.extend(word.find_iter(code.text).map(|found| found.as_str().to_owned()));
        }
        let is_key = ["| ref |", "| ours |"].iter().any(|origin| text.contains(origin));
        for code in codes(text.split('|').nth(1).unwrap_or_default()) {
            if is_key && !keys.contains(code.text) {
                mistakes.push(format!("{}: no key {}", page.at(*line), code.text));
            }
        }
    }
    let missing = keys.difference(&named);
    mistakes.extend(missing.map(|key| format!("docs/config.md: `{key}` is missing")));
    report(&mistakes);
}

/// A word with an underscore, or `word: value`, is a key of the configuration, or is written in the
/// sources as part of a text (fields of JSON, metrics), or is a field of a report or of the
/// protocol, or is foreign.
#[test]
fn every_word_of_the_service_exists() {
    let keys = keys();
    let word = Regex::new(r"^([a-z][a-z0-9]*(?:_[a-z0-9]+)*)(: .*)?$").unwrap();
    let all = files();
    let text_of = |folder: &str, end: &str| -> String {
        let is_wanted = |file: &&PathBuf| file.to_str().unwrap().ends_with(end);
        let wanted = all.iter().filter(|file| file.starts_with(folder)).filter(is_wanted);
        wanted.map(|file| fs::read_to_string(root().join(file)).unwrap()).collect()
    };
    let fields = text_of("crates/tollgate-server/proto", ".proto")
        + &text_of("crates/tollgate-cli/src/load", "report.rs");
    let sources = text_of("crates/tollgate-server/src", ".rs");
    let mut mistakes = Vec::new();
    for page in pages().iter().filter(|page| is_of_service(page)) {
        for (line, text) in &page.prose {
            for code in codes(text) {
                let Some(found) = word.captures(code.text) else { continue };
                let name = &found[1];
                let is_word = name.contains('_') || found.get(2).is_some();
                let is_test = code.before.ends_with(": ") || code.before == ", ";
                let is_foreign = FOREIGN_WORDS.iter().any(|(word, _)| *word == name);
                if !is_word || keys.contains(name) || is_foreign || is_named_test(is_test, name) {
                    continue;
                }
                let quoted = Regex::new(&format!(r#""[^"\n]*\b{name}\b|\b{name}:\{{"#)).unwrap();
                let wire = Regex::new(&format!(r"\b{name}\b")).unwrap();
                if !wire.is_match(&fields) && !quoted.is_match(&sources) {
                    mistakes.push(format!("{}: nothing is called {name}", page.at(*line)));
                }
            }
        }
    }
    report(&mistakes);
}

/// Tests are looked for elsewhere. Their names are sentences.
fn is_named_test(is_listed: bool, name: &str) -> bool {
    is_listed && name.matches('_').count() >= 3
}

fn is_of_service(page: &Page) -> bool {
    let name = page.path.file_stem().unwrap().to_str().unwrap();
    page.path.starts_with("docs") && SERVICE.contains(&name)
}

/// Returns the help texts of all commands.
fn help() -> String {
    let commands = [
        "serve",
        "check",
        "load resp",
        "load http",
        "load grpc",
        "soak",
        "top",
        "table",
        "compare",
        "explain",
    ];
    let of = |command: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let shown = program.args(command.split(' ')).arg("--help").output().unwrap();
        assert!(shown.status.success(), "tollgate {command} --help: {shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    commands.map(of).concat()
}

#[test]
#[cfg_attr(not(feature = "otel"), ignore = "the pages name the flags of all features")]
fn every_flag_and_variable_exists() {
    let bench = fs::read_to_string(root().join("bench/src/main.rs")).unwrap();
    let help = help() + &bench;
    let flag = Regex::new(r"(^|[ \[])(--[a-z][a-z-]+)").unwrap();
    let variable = Regex::new(r"\bTOLLGATE_[A-Z_]+\b").unwrap();
    let is_known = |name: &str| Regex::new(&format!(r"{name}\b")).unwrap().is_match(&help);
    let mut mistakes = Vec::new();
    for page in pages().iter().filter(|page| is_of_service(page)) {
        // Unit files call the program outside of a shell.
        let units = page.blocks.iter().filter(|block| block.language == "ini");
        for block in units {
            let called = flag.captures_iter(&block.text).map(|found| found[2].to_owned());
            for name in called.filter(|name| !is_known(name)) {
                mistakes.push(format!("{}: the program has no {name}", page.at(block.line)));
            }
        }
        for (line, text) in &page.prose {
            for code in codes(text).iter().map(|code| code.text) {
                let is_ours = code.starts_with("--") || code.starts_with("tollgate ");
                let flags = flag.captures_iter(code).map(|found| found[2].to_owned());
                let flags = flags.filter(|_| is_ours);
                let variables = variable.find_iter(code).map(|found| found.as_str().to_owned());
                for name in flags.chain(variables).filter(|name| !is_known(name)) {
                    mistakes.push(format!("{}: the program has no {name}", page.at(*line)));
                }
            }
        }
    }
    report(&mistakes);
}

#[cfg(feature = "test-servers")]
mod servers {
    use super::*;
    use crate::{markdown::Block, venv};
    use std::{io::Write, process::Stdio};

    #[test]
    fn json_toml_and_foreign_yaml_blocks_parse() {
        let mut mistakes = Vec::new();
        for page in pages() {
            for block in &page.blocks {
                let mistake = match block.language.as_str() {
                    "json" => {
                        serde_json::from_str::<Value>(&block.text).err().map(|e| e.to_string())
                    }
                    "toml" => toml_mistake(block),
                    "yaml" if completed(&block.text).is_none() => {
                        python("import sys, yaml; yaml.safe_load(sys.stdin)", &block.text).err()
                    }
                    _ => None,
                };
                mistakes.extend(mistake.map(|text| format!("{}: {text}", page.at(block.line))));
            }
        }
        report(&mistakes);
    }

    /// Runs a line of Python of the environment that `./test` makes, with a text to read.
    fn python(line: &str, text: &str) -> Result<(), String> {
        let mut python = Command::new(venv().join("bin/python"));
        python.args(["-c", line]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut python = python.spawn().map_err(|e| format!("no .venv; ./test makes it: {e}"))?;
        python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let ended = python.wait_with_output().unwrap();
        let error = || String::from_utf8_lossy(&ended.stderr).into();
        if ended.status.success() { Ok(()) } else { Err(error()) }
    }

    /// Python reads TOML; each crate of ours must have the features that the block asks of it.
    fn toml_mistake(block: &Block) -> Option<String> {
        let parsed = python("import sys, tomllib; tomllib.loads(sys.stdin.read())", &block.text);
        if let Err(error) = parsed {
            return Some(error);
        }
        let dependency = Regex::new(r"(?m)^(tollgate[a-z-]*) = .*features = \[([^\]]*)\]").unwrap();
        dependency.captures_iter(&block.text).find_map(|found| {
            let manifest = root().join("crates").join(&found[1]).join("Cargo.toml");
            let manifest = fs::read_to_string(manifest).unwrap();
            let features = found[2].split(',').map(|name| name.trim().trim_matches('"').to_owned());
            let mut missing = features.filter(|name| !manifest.contains(&format!("\n{name} = [")));
            missing.next().map(|name| format!("{} has no feature {name}", &found[1]))
        })
    }
}
