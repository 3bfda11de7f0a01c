//! Configurations that do not load, and what is said about them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tollgate_server::config::Config;

/// Returns `line:column text` of each error.
fn told(texts: &[(&str, &str)]) -> Vec<String> {
    let errors = Config::from_texts(texts).unwrap_err();
    let told = |error: &tollgate_server::config::ConfigError| {
        let place = error.place();
        format!("{}:{} {}", place.line, place.column, error.text())
    };
    errors.errors().iter().map(told).collect()
}

fn check(rows: &[(&str, &[&str])]) {
    for (text, errors) in rows {
        assert_eq!(told(&[("x", text)]), *errors, "{text}");
    }
}

/// A domain with one descriptor of these keys.
fn one(keys: &str) -> String {
    format!("domain: d\ndescriptors:\n- {{key: k, {keys}}}")
}

fn check_one(rows: &[(&str, &[&str])]) {
    for (keys, errors) in rows {
        assert_eq!(told(&[("x", &one(keys))]), *errors, "{keys}");
    }
}

#[test]
fn all_errors_are_told_at_once_with_their_lines() {
    let text = "domain: shop
descriptors:
  - key: user
    ratelimit:
      unit: minute
  - key: ip
    rate_limit: {unit: fortnight, requests_per_unit: many}
";
    let errors = Config::from_text("shop.yaml", text).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "\
shop.yaml:4:5: config error, unknown key 'ratelimit'; did you mean 'rate_limit'?
  |
4 |     ratelimit:
  |     ^^^^^^^^^
shop.yaml:7:24: invalid rate limit unit 'fortnight'; use one of second, minute, hour, day, week, month, year
  |
7 |     rate_limit: {unit: fortnight, requests_per_unit: many}
  |                        ^^^^^^^^^
shop.yaml:7:54: 'requests_per_unit' is a whole number, not 'many'
  |
7 |     rate_limit: {unit: fortnight, requests_per_unit: many}
  |                                                      ^^^^"
    );
}

#[test]
fn errors_of_the_reference_keep_their_words() {
    check(&[
        ("", &["0:0 config file cannot have empty domain; the file is empty"]),
        ("# nothing", &["0:0 config file cannot have empty domain; the file is empty"]),
        ("domain: \"\"", &["1:9 config file cannot have empty domain; add 'domain: NAME'"]),
        ("descriptors: []", &["1:1 config file cannot have empty domain; add 'domain: NAME'"]),
        ("{}", &["1:1 config file cannot have empty domain; add 'domain: NAME'"]),
        (
            "domain: d\nratelimits: 3",
            &[
                "2:1 config error, unknown key 'ratelimits'; did you mean 'rate_limits', which belongs in a descriptor?",
            ],
        ),
        ("domain: d\n5: x", &["2:1 config error, key is not of type string: 5"]),
        (
            "domain: d\ndescriptors: [a, 7]",
            &[
                "2:15 config error, yaml file contains list of type other than map: 'a'",
                "2:18 config error, yaml file contains list of type other than map: '7'",
            ],
        ),
        (
            "domain: d\ndescriptors: [{value: v}]",
            &["2:15 descriptor has empty key; add 'key: NAME'"],
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: b}, {key: a, value: b}]",
            &["2:41 duplicate descriptor composite key 'd.a_b'; see x:2:21"],
        ),
        (
            "domain: d\ndescriptors: [{key: a, descriptors: [{key: b}, {key: b}]}]",
            &["2:54 duplicate descriptor composite key 'd.a.b'; see x:2:44"],
        ),
    ]);
    check_one(&[
        (
            "rate_limit: {unit: foo, requests_per_unit: 1}",
            &[
                "3:31 invalid rate limit unit 'foo'; use one of second, minute, hour, day, week, month, year",
            ],
        ),
        (
            "rate_limit: {unit: minutes, requests_per_unit: 1}",
            &["3:31 invalid rate limit unit 'minutes'; did you mean 'minute'?"],
        ),
        (
            "rate_limit: {requests_per_unit: 1}",
            &[
                "3:12 invalid rate limit unit ''; use one of second, minute, hour, day, week, month, year",
            ],
        ),
        (
            "rate_limit: {unlimited: true, unit: day}",
            &["3:42 should not specify rate limit unit when unlimited; remove one of them"],
        ),
        (
            "rate_limit: {quota: 1/s, replaces: [{name: ''}]}",
            &["3:48 should not have an empty replaces entry; add 'name: NAME'"],
        ),
        (
            "rate_limit: {quota: 1/s, name: n, replaces: [{name: n}]}",
            &["3:58 replaces should not contain name of same descriptor"],
        ),
    ]);
    let twice = [("one", "domain: d"), ("two", "domain: d")];
    let text = "1:9 duplicate domain 'd' in config file; it is in one:1:9 already: use another \
                name, or write 'merge: true' in both";
    assert_eq!(told(&twice), [text]);
}

