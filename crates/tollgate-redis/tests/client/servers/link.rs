//! The link against one real server.

use crate::servers::link_support::{PATIENCE, call, open, told, until};
use std::time::Duration;
use tollgate::Clock;
use tollgate_redis::{Link, Reply, Route, Script, Settings};
use tollgate_rig::{Flavor, Redis, free_port};

/// Five consecutive failures open the breaker, regardless of earlier calls on a busy machine.
const FIVE_IN_A_ROW: &str = "breaker_window=5&breaker_failures=5";

/// Returns the address with a deadline that even a busy machine meets.
fn slow(url: &str) -> String {
    format!("{url}?deadline=5s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_each_get_their_own_reply() {
    let server = Redis::start(Flavor::Redis);
    for connections in [1, 3] {
        let link = open(&format!("{}&connections={connections}", slow(&server.url()))).await;
        let tasks: Vec<_> = (0..200_u32)
            .map(|task| {
                let link = link.clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        let text = format!("{task}/{round}");
                        let reply = call(&link, &["ECHO", &text]).await;
                        assert_eq!(reply, Ok(Reply::Bytes(text.into_bytes())));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let status = &link.nodes()[0];
        assert_eq!((status.state, status.in_flight, status.errors), ("up", 0, 0));
        assert!(status.calls > 4000 && status.connects == connections, "{status:?}");
    }
}

#[tokio::test]
async fn replies_of_any_size_and_type_come_through() {
    let server = Redis::start(Flavor::Redis);
    let link = open(&slow(&server.url())).await;
    let big = "x".repeat(1 << 19);
    assert_eq!(call(&link, &["SET", "big", &big]).await, Ok(Reply::Bytes(b"OK".into())));
    assert_eq!(call(&link, &["GET", "big"]).await, Ok(Reply::Bytes(big.into_bytes())));
    assert_eq!(call(&link, &["GET", "none"]).await, Ok(Reply::Nil));
    assert_eq!(call(&link, &["INCRBY", "n", "-5"]).await, Ok(Reply::Int(-5)));
    let error = call(&link, &["INCR", "big"]).await.unwrap_err();
    assert!(error.code() == Some("ERR") && !error.is_unknown(), "{error}");
    let script = "return {1, {'a', false}, {err = 'MINE x'}}";
    let reply = call(&link, &["EVAL", script, "0"]).await.unwrap();
    let inner = Reply::Array(vec![Reply::Bytes(b"a".into()), Reply::Nil]);
    let expected = vec![Reply::Int(1), inner, Reply::Error("MINE x".into())];
    assert_eq!(reply, Reply::Array(expected));
    assert_eq!(link.nodes()[0].state, "up", "the errors of commands are none of the server's");
}

#[tokio::test]
async fn logs_in_by_both_protocols_and_says_when_it_cannot() {
    let server = Redis::builder(Flavor::Redis).line("databases 4");
    let server = server.user("me", "s3:cret", "~* &* +@all").start();
    // The rig supports no password with a space, so the test sets it; the rig cannot log in any
    // more.
    assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", "pass word"]), "OK");
    let at = format!("{}/3", server.address());
    for login in [":pass%20word@", "default:pass%20word@", "me:s3%3Acret@"] {
        for protocol in [2, 3] {
            let url = format!("redis://{login}{at}?deadline=5s&protocol={protocol}");
            let link = open(&url).await;
            let info = call(&link, &["CLIENT", "INFO"]).await.unwrap();
            let info = String::from_utf8_lossy(info.bytes().unwrap()).into_owned();
            for part in [" name=tollgate ", " db=3 ", &format!("resp={protocol}")] {
                assert!(info.contains(part), "{url}: {info} has no {part}");
            }
        }
    }
    for (login, expected) in [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("me:no@", "WRONGPASS")] {
        for protocol in [2, 3] {
            let url = format!("redis://{login}{at}?protocol={protocol}");
            let link = Link::open(url.parse().unwrap()).unwrap();
            let error = told(&link, expected).await;
            assert!(!error.contains("wrong@"), "{url}: {error}");
            assert_eq!(link.nodes()[0].state, "open");
        }
    }
}

#[tokio::test]
async fn a_server_without_hello_is_spoken_to_in_the_older_protocol() {
    let server = Redis::builder(Flavor::Redis).password("s").line("rename-command HELLO \"\"");
    let server = server.start();
    let link = open(&slow(&server.url())).await;
    let info = call(&link, &["CLIENT", "INFO"]).await.unwrap();
    assert!(String::from_utf8_lossy(info.bytes().unwrap()).contains("resp=2"));
}

#[tokio::test]
async fn a_script_that_the_server_lost_is_sent_again() {
    let server = Redis::start(Flavor::Redis);
    let link = open(&slow(&server.url())).await;
    let script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    for round in 1..=3 {
        let mut call = script.call(1, 1);
        call.push(b"k");
        call.push_number(2);
        let reply = link.run(Route::Any, &script, call).await;
        assert_eq!(reply, Ok(Reply::Int(2 * round)));
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    }
    // A new connection loads the script by itself.
    assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "normal"]), "1");
    link.ready(PATIENCE).await.unwrap();
    until("loaded", async || server.cli(&["SCRIPT", "EXISTS", script.sha()]) == "1").await;
}

