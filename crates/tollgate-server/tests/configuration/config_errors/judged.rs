//! Configurations that are valid YAML but make no sense.

use super::{check, check_one, one, told};
use tollgate_server::config::Config;

#[test]
fn limits_that_make_no_sense_are_refused() {
    check_one(&[
        (
            "rate_limit: {unit: day}",
            &["3:12 a rate limit needs 'requests_per_unit'; 0 denies everything, and 'unlimited: \
               true' denies nothing"],
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
            &["3:25 'quota': a new key always starts full; remove 'initial'"],
        ),
    ]);
}

#[test]
fn concurrency_limits_that_make_no_sense_are_refused() {
    check_one(&[
        (
            "concurrency: {lease: 30s}",
            &["3:12 a concurrency limit needs 'limit', for example limit: 10"],
        ),
        (
            "concurrency: {limit: 0}",
            &["3:26 'limit' is 0; a concurrency limit must be from 1 to 1000000"],
        ),
        (
            "concurrency: {limit: 1000001}",
            &["3:26 'limit' is 1000001; a concurrency limit must be from 1 to 1000000"],
        ),
        ("concurrency: {limit: ten}", &["3:33 'limit' must be a whole number, not 'ten'"]),
        (
            "concurrency: {limit: 5, lease: 99ms}",
            &["3:36 'lease' of 99ms is out of range; use 100ms to 24h, usually the longest time \
               between two renewals"],
        ),
        (
            "concurrency: {limit: 5, leese: 30s}",
            &["3:36 config error, unknown key 'leese'; did you mean 'lease'?"],
        ),
        (
            "concurency: {limit: 5}",
            &["3:12 config error, unknown key 'concurency'; did you mean 'concurrency'?"],
        ),
        ("concurrency: 5", &["3:25 a concurrency limit must be a map, not '5'"]),
        (
            "concurrency: {limit: 5}, ban: {after: 1, within: 1s, for: 1s}",
            &["3:37 'ban' needs a limit; add 'rate_limit'"],
        ),
        (
            "concurrency: {limit: 5, name: a}, rate_limit: {name: a, unit: day, requests_per_unit: 1}",
            &["3:12 two limits of one descriptor are named 'a'; rename one"],
        ),
    ]);
    let text = "domain: d\ndescriptors:\n- {key: k, concurrency: {limit: 2, name: slots}}
- {key: j, parents: [slots], rate_limit: {unit: day, requests_per_unit: 1}}";
    let errors = told(&[("x", text)]);
    assert_eq!(errors.len(), 1, "a concurrency limit is nobody's parent: {errors:?}");
}

#[test]
fn limits_that_cannot_be_counted_are_refused() {
    check_one(&[
        (
            "rate_limit: {unit: second, requests_per_unit: 5, burst: 9}",
            &["3:12 burst 9 has no effect with fixed-window, which admits its limit of 5 at \
                 once; remove the burst, or use gcra (write 'algorithm: gcra'; this limit names no \
                 algorithm, so the default applies)"],
        ),
        (
            "rate_limit: {quota: 5/s burst 9, algorithm: sliding-log}",
            &["3:12 burst 9 has no effect with sliding-log, which admits its limit of 5 at once; \
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
            &["3:12 0 requests deny everything, so a burst has no effect; remove it"],
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 9, burst: 0, algorithm: gcra}",
            &["3:12 burst 0 denies everything; use at least 1, or set requests_per_unit to 0"],
        ),
        (
            "rate_limit: {per: 400d, requests_per_unit: 9}",
            &[
                "3:12 the period 34560000s is longer than 366 days; use a shorter period, or a rate of \
               zero with a burst for a budget that never refills",
            ],
        ),
        (
            "rate_limit: {quota: 1/h, inherit: additive}",
            &[
                "3:37 config error, unknown key 'inherit'; a rate limit has unit, requests_per_unit, \
               unlimited, name, replaces, per, burst, quota, algorithm, warn",
            ],
        ),
        (
            "rate_limits: [{quota: 1/s, name: n}, {quota: 1/h, name: n}]",
            &["3:49 two limits of one descriptor are named 'n'; rename one"],
        ),
    ]);
}

