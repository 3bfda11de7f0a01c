//! `TG.REPORT`.

use crate::resp_support::Server;
use std::time::Duration;

#[test]
fn reports_move_the_rate() {
    let server = Server::start();
    let mut client = server.connect();
    client.ask("TG.REPORT upstream overload 900 19", "+OK\r\n");
    client.ask("tg.report upstream FAILURE", "+OK\r\n");
    client.ask("TG.REPORT upstream success - 1", "+OK\r\n");
    server.clock.advance(Duration::from_secs(2));
    server.shared.engine.adapt();
    // The limit and what remains of it: 90 each second, and one is taken.
    client.send("TG.CHECK upstream ann\r\n");
    client.expect("*6\r\n:1\r\n:90\r\n:89\r\n", "90 a second");
}

#[test]
fn mistakes_are_named() {
    let server = Server::start();
    for (line, error) in [
        ("TG.REPORT upstream", "wrong number of arguments for 'tg.report' command"),
        ("TG.REPORT upstream fine", "\"fine\" is not an outcome; use success, failure, overload"),
        (
            "TG.REPORT upstream success 1.5",
            "\"1.5\" is not a latency in milliseconds, nor \"-\"; give a whole number",
        ),
        (
            "TG.REPORT upstream success 5 many",
            "\"many\" is not a count of calls; give a whole number",
        ),
        (
            "TG.REPORT upstream success 5 1001",
            "count 1001 is out of range; one report can be about 1 to 1000 calls",
        ),
        (
            "TG.REPORT upstream success 5 1 1",
            "give one policy, an outcome, and then a latency and a count if known",
        ),
        (
            "TG.REPORT per-user success",
            "the rate of policy \"per-user\" is fixed; do not report its calls, or add `adaptive: \
             {follow: reports, min: ...}`",
        ),
    ] {
        server.connect().ask(line, &format!("-ERR {error}\r\n"));
    }
}
