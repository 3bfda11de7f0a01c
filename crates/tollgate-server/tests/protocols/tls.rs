//! TLS and mutual TLS on every listener, with real handshakes and real programs.
#![cfg(feature = "tls")]

use crate::support::messages::{RateLimitRequest, RateLimitResponse};
use crate::tls_support::{Authority, Files, Running, der, flags, say, text};
use http::Request;
use prost::Message;
use std::{fs, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tollgate_server::{
    config::Endpoint,
    net::Listener::{self, Admin, Grpc, Http, Resp},
    rls,
    server::Source,
};

/// The request for each text listener, and the beginning of its response.
const WORDS: [(Listener, &str, &str); 3] = [
    (
        Http,
        "GET /v1/check?policy=api&key=alice HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HTTP/1.1 200",
    ),
    (Resp, "PING\r\n", "+PONG"),
    (Admin, "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200"),
];

/// Sends a gRPC call as Envoy does. Returns whether there was a response: in TLS 1.3 a client
/// learns only after the handshake that it was refused.
async fn grpc(server: &Running, client: &tokio_rustls::TlsConnector) -> bool {
    let asked = async {
        let stream = server.connect(Grpc, client).await.ok()?;
        let (send, driver) = h2::client::handshake(stream).await.ok()?;
        tokio::spawn(async move {
            let _ = driver.await;
        });
        let question = crate::support::request(&[("user", "bob")]);
        let question = RateLimitRequest { domain: "example".into(), ..question };
        let request = Request::post(format!("https://localhost{}", rls::METHOD))
            .header("content-type", "application/grpc");
        let mut send = send.ready().await.ok()?;
        let (answer, mut body) = send.send_request(request.body(()).unwrap(), false).ok()?;
        body.send_data(crate::support::framed(&question.encode_to_vec()), true).ok()?;
        let mut stream = answer.await.ok()?.into_body();
        let answer = stream.data().await?.ok()?;
        RateLimitResponse::decode(crate::support::unframed(&answer)).ok()
    };
    asked.await.is_some_and(|answer| answer.overall_code == 1)
}

#[tokio::test]
async fn every_listener_speaks_tls() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.settings())));
    let client = authority.client(None, &[]);
    for (listener, question, expected) in WORDS {
        let answer = server.ask(listener, &client, question).await.unwrap();
        assert!(answer.starts_with(expected), "{listener}: {answer}");
    }
    assert!(grpc(&server, &authority.client(None, &["h2"])).await);
    let stopped = server.stop().await;
    for listener in Listener::ALL {
        let counts = stopped.counts(listener);
        assert_eq!((counts.requests, counts.turned_away), (1, 0), "{listener}");
    }
}

#[tokio::test]
async fn the_protocol_is_chosen_in_the_handshake() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.settings())));
    for (row, (listener, offered, chosen)) in [
        (Http, &["h2", "http/1.1"][..], Some("h2")),
        (Http, &["http/1.1"], Some("http/1.1")),
        (Http, &[], None),
        (Grpc, &["h2"], Some("h2")),
        (Grpc, &[], None),
        (Admin, &["h2", "http/1.1"], Some("http/1.1")),
        (Resp, &["redis"], None),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = server.connect(listener, &authority.client(None, offered)).await.unwrap();
        let found = stream.get_ref().1.alpn_protocol();
        assert_eq!(found, chosen.map(str::as_bytes), "row {row}");
    }
    // No protocol in common.
    assert!(server.connect(Grpc, &authority.client(None, &["http/1.1"])).await.is_err());

    // HTTP/2, negotiated by ALPN.
    let stream = server.connect(Http, &authority.client(None, &["h2"])).await.unwrap();
    let (mut send, driver) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = driver.await;
    });
    let uri = "https://localhost/v1/check?policy=api&key=alice";
    let (answer, _) = send.send_request(Request::get(uri).body(()).unwrap(), true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    drop(send);
    assert_eq!(server.stop().await.counts(Grpc).turned_away, 1);
}

#[tokio::test]
async fn mutual_tls_lets_in_who_has_the_right_certificate() {
    let (authority, other) = (Authority::new("the authority"), Authority::new("another"));
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.mutual())));
    let (known, stranger) = (authority.sign(), other.sign());
    for (who, identity, gets_in) in [
        ("nobody", None, false),
        ("a stranger", Some(&stranger), false),
        ("known", Some(&known), true),
    ] {
        let client = authority.client(identity, &[]);
        for (listener, question, expected) in WORDS {
            let answer = server.ask(listener, &client, question).await;
            let is_served = answer.is_ok_and(|answer| answer.starts_with(expected));
            assert_eq!(is_served, gets_in, "{who}, {listener}");
        }
        let client = authority.client(identity, &["h2"]);
        assert_eq!(grpc(&server, &client).await, gets_in, "{who}, gRPC");
    }
    let stopped = server.stop().await;
    for listener in Listener::ALL {
        let counts = stopped.counts(listener);
        assert_eq!((counts.accepted, counts.turned_away, counts.requests), (3, 2, 1), "{listener}");
        assert_eq!(counts.open, 0, "{listener}");
    }
}

