//! `MULTI` and `EXEC`: what redis-py and others send around a pipeline.

use crate::resp_support::{Client, Server};
use tollgate_server::{resp::REPLIES_MAX, server::Settings};

const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

/// Lines that are sent together, and all that comes back. The errors are those of redis-server 7.0.
#[test]
fn a_transaction_is_queued_and_run_in_order() {
    let server = Server::start();
    let queued = "+QUEUED\r\n";
    let throttled = "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n";
    for (lines, expected) in [
        (&["MULTI", "EXEC"][..], "+OK\r\n*0\r\n".to_owned()),
        (
            &["MULTI", "CL.THROTTLE k 1 1 60", "EXISTS k", "DEL k", "EXISTS k", "EXEC", "PING"],
            format!("+OK\r\n{}*4\r\n{throttled}:1\r\n:1\r\n:0\r\n+PONG\r\n", queued.repeat(4)),
        ),
        // An error of a command that was run is a part of the answer, and the others are run.
        (
            &["MULTI", "TTL a", "SELECT 7", "PING", "EXEC"],
            format!(
                "+OK\r\n{}*3\r\n:-2\r\n-ERR DB index is out of range\r\n+PONG\r\n",
                queued.repeat(3)
            ),
        ),
        (&["EXEC"], "-ERR EXEC without MULTI\r\n".into()),
        (&["DISCARD"], "-ERR DISCARD without MULTI\r\n".into()),
        (
            &["MULTI", "CL.THROTTLE k 1 1 60", "DISCARD", "EXISTS k"],
            format!("+OK\r\n{queued}+OK\r\n:0\r\n"),
        ),
        (
            &["MULTI", "MULTI", "WATCH a", "PING", "EXEC"],
            format!(
                "+OK\r\n-ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not \
                 allowed\r\n{queued}*1\r\n+PONG\r\n"
            ),
        ),
        // After a command that is refused nothing is run.
        (
            &["MULTI", "CL.THROTTLE k 1 1 60", "GET k", "PING", "EXEC", "EXISTS k", "EXEC"],
            format!(
                "+OK\r\n{queued}-ERR unknown command 'GET', with args beginning with: 'k' \
                 \r\n{queued}{ABORTED}:0\r\n-ERR EXEC without MULTI\r\n"
            ),
        ),
        (
            &["MULTI", "TTL", "EXEC"],
            format!("+OK\r\n-ERR wrong number of arguments for 'ttl' command\r\n{ABORTED}"),
        ),
        (
            &["MULTI", "CLIENT REPLY OFF", "EXEC"],
            format!("+OK\r\n-ERR CLIENT REPLY is not allowed inside a transaction\r\n{ABORTED}"),
        ),
        (
            &["MULTI", "UNWATCH", "HELLO 3 SETNAME x", "RESET", "EXEC", "UNWATCH"],
            format!("+OK\r\n{}+RESET\r\n-ERR EXEC without MULTI\r\n+OK\r\n", queued.repeat(2)),
        ),
        (&["MULTI", "PING", "QUIT"], format!("+OK\r\n{queued}+OK\r\n")),
    ] {
        // All at once, and line by line.
        let mut client = server.connect();
        client.send(lines.join("\r\n") + "\r\n");
        client.expect(&expected, &format!("{lines:?}"));
        let mut client = server.connect();
        for line in lines {
            client.send(format!("{line}\r\n"));
        }
        client.expect(&expected, &format!("{lines:?}, line by line"));
    }
    let mut client = server.connect();
    client.ask("WATCH a", "-ERR 'watch' is not supported: each decision reads and charges");
}

/// Opens a transaction of `count` commands.
fn filled(server: &Server, command: &str, count: usize) -> Client {
    let mut client = server.connect();
    client.ask("MULTI", "+OK\r\n");
    client.send(format!("{command}\r\n").repeat(count));
    client.expect(&"+QUEUED\r\n".repeat(count), command);
    client
}

#[test]
fn what_a_transaction_holds_is_bounded() {
    let server = Server::with(Settings { max_request: 100_000, ..Settings::default() });
    let refused = "-ERR a transaction has at most 1024 commands and 100000 bytes; send EXEC \
                   earlier, or a pipeline without MULTI\r\n";
    let long = format!("ECHO {}", "x".repeat(9_900));
    for (command, count) in [("PING", 1024), (&*long, 10)] {
        filled(&server, command, count).ask("EXEC", &format!("*{count}\r\n"));
        let mut client = filled(&server, command, count);
        client.send(format!("{long}\r\n"));
        client.expect(refused, "one more");
        client.ask("PING", "+QUEUED\r\n");
        client.ask("EXEC", ABORTED);
        client.ask("PING", "+PONG\r\n");
    }
}

/// Replies of a transaction are written in parts, so they take no more memory than others.
#[test]
fn replies_of_a_transaction_may_be_of_many_megabytes() {
    let server = Server::start();
    let mut client = filled(&server, "COMMAND", 1000);
    client.send("EXEC\r\nQUIT\r\n");
    let got = client.rest();
    assert!(got.starts_with("*1000\r\n*43\r\n") && got.ends_with("+OK\r\n"));
    assert_eq!(got.matches("*43\r\n").count(), 1000);
    assert!(got.len() > 2 * REPLIES_MAX, "{}", got.len());
}
