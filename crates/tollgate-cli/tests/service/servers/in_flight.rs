//! Slots of `concurrency` rules that several processes share in Redis.

use super::fleet::{SOON, folders, start, wait_until};
use crate::process::{Service, http};
use serde_json::{Value, json};
use tollgate_rig::{Flavor, Redis, within};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, concurrency: {name: slots, limit: 3, lease: 1h}}
  - {key: short, concurrency: {name: short, limit: 1, lease: 100ms}}
  - {key: open, failure: open, concurrency: {name: open, limit: 1}}
  - {key: closed, failure: closed, concurrency: {name: closed, limit: 1}}
  - {key: local, failure: local, concurrency: {name: local, limit: 4}}
";

fn post(service: &Service, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = http(service.http, "POST", path, &body.to_string());
    (status, serde_json::from_str(&body).unwrap())
}

fn enter(service: &Service, policy: &str) -> (u16, Value) {
    post(service, "/v1/enter", &json!({"policy": policy, "key": "a"}))
}

fn hold(service: &Service, path: &str, policy: &str, id: &Value) -> u16 {
    post(service, path, &json!({"policy": policy, "key": "a", "id": id})).0
}

#[test]
fn two_processes_share_the_slots_and_either_ends_a_lease() {
    let redis = Redis::start(Flavor::Redis);
    let folders = folders();
    let [one, other] = [0, 1].map(|at| start(&folders[at], YAML, &redis));
    [&one, &other].into_iter().for_each(|service| wait_until(service, "ready"));
    let (status, first) = enter(&one, "slots");
    assert_eq!((status, &first["in_flight"]), (200, &json!(1)));
    assert_eq!(enter(&other, "slots").1["in_flight"], 2);
    let third = other.client().ask("TG.ENTER slots a");
    assert!(third.starts_with("[1, ") && third.ends_with(", 3, 3, 3600000, 0, quota]"), "{third}");
    for service in [&one, &other] {
        let (status, refused) = enter(service, "slots");
        assert_eq!((status, &refused["in_flight"]), (429, &json!(3)), "{refused}");
        assert!((1..=3_600_000).contains(&refused["retry_after_ms"].as_u64().unwrap()));
    }
    assert_eq!(hold(&other, "/v1/renew", "slots", &first["id"]), 200);
    assert_eq!(hold(&other, "/v1/leave", "slots", &first["id"]), 200);
    assert_eq!(hold(&one, "/v1/leave", "slots", &first["id"]), 404, "only once");
    assert_eq!(enter(&one, "slots").0, 200);
    let (_, short) = enter(&one, "short");
    within(SOON, "the lease of a caller that does not renew ends", || {
        enter(&other, "short").0 == 200
    });
    assert_eq!(hold(&one, "/v1/renew", "short", &short["id"]), 404);
}

#[test]
fn while_redis_is_away_each_rule_decides_by_its_failure_policy() {
    let mut redis = Redis::start(Flavor::Redis);
    let folder = tempfile::tempdir().unwrap();
    let service = start(&folder, YAML, &redis);
    wait_until(&service, "ready");
    let (_, held) = enter(&service, "slots");
    redis.kill();
    wait_until(&service, "degraded");
    for _ in 0..3 {
        let (status, open) = enter(&service, "open");
        assert_eq!(
            (status, &open["degraded"], &open["in_flight"]),
            (200, &json!(true), &json!(null))
        );
        assert_eq!(open["reason"], "store-failed");
        assert_eq!(hold(&service, "/v1/leave", "open", &open["id"]), 200, "nothing was counted");
    }
    let (status, closed) = enter(&service, "closed");
    assert_eq!((status, &closed["reason"]), (429, &json!("store-failed")));
    // The fleet has two processes, so this one has half of four slots.
    let local = [0, 1, 2].map(|_| enter(&service, "local"));
    assert_eq!(local.each_ref().map(|(status, _)| *status), [200, 200, 429]);
    assert_eq!(local[2].1["reason"], "local");
    let (status, failed) =
        post(&service, "/v1/renew", &json!({"policy": "slots", "key": "a", "id": held["id"]}));
    assert_eq!((status, &failed["type"]), (503, &json!("urn:tollgate:problem:store-failed")));
    redis.restart();
    within(SOON, "Redis decides again", || enter(&service, "closed").0 == 200);
    assert_eq!(
        hold(&service, "/v1/leave", "local", &local[0].1["id"]),
        200,
        "here, after it is back"
    );
}
