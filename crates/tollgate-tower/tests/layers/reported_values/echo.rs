//! No response repeats anything that a client has sent, in any spelling: each place of a request
//! has a marker, and the test looks for the markers in the whole response.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use std::{collections::BTreeSet, convert::Infallible, time::Duration};
use tollgate::{Concurrency, KeyedConcurrency, Quota};
use tollgate_tower::{
    BandwidthLayer, ConcurrencyLayer, Key, Policy, RateLimitLayer, Shaping,
    answer::{Body, Headers, Legacy, OnSuccess},
};
use tower::{Layer, Service, ServiceExt};

/// The text that a client makes up: letters and digits, so that it is valid everywhere.
#[derive(Clone, Debug)]
struct Markers(Vec<String>);

const PLACES: usize = 12;

fn any_markers() -> impl Strategy<Value = Markers> {
    proptest::collection::vec("[a-z][a-zA-Z0-9]{11}", PLACES).prop_map(Markers)
}

impl Markers {
    /// Returns a request with a marker in each place.
    fn request(&self, is_grpc: bool) -> Request<Full<Bytes>> {
        let [path, query, host, method, name, value, cookie, agent, token, address, body, kind] =
            std::array::from_fn(|place| &*self.0[place]);
        let mut request = Request::new(Full::from(body.to_owned()));
        *request.uri_mut() = format!("http://{host}.test/{path}/x?q={query}").parse().unwrap();
        *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
        let headers = request.headers_mut();
        let mut insert = |name: &str, text: String| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, HeaderValue::from_str(&text).unwrap());
        };
        insert(&format!("x-{name}"), value.into());
        insert("x-key", value.into());
        insert("host", format!("{host}.test"));
        insert("cookie", format!("sid={cookie}; {cookie}=1"));
        insert("user-agent", agent.into());
        insert("authorization", format!("Bearer {token}"));
        insert("x-forwarded-for", format!("{address}, 203.0.113.9"));
        insert("accept", format!("text/{kind}"));
        insert("origin", format!("https://{host}.test"));
        insert("ratelimit", format!("\"{value}\";r=1"));
        insert("x-request-id", value.into());
        insert(
            "content-type",
            match is_grpc {
                true => "application/grpc".into(),
                false => format!("text/{kind}"),
            },
        );
        request
    }

    /// Returns the first marker that the response contains, in any spelling.
    fn found_in(&self, told: &[u8]) -> Option<&str> {
        let told = told.to_ascii_lowercase();
        let has = |spelling: String| {
            let spelling = spelling.to_ascii_lowercase();
            told.windows(spelling.len()).any(|window| window == spelling.as_bytes())
        };
        let found = |marker: &&String| {
            let bytes = marker.as_bytes();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let percent = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
            // A part of four bytes is enough, at whatever offset the base64 groups begin.
            let base64 = (0..3).map(|skip| base64(&bytes[skip..skip + 9]));
            [marker.to_string(), hex, percent].into_iter().chain(base64).any(has)
        };
        self.0.iter().find(found).map(String::as_str)
    }
}

/// Writes groups of three bytes in base64; the search ignores case, so this does, too.
fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks_exact(3) {
        let bits = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
        for place in [18, 12, 6, 0] {
            text.push(char::from(letters[(bits >> place & 63) as usize]));
        }
    }
    text
}

/// Reads base64 up to the first other byte.
fn from_base64(text: &[u8]) -> Vec<u8> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        bits = (bits << 6 | u32::from(digit)) & 0xfff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The whole response: status, names and values of headers, also decoded, the body and its
/// trailers.
fn all<B>(response: Response<B>) -> (StatusCode, Vec<u8>)
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let (head, body) = response.into_parts();
    let collected = at_once(body.collect()).unwrap();
    let mut all = Vec::new();
    let none = HeaderMap::new();
    for headers in [&head.headers, collected.trailers().unwrap_or(&none)] {
        for (name, value) in headers {
            all.extend_from_slice(name.as_str().as_bytes());
            all.push(b'\n');
            all.extend_from_slice(value.as_bytes());
            all.push(b'\n');
            all.extend(from_base64(value.as_bytes()));
            all.push(b'\n');
        }
    }
    all.extend(collected.to_bytes());
    (head.status, all)
}

