//! Clients that make connections hold as much as they can: memory stays within its bound, other clients
//! are served meanwhile, and what was held is released while the attackers stay connected.

use crate::process::{PATIENCE, Service, http, serve};
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use std::{
    future::poll_fn,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::oneshot, time::timeout};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 100000/year}}
server: {request_timeout: 2s}
";

/// The most memory that an attack may cost: by one connection, and by a hundred.
const ONE: u64 = 48 << 20;
const HUNDRED: u64 = 256 << 20;

/// How long an attack goes on.
const ATTACK: Duration = Duration::from_secs(4);

/// Where a service listens.
#[derive(Clone, Copy)]
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
    resp: SocketAddr,
}

/// Other clients are served: by each protocol, over new connections.
fn serves(service: &Service) {
    assert!(service.client().ask("TG.CHECK k x 1").starts_with("[1,"));
    let (status, body) = http(service.http, "POST", "/v1/check", r#"{"policy":"k","key":"x"}"#);
    assert_eq!(status, 200, "{body}");
    assert_eq!(service.admin("GET", "/ready", "").0, 200);
    let code =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(
            async {
                let mut client = http2(service.grpc, 65_535).await.unwrap();
                let (reply, mut body) =
                    client.send_request(post("/grpc.health.v1.Health/Check"), false).unwrap();
                body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
                let mut body = reply.await.unwrap().into_body();
                while body.data().await.is_some() {}
                body.trailers().await.unwrap().unwrap()["grpc-status"].clone()
            },
        );
    assert_eq!(code, "0");
}

/// Runs an attack beside good clients, and checks the memory of the service.
fn withstand<F: Future<Output = ()> + 'static>(
    most_bytes: u64,
    attack: impl FnOnce(Addresses) -> F + Send + 'static,
) {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    serves(&service);
    let before = service.resident();
    let addresses = Addresses { http: service.http, grpc: service.grpc, resp: service.resp };
    let (stop, stopped) = oneshot::channel::<()>();
    let (ended, has_ended) = mpsc::channel::<()>();
    let attacker = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let _ = timeout(ATTACK, attack(addresses)).await;
            drop(ended);
            // Its connections stay open.
            let _ = stopped.await;
        });
    });
    let mut most = 0;
    while has_ended.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
        serves(&service);
        most = most.max(service.resident());
    }
    let grown = most.saturating_sub(before);
    assert!(grown < most_bytes, "{} MiB more than before", grown >> 20);
    wait_for_release(&service);
    drop(stop);
    attacker.join().unwrap();
    serves(&service);
}

/// Waits until the connections of the attackers hold next to nothing.
fn wait_for_release(service: &Service) {
    let held = || -> u64 {
        let metrics = service.admin("GET", "/metrics", "").1;
        let line =
            metrics.lines().find(|line| line.starts_with("tollgate_connection_memory_bytes "));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (pause, (_never, silence)) = (Duration::from_millis(100), mpsc::channel::<()>());
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if held() < 2 << 20 {
            return;
        }
        let _ = silence.recv_timeout(pause);
    }
    panic!("{} KiB are still held", held() >> 10);
}

fn post(path: &str) -> http::Request<()> {
    let request = http::Request::post(format!("http://test{path}"));
    request.header("content-type", "application/grpc").body(()).unwrap()
}

/// Connects with a window for replies.
async fn http2(address: SocketAddr, window: u32) -> Option<SendRequest<Bytes>> {
    let stream = TcpStream::connect(address).await.ok()?;
    let mut builder = Builder::new();
    builder.initial_window_size(window);
    let (client, connection) = builder.handshake(stream).await.ok()?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client.ready().await.ok()
}

/// Sends this many bytes of a body after its first ones, and never ends it.
async fn half_a_body(
    client: &mut SendRequest<Bytes>,
    request: http::Request<()>,
    (first, length): (Bytes, usize),
) -> Option<()> {
    poll_fn(|cx| client.poll_ready(cx)).await.ok()?;
    let (reply, mut body) = client.send_request(request, false).ok()?;
    body.send_data(first, false).ok()?;
    tokio::task::spawn_local(async move {
        let chunk = Bytes::from(vec![b' '; 16 << 10]);
        let mut sent = 0;
        while sent < length {
            body.reserve_capacity(chunk.len());
            let Some(Ok(room)) = poll_fn(|cx| body.poll_capacity(cx)).await else { break };
            let part = chunk.slice(..room.min(chunk.len()));
            sent += part.len();
            if body.send_data(part, false).is_err() {
                break;
            }
        }
        // The stream stays open until the service ends it.
        let _ = reply.await;
        drop(body);
    });
    Some(())
}

async fn reflection_bodies(address: SocketAddr) {
    let Some(mut client) = http2(address, 65_535).await else { return };
    for _ in 0..256 {
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let first = Bytes::from_static(&[0, 0, 0x3f, 0xff, 0xff]);
        if half_a_body(&mut client, post(path), (first, 4 << 20)).await.is_none() {
            return;
        }
    }
    std::future::pending().await
}

async fn half_bodies(address: SocketAddr, path: &str) {
    let Some(mut client) = http2(address, 65_535).await else { return };
    for _ in 0..256 {
        let first = Bytes::from_static(&[0, 0, 0x0f, 0xff, 0xff]);
        if half_a_body(&mut client, post(path), (first, 1_000_000)).await.is_none() {
            return;
        }
    }
    std::future::pending().await
}

