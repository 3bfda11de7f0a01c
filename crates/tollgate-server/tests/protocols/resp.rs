//! Policies, connections and their bounds over the Redis protocol.

mod access;
mod in_flight;
mod report;
mod transaction;

use crate::resp_support::{Client, Server, shared, shared_after};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tollgate_server::{
    net::{Access, Connection, ConnectionMemory, Listener, RefusalReason, Secret, Stream, Token},
    resp::{self, REPLIES_MAX},
    server::Settings,
};

#[test]
fn a_policy_is_checked_by_name() {
    let server = Server::start();
    let mut client = server.connect();
    for (line, expected) in [
        ("TG.PEEK per-user alice", "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$-1\r\n"),
        ("TG.CHECK per-user alice", "*6\r\n:1\r\n:3\r\n:2\r\n:0\r\n:20000\r\n$-1\r\n"),
        ("tg.check per-user alice 2", "*6\r\n:1\r\n:3\r\n:0\r\n:0\r\n:60000\r\n$-1\r\n"),
        (
            "TG.CHECK per-user alice",
            "*6\r\n:0\r\n:3\r\n:0\r\n:20000\r\n:60000\r\n$8\r\nper-user\r\n",
        ),
        ("TG.CHECK shop/per-user bob 4", "*6\r\n:0\r\n:3\r\n:3\r\n:-1\r\n:0\r\n$8\r\nper-user\r\n"),
        ("TG.CHECK open x", "*6\r\n:1\r\n$-1\r\n$-1\r\n:0\r\n:0\r\n$-1\r\n"),
        // Two values, as a list.
        ("TG.CHECK per-path KEYS 2 acme /a", "*6\r\n:1\r\n:2\r\n:1\r\n:0\r\n:500\r\n$-1\r\n"),
        (
            "TG.CHECK per-path KEYS 2 acme /a COST 1",
            "*6\r\n:1\r\n:2\r\n:0\r\n:0\r\n:1000\r\n$-1\r\n",
        ),
        ("TG.CHECK per-user keys 1 KEYS", "*6\r\n:1\r\n:3\r\n:2\r\n:0\r\n:20000\r\n$-1\r\n"),
        // Several at once: all or none.
        (
            "TG.CHECK per-tenant acme 1 per-path KEYS 2 acme /a COST 1",
            "*6\r\n:0\r\n:2\r\n:0\r\n:500\r\n:1000\r\n$8\r\nper-path\r\n",
        ),
        ("TG.PEEK per-tenant acme", "*6\r\n:1\r\n:5\r\n:5\r\n:0\r\n:0\r\n$-1\r\n"),
        (
            "TG.CHECK per-tenant acme 5 per-user carol 1",
            "*6\r\n:1\r\n:5\r\n:0\r\n:0\r\n:3600000\r\n$-1\r\n",
        ),
        // The same counters as Envoy's.
        (
            "TG.DESCRIPTOR shop 1 tenant acme",
            "*6\r\n:0\r\n:5\r\n:0\r\n:720000\r\n:3600000\r\n$10\r\nper-tenant\r\n",
        ),
        ("TG.DESCRIPTOR shop 1 nobody knows", "*6\r\n:1\r\n$-1\r\n$-1\r\n:0\r\n:0\r\n$-1\r\n"),
        ("TG.REFUND per-tenant acme 2", ":2\r\n"),
        ("TG.REFUND per-tenant acme 9", ":3\r\n"),
        ("TG.CHECK per-user alice 0", "*6\r\n:1\r\n:3\r\n:0\r\n:0\r\n:60000\r\n$-1\r\n"),
        ("TG.RESET per-user alice", "+OK\r\n"),
        ("TG.PEEK per-user alice", "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$-1\r\n"),
        // The answers that a check would give.
        ("TG.PEEK per-user alice 3", "*6\r\n:1\r\n:3\r\n:0\r\n:0\r\n:60000\r\n$-1\r\n"),
        ("TG.PEEK per-user alice 4", "*6\r\n:0\r\n:3\r\n:3\r\n:-1\r\n:0\r\n$8\r\nper-user\r\n"),
    ] {
        client.ask(line, expected);
    }
    server.clock.advance(Duration::from_secs(1));
    client.ask("TG.PEEK per-path KEYS 2 acme /a", "*6\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$-1\r\n");
}

