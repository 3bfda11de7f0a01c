//! Rules with `adaptive` whose rate several processes share in Redis.

use super::fleet::{SOON, folders, start, wait_until};
use crate::process::{Service, http};
use serde_json::Value;
use tollgate_rig::{Flavor, Redis, within};

const YAML: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: {name: upstream, quota: 100/s, algorithm: gcra}
    adaptive: {follow: reports, min: 10/s, period: 100ms}
";

/// Returns the rate in force, and the one that the process would have alone.
fn rates(service: &Service) -> (f64, f64) {
    let (_, body) = service.admin("GET", "/policies/upstream", "");
    let told: Value = serde_json::from_str(&body).unwrap();
    let rate = |name: &str| told["adaptive"][name].as_f64().unwrap();
    (rate("per_second"), rate("own_per_second"))
}

fn report(service: &Service, outcome: &str) {
    let body = format!(r#"{{"policy":"upstream","outcome":"{outcome}","count":100}}"#);
    assert_eq!(http(service.http, "POST", "/v1/report", &body).0, 200);
}

#[test]
fn all_services_have_the_lowest_rate_and_rise_with_it() {
    let redis = Redis::start(Flavor::Redis);
    let folders = folders();
    let [one, other] = [0, 1].map(|at| start(&folders[at], YAML, &redis));
    [&one, &other].into_iter().for_each(|service| wait_until(service, "ready"));
    within(SOON, "reports to one service lower the rate of both", || {
        report(&one, "overload");
        rates(&one).0 == 10.0 && rates(&other) == (10.0, 100.0)
    });
    within(SOON, "and raise it again", || {
        report(&one, "success");
        rates(&one) == (100.0, 100.0) && rates(&other) == (100.0, 100.0)
    });
    within(SOON, "a rate falls again", || {
        report(&one, "failure");
        rates(&other).0 == 10.0
    });
    drop(one);
    within(SOON, "the rate of a process that is gone does not count", || {
        rates(&other) == (100.0, 100.0)
    });
}
