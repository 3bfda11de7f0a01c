//! A store that several processes share, seen through the protocols: a fake one, which can be away.

mod fake;

use fake::{Fake, shared};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::OwnedReadHalf},
};
use tollgate::testing::block_on;
use tollgate_server::{
    admin,
    config::{Config, Failure, Lease},
    engine::{Answer, Ask, Code, Hits, Request, Subject, Verb},
    http,
    metrics::{Exposition, Format},
    net::{Connection, Listener, Stream},
    plan::{Counted, Entry, Plan},
    resp,
    server::Shared,
};

const RULES: &str = "
domain: d
defaults: {failure: open}
descriptors:
  - {key: open, rate_limit: {name: open, unit: minute, requests_per_unit: 2}}
  - {key: closed, failure: closed, rate_limit: {name: closed, unit: minute, requests_per_unit: 2}}
  - {key: local, failure: local, lease: auto, rate_limit: {name: local, unit: minute, requests_per_unit: 2}}
";

fn check(shared: &Shared, answer: &mut Answer, policies: &[&str]) -> Vec<Code> {
    let keys: [&[u8]; 1] = [b"k"];
    let named = |policy| Subject::Named { policy, keys: &keys };
    let ask =
        |policy: &&'static str| Ask { subject: named(policy), hits: Hits::Take(1), limit: None };
    let policies: Vec<&'static str> = policies
        .iter()
        .map(|name| ["open", "closed", "local"].into_iter().find(|known| known == name).unwrap())
        .collect();
    let asks: Vec<_> = policies.iter().map(ask).collect();
    let request = Request { domain: "", asks: &asks, verb: Verb::Check };
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    block_on(shared.engine.decide(&plan, now, &request, answer)).unwrap();
    answer.parts().iter().map(|part| part.code).collect()
}

#[test]
fn the_lowest_rate_of_the_fleet_applies_and_the_own_one_while_the_store_is_away() {
    let (fake, hand) = Fake::new(None);
    let rules = "domain: d\ndescriptors:
  - key: user
    rate_limit: {name: upstream, quota: 100/s, algorithm: gcra}
    adaptive: {follow: reports, min: 10/s}\n";
    let shared = shared(&fake, rules);
    let engine = &shared.engine;
    // the lowest of the others, whether the store is away, the rate in force
    for (row, (lowest, is_down, rate)) in [
        (f64::INFINITY, false, 100.0),
        (30.0, false, 30.0),
        (30.0, true, 100.0),
        (40.0, false, 40.0),
        (5.0, false, 10.0),
        (200.0, false, 100.0),
    ]
    .into_iter()
    .enumerate()
    {
        fake.set_lowest_rate(lowest);
        fake.set_down(is_down);
        block_on(engine.agree_rates());
        hand.advance(std::time::Duration::from_secs(2));
        // Nobody reports to this process.
        engine.adapt();
        let plan = engine.plan_arc();
        let (_, rule) = plan.adaptive_rules().next().unwrap();
        assert_eq!((rule.report().rate, rule.own_rate()), (rate, 100.0), "row {row}");
        assert_eq!(rule.reason() == "fleet", rate < 100.0, "row {row}: {}", rule.reason());
        assert_eq!(rule.policy().quota().capacity(), rate as u64, "row {row}");
    }
}

#[test]
fn each_rule_decides_by_its_failure_mode_while_the_store_is_away() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    let mut answer = Answer::new();
    assert_eq!(check(&shared, &mut answer, &["open"]), [Code::Allowed]);
    assert!(!answer.is_degraded());
    fake.set_down(true);
    // policies, codes, whether it passes
    for (row, (policies, codes, allowed)) in [
        (&["open"][..], &[Code::FailedOpen][..], true),
        (&["open"], &[Code::FailedOpen], true),
        (&["open"], &[Code::FailedOpen], true),
        (&["closed"], &[Code::FailedClosed], false),
        (&["local"], &[Code::Allowed], true),
        (&["open", "closed"], &[Code::FailedOpen, Code::FailedClosed], false),
        (&["open", "local"], &[Code::FailedOpen, Code::Allowed], true),
        (&["local"], &[Code::Denied], false),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(check(&shared, &mut answer, policies), codes, "row {row}");
        assert_eq!((answer.is_allowed(), answer.is_degraded()), (allowed, true), "row {row}");
    }
    fake.set_down(false);
    assert_eq!(check(&shared, &mut answer, &["open"]), [Code::Allowed], "nothing was counted");
    assert_eq!(check(&shared, &mut answer, &["open"]), [Code::Denied]);
    assert!(!answer.is_degraded());
    let plan = shared.engine.plan_arc();
    let of = |name: &str, kind| plan.rule(plan.named(name).unwrap()).live().counts().of(kind);
    assert_eq!(of("open", Counted::FailedOpen), 5);
    assert_eq!(of("closed", Counted::FailedClosed), 2);
    assert_eq!((of("local", Counted::AllowedHere), of("local", Counted::DeniedHere)), (2, 1));
    assert_eq!(shared.engine.health().degraded_decisions(), 8);
}

