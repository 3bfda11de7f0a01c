//! Runs `tollgate load grpc` against a small HTTP/2 server of the test.

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};
use serde_json::Value;
use std::{
    net::TcpListener,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

/// The server's responses: the overall code and the gRPC status of a call, by its number.
type Answer = fn(u64) -> (u8, &'static str);

fn load(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["load", "grpc"]).args(words).args(["--format", "json"]).output().unwrap()
}

fn report(words: &[&str]) -> Value {
    let output = load(words);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn serve(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // ORDERING: SeqCst; a test has time.
    let number = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let number = Arc::clone(&number);
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(call(request, respond, answer(number.fetch_add(1, SeqCst))));
                    }
                });
            }
        });
    });
    address
}

async fn call(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    (code, status): (u8, &'static str),
) {
    assert_eq!(
        request.uri().path(),
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    );
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let (mut message, mut body) = (Vec::new(), request.into_body());
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        message.extend_from_slice(&piece);
    }
    assert_eq!(message.len(), 5 + usize::from(message[4]));
    assert!(message.windows(8).any(|part| part == b"user\x12\x10ke"), "{message:?}");
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data(Bytes::from(vec![0, 0, 0, 0, 2, 8, code]), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    body.send_trailers(trailers).unwrap();
}

/// The first ten pass.
fn ten(number: u64) -> (u8, &'static str) {
    (if number < 10 { 1 } else { 2 }, "0")
}

#[test]
fn codes_are_counted_by_their_meaning() {
    let address = serve(ten);
    let report =
        report(&[&address, "--requests", "103", "--connections", "3", "--admit-exactly", "10"]);
    assert_eq!((&report["sent"], &report["denied"]), (&103.into(), &93.into()));
    assert_eq!((&report["errors"], &report["depth"]), (&0.into(), &16.into()));
}

#[test]
fn an_open_loop_sends_what_is_due() {
    let address = serve(ten);
    let report = report(&[&address, "--rate", "1000", "--requests", "200", "--streams", "2"]);
    assert_eq!((&report["sent"], &report["answered"]), (&200.into(), &200.into()));
    assert!(report["seconds"].as_f64().unwrap() >= 0.198, "{report}");
}

#[test]
fn a_status_other_than_zero_is_shown_and_fails_the_run() {
    let address = serve(|_| (1, "14"));
    let output = load(&[&address, "--requests", "5"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("5 errors") && text.contains("gRPC status 14"), "{text}");
}