/// Requests whose heads are short on the wire and long in memory, and whose bodies never come. The bytes are
/// made once, so that the attack costs the attacker nothing.
fn tiny_headers() -> Vec<u8> {
    // POST, http, a path and an authority; then names without values. None goes into the table of HPACK.
    let mut block = b"\x83\x86\x04\x09/v1/check\x01\x01x".to_vec();
    for number in 0..800 {
        let name = format!("h{number}");
        block.extend([0, name.len() as u8]);
        block.extend([name.as_bytes(), &[0]].concat());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1_u32..).step_by(2).take(30) {
        // HEADERS, of which no more follow (4).
        bytes.extend(&(block.len() as u32).to_be_bytes()[1..]);
        bytes.extend([&[1, 4][..], &stream.to_be_bytes(), &block].concat());
    }
    bytes
}

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A call about 64 keys, whose reply is long.
fn long_call() -> Bytes {
    let entry = b"\x0a\x01k\x12\x01y";
    let descriptor = [&[0x12, 10, 0x0a, 8][..], entry, &[0x20, 0]].concat();
    let message = [&b"\x0a\x01d"[..], &descriptor[..].repeat(64)].concat();
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

/// Asks and does not read: the window for replies is closed.
async fn without_window(address: SocketAddr, path: &str, body: Bytes) {
    let Some(mut client) = http2(address, 0).await else { return };
    let mut open = Vec::new();
    for _ in 0..2000 {
        if poll_fn(|cx| client.poll_ready(cx)).await.is_err() {
            break;
        }
        let Ok((reply, mut stream)) = client.send_request(post(path), false) else { break };
        let _ = stream.send_data(body.clone(), true);
        open.push((reply, stream));
    }
    std::future::pending::<()>().await;
    drop(open);
}

/// Sends bytes over and over, and reads nothing.
async fn pour(address: SocketAddr, first: &[u8], rest: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let _ = stream.write_all(first).await;
    for _ in 0..1024 {
        if stream.write_all(rest).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

async fn by_hundred<F: Future<Output = ()> + 'static>(attack: impl Fn(usize) -> F) {
    for number in 0..100 {
        tokio::task::spawn_local(attack(number));
        tokio::task::yield_now().await;
    }
    std::future::pending().await
}

#[test]
fn one_connection_with_reflection_bodies_holds_little() {
    withstand(ONE, |to| reflection_bodies(to.grpc));
}

#[test]
fn one_http2_connection_with_half_bodies_holds_little() {
    withstand(ONE, |to| half_bodies(to.http, "/v1/check"));
}

#[test]
fn a_hundred_connections_with_half_requests_hold_what_is_configured() {
    withstand(HUNDRED, |to| {
        by_hundred(move |number| async move {
            let head = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1048576\r\n\r\n";
            let chunks =
                b"POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
            let body = [b' '; 1000];
            match number % 5 {
                0 => half_bodies(to.http, "/v1/check").await,
                1 => half_bodies(to.grpc, METHOD).await,
                2 => pour(to.http, head, &body[..]).await,
                3 => pour(to.http, chunks, &[b"3e8\r\n", &body[..], b"\r\n"].concat()).await,
                _ => pour(to.resp, b"*2\r\n$4\r\nECHO\r\n$1048000\r\n", &body[..]).await,
            }
        })
    });
}

#[test]
fn a_hundred_connections_without_a_window_hold_what_is_configured() {
    withstand(HUNDRED, |to| {
        by_hundred(move |number| async move {
            match number % 4 {
                0 => without_window(to.http, "/v1/policies", Bytes::new()).await,
                1 => {
                    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
                    // A list of the services.
                    let ask = Bytes::from_static(&[0, 0, 0, 0, 2, 0x3a, 0]);
                    without_window(to.grpc, path, ask).await;
                }
                _ => without_window(to.grpc, METHOD, long_call()).await,
            }
        })
    });
}

/// The heads of many streams waited for their tasks, and were not counted before.
#[test]
fn a_hundred_connections_with_many_tiny_headers_hold_what_is_configured() {
    let bytes: &[u8] = tiny_headers().leak();
    withstand(HUNDRED, move |to| by_hundred(move |_| pour(to.http, bytes, b"")));
}

#[test]
fn a_hundred_connections_that_never_read_hold_what_is_configured() {
    withstand(HUNDRED, |to| {
        by_hundred(move |number| async move {
            let echo = [&b"*2\r\n$4\r\nECHO\r\n$60000\r\n"[..], &[b'x'; 60_000], b"\r\n"].concat();
            let get = b"GET /v1/policies HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
            match number % 2 {
                0 => pour(to.resp, b"", &echo).await,
                _ => pour(to.http, b"", &get).await,
            }
        })
    });
}

/// A command that serves with this many file descriptors.
fn serve_with_descriptors(most: u32, folder: &Path) -> Command {
    let config = folder.join("limits.yaml");
    std::fs::write(&config, YAML).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\"")]);
    command.arg(serve().get_program()).args(serve().get_args()).arg(config);
    command
}

#[test]
fn more_connections_than_descriptors_are_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve_with_descriptors(200, folder.path());
    let ended = command.args(["--max-connections", "1000"]).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{said}");
    for part in ["max_connections of 1000", "above 72", "descriptor limit of 200", "LimitNOFILE"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[test]
fn admins_are_served_when_descriptors_run_out() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::spawn(folder.path(), &mut serve_with_descriptors(200, folder.path()));
    let open = |address| std::net::TcpStream::connect(address).unwrap();
    let idle: Vec<_> =
        (0..300).map(|at| open([service.resp, service.http, service.grpc][at % 3])).collect();
    for _ in 0..3 {
        assert_eq!(service.admin("GET", "/ready", "").0, 200);
    }
    let metrics = service.admin("GET", "/metrics", "").1;
    let refused = |line: &&str| {
        line.starts_with("tollgate_refused_total") && line.contains(r#"reason="descriptors""#)
    };
    let refused = metrics
        .lines()
        .filter(refused)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(refused.sum::<u64>(), 300 - 72, "{metrics}");
    drop(idle);
}