#[test]
fn a_reload_changes_failure_and_lease_of_the_running_store() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    let of = |id: &str| fake.settings_of(id).map(|known| (known.failure, known.lease));
    assert_eq!(of("d:open"), Some((Failure::Open, Lease::Off)));
    assert_eq!(of("d:local"), Some((Failure::Local, Lease::Auto)));
    assert_eq!(of("d!minute"), Some((Failure::Open, Lease::Off)), "limits that come with requests");
    let text = RULES
        .replace("lease: auto", "lease: {sync: 50ms}")
        .replace("failure: closed", "failure: local");
    let text = text.replace("failure: open", "failure: deny");
    let config = Config::from_text("test.yaml", &text).unwrap();
    let plan = Plan::compile(config, Some(&shared.engine.plan_arc())).unwrap();
    shared.engine.install(plan);
    assert_eq!(of("d:open"), Some((Failure::Closed, Lease::Off)));
    let sync = Lease::Sync(std::time::Duration::from_millis(50));
    assert_eq!(of("d:local"), Some((Failure::Local, sync)));
    assert_eq!(of("d!minute"), Some((Failure::Closed, Lease::Off)));
}

#[test]
fn a_domain_and_a_rule_name_their_stores() {
    let text = "
domain: d
defaults: {store: near}
descriptors:
  - {key: a, rate_limit: {quota: 1/s}}
  - {key: b, store: default, rate_limit: {quota: 1/s}}
  - {key: c, store: far, rate_limit: {quota: 1/s}}
stores: {near: memory, far: redis://127.0.0.1:1}
";
    let plan = Plan::compile(Config::from_text("x", text).unwrap(), None).unwrap();
    let stores: Vec<_> = plan.rules().iter().map(|rule| rule.store()).collect();
    assert_eq!((stores, plan.domain("d").unwrap().store()), (vec![1, 0, 2], 1));
    let wrong = text.replace("store: near", "store: neat");
    let told = Config::from_text("x", &wrong).unwrap_err().to_string();
    assert!(told.contains("there is no store 'neat'; did you mean 'near'?"), "{told}");
}

fn open(shared: &Arc<Shared>, listener: Listener) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let connection = Connection::new(Arc::clone(shared), listener, None);
    match listener {
        Listener::Resp => drop(tokio::spawn(resp::serve(Stream::Unix(theirs), connection))),
        Listener::Http => drop(tokio::spawn(http::serve(Stream::Unix(theirs), connection))),
        _ => drop(tokio::spawn(admin::serve(Stream::Unix(theirs), connection))),
    }
    ours
}

async fn get(shared: &Arc<Shared>, listener: Listener, path: &str) -> (u16, String, Value) {
    let mut stream = open(shared, listener);
    let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test]
async fn http_says_that_an_answer_is_degraded() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    let check = |policy: &str| format!("/v1/check?policy={policy}&key=k");
    let (status, head, body) = get(&shared, Listener::Http, &check("open")).await;
    assert_eq!((status, &body["degraded"]), (200, &Value::Null));
    assert!(!head.contains("Degraded"), "{head}");
    fake.set_down(true);
    for (policy, status, reason) in
        [("open", 200, "store-failed"), ("closed", 429, "store-failed"), ("local", 200, "local")]
    {
        let (found, head, body) = get(&shared, Listener::Http, &check(policy)).await;
        assert_eq!((found, &body["degraded"]), (status, &json!(true)), "{policy}");
        assert_eq!(body["limits"][0]["reason"], reason, "{policy}");
        assert!(head.contains("Tollgate-Degraded: true"), "{head}");
    }
}