#[test]
fn broken_yaml_is_told_where_it_breaks() {
    check(&[
        (
            "domain: d\ndomain: e\nmerge: no\nmerge: no",
            &[
                "2:1 the key 'domain' is in line 1 already",
                "4:1 the key 'merge' is in line 3 already",
            ],
        ),
        (
            "domain: d\n---\ndomain: e",
            &[
                "2:1 error loading config file: a file has one document; put what follows '---' into its own file",
            ],
        ),
        (
            "domain: !secret d",
            &["1:9 error loading config file: the tag '!secret' means nothing here; remove it"],
        ),
        ("[a]: b", &["1:1 error loading config file: a list cannot be a key; a key is a text"]),
        (
            "a: &a {b: *a}",
            &["1:11 error loading config file: an alias inside of what it stands for never ends"],
        ),
        ("<<: 5\ndomain: d", &["1:5 '<<' takes a map or a list of maps"]),
        ("- domain: d", &["1:1 a file is a map of keys, not a list"]),
        ("just text", &["1:1 a file is a map of keys, not 'just text'"]),
    ]);
    for (text, start) in [
        ("domain: [", "error loading config file: "),
        ("domain: \"d", "error loading config file: "),
        ("domain: d\n\tkey: x", "error loading config file: "),
        ("domain: *nobody", "error loading config file: "),
        ("a: %x: y\n  b", "error loading config file: "),
    ] {
        let errors = Config::from_text("x", text).unwrap_err();
        assert!(errors.errors()[0].text().starts_with(start), "{text}: {errors}");
    }
}

