//! Responses to Envoy, case by case, over a real connection and with a clock that stands still.

use crate::support::{
    Client, descriptor,
    messages::{Descriptor, LimitOverride, RateLimitRequest},
    request, server,
};
use std::time::Duration;
use tollgate_server::{net::Access, server::Settings};

const OK: i32 = 1;
const OVER: i32 = 2;
const SHOP: &str = r"
domain: shop
descriptors:
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-minute}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: zero
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: odd
    rate_limit: {per: 30s, requests_per_unit: 5}
  - key: smooth
    rate_limit: {unit: minute, requests_per_unit: 6, algorithm: gcra}
  - key: huge
    rate_limit: {unit: week, requests_per_unit: 9000000000}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota2
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: told
    metadata: {tier: gold, list: [1, null, true]}
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: replaces
    rate_limit: {unit: minute, requests_per_unit: 9, name: new, replaces: [{name: per-minute}]}
";

fn plain() -> Settings {
    Settings { response_headers: false, ..Settings::default() }
}

#[tokio::test]
async fn statuses_are_those_of_the_reference() {
    let (shared, hand) = server(SHOP, plain());
    let mut client = Client::connect(&shared).await;
    // seconds to move on, entries, overall code, (code, limit, unit, remaining, reset) of each
    type Row<'a> = (u64, &'a [(&'a str, &'a str)], i32, &'a [crate::support::messages::Short]);
    let rows: &[Row<'_>] = &[
        (0, &[("minute", "a")], OK, &[(OK, 3, 2, 2, 41)]),
        (0, &[("minute", "a")], OK, &[(OK, 3, 2, 1, 41)]),
        (1, &[("minute", "a")], OK, &[(OK, 3, 2, 0, 40)]),
        (0, &[("minute", "a")], OVER, &[(OVER, 3, 2, 0, 40)]),
        // Different keys are counted apart, and a request that is refused as a whole is not
        // charged.
        (0, &[("hour", "a"), ("minute", "a")], OVER, &[(OK, 10, 3, 10, 1180), (OVER, 3, 2, 0, 40)]),
        (0, &[("hour", "a"), ("minute", "b")], OK, &[(OK, 10, 3, 9, 0), (OK, 3, 2, 2, 40)]),
        (40, &[("minute", "a")], OK, &[(OK, 3, 2, 2, 60)]),
        // No rule matches; the rule has no limit.
        (0, &[("nobody", "a")], OK, &[(OK, 0, 0, 0, 0)]),
        (0, &[("free", "a")], OK, &[(OK, 0, 0, u32::MAX, 0)]),
        (0, &[("zero", "a")], OVER, &[(OVER, 0, 4, 0, 80_340)]),
        (0, &[("shadow", "a")], OK, &[(OK, 1, 2, 0, 60)]),
        (0, &[("shadow", "a")], OK, &[(OK, 1, 2, 0, 60)]),
        // A period that is not a unit, and a count that needs more bits than the field has.
        (0, &[("odd", "a")], OK, &[(OK, 5, 0, 4, 30)]),
        (0, &[("huge", "a")], OK, &[(OK, u32::MAX, 7, u32::MAX, 0)]),
        // One in ten seconds, burst six.
        (0, &[("smooth", "a")], OK, &[(OK, 6, 2, 5, 10)]),
    ];
    for (row, (secs, entries, overall, statuses)) in rows.iter().enumerate() {
        hand.advance(Duration::from_secs(*secs));
        let (code, mut told) = client.ask(&request(entries)).await.short();
        for (told, expected) in told.iter_mut().zip(*statuses) {
            if expected.4 == 0 && expected.1 != 0 {
                told.4 = 0;
            }
        }
        assert_eq!((code, &*told), (*overall, *statuses), "row {row}: {entries:?}");
    }
}

