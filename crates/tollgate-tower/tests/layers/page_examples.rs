//! The statements of `docs/http.md` hold: its codes, and its rules of order and of settling. The
//! codes of `docs/clients.md`, too.

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tollgate::{Concurrency, Quota};
use tollgate_tower::{
    Charge, ConcurrencyLayer, Info, Key, Mode, OnStoreError, Peer, Policy, RateLimitLayer,
    answer::{Jitter, Label},
    key::{ClientAddress, Hint, KeyError, Trust},
};
use tower::{Layer, ServiceExt};

const PAGE: &str = include_str!("../../../../docs/http.md");
const CLIENTS: &str = include_str!("../../../../docs/clients.md");

/// Returns the file and the anchor that a link goes to.
fn target(link: &str) -> (&str, &str) {
    let link = link.strip_prefix("https://github.com/tollgate-rs/tollgate/blob/main/").unwrap();
    link.split_once('#').unwrap()
}

fn anchors(id: &str) -> usize {
    anchors_in(PAGE, id)
}

fn anchors_in(page: &str, id: &str) -> usize {
    let code = id.to_ascii_uppercase();
    page.matches(&format!("| <a id=\"{id}\"></a>{code} |")).count()
}

#[test]
fn every_code_is_explained_once() {
    let keys = (1..=15).chain(51..=54).map(|number| format!("tg-k{number:02}"));
    let layers = (1..=20).map(|number| format!("tg-l{number:02}"));
    let layers = layers.chain(["tg-l51".to_owned(), "tg-l52".to_owned()]);
    let slots = (1..=7).map(|number| format!("tg-r{number:02}"));
    let bytes = (1..=3).map(|number| format!("tg-b{number:02}"));
    let answers = (1..=4).map(|number| format!("tg-a{number:02}"));
    for id in keys.chain(layers).chain(slots).chain(bytes).chain(answers) {
        assert_eq!(anchors(&id), 1, "{id}");
    }
    assert_eq!(PAGE.matches("<a id=\"tg-").count(), 55, "no code that there is not");
    for id in (1..=5).chain(21..=23).map(|number| format!("tg-c{number:02}")) {
        assert_eq!(anchors_in(CLIENTS, &id), 1, "{id}");
    }
    assert_eq!(CLIENTS.matches("<a id=\"tg-").count(), 8, "no code that there is not");
}

#[test]
fn links_of_labels_and_jitter_go_to_the_code() {
    let label = |name: &str| Label::new(name, Quota::per_second(1)).unwrap_err();
    let (unnamed, long, odd) = (label(""), label(&"x".repeat(129)), label("é"));
    let jitter = Jitter::percent_of_window(101).unwrap_err();
    for (code, docs, text, expected) in [
        (unnamed.code(), unnamed.docs(), unnamed.to_string(), "TG-A01"),
        (long.code(), long.docs(), long.to_string(), "TG-A02"),
        (jitter.code(), jitter.docs(), jitter.to_string(), "TG-A03"),
        (odd.code(), odd.docs(), odd.to_string(), "TG-A04"),
    ] {
        assert_eq!(code, expected);
        assert_eq!(target(docs), ("docs/http.md", &*code.to_ascii_lowercase()));
        assert!(text.contains(';'), "{text}: no way out");
        assert!(text.ends_with(&format!("({code}, see {docs})")), "{text}");
    }
    // A layer has a code of its own for it, and writes only that one.
    let layer = RateLimitLayer::builder().policy(Policy::new("", Quota::per_second(1)));
    let limit = ConcurrencyLayer::builder(Concurrency::new(1).unwrap()).name("");
    let texts = [layer.build().unwrap_err().to_string(), limit.build().unwrap_err().to_string()];
    for text in texts {
        assert_eq!(text.matches("TG-").count(), 1, "{text}");
        assert!(text.contains("\"\" is not a name"), "{text}");
    }
}

