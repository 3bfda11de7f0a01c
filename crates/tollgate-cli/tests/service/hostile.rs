//! Clients that mean harm, or are broken: others are served meanwhile, and memory is bounded.

use crate::process::{PATIENCE, Service, http};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 100000/year}}
";

/// Everybody else is served: by each protocol.
fn serves(service: &Service) {
    assert!(service.client().ask("TG.CHECK k x 1").starts_with("[1,"));
    let (status, body) = http(service.http, "POST", "/v1/check", r#"{"policy":"k","key":"x"}"#);
    assert_eq!(status, 200, "{body}");
    assert_eq!(service.admin("GET", "/ready", "").0, 200);
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes until the other end has had enough, and reads what it says to that.
fn send_all(mut stream: TcpStream, bytes: &[u8], times: usize) -> Vec<u8> {
    let mut said = Vec::new();
    for _ in 0..times {
        if stream.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut said);
    said
}

#[test]
fn garbage_is_refused_on_every_listener() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let noise: Vec<u8> =
        (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for address in [service.http, service.grpc, service.resp, service.admin] {
        send_all(connect(address), &noise, 16);
        send_all(connect(address), b"\0\0\0\0\0\0\0\0", 1000);
        send_all(connect(address), b"*1\r\n$-5\r\n", 1);
        send_all(connect(address), b"GET / HTTP/9.9\r\n\r\n", 1);
        // Closed at once, and half closed.
        drop(connect(address));
        connect(address).shutdown(Shutdown::Write).unwrap();
        serves(&service);
    }
}

#[test]
fn what_is_too_large_is_cut_off_and_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    serves(&service);
    let before = service.resident();
    let chunk = vec![b'a'; 1 << 16];
    // A frame, an inline command, a head and a body without end: 64 MiB each.
    send_all(connect(service.resp), b"*2\r\n$4\r\nPING\r\n$999999999\r\n", 1);
    send_all(connect(service.resp), &chunk, 1024);
    send_all(connect(service.resp), b"*1000000000\r\n", 1);
    for address in [service.http, service.admin] {
        send_all(connect(address), &chunk, 1024);
        let mut stream = connect(address);
        let head = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
        stream.write_all(head).unwrap();
        send_all(stream, &chunk, 1024);
    }
    send_all(connect(service.grpc), &chunk, 1024);
    serves(&service);
    let grown = service.resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB more than before", grown >> 20);
}

#[test]
fn who_sends_slowly_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let mut slow = Vec::new();
    for _ in 0..50 {
        for (address, start) in [
            (service.resp, &b"*3\r\n$8\r\nTG.CHECK\r\n$1\r\n"[..]),
            (service.http, b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-le"),
            (service.http, b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"),
            (service.grpc, b"PRI * HTTP/2.0\r\n\r\nSM"),
            (service.admin, b"GET /me"),
        ] {
            let mut stream = connect(address);
            stream.write_all(start).unwrap();
            slow.push(stream);
        }
    }
    serves(&service);
    // Somebody who asks and never reads.
    let mut deaf = connect(service.resp);
    deaf.set_nonblocking(true).unwrap();
    let question = b"TG.CHECK k deaf 1\r\n".repeat(1000);
    let mut refused = 0;
    for _ in 0..2000 {
        match deaf.write(&question) {
            Ok(_) => {}
            Err(_) => refused += 1,
        }
        if refused > 100 {
            break;
        }
    }
    assert!(refused > 0, "the server stops reading what it cannot answer");
    serves(&service);
    assert!(service.resident() < 256 << 20);
}

#[test]
fn ten_thousand_idle_connections_are_borne() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    serves(&service);
    let most = tollgate_server::net::raise_descriptor_limit().unwrap_or(0);
    assert!(most > 10_200, "{most} file descriptors are too few for this test; raise `ulimit -Hn`");
    let before = service.resident();
    let addresses = [service.resp, service.http, service.grpc, service.admin];
    let idle: Vec<_> = (0..10_000).map(|at| connect(addresses[at % 4])).collect();
    serves(&service);
    let each = service.resident().saturating_sub(before) / idle.len() as u64;
    assert!(each < 32 << 10, "{each} bytes for each idle connection");
    drop(idle);
    serves(&service);
}
