//! Several processes on one Redis: one limit, and what happens when Redis is away.

use crate::{
    exact::{self, allowed, load},
    process::{Service, http},
};
use serde_json::Value;
use std::{
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};
use tollgate_rig::{Cluster, Flavor, Redis, Sentinel, Tls, within};

/// How long an event may take that must happen.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// The limits of `exact`, and one for forward-auth.
fn limits() -> String {
    let forward = "{path: /auth, domain: d, descriptors: [{key: k, value: forwarded}]}";
    format!("{}forward_auth:\n  - {forward}\n", exact::YAML)
}

/// Starts a process on this Redis.
pub(super) fn start(folder: &tempfile::TempDir, yaml: &str, redis: &Redis) -> Service {
    start_on(folder, yaml, &redis.url())
}

fn start_on(folder: &tempfile::TempDir, yaml: &str, url: &str) -> Service {
    // On a busy machine in a debug build, a late call would be decided by the failure mode.
    let flags = ["--store", url, "--store-deadline", "5s", "--workers", "2", "--fleet-size", "2"];
    Service::start(folder.path(), yaml, &flags)
}

pub(super) fn folders() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]
}

fn ready(service: &Service) -> String {
    let (_, body) = service.admin("GET", "/ready", "");
    let body: Value = serde_json::from_str(&body).unwrap();
    // A server that is not ready responds with a problem, whose status is a number.
    body["status"].as_str().unwrap_or("not ready").to_owned()
}

pub(super) fn wait_until(service: &Service, status: &str) {
    within(SOON, &format!("/ready says {status}"), || ready(service) == status);
}

/// Starts a load of a kind that `load` does not have.
fn special(service: &Service, what: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let throttle = "CL.THROTTLE everybody 999 1000 31536000";
    match what {
        "throttle" => command
            .args(["load", "resp", &service.resp.to_string(), "-c", "50", "-P", "16"])
            .args(["--command", throttle]),
        _ => command
            .args(["load", "http", &service.http.to_string(), "-c", "100"])
            .args(["--path", "/auth"]),
    };
    let all = ["--requests", "2000", "--warmup", "0s", "--dist", "one", "--format", "json"];
    command.args(all).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

fn sum(loads: Vec<Child>) -> u64 {
    thread::scope(|scope| {
        let counts: Vec<_> =
            loads.into_iter().map(|load| scope.spawn(move || allowed(load))).collect();
        counts.into_iter().map(|count| count.join().unwrap()).sum()
    })
}

#[test]
fn two_processes_hold_one_limit_together_over_every_protocol() {
    let redis = Redis::start(Flavor::Redis);
    let folders = folders();
    let both = [0, 1].map(|at| start(&folders[at], &limits(), &redis));
    both.iter().for_each(|service| wait_until(service, "ready"));
    for protocol in ["resp", "http", "grpc"] {
        for (key, limit) in [("k", 1000), ("gcra", 1000)] {
            let key = format!("{key}={protocol}");
            let loads = both.iter().map(|service| load(service, protocol, &key)).collect();
            assert_eq!(sum(loads), limit, "{key}");
        }
    }
    let key = "tenant=t|user=u";
    let loads = vec![load(&both[0], "grpc", key), load(&both[1], "resp", key)];
    assert_eq!(sum(loads), 700, "{key}");
    for what in ["throttle", "forward-auth"] {
        let loads = both.iter().map(|service| special(service, what)).collect();
        let admitted = sum(loads);
        let told = both.iter().map(|service| service.admin("GET", "/store", "").1);
        assert_eq!(admitted, 1000, "{what}: {:?}", told.collect::<Vec<_>>());
    }
    for service in &both {
        let (_, metrics) = service.admin("GET", "/metrics", "");
        assert!(metrics.contains("\ntollgate_degraded_decisions_total 0\n"), "{metrics}");
    }
}

const MODES: &str = "
domain: d
descriptors:
  - {key: open, failure: open, rate_limit: {name: open, quota: 1000/year}}
  - {key: closed, failure: closed, rate_limit: {name: closed, quota: 1000/year}}
  - {key: local, failure: local, rate_limit: {name: local, quota: 1000/year}}
";

fn check(service: &Service, policy: &str, key: &str) -> (u16, Value) {
    let path = format!("/v1/check?policy={policy}&key={key}");
    let (status, body) = http(service.http, "GET", &path, "");
    (status, serde_json::from_str(&body).unwrap())
}

/// Returns a sample of the metrics.
fn sample(service: &Service, name: &str) -> u64 {
    let (_, metrics) = service.admin("GET", "/metrics", "");
    let line = metrics.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_redis_that_dies_and_comes_back_under_load_is_survived_as_each_rule_says() {
    let mut redis = Redis::start(Flavor::Redis);
    let folder = tempfile::tempdir().unwrap();
    let service = start(&folder, MODES, &redis);
    wait_until(&service, "ready");
    // ORDERING: SeqCst, here and below. A test.
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for policy in ["open", "closed", "local"] {
            let (service, is_over, answers) = (&service, &is_over, &answers);
            scope.spawn(move || {
                let mut client = service.client();
                while !is_over.load(SeqCst) {
                    // Every reply arrives, and is a decision: the call fails on an error.
                    client.count_ones(&format!("TG.CHECK {policy} hot"), 16).unwrap();
                    answers.fetch_add(16, SeqCst);
                }
            });
        }
        // Ends the load even if a check fails; otherwise the threads would run forever.
        let _over = Over(&is_over);
        let seen = answers.load(SeqCst);
        within(SOON, "load", || answers.load(SeqCst) > seen + 500);
        assert_eq!(check(&service, "closed", "new").0, 200);
        redis.kill();
        wait_until(&service, "degraded");
        is_degraded(&service);
        redis.restart();
        wait_until(&service, "ready");
        is_back(&service);
    });
}

