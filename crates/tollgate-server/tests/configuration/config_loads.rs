//! Configurations that load, and what they say.

use serde_json::json;
use std::{path::PathBuf, time::Duration};
use tollgate::Algorithm;
use tollgate_server::{
    config::{
        AuthSource, Ban, Config, Descriptor, EXAMPLE, Endpoint, Failure, Fleet, Follow, Lease,
        Limit, Rate, RedisOptions, ReservationSettings, StoreKind, Unit, ValueMatch,
    },
    net::Listener,
    plan::Plan,
};

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/config", name].iter().collect()
}

fn read(name: &str) -> Config {
    Config::read(&[data(name)]).unwrap_or_else(|errors| panic!("{errors}"))
}

fn counted(limit: &Limit) -> (u64, Duration, Option<Unit>, Option<u64>) {
    match limit.rate {
        Rate::Counted { count, per, unit, burst } => (count, per, unit, burst),
        Rate::Unlimited => panic!("unlimited"),
    }
}

fn per(limit: &Limit) -> (u64, Unit) {
    let (count, _, unit, _) = counted(limit);
    (count, unit.unwrap())
}

fn exact(descriptor: &Descriptor) -> &str {
    match &descriptor.value {
        ValueMatch::Exact(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_of_the_reference_load_unchanged() {
    let config = read("reference");
    let names: Vec<&str> = config.domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(names, ["mongo_cps", "edge_proxy_per_ip", "rate_per_user", "messaging"]);

    let databases = &config.domains[0].descriptors;
    assert_eq!((exact(&databases[0]), exact(&databases[1])), ("users", "default"));
    assert_eq!(per(&databases[0].limits[0]), (500, Unit::Second));
    assert_eq!(config.domains[0].defaults.algorithm, Algorithm::FixedWindow);

    let edge = &config.domains[1].descriptors;
    assert_eq!(edge[0].value, ValueMatch::Any);
    assert_eq!(per(&edge[1].limits[0]), (0, Unit::Second));

    let messaging = &config.domains[3].descriptors;
    assert!(messaging[0].limits.is_empty());
    assert_eq!(per(&messaging[0].descriptors[0].limits[0]), (5, Unit::Day));
    assert_eq!(messaging[1].key, "to_number");
}

#[test]
fn every_key_of_the_reference_means_what_it_does_there() {
    let config = read("reference/every.yaml");
    let [path, port, flag, secret, internal, year] = &config.domains[0].descriptors[..] else {
        panic!("six descriptors")
    };
    assert_eq!(path.value, ValueMatch::Wildcard("/api/*/cart".to_owned()));
    let flags = [path.share_threshold, path.value_to_metric, path.detailed_metric];
    assert_eq!((flags, path.shadow_mode, path.quota_mode), ([true; 3], true, true));
    let metadata = json!({"tier": [1, 2.5, "x", {"deep": null}], "10": "ten"});
    assert_eq!(path.metadata, Some(metadata));
    assert_eq!(path.limits[0].name.as_deref(), Some("cart"));
    assert_eq!(path.limits[0].replaces, ["everything"]);

    // A number or a boolean is its text; a merge key brings in what is not said.
    assert_eq!((exact(port), exact(flag)), ("8080", "yes"));
    assert_eq!(per(&port.limits[0]), (20, Unit::Minute));
    assert_eq!(port.limits[0].name.as_deref(), Some("port"));
    assert_eq!(per(&flag.limits[0]), (1000, Unit::Week));

    // An empty value is no value.
    assert_eq!((&secret.value, &internal.value), (&ValueMatch::Any, &ValueMatch::Any));
    assert_eq!(per(&secret.limits[0]), (u64::from(u32::MAX), Unit::Month));
    assert_eq!(internal.limits[0].rate, Rate::Unlimited);
    assert_eq!(per(&year.limits[0]), (1, Unit::Year));
}

#[test]
fn descriptors_have_more_than_the_reference_knows() {
    let config = read("ours.yaml");
    let domain = &config.domains[0];
    assert_eq!(domain.defaults.algorithm, Algorithm::Gcra);
    assert_eq!(domain.defaults.failure, Failure::Closed);
    assert!(domain.defaults.count_refused && domain.defaults.shadow_mode);
    assert_eq!(domain.defaults.store.as_deref(), Some("default"));
    assert_eq!(domain.defaults.lease, Lease::Sync(Duration::from_millis(100)));

    let seconds = Duration::from_secs;
    let tenant = &domain.descriptors[0];
    assert_eq!(counted(&tenant.limits[0]), (100, seconds(10), None, Some(50)));
    let day = counted(&tenant.limits[1]);
    assert_eq!(day, (10_000, seconds(86_400), Some(Unit::Day), Some(1000)));
    assert_eq!(tenant.limits[1].algorithm, Some(Algorithm::Gcra));
    assert_eq!(tenant.limits[2].rate, Rate::Unlimited);

    let user = &tenant.descriptors[0];
    let ValueMatch::Regex(regex) = &user.value else { panic!("{:?}", user.value) };
    assert_eq!(regex.0.as_str(), "^[a-z]+$");
    assert_eq!(
        (&user.parents[..], user.store.as_deref()),
        (&["tenant".to_owned()][..], Some("small"))
    );
    assert_eq!((user.enforce, user.failure), (25, Some(Failure::Open)));
    assert_eq!(user.lease, Some(Lease::Auto));
    let in_flight = user.concurrency.as_ref().unwrap();
    assert_eq!((in_flight.limit, in_flight.lease), (5, seconds(30)));
    assert_eq!(in_flight.name.as_deref(), Some("exports"));
    assert_eq!(user.overrides[0].values, ["alice"]);
    assert_eq!(user.overrides[1].values, ["bob", "carol"]);
    assert_eq!(user.overrides[1].rate, Rate::Unlimited);

    let (ip, host) = (&domain.descriptors[1], &domain.descriptors[2]);
    let networks = ["10.0.0.0/8", "fd00::/8", "192.168.7.1/32"].map(|text| text.parse().unwrap());
    assert_eq!(ip.value, ValueMatch::Cidr(networks.to_vec()));
    let ban = Ban { after: 3, within: seconds(60), first: seconds(30), most: seconds(86_400) };
    assert_eq!(ip.ban, Some(ban));
    let Rate::Counted { count, per, burst, .. } = ip.overrides[0].rate else { panic!("counted") };
    assert_eq!((count, per, burst), (7, seconds(5400), Some(9)));
    assert_eq!(host.ban.unwrap().most, seconds(128), "64 times the first");
    assert_eq!(host.enforce, 0);

    let adaptive = |at: usize| domain.descriptors[at].adaptive.clone().unwrap();
    let (upstream, worker) = (adaptive(3), adaptive(4));
    let slow_above = Some(Duration::from_millis(300));
    assert_eq!(upstream.follow, Follow::Reports { slow_above });
    assert_eq!((upstream.min, upstream.max, upstream.period), (10.0, 200.0, seconds(2)));
    assert_eq!(worker.follow, Follow::Cpu { target: 80 });
    assert_eq!((worker.min, worker.max), (10.0, 100.0), "the limit is the maximum");
    assert_eq!(worker.period, Duration::from_millis(250));
}

#[test]
fn the_process_has_settings() {
    let Config { server, stores, forward_auth, .. } = read("ours.yaml");
    let endpoints = [&server.http, &server.grpc, &server.resp, &server.admin];
    let texts = endpoints.map(|endpoint| endpoint.as_ref().unwrap().to_string());
    assert_eq!(texts, ["127.0.0.1:8080", "[::1]:8081", "off", "unix:/run/tollgate.sock"]);
    assert_eq!(server.resp, Some(Endpoint::Off));
    assert_eq!(server.tls.as_ref().unwrap().client_ca, Some(PathBuf::from("ca.pem")));
    assert_eq!(server.tls_of[0].0, "grpc");
    assert_eq!(server.admin_token_file, Some(PathBuf::from("admin.token")));
    assert_eq!(server.resp_password_file, Some(PathBuf::from("resp.password")));
    assert_eq!(server.http_token_file, Some(PathBuf::from("http.token")));
    let files: Vec<_> = server.secret_files().map(|file| file.display().to_string()).collect();
    let expected =
        ["http.token", "resp.password", "admin.token", "gateway.token", "operator.token"];
    assert_eq!(files, expected);
    assert_eq!(server.tokens[0].listeners, [Listener::Http, Listener::Grpc]);
    let granted = server.tokens.iter().map(|token| format!("{:?}", token.permissions));
    assert_eq!(granted.collect::<Vec<_>>(), ["{Read, Check}", "{Read, Administer}"]);
    assert_eq!(server.negative_hits, Some(true));
    assert_eq!(
        (&*server.hosts[0], &*server.origins[0]),
        ("limits.example.com", "https://ui.example.com")
    );
    assert_eq!((server.workers, server.max_connections), (Some(4), Some(10_000)));
    assert_eq!(server.connection_memory_bytes, Some(64 << 20));
    assert_eq!(server.idle_timeout, Some(Duration::from_secs(75)));
    assert_eq!(server.drain_delay, Some(Duration::from_secs(5)));
    assert_eq!(server.drain_timeout, Some(Duration::from_secs(20)));
    assert_eq!(server.request_timeout, Some(Duration::from_secs(5)));
    assert_eq!(server.watch_interval, Some(Duration::from_millis(500)));
    assert_eq!(server.snapshot.unwrap().every, Duration::from_secs(30));
    assert_eq!((server.memory.bounded, server.memory.max_keys), (Some(1_000_000), None));
    assert_eq!((server.response_headers, server.dynamic_metadata), (Some(true), Some(false)));
    assert_eq!((server.denial_log, server.log_keys), (Some(100), Some(false)));
    assert_eq!(server.top_keys, Some(20));

    assert_eq!((stores[0].name.as_str(), stores[0].memory.max_keys), ("small", Some(1000)));
    let ReservationSettings { total, per_policy, per_key } = stores[0].memory.reservations;
    assert_eq!((total, per_policy, per_key), (Some(5000), Some(500), Some(50)));
    assert_eq!(stores[0].memory.max_permits, Some(7000));
    assert_eq!((stores[1].name.as_str(), &stores[1].snapshot), ("plain", &None));
    assert_eq!(server.store, Some(StoreKind::Memory));
    let options = RedisOptions {
        password_file: Some("redis.password".into()),
        fleet_size: Some(Fleet::Fixed(3)),
        deadline: Some(Duration::from_millis(25)),
        startup_wait: Some(Duration::from_secs(5)),
        prefix: Some("tg".into()),
        key_secret_file: Some("keys.secret".into()),
        failure: Some(Failure::Local),
    };
    assert_eq!(server.redis, options);
    let kinds: Vec<_> = stores.iter().map(|store| store.kind.name()).collect();
    assert_eq!(kinds, ["memory", "memory", "redis", "redis"]);
    assert_eq!(stores[2].redis.fleet_size, Some(Fleet::Auto));

    let auth = &forward_auth[0];
    assert_eq!((auth.path.as_str(), auth.domain.as_str()), ("/auth", "shop"));
    assert_eq!(
        auth.headers,
        ["authorization", "cookie", "x-api-key", "x-forwarded-for", "x-real-ip"]
    );
    let sources: Vec<Vec<AuthSource>> = auth
        .descriptors
        .iter()
        .map(|entries| entries.iter().map(|entry| entry.from.clone()).collect())
        .collect();
    let header = AuthSource::Header("x-tenant".to_owned());
    assert_eq!(sources[0], [header, AuthSource::Value("7".to_owned())]);
    assert!(matches!(&sources[1][..], [AuthSource::Client(_)]));
    assert!(sources[3].iter().all(|source| matches!(source, AuthSource::Key(_))), "{sources:?}");
    assert_eq!(sources[2], [AuthSource::Path, AuthSource::Method, AuthSource::Host]);
    assert_eq!(auth.descriptors[0][0].default.as_deref(), Some("none"));
}

#[test]
fn words_for_off_turn_things_off() {
    for word in ["off", "Off", "\"off\"", "no", "false"] {
        let config = Config::from_text("x", &format!("server: {{http: {word}}}")).unwrap();
        assert_eq!(config.server.http, Some(Endpoint::Off), "{word}");
    }
    let text = "server: {watch_interval: off, denial_log: off}";
    let server = Config::from_text("x", text).unwrap().server;
    assert_eq!((server.watch_interval, server.denial_log), (Some(Duration::ZERO), Some(0)));
    let zero = Config::from_text("x", "server: {watch_interval: 0}").unwrap().server;
    assert_eq!(zero.watch_interval, Some(Duration::ZERO));
}

#[test]
fn the_example_loads_and_nothing_in_it_is_risky() {
    let config = Config::from_text("example.yaml", EXAMPLE).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.domains[0].name, "example");
    assert_eq!(config.forward_auth[0].path, "/auth");
    assert_eq!(tollgate_server::config::lint(&config), []);
}

#[test]
fn the_examples_load_together_and_nothing_in_them_is_risky() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/config");
    let config = Config::read(&[folder.into()]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.domains.len(), 2);
    assert_eq!(tollgate_server::config::lint(&config), []);

    let browser = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/browser/limits.yaml");
    let config = Config::read(&[browser.into()]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(tollgate_server::config::lint(&config), []);
}

#[test]
fn a_domain_may_be_spread_over_files_that_agree() {
    let one = "domain: a\nmerge: true\ndescriptors: [{key: x}]\ndefaults: {algorithm: gcra}";
    let two = "domain: a\nmerge: true\ndescriptors: [{key: y}]";
    for texts in [[("1", one), ("2", two)], [("2", two), ("1", one)]] {
        let config = Config::from_texts(&texts).unwrap();
        assert_eq!(config.domains.len(), 1);
        assert_eq!(config.domains[0].descriptors.len(), 2);
        assert_eq!(config.domains[0].defaults.algorithm, Algorithm::Gcra);
    }
}

#[test]
fn a_file_may_have_settings_and_no_domain() {
    let domain = "domain: a\ndescriptors: [{key: x, store: s, rate_limit: {quota: 1/s}}]";
    let texts = [("1", "server: {workers: 2}"), ("2", domain), ("3", "stores: {s: {}}")];
    let config = Config::from_texts(&texts).unwrap();
    assert_eq!((config.domains.len(), config.server.workers), (1, Some(2)));
    assert_eq!(config.domains[0].descriptors[0].store.as_deref(), Some("s"));
    assert!(Config::from_text("x", "domain: nothing yet").is_ok());
}

#[test]
fn the_default_store_can_be_named() {
    let text = "domain: a\ndescriptors: [{key: x, store: default, rate_limit: {quota: 1/s}}]";
    let config = Config::from_text("x", text).unwrap();
    assert_eq!(config.domains[0].descriptors[0].store.as_deref(), Some("default"));
    assert_eq!(Plan::compile(config, None).unwrap().rules()[0].store(), 0);
}

#[test]
fn a_folder_is_read_like_a_mounted_config_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // As Kubernetes does it: links to files in a folder that a hidden link names.
    std::fs::create_dir(path("..2026_11_16")).unwrap();
    std::fs::write(path("..2026_11_16/b.yaml"), "domain: b").unwrap();
    std::fs::write(path("..2026_11_16/a.yml"), "domain: a").unwrap();
    std::fs::create_dir(path("folder.yaml")).unwrap();
    std::fs::write(path(".hidden.yaml"), "nonsense: [").unwrap();
    std::fs::write(path("notes.txt"), "nonsense: [").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("..2026_11_16", path("..data")).unwrap();
        symlink("..data/b.yaml", path("b.yaml")).unwrap();
        symlink("..data/a.yml", path("a.yml")).unwrap();
    }
    let config = Config::read(&[folder.path().to_owned()]).unwrap();
    let names: Vec<&str> = config.domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("latin"), b"domain: caf\xe9").unwrap();
    std::fs::write(path("huge"), vec![b' '; (16 << 20) + 1]).unwrap();
    std::fs::create_dir(path("empty")).unwrap();
    for (name, text) in [
        ("latin", "the file is not UTF-8 at byte 11; save it as UTF-8"),
        ("huge", "the file is larger than 16 MiB; split it"),
        ("empty", "the directory has no .yaml or .yml file; name another one, or add a file"),
        ("missing", "cannot read the file: No such file or directory (os error 2)"),
    ] {
        let errors = Config::read(&[path(name)]).unwrap_err();
        assert_eq!(errors.errors()[0].text(), text);
        assert_eq!(errors.errors()[0].place().line, 0);
    }
    let none = Config::read(&[]).unwrap_err();
    assert_eq!(
        none.errors()[0].text(),
        "no configuration file is given; name a file or a directory"
    );
}

#[test]
fn the_examples_of_the_user_page_load() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    let examples: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .filter(|example| !example.starts_with('#'))
        .collect();
    assert!(examples.len() >= 6);
    for example in examples {
        // A piece of a file is put where it belongs.
        let text = match example.split([':', ' ']).next().unwrap() {
            "-" => format!("domain: shop\ndescriptors:\n{example}"),
            "ban" => format!(
                "domain: shop\ndescriptors:\n- key: k\n  rate_limit: {{quota: 1/s}}\n  {example}"
            ),
            _ if example.contains("domain: shop\ndesc") => example.to_owned(),
            _ => format!("domain: shop\n{example}"),
        };
        Config::from_text("page", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    }
}
