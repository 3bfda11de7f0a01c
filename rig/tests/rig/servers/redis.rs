//! One server in its many shapes.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};
use tollgate_rig::{Flavor, Port, Redis, Tls, free_port, program::on_path, within};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn answers_and_leaves_nothing_behind() {
    for flavor in Flavor::ALL {
        let redis = Redis::start(flavor);
        let (pid, folder) = (redis.pid(), redis.folder().to_owned());
        assert_eq!(redis.cli(&["SET", "a", "1"]), "OK");
        assert_eq!(redis.cli(&["INCR", "a"]), "2");
        assert!(redis.cli(&["NONSENSE"]).starts_with("ERR unknown command"));
        assert!(redis.try_cli(&["NONSENSE"]).is_err());
        let name = redis.info("server").contains_key("valkey_version");
        assert_eq!(name, flavor == Flavor::Valkey, "{flavor:?}");
        assert!(redis.used_cpu() > Duration::ZERO);
        let mut plain = TcpStream::connect(redis.address()).unwrap();
        plain.write_all(b"PING\r\n").unwrap();
        let mut pong = [0; 7];
        plain.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
        drop(redis);
        assert!(!runs(pid), "{flavor:?}");
        assert!(!folder.exists(), "{flavor:?}");
    }
}

#[test]
fn ends_when_its_test_panics() {
    let (sender, pid) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let redis = Redis::start(Flavor::Redis);
        sender.send(redis.pid()).unwrap();
        panic!("as a failing test does");
    });
    assert!(panicked.join().is_err());
    assert!(!runs(pid.recv().unwrap()));
}

/// The name of the test below, which another one runs in a process of its own.
const HANGING: &str = "servers::redis::hangs_with_a_server";

#[test]
#[ignore = "ends_when_its_process_is_killed runs it, and kills it"]
fn hangs_with_a_server() {
    let redis = Redis::start(Flavor::Redis);
    println!("\npid {}", redis.pid());
    loop {
        std::thread::park();
    }
}

#[test]
fn ends_when_its_process_is_killed() {
    assert!(on_path("setpriv").is_some(), "setpriv is missing: apt-get install util-linux");
    // What it leaves behind goes with this folder.
    let folder = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .env("TMPDIR", folder.path())
        .args(["--exact", HANGING, "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut pids = lines.filter_map(|line| line.unwrap().strip_prefix("pid ")?.parse().ok());
    let pid = pids.next().unwrap();
    assert!(runs(pid));
    process.kill().unwrap();
    process.wait().unwrap();
    // Its new parent reaps it.
    within(SOON, "the server is gone", || !runs(pid));
}

#[test]
fn outlives_the_thread_that_started_it() {
    let redis = std::thread::spawn(|| Redis::start(Flavor::Redis)).join().unwrap();
    assert_eq!(redis.cli(&["PING"]), "PONG");
}

#[test]
fn starts_in_parallel_on_ports_of_their_own() {
    let starts: Vec<_> =
        (0..8).map(|_| std::thread::spawn(|| Redis::start(Flavor::Redis))).collect();
    let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    let ports: HashSet<_> = servers.iter().map(Redis::address).collect();
    assert_eq!(ports.len(), 8);
    let port = Port::reserve();
    assert!(!ports.contains(&port.address()));
    assert!(free_port() != port.address());
}

#[test]
fn is_killed_frozen_and_restarted_on_the_same_port() {
    for flavor in Flavor::ALL {
        let mut redis = Redis::builder(flavor).appendonly().start();
        let address = redis.address();
        assert_eq!(redis.cli(&["SET", "a", "1"]), "OK");

        redis.kill();
        assert!(!redis.is_running());
        assert!(TcpStream::connect(address).is_err());
        redis.restart();
        assert_eq!((redis.address(), redis.cli(&["GET", "a"])), (address, "1".to_owned()));

        redis.freeze();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(stream.read(&mut [0; 7]).is_err(), "it is frozen");
        assert!(redis.is_running());
        redis.thaw();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(stream.read(&mut [0; 7]).unwrap(), 7);

        redis.stop();
        assert!(!redis.is_running());
        redis.restart();
        assert_eq!(redis.cli(&["GET", "a"]), "1");
    }
}

#[test]
fn without_appendonly_a_restart_loses_all() {
    let mut redis = Redis::start(Flavor::Valkey);
    assert_eq!(redis.cli(&["SET", "a", "1"]), "OK");
    redis.restart();
    assert_eq!(redis.cli(&["EXISTS", "a"]), "0");
}

#[test]
fn asks_for_passwords() {
    for flavor in Flavor::ALL {
        let redis = Redis::builder(flavor)
            .password("sesame")
            .user("limiter", "secret", "~tollgate:* +@all -@admin")
            .start();
        assert!(redis.url().starts_with("redis://:sesame@127.0.0.1:"));
        assert_eq!(redis.cli(&["PING"]), "PONG");
        for (login, expected) in [
            (&["", ""][..], "-NOAUTH"),
            (&["AUTH wrong\r\n"], "-WRONGPASS"),
            (&["AUTH limiter secret\r\n", "SET tollgate:a 1\r\n"], "+OK\r\n+OK"),
            (&["AUTH limiter secret\r\n", "SET other 1\r\n"], "+OK\r\n-NOPERM"),
        ] {
            let mut stream = TcpStream::connect(redis.address()).unwrap();
            let lines = login.concat() + "PING\r\nQUIT\r\n";
            stream.write_all(lines.as_bytes()).unwrap();
            let mut reply = String::new();
            // A connection that is not let in may be closed with a reset after the reply.
            let _ended = stream.read_to_string(&mut reply);
            assert!(reply.starts_with(expected), "{flavor:?}: {login:?} gives {reply:?}");
        }
    }
}

#[test]
fn speaks_tls_only_or_beside() {
    let only = Redis::builder(Flavor::Redis).tls(Tls::Only).client_certificates().start();
    assert!(only.url().starts_with("rediss://"));
    assert_eq!(Some(only.address()), only.tls_address());
    let beside = Redis::builder(Flavor::Redis).password("sesame").tls(Tls::Beside).start();
    assert!(beside.url().starts_with("redis://:sesame@"));
    assert!(beside.tls_url().unwrap().starts_with("rediss://:sesame@"));

    // redis-cli is an independent judge of the certificates.
    let ping = |redis: &Redis, client: bool| {
        let made = redis.certificates().unwrap();
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &redis.tls_address().unwrap().port().to_string()])
            .args(["--tls", "--cacert"])
            .arg(&made.authority);
        if client {
            cli.arg("--cert").arg(&made.client.certificate).arg("--key").arg(&made.client.key);
        }
        let output = cli.arg("PING").output().expect("redis-cli: apt-get install redis-tools");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ping(&only, true).contains("PONG"));
    assert!(!ping(&only, false).contains("PONG"));
    assert!(ping(&beside, false).contains("NOAUTH"));
}