fn at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// A service whose response does not depend on the request.
async fn quiet<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("fine")))
}

fn ways() -> Vec<(Headers, Body)> {
    let most = Headers::new().three_fields().envoy().on_success(OnSuccess::LeftAndRetryAfter);
    let all = [Headers::bare(), most.legacy(Legacy::Delta), most.legacy(Legacy::Epoch)];
    let bodies = [Body::Problem, Body::Text, Body::Empty];
    all.into_iter().flat_map(|headers| bodies.map(|body| (headers, body))).collect()
}

fn keys() -> [Key; 9] {
    [
        Key::global(),
        Key::header("x-key"),
        Key::bearer(),
        Key::cookie("sid"),
        Key::path(),
        Key::method(),
        Key::from_fn(|info, key| {
            key.push(info.uri().to_string().as_bytes());
            true
        }),
        Key::all([Key::bearer(), Key::path(), Key::header("x-key")]),
        // No request has it: 403.
        Key::header("x-nobody"),
    ]
}

/// Sends twice, and returns the statuses.
fn twice<S, B>(service: &S, markers: &Markers, is_grpc: bool) -> Vec<StatusCode>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let sent = service.clone().oneshot(markers.request(is_grpc));
        let (status, told) = all(at_once(sent).unwrap());
        let found = markers.found_in(&told);
        assert_eq!(found, None, "{}", String::from_utf8_lossy(&told));
        statuses.push(status);
    }
    statuses
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4) })]

    #[test]
    fn nothing_of_a_request_is_told_back(markers in any_markers()) {
        let mut statuses = BTreeSet::new();
        for (headers, body) in ways() {
            for is_grpc in [false, true] {
                for key in keys() {
                    let policy = Policy::new("calls", Quota::per_hour(1)).key(key.clone());
                    let all = Policy::new("all", Quota::per_hour(100));
                    let limits = RateLimitLayer::builder().policy(policy).policy(all);
                    let limits = limits.headers(headers).body(body).build().unwrap();
                    let service = limits.layer(tower::service_fn(quiet));
                    statuses.extend(twice(&service, &markers, is_grpc));
                    let slots = KeyedConcurrency::<[u8]>::new(1).unwrap();
                    let slots_layer = ConcurrencyLayer::keyed(slots, key).headers(headers).body(body);
                    let service = slots_layer.build().unwrap().layer(tower::service_fn(quiet));
                    statuses.extend(twice(&service, &markers, is_grpc));
                }
                let slots = Concurrency::new(1).unwrap();
                let _held = slots.try_acquire().unwrap();
                let slots_layer = ConcurrencyLayer::builder(slots).headers(headers).body(body);
                let slots_layer = slots_layer.retry_after(Duration::from_secs(3)).build().unwrap();
                let service = slots_layer.layer(tower::service_fn(quiet));
                statuses.extend(twice(&service, &markers, is_grpc));
                let fast = Shaping::each(Quota::per_second(1_000_000));
                let bandwidth = BandwidthLayer::builder().request(fast.clone()).response(fast);
                let service = bandwidth.build().unwrap().layer(tower::service_fn(quiet));
                statuses.extend(twice(&service, &markers, is_grpc));
            }
        }
        let statuses: Vec<_> = statuses.iter().map(StatusCode::as_u16).collect();
        prop_assert_eq!(statuses, [200, 403, 429, 503], "all kinds of answers were seen");
    }
}

#[test]
fn the_search_finds_what_is_told_back() {
    let markers = Markers(vec!["aBc1dEf2gHi3".into(); PLACES]);
    for told in [
        "see aBc1dEf2gHi3!".to_owned(),
        "ABC1DEF2GHI3".into(),
        "614263316445663267486933".into(),
        "%61%42%63%31%64%45%66%32%67%48%69%33".into(),
        base64(b"aBc1dEf2gHi3"),
        base64(b"1aBc1dEf2gHi3xx"),
        base64(b"12aBc1dEf2gHi3x"),
    ] {
        assert!(markers.found_in(told.as_bytes()).is_some(), "{told}");
    }
    assert_eq!(from_base64(b"Zm9vYg=="), b"foob");
    assert!(markers.found_in(b"nothing of that").is_none());
    assert_eq!(markers.request(true).body().size_hint().exact(), Some(12));
}