/// Ends the load on drop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Checks the service while Redis is away.
fn is_degraded(service: &Service) {
    for (policy, status) in [("open", 200), ("closed", 429), ("local", 200)] {
        let (found, body) = check(service, policy, "other");
        assert_eq!((found, &body["degraded"]), (status, &Value::Bool(true)), "{policy}: {body}");
    }
    let mut client = service.client();
    assert_eq!(client.count_ones("TG.CHECK open k", 1500).unwrap(), 1500);
    assert_eq!(client.count_ones("TG.CHECK closed k", 100).unwrap(), 0);
    // Half of the limit, because two processes share it.
    assert_eq!(client.count_ones("TG.CHECK local k", 1500).unwrap(), 500);
    // Its failure mode is that of the store: local, with a share of at least one.
    assert!(client.ask("CL.THROTTLE k 0 1 3600").starts_with("[0, "));
    assert!(client.ask("TTL k").contains("the store cannot be reached"));
    assert_eq!(service.admin("GET", "/ready", "").0, 200);
    assert_eq!(service.admin("GET", "/ready?strict=1", "").0, 503);
    assert_eq!(sample(service, "tollgate_store_degraded{"), 1);
    assert_eq!(sample(service, "tollgate_store_node_up{"), 0);
    assert!(sample(service, "tollgate_degraded_decisions_total ") > 2000);
    let (_, store) = service.admin("GET", "/store", "");
    let store: Value = serde_json::from_str(&store).unwrap();
    let shared = &store["stores"][0]["shared"];
    assert!(shared["decided_without"]["local"].as_u64().unwrap() >= 500, "{store}");
    assert!(shared["nodes"][0]["last_error"].is_string(), "{store}");
    assert!(shared["degraded"].to_string().contains("circuit breaker is open"), "{store}");
    // A reload works meanwhile.
    service.write_config(&MODES.replace("failure: open", "failure: closed"));
    within(SOON, "the rule is closed", || check(service, "open", "k").0 == 429);
    service.write_config(MODES);
    within(SOON, "the rule is open", || check(service, "open", "k").0 == 200);
}

/// Checks the service after Redis is back: the store is empty, and receives the use of the shares.
fn is_back(service: &Service) {
    for policy in ["open", "closed", "local"] {
        within(SOON, policy, || {
            let (status, body) = check(service, policy, "later");
            status == 200 && body["degraded"].is_null()
        });
    }
    let mut client = service.client();
    within(SOON, "the share that was used is booked", || {
        let told = client.ask("TG.PEEK local k");
        told.starts_with("[1, 1000, 500,")
    });
    assert!(client.ask("TG.PEEK open k").starts_with("[1, 1000, 1000,"), "nothing was counted");
}

