//! The network that misbehaves, in front of a real server.
#![allow(clippy::disallowed_methods, reason = "delays of a real network are measured")]

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};
use tollgate_rig::{Flavor, Mode, Proxy, Redis, within};

const SOON: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(60);

/// What a client sees.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Text(String),
    Nothing,
    Closed,
    Reset,
}

fn text(text: &str) -> Seen {
    Seen::Text(text.to_owned())
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, line: &str) {
        // One that was reset shows it when it is read.
        let _sent = self.0.write_all(format!("{line}\r\n").as_bytes());
    }

    /// Reads as many bytes as expected, or says what came instead.
    fn read(&mut self, bytes: usize, patience: Duration) -> Seen {
        self.0.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = vec![0; bytes];
        match self.0.read_exact(&mut buffer) {
            Ok(()) => Seen::Text(String::from_utf8_lossy(&buffer).into_owned()),
            Err(error) => match error.kind() {
                ErrorKind::UnexpectedEof => Seen::Closed,
                ErrorKind::ConnectionReset => Seen::Reset,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Seen::Nothing,
                kind => panic!("{kind}"),
            },
        }
    }

    fn ping(&mut self) -> Seen {
        self.send("PING");
        self.read(7, SOON)
    }
}

fn rig() -> (Redis, Proxy) {
    let redis = Redis::start(Flavor::Redis);
    let proxy = Proxy::start(redis.address());
    (redis, proxy)
}

#[test]
fn passes_and_counts() {
    let (redis, proxy) = rig();
    let (mut one, mut two) = (Client::connect(&proxy), Client::connect(&proxy));
    assert_eq!(one.ping(), text("+PONG\r\n"));
    assert_eq!(two.ping(), text("+PONG\r\n"));
    two.send("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1");
    assert_eq!(two.read(5, SOON), text("+OK\r\n"));
    assert_eq!((proxy.connections(), proxy.connections_open(), proxy.requests()), (2, 2, 3));
    assert_eq!((proxy.bytes_up(), proxy.bytes_down()), (12 + 27, 14 + 5));
    drop(one);
    within(SOON, "one is closed", || proxy.connections_open() == 1);
    let other = Redis::start(Flavor::Valkey);
    proxy.set_target(other.address());
    let mut three = Client::connect(&proxy);
    three.send("EXISTS a");
    assert_eq!(three.read(4, SOON), text(":0\r\n"));
    drop(redis);
    assert_eq!(two.read(1, SOON), Seen::Closed, "the end of the server is passed on");
}

#[test]
fn black_hole_swallows_for_good() {
    let (redis, proxy) = rig();
    let mut old = Client::connect(&proxy);
    assert_eq!(old.ping(), text("+PONG\r\n"));
    proxy.set(Mode::BlackHole);
    let mut new = Client::connect(&proxy);
    for client in [&mut old, &mut new] {
        client.send("INCR a");
        assert_eq!(client.read(1, MOMENT), Seen::Nothing);
    }
    proxy.set(Mode::Pass);
    for client in [&mut old, &mut new] {
        client.send("INCR a");
        assert_eq!(client.read(1, MOMENT), Seen::Nothing, "what lost bytes stays silent");
    }
    assert_eq!(redis.cli(&["EXISTS", "a"]), "0");
    assert_eq!(Client::connect(&proxy).ping(), text("+PONG\r\n"));
    assert_eq!(proxy.requests(), 6);
}

#[test]
fn stall_loses_nothing() {
    let (_redis, proxy) = rig();
    let mut old = Client::connect(&proxy);
    assert_eq!(old.ping(), text("+PONG\r\n"));
    proxy.set(Mode::Stall);
    let mut new = Client::connect(&proxy);
    for client in [&mut old, &mut new] {
        client.send("PING");
        assert_eq!(client.read(1, MOMENT), Seen::Nothing);
    }
    proxy.set(Mode::Pass);
    for client in [&mut old, &mut new] {
        assert_eq!(client.read(7, SOON), text("+PONG\r\n"), "it comes late");
    }
}

#[test]
fn refuse_resets_new_connections_only() {
    let (_redis, proxy) = rig();
    let mut old = Client::connect(&proxy);
    assert_eq!(old.ping(), text("+PONG\r\n"));
    proxy.set(Mode::Refuse);
    assert_eq!(Client::connect(&proxy).ping(), Seen::Reset);
    assert_eq!(old.ping(), text("+PONG\r\n"));
}

