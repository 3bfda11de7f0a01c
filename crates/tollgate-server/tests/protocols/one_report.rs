//! One decision reads the same over every protocol.

use crate::{
    edges::{Edges, Resp},
    support::{
        descriptor,
        messages::{LimitOverride, RateLimitRequest},
        request,
    },
};
use serde_json::{Value, json};
use tokio::task::LocalSet;
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    server::Settings,
};

const SHOP: &str = "
domain: shop
descriptors:
  - key: bucket
    rate_limit: {name: bucket, quota: 10/s burst 20, algorithm: gcra}
  - key: tenant
    rate_limits:
      - {name: free, quota: 5/s burst 10, algorithm: gcra}
      - {name: free-day, quota: 10k/day, algorithm: gcra}
  - {key: one, metadata: {tier: gold, deep: {a: 1}}, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: two, metadata: {tier: lead, deep: {a: 2, b: 3}}, rate_limit: {unit: day, requests_per_unit: 9}}
forward_auth:
  - path: /auth
    domain: shop
    descriptors: [[{key: bucket, header: X-Key}]]
";

/// Over gRPC it read 10 of 10 three times.
#[tokio::test]
async fn every_protocol_reports_the_same_level() {
    let run = async {
        let mut edges = Edges::start(SHOP, Settings::default()).await;
        let told = edges.get("/v1/check?policy=bucket&key=a").await.json();
        assert_eq!((&told["limit"], &told["remaining"]), (&json!(20), &json!(19)));
        let told = edges.resp("TG.CHECK bucket a").await;
        assert_eq!((told.list()[1].int(), told.list()[2].int()), (20, 18));
        for remaining in [17, 16] {
            let told = edges.envoy(&request(&[("bucket", "a")])).await;
            // 20 come in two seconds, which is no unit of Envoy's.
            assert_eq!(told.short(), (1, vec![(1, 20, 0, remaining, 1)]));
            assert_eq!(
                told.headers()[..2],
                ["RateLimit-Limit: 20".into(), format!("RateLimit-Remaining: {remaining}")]
            );
        }
        let told = edges.get_with("/auth", "X-Key: a\r\n").await;
        assert_eq!(
            (told.header("RateLimit-Limit"), told.header("RateLimit-Remaining")),
            (Some("20"), Some("15"))
        );
        let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "bucket", "value": "a"}]}]});
        let told = edges.post("/json", &body).await.json();
        assert_eq!(told["statuses"][0]["limitRemaining"], json!(14));
        let told = edges.post("/v1/check", &body).await.json();
        assert_eq!((&told["limit"], &told["remaining"]), (&json!(20), &json!(13)));
        let listed = edges.get("/v1/policies").await.json();
        let bucket = &listed["policies"][0];
        assert_eq!(
            (&bucket["limit"], &bucket["count"], &bucket["per_ms"]),
            (&json!(20), &json!(10), &json!(1000))
        );
    };
    LocalSet::new().run_until(run).await;
}

/// Each call takes a twentieth, and each twentieth is a threshold.
#[tokio::test]
async fn every_protocol_crosses_thresholds() {
    let run = async {
        let warned = SHOP.replace(
            "10/s burst 20, algorithm: gcra",
            "10/s burst 20, algorithm: gcra, warn: [5%, 10%, 15%, 20%, 25%, 30%, 35%, 40%]",
        );
        let mut edges = Edges::start(&warned, Settings::default()).await;
        let entries = json!([{"entries": [{"key": "bucket", "value": "a"}]}]);
        let body = json!({"domain": "shop", "descriptors": entries});
        edges.get("/v1/check?policy=bucket&key=a").await;
        edges.resp("TG.CHECK bucket a").await;
        edges.envoy(&request(&[("bucket", "a")])).await;
        edges.get_with("/auth", "X-Key: a\r\n").await;
        edges.post("/json", &body).await;
        edges.post("/v1/check", &body).await;
        edges.post("/v1/reserve", &json!({"policy": "bucket", "key": "a", "cost": 1})).await;
        let plan = edges.shared.engine.plan_arc();
        let live = plan.rule(plan.named("bucket").unwrap()).live();
        let crossed = [5, 10, 15, 20, 25, 30, 35, 40].map(|percent| live.crossed(percent));
        assert_eq!(crossed, [1, 1, 1, 1, 1, 1, 1, 0]);
    };
    LocalSet::new().run_until(run).await;
}

