//! Runs `tollgate load` against a small server of the test and against a real redis-server.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

fn load(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("load").args(words).args(["--format", "json"]).output().unwrap()
}

/// Runs a load that must succeed, and returns its report.
fn report(words: &[&str]) -> Value {
    let output = load(words);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Answers each command of three words or fewer with what `answer` says of its number.
fn serve(answer: fn(u64) -> &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // ORDERING: SeqCst; a test has time.
    let number = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = Arc::clone(&number);
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while skip_command(&mut reader).is_some() {
                    let number = number.fetch_add(1, SeqCst);
                    if (&stream).write_all(answer(number)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads one array of bulk strings.
fn skip_command(reader: &mut impl BufRead) -> Option<()> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let words: usize = line.trim().strip_prefix('*')?.parse().ok()?;
    for _ in 0..words {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim().strip_prefix('$')?.parse().ok()?;
        reader.read_exact(&mut vec![0; length + 2]).ok()?;
    }
    Some(())
}

/// The first hundred pass.
fn hundred(number: u64) -> &'static [u8] {
    if number < 100 {
        b"*5\r\n:0\r\n:100\r\n:9\r\n:-1\r\n:1\r\n"
    } else {
        b"*5\r\n:1\r\n:100\r\n:0\r\n:1\r\n:60\r\n"
    }
}

#[test]
fn every_request_is_counted_once() {
    for threads in ["1", "3"] {
        let address = serve(hundred);
        let report = report(&[
            "resp",
            &address,
            "--requests",
            "1003",
            "--connections",
            "7",
            "--threads",
            threads,
            "--admit-exactly",
            "100",
        ]);
        assert_eq!(report["sent"], 1003);
        assert_eq!((&report["allowed"], &report["denied"]), (&100.into(), &903.into()));
        assert_eq!((&report["errors"], &report["unanswered"]), (&0.into(), &0.into()));
    }
}

#[test]
fn an_open_loop_sends_what_is_due_and_no_more() {
    let address = serve(hundred);
    let report = report(&[
        "resp",
        &address,
        "--rate",
        "2000",
        "--duration",
        "250ms",
        "--warmup",
        "50ms",
        "--connections",
        "5",
    ]);
    assert_eq!((&report["mode"], &report["sent"]), (&"open".into(), &500.into()));
    assert_eq!(report["answered"], 500);
}

#[test]
fn an_open_loop_does_not_wait_for_a_server_that_stalls_and_counts_from_the_due_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Nothing is answered until all 200 have come, the last of which is due after 199 ms.
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for _ in 0..200 {
            skip_command(&mut reader).unwrap();
        }
        stream.write_all(&b"+OK\r\n".repeat(200)).unwrap();
        skip_command(&mut reader)
    });
    let report = report(&[
        "resp",
        &address,
        "--command",
        "PING",
        "--rate",
        "1000",
        "--requests",
        "200",
        "--connections",
        "1",
    ]);
    assert_eq!((&report["allowed"], &report["errors"]), (&200.into(), &0.into()));
    assert!(report["latency_ms"]["max"].as_f64().unwrap() >= 198.0, "{report}");
    assert!(report["latency_ms"]["p50"].as_f64().unwrap() >= 98.0, "{report}");
    assert_eq!(server.join().unwrap(), None);
}

#[test]
fn too_many_allowed_is_a_failure_that_says_by_how_many() {
    let address = serve(hundred);
    let output = load(&["resp", &address, "--requests", "300", "--admit-exactly", "99"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("100 requests allowed, expected exactly 99 (+1)"), "{text}");
}

#[test]
fn an_error_of_the_server_is_shown_and_fails_the_run() {
    let address = serve(|_| b"-ERR not today\r\n");
    let output = load(&["resp", &address, "--requests", "10"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("10 errors, above --max-errors 0"), "{text}");
    assert!(text.contains("-ERR not today"), "{text}");
    let accepted = report(&["resp", &address, "--requests", "10", "--max-errors", "10"]);
    assert_eq!((&accepted["errors"], &accepted["allowed"]), (&10.into(), &0.into()));
}

#[test]
fn a_server_that_is_not_there_is_a_clear_failure() {
    // The port was free a moment ago, and nothing listens on it.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for protocol in ["resp", "http", "grpc"] {
        let output = load(&[protocol, &free, "--requests", "10"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{protocol}");
        assert!(text.contains("no request could be sent: cannot connect"), "{protocol}: {text}");
    }
}

#[test]
fn http_statuses_are_counted_by_their_meaning() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_http(&stream));
        }
    });
    // Two connections, one after the other: the server hangs up after ten answers.
    let report =
        report(&["http", &address, "--requests", "20", "--connections", "1", "--method", "GET"]);
    assert_eq!((&report["allowed"], &report["denied"]), (&10.into(), &10.into()));
    assert_eq!((&report["errors"], &report["reconnects"]), (&0.into(), &1.into()));
}

/// Answers ten requests without a body, every second one with 429.
fn answer_http(stream: &TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for number in 0..10 {
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let status = if number % 2 == 0 { "200 OK" } else { "429 Too Many Requests" };
        let close = if number == 9 { "Connection: close\r\n" } else { "" };
        let text = format!("HTTP/1.1 {status}\r\n{close}Content-Length: 2\r\n\r\n{{}}");
        if (&*stream).write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

#[cfg(feature = "test-servers")]
mod servers {
    use super::*;
    use std::io::Read;
    use tollgate_rig::{Flavor, Redis};

    #[test]
    fn a_real_redis_counts_what_was_sent() {
        let redis = Redis::start(Flavor::Redis);
        let address = redis.address().to_string();
        let report = report(&[
            "resp",
            &address,
            "--command",
            "INCR {key}",
            "--dist",
            "one",
            "--requests",
            "5000",
            "--key-prefix",
            "n:",
        ]);
        assert_eq!((&report["allowed"], &report["errors"]), (&5000.into(), &0.into()));
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET n:000000000000\r\n").unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"$4\r\n5000\r\n");
    }
}