#[tokio::test]
async fn the_openapi_description_has_the_headers_of_a_degraded_answer() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    fake.set_down(true);
    let (.., document) = get(&shared, Listener::Http, "/openapi.json").await;
    for (path, policy) in [("check", "open"), ("check", "closed"), ("peek", "open")] {
        let target = format!("/v1/{path}?policy={policy}&key=k");
        let (status, head, _) = get(&shared, Listener::Http, &target).await;
        let operation = &document["paths"][format!("/v1/{path}")]["get"];
        let described = &operation["responses"][status.to_string()]["headers"];
        let sent = head.lines().filter_map(|line| Some(line.split_once(": ")?.0));
        for name in sent.filter(|name| name.contains("RateLimit") || name.contains("Tollgate")) {
            assert!(described.get(name).is_some(), "{target} {status} sends {name}");
        }
    }
    // One function writes the headers of every decision, so all of these responses have the same.
    let operations = document["paths"].as_object().unwrap().values();
    let operations = operations.flat_map(|item| item.as_object().unwrap().values());
    let responses = operations.flat_map(|operation| operation["responses"].as_object().unwrap());
    let decisions: Vec<_> =
        responses.filter(|(_, response)| response["headers"].get("RateLimit").is_some()).collect();
    assert_eq!(decisions.len(), 10, "200 and 429 of check, peek and reserve");
    for (status, response) in decisions {
        assert!(response["headers"].get("Tollgate-Degraded").is_some(), "{status}: {response}");
    }
}

#[tokio::test]
async fn administrators_see_servers_and_are_told_what_is_degraded() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    assert_eq!(get(&shared, Listener::Admin, "/ready").await.2["status"], "ready");
    let (_, _, store) = get(&shared, Listener::Admin, "/store").await;
    let told = &store["stores"][0];
    assert_eq!((&told["kind"], &told["keys"]), (&json!("fake"), &Value::Null));
    let told = &told["shared"];
    assert_eq!((&told["fleet_size"], &told["pending_keys"]), (&json!(5), &json!(8)));
    assert_eq!(told["nodes"][0]["last_error"], "connection refused");
    assert_eq!(told["decided_without"], json!({"open": 1, "closed": 2, "local": 3}));
    let (_, _, policy) = get(&shared, Listener::Admin, "/policies/local").await;
    assert_eq!((&policy["failure"], &policy["lease"]), (&json!("local"), &json!("auto")));
    assert_eq!(
        policy["bounds"],
        json!({"above": 3, "below": 12, "held_for_ms": 200, "while_away": null, "text": "all of it"})
    );

    fake.set_down(true);
    let (status, _, ready) = get(&shared, Listener::Admin, "/ready").await;
    assert_eq!((status, &ready["status"]), (200, &json!("degraded")));
    assert!(ready["why"].as_str().unwrap().contains("connection refused"), "{ready}");
    assert_eq!(get(&shared, Listener::Admin, "/ready?strict=1").await.0, 503);
    assert_eq!(get(&shared, Listener::Admin, "/health/detail").await.0, 503);
    let text: String = Exposition::new(&shared, Format::Prometheus).collect();
    for line in [
        "tollgate_store_degraded{store=\"default\"} 1\n",
        "tollgate_store_node_up{store=\"default\",node=\"10.0.0.5:6379\"} 0\n",
        "tollgate_store_node_timeouts_total{store=\"default\",node=\"10.0.0.5:6379\"} 1\n",
        "tollgate_store_decisions_total{store=\"default\",by=\"lease\"} 4\n",
        "tollgate_store_pending_keys{store=\"default\"} 8\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}

/// Reads this many bytes of replies.
async fn read(half: &mut OwnedReadHalf, bytes: usize) -> String {
    let mut told = vec![0; bytes];
    half.read_exact(&mut told).await.unwrap();
    String::from_utf8(told).unwrap()
}

#[tokio::test]
async fn commands_of_a_pipeline_wait_together_and_their_replies_are_in_order() {
    let queued = format!("+OK\r\n{}*9\r\n", "+QUEUED\r\n".repeat(9));
    pipelined(["", "", ""]).await;
    pipelined(["MULTI\r\n", "EXEC\r\n", &queued]).await;
}

/// Sends nine commands between a start and an end; `replied` comes before their replies.
async fn pipelined([start, end, replied]: [&str; 3]) {
    let (fake, _hand) = Fake::new(Some(0));
    let shared = shared(&fake, RULES);
    let (mut half, mut ours) = open(&shared, Listener::Resp).into_split();
    let throttle = "CL.THROTTLE k 4 60 60\r\n";
    // Six that take from one bucket of five, a barrier, and one that asks after it.
    let text = format!("{start}{}DEL k\r\nPING\r\n{throttle}{end}", throttle.repeat(6));
    ours.write_all(text.as_bytes()).await.unwrap();
    while fake.waiting() < 6 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fake.waiting(), 6, "all six are on their way, and nothing behind the DEL is");
    fake.let_go(6);
    let mut expected = replied.to_owned();
    for left in (0..5).rev() {
        expected += &format!("*5\r\n:0\r\n:5\r\n:{left}\r\n:-1\r\n:{}\r\n", 5 - left);
    }
    expected += "*5\r\n:1\r\n:5\r\n:0\r\n:1\r\n:5\r\n";
    // DEL looks first whether the key is there.
    while fake.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    fake.let_go(1);
    expected += ":1\r\n+PONG\r\n";
    fake.let_go(1);
    expected += "*5\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:1\r\n";
    assert_eq!(read(&mut half, expected.len()).await, expected);
}