#[test]
fn values_have_types() {
    check(&[
        (
            "domain: [d]",
            &[
                "1:9 'domain' is a text, not a list",
                "1:9 config file cannot have empty domain; add 'domain: NAME'",
            ],
        ),
        ("domain: d\ndescriptors: {key: a}", &["2:14 'descriptors' is a list, not a map"]),
        ("domain: d\ndefaults: fast", &["2:11 defaults is a map of keys, not 'fast'"]),
        (
            "domain: d\ndefaults: {algorithm: gcr, failure: open, shadow_mode: 'true'}",
            &[
                "2:23 'gcr' is no algorithm; did you mean 'gcra'?",
                "2:37 'open' is no failure; use one of allow, deny",
                "2:56 'shadow_mode' is true or false, not 'true'",
            ],
        ),
        (
            "server: {workers: 1.5, top_keys: -1, denial_log: 010, max_connections: 1e30}",
            &[
                "1:19 'workers' is a whole number, not '1.5': it has a fraction",
                "1:34 'top_keys' is a whole number, not '-1': it is below zero",
                "1:50 'denial_log' is a whole number, not '010': a leading zero makes it octal for \
                 some readers; remove the zero",
                "1:72 'max_connections' is a whole number, not '1e30': it is too large",
            ],
        ),
        (
            "server: {idle_timeout: 30, watch_interval: never, snapshot: {path: a}}",
            &[
                "1:24 'idle_timeout': '30' has no unit; write 30s, 30m or 30ms",
                "1:44 'watch_interval': 'never' is no duration; write for example 500ms, 30s, 5m, 2h, 7d",
                "1:51 a snapshot needs 'every', for example every: 30s",
            ],
        ),
        (
            "server: {idle_timeout: 0s, memory: {bounded: 0}, tls: {key: k}, tls_of: {htttp: {}}}",
            &[
                "1:24 'idle_timeout' must be above zero",
                "1:37 'bounded' must be at least 1",
                "1:50 tls needs 'certificate', for example certificate: cert.pem",
                "1:74 config error, unknown key 'htttp'; did you mean 'http'?",
            ],
        ),
        (
            "server: {memory: {bounded: 5, max_keys: 5}}\nstores: {default: {}, a: {kind: redis}}",
            &[
                "1:31 bounded and max_keys exclude each other: a bounded table has a fixed size; \
                 remove one of them",
                "2:10 the store 'default' is set by 'server'; give this one another name",
                "2:27 config error, unknown key 'kind'; a store has memory, snapshot",
            ],
        ),
        ("stores: [a]", &["1:9 'stores' is a map of names to stores, not a list"]),
    ]);
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    check_one(&[
        (
            "rate_limit: {unit: day}",
            &[
                "3:12 a rate limit needs 'requests_per_unit'; 0 refuses everything, and 'unlimited: true' nothing",
            ],
        ),
        (
            "rate_limit: {unit: day, per: 1s, requests_per_unit: 1}",
            &["3:36 'unit' and 'per' exclude each other; keep one"],
        ),
        (
            "rate_limit: {unlimited: true, requests_per_unit: 1, burst: 2}",
            &[
                "3:42 'requests_per_unit' and 'unlimited' exclude each other; remove one of them",
                "3:64 'burst' and 'unlimited' exclude each other; remove one of them",
            ],
        ),
        (
            "rate_limit: {quota: 1/s, burst: 2}",
            &["3:37 'burst' and 'quota' exclude each other; remove one of them"],
        ),
        (
            "rate_limit: {quota: 10/fortnight}",
            &[
                "3:32 'quota': \"10/fortnight\" is not a quota: expected a unit: ns, us, ms, s, min, h, \
               day, week, month or year, found \"fortnight\"",
            ],
        ),
        (
            "rate_limit: {quota: 10/s initial empty}",
            &["3:25 'quota': a key that is not known starts full; remove 'initial'"],
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 5, burst: 9}",
            &[
                "3:12 burst 9 means nothing to a fixed-window, which admits its limit of 5 at once; \
               remove the burst, or use gcra (write 'algorithm: gcra'; this limit names none, so the \
               default is used)",
            ],
        ),
        (
            "rate_limit: {quota: 5/s burst 9, algorithm: sliding-log}",
            &["3:12 burst 9 means nothing to a sliding-log, which admits its limit of 5 at once; \
               remove the burst, or use gcra"],
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 4294967295}",
            &[
                "3:12 4294967295 permits per 1s is above 1000000000 per second; lower the count, or \
               count in larger units",
            ],
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 0, burst: 5, algorithm: gcra}",
            &["3:12 0 requests refuse everything, so a burst means nothing; remove it"],
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 9, burst: 0, algorithm: gcra}",
            &["3:12 burst 0 lets nothing pass; use at least 1, or 0 requests"],
        ),
        (
            "rate_limit: {per: 400d, requests_per_unit: 9}",
            &[
                "3:12 the period 34560000s is longer than 366 days; use a shorter period, or a rate of \
               zero with a burst for a budget that never refills",
            ],
        ),
        (
            "rate_limits: [{quota: 1/s, name: n}, {quota: 1/h, name: n, inherit: keep}]",
            &[
                "3:49 two limits of one descriptor are named 'n'",
                "3:80 'keep' is no inherit; use one of as-is, reset, proportional, additive",
            ],
        ),
    ]);
}

#[test]
fn descriptors_that_make_no_sense_are_refused() {
    check_one(&[
        ("value: a, regex: b", &["3:22 'value' and 'regex' exclude each other; keep one"]),
        ("regex: '(a'", &["3:19 '(a' is no regular expression: unclosed group"]),
        (
            "regex: '(\\w{90}){90}'",
            &[
                "3:19 '(\\w{90}){90}' is no regular expression: compiled regex exceeds size limit of 262144 bytes.",
            ],
        ),
        (
            "cidr: [10.1.2.3/8, local]",
            &[
                "3:19 '10.1.2.3/8' has address bits beyond its length; write 10.0.0.0/8",
                "3:31 'local' is no network; write for example 10.0.0.0/8",
            ],
        ),
        (
            "value: a, share_threshold: true",
            &[
                "3:9 share_threshold is for a 'value' with '*', a 'regex' or a 'cidr', whose matches \
               then share one count; remove it",
            ],
        ),
        (
            "enforce: 101%, rate_limit: {quota: 1/s}",
            &["3:21 'enforce' is a whole percentage from 0% to 100%, not '101%'"],
        ),
        ("enforce: 5", &["3:12 'enforce' needs a limit beside it; add 'rate_limit'"]),
        (
            "ban: {after: 0, within: 1m, for: 5m, most: 1m}, rate_limit: {quota: 1/s}",
            &[
                "3:18 'after' must be at least 1 refusal",
                "3:49 'most' must not be below 'for', the first ban",
            ],
        ),
        (
            "ban: {after: 5000000000}, rate_limit: {quota: 1/s}",
            &[
                "3:12 a ban needs 'within', for example within: 1m",
                "3:12 a ban needs 'for', for example for: 30s",
                "3:25 'after' of 5000000000 is too large",
            ],
        ),
        ("store: redis", &["3:9 there is no store 'redis'"]),
        (
            "unit: day",
            &[
                "3:12 config error, unknown key 'unit'; it belongs in a rate limit, and this is a descriptor",
            ],
        ),
    ]);
}

