//! Spans of every protocol, received by a collector.
#![cfg(feature = "otel")]

mod collector;

use crate::support::{framed, messages::RateLimitRequest};
use crate::tls_support::{Running, flags, say};
use collector::{Collector, Span};
use std::{collections::BTreeMap, time::Duration};
use tokio::{net::TcpStream, time::timeout};
use tollgate::Clock;
use tollgate_server::{
    net::Listener::{Grpc, Http, Resp},
    rls,
    server::{Server, Source},
    trace::TraceSettings,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn start(sample: f64, endpoint: String) -> Running {
    let source = Source { paths: Vec::new(), flags: flags(None) };
    let (clock, hand) = Clock::manual();
    hand.set(tollgate::Tick::from_secs(1000));
    let server = Server::bind(source, &clock).unwrap();
    server.shared().trace.start(&TraceSettings { endpoint, sample }).unwrap();
    Running::run(server)
}

async fn http(server: &Running, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(server.address(Http)).await.unwrap();
    let text = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    say(&mut stream, &text).await.unwrap()
}

async fn grpc(server: &Running, parent: Option<&str>) {
    let stream = TcpStream::connect(server.address(Grpc)).await.unwrap();
    let (send, driver) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = driver.await;
    });
    let mut request = http::Request::post(format!("http://a{}", rls::METHOD))
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc");
    if let Some(parent) = parent {
        request = request.header("traceparent", parent);
    }
    let asked = RateLimitRequest {
        domain: "example".into(),
        ..crate::support::request(&[("user", "bob")])
    };
    let mut send = send.ready().await.unwrap();
    let (answer, mut body) = send.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data(framed(&prost::Message::encode_to_vec(&asked)), true).unwrap();
    assert_eq!(crate::support::reply(answer).await.code(), Some(0));
}

fn counts(span: &Span) -> [i64; 3] {
    ["decisions", "allowed", "denied"].map(|name| span.number(&format!("tollgate.{name}")).unwrap())
}

#[tokio::test]
async fn every_protocol_has_its_span() {
    let collector = Collector::start().await;
    let server = start(1.0, collector.endpoint());
    // Two calls of one batch pass, and the third does not.
    let mut redis = TcpStream::connect(server.address(Resp)).await.unwrap();
    let throttle = "CL.THROTTLE secret-key 1 1 60\r\n".repeat(3);
    assert!(say(&mut redis, &throttle).await.unwrap().starts_with("*5"));
    let check = "TG.CHECK login secret-key 5\r\n";
    assert!(say(&mut redis, check).await.unwrap().starts_with('*'));
    assert!(say(&mut redis, &format!("PING\r\n{check}")).await.unwrap().starts_with("+PONG"));

    let target = "/v1/check?policy=api&key=secret-key";
    let parent = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\n");
    assert!(http(&server, target, &parent).await.starts_with("HTTP/1.1 200"));
    assert!(http(&server, "/secret-key", "").await.starts_with("HTTP/1.1 404"));
    // If the caller's span is not sampled, the server's is not, either.
    let unsampled = format!("traceparent: 00-{TRACE}-{SPAN}-00\r\n");
    assert!(http(&server, "/auth", &unsampled).await.starts_with("HTTP/1.1 200"));
    assert!(http(&server, "/auth", "").await.starts_with("HTTP/1.1 200"));
    grpc(&server, None).await;
    grpc(&server, Some(&format!("00-{TRACE}-{SPAN}-01"))).await;
    drop(redis);
    // The shutdown sends the remaining spans.
    server.stop().await;

    let received = collector.received();
    assert_eq!(received.service(), Some("tollgate"));
    let spans = received.spans();
    let mut names = BTreeMap::<&str, usize>::new();
    spans.iter().for_each(|span| *names.entry(&span.name).or_default() += 1);
    let method = &rls::METHOD[1..];
    let expected = [("GET *", 1), ("GET /auth", 1), ("GET /v1/check", 1), ("RESP", 3), (method, 2)];
    assert_eq!(names, BTreeMap::from(expected));
    assert!(!received.contains(b"secret-key"), "a key has got into a span");

    let told: Vec<_> = spans.iter().filter(|span| span.name == "RESP").collect();
    assert_eq!(
        told.iter().map(|span| counts(span)).collect::<Vec<_>>(),
        [[3, 2, 1], [1, 1, 0], [1, 0, 1]]
    );
    assert_eq!(told[2].number("tollgate.commands"), Some(2));
    assert_eq!(told[0].text("tollgate.policy"), None);
    assert_eq!(told[2].text("tollgate.policy"), Some("login"));
    for (name, protocol, policy, of_caller) in [
        ("GET /v1/check", "http", Some("api"), 1),
        ("GET *", "http", None, 0),
        ("GET /auth", "http", Some("address"), 0),
        (method, "grpc", Some("api"), 1),
    ] {
        let named = || spans.iter().filter(|span| span.name == name);
        assert_eq!(named().filter(|span| span.continues(TRACE, SPAN)).count(), of_caller, "{name}");
        for span in named() {
            assert_eq!(span.text("tollgate.protocol"), Some(protocol));
            assert_eq!(span.text("tollgate.policy"), policy, "{name}");
            assert_eq!(counts(span)[0], i64::from(policy.is_some()), "{name}");
            assert_eq!(span.kind, 2, "a server's");
        }
    }
}

#[tokio::test]
async fn only_what_its_caller_wants_is_traced_when_nothing_is_sampled() {
    let collector = Collector::start().await;
    let server = start(0.0, collector.endpoint());
    let parent = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\n");
    for headers in ["", &parent, "traceparent: nonsense\r\n"] {
        assert!(http(&server, "/healthz", headers).await.starts_with("HTTP/1.1 200"));
    }
    server.stop().await;
    let received = collector.received();
    let names: Vec<_> = received.spans().into_iter().map(|span| &span.name).collect();
    assert_eq!(names, ["GET /healthz"]);
}

#[tokio::test]
async fn a_collector_that_is_not_there_delays_nobody_but_the_end() {
    // Nothing listens there any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = start(1.0, format!("http://{gone}"));
    assert!(http(&server, "/healthz", "").await.starts_with("HTTP/1.1 200"));
    timeout(Duration::from_secs(9), server.stop()).await.unwrap();
}
