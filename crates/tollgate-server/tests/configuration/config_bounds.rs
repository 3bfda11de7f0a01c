//! No text makes the reader panic, take long, or take much memory.

use proptest::prelude::*;
use std::fmt::Write as _;
use tollgate_server::config::{Config, EXAMPLE, lint};

fn first_error(text: &str) -> String {
    Config::from_text("x", text).unwrap_err().errors()[0].text().to_owned()
}

#[test]
fn nesting_has_a_most() {
    let most = "lists and maps are nested deeper than 32 levels; use fewer";
    let block: String = (0..200).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(10_000), block] {
        assert!(first_error(&text).starts_with("error loading config file: "));
    }
    let deep = |depth: usize| format!("domain: d\nx: {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(first_error(&deep(40)).ends_with(most), "{}", first_error(&deep(40)));
    assert!(first_error(&deep(31)).starts_with("config error, unknown key 'x'"));
    // Aliases nest as deep as what they stand for.
    let mut text = "x0: &x0 []\n".to_owned();
    (1..40).for_each(|i| writeln!(text, "x{i}: &x{i} [*x{}]", i - 1).unwrap());
    assert!(first_error(&text).ends_with(most));
}

#[test]
fn aliases_cannot_multiply() {
    let mut nodes = "x0: &x0 [1, 2]\n".to_owned();
    (1..25).for_each(|i| {
        let before = format!("*x{}, ", i - 1).repeat(10);
        writeln!(nodes, "x{i}: &x{i} [{before}]").unwrap();
    });
    assert!(first_error(&nodes).ends_with("more than 1000000 values in one file; split it"));

    let text = format!("x: &x {}\ny: [{}]", "a".repeat(1 << 20), "*x, ".repeat(1000));
    assert!(first_error(&text).ends_with("aliases expand to more than 16 MiB of text; use fewer"));

    let merges = format!("x: &x {{a: 1}}\ny: {{b: 1, <<: [{}]}}", "*x, ".repeat(10_000));
    assert!(first_error(&merges).starts_with("config error, unknown key 'x'"));
}

#[test]
fn long_files_of_nonsense_are_done_with_quickly() {
    let lines = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<String>();
    let many = 1500;
    for text in [
        lines(many, |i| format!("wrong_key_{i}: 1\n")),
        lines(many, |_| "same: 1\n".to_owned()),
        format!("domain: d\ndescriptors:\n{}", lines(many, |i| format!("- {{kye: {i}}}\n"))),
        format!(
            "domain: d\ndescriptors:\n{}",
            lines(many, |_| "- {key: a, parents: [b], rate_limit: {}}\n".into())
        ),
        format!(
            "domain: d\ndescriptors:\n{}",
            lines(many, |i| format!("- {{key: a, value: {i}, store: s{i}}}\n"))
        ),
        format!(
            "stores:\n{}forward_auth:\n{}",
            lines(many, |i| format!("  a{i}:\n")),
            lines(many, |_| "- {path: /a, domain: x}\n".into())
        ),
    ] {
        let errors = Config::from_text("x", &text).unwrap_err();
        assert!(errors.left_out() >= 100);
    }
}

#[test]
fn large_files_that_are_right_load() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for i in 0..2000 {
        writeln!(
            text,
            "- {{key: tenant, value: t{i}, rate_limit: {{quota: {}/s, name: n{i}}}}}",
            i + 1
        )
        .unwrap();
    }
    let config = Config::from_text("x", &text).unwrap();
    assert_eq!(config.domains[0].descriptors.len(), 2000);
    assert_eq!(lint(&config), []);
}

/// Pieces that files are made of, and some that they are not.
const PIECES: [&str; 48] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "rate_limits",
    "unit",
    "minute",
    "requests_per_unit",
    "overrides",
    "values",
    "parents",
    "regex",
    "cidr",
    "ban",
    "after",
    "within",
    "for",
    "server",
    "http",
    "stores",
    "memory",
    "forward_auth",
    "path",
    "from",
    "quota",
    "per",
    ": ",
    ":\n  ",
    "\n",
    "\n- ",
    "\n    ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "<<",
    "\"",
    "'",
    "10.0.0.0/8",
    "5m",
    "100/s",
    "*",
    "(",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(errors) = Config::from_text("x", &text) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    #[test]
    fn no_heap_of_pieces_panics(pieces in proptest::collection::vec(0..PIECES.len(), 0..60)) {
        let text: String = pieces.into_iter().map(|index| PIECES[index]).collect();
        match Config::from_text("x", &text) {
            Ok(config) => drop(lint(&config)),
            Err(errors) => prop_assert!(!errors.to_string().is_empty()),
        }
    }

    #[test]
    fn no_change_of_the_example_panics(
        at in 0..EXAMPLE.len(), length in 0..20_usize, piece in 0..PIECES.len(),
    ) {
        prop_assume!(EXAMPLE.is_char_boundary(at));
        let end = (at + length).min(EXAMPLE.len());
        prop_assume!(EXAMPLE.is_char_boundary(end));
        let text = format!("{}{}{}", &EXAMPLE[..at], PIECES[piece], &EXAMPLE[end..]);
        match Config::from_text("x", &text) {
            Ok(config) => drop(lint(&config)),
            Err(errors) => prop_assert!(!errors.to_string().is_empty()),
        }
    }
}