#[test]
fn patterns_that_say_the_same_are_duplicates() {
    for twin in ["value: 'a*'", "regex: a", "cidr: [10.0.0.0/8, 127.0.0.1]"] {
        let text = format!("domain: d\ndescriptors: [{{key: k, {twin}}}, {{key: k, {twin}}}]");
        let errors = told(&[("x", &text)]);
        assert!(errors[0].contains("duplicate descriptor composite key 'd.k_"), "{errors:?}");
    }
}

#[test]
fn overrides_need_something_to_override() {
    check_one(&[
        (
            "overrides: [{value: a, requests_per_unit: 1}]",
            &[
                "3:12 'overrides' need one limit beside them that is not unlimited: it says in which \
               time their numbers are",
            ],
        ),
        (
            "value: v, rate_limit: {quota: 1/s}, overrides: [{value: a, requests_per_unit: 1}]",
            &[
                "3:60 an override needs a descriptor that counts several values apart; this one has \
               only one count",
            ],
        ),
        (
            "value: 'a*', rate_limit: {quota: 1/s}, overrides: [{values: [ab, b, ab], unlimited: true}]",
            &[
                "3:63 'b' is no value that this descriptor matches",
                "3:63 'ab' has an override already",
            ],
        ),
        (
            "rate_limit: {quota: 1/s}, overrides: [{requests_per_unit: 2, burst: 3}, {value: a}]",
            &[
                "3:50 an override needs 'value' or 'values'",
                "3:50 burst 3 means nothing to a fixed-window, which admits its limit of 2 at once; \
                 remove the burst, or use gcra (write 'algorithm: gcra'; this limit names none, so \
                 the default is used)",
                "3:84 an override needs 'requests_per_unit', for example requests_per_unit: 100",
            ],
        ),
    ]);
}