#[test]
fn a_service_starts_without_redis_and_finds_it_later() {
    let mut redis = Redis::builder(Flavor::Redis).password("hunter2").start();
    redis.kill();
    let folder = tempfile::tempdir().unwrap();
    let secrets = ["password", "names"].map(|name| folder.path().join(name));
    std::fs::write(&secrets[0], "hunter2\n").unwrap();
    std::fs::write(&secrets[1], "000102030405060708090a0b0c0d0e0f\n").unwrap();
    let [password, names] = secrets.map(|path| path.to_str().unwrap().to_owned());
    let url = format!("redis://{}", redis.address());
    let snapshot = folder.path().join("snapshot").to_str().unwrap().to_owned();
    let flags = ["--store", &url, "--store-password-file", &password, "--snapshot", &snapshot];
    let more =
        ["--store-key-secret-file", &names, "--store-prefix", "shop", "--store-deadline", "5s"];
    let wait = ["--store-startup-wait", "200ms"];
    let flags = [&flags[..], &more[..], &wait[..]].concat();
    let mut service = Service::start(folder.path(), MODES, &flags);
    wait_until(&service, "degraded");
    assert_eq!([check(&service, "open", "a").0, check(&service, "closed", "a").0], [200, 429]);
    redis.restart();
    wait_until(&service, "ready");
    assert_eq!(check(&service, "closed", "alice").0, 200);
    let keys = redis.cli(&["KEYS", "*"]);
    assert!(keys.contains("shop") && !keys.contains("alice"), "{keys}");
    within(SOON, "the process counts itself", || {
        let (_, store) = service.admin("GET", "/store", "");
        let store: Value = serde_json::from_str(&store).unwrap();
        store["stores"][0]["shared"]["fleet_size"] == 1
    });

    // The address of a store changes only with a restart, and no part of such a file is in force.
    service.write_config(&format!("{MODES}stores: {{other: memory}}\n"));
    let (status, told) = service.admin("POST", "/reload", "");
    assert!(status >= 400, "{status} {told}");
    assert!(told.contains("stores cannot change while the server runs"), "{told}");
    service.signal("TERM");
    assert!(service.wait());
    assert!(!std::path::Path::new(&snapshot).exists(), "a store in Redis has no snapshots");
}

/// Regression: 24 of 20 were admitted, because decisions before the connection was open added to
/// those of the store.
#[test]
fn a_service_waits_for_a_redis_that_is_still_starting() {
    const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 20/year}}
";
    let mut redis = Redis::start(Flavor::Redis);
    let folders = folders();
    let flags = ["--store", &redis.url(), "--store-deadline", "5s", "--store-startup-wait", "30s"];
    // First no server listens; then a server listens, but does not respond yet.
    type Step = fn(&mut Redis);
    let ways: [(&str, Step, Step); 2] =
        [("x", Redis::kill, Redis::restart), ("y", Redis::freeze, Redis::thaw)];
    for (key, go, come) in ways {
        let check = format!("TG.CHECK k {key} 1");
        go(&mut redis);
        let both = [0, 1].map(|at| Service::start(folders[at].path(), YAML, &flags));
        let mut clients = [both[0].client(), both[1].client()];
        clients.iter_mut().for_each(|client| client.send(&check, 15));
        for service in &both {
            let (status, body) = service.admin("GET", "/ready", "");
            assert_eq!(status, 503, "{body}");
            assert!(body.contains("is connecting to its stores"), "{body}");
        }
        come(&mut redis);
        let mut admitted = 0;
        for client in &mut clients {
            for _ in 0..15 {
                admitted += usize::from(client.reply().unwrap().starts_with("[1,"));
            }
            admitted += client.count_ones(&check, 15).unwrap();
        }
        assert_eq!(admitted, 20, "{key}");
        for service in &both {
            wait_until(service, "ready");
            assert_eq!(sample(service, "tollgate_degraded_decisions_total "), 0);
        }
    }

    // A service that waits for a store handles signals.
    redis.kill();
    let mut service = Service::start(folders[0].path(), YAML, &flags);
    assert_eq!(service.admin("GET", "/ready", "").0, 503);
    service.signal("TERM");
    assert!(service.wait());
}