/// Only `free` was charged.
#[tokio::test]
async fn asking_by_name_charges_what_asking_by_descriptor_does() {
    let run = async {
        let mut edges = Edges::start(SHOP, Settings::default()).await;
        let left = |told: &Value| {
            let each = told["limits"].as_array().unwrap().iter();
            each.map(|limit| (limit["policy"].clone(), limit["remaining"].clone()))
                .collect::<Vec<_>>()
        };
        let told = edges.get("/v1/check?policy=free&key=acme").await.json();
        assert_eq!(left(&told), [(json!("free"), json!(9)), (json!("free-day"), json!(9999))]);
        let told = edges.resp("TG.CHECK free-day acme").await;
        assert_eq!((told.list()[1].int(), told.list()[2].int()), (10, 8), "the tightest");
        edges.envoy(&request(&[("tenant", "acme")])).await;
        let told = edges.get("/v1/peek?policy=free-day&key=acme&cost=0").await.json();
        assert_eq!(left(&told), [(json!("free"), json!(7)), (json!("free-day"), json!(9997))]);
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn metadata_of_rules_is_merged_as_the_reference_does() {
    let run = async {
        let settings = Settings { dynamic_metadata: true, ..Settings::default() };
        let mut edges = Edges::start(SHOP, settings).await;
        let entry = |key: &str| json!({"entries": [{"key": key, "value": "x"}]});
        let body = json!({"domain": "shop", "descriptors": [entry("one"), entry("two")]});
        let told = edges.post("/json", &body).await.json();
        let merged = json!({"tier": "gold", "deep": {"a": 1, "b": 3}});
        assert_eq!(told["dynamicMetadata"]["metadata"], merged);
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn overrides_know_weeks_and_descriptors_come_twice() {
    let run = async {
        let mut edges = Edges::start(SHOP, Settings::default()).await;
        let mut asked: RateLimitRequest = request(&[("one", "a")]);
        asked.descriptors[0].limit = Some(LimitOverride { requests_per_unit: 5, unit: 7 });
        let (code, statuses) = edges.envoy(&asked).await.short();
        let (_, limit, unit, remaining, _) = statuses[0];
        assert_eq!((code, limit, unit, remaining), (1, 5, 7, 4));
        // The same descriptor twice is charged twice, and both report the permits that remain after
        // both charges.
        let twice = RateLimitRequest { descriptors: vec![descriptor(&[("one", "b")]); 2], ..asked };
        let (_, statuses) = edges.envoy(&twice).await.short();
        assert_eq!(statuses.iter().map(|status| status.3).collect::<Vec<_>>(), [7, 7]);
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn a_check_explains_itself() {
    let run = async {
        let mut edges = Edges::start(SHOP, Settings::default()).await;
        edges.get("/v1/check?policy=free&key=acme&cost=6").await;
        let told = edges.get("/v1/check?policy=free&key=acme&cost=5&explain=1").await;
        assert_eq!(told.status, 429);
        let explained = &told.json()["explain"];
        assert_eq!(explained["bound"], "free");
        assert_eq!(explained["asks"][0]["would_pass"], json!({"cost": 4, "retry_after_ms": 200}));
        let rule = |index: usize, field: &str| explained["rules"][index][field].clone();
        for (index, expected) in [
            (0, json!(["free", "shop:tenant", "acme", true, "quota", 5, 0, 4, 4])),
            (
                1,
                json!([
                    "free-day",
                    "shop:tenant#2",
                    "acme",
                    false,
                    "refused-elsewhere",
                    5,
                    0,
                    9994,
                    9994
                ]),
            ),
        ] {
            let fields =
                ["policy", "id", "key", "is_bound", "reason", "cost", "charged", "before", "after"];
            assert_eq!(json!(fields.map(|field| rule(index, field))), expected);
        }
        let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "b"}]}]});
        let told = edges.post("/v1/check?explain=1&denied_status=403", &body).await.json();
        let ask = &told["explain"]["asks"][0];
        assert_eq!(
            ask["matched"],
            json!(["tenant=b: matched by any value, each value counted separately"])
        );
        assert_eq!(ask["would_pass"]["cost"], 9);
        let (before, after) =
            (&told["explain"]["rules"][0]["before"], &told["explain"]["rules"][0]["after"]);
        assert_eq!((before, after), (&json!(10), &json!(9)));
        let told = edges.get("/v1/check?policy=free&key=acme&explain=yes").await;
        assert_eq!(told.status, 400);
        assert!(edges.get("/v1/check?policy=free&key=acme").await.json().get("explain").is_none());
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn an_explanation_needs_the_permission_to_read() {
    let run = async {
        let only_check = Permissions::NONE.with(Permission::Check);
        let token = Token::new(Secret::new("check-only"), &[Listener::Http], only_check);
        let access = Access::new(vec![token]);
        let mut edges = Edges::start(SHOP, Settings { access, ..Settings::default() }).await;
        let headers = "Authorization: Bearer check-only\r\n";
        for (query, status) in [("", 200), ("&explain=1", 403)] {
            let target = format!("/v1/check?policy=free&key=acme{query}");
            assert_eq!(edges.get_with(&target, headers).await.status, status, "{query}");
        }
        let none_charged = edges.shared.engine.plan_arc().rules()[1].live().counts().charged;
        assert_eq!(none_charged, 1, "what is forbidden charges nothing");
    };
    LocalSet::new().run_until(run).await;
}

/// The refusing policy and the figures were of two limits.
#[tokio::test]
async fn the_figures_are_those_of_the_policy_that_bound() {
    let run = async {
        let mut edges = Edges::start(SHOP, Settings::default()).await;
        edges.resp("TG.CHECK bucket a 20 free b 10").await;
        let told = edges.resp("TG.CHECK bucket a 20 free b 5").await;
        let list = told.list();
        assert_eq!((list[0].int(), list[1].int(), list[3].int()), (0, 20, 2000));
        assert_eq!(list[5], Resp::Text("bucket".into()));
    };
    LocalSet::new().run_until(run).await;
}