#[test]
fn descriptors_that_make_no_sense_are_refused() {
    check_one(&[
        ("value: a, regex: b", &["3:22 'value' and 'regex' exclude each other; keep one"]),
        ("regex: '(a'", &["3:19 '(a' is not a regular expression: unclosed group"]),
        (
            "regex: '(\\w{90}){90}'",
            &[
                "3:19 '(\\w{90}){90}' is not a regular expression: compiled regex exceeds size limit \
               of 262144 bytes.",
            ],
        ),
        (
            "cidr: [10.1.2.3/8, local]",
            &[
                "3:19 '10.1.2.3/8' has address bits after its prefix; write 10.0.0.0/8",
                "3:31 'local' is not a network; write for example 10.0.0.0/8",
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
            &["3:21 'enforce' must be a whole percentage from 0% to 100%, not '101%'"],
        ),
        ("enforce: 5", &["3:12 'enforce' needs a limit; add 'rate_limit'"]),
        (
            "ban: {after: 0, within: 1m, for: 5m, most: 1m}, rate_limit: {quota: 1/s}",
            &[
                "3:18 'after' must be at least 1 denial",
                "3:49 'most' must not be shorter than 'for', the first ban",
            ],
        ),
        (
            "ban: {after: 5000000000}, rate_limit: {quota: 1/s}",
            &[
                "3:12 a ban needs 'within', for example within: 1m",
                "3:12 a ban needs 'for', for example for: 30s",
                "3:25 'after' is too large: 5000000000",
            ],
        ),
        ("store: redis", &["3:9 there is no store 'redis'"]),
        (
            "unit: day",
            &["3:12 config error, unknown key 'unit'; it belongs in a rate limit, but this is a \
               descriptor"],
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
    let alike = "domain: d\ndescriptors: [{key: a_b}, {key: a, value: b}, {key: a, regex: b}, \
                 {key: a, value: 'regex:b'}]";
    assert!(Config::from_text("x", alike).is_ok());
}

#[test]
fn overrides_need_something_to_override() {
    check_one(&[
        (
            "overrides: [{value: a, requests_per_unit: 1}]",
            &["3:12 'overrides' need exactly one limit that is not unlimited, which sets the \
               period of their numbers; add one"],
        ),
        (
            "value: v, rate_limit: {quota: 1/s}, overrides: [{value: a, requests_per_unit: 1}]",
            &[
                "3:60 an override needs a descriptor that counts each value separately; this one has \
               a single count",
            ],
        ),
        (
            "value: 'a*', rate_limit: {quota: 1/s}, overrides: [{values: [ab, b, ab], unlimited: true}]",
            &[
                "3:63 'b' is not matched by this descriptor; remove the override or correct the \
                 value",
                "3:63 'ab' already has an override; remove one",
            ],
        ),
        (
            "rate_limit: {quota: 1/s}, overrides: [{requests_per_unit: 2, burst: 3}, {value: a}]",
            &[
                "3:50 an override needs 'value' or 'values'",
                "3:50 burst 3 has no effect with fixed-window, which admits its limit of 2 at \
                 once; remove the burst, or use gcra (write 'algorithm: gcra'; this limit names no \
                 algorithm, so the default applies)",
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
            "the parents of 'b' form a cycle; remove one of them",
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
            "the parent 'b' is listed twice; remove one",
        ),
        (
            format!("- {{key: k, parents: [b]}}\n- {{key: t, value: x, {b}}}"),
            "'parents' needs a limit; add 'rate_limit'",
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
        ["12:9 the parent 'n8' has 8 levels above it; at most 8 are allowed"]
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
            "domain: shop\nforward_auth:\n- {path: /v1/check, domain: shop, descriptors: [{key: a, from: path}]}",
            &["3:10 the path '/v1/check' is used by the server itself; use another"],
        ),
        (
            "domain: shop\nforward_auth:\n- {path: auth, domain: sho, descriptors: [{key: a, from: ip}]}\n- {}",
            &[
                "3:10 the path 'auth' must start with '/'",
                "3:10 there is no domain 'sho'; did you mean 'shop'?",
                "3:58 'ip' is not a valid value of 'from'; use one of client-address, bearer, \
                 path, method, host",
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
                "3:39 an entry needs a source for its value: add 'header: NAME', 'value: TEXT' or \
                 'from: client-address'",
                "3:61 'value' and 'from' exclude each other; keep one",
                "4:10 the path '/a' is already defined in x:3:10; change or remove one",
                "4:39 'trusted_hops' is too large: 300",
                "4:58 a descriptor needs at least one entry",
                "4:82 'default' has no effect with 'value', which is always present; remove it",
                "5:48 'x y' is not a header name; use letters, digits and '-'",
            ],
        ),
        (
            "domain: d\nforward_auth:\n- {path: /a, domain: d, trusted_hops: 255, descriptors: [{key: a, from: bearer}]}\n\
             - {path: /b, domain: d, trusted_hops: 1, trusted_networks: 10.0.0.0/8, descriptors: [{key: a, from: bearer}]}\n\
             - {path: /c, domain: d, trusted_networks: [10.0.0.1/8], descriptors: [{key: a, from: client-address}]}\n\
             - {path: /d, domain: d, ipv6_prefix: 16, descriptors: [{key: a, from: client-address}]}\n\
             - {path: /e, domain: d, descriptors: [{key: a, cookie: 'a b'}, {key: b, secret_header: X-Forwarded-For}]}",
            &[
                "3:25 'trusted_hops' must be at most 254, not 255",
                "4:42 'trusted_hops' and 'trusted_networks' exclude each other; keep one",
                "5:25 \"10.0.0.1/8\" has bits set after its prefix; write \"10.0.0.0/8\" if you mean that network (TG-K06, see https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#tg-k06)",
                "6:25 a prefix of 16 bits of IPv6 is outside 32 to 128; use one inside, or leave it out for the default (TG-K04, see https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#tg-k04)",
                "7:48 \"a b\" is not the name of a cookie; write, for example, \"sid\" (TG-K15, see https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#tg-k15)",
                "7:73 'x-forwarded-for' is a list whose first entries come from clients; use 'from: client-address'",
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
        [
            "1:1 'server' is already defined in one:1:1; keep one",
            "2:10 the store 's' is already defined in one:2:10; rename or remove one"
        ]
    );
    // The broken file may declare the store, so the store does not count as missing.
    let errors = told(&[("one", "stores: ["), ("two", &one("store: s, rate_limit: {quota: 1/s}"))]);
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn tokens_hosts_and_origins_that_mean_nothing_are_refused() {
    check(&[
        (
            "server: {tokens: [{file: a}]}",
            &[
                "1:19 a token needs 'listeners', for example listeners: [http]",
                "1:19 a token needs 'permissions', for example permissions: [read, check]",
            ],
        ),
        (
            "server: {tokens: [{file: a, listeners: [htp, http, http], permissions: []}]}",
            &[
                "1:41 'htp' is not allowed in listeners; did you mean 'http'?",
                "1:52 'http' is listed twice in 'listeners'; remove one",
                "1:59 'permissions' is empty; use read, check, settle, administer",
            ],
        ),
        (
            "server: {tokens: [{file: a, listeners: http, permissions: [check, administer]}]}",
            &["1:46 'administer' has no effect on these listeners; remove it"],
        ),
        (
            "server: {tokens: [{file: a, listeners: admin, permissions: [check, write]}]}",
            &[
                "1:47 'check' has no effect on these listeners; remove it",
                "1:68 'write' is not allowed in permissions; use read, check, settle, administer",
            ],
        ),
        (
            "server:
  tokens:
    - {file: a, listeners: [http, grpc], permissions: read}
    - {file: a, listeners: [grpc, resp], permissions: check}",
            &["4:8 this listener already has a token from this file; merge the two entries, or \
               remove one"],
        ),
        (
            "server: {hosts: ['http://a', ''], origins: ['a.test', 'https://a/b', 'null']}",
            &[
                "1:18 'http://a' is not valid in 'hosts'; write a name, such as limits.example.com",
                "1:30 '' is not valid in 'hosts'; write a name, such as limits.example.com",
                "1:45 'a.test' is not valid in 'origins'; write an origin, such as \
                 https://ui.example.com",
                "1:55 'https://a/b' is not valid in 'origins'; write an origin, such as \
                 https://ui.example.com",
                "1:70 'null' is not valid in 'origins'; write an origin, such as \
                 https://ui.example.com",
            ],
        ),
    ]);
}

#[test]
fn an_error_shows_no_line_that_may_hold_a_password() {
    for text in [
        "server: {store: 'redis://:s3cret@h:x'}",
        "server: {store: 'redis://u:s3cret'}",
        "server: {store: 'redis://u:a/s3cret@h'}",
        "server: {store: 'u:s3cret@h'}",
        "server: {store: 'u:s3cret'}",
        "server: {store: 'redis://h?password=s3cret&x=1'}",
        "server:\n  redis: {password: s3cret}",
        "server:\n  redis:\n    Password : s3cret",
        "server: {store: 'redis://:s3cret@h', kee: 1}",
        "server: {store: ['redis://:s3cret@h']}",
        "server: {http_token: s3cret}",
        "stores: {a: {url: 'redis://:s3cret@h:x'}}",
        "stores: {a: 'redis://:s3cret@h:x'}",
        "server: {store: \"redis://:s3cret@h}",
        "server: {tls: {key_secret: s3cret}}",
    ] {
        let errors = Config::from_text("x", &format!("domain: d\n{text}\n")).unwrap_err();
        for told in [errors.to_string(), format!("{errors:?}")] {
            assert!(!told.contains("s3cret"), "{text}\n{told}");
        }
    }
    // Other lines are shown.
    let errors =
        Config::from_text("x", "domain: d\ndefaults: {algorithm: token-bukcet}").unwrap_err();
    assert!(errors.to_string().contains("2 | defaults: {algorithm: token-bukcet}"), "{errors}");
}