#[tokio::test]
async fn a_unix_socket_is_as_good() {
    let server = Redis::start(Flavor::Redis);
    let path = server.folder().join("a socket");
    std::os::unix::fs::symlink(server.socket(), &path).unwrap();
    let path = path.to_str().unwrap().replace(' ', "%20");
    let link = open(&format!("redis+unix://{path}?deadline=5s&db=2")).await;
    assert_eq!(call(&link, &["INCR", "n"]).await, Ok(Reply::Int(1)));
}

/// Returns the duration of a call that fails at once.
async fn refused_within(link: &Link) -> Duration {
    let clock = Clock::monotonic();
    let mut least = Duration::MAX;
    for _ in 0..50 {
        let began = clock.now();
        let error = call(link, &["PING"]).await.unwrap_err();
        assert!(!error.is_unknown(), "{error}");
        assert!(error.to_string().contains("cut off by its breaker for"), "{error}");
        least = least.min(clock.now().since(began));
    }
    least
}

#[tokio::test]
async fn a_dead_server_fails_fast_and_comes_back_by_itself() {
    let mut server = Redis::start(Flavor::Redis);
    let link = open(&slow(&server.url())).await;
    server.kill();
    until("open", async || link.nodes()[0].state == "open").await;
    assert!(refused_within(&link).await < Duration::from_micros(100));
    server.restart();
    until("up", async || call(&link, &["PING"]).await.is_ok()).await;
    for _ in 0..3 {
        call(&link, &["PING"]).await.unwrap();
    }
    assert_eq!(link.nodes()[0].state, "up");
}

#[tokio::test]
async fn a_stalled_server_opens_the_breaker_and_comes_back_by_itself() {
    let mut server = Redis::start(Flavor::Redis);
    let link = open(&format!("{}?deadline=200ms&{FIVE_IN_A_ROW}", server.url())).await;
    let before = link.nodes()[0].timeouts;
    server.freeze();
    for round in 0..5 {
        assert_eq!(link.nodes()[0].state, "up", "{round}");
        let error = call(&link, &["INCR", "n"]).await.unwrap_err();
        assert!(error.is_unknown() && error.to_string().contains("within 200ms"), "{error}");
    }
    assert_eq!((link.nodes()[0].state, link.nodes()[0].timeouts), ("open", before + 5));
    assert!(refused_within(&link).await < Duration::from_micros(100));
    server.thaw();
    until("up", async || call(&link, &["PING"]).await.is_ok()).await;
    // Every sent command was carried out once, and no call received a late reply.
    until("counted", async || call(&link, &["GET", "n"]).await == Ok(Reply::Bytes(b"5".into())))
        .await;
}

#[tokio::test]
async fn a_connection_without_answer_is_given_up() {
    let mut server = Redis::start(Flavor::Redis);
    let url = format!("{}?deadline=20ms&stall_timeout=30ms&connect_timeout=100ms", server.url());
    let link = open(&url).await;
    server.freeze();
    until("open", async || call(&link, &["PING"]).await.is_err_and(|it| !it.is_unknown())).await;
    let given_up = async || {
        let last = link.nodes()[0].last_error.clone();
        last.is_some_and(|last| last.contains("no connection within"))
    };
    until("given up", given_up).await;
    assert_eq!(link.nodes()[0].in_flight, 0);
    server.thaw();
    until("up", async || call(&link, &["PING"]).await.is_ok()).await;
    assert!(link.nodes()[0].connects > 1);
}

#[tokio::test]
async fn a_connection_that_died_silently_is_found_without_calls() {
    let mut server = Redis::start(Flavor::Redis);
    let wait = "keepalive=20ms&stall_timeout=50ms&connect_timeout=100ms";
    let link = open(&format!("{}?deadline=5s&{wait}", server.url())).await;
    server.freeze();
    until("found", async || link.nodes()[0].state == "open").await;
    server.thaw();
    until("up", async || call(&link, &["PING"]).await.is_ok()).await;
}

#[tokio::test]
async fn a_connection_full_of_calls_is_given_up_too() {
    let mut server = Redis::start(Flavor::Redis);
    let wait = "deadline=100ms&stall_timeout=50ms&connect_timeout=100ms&max_in_flight=5";
    let link = open(&format!("{}?{wait}&{FIVE_IN_A_ROW}", server.url())).await;
    server.freeze();
    for _ in 0..5 {
        assert!(call(&link, &["INCR", "n"]).await.unwrap_err().is_unknown());
    }
    assert_eq!((link.nodes()[0].in_flight, link.nodes()[0].state), (5, "open"));
    until("given up", async || link.nodes()[0].in_flight == 0).await;
    server.thaw();
    until("up", async || call(&link, &["PING"]).await.is_ok()).await;
}