#[tokio::test]
async fn a_refused_rule_that_refills_tells_when_to_try_again() {
    let (shared, _hand) = server(SHOP, plain());
    let mut client = Client::connect(&shared).await;
    let six = RateLimitRequest { hits_addend: 6, ..request(&[("smooth", "a")]) };
    assert_eq!(client.ask(&six).await.short(), (OK, vec![(OK, 6, 2, 0, 60)]));
    let told = client.ask(&request(&[("smooth", "a")])).await;
    assert_eq!(told.short(), (OVER, vec![(OVER, 6, 2, 0, 10)]));
}

#[tokio::test]
async fn hits_are_taken_looked_at_and_given_back() {
    let access = Access { negative_hits: true, ..Access::default() };
    let (shared, _hand) = server(SHOP, Settings { access, ..plain() });
    let mut client = Client::connect(&shared).await;
    let of = |hits_addend, is_negative_hits| Descriptor {
        hits_addend,
        is_negative_hits,
        ..descriptor(&[("hour", "a")])
    };
    for (row, (own, negative, of_request, code, remaining)) in [
        (None, false, 4, OK, 6),
        (Some(0), false, 9, OK, 6),
        (Some(3), false, 9, OK, 3),
        (None, false, 4, OVER, 0),
        (None, false, 3, OK, 0),
        (Some(0), false, 0, OK, 0),
        (Some(2), true, 0, OK, 2),
        (None, true, 0, OK, 3),
        (Some(100), true, 0, OK, 10),
        (Some(u64::MAX), false, 0, OVER, 0),
        (Some(10), false, 0, OK, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let descriptors = vec![of(own, negative)];
        let asked = RateLimitRequest { hits_addend: of_request, descriptors, ..request(&[]) };
        let told = client.ask(&asked).await;
        let status = told.statuses[0].short();
        assert_eq!((told.overall_code, status.3), (code, remaining), "row {row}: {status:?}");
    }
}

#[tokio::test]
async fn a_limit_may_come_with_the_request() {
    let (shared, _hand) = server(SHOP, plain());
    let mut client = Client::connect(&shared).await;
    let with = |requests_per_unit, unit, domain: &str| RateLimitRequest {
        domain: domain.into(),
        descriptors: vec![Descriptor {
            limit: Some(LimitOverride { requests_per_unit, unit }),
            ..descriptor(&[("any", "thing")])
        }],
        hits_addend: 0,
    };
    for (row, (asked, overall, status)) in [
        (with(2, 2, "shop"), OK, (OK, 2, 2, 1, 41)),
        (with(2, 2, "shop"), OK, (OK, 2, 2, 0, 41)),
        (with(2, 2, "shop"), OVER, (OVER, 2, 2, 0, 41)),
        (with(5, 1, "shop"), OK, (OK, 5, 1, 4, 1)),
        (with(0, 2, "shop"), OVER, (OVER, 0, 2, 0, 41)),
        // The domain must exist.
        (with(0, 2, "none"), OK, (OK, 0, 0, 0, 0)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(client.ask(&asked).await.short(), (overall, vec![status]), "row {row}");
    }
}

#[tokio::test]
async fn spent_quotas_refuse_only_together() {
    let (shared, _hand) = server(SHOP, plain());
    let mut client = Client::connect(&shared).await;
    let both = request(&[("quota", "a"), ("quota2", "a")]);
    for (row, expected) in
        [(OK, [OK, OK]), (OK, [OVER, OK]), (OVER, [OVER, OVER])].into_iter().enumerate()
    {
        let (code, statuses) = client.ask(&both).await.short();
        let codes: Vec<_> = statuses.iter().map(|status| status.0).collect();
        assert_eq!((code, &*codes), (expected.0, &expected.1[..]), "row {row}");
    }
}

#[tokio::test]
async fn a_replaced_rule_does_not_apply() {
    let (shared, _hand) = server(SHOP, plain());
    let mut client = Client::connect(&shared).await;
    let told = client.ask(&request(&[("minute", "a"), ("replaces", "a")])).await;
    assert_eq!(told.short(), (OK, vec![(OK, 0, 0, 0, 0), (OK, 9, 2, 8, 41)]));
    assert_eq!(told.statuses[1].current_limit.clone().unwrap().name, "new");
}

#[tokio::test]
async fn headers_tell_of_the_tightest_limit() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let mut told = client.ask(&request(&[("hour", "a"), ("minute", "a"), ("free", "a")])).await;
    let three = ["RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 41"];
    assert_eq!(told.headers(), three);
    for _ in 0..3 {
        told = client.ask(&request(&[("hour", "a"), ("minute", "a")])).await;
    }
    assert_eq!(told.overall_code, OVER);
    let refused = ["RateLimit-Limit: 3", "RateLimit-Remaining: 0", "RateLimit-Reset: 41"];
    assert_eq!(told.headers()[..3], refused);
    assert_eq!(told.headers()[3..], ["Retry-After: 41"]);
    // No wait helps: the response has no retry time.
    let told = client.ask(&request(&[("zero", "a"), ("minute", "a")])).await;
    let never = ["RateLimit-Limit: 0", "RateLimit-Remaining: 0", "RateLimit-Reset: 80381"];
    assert_eq!(told.headers(), never);
    // Nothing limits: there are no headers.
    assert!(client.ask(&request(&[("free", "a"), ("none", "a")])).await.headers().is_empty());
}

#[tokio::test]
async fn metadata_tells_what_was_asked_and_what_rules_tell() {
    use prost_types::value::Kind;
    let (shared, _hand) = server(SHOP, Settings { dynamic_metadata: true, ..plain() });
    let mut client = Client::connect(&shared).await;
    let mut asked = request(&[("told", "a"), ("minute", "b")]);
    asked.descriptors[1].hits_addend = Some(2);
    asked.descriptors[1].limit = Some(LimitOverride { requests_per_unit: 42, unit: 3 });
    asked.hits_addend = 1;
    let told = client.ask(&asked).await.dynamic_metadata.unwrap();
    assert_eq!(told.fields["domain"].kind, Some(Kind::StringValue("shop".into())));
    assert_eq!(told.fields["hitsAddend"].kind, Some(Kind::NumberValue(1.0)));
    let text = format!("{told:?}");
    for part in ["told=a", "minute=b", "requests_per_unit:42 unit:HOUR", "gold", "NullValue"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // The rule denies: the response does not have its metadata.
    let told = client.ask(&asked).await.dynamic_metadata.unwrap();
    assert!(!told.fields.contains_key("metadata"), "{told:?}");
}

#[tokio::test]
async fn the_limit_is_exact_with_many_calls_in_flight() {
    let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 100}\n";
    let (shared, _hand) = server(text, Settings::default());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::connect(&shared).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..800 {
        let mut client = clients[index % 4].clone();
        let name = ["a", "b", "c"][index % 3];
        tasks.spawn(async move { (name, client.ask(&request(&[("user", name)])).await) });
    }
    let (mut passed, mut refused) = ([0; 3], 0);
    while let Some(done) = tasks.join_next().await {
        let (name, told) = done.unwrap();
        match told.overall_code {
            OK => passed[usize::from(name.as_bytes()[0] - b'a')] += 1,
            _ => refused += 1,
        }
    }
    assert_eq!((passed, refused), ([100; 3], 500));
    let counts = shared.traffic(tollgate_server::net::Listener::Grpc).counts();
    assert_eq!((counts.open, counts.requests, counts.bad_requests), (4, 800, 0));
}

#[tokio::test]
async fn a_store_that_must_be_waited_for_holds_nobody_up() {
    use std::sync::Arc;
    use tollgate::store::MemoryStore;
    use tollgate_server::engine::Backend;
    // The same store, but through the interface for stores behind a network.
    let store = Backend::Other(Arc::new(MemoryStore::builder().build().unwrap()));
    let shared = crate::support::server_on(SHOP, plain(), store);
    let client = Client::connect(&shared).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut client = client.clone();
        tasks.spawn(async move { client.ask(&request(&[("hour", "a")])).await.overall_code });
    }
    let codes = tasks.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == OK).count(), 10);
}
