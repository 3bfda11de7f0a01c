//! The dashboard in a real browser: `dashboard/scenarios.mjs` drives Chromium against `tollgate serve`.

use std::{path::PathBuf, process::Command};

/// Runs a scenario, which starts the service itself, because one of them starts it twice.
fn run(scenario: &str) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let npm =
        std::env::var_os("TOLLGATE_NPM").map_or_else(|| root.join("target/npm"), PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let script = "tests/service/servers/dashboard/scenarios.mjs";
    let ran = Command::new("node")
        .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(script))
        .arg(scenario)
        .env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate"))
        .env("NPM", npm.canonicalize().expect("./test installs playwright-core into target/npm"))
        .env("FOLDER", folder.path())
        .output()
        .expect("./test installs node");
    let (out, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{scenario}: {out}{error}");
    assert_eq!(out, format!("{scenario}: ok\n"), "{error}");
}

#[test]
fn with_a_token_only_the_login_page_is_shown_and_wrong_tokens_are_slowed_down() {
    run("login");
}

#[test]
fn a_read_token_or_no_token_gives_a_page_without_actions() {
    run("readOnly");
}

#[test]
fn figures_move_under_load() {
    run("live");
}

#[test]
fn the_stream_and_the_session_survive_a_restart() {
    run("restart");
}

#[test]
fn a_reload_shows_in_open_pages_and_so_do_its_errors() {
    run("reload");
}

#[test]
fn a_blocked_key_is_denied_until_it_is_unblocked() {
    run("block");
}

#[test]
fn updates_leave_the_focus_a_selection_and_the_place_in_a_wide_table() {
    run("steady");
}

#[test]
fn the_least_busy_of_many_policies_shows_its_rate() {
    run("manyPolicies");
}

#[test]
fn a_page_of_another_origin_changes_nothing() {
    run("otherOrigin");
}

#[test]
fn hostile_keys_stay_text() {
    run("hostile");
}

#[test]
fn keyboard_tables_and_colour_schemes_work() {
    run("accessible");
}