#[tokio::test]
async fn no_more_than_so_many_calls_are_in_flight() {
    let mut server = Redis::start(Flavor::Redis);
    let link = open(&format!("{}?deadline=5s&max_in_flight=8", server.url())).await;
    server.freeze();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { call(&link, &["INCR", "n"]).await })
        })
        .collect();
    until("shed", async || link.nodes()[0].shed == 12).await;
    assert_eq!(link.nodes()[0].in_flight, 8);
    server.thaw();
    let mut shed = 0;
    for task in tasks {
        if let Err(error) = task.await.unwrap() {
            assert!(!error.is_unknown() && error.to_string().contains("max_in_flight"), "{error}");
            shed += 1;
        }
    }
    assert_eq!(shed, 12);
    assert_eq!(call(&link, &["GET", "n"]).await, Ok(Reply::Bytes(b"8".into())));
    assert_eq!(link.nodes()[0].state, "up");
}

#[tokio::test]
async fn what_was_not_sent_at_the_deadline_is_withdrawn() {
    // While the server is stopped, the socket buffers some megabytes; the rest stays in the queue.
    let mut server = Redis::builder(Flavor::Redis).line("proto-max-bulk-len 64mb").start();
    let link =
        open(&format!("{}?deadline=500ms&breaker_window=64&breaker_failures=64", server.url()))
            .await;
    server.freeze();
    let big = "x".repeat(1 << 20);
    let calls: Vec<_> = (0..24)
        .map(|at| {
            let (link, big) = (link.clone(), big.clone());
            tokio::spawn(async move { call(&link, &["SET", &format!("k{at}"), &big]).await })
        })
        .collect();
    let mut unknown = 0;
    let mut unsent = 0;
    for task in calls {
        match task.await.unwrap() {
            Err(error) if error.is_unknown() => unknown += 1,
            Err(error) => {
                assert!(error.to_string().contains("accepted no command within"), "{error}");
                unsent += 1;
            }
            Ok(_) => panic!("a stopped server answers"),
        }
    }
    assert!(unknown > 0 && unsent > 0, "{unknown} unknown, {unsent} not sent");
    assert_eq!(link.nodes()[0].in_flight, unknown);
    server.thaw();
    until("drained", async || link.nodes()[0].in_flight == 0).await;
    let sent = call(&link, &["DBSIZE"]).await;
    assert_eq!(sent, Ok(Reply::Int(unknown as i64)), "those withdrawn were not carried out");
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing_behind() {
    let mut server = Redis::start(Flavor::Redis);
    let link = open(&slow(&server.url())).await;
    server.freeze();
    for _ in 0..10 {
        let waited = tokio::time::timeout(Duration::from_millis(2), call(&link, &["INCR", "n"]));
        assert!(waited.await.is_err());
    }
    server.thaw();
    assert_eq!(call(&link, &["GET", "n"]).await, Ok(Reply::Bytes(b"10".into())));
    assert_eq!(link.nodes()[0].in_flight, 0);
    assert_eq!(link.nodes()[0].errors, 0);
}

#[tokio::test]
async fn a_server_in_trouble_opens_the_breaker() {
    let server = Redis::start(Flavor::Redis);
    let link = open(&slow(&server.url())).await;
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    for _ in 0..5 {
        let error = call(&link, &["SET", "k", "v"]).await.unwrap_err();
        assert_eq!(error.code(), Some("OOM"));
    }
    let error = call(&link, &["SET", "k", "v"]).await.unwrap_err();
    assert!(error.code().is_none() && error.to_string().contains("OOM"), "{error}");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    until("up", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
}

#[test]
fn calls_come_from_other_runtimes_and_the_last_clone_ends_the_tasks() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let home = home.unwrap();
    let server = Redis::start(Flavor::Redis);
    let link = home.block_on(open(&slow(&server.url())));
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(other.block_on(call(&link, &["INCR", "n"])), Ok(Reply::Int(1)));
    let clone = link.clone();
    drop(link);
    assert_eq!(other.block_on(call(&clone, &["INCR", "n"])), Ok(Reply::Int(2)));
    drop(clone);
    other.block_on(until("closed", async || {
        server.cli(&["CLIENT", "LIST"]).lines().all(|line| !line.contains("name=tollgate"))
    }));
}

#[tokio::test]
async fn nobody_there_is_said_at_once_and_settings_are_judged() {
    let url = format!("redis://{}", free_port());
    let link = Link::open(url.parse().unwrap()).unwrap();
    told(&link, "refused").await;
    let settings: Settings = "redis://h".parse().unwrap();
    let error = Link::open(settings.connections(0)).unwrap_err().to_string();
    assert!(error.contains("connections 0"), "{error}");
}