#[tokio::test]
async fn plain_text_is_refused_and_harms_nobody() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.settings())));
    for (listener, question, expected) in WORDS {
        let mut stream = TcpStream::connect(server.address(listener)).await.unwrap();
        stream.write_all(question.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // An alert and the end of the stream; a reset is just as good.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.len() < 16, "{listener} answers plain text: {answer:?}");

        let answer = server.ask(listener, &authority.client(None, &[]), question).await.unwrap();
        assert!(answer.starts_with(expected), "{listener}: {answer}");
    }
    // TLS to a plain-text port does no harm, either.
    let plain = Running::start(flags(None));
    for (listener, question, expected) in WORDS {
        let refused = plain.connect(listener, &authority.client(None, &[])).await;
        assert!(refused.is_err(), "{listener}");
        let mut stream = TcpStream::connect(plain.address(listener)).await.unwrap();
        assert!(say(&mut stream, question).await.unwrap().starts_with(expected), "{listener}");
    }
    plain.stop().await;
    let stopped = server.stop().await;
    for (listener, ..) in WORDS {
        // The shutdown may have come before the server had finished the handshake of the second
        // one.
        let turned_away = stopped.counts(listener).turned_away;
        assert!((1..=2).contains(&turned_away), "{listener}: {turned_away}");
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_used_after_a_reload() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::new(&old);
    let server = Running::start(flags(Some(files.settings())));
    let before = old.client(None, &[]);
    let mut stream = server.connect(Resp, &before).await.unwrap();
    assert_eq!(say(&mut stream, "PING\r\n").await.unwrap(), "+PONG\r\n");

    // The server keeps the old certificate until it reloads.
    let next = new.sign();
    files.replace(&next);
    assert!(server.connect(Resp, &before).await.is_ok());

    let loaded = server.manager.reload().await;
    assert_eq!(loaded.error, None);
    assert!(server.connect(Resp, &before).await.is_err(), "the old one is still shown");
    let after = server.connect(Resp, &new.client(None, &[])).await.unwrap();
    assert_eq!(after.get_ref().1.peer_certificates().unwrap(), [der(&next.certificate)]);
    // Open connections stay open.
    assert_eq!(say(&mut stream, "PING\r\n").await.unwrap(), "+PONG\r\n");
    drop((stream, after));
    server.stop().await;
}

#[tokio::test]
async fn a_broken_replacement_keeps_the_old_certificate() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.mutual())));
    let good = authority.sign();
    files.replace(&good);
    assert_eq!(server.manager.reload().await.error, None);
    let client = authority.client(Some(&good), &[]);
    let stray = authority.sign();
    for (file, content, complaint) in [
        ("server.pem", "", "contains no certificate"),
        ("server.pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "server.pem"),
        // A certificate for another key.
        ("server.pem", &stray.certificate, "server.pem"),
        ("server.key", "no key", "server.key"),
        ("ca.pem", "", "ca.pem"),
    ] {
        let path = files.path(file);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, content).unwrap();
        let error = server.manager.reload().await.error.unwrap();
        assert!(error.starts_with("TLS: ") && error.contains(complaint), "{file}: {error}");
        let stream = server.connect(Http, &client).await.unwrap();
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), [der(&good.certificate)]);
        fs::write(&path, kept).unwrap();
    }
    fs::remove_file(files.path("server.key")).unwrap();
    assert!(server.manager.reload().await.error.unwrap().contains("server.key"));
    let (_, failed) = server.manager.loads();
    assert_eq!(failed, 6);
    assert!(server.connect(Http, &client).await.is_ok());
    server.stop().await;
}

#[tokio::test]
async fn a_replaced_certificate_is_seen_by_whoever_looks_for_changes() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.mutual())));
    assert!(server.manager.reload_if_changed().await.is_none());
    let next = authority.sign();
    // One file after the other: in between, certificate and key do not match, so the old pair
    // stays.
    fs::write(files.path("server.pem"), &next.certificate).unwrap();
    assert!(server.manager.reload_if_changed().await.unwrap().error.is_some());
    assert!(server.manager.reload_if_changed().await.is_none());
    fs::write(files.path("server.key"), &next.key).unwrap();
    assert_eq!(server.manager.reload_if_changed().await.unwrap().error, None);
    let stream = server.connect(Http, &authority.client(Some(&next), &[])).await.unwrap();
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), [der(&next.certificate)]);
    server.stop().await;
}

