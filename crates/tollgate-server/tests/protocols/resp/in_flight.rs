//! `TG.ENTER`, `TG.RENEW` and `TG.LEAVE`.

use crate::resp_support::{Client, Server};
use std::{io::Read, time::Duration};

/// Enters, and returns the id. It is followed by the limit, and 18 bytes long.
fn enter(client: &mut Client, line: &str, in_flight: u64) -> String {
    client.send(format!("{line}\r\n"));
    client.expect("*7\r\n:1\r\n$18\r\n", line);
    let mut id = [0; 18];
    client.0.read_exact(&mut id).unwrap();
    let rest = format!("\r\n:2\r\n:{in_flight}\r\n:10000\r\n:0\r\n$5\r\nquota\r\n");
    client.expect(&rest, line);
    String::from_utf8(id.to_vec()).unwrap()
}

#[test]
fn a_caller_enters_renews_and_leaves() {
    let server = Server::start();
    let mut client = server.connect();
    let first = enter(&mut client, "TG.ENTER exports ann", 1);
    server.clock.advance(Duration::from_secs(4));
    let second = enter(&mut client, "tg.enter exports KEYS 1 ann", 2);
    let denied = "*7\r\n:0\r\n$-1\r\n:2\r\n:2\r\n:10000\r\n:6000\r\n$5\r\nquota\r\n";
    client.ask("TG.ENTER exports ann", denied);
    let never = "*7\r\n:0\r\n$-1\r\n:2\r\n:2\r\n:10000\r\n:-1\r\n$16\r\ncost-above-limit\r\n";
    client.ask("TG.ENTER exports ann 3", never);
    client.ask(&format!("TG.RENEW exports ann {first}"), ":1\r\n");
    client.ask(&format!("TG.RENEW exports bob {first}"), ":0\r\n");
    client.ask(&format!("TG.LEAVE exports KEYS 1 ann {second}"), ":1\r\n");
    client.ask(&format!("TG.LEAVE exports ann {second}"), ":0\r\n");
    server.clock.advance(Duration::from_secs(10));
    client.ask(&format!("TG.RENEW exports ann {first}"), ":0\r\n");
    enter(&mut client, "TG.ENTER exports ann 2", 2);
}

#[test]
fn the_third_version_of_the_protocol_names_the_fields() {
    let server = Server::start();
    let mut client = server.connect();
    enter(&mut client, "TG.ENTER exports ann 2", 2);
    client.send("HELLO 3\r\n");
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"modules\r\n*0\r\n") {
        client.0.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    client.ask(
        "TG.ENTER exports ann",
        "%7\r\n$7\r\nallowed\r\n#f\r\n$2\r\nid\r\n_\r\n$5\r\nlimit\r\n:2\r\n$9\r\nin_flight\r\n:2\r\n\
         $8\r\nlease_ms\r\n:10000\r\n$14\r\nretry_after_ms\r\n:10000\r\n$6\r\nreason\r\n$5\r\nquota\r\n",
    );
    client.ask("TG.LEAVE exports ann 1-0000000000000000", "#f\r\n");
}

#[test]
fn mistakes_are_named() {
    let server = Server::start();
    let mut client = server.connect();
    for (line, error) in [
        ("TG.ENTER exports", "wrong number of arguments for 'tg.enter' command"),
        (
            "TG.ENTER per-user ann",
            "policy \"per-user\" limits a rate, not how many are in flight at once; use check",
        ),
        (
            "TG.CHECK exports ann",
            "policy \"exports\" limits how many are in flight at once; use enter, renew and leave",
        ),
        (
            "TG.ENTER exports ann 0",
            "cost 0 is out of range; one call can take from 1 to 16383 slots",
        ),
        (
            "TG.ENTER exports ann 1 exports bob 1",
            "enter takes slots of one policy or descriptor, but 2 were given; enter them one by one",
        ),
        ("TG.LEAVE exports ann", "wrong number of arguments for 'tg.leave' command"),
        (
            "TG.LEAVE exports ann nonsense",
            "\"nonsense\" is not a lease; use the id that `enter` returned",
        ),
        (
            "TG.RENEW exports ann 1-1 2",
            "give one policy, its key and the id that TG.ENTER returned",
        ),
    ] {
        client.ask(line, &format!("-ERR {error}\r\n"));
    }
}
