//! HTTP on the wire: requests in pieces, smuggled or slow ones, and how connections end.

use crate::http_support::{CONFIG, Client, JSON, start};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::UnixStream};
use tollgate_server::{
    http,
    net::{Connection, ConnectionMemory, Listener, RefusalReason, Stream},
    server::{Settings, Shared},
};

const CHECK: &str = r#"{"policy":"big","key":"a"}"#;

fn post(headers: &str, body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nHost: localhost\r\n{JSON}{headers}\r\n{body}")
}

#[tokio::test]
async fn requests_are_read_however_they_arrive() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let length = format!("Content-Length: {}\r\n", CHECK.len());
    let chunks =
        format!("5\r\n{}\r\n{:X}\r\n{}\r\n0\r\n\r\n", &CHECK[..5], CHECK.len() - 5, &CHECK[5..]);
    let whole = [post(&length, CHECK), post("Transfer-Encoding: chunked\r\n", &chunks)].concat();
    for step in [1, 2, 7, 64, whole.len()] {
        let mut client = Client::connect(address).await;
        for piece in whole.as_bytes().chunks(step) {
            client.send(piece).await;
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            assert_eq!(client.read().await.status, 200, "in pieces of {step}");
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let mut all = String::new();
    for cost in 0..300 {
        all += &format!(
            "GET /v1/check?policy=big&key=p&cost={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            cost % 3
        );
        all += if cost % 2 == 0 { "" } else { "\r\n" };
    }
    client.send(&all).await;
    let mut remaining = 1000;
    for cost in 0..300 {
        remaining -= cost % 3;
        assert_eq!(client.read().await.json()["remaining"], remaining, "request {cost}");
    }
    assert_eq!(shared.traffic(Listener::Http).counts().requests, 300);
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let get = |rest: &str| format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n");
    let rows: Vec<(String, u16)> = vec![
        (post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), 400),
        (post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), 400),
        (post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), 400),
        (post("Content-Length: 5, 5\r\n", "hello"), 400),
        (post("Content-Length: +5\r\n", "hello"), 400),
        (post("Content-Length: -1\r\n", ""), 400),
        (post("Content-Length: 0x5\r\n", "hello"), 400),
        (post("Content-Length: \r\n", ""), 400),
        (post("Content-Length: 99999999999999999999999\r\n", ""), 400),
        (post("Content-Length: 9999999999\r\n", ""), 413),
        (post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 400),
        (post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 400),
        (post("Transfer-Encoding: identity\r\n", ""), 400),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), 400),
        (post("Transfer-Encoding: chunked\r\n", "5;\nx\r\nhello\r\n0\r\n\r\n"), 400),
        (get("X: a\r\n folded\r\n"), 400),
        (get("X: a\rb\r\n"), 400),
        (get("X: a\0b\r\n"), 400),
        (get("X\r\n"), 400),
        (get(": x\r\n"), 400),
        (get("X y: z\r\n"), 400),
        (get("Host: u\r\n"), 400),
        (get("Expect: 200-ok\r\n"), 417),
        ("GET /healthz HTTP/1.1\r\n\r\n".into(), 400),
        ("GET /healthz HTTP/1.1\nHost: t\n\n".into(), 400),
        ("GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 400),
        ("GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 400),
        ("GET /healthz\r\n\r\n".into(), 400),
        ("GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n".into(), 400),
        ("GET /health\u{e9} HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 400),
        ("G(T /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 400),
        ("\u{16}\u{3}\u{1}\u{2}".into(), 400),
        ("POST /v1/check HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(), 400),
        (get(&format!("X: {}\r\n", "x".repeat(40_000))), 431),
        (get(&"X: y\r\n".repeat(101)), 431),
    ];
    let count = rows.len() as u64;
    for (request, status) in rows {
        let mut client = Client::connect(address).await;
        // The bytes that follow must never be taken for a request.
        client.send(request.clone() + "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let got = client.read().await;
        let shown: String = request.chars().take(120).collect();
        assert_eq!(got.status, status, "{shown:?}: {got:?}");
        assert_eq!(got.header("connection"), Some("close"), "{shown:?}");
        assert_eq!(client.read_to("GET").await, None, "{shown:?}: closed");
    }
    assert_eq!(shared.traffic(Listener::Http).counts().bad_requests, count);
}

#[tokio::test]
async fn what_the_standard_allows_is_taken() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let rows = [
        ("\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", true, None),
        ("GET http://t/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", true, None),
        (
            "GET /healthz?x=y HTTP/1.1\r\nHOST:t\r\nX:\t a b \t\r\nY:\r\nZ: \u{e9}\r\n\r\n",
            true,
            None,
        ),
        (
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Close\r\n\r\n",
            false,
            Some("close"),
        ),
        (
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, close\r\n\r\n",
            false,
            Some("close"),
        ),
        ("GET /healthz HTTP/1.0\r\n\r\n", false, Some("close")),
        ("GET /healthz HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true, Some("keep-alive")),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", true, None),
        (
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
            true,
            None,
        ),
    ];
    for (request, stays, connection) in rows {
        let mut client = Client::connect(address).await;
        client.send(request).await;
        let got = client.read().await;
        assert_eq!((got.status, &*got.body), (200, "OK"), "{request:?}");
        assert_eq!(got.header("connection"), connection, "{request:?}");
        if stays {
            assert_eq!(
                client.ask("HEAD", "/healthz", "").await.header("content-length"),
                Some("2")
            );
            assert_eq!(client.ask("GET", "/healthz", "").await.status, 200);
        } else {
            assert_eq!(client.read_to("GET").await, None, "{request:?}: closed");
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_is_told_to_go_on() {
    let (address, ..) = start(CONFIG, Settings { max_request: 100, ..Settings::default() }).await;
    let mut client = Client::connect(address).await;
    let length = CHECK.len();
    client.send(post(&format!("Expect: 100-continue\r\nContent-Length: {length}\r\n"), "")).await;
    assert_eq!(client.read().await.status, 100);
    client.send(CHECK).await;
    assert_eq!(client.read().await.status, 200);
    // Too large: the server says so before the client sends anything.
    client.send(post("Expect: 100-continue\r\nContent-Length: 101\r\n", "")).await;
    assert_eq!(client.read().await.status, 413);
}

#[tokio::test(start_paused = true)]
async fn the_slow_and_the_silent_are_let_go() {
    let settings = Settings {
        idle_timeout: Duration::from_secs(100),
        request_timeout: Duration::from_secs(10),
        ..Settings::default()
    };
    let (address, ..) = start(CONFIG, settings).await;
    for (sent, status) in
        [("", None), ("GET /heal", Some(408)), (&post("Content-Length: 9\r\n", "x"), Some(408))]
    {
        let mut client = Client::connect(address).await;
        client.send(sent).await;
        // The paused clock jumps ahead when every task waits.
        let got = client.read_to("GET").await;
        assert_eq!(got.map(|got| got.status), status, "{sent:?}");
    }
    // An active connection stays, however long it lives.
    let mut client = Client::connect(address).await;
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(client.ask("GET", "/healthz", "").await.status, 200);
    }
}

#[tokio::test]
async fn draining_finishes_what_has_begun() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let mut quiet = Client::connect(address).await;
    assert_eq!(quiet.ask("GET", "/healthz", "").await.status, 200);
    let mut busy = Client::connect(address).await;
    assert_eq!(busy.ask("GET", "/healthcheck", "").await.body, "OK");
    let request = "GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n";
    busy.send(&request[..20]).await;
    // The server reads the first half before it is stopped.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    shared.start_draining();
    assert_eq!(quiet.read_to("GET").await, None, "nothing was asked: closed at once");
    busy.send(&request[20..]).await;
    let got = busy.read().await;
    assert_eq!(
        (got.status, &*got.body, got.header("connection")),
        (500, "draining", Some("close"))
    );
    assert_eq!(busy.read_to("GET").await, None);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shared.traffic(Listener::Http).counts().open, 0);
}

#[tokio::test]
async fn unix_sockets_are_served_too() {
    let (shared, _) = crate::http_support::shared(CONFIG, Settings::default());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let connection = Connection::new(shared, Listener::Http, None);
    let served = tokio::spawn(http::serve(Stream::Unix(theirs), connection));
    ours.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut got = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut ours, &mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nOK"), "{got}");
    served.await.unwrap();
}

#[tokio::test]
async fn http_2_with_prior_knowledge_shares_the_port() {
    let settings = Settings { max_request: 100, ..Settings::default() };
    let (address, shared, _) = start(CONFIG, settings).await;
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let long = format!(r#"{{"policy":"{}"}}"#, "x".repeat(200));
    for (method, path, body, status, remaining) in [
        ("POST", "/v1/check", CHECK, 200, Some("999")),
        ("POST", "/v1/check", CHECK, 200, Some("998")),
        ("GET", "/v1/check?policy=big&key=a&cost=999", "", 429, Some("998")),
        ("HEAD", "/v1/peek?policy=big&key=a", "", 200, Some("997")),
        ("GET", "/nowhere", "", 404, None),
        ("POST", "/v1/check", &long, 413, None),
    ] {
        let request = ::http::Request::builder().method(method);
        let request = request.uri(format!("http://localhost{path}"));
        let request = request.header("content-type", "application/json");
        let is_empty = body.is_empty();
        let (response, mut stream) =
            sender.send_request(request.body(()).unwrap(), is_empty).unwrap();
        if !is_empty {
            stream.send_data(body.to_owned().into(), true).unwrap();
        }
        let response = response.await.unwrap();
        assert_eq!(response.status(), status, "{method} {path}");
        let told =
            response.headers().get("ratelimit-remaining").map(|value| value.to_str().unwrap());
        assert_eq!(told, remaining, "{method} {path}");
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            let _ = body.flow_control().release_capacity(data.len());
        }
    }
    shared.start_draining();
    driver.await.unwrap().unwrap();
    assert!(sender.ready().await.is_err(), "told to go");
}

#[tokio::test]
async fn eight_hundred_in_flight_admit_exactly_the_limit() {
    let config = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 100, name: user}
  - key: all
    value: x
    rate_limit: {unit: hour, requests_per_unit: 250, name: all}
";
    let (address, ..) = start(config, Settings::default()).await;
    // One key, on 100 connections with 8 pipelined requests each.
    let one = r#"{"policy":"user","key":"hot"}"#;
    assert_eq!(admitted(address, |_| one.to_owned()).await, 100);
    // Four keys and one limit over all: the keys would admit 4 x 100, and only 250 pass.
    let both = |number: usize| {
        let key = number % 4;
        format!(r#"{{"limits":[{{"policy":"user","key":"k{key}"}},{{"policy":"all"}}]}}"#)
    };
    assert_eq!(admitted(address, both).await, 250);
    let mut client = Client::connect(address).await;
    let mut used = 0;
    for key in 0..4 {
        let peek = format!(r#"{{"policy":"user","key":"k{key}","cost":0}}"#);
        used += 100 - client.post("/v1/peek", &peek).await.json()["remaining"].as_u64().unwrap();
    }
    assert_eq!(used, 250, "what was refused by one is charged to none");
}

/// Sends 800 requests over 100 connections before it reads a reply; returns how many were admitted.
async fn admitted(address: std::net::SocketAddr, body: impl Fn(usize) -> String) -> usize {
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(Client::connect(address).await);
    }
    for round in 0..8 {
        for (number, client) in clients.iter_mut().enumerate() {
            let body = body(number + round);
            client.send(post(&format!("Content-Length: {}\r\n", body.len()), &body)).await;
        }
    }
    let mut passed = 0;
    for client in &mut clients {
        for _ in 0..8 {
            let got = client.read().await;
            assert!(matches!(got.status, 200 | 429), "{got:?}");
            passed += usize::from(got.status == 200);
        }
    }
    passed
}

fn refused(shared: &Shared, reason: RefusalReason) -> u64 {
    shared.traffic(Listener::Http).counts().refused[reason as usize]
}

/// Connects by HTTP/2 with a given window for replies.
async fn http2(
    address: std::net::SocketAddr,
    window: u32,
) -> (h2::client::SendRequest<bytes::Bytes>, tokio::task::JoinHandle<Result<(), h2::Error>>) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = h2::client::Builder::new();
    let (sender, connection) = builder.initial_window_size(window).handshake(stream).await.unwrap();
    (sender, tokio::spawn(connection))
}

fn check() -> ::http::Request<()> {
    let request = ::http::Request::post("http://t/v1/check");
    request.header("content-type", "application/json").body(()).unwrap()
}

/// Sends the bytes of a body as the window grows, and does not end it.
async fn send(stream: &mut h2::SendStream<bytes::Bytes>, length: usize) {
    let mut left = bytes::Bytes::from(vec![b' '; length]);
    while !left.is_empty() {
        stream.reserve_capacity(left.len());
        let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return;
        };
        if stream.send_data(left.split_to(room.min(left.len())), false).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn bodies_of_one_http_2_connection_are_bounded_together() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let base = shared.memory.used();
    let (mut sender, _driver) = http2(address, 65_535).await;
    let (mut open, mut refusals) = (Vec::new(), 0);
    for _ in 0..12 {
        sender = sender.ready().await.unwrap();
        let (response, mut stream) = sender.send_request(check(), false).unwrap();
        send(&mut stream, 900_000).await;
        open.push((tokio::spawn(response), stream));
        refusals = refused(&shared, RefusalReason::Memory);
    }
    assert!(refusals > 0, "12 bodies of 900 kB are more than a connection may hold");
    assert!(shared.memory.used() < 10 << 20, "{}", shared.memory.used());
    let mut statuses = Vec::new();
    for (response, mut stream) in open {
        stream.send_reset(h2::Reason::CANCEL);
        statuses.extend(response.await.unwrap().ok().map(|response| response.status()));
    }
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert_eq!(statuses.len() as u64, refusals);
    let idle = || shared.memory.used() - base <= 16 << 10;
    for _ in 0..500 {
        if !idle() {
            let _ =
                tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
        }
    }
    assert!(idle(), "{} bytes are held by an idle connection", shared.memory.used() - base);
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn http_2_replies_that_are_not_read_close_the_connection() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let (mut sender, driver) = http2(address, 0).await;
    let (_response, mut stream) = sender.send_request(check(), false).unwrap();
    stream.send_data(bytes::Bytes::from_static(CHECK.as_bytes()), true).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(25), driver).await;
    assert!(ended.is_ok(), "the request timeout is ten seconds");
    assert_eq!(refused(&shared, RefusalReason::Unread), 1);
    assert_eq!(shared.memory.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_http_2_request_that_does_not_end_is_given_up() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let (mut sender, _driver) = http2(address, 65_535).await;
    let (response, mut stream) = sender.send_request(check(), false).unwrap();
    stream.send_data(bytes::Bytes::from_static(b"{"), false).unwrap();
    assert_eq!(response.await.unwrap().status(), 408);
    assert_eq!(refused(&shared, RefusalReason::Slow), 1);
    // HEADERS without END_HEADERS.
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    stream.write_all(b"\0\0\x01\x01\0\0\0\0\x01\x82").await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    assert!(tokio::time::timeout(Duration::from_secs(20), read).await.is_ok());
    assert_eq!(refused(&shared, RefusalReason::Slow), 2);
}

#[tokio::test]
async fn large_requests_are_refused_while_the_memory_is_used_up_and_small_ones_are_served() {
    let settings = Settings { connection_memory_bytes: 4 << 20, ..Settings::default() };
    let (address, shared, _) = start(CONFIG, settings).await;
    let mut client = Client::connect(address).await;
    assert_eq!(client.ask("POST", "/v1/check", CHECK).await.status, 200);
    let mut held = ConnectionMemory::open(&shared, Listener::Grpc).claim();
    held.resize((3 << 20) - (16 << 10)).unwrap();
    assert_eq!(client.ask("POST", "/v1/check", CHECK).await.status, 200);
    let mut large = Client::connect(address).await;
    large.send(post("Content-Length: 500000\r\n", &" ".repeat(200_000))).await;
    let got = large.read().await;
    assert_eq!((got.status, got.header("connection")), (503, Some("close")), "{got:?}");
    assert!(got.body.contains("connection_memory_bytes"), "{}", got.body);
    assert_eq!(refused(&shared, RefusalReason::Memory), 1);
    let mut other = Client::connect(address).await;
    assert_eq!(other.ask("POST", "/v1/check", CHECK).await.status, 200);
    drop(held);
    let body = format!("{CHECK}{}", " ".repeat(400_000));
    assert_eq!(other.ask("POST", "/v1/check", &body).await.status, 200);
}