#[tokio::test]
async fn listeners_can_have_tls_of_their_own() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let config = files.path("limits.yaml");
    let yaml = format!(
        "server:\n  tls_of:\n    grpc:\n      certificate: {0}/server.pem\n      key: {0}/server.key\n\
         \x20     client_ca: {0}/ca.pem\n    resp: {{certificate: {0}/server.pem, key: {0}/server.key}}\n",
        text(files.folder.path())
    );
    let limits = "domain: example\ndescriptors:\n  - key: user\n    rate_limit: {unit: second, requests_per_unit: 9}\n";
    fs::write(&config, limits.to_owned() + &yaml).unwrap();
    let socket = files.path("resp.sock");
    let mut flags = flags(None);
    flags.resp = Some(Endpoint::Unix(socket.clone()));
    let server = Running::start_from(Source { paths: vec![config], flags });

    let known = authority.sign();
    assert!(!grpc(&server, &authority.client(None, &["h2"])).await);
    assert!(grpc(&server, &authority.client(Some(&known), &["h2"])).await);
    let stream = UnixStream::connect(&socket).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let mut stream = authority.client(None, &[]).connect(name, stream).await.unwrap();
    assert_eq!(say(&mut stream, "PING\r\n").await.unwrap(), "+PONG\r\n");
    let mut plain = TcpStream::connect(server.address(Admin)).await.unwrap();
    assert!(say(&mut plain, WORDS[2].1).await.unwrap().starts_with(WORDS[2].2));
    server.stop().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_handshakes() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.settings())));
    let mut silent = Vec::new();
    for listener in Listener::ALL {
        silent.push(TcpStream::connect(server.address(listener)).await.unwrap());
    }
    // Listeners accept connections in order, so the silent ones have been accepted by then.
    for listener in Listener::ALL {
        server.connect(listener, &authority.client(None, &[])).await.unwrap();
    }
    let stopped = timeout(Duration::from_secs(5), server.stop()).await.unwrap();
    for listener in Listener::ALL {
        // With TLS 1.3 a client finishes before the server does, so the other one may be among
        // them.
        let turned_away = stopped.counts(listener).turned_away;
        assert!((1..=2).contains(&turned_away), "{listener}: {turned_away}");
    }
}

#[tokio::test]
async fn the_end_is_said_so_that_nothing_can_be_cut_off_unseen() {
    let authority = Authority::new("the authority");
    let files = Files::new(&authority);
    let server = Running::start(flags(Some(files.settings())));
    let client = authority.client(None, &[]);
    for (listener, question) in [
        (Http, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        (Admin, "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        (Resp, "QUIT\r\n"),
    ] {
        let mut stream = server.connect(listener, &client).await.unwrap();
        stream.write_all(question.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // An end of the stream without a TLS close is an error here.
        let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.unwrap();
        ended.unwrap_or_else(|error| panic!("{listener}: {error}"));
    }
    server.stop().await;
}

#[cfg(feature = "test-servers")]
mod servers {
    use super::*;
    use crate::tls_support::run;

    #[tokio::test]
    async fn redis_cli_and_curl_speak_tls_with_it() {
        let authority = Authority::new("the authority");
        let files = Files::new(&authority);
        files.write("client", &authority.sign());
        let server = Running::start(flags(Some(files.mutual())));
        let (ca, certificate, key) =
            (files.path("ca.pem"), files.path("client.pem"), files.path("client.key"));
        let port = server.address(Resp).port().to_string();
        let redis = ["-p", &port, "--tls", "--cacert", text(&ca)];
        let known = ["--cert", text(&certificate), "--key", text(&key)];
        let throttle = ["CL.THROTTLE", "alice", "15", "30", "60"];
        let (is_done, told) =
            run("redis-cli", "redis-tools", &[&redis[..], &known, &throttle].concat()).await;
        assert!(is_done && told.lines().map(str::trim).eq(["0", "16", "15", "-1", "2"]), "{told}");
        let (_, told) = run("redis-cli", "redis-tools", &[&redis[..], &throttle].concat()).await;
        assert!(!told.contains("16"), "without a certificate: {told}");

        for (listener, path, expected) in
            [(Http, "/v1/check?policy=api&key=alice", "\"allowed\":true"), (Admin, "/ready", "")]
        {
            let url = format!("https://localhost:{}{path}", server.address(listener).port());
            let curl = ["-sS", "--fail", "--max-time", "5", "--cacert", text(&ca), &url];
            let (is_done, told) = run("curl", "curl", &[&curl[..], &known].concat()).await;
            assert!(is_done && told.contains(expected), "{listener}: {told}");
            let (is_done, told) = run("curl", "curl", &curl).await;
            assert!(!is_done, "{listener}, without a certificate: {told}");
        }
        server.stop().await;
    }
}