#[test]
fn links_go_to_the_code() {
    let everybody = ClientAddress::x_forwarded_for(Trust::networks(["0.0.0.0/0"]));
    let nobody = ClientAddress::x_forwarded_for(Trust::hops(0));
    let keys = [
        Key::client(everybody),
        Key::client(nobody),
        Key::header("not a name"),
        Key::client(ClientAddress::peer().ipv6_prefix(8)),
        Key::all([]),
        Key::client(ClientAddress::x_forwarded_for(Trust::networks(["10.0.0.1/8"]))),
        Key::client(ClientAddress::forwarded(Trust::networks([""; 0]))),
        Key::client(ClientAddress::header("x-real-ip", Trust::hops(2))),
        Key::client(ClientAddress::header("x-forwarded-for", Trust::hops(1))),
        Key::any([Key::global(), Key::peer()]),
        Key::any([Key::bearer().or_skip(), Key::peer()]),
        Key::bearer().hash_key("short"),
        Key::peer().hash_key([7; 32]),
        Key::all(vec![Key::method(); 65]),
        Key::cookie("not a name"),
    ];
    for (number, key) in keys.iter().enumerate() {
        let error: KeyError = key.check().unwrap_err();
        assert_eq!(error.code(), format!("TG-K{:02}", number + 1), "{error}");
        let (page, anchor) = target(error.docs());
        assert_eq!((page, anchors(anchor)), ("docs/http.md", 1), "{error}");
        assert_eq!(anchor, error.code().to_ascii_lowercase());
    }
}

#[test]
fn links_of_hints_go_to_the_code() {
    let behind = Key::client(ClientAddress::x_forwarded_for(Trust::networks(["10.0.0.0/8"])));
    let hops = Key::client(ClientAddress::x_forwarded_for(Trust::hops(2)));
    let request = |header: &str| {
        let peer = Peer(([10, 0, 0, 1], 4711).into());
        http::Request::builder().header(header, "192.0.2.1").extension(peer).body(()).unwrap()
    };
    let hints = [
        (Key::peer().hint(&Info::of(&request("x-forwarded-for"))), "TG-K51"),
        (Key::peer().hint(&Info::of(&http::Request::new(()))), "TG-K52"),
        (behind.hint(&Info::of(&request("forwarded"))), "TG-K53"),
        (hops.hint(&Info::of(&request("x-forwarded-for"))), "TG-K54"),
    ];
    for (hint, code) in hints {
        let hint: Hint = hint.unwrap();
        assert_eq!(hint.code(), code);
        assert_eq!(target(hint.docs()), ("docs/http.md", &*code.to_ascii_lowercase()));
    }
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder().policy(policy).build().unwrap()
}

fn hello() -> Router {
    Router::new().route("/users/{id}", get(|| async { "hello" }))
}

fn request() -> Request<Body> {
    Request::get("/users/7").body(Body::empty()).unwrap()
}

async fn status(app: &Router) -> StatusCode {
    app.clone().oneshot(request()).await.unwrap().status()
}

#[tokio::test]
async fn the_route_is_known_behind_the_routing_only() {
    let limits = layer(Policy::new("per-route", Quota::per_hour(1)).key(Key::route()));
    let inside = hello().layer(limits.clone());
    assert_eq!(status(&inside).await, StatusCode::OK);
    assert_eq!(status(&inside).await, StatusCode::TOO_MANY_REQUESTS);
    let around = limits.layer(hello()).oneshot(request()).await.unwrap();
    assert_eq!(around.status(), StatusCode::FORBIDDEN, "nobody has matched a route yet");
}

#[tokio::test]
async fn the_layer_around_a_router_is_served() {
    let limits = layer(Policy::new("per-address", Quota::per_hour(1)).key(Key::peer()));
    let app = limits.same_body().layer(hello());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = axum::ServiceExt::<axum::extract::Request>::into_make_service_with_connect_info::<
        std::net::SocketAddr,
    >(app);
    tokio::spawn(async move { axum::serve(listener, app).await });
    for expected in [200, 429] {
        let response = reqwest::get(format!("http://{address}/users/7")).await.unwrap();
        assert_eq!(response.status().as_u16(), expected);
    }
}