#[test]
fn the_third_version_answers_in_maps() {
    let server = Server::start();
    let mut client = server.connect();
    client.ask("HELLO 3", "%7\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n");
    let mut rest = [0; 512];
    let _ = std::io::Read::read(&mut client.0, &mut rest).unwrap();
    client.ask(
        "TG.CHECK per-user alice 9",
        "%6\r\n$7\r\nallowed\r\n#f\r\n$5\r\nlimit\r\n:3\r\n$9\r\nremaining\r\n:3\r\n\
         $14\r\nretry_after_ms\r\n:-1\r\n$14\r\nreset_after_ms\r\n:0\r\n\
         $10\r\nrefused_by\r\n$8\r\nper-user\r\n",
    );
    client.ask("CL.THROTTLE k 0 1 1", "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1\r\n");
    client.ask("CLIENT GETNAME", "_\r\n");
    client.ask("TG.SETTLE 0-1-1-0.0.0.1-0000000000000000 1", "#f\r\n");
    client.ask("RESET", "+RESET\r\n");
    client.ask("CLIENT GETNAME", "$-1\r\n");
}

/// Reserves, and returns the id.
fn reserve(client: &mut Client, line: &str) -> String {
    client.send(format!("{line}\r\n"));
    client.expect("*7\r\n:1\r\n$", line);
    let mut text = Vec::new();
    // The id is the only string: length, line end, itself; then four numbers and a null.
    while text.iter().filter(|byte| **byte == b'\n').count() < 7 {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.0, &mut byte).unwrap();
        text.extend(byte);
    }
    String::from_utf8(text).unwrap().lines().nth(1).unwrap().to_owned()
}

#[test]
fn a_reservation_is_settled_or_cancelled_once() {
    let server = Server::start();
    let mut client = server.connect();
    let id = reserve(&mut client, "TG.RESERVE per-tenant a 4");
    client.ask("TG.PEEK per-tenant a", "*6\r\n:1\r\n:5\r\n:1\r\n:0\r\n:2880000\r\n$-1\r\n");
    client.ask(&format!("TG.SETTLE {id} 1"), ":1\r\n");
    client.ask(&format!("TG.SETTLE {id} 1"), ":0\r\n");
    client.ask("TG.PEEK per-tenant a", "*6\r\n:1\r\n:5\r\n:4\r\n:0\r\n:720000\r\n$-1\r\n");
    let id = reserve(&mut client, "TG.RESERVE per-tenant a 4 LIFE 5000");
    client.ask(&format!("TG.CANCEL {id}"), ":1\r\n");
    client.ask("TG.PEEK per-tenant a", "*6\r\n:1\r\n:5\r\n:4\r\n:0\r\n:720000\r\n$-1\r\n");
    let id = reserve(&mut client, "TG.RESERVE per-tenant a LIFE 5000");
    server.clock.advance(Duration::from_secs(6));
    client.ask(&format!("TG.CANCEL {id}"), ":0\r\n");
    client.ask(
        "TG.RESERVE per-tenant a 6",
        "*7\r\n:0\r\n$-1\r\n:5\r\n:3\r\n:-1\r\n:1434000\r\n$10\r\nper-tenant\r\n",
    );
}

