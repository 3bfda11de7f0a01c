//! Settings that load, but may be mistakes.

use std::collections::BTreeSet;
use tollgate_server::config::{Config, LINTS, lint};

/// Returns the lints of a domain with these descriptors, one per line.
fn lints(rows: &[&str]) -> Vec<(u32, &'static str)> {
    let rows: String = rows.iter().map(|row| format!("- {{{row}}}\n")).collect();
    lints_of(&format!("domain: d\ndescriptors:\n{rows}"))
}

fn lints_of(text: &str) -> Vec<(u32, &'static str)> {
    let config = Config::from_text("x", text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    lint(&config).into_iter().map(|lint| (lint.place.line, lint.name)).collect()
}

/// Descriptors, and the lint that each line gets: lines count from 3.
type Row = (&'static [&'static str], &'static [(u32, &'static str)]);

const ROWS: &[Row] = &[
    // Values match first, then patterns in the order of the file, then the key alone.
    (&["key: k, value: 'a*'", "key: k, value: 'ab*'"], &[(4, "never-matched")]),
    (&["key: k, value: 'ab*'", "key: k, value: 'a*'"], &[]),
    (&["key: k, value: 'a*'", "key: k, value: 'abc'"], &[]),
    (&["key: k, value: 'a*'", "key: l, value: 'ab*'"], &[]),
    (&["key: k, value: 'a*'", "key: k"], &[]),
    (&["key: k", "key: k, regex: ^.*$"], &[(3, "never-matched")]),
    (
        &["key: k, cidr: 10.0.0.0/8", "key: k, cidr: [10.1.0.0/16, 10.2.0.0/16]"],
        &[(4, "never-matched")],
    ),
    (&["key: k, cidr: 10.1.0.0/16", "key: k, cidr: 10.0.0.0/8"], &[]),
    (&["key: k, value: '*'"], &[(3, "match-all")]),
    (&["key: k, value: '*', share_threshold: true"], &[]),
    (&["key: k, regex: '^a'", "key: k, regex: '^b$'"], &[(3, "unanchored-regex")]),
    (&["key: user_agent, rate_limit: {quota: 1/s}"], &[(3, "client-chosen-key")]),
    (
        &["key: user, rate_limit: {quota: 1/s}", "key: path, value: /, rate_limit: {quota: 1/s}"],
        &[],
    ),
    (&["key: k, rate_limit: {unit: day, requests_per_unit: 0}"], &[(3, "refuses-all")]),
    (&["key: k, rate_limit: {quota: 100/s burst 1, algorithm: gcra}"], &[(3, "tiny-burst")]),
    (&["key: k, rate_limit: {quota: 1/s burst 1, algorithm: gcra}"], &[]),
    (&["key: k, rate_limit: {quota: 5 per 100us}"], &[(3, "short-window")]),
    (&["key: k, rate_limit: {quota: 1M/day}"], &[(3, "double-at-border")]),
    (&["key: k, rate_limit: {quota: 1M/day, algorithm: gcra}"], &[]),
    (&["key: k, rate_limit: {quota: 100/day}"], &[]),
    (
        &[
            "key: k, rate_limit: {unlimited: true}, descriptors: [{key: l, rate_limit: {quota: 1/s}}]",
        ],
        &[(3, "below-unlimited")],
    ),
    (&["key: k, rate_limit: {quota: 1/s, replaces: [{name: nobody}]}"], &[(3, "unknown-replaced")]),
    (&["key: k, shadow_mode: true"], &[(3, "shadow-mode")]),
    (&["key: k, enforce: 25%, rate_limit: {quota: 1/s}"], &[(3, "partly-enforced")]),
    (
        &["key: k, value_to_metric: true", "key: l, detailed_metric: true"],
        &[(3, "no-metric-label"), (4, "no-metric-label")],
    ),
];

#[test]
fn each_risky_setting_is_told_and_its_neighbours_are_not() {
    for (rows, expected) in ROWS {
        assert_eq!(lints(rows), *expected, "{rows:?}");
    }
}

#[test]
fn risky_defaults_are_told_at_the_domain() {
    let text = "domain: d\ndefaults: {shadow_mode: true, failure: deny, count_refused: true}";
    let expected = [(1, "shadow-mode"), (1, "deny-on-failure"), (1, "counts-refused")];
    assert_eq!(lints_of(text), expected);
    let rule = "domain: d\ndescriptors:\n- {key: a, count_refused: true, rate_limit: {quota: 1/s}}";
    assert_eq!(lints_of(rule), [(3, "counts-refused")]);
}