#[test]
fn an_address_that_makes_no_sense_is_told_with_a_way_out() {
    // value, and the error message
    for (value, expected) in [
        ("disk", "\"disk\" is not a store; use memory, or an address that starts with redis://"),
        ("10.0.0.5:6379", "did you mean redis://10.0.0.5:6379?"),
        ("redis://", "redis://"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.args(["serve", "--store", value]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(expected) && told.contains("--store"), "{told}");
    }
}

/// A load balancer may send the settlement to another process than the reservation.
#[test]
fn any_process_settles_what_another_has_reserved() {
    let redis = Redis::start(Flavor::Redis);
    let folders = folders();
    let both = [0, 1].map(|at| start(&folders[at], &limits(), &redis));
    both.iter().for_each(|service| wait_until(service, "ready"));
    let reserve = r#"{"policy":"gcra","key":"job","cost":600,"life_ms":60000}"#;
    let (status, body) = http(both[0].http, "POST", "/v1/reserve", reserve);
    assert_eq!(status, 200, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    let settle = format!(r#"{{"id":"{id}","actual":100}}"#);
    assert_eq!(http(both[1].http, "POST", "/v1/settle", &settle).0, 200);
    assert_eq!(http(both[0].http, "POST", "/v1/settle", &settle).0, 404, "once");
    let (_, answer) = check(&both[0], "gcra", "job");
    assert_eq!(answer["remaining"], 899, "{answer}");
}

/// A wait counts from the reply, and not from the arrival of the request: whole seconds stay whole.
#[test]
fn redis_cells_reply_is_not_a_second_too_long() {
    let redis = Redis::start(Flavor::Redis);
    let folder = tempfile::tempdir().unwrap();
    let service = start(&folder, &limits(), &redis);
    wait_until(&service, "ready");
    // Burst three, one every twelve seconds.
    for key in ["bob", "eve", "ann"] {
        let told = service.client().ask(&format!("CL.THROTTLE {key} 2 5 60"));
        assert_eq!(told, "[0, 3, 2, -1, 12]");
    }
}

/// The same with every kind of deployment: two processes, one limit.
#[test]
fn clusters_sentinels_and_tls_hold_one_limit_too() {
    let cluster = Cluster::start(Flavor::Valkey);
    let sentinel = Sentinel::start(Flavor::Redis);
    let secure = Redis::builder(Flavor::Redis).tls(Tls::Only).password("s").start();
    let ca = secure.certificates().unwrap().authority.display().to_string();
    let tls = format!("rediss://:s@{}?ca={ca}", secure.tls_address().unwrap());
    for url in [cluster.url(), sentinel.url(), tls] {
        let folders = folders();
        let both = [0, 1].map(|at| start_on(&folders[at], &limits(), &url));
        both.iter().for_each(|service| wait_until(service, "ready"));
        for (protocols, key) in [(["resp", "grpc"], "gcra=a"), (["http", "resp"], "k=a")] {
            let loads = both.iter().zip(protocols).map(|(service, it)| load(service, it, key));
            assert_eq!(sum(loads.collect()), 1000, "{key} on {url}");
        }
    }
}

/// Leases from the configuration: few calls to the store, and no more admissions than the bound.
#[test]
fn a_rule_that_leases_asks_the_store_seldom() {
    let redis = Redis::start(Flavor::Redis);
    let yaml = "
domain: d
descriptors:
  - {key: k, lease: auto, rate_limit: {name: k, quota: 1000000/s burst 100000, algorithm: gcra}}
";
    let folder = tempfile::tempdir().unwrap();
    let service = start(&folder, yaml, &redis);
    wait_until(&service, "ready");
    for protocol in ["resp", "http", "grpc"] {
        assert_eq!(sum(vec![load(&service, protocol, "k=hot")]), 2000, "{protocol}");
    }
    let leased = sample(&service, "tollgate_store_decisions_total{store=\"default\",by=\"lease\"}");
    assert!(leased > 4000, "{leased} of 6000");
    let (_, policies) = service.admin("GET", "/policies", "");
    assert!(policies.contains("processes: each holds at most"), "{policies}");
}

/// Regression: the name of such a key in Redis was as long as the key, or three times as long with
/// escapes.
#[test]
fn processes_share_the_count_of_a_key_of_a_mebibyte_and_its_name_is_short() {
    let redis = Redis::start(Flavor::Redis);
    let yaml = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 5/year}}
";
    let folders = folders();
    let both = [0, 1].map(|at| start(&folders[at], yaml, &redis));
    both.iter().for_each(|service| wait_until(service, "ready"));
    // As long as a request may be, with a difference only at the end.
    let long = "é".repeat((1 << 19) - 64);
    for end in ["a", "b"] {
        let body = format!(r#"{{"policy":"k","key":"{long}{end}"}}"#);
        let admitted = (0..10).filter(|at| {
            let (status, _) = http(both[at % 2].http, "POST", "/v1/check", &body);
            assert!([200, 429].contains(&status), "{status}");
            status == 200
        });
        assert_eq!(admitted.count(), 5, "{end}");
    }
    let names = redis.cli(&["KEYS", "tollgate:*sha256*"]);
    assert_eq!(names.lines().count(), 2, "{names}");
    assert!(names.lines().all(|name| name.len() < 200), "{names}");
}
