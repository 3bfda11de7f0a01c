//! `RateLimitLayer::top_keys`: the keys that use a limit most, and those that it refuses most.

use http::{Request, Response};
use std::convert::Infallible;
use tollgate::{Clock, Quota, TopKey, observe::KeyForm, store::MemoryStore};
use tollgate_tower::{Key, Mode, Policy, RateLimitBuilder, RateLimitLayer};
use tower::ServiceExt;
use tower_layer::Layer;

async fn answer(
    _: Request<()>,
) -> Result<Response<http_body_util::Empty<bytes::Bytes>>, Infallible> {
    Ok(Response::default())
}

async fn ask(layer: &RateLimitLayer, tenant: &str) -> u16 {
    let request = Request::get("/").header("x-tenant", tenant).body(()).unwrap();
    let response = layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap();
    response.status().as_u16()
}

/// Counts by the value of a header that is not secret.
fn tenant() -> Key {
    Key::from_fn(|info, key| {
        let name = info.headers().get("x-tenant");
        name.inspect(|name| key.push(name.as_bytes())).is_some()
    })
}

fn store() -> MemoryStore {
    let (clock, _hand) = Clock::manual();
    MemoryStore::builder().clock(clock).build().unwrap()
}

fn in_memory() -> RateLimitBuilder {
    RateLimitLayer::builder().memory(store())
}

fn rows(keys: &[TopKey]) -> Vec<(&str, u64)> {
    keys.iter().map(|key| (key.name.as_str(), key.count)).collect()
}

#[tokio::test]
async fn the_noisy_tenant_has_a_name_on_every_path() {
    let policy = || Policy::new("tenants", Quota::per_hour(3)).key(tenant());
    let layers = [
        ("fast path", in_memory().policy(policy())),
        (
            "general path",
            in_memory().policy(policy()).policy(Policy::new("all", Quota::per_day(99))),
        ),
        ("shared store", RateLimitLayer::builder().store(store()).policy(policy())),
    ];
    for (path, builder) in layers {
        let layer = builder.top_keys(10, KeyForm::Plain).build().unwrap();
        for _ in 0..9 {
            let _ = ask(&layer, "noisy").await;
        }
        for _ in 0..2 {
            assert_eq!(ask(&layer, "quiet").await, 200, "{path}");
        }
        let top = layer.top_keys("tenants").unwrap();
        assert_eq!(rows(&top.top_allowed(9)), [("noisy", 3), ("quiet", 2)], "{path}");
        assert_eq!(rows(&top.top_denied(9)), [("noisy", 6)], "{path}");
        assert_eq!(top.distinct(), 2, "{path}");
    }
}

#[tokio::test]
async fn a_request_is_ranked_by_what_it_was_charged_and_by_what_refused_it() {
    let gold =
        |info: &tollgate_tower::Info<'_>| (info.headers()["x-tenant"] == "gold").then_some(0);
    let layer = in_memory()
        .policy(Policy::new("all", Quota::once(4)))
        .policy(
            Policy::new("each", Quota::once(2))
                .key(tenant())
                .cost(2)
                .tier("gold", Quota::once(8))
                .tier_by(gold),
        )
        .policy(Policy::new("new", Quota::once(1)).key(tenant()).mode(Mode::Shadow))
        .top_keys(10, KeyForm::Plain)
        .build()
        .unwrap();
    // all: 4, each: 2 or 8 by 2
    for (tenant, status) in
        [("a", 200), ("a", 429), ("gold", 200), ("gold", 200), ("b", 200), ("b", 429)]
    {
        assert_eq!(ask(&layer, tenant).await, status, "{tenant}");
    }
    assert_eq!(ask(&layer, "c").await, 429, "refused by `all`, which has no key");
    let each = layer.top_keys("each").unwrap();
    assert_eq!(rows(&each.top_allowed(9)), [("gold", 4), ("a", 2), ("b", 2)]);
    assert_eq!(rows(&each.top_denied(9)), [("a", 2), ("b", 2)], "c was not refused by it");
    let shadow = layer.top_keys("new").unwrap();
    assert_eq!(rows(&shadow.top_allowed(9)), [("a", 1), ("b", 1), ("gold", 1)]);
    assert_eq!(rows(&shadow.top_denied(9)), [("gold", 1)], "it would have been refused");
    assert!(layer.top_keys("all").is_none(), "it has no key");
    assert!(layer.top_keys("each/gold").is_none(), "tiers are ranked with their policy");
}

#[tokio::test]
async fn keys_are_hashed_by_choice_and_secrets_always() {
    let by_secret = || Key::header("x-tenant");
    // form, key, how long its name is, whether the name shows the header
    for (form, key, length, is_shown) in [
        (KeyForm::Plain, tenant(), 4, true),
        (KeyForm::Hashed, tenant(), 16, false),
        (KeyForm::Plain, by_secret(), 9, false),
        (KeyForm::Hashed, by_secret(), 16, false),
    ] {
        let row = format!("{form:?} {key:?}");
        let policy = Policy::new("each", Quota::per_hour(9)).key(key);
        let layer = in_memory().policy(policy).top_keys(10, form).build().unwrap();
        assert_eq!(ask(&layer, "acme").await, 200);
        let top = layer.top_keys("each").unwrap().top_allowed(9);
        let [TopKey { name, .. }] = &top[..] else { panic!("{row}: {top:?}") };
        assert_eq!((name.len(), name == "acme"), (length, is_shown), "{row}: {name}");
    }
}

#[tokio::test]
async fn a_flood_of_keys_leaves_the_heavy_one_and_a_bounded_list() {
    let policy = Policy::new("tenants", Quota::per_hour(9)).key(tenant());
    let layer = in_memory().policy(policy).top_keys(20, KeyForm::Plain).build().unwrap();
    for number in 0..20_000 {
        let _ = ask(&layer, &format!("<img onerror=x> {number}")).await;
        if number % 10 == 0 {
            let _ = ask(&layer, "noisy").await;
        }
    }
    let top = layer.top_keys("tenants").unwrap();
    assert!(top.top_allowed(usize::MAX).len() <= 20 * top.stripes());
    assert_eq!(rows(&top.top_denied(9)), [("noisy", 1991)]);
}

#[test]
fn nothing_is_ranked_unless_it_is_asked_for() {
    let policy = Policy::new("tenants", Quota::per_hour(9)).key(tenant());
    let layer = in_memory().policy(policy).build().unwrap();
    assert!(layer.top_keys("tenants").is_none());
}
