//! Errors and hints before, or with, the first request.

use http::{Request, StatusCode};
use tollgate::Quota;
use tollgate_tower::{
    Charge, Info, Key, LayerError, Peer, Policy, RateLimitLayer, Settle,
    key::{ClientAddress, Trust},
};
use tower::{Layer, ServiceExt};

fn build(policy: Policy) -> Result<RateLimitLayer, LayerError> {
    RateLimitLayer::builder().policy(policy).build()
}

fn code(policy: Policy) -> Option<&'static str> {
    build(policy).err().map(|error| error.code())
}

/// Was a fault, medium: The commonest mistake behind a proxy is not to forget the header but to
/// trust the wrong network (a container's `172.17.0.1` with `10.0.0.0/8`), or to count a hop too
/// many. Then all clients are counted as the proxy, which is what TG-K51 warns of, and nothing is
/// logged.
///
/// Right: a hint if the header that is read is present and not believed.
#[test]
fn a_header_that_is_there_and_not_believed_is_told_of() {
    let request = Request::builder()
        .extension(Peer(([172, 17, 0, 1], 4711).into()))
        .header("x-forwarded-for", "203.0.113.9")
        .header("cf-connecting-ip", "203.0.113.9")
        .body(())
        .unwrap();
    let networks = || Trust::networks(["10.0.0.0/8"]);
    for address in [
        ClientAddress::x_forwarded_for(networks()),
        ClientAddress::x_forwarded_for(Trust::hops(2)),
        ClientAddress::header("cf-connecting-ip", networks()),
        ClientAddress::header("x-real-ip", Trust::hops(1)),
    ] {
        let key = Key::client(address.clone());
        assert!(key.hint(&Info::of(&request)).is_some(), "{address:?}");
    }
}

/// Was a fault, medium: A tier without a limit (staff, your own probes) cannot be built, and the
/// error gives a wrong reason: "a cost of 1 is more than the 0 permits that there can ever be".
/// `answer` supports unlimited quotas, `Limiter` accepts them, and so does a policy whose cost is a
/// closure.
///
/// Right: it builds; its requests are neither refused nor reported.
#[tokio::test]
async fn a_tier_may_be_unlimited() {
    let policy = Policy::new("users", Quota::per_second(5)).tier("staff", Quota::unlimited());
    let staff = policy.tier_by(|info| info.uri().path().contains("staff").then_some(0));
    // With a second policy it takes the general path.
    let builder = || RateLimitLayer::builder().policy(staff.clone());
    for builder in [
        builder(),
        builder().policy(Policy::new("other", Quota::per_hour(900))),
        RateLimitLayer::builder().policy(staff.clone().settle(Settle::body_bytes())),
    ] {
        let limits = builder.build().unwrap();
        for number in 0..20 {
            let request = Request::get("/staff").body(String::new()).unwrap();
            let service = limits.layer(tower::service_fn(super::hello));
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "request {number}");
            let told = super::joined(response.headers(), "ratelimit-policy");
            assert!(!told.contains("users"), "{told}");
        }
        let others = super::ask(&limits).await;
        assert!(super::joined(others.headers(), "ratelimit").contains("users"));
    }
}

/// Was a fault, low: docs/http.md has "none per second" as the example of TG-L07, "the quota cannot
/// be". The error is TG-L10, which names a cost that the user has not set.
///
/// Right: one of them.
#[test]
fn a_quota_of_nothing_is_told_as_such() {
    for quota in [Quota::per_second(0), Quota::per_second(1).burst(0)] {
        assert_eq!(code(Policy::new("p", quota)), Some("TG-L07"), "{quota:?}");
    }
}

/// Was a fault, low: `0.0.0.0/1`, `128.0.0.0/2` and `192.0.0.0/3` are every IPv4 address that a
/// client can have: the rest is multicast and reserved. The docs promise this for "all of public
/// IPv6".
///
/// Right: TG-K01.
#[test]
fn all_of_unicast_is_everybody() {
    let world = Trust::networks(["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"]);
    let key = Key::client(ClientAddress::x_forwarded_for(world));
    assert_eq!(code(Policy::new("p", Quota::per_second(1)).key(key)), Some("TG-K01"));
    let some = Trust::networks(["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/4"]);
    let key = Key::client(ClientAddress::x_forwarded_for(some));
    assert_eq!(code(Policy::new("p", Quota::per_second(1)).key(key)), None);
}

/// Was a fault, low: Each of these builds, and does not do what it says: a tier without a name is
/// reported as `p/`; of three costs the last holds; and a policy that charges no status at all
/// limits only requests in flight.
///
/// Right: refused, as `memory` beside `store` is (TG-L12).
#[test]
fn what_contradicts_itself_is_refused() {
    let policy = || Policy::new("p", Quota::per_second(9));
    for (code, what, policy) in [
        (
            "TG-L17",
            "a tier without a name",
            policy().tier("", Quota::per_second(1)).tier_by(|_| None),
        ),
        ("TG-L18", "three costs", policy().cost(3).cost_by(|_| 1).cost_by_length(2)),
        ("TG-L19", "no status", policy().charge(Charge::on_status(Vec::<StatusCode>::new()))),
    ] {
        let error = build(policy).unwrap_err();
        assert_eq!(error.code(), code, "{what}: {error}");
    }
}