#[test]
fn nonsense_is_refused_in_words() {
    let server = Server::start();
    let mut client = server.connect();
    for (line, expected) in [
        ("TG.CHECK per-us a", "ERR there is no policy \"per-us\"; did you mean \"per-user\"?"),
        ("TG.CHECK per-user", "ERR wrong number of arguments for 'tg.check' command"),
        ("TG.CHECK per-user a x", "ERR \"x\" is not a cost; give a whole number of at least 0"),
        ("TG.CHECK per-user a -1", "ERR \"-1\" is not a cost; give a whole number of at least 0"),
        (
            "TG.CHECK per-user a 1 per-tenant",
            "ERR policy \"per-tenant\" is not followed by a key; add one",
        ),
        (
            "TG.CHECK per-path a",
            "ERR policy \"per-path\" needs 2 keys (tenant, path), but 1 key was given",
        ),
        ("TG.CHECK per-path KEYS 3 a b", "ERR fewer keys follow than KEYS 3 announces"),
        ("TG.CHECK per-path KEYS 1", "ERR fewer keys follow than KEYS 1 announces"),
        (
            "TG.RESERVE per-user a 1 LIFE 0",
            "ERR \"0\" is not a lifetime; give milliseconds from 1 to 86400000",
        ),
        ("TG.RESERVE per-user a LIFE 5 6", "ERR LIFE and its milliseconds must come last"),
        ("TG.CANCEL x", "ERR \"x\" is not a reservation; use the id that `reserve` returned"),
        ("TG.DESCRIPTOR shop 1 user", "ERR wrong number of arguments for 'tg.descriptor' command"),
        (
            "TG.DESCRIPTOR shop 1 user a b",
            "ERR a descriptor needs pairs of key and value, at most 32; 3 words were given",
        ),
        ("GET a b\\n", "ERR unknown command 'GET', with args beginning with: 'a' 'b\\n' "),
        ("nonsense", "ERR unknown command 'nonsense', with args beginning with: "),
        ("CLUSTER INFO", "ERR This instance has cluster support disabled"),
        ("SUBSCRIBE a", "ERR 'subscribe' is not supported: this server has no pub/sub"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 AUTH a", "ERR Syntax error in HELLO option 'AUTH'"),
        (
            "CLIENT SETNAME \"a b\"",
            "ERR Client names cannot contain spaces, newlines or special characters, and are at most 256 bytes long.",
        ),
        (
            "AUTH x",
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        ),
    ] {
        client.ask(line, &format!("-{expected}\r\n"));
    }
    let counts = server.shared.traffic(Listener::Resp).counts();
    assert_eq!((counts.requests, counts.bad_requests, counts.open), (22, 22, 1));
}

#[test]
fn what_clients_say_when_they_connect_is_understood() {
    let server = Server::start();
    let mut client = server.connect();
    for (line, expected) in [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        ("ECHO \"a b\"", "$3\r\na b\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("CLIENT SETINFO LIB-NAME test", "+OK\r\n"),
        ("CLIENT SETINFO lib-ver 1.2", "+OK\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CONFIG GET save", "*0\r\n"),
        ("CLIENT NO-TOUCH OFF", "+OK\r\n"),
        ("CLIENT NO-EVICT maybe", "-ERR syntax error\r\n"),
        ("CLIENT NO-TOUCH 1", "-ERR syntax error\r\n"),
        ("COMMAND COUNT", ":43\r\n"),
        (
            "COMMAND INFO cl.throttle get",
            "*2\r\n*10\r\n$11\r\ncl.throttle\r\n:-1\r\n*2\r\n+write\r\n+fast\r\n:1\r\n:1\r\n:1\r\n\
             *0\r\n*0\r\n*0\r\n*0\r\n$-1\r\n",
        ),
        (
            "COMMAND INFO Client|NO-EVICT",
            "*1\r\n*10\r\n$15\r\nclient|no-evict\r\n:3\r\n*2\r\n+readonly\r\n+fast\r\n:0\r\n:0\r\n:0\r\n\
             *0\r\n*0\r\n*0\r\n*0\r\n",
        ),
        (
            "COMMAND DOCS tg.cancel nonsense",
            "*2\r\n$9\r\ntg.cancel\r\n*8\r\n$7\r\nsummary\r\n$25\r\nGives a reservation back.\r\n\
             $5\r\nsince\r\n$5\r\n0.1.0\r\n$5\r\ngroup\r\n$10\r\nrate-limit\r\n$9\r\narguments\r\n\
             *1\r\n*4\r\n$4\r\nname\r\n$2\r\nid\r\n$4\r\ntype\r\n$6\r\nstring\r\n",
        ),
        ("COMMAND DOCS nonsense", "*0\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("TG.POLICIES", "*6\r\n*14\r\n$6\r\npolicy\r\n$8\r\nper-user\r\n$2\r\nid\r\n"),
    ] {
        client.ask(line, expected);
    }
    let mut client = server.connect();
    server.shared.engine.clock().set_wall_offset(Duration::from_secs(1_700_000_000));
    client.send("COMMAND DOCS\r\nHELLO 3\r\nCOMMAND DOCS\r\nQUIT\r\n");
    let all = client.rest();
    assert!(
        all.starts_with("*86\r\n$11\r\ncl.throttle\r\n"),
        "43 names, each with its docs: {all}"
    );
    assert!(all.contains("%43\r\n$11\r\ncl.throttle\r\n%4\r\n$7\r\nsummary\r\n"), "{all}");
    let mut client = server.connect();
    client.ask("TIME", "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n");
    client.ask("CL.THROTTLE a 1 1 60", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n");
    client.ask("DBSIZE", ":1\r\n");
    // The client wants no replies: `SKIP` skips the next one, `OFF` all until `ON`.
    client.ask("CLIENT REPLY SKIP\r\nPING a\r\nPING b", "$1\r\nb\r\n");
    client.ask("CLIENT REPLY OFF\r\nPING a\r\nCLIENT REPLY ON\r\nPING b", "+OK\r\n$1\r\nb\r\n");
    client.ask("QUIT", "+OK\r\n");
    assert_eq!(client.rest(), "");
    let mut client = server.connect();
    client.send("INFO\r\nQUIT\r\n");
    let info = client.rest();
    for line in ["redis_version:7.4.0", "loading:0", "connected_clients:", "db0:keys=1,"] {
        assert!(info.contains(line), "{line} in {info}");
    }
    assert!(info.contains(&format!("tollgate_version:{}", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_uptime_counts_from_the_start_and_not_from_the_origin_of_the_clock() {
    let year = Duration::from_secs(366 * 86_400);
    let server = Server::of(shared_after(Settings::default(), year));
    server.clock.advance(Duration::from_secs(2 * 86_400 + 5));
    let mut client = server.connect();
    client.send("INFO server\r\nQUIT\r\n");
    let info = client.rest();
    for line in ["uptime_in_seconds:172805\r\n", "uptime_in_days:2\r\n"] {
        assert!(info.contains(line), "{line} in {info}");
    }
}

#[test]
fn a_refund_counts_a_permit_that_has_refilled_in_part() {
    let server = Server::start();
    let mut client = server.connect();
    client.ask("TG.CHECK per-user ann 2", "*6\r\n:1\r\n:3\r\n:1\r\n:0\r\n:40000\r\n$-1\r\n");
    server.clock.advance(Duration::from_millis(1));
    client.ask("TG.REFUND per-user ann", ":1\r\n");
    client.ask("TG.PEEK per-user ann", "*6\r\n:1\r\n:3\r\n:2\r\n:0\r\n:19999\r\n$-1\r\n");
    client.ask("TG.REFUND per-user ann", ":1\r\n");
    client.ask("TG.PEEK per-user ann", "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$-1\r\n");
    client.ask("TG.REFUND per-user ann", ":0\r\n");
}

#[test]
fn a_password_comes_first() {
    let token = Token::of(Listener::Resp, Secret::new("open sesame"));
    let settings = Settings { access: Access::new(vec![token]), ..Default::default() };
    let server = Server::with(settings);
    let mut client = server.connect();
    let no = "-NOAUTH Authentication required.\r\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for (line, expected) in [
        ("PING", no),
        ("CL.THROTTLE a 1 1 1", no),
        ("nonsense", no),
        ("HELLO", "-NOAUTH HELLO must be called with"),
    ] {
        client.ask(line, expected);
    }
    let mut client = server.connect();
    for (line, expected) in [
        ("AUTH sesame", wrong),
        ("AUTH admin 'open sesame'", wrong),
        ("HELLO 3 AUTH default nonsense", wrong),
        ("PING", no),
        ("AUTH 'open sesame'", "+OK\r\n"),
        ("PING", "+PONG\r\n"),
        ("RESET", "+RESET\r\n"),
        ("PING", no),
        ("AUTH default 'open sesame'", "+OK\r\n"),
        ("PING", "+PONG\r\n"),
    ] {
        client.ask(line, expected);
    }
    let mut client = server.connect();
    client.send("*11\r\n");
    assert_eq!(client.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
    let mut client = server.connect();
    client.ask("HELLO 3 AUTH default 'open sesame' SETNAME me", "%7\r\n");
}

#[test]
fn what_is_no_command_is_answered_and_ends_the_connection() {
    let server = Server::start();
    for (bytes, expected) in [
        ("PING\r\n*1\r\n$-1\r\n", "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n"),
        ("*2000\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        ("*1\r\n$2000000\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        ("'open\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        ("POST / HTTP/1.1\r\n", ""),
    ] {
        let mut client = server.connect();
        client.send(bytes);
        assert_eq!(client.rest(), expected, "{bytes:?}");
    }
}

#[test]
fn replies_of_many_megabytes_come_back_whole_and_in_order() {
    let server = Server::start();
    let client = server.connect();
    let word = "x".repeat(40_000);
    let (count, mut writer) = (3 * REPLIES_MAX / 40_000, Client(client.0.try_clone().unwrap()));
    let sent = format!("*2\r\n$4\r\nECHO\r\n$40000\r\n{word}\r\n").repeat(count);
    // One thread sends while this one reads: the socket buffers do not hold everything.
    let thread = std::thread::spawn(move || {
        writer.send(sent);
        writer.send("QUIT\r\n");
    });
    let mut client = client;
    let got = client.rest();
    thread.join().unwrap();
    assert_eq!(got.len(), count * (40_000 + 10) + 5);
    assert!(got.ends_with("+OK\r\n"));
}

/// Serves one end of a pair of sockets.
fn pair(settings: Settings) -> (UnixStream, std::sync::Arc<tollgate_server::server::Shared>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (shared, _) = shared(settings);
    let connection = Connection::new(std::sync::Arc::clone(&shared), Listener::Resp, None);
    tokio::spawn(resp::serve(Stream::Unix(theirs), connection));
    (ours, shared)
}

/// Lets time pass, and lets every task handle its input meanwhile.
async fn pass(seconds: u64) {
    let never = std::future::pending::<()>();
    let _ = tokio::time::timeout(Duration::from_secs(seconds), never).await;
}

async fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

fn settings(idle_s: u64, request_s: u64) -> Settings {
    Settings {
        idle_timeout: Duration::from_secs(idle_s),
        request_timeout: Duration::from_secs(request_s),
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_connection_after_the_idle_timeout() {
    let (mut client, shared) = pair(settings(100, 10));
    for _ in 0..3 {
        pass(90).await;
        client.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        client.read_exact(&mut pong).await.unwrap();
    }
    let closed = tokio::time::timeout(Duration::from_secs(99), rest(&mut client)).await;
    assert!(closed.is_err(), "closed before the idle timeout");
    let closed = tokio::time::timeout(Duration::from_secs(27), rest(&mut client)).await;
    assert_eq!(closed.unwrap(), "");
    tokio::task::yield_now().await;
    assert_eq!(shared.traffic(Listener::Resp).counts().open, 0);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_end_has_the_request_timeout_however_it_drips() {
    let (mut client, _shared) = pair(settings(1000, 10));
    client.write_all(b"*1\r\n$20\r\n").await.unwrap();
    for _ in 0..9 {
        pass(1).await;
        client.write_all(b"x").await.unwrap();
    }
    let closed = tokio::time::timeout(Duration::from_secs(2), rest(&mut client)).await;
    assert_eq!(closed.unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn draining_closes_what_is_silent_and_finishes_what_has_begun() {
    let (mut silent, shared) = pair(settings(1000, 10));
    pass(1).await;
    shared.start_draining();
    assert_eq!(rest(&mut silent).await, "");
    let (mut begun, shared) = pair(settings(1000, 10));
    begun.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    pass(1).await;
    shared.start_draining();
    pass(1).await;
    begun.write_all(b"NG\r\n").await.unwrap();
    assert_eq!(rest(&mut begun).await, "+PONG\r\n");
}

#[tokio::test]
async fn large_commands_are_refused_while_the_memory_is_used_up_and_small_ones_are_served() {
    let (mut client, shared) =
        pair(Settings { connection_memory_bytes: 4 << 20, ..settings(100, 10) });
    let mut held = ConnectionMemory::open(&shared, Listener::Http).claim();
    held.resize((3 << 20) - (16 << 10)).unwrap();
    let mut pong = [0; 7];
    client.write_all(b"PING\r\n").await.unwrap();
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    client.write_all(b"*2\r\n$4\r\nECHO\r\n$500000\r\n").await.unwrap();
    let _ = client.write_all(&[b'x'; 200_000]).await;
    let said = rest(&mut client).await;
    assert!(said.starts_with("-ERR the connections hold"), "{said}");
    let refused = shared.traffic(Listener::Resp).counts().refused;
    assert_eq!(refused[RefusalReason::Memory as usize], 1);
}