#[test]
fn parents_must_be_there_and_be_reachable() {
    let limit = |name: &str| format!("rate_limit: {{quota: 1/s, name: {name}}}");
    let (a, b) = (limit("a"), limit("b"));
    for (descriptors, error) in [
        (format!("- {{key: k, {a}, parents: [c]}}"), "there is no limit named 'c' in domain 'd'"),
        (format!("- {{key: k, {a}, parents: [a]}}"), "the limit 'a' cannot be its own parent"),
        (
            format!(
                "- {{key: k, value: 1, {a}, parents: [b]}}\n- {{key: k, value: 2, {b}, parents: [a]}}"
            ),
            "the parents of 'b' lead in a circle",
        ),
        (
            format!("- {{key: k, {a}, parents: [b]}}\n- {{key: t, {b}}}"),
            "the parent 'b' counts by 't', which is not on the path to this descriptor",
        ),
        (
            format!("- {{key: k, {a}, parents: [b]}}\n- {{key: t, {b}}}\n- {{key: u, {b}}}"),
            "2 limits are named 'b' in domain 'd'; a parent's name must be unique",
        ),
        (
            format!("- {{key: k, {a}, parents: [b, b]}}\n- {{key: t, value: x, {b}}}"),
            "the parent 'b' is there twice",
        ),
        (
            format!("- {{key: k, parents: [b]}}\n- {{key: t, value: x, {b}}}"),
            "'parents' needs a limit beside it; add 'rate_limit'",
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        let errors = told(&[("x", &text)]);
        assert!(errors[0].ends_with(error), "{descriptors}: {errors:?}");
    }
}

#[test]
fn chains_and_decisions_have_a_most() {
    let chain = |levels: usize| {
        let node = |i: usize| match i {
            0 => "- {key: k, value: v0, rate_limit: {quota: 1/s, name: n0}}\n".to_owned(),
            i => format!(
                "- {{key: k, value: v{i}, parents: n{}, rate_limit: {{quota: 1/s, name: n{i}}}}}\n",
                i - 1
            ),
        };
        format!("domain: d\ndescriptors:\n{}", (0..=levels).map(node).collect::<String>())
    };
    assert!(Config::from_text("x", &chain(8)).is_ok());
    assert_eq!(
        told(&[("x", &chain(9))]),
        ["12:9 the parent 'n8' has 8 levels above it; 8 levels are the most"]
    );

    let wide = |limits: usize| one(&format!("rate_limits: [{}]", "{quota: 1/s}, ".repeat(limits)));
    assert!(Config::from_text("x", &wide(64)).is_ok());
    assert_eq!(
        told(&[("x", &wide(65))]),
        ["3:9 more than 64 limits in one decision, parents included; remove some"]
    );
}

#[test]
fn forward_auth_must_lead_somewhere() {
    check(&[
        (
            "domain: shop\nforward_auth:\n- {path: auth, domain: sho, descriptors: [{key: a, from: ip}]}\n- {}",
            &[
                "3:10 the path 'auth' must start with '/'",
                "3:10 there is no domain 'sho'; did you mean 'shop'?",
                "3:58 'ip' is no from; use one of client-address, path, method, host",
                "4:3 a forward_auth needs 'path', for example path: /auth",
                "4:3 a forward_auth needs 'domain', for example domain: shop",
                "4:3 a forward_auth needs 'descriptors', for example descriptors: [[{key: ip, from: client-address}]]",
            ],
        ),
        (
            "domain: d\nforward_auth:\n- {path: /a, domain: d, descriptors: [{key: a}, [{value: b, from: host, key: x}]]}\n\
             - {path: /a, domain: d, trusted_hops: 300, descriptors: [[], [{key: a, value: b, default: c}]]}\n\
             - {path: /b, domain: d, descriptors: [{key: a, header: 'x y'}]}",
            &[
                "3:39 an entry needs to know where its value comes from: add 'header: NAME', 'value: TEXT' or 'from: client-address'",
                "3:61 'value' and 'from' exclude each other; keep one",
                "4:10 the path '/a' is in x:3:10 already",
                "4:39 'trusted_hops' of 300 is too large",
                "4:58 a descriptor needs an entry",
                "4:82 'default' means nothing beside 'value', which is always there; remove it",
                "5:48 'x y' is no name of a header",
            ],
        ),
    ]);
}

#[test]
fn files_must_agree() {
    let merged = "domain: d\nmerge: true\ndefaults: {failure: deny}";
    assert_eq!(
        told(&[("one", merged), ("two", merged)]),
        ["3:1 only one of the files of a merged domain may have 'defaults'"]
    );
    let server = "server: {workers: 1}\nstores: {s: {}}";
    assert_eq!(
        told(&[("one", server), ("two", server)]),
        ["1:1 'server' is in one:1:1 already", "2:10 the store 's' is in one:2:10 already"]
    );
    // What a file that is broken would say cannot be missed.
    let errors = told(&[("one", "stores: ["), ("two", &one("store: s, rate_limit: {quota: 1/s}"))]);
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn at_most_fifty_errors_are_told_and_the_rest_counted() {
    let text: String = (0..80).map(|i| format!("wrong{i}: 1\n")).collect();
    let errors = Config::from_text("x", &format!("domain: d\n{text}")).unwrap_err();
    assert_eq!((errors.errors().len(), errors.left_out()), (50, 30));
    assert!(errors.to_string().ends_with("and 30 more errors"));
}

#[test]
fn a_long_line_is_shown_around_the_place() {
    let text =
        format!("domain: d\ndescriptors: [{}{{kye: a}}]", "{key: a, value: \u{7}x}, ".repeat(9));
    let errors = Config::from_text("x", &text).unwrap_err().to_string();
    let shown = errors.lines().filter(|line| line.starts_with("2 |")).collect::<Vec<_>>();
    assert!(shown.iter().all(|line| line.chars().count() < 110), "{errors}");
    assert!(!errors.contains('\u{7}'));
}