#[tokio::test]
async fn whole_networks_can_be_left_out() {
    let client = ClientAddress::x_forwarded_for(Trust::networks(["10.0.0.0/8"]));
    let ours: [ipnet::IpNet; 2] =
        ["198.51.100.0/24".parse().unwrap(), "2001:db8:7::/48".parse().unwrap()];
    let key = Key::client(client.clone());
    let policy = Policy::new("per-address", Quota::per_hour(1)).key(key).only(move |info| {
        client.address(info).is_none_or(|address| !ours.iter().any(|net| net.contains(&address)))
    });
    let app = hello().layer(layer(policy));
    for (peer, list, expected) in [
        ([10, 0, 0, 1], "198.51.100.7", [200, 200]),
        ([10, 0, 0, 1], "2001:db8:7::1", [200, 200]),
        ([10, 0, 0, 1], "203.0.113.9", [200, 429]),
        // A client that bypasses the proxies and claims an address of ours.
        ([203, 0, 113, 7], "198.51.100.7", [200, 429]),
    ] {
        for expected in expected {
            let mut request = request();
            request.extensions_mut().insert(Peer((peer, 443).into()));
            request.headers_mut().insert("x-forwarded-for", list.parse().unwrap());
            let status = app.clone().oneshot(request).await.unwrap().status();
            assert_eq!(status.as_u16(), expected, "{peer:?} {list}");
        }
    }
}

#[tokio::test]
async fn what_an_outer_layer_has_charged_stays_charged() {
    let inner = layer(Policy::new("inner", Quota::per_hour(1)));
    let outer = layer(Policy::new("outer", Quota::per_hour(3)));
    let app = hello().layer(inner).layer(outer.clone());
    assert_eq!(status(&app).await, StatusCode::OK);
    assert_eq!(status(&app).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status(&app).await, StatusCode::TOO_MANY_REQUESTS);
    let alone = hello().layer(outer);
    assert_eq!(status(&alone).await, StatusCode::TOO_MANY_REQUESTS, "three were charged");
}

#[tokio::test]
async fn a_request_that_is_cut_off_keeps_its_estimate_spent() {
    let limits = layer(Policy::new("failures", Quota::per_hour(1)).charge(Charge::on_failure()));
    let stuck = Router::new().route("/users/{id}", get(std::future::pending::<()>));
    let mut call = Box::pin(stuck.layer(limits.clone()).oneshot(request()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    drop(call);
    assert_eq!(status(&hello().layer(limits)).await, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_shadow_is_settled() {
    let memory = tollgate::store::MemoryStore::new();
    let with = |mode| {
        let failures = Policy::new("failures", Quota::per_hour(2)).charge(Charge::on_failure());
        let builder = RateLimitLayer::builder().memory(memory.clone());
        hello().layer(builder.policy(failures.mode(mode)).build().unwrap())
    };
    let (shadow, enforced) = (with(Mode::Shadow), with(Mode::Enforce));
    for app in [&shadow, &enforced] {
        for _ in 0..5 {
            assert_eq!(status(app).await, StatusCode::OK, "success is given back");
        }
    }
}

#[tokio::test]
async fn without_room_for_a_reservation_requests_are_refused() {
    for (on_error, expected) in [
        (OnStoreError::Allow, StatusCode::SERVICE_UNAVAILABLE),
        (OnStoreError::Refuse, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        // A client that exhausts the reservations gets no free guesses for it.
        let memory = tollgate::store::MemoryStore::builder().max_reservations(0).build().unwrap();
        let failures = Policy::new("failures", Quota::per_hour(2)).charge(Charge::on_failure());
        let builder = RateLimitLayer::builder().memory(memory).on_store_error(on_error);
        let app = hello().layer(builder.policy(failures).build().unwrap());
        let response = app.oneshot(request()).await.unwrap();
        assert_eq!(response.status(), expected);
        assert!(!response.headers().contains_key("retry-after"));
    }
}
