//! Configurations that do not load, and what is said about them.

mod adaptive;
mod judged;
mod warn;

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
shop.yaml:7:54: 'requests_per_unit' must be a whole number, not 'many'
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
    let text = "1:9 duplicate domain 'd' in config file; it is already defined in one:1:9: use \
                another name, or write 'merge: true' in both";
    assert_eq!(told(&twice), [text]);
}

#[test]
fn broken_yaml_is_told_where_it_breaks() {
    check(&[
        (
            "domain: d\ndomain: e\nmerge: no\nmerge: no",
            &[
                "2:1 the key 'domain' is already defined in line 1; remove one",
                "4:1 the key 'merge' is already defined in line 3; remove one",
            ],
        ),
        (
            "domain: d\n---\ndomain: e",
            &["2:1 error loading config file: a file can have only one document; move what \
                 follows '---' to a file of its own"],
        ),
        (
            "domain: !secret d",
            &["1:9 error loading config file: the tag '!secret' has no meaning here; remove it"],
        ),
        ("[a]: b", &["1:1 error loading config file: a list cannot be a key; use a string"]),
        (
            "a: &a {b: *a}",
            &["1:11 error loading config file: an alias refers to itself; remove it"],
        ),
        ("<<: 5\ndomain: d", &["1:5 '<<' must be a map or a list of maps"]),
        ("- domain: d", &["1:1 a file must be a map, not a list"]),
        ("just text", &["1:1 a file must be a map, not 'just text'"]),
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
fn settings_of_stores_have_their_own_rules() {
    check(&[
        (
            "domain: d\ndefaults: {lease: yes, store: [a]}",
            &[
                "2:19 'yes' is not a valid value of 'lease'; use one of off, auto",
                "2:31 'store' must be a string, not a list",
            ],
        ),
        ("domain: d\ndefaults: {lease: {sync: 0s}}", &["2:26 'sync' must be above zero"]),
        (
            "server: {store: disk, redis: {fleet_size: 0, prefix: 'a{b', deadline: 0s}}",
            &[
                "1:17 'store': \"disk\" is not a store; use memory, or an address that starts with \
                 redis://, rediss://, redis+sentinel://, redis+cluster:// or redis+unix://",
                "1:43 'fleet_size': \"0\" is not a number of processes; use auto, or a number of \
                 at least 1",
                "1:46 'prefix' must be a string without spaces, '{' and '}', for example prefix: \
                 tollgate",
                "1:71 'deadline' must be above zero",
            ],
        ),
        (
            "domain: d\ndefaults: {lease: {sync: 11s}}",
            &["2:20 'sync' of 11s is out of range; use 1ms to 10s, usually 100ms"],
        ),
    ]);
}

#[test]
fn values_have_types() {
    check(&[
        (
            "domain: [d]",
            &[
                "1:9 'domain' must be a string, not a list",
                "1:9 config file cannot have empty domain; add 'domain: NAME'",
            ],
        ),
        ("domain: d\ndescriptors: {key: a}", &["2:14 'descriptors' must be a list, not a map"]),
        ("domain: d\ndefaults: fast", &["2:11 defaults must be a map, not 'fast'"]),
        (
            "domain: d\ndefaults: {algorithm: gcr, failure: wait, shadow_mode: 'true'}",
            &[
                "2:23 'gcr' is not a valid value of 'algorithm'; did you mean 'gcra'?",
                "2:37 'wait' is not a valid value of 'failure'; use one of open, closed, local, \
                 allow, deny",
                "2:56 'shadow_mode' must be true or false, not 'true'",
            ],
        ),
        (
            "server: {workers: 1.5, top_keys: -1, denial_log: 010, max_connections: 1e30}",
            &[
                "1:19 'workers' must be a whole number, not '1.5': it has a fraction",
                "1:34 'top_keys' must be a whole number, not '-1': it is below zero",
                "1:50 'denial_log' must be a whole number, not '010': some parsers read a leading \
                 zero as octal; remove the zero",
                "1:72 'max_connections' must be a whole number, not '1e30': it is too large",
            ],
        ),
        (
            "server: {idle_timeout: 30, watch_interval: never, snapshot: {path: a}}",
            &[
                "1:24 'idle_timeout': '30' has no unit; write 30s, 30m or 30ms",
                "1:44 'watch_interval': 'never' is not a duration; write for example 500ms, 30s, \
                 5m, 2h, 7d",
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
            "server: {request_timeout: 0s, connection_memory_bytes: 4_194_303}",
            &[
                "1:27 'request_timeout' must be above zero",
                "1:31 'connection_memory_bytes' is 4194303; it must be at least 4194304",
            ],
        ),
        (
            "server: {memory: {bounded: 5, max_keys: 5}}\nstores: {default: {}, a: {kind: redis}}",
            &[
                "1:31 bounded and max_keys exclude each other: a bounded table has a fixed size; \
                 remove one of them",
                "2:10 the store 'default' is set by 'server'; give this one another name",
                "2:27 config error, unknown key 'kind'; a store has url, redis, memory, snapshot",
            ],
        ),
        ("stores: [a]", &["1:9 'stores' must map names to stores, not a list"]),
    ]);
}

#[test]
fn bounds_of_reservations_do_not_contradict_each_other() {
    check(&[
        (
            "server: {memory: {max_reservations: 7, max_reservations_per_policy: 8, max_reservations_per_key: 9}}",
            &[
                "1:40 'max_reservations_per_policy' is 8, above 'max_reservations', which is 7; \
                 lower the first or raise the second",
                "1:72 'max_reservations_per_key' is 9, above 'max_reservations_per_policy', which \
                 is 8; lower the first or raise the second",
            ],
        ),
        (
            "server: {memory: {max_reservations_per_key: 100000}}\nstores: {a: {memory: {max_reservations: 0}}}",
            &[
                "1:19 'max_reservations_per_key' is 100000, above 'max_reservations_per_policy', \
                 which is 65536; lower the first or raise the second",
                "2:23 'max_reservations' must be at least 1",
            ],
        ),
    ]);
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

#[test]
fn a_mistake_that_aliases_repeat_is_told_once() {
    let text = "domain: d\ndescriptors:\n- {key: a, rate_limit: &l {unit: never, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: *l}";
    assert_eq!(told(&[("x", text)]).len(), 1);
}
