//! Every target in a page exists: links with their anchors, files, tests, and the code blocks that
//! the compiler must see.

use super::{files, markdown, pages, report, root};
use markdown::{codes, without_codes};
use regex::Regex;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Kinds of files that are always files of the repository when a page names one.
const OURS: [&str; 4] = [".rs", ".lua", ".md", ".proto"];
/// Folders at the root: a path that starts with one is a path of the repository.
const FOLDERS: [&str; 7] = ["crates/", "docs/", "examples/", "fuzz/", "rig/", "bench/", "tests/"];

#[test]
fn every_link_and_anchor_exists() {
    let pages = pages();
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut mistakes = Vec::new();
    for page in &pages {
        for (line, text) in &page.prose {
            let text = without_codes(text);
            for target in link.captures_iter(&text).map(|found| found[1].to_owned()) {
                if target.contains("://") {
                    continue;
                }
                let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
                let path =
                    if file.is_empty() { page.path.clone() } else { beside(&page.path, file) };
                let there = pages.iter().find(|page| page.path == path);
                let is_good = match there {
                    Some(there) => anchor.is_empty() || there.anchors.iter().any(|a| a == anchor),
                    None => anchor.is_empty() && root().join(&path).exists(),
                };
                if !is_good {
                    mistakes.push(format!("{}: the link {target} leads nowhere", page.at(*line)));
                }
            }
        }
    }
    report(&mistakes);
}

/// Resolves a link against the page that has it.
fn beside(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap().to_path_buf();
    for part in link.split('/') {
        match part {
            ".." => _ = path.pop(),
            "." => {}
            part => path.push(part),
        }
    }
    path
}

/// A page may leave out the first folders of a path. Below a heading of a table that names a
/// folder, the path must be in that folder.
#[test]
fn every_file_named_exists() {
    let files = files();
    let mut mistakes = Vec::new();
    for page in pages() {
        let mut below = None;
        for (number, (line, text)) in page.prose.iter().enumerate() {
            let next = page.prose.get(number + 1).map_or("", |(_, text)| text.as_str());
            if next.starts_with("|---") || !text.starts_with('|') {
                below = header_folder(text).filter(|_| text.starts_with('|'));
            }
            for code in codes(text) {
                let name = code.text.trim_end_matches('/');
                let is_whole = name.starts_with("crates/");
                let below = below.as_deref().filter(|_| !is_whole);
                if name.starts_with("tests/") {
                    mistakes.push(format!("{}: {name} does not say which crate", page.at(*line)));
                }
                if is_path(code.text) && find(&files, name, below).is_empty() {
                    let within = below.unwrap_or("the repository");
                    mistakes.push(format!("{}: no {name} in {within}", page.at(*line)));
                }
            }
        }
    }
    report(&mistakes);
}

/// The folder that the heading of a table gives for its paths: `` | question | file in `src` | ``.
fn header_folder(header: &str) -> Option<String> {
    let code = codes(header).into_iter().find(|code| code.before.ends_with("file in "))?;
    Some(code.text.to_owned())
}

fn is_path(code: &str) -> bool {
    let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{},*".contains(c));
    let of_ours = OURS.iter().any(|kind| code.ends_with(kind) && code.len() > kind.len());
    plain && (of_ours || FOLDERS.iter().any(|folder| code.starts_with(folder)))
}

/// The files that a name stands for: those whose path ends with it, and all files of a folder whose
/// path does. `{a,b}` stands for both, all of which must exist, and `*` for any characters.
fn find(files: &[PathBuf], name: &str, below: Option<&str>) -> Vec<PathBuf> {
    if let Some((head, rest)) = name.split_once('{') {
        let (choices, tail) = rest.split_once('}').unwrap();
        let each = choices.split(',').map(|one| find(files, &format!("{head}{one}{tail}"), below));
        let each: Vec<_> = each.collect();
        return if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() };
    }
    let name = regex::escape(name).replace(r"\*", "[^/]*");
    let name = Regex::new(&format!("(^|/){name}(/|$)")).unwrap();
    let is_below = |file: &&PathBuf| below.is_none_or(|folder| file.starts_with(folder));
    let is_named = |file: &&PathBuf| name.is_match(file.to_str().unwrap());
    files.iter().filter(is_below).filter(is_named).cloned().collect()
}

/// A page names tests as `` `file.rs`: `first_test`, `second_test` ``.
#[test]
fn every_test_named_exists() {
    let (all, mut mistakes) = (files(), Vec::new());
    let test = Regex::new("^[a-z][a-z0-9]*(_[a-z0-9]+)+$").unwrap();
    for page in pages() {
        let mut in_threats = false;
        for (line, text) in &page.prose {
            let mut named: Vec<PathBuf> = Vec::new();
            let mut has_test = false;
            for code in codes(text) {
                if is_path(code.text) || code.text.ends_with('/') {
                    if code.before.trim() != "and" {
                        named.clear();
                    }
                    named.extend(find(&all, code.text.trim_end_matches('/'), None));
                    has_test |= !named.is_empty();
                } else if !named.is_empty()
                    && test.is_match(code.text)
                    && [": ", ", ", " and "].contains(&code.before.replace('\n', " ").as_str())
                {
                    let function = format!("fn {}(", code.text);
                    if !named.iter().any(|file| with_modules(&all, file).contains(&function)) {
                        mistakes.push(format!("{}: no test {}", page.at(*line), code.text));
                    }
                } else {
                    named.clear();
                }
            }
            if in_threats && text.starts_with("| ") && !has_test {
                mistakes.push(format!("{}: a threat without a test", page.at(*line)));
            }
            in_threats = text.starts_with("| threat |") || in_threats && text.starts_with('|');
        }
    }
    report(&mistakes);
}

/// The text of a file and of its modules.
fn with_modules(all: &[PathBuf], file: &Path) -> String {
    let read =
        |file: &Path| String::from_utf8_lossy(&fs::read(root().join(file)).unwrap()).into_owned();
    let mut text = read(file);
    let module = Regex::new(r#"(?m)^mod (\w+);|^#\[path = "(?:\.\./)*(.*)"\]"#).unwrap();
    let ends = module.captures_iter(&text).flat_map(|found| match found.get(1) {
        Some(name) => vec![format!("{}.rs", name.as_str()), format!("{}/mod.rs", name.as_str())],
        None => vec![found[2].to_owned()],
    });
    let ends: Vec<String> = ends.collect();
    let below = all.iter().filter(|other| other.starts_with(file.parent().unwrap()));
    for other in below.filter(|other| ends.iter().any(|end| other.ends_with(end))) {
        text += &read(other);
    }
    text
}

/// Doc tests compile the code of a page if a crate includes the page.
#[test]
fn every_page_with_rust_code_is_compiled() {
    let all = files();
    let sources = all.iter().filter(|file| {
        file.starts_with("crates") && file.extension().is_some_and(|kind| kind == "rs")
    });
    let sources: String =
        sources.map(|file| fs::read_to_string(root().join(file)).unwrap()).collect();
    let mut mistakes = Vec::new();
    for page in pages() {
        let rust = page.blocks.iter().filter(|block| block.language.starts_with("rust"));
        for block in rust {
            let included = format!("#[doc = include_str!(\"../../../{}\")]", page.name());
            if !sources.contains(&included) || block.language.contains("ignore") {
                mistakes.push(format!("{}: no doc test compiles this", page.at(block.line)));
            }
        }
    }
    report(&mistakes);
}