#[test]
fn delay_does_not_add_up() {
    let (_redis, proxy) = rig();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ping(), text("+PONG\r\n"));
    proxy.set(Mode::Delay(Duration::from_millis(100)));
    let start = Instant::now();
    for sent in 2..32 {
        client.send("PING");
        within(SOON, "it came alone", || proxy.requests() == sent);
    }
    for _ in 2..32 {
        assert_eq!(client.read(7, SOON), text("+PONG\r\n"));
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(took < Duration::from_secs(2), "thirty in a row would take 3 s: {took:?}");
}

#[test]
fn throttle_takes_its_time() {
    let (redis, proxy) = rig();
    assert_eq!(redis.cli(&["SET", "a", &"x".repeat(1_000)]), "OK");
    proxy.set(Mode::Throttle(5_000));
    let mut client = Client::connect(&proxy);
    let start = Instant::now();
    client.send("GET a");
    assert!(matches!(client.read(1_009, SOON), Seen::Text(_)));
    assert!(start.elapsed() >= Duration::from_millis(190), "{:?}", start.elapsed());
}

#[test]
fn reset_comes_in_the_middle_of_a_reply() {
    let (redis, proxy) = rig();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ping(), text("+PONG\r\n"));
    proxy.set(Mode::ResetAfter(10));
    assert_eq!(client.ping(), text("+PONG\r\n"));
    client.send("INCR a");
    assert_eq!(client.read(3, SOON), text(":1\r"));
    assert_eq!(client.read(1, SOON), Seen::Reset);
    assert_eq!(redis.cli(&["GET", "a"]), "1", "it was carried out");
    proxy.set(Mode::ResetAfter(0));
    assert_eq!(Client::connect(&proxy).ping(), Seen::Reset);
    proxy.set(Mode::Pass);
    assert_eq!(Client::connect(&proxy).ping(), text("+PONG\r\n"));
}

#[test]
fn corrupts_one_byte() {
    let (_redis, proxy) = rig();
    proxy.set(Mode::Corrupt(8));
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ping(), text("+PONG\r\n"));
    assert_eq!(client.ping(), text("+\u{fffd}ONG\r\n"));
    assert_eq!(client.ping(), text("+PONG\r\n"));
}

#[test]
fn loses_requests_or_replies() {
    let (redis, proxy) = rig();
    for (mode, carried_out) in [(Mode::DropRequests, "0"), (Mode::DropReplies, "2")] {
        proxy.set(Mode::Pass);
        let mut client = Client::connect(&proxy);
        assert_eq!(client.ping(), text("+PONG\r\n"));
        proxy.set(mode);
        for _ in 0..2 {
            client.send("INCRBY a 1");
            assert_eq!(client.read(1, MOMENT), Seen::Nothing, "{mode:?}");
        }
        assert_eq!(redis.cli(&["INCRBY", "a", "0"]), carried_out, "{mode:?}");
        assert_eq!(proxy.connections_open(), 1, "{mode:?}");
        drop(client);
        within(SOON, "it is closed", || proxy.connections_open() == 0);
    }
}

#[test]
fn cuts_all_at_once() {
    let (redis, proxy) = rig();
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(&proxy)).collect();
    for client in &mut clients {
        assert_eq!(client.ping(), text("+PONG\r\n"));
    }
    proxy.cut();
    assert_eq!(proxy.connections_open(), 0);
    for client in &mut clients {
        assert_eq!(client.read(1, SOON), Seen::Reset);
    }
    assert_eq!(Client::connect(&proxy).ping(), text("+PONG\r\n"));
    within(SOON, "the server sees it too", || {
        redis.info("clients")["connected_clients"].parse::<u32>().unwrap() <= 2
    });
    drop(proxy);
}

#[tokio::test(start_paused = true)]
async fn has_a_time_of_its_own() {
    let (_redis, proxy) = rig();
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let start = Instant::now();
    assert_eq!(Client::connect(&proxy).ping(), text("+PONG\r\n"));
    assert!(start.elapsed() >= Duration::from_millis(50));
}