#[test]
fn runs_out_of_memory() {
    for flavor in Flavor::ALL {
        let redis = Redis::builder(flavor).maxmemory(1, "noeviction").start();
        assert!(redis.cli(&["SET", "a", "1"]).starts_with("OOM"), "{flavor:?}");
        assert_eq!(redis.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
        assert_eq!(redis.cli(&["SET", "a", "1"]), "OK");
    }
}

#[test]
fn clock_steps_forward_and_back_and_stands_still() {
    for flavor in Flavor::ALL {
        let mut redis = Redis::builder(flavor).faketime().start();
        let hour = Duration::from_secs(3_600);
        let about = |seen: SystemTime, expected: SystemTime| {
            let off = seen.duration_since(expected).unwrap_or_else(|early| early.duration());
            assert!(off < Duration::from_secs(5), "{flavor:?}: off by {off:?}");
        };
        let start = redis.time();
        assert_eq!(redis.cli(&["SET", "a", "1", "EX", "60"]), "OK");
        redis.advance(hour);
        about(redis.time(), start + hour);
        assert_eq!(redis.cli(&["EXISTS", "a"]), "0", "expiry follows");
        redis.set_back(2 * hour);
        about(redis.time(), start - hour);
        assert_eq!(redis.cli(&["SET", "b", "1", "PX", "20"]), "OK");
        within(SOON, "expiry goes on after a step back", || redis.cli(&["EXISTS", "b"]) == "0");

        let then = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_250_000);
        // Valkey counts the time since it last looked, up to a millisecond.
        let slack = Duration::from_micros(if flavor == Flavor::Valkey { 1_500 } else { 0 });
        let is = |redis: &Redis, ms: u64| {
            let (time, expected) = (redis.time(), then + Duration::from_millis(ms));
            assert!(time >= expected && time <= expected + slack, "{flavor:?}: {time:?}, {ms}");
        };
        redis.stop_time(then);
        is(&redis, 0);
        is(&redis, 0);
        redis.advance(Duration::from_millis(1_500));
        is(&redis, 1_500);
        redis.set_back(Duration::from_millis(500));
        is(&redis, 1_000);
        redis.set_time(then + hour);
        within(SOON, "it runs again", || redis.time() > then + hour);
        about(redis.time(), then + hour);
        redis.restart();
        about(redis.time(), then + hour);
        let pid = redis.pid();
        drop(redis);
        assert!(!Path::new(&format!("/dev/shm/faketime_shm_{pid}")).exists());
    }
}

#[test]
#[should_panic(expected = "ended early")]
fn a_line_that_makes_no_sense_fails_with_the_log() {
    drop(Redis::builder(Flavor::Redis).line("nonsense 1").start());
}

/// Tells whether there is such a process that did not end yet.
fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}
