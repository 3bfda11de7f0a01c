//! Any decision gives valid fields, bodies and statuses.

use super::*;
use proptest::prelude::*;
use tollgate_tower::answer::{Body, Jitter, Legacy, OnSuccess, Partition, Unit};

fn any_decision() -> impl Strategy<Value = Decision> {
    let outcome = prop_oneof![Just(Outcome::Allowed), Just(Outcome::Later), Just(Outcome::Never)];
    let tick = || prop_oneof![any::<u64>(), 0..4_000_000_000_000_u64].prop_map(Tick::from_nanos);
    let number = || prop_oneof![any::<u64>(), 0..100_u64];
    let times = (tick(), tick(), proptest::option::of(tick()));
    (outcome, times, (number(), number(), number())).prop_map(|(outcome, times, numbers)| {
        let ((at, retry_at, full_at), (cost, limit, remaining)) = (times, numbers);
        Decision::answered(Answer { outcome, at, cost, limit, remaining, retry_at, full_at })
    })
}

fn any_label() -> impl Strategy<Value = Label> {
    let unit = prop_oneof![
        Just(Unit::Requests),
        Just(Unit::ContentBytes),
        Just(Unit::ConcurrentRequests),
        "[ -~]{1,20}".prop_map(|name| Unit::Other(name.into())),
    ];
    let burst = proptest::option::of(any::<u64>());
    let quota = (any::<u64>(), any::<u64>(), burst).prop_map(|(count, per, burst)| {
        let quota = Quota::per(count, Duration::from_nanos(per));
        burst.map_or(quota, |burst| quota.burst(burst))
    });
    let quota = prop_oneof![4 => quota, 1 => Just(Quota::unlimited())];
    ("[ -~]{1,20}", quota, unit)
        .prop_map(|(name, quota, unit)| Label::builder(name, quota).unit(unit).build().unwrap())
}

fn any_parts() -> impl Strategy<Value = Vec<(Label, Decision, (bool, bool))>> {
    proptest::collection::vec((any_label(), any_decision(), any::<(bool, bool)>()), 0..20)
}

/// Checks the headers of any verdict.
fn check(headers: &HeaderMap, verdict: &Verdict<'_>) {
    let whole = |text: &str| text.parse::<u64>().unwrap();
    for (field, keys) in [("ratelimit", &["r", "t"][..]), ("ratelimit-policy", &["q", "w"])] {
        if !headers.contains_key(field) {
            continue;
        }
        let read = items(headers, field);
        assert!(!read.is_empty() && read.len() <= 16, "an empty list is not sent");
        for (_, parameters) in read {
            assert!(parameters.contains_key(keys[0]));
            for key in keys {
                assert!(
                    parameters.get(*key).is_none_or(|value| whole(value) <= 999_999_999_999_999)
                );
            }
            assert_ne!(parameters.get("w").map(String::as_str), Some("0"));
        }
    }
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
        let _ = text(headers, name).map(whole);
    }
    let wait = text(headers, "retry-after").map(whole);
    assert!(wait.is_none_or(|wait| wait >= 1));
    if let (false, Some(wait)) = (verdict.is_allowed(), wait) {
        let left = headers.contains_key("ratelimit").then(|| items(headers, "ratelimit"));
        let t = left.and_then(|left| left[0].1.get("t").map(|t| whole(t)));
        assert!(t.is_none_or(|t| wait >= t), "Retry-After {wait} is before t {t:?}");
        assert!(Duration::from_secs(wait) >= verdict.retry_after().unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_decision_gives_a_valid_answer(
        given in any_parts(),
        now in any::<u64>(),
        (percent, random, is_epoch) in (0..=100_u8, any::<u64>(), any::<bool>()),
    ) {
        let partition = Partition::hashed(&[1; 16], b"key");
        let parts: Vec<_> = given.iter().map(|(label, decision, (is_shadow, has_partition))| {
            let told = Told::new(label, *decision);
            let told = if *has_partition { told.partition(partition) } else { told };
            if *is_shadow { told.shadow() } else { told }
        }).collect();
        let jitter = Jitter::percent_of_window(percent).unwrap();
        let verdict = Verdict::new(&clock(), Tick::from_nanos(now), &parts);
        prop_assert_eq!(verdict.is_allowed(), !parts.iter().any(Told::is_refusing));
        let verdict = verdict.jittered(jitter, || random);
        let legacy = if is_epoch { Legacy::Epoch } else { Legacy::Delta };
        let headers = Headers::new().three_fields().legacy(legacy);
        let headers = headers.on_success(OnSuccess::LeftAndRetryAfter);
        check(&written(headers, &verdict), &verdict);
        if !verdict.is_allowed() {
            let response = headers.response(&verdict, Body::Problem);
            check(response.headers(), &verdict);
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            prop_assert_eq!(&body["status"], response.status().as_u16());
            prop_assert!(!body["violated-policies"].as_array().unwrap().is_empty());
            let response = headers.grpc_response(&verdict);
            check(response.headers(), &verdict);
            prop_assert!(tonic::Status::from_header_map(response.headers()).is_some());
        }
    }
}
