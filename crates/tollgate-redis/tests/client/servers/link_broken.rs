//! The errors of calls when connections break, and when the other side is not a Redis server.

use crate::servers::link_support::{call, open, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tollgate_redis::{Link, Reply};
use tollgate_rig::{Flavor, Proxy, Redis};

#[tokio::test]
async fn calls_on_a_connection_that_breaks_are_unknown_at_once() {
    let mut server = Redis::start(Flavor::Redis);
    // The proxy counts the sent requests.
    let proxy = Proxy::start(server.address());
    let link = open(&format!("redis://{}?deadline=60s", proxy.address())).await;
    let before = proxy.requests();
    server.freeze();
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { call(&link, &["INCR", "n"]).await })
        })
        .collect();
    until("sent", async || proxy.requests() >= before + 5).await;
    assert_eq!(link.nodes()[0].in_flight, 5);
    server.kill();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert!(error.to_string().starts_with("127.0.0.1:"), "{error}");
    }
    assert_eq!(link.nodes()[0].in_flight, 0);
}

#[tokio::test]
async fn one_of_two_connections_may_break() {
    let server = Redis::start(Flavor::Redis);
    let link = open(&format!("{}?deadline=5s&connections=2", server.url())).await;
    until("two", async || link.nodes()[0].connects == 2).await;
    let changes = link.subscribe();
    let list = server.cli(&["CLIENT", "LIST"]);
    let id = list.lines().find(|line| line.contains("name=tollgate")).unwrap();
    let id = id.split(' ').next().unwrap().strip_prefix("id=").unwrap();
    assert_eq!(server.cli(&["CLIENT", "KILL", "ID", id]), "1");
    until("three", async || link.nodes()[0].connects == 3).await;
    assert_eq!(call(&link, &["PING"]).await, Ok(Reply::Bytes(b"PONG".into())));
    assert!(!changes.has_changed().unwrap(), "it was up all the time");
}

#[tokio::test]
async fn a_server_that_is_back_is_up_again_without_a_call() {
    let mut server = Redis::start(Flavor::Redis);
    let link = open(&format!("{}?probe_max=100ms", server.url())).await;
    server.kill();
    until("away", async || link.nodes()[0].state == "open").await;
    server.restart();
    until("back", async || link.nodes()[0].state == "up").await;
}

#[tokio::test]
async fn a_read_only_server_is_connected_to_anew() {
    let server = Redis::start(Flavor::Redis);
    let link = open(&format!("{}?deadline=5s", server.url())).await;
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    for _ in 0..5 {
        let error = call(&link, &["SET", "k", "v"]).await.unwrap_err();
        assert_eq!(error.code(), Some("READONLY"));
    }
    until("connected anew", async || link.nodes()[0].connects > 1).await;
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    until("well", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
}

/// Replies `first` to the first bytes of each connection, and `then` to the following ones.
async fn pretend(first: &'static [u8], then: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                let mut answer = first;
                while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                    answer = then;
                }
            });
        }
    });
    format!("redis://{address}?deadline=5s")
}

#[tokio::test]
async fn what_is_no_redis_server_is_said_so() {
    for (first, then, expected) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            &b""[..],
            "does not start a reply of a Redis server",
        ),
        (b"%0\r\n", b"hello\r\n", "does not start a reply of a Redis server"),
        (b"%0\r\n", b"+PONG\r\n+PONG\r\n", "the server sent a reply without a command"),
        (b"%0\r\n", b"$9999999\r\n", "above the maximum of 1048576"),
        (b"-ERR max number of clients reached\r\n", b"", "max number of clients"),
        (b"-NOAUTH HELLO must be called\r\n", b"", "NOAUTH"),
    ] {
        let link = Link::open(pretend(first, then).await.parse().unwrap()).unwrap();
        let told = async || {
            let _ = call(&link, &["PING"]).await;
            link.nodes()[0].last_error.clone().is_some_and(|last| last.contains(expected))
        };
        until(expected, told).await;
    }
}

#[tokio::test]
async fn a_push_and_a_fraction_of_a_reply_do_no_harm() {
    let url = pretend(b"%0\r\n", b">2\r\n+invalidate\r\n_\r\n+PO").await;
    let link = Link::open(url.replace("5s", "500ms").parse().unwrap()).unwrap();
    let error = call(&link, &["PING"]).await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("did not reply"), "{error}");
}
