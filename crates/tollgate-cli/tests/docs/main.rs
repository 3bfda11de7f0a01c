//! The documentation is right: links have targets, paths and tests exist, configurations load, keys
//! and flags are known, and the commands of each page run unchanged.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod configuration;
mod links;
mod markdown;
mod packages;
mod recorded;
#[cfg(feature = "test-servers")]
mod servers {
    mod session;
}

use markdown::Page;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All pages: those at the root, below `docs` and below `examples`.
fn pages() -> Vec<Page> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(Into::into).into();
    let folders = ["docs", "examples"];
    paths.extend(files().into_iter().filter(|path| folders.iter().any(|f| path.starts_with(f))));
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    paths.into_iter().map(|path| Page::read(&root(), path)).collect()
}

/// The files of the repository, without what builds leave behind, relative to its root.
fn files() -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with('.') || name == "target" {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(&root).unwrap().into());
            }
        }
    }
    found.sort();
    found
}

/// The Python environment of `./test`.
#[cfg(feature = "test-servers")]
fn venv() -> PathBuf {
    std::env::var_os("TOLLGATE_VENV").map_or_else(|| root().join(".venv"), PathBuf::from)
}

/// Fails with all mistakes at once, each with its page and line.
fn report(mistakes: &[String]) {
    assert!(mistakes.is_empty(), "mistakes ({}):\n{}", mistakes.len(), mistakes.join("\n"));
}