#[test]
fn a_bound_quiets_the_lint_of_keys_that_clients_choose() {
    let rule = "domain: d\ndescriptors: [{key: path, rate_limit: {quota: 1/s}}]\n";
    assert_eq!(lints_of(rule), [(2, "client-chosen-key")]);
    assert_eq!(lints_of(&format!("{rule}server: {{memory: {{max_keys: 9}}}}")), []);
    assert_eq!(lints_of(&format!("{rule}server: {{memory: {{bounded: 9}}}}")), []);
    let named = rule.replace("key: path", "key: path, store: s");
    assert_eq!(lints_of(&format!("{named}stores: {{s: {{}}}}")), [(2, "client-chosen-key")]);
    assert_eq!(lints_of(&format!("{named}stores: {{s: {{memory: {{bounded: 9}}}}}}")), []);
}

#[test]
fn settings_that_mean_nothing_for_a_store_are_told() {
    let rule = |more: &str| {
        format!(
            "domain: d\ndescriptors: [{{key: k, store: s, {more} rate_limit: {{quota: 1/s}}}}]\n"
        )
    };
    let far = "url: redis://127.0.0.1:1";
    // the rule's settings apart from its limit, the store, the lints
    for (more, store, expected) in [
        ("", "{}", &[][..]),
        ("", "redis://127.0.0.1:1", &[]),
        ("", &format!("{{{far}, redis: {{fleet_size: 3}}}}"), &[]),
        ("", &format!("{{{far}, memory: {{bounded: 9}}}}"), &[(3, "unused-store-setting")]),
        (
            "",
            &format!("{{{far}, snapshot: {{path: x, every: 1s}}}}"),
            &[(3, "unused-store-setting")],
        ),
        ("", "{redis: {fleet_size: 3}}", &[(3, "unused-store-setting")]),
        ("failure: local,", "{}", &[(2, "no-shared-store")]),
        ("lease: auto,", "memory", &[(2, "no-shared-store")]),
        ("lease: {sync: 1s}, failure: local,", &format!("{{{far}}}"), &[]),
    ] {
        let text = format!("{}stores: {{s: {store}}}", rule(more));
        assert_eq!(lints_of(&text), expected, "{text}");
    }
    // A flag may set the default store, unless the file does.
    let text = rule("lease: auto,").replace("store: s, ", "");
    assert_eq!(lints_of(&text), []);
    assert_eq!(lints_of(&format!("{text}server: {{store: memory}}")), [(2, "no-shared-store")]);
    // Keys expire by themselves there, and the memory is not in this process.
    let text = rule("").replace("key: k", "key: path");
    assert_eq!(lints_of(&format!("{text}stores: {{s: redis://127.0.0.1:1}}")), []);
}

#[test]
fn negative_hits_that_everybody_may_send_are_told() {
    let tokens =
        |listeners| format!("tokens: [{{file: t, listeners: {listeners}, permissions: [check]}}]");
    for (server, is_told) in [
        ("".to_owned(), false),
        ("negative_hits: false".to_owned(), false),
        ("negative_hits: true".to_owned(), true),
        ("negative_hits: true, http: off, grpc: off".to_owned(), false),
        ("negative_hits: true, http_token_file: t".to_owned(), true),
        ("negative_hits: true, http_token_file: t, grpc: off".to_owned(), false),
        (format!("negative_hits: true, {}", tokens("[http]")), true),
        (format!("negative_hits: true, {}", tokens("[http, grpc]")), false),
    ] {
        let told = lints_of(&format!("domain: d\nserver: {{{server}}}"));
        let expected: &[_] = if is_told { &[(0, "open-negative-hits")] } else { &[] };
        assert_eq!(told, expected, "{server}");
    }
}

#[test]
fn every_lint_has_a_row_here() {
    let told: BTreeSet<&str> =
        ROWS.iter().flat_map(|(_, told)| told.iter().map(|(_, name)| *name)).collect();
    let others = [
        "deny-on-failure",
        "counts-refused",
        "unused-store-setting",
        "no-shared-store",
        "open-negative-hits",
    ];
    let all: BTreeSet<&str> = told.into_iter().chain(others).collect();
    assert_eq!(all, LINTS.into_iter().collect());
}

#[test]
fn a_lint_names_its_place_and_its_kind() {
    let config = Config::from_text("x.yaml", "domain: d\ndefaults: {shadow_mode: true}").unwrap();
    assert_eq!(
        lint(&config)[0].to_string(),
        "x.yaml:1:9: warning (shadow-mode): the whole domain is in shadow mode: nothing is ever \
         denied"
    );
}