#[tokio::test]
async fn a_pipeline_has_a_bound_on_what_waits_at_once() {
    let (fake, _hand) = Fake::new(Some(10_000));
    let shared = shared(&fake, RULES);
    let (mut half, mut ours) = open(&shared, Listener::Resp).into_split();
    ours.write_all("TG.CHECK open k\r\n".repeat(1000).as_bytes()).await.unwrap();
    drop(ours);
    let mut told = String::new();
    half.read_to_string(&mut told).await.unwrap();
    let plan = shared.engine.plan_arc();
    let counts = plan.rule(plan.named("open").unwrap()).live().counts();
    assert_eq!((counts.of(Counted::Allowed), counts.of(Counted::Denied)), (2, 998));
    assert!(fake.most() <= 64, "{}", fake.most());
}

#[tokio::test]
async fn requests_of_different_connections_wait_together() {
    let (fake, _hand) = Fake::new(Some(0));
    let shared = shared(&fake, RULES);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let shared = Arc::clone(&shared);
        let path = "/v1/check?policy=open&key=k";
        tasks.spawn(async move { get(&shared, Listener::Http, path).await.0 });
    }
    while fake.waiting() < 8 {
        tokio::task::yield_now().await;
    }
    fake.let_go(8);
    let mut statuses = tasks.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429, 429, 429]);
}

#[tokio::test]
async fn commands_about_keys_refuse_clearly_while_the_store_is_away() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    let (mut half, mut ours) = open(&shared, Listener::Resp).into_split();
    fake.set_down(true);
    let away = "-ERR the store cannot be reached, so its state is unknown; try again later";
    // command, how the reply begins
    for (command, expected) in [
        ("CL.THROTTLE k 4 60 60", "*5\r\n:0\r\n"),
        ("TTL k", away),
        ("EXISTS k", away),
        ("DEL k", away),
        ("DBSIZE", "-ERR the keys are in a shared store"),
        ("TG.CHECK closed k", "*"),
    ] {
        ours.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
        let told = read(&mut half, expected.len()).await;
        assert_eq!(told, expected, "{command}");
        ours.write_all(b"ECHO the-end\r\n").await.unwrap();
        let mut rest = String::new();
        while !rest.ends_with("the-end\r\n") {
            rest.push_str(&read(&mut half, 1).await);
        }
    }
    let health = shared.engine.health();
    assert_eq!((health.degraded_decisions(), health.errors()), (2, 3), "TTL, EXISTS, DEL");
}

#[test]
fn limits_that_come_with_requests_go_to_the_store_of_their_domain() {
    let (fake, _hand) = Fake::new(None);
    let shared = shared(&fake, RULES);
    fake.set_down(true);
    let entries = [Entry::new("any", "thing")];
    let unit = tollgate_server::config::Unit::Minute;
    let limit = Some(tollgate_server::engine::AdHocLimit { count: 3, unit });
    let asks = [Ask { subject: Subject::Entries(&entries), hits: Hits::Take(1), limit }];
    let request = Request { domain: "d", asks: &asks, verb: Verb::Check };
    let (plan, now, mut answer) = (shared.engine.plan_arc(), shared.engine.now(), Answer::new());
    block_on(shared.engine.decide(&plan, now, &request, &mut answer)).unwrap();
    assert_eq!(answer.parts()[0].code, Code::FailedOpen);
}
