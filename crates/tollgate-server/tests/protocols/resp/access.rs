//! The permissions of a password, and the delay of a wrong one.

use crate::resp_support::Server;
use std::{io::Read, time::Duration};
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    server::Settings,
};

fn token(secret: &str, permissions: &[Permission]) -> Token {
    let permissions = permissions.iter().copied().fold(Permissions::NONE, Permissions::with);
    Token::new(Secret::new(secret), &[Listener::Resp], permissions)
}

fn access() -> Access {
    use Permission::{Check, Read, Settle};
    Access::new(vec![
        token("reader", &[Read]),
        token("checker", &[Check]),
        token("settler", &[Settle]),
        token("all", &[Read, Check, Settle]),
    ])
}

fn server() -> Server {
    Server::with(Settings { access: access(), ..Settings::default() })
}

#[test]
fn a_password_grants_what_its_permissions_say() {
    let server = server();
    // command, what it needs
    let rows = [
        ("CL.THROTTLE a 5 10 60", "check"),
        ("CL.THROTTLE a 5 10 60 -1", "settle"),
        ("THROTTLE a 5 10 60", "check"),
        ("TG.CHECK per-user a", "check"),
        ("TG.DESCRIPTOR shop 1 user a", "check"),
        ("TG.RESERVE per-user a", "check"),
        ("TG.ENTER exports a", "check"),
        ("TG.RENEW exports a 1-1", "check"),
        ("TG.LEAVE exports a 1-1", "check"),
        ("TG.PEEK per-user a", "read"),
        ("TG.POLICIES", "read"),
        ("TTL a", "read"),
        ("PTTL a", "read"),
        ("EXISTS a", "read"),
        ("DBSIZE", "read"),
        ("INFO", "read"),
        ("CONFIG GET save", "read"),
        ("TG.SETTLE 1-1 1", "settle"),
        ("TG.CANCEL 1-1", "settle"),
        ("TG.REFUND per-user a", "settle"),
        ("TG.RESET per-user a", "settle"),
        ("TG.REPORT upstream success", "settle"),
        ("DEL a", "settle"),
        ("UNLINK a", "settle"),
        ("PING", ""),
    ];
    for password in ["reader", "checker", "settler", "all"] {
        let grants = match password {
            "reader" => &["read"][..],
            "checker" => &["check"],
            "settler" => &["settle"],
            _ => &["read", "check", "settle"],
        };
        for (line, needed) in rows {
            let mut client = server.connect();
            client.ask(&format!("AUTH {password}"), "+OK\r\n");
            client.send(format!("{line}\r\nQUIT\r\n"));
            let told = client.rest();
            // A negative quantity needs both: it is a check that gives back.
            let is_both = line.ends_with(" -1") && !grants.contains(&"check");
            let may = needed.is_empty() || grants.contains(&needed) && !is_both;
            assert_eq!(!told.starts_with("-NOPERM"), may, "{password} {line}: {told}");
            let shown = if is_both { "check" } else { needed };
            assert!(may || told.contains(&format!("'{shown}'")), "{password} {line}: {told}");
        }
    }
    // Many at once, as a store behind a network would have them.
    let mut client = server.connect();
    client.send("AUTH reader\r\nTG.CHECK per-user z\r\nTG.PEEK per-user z\r\n");
    client.expect("+OK\r\n-NOPERM", "the second is refused, and nothing is taken");
}

#[test]
fn the_reply_to_a_wrong_password_waits_and_a_right_one_does_not() {
    let server = server();
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let mut client = server.connect();
    for _ in 0..5 {
        client.ask("AUTH wrong", wrong);
    }
    // The server's clock stands still: these wait for one second to five.
    let mut waiting: Vec<_> = (0..5).map(|_| server.connect()).collect();
    for client in &mut waiting {
        client.send("AUTH all\r\nAUTH wrong\r\n");
        client.expect("+OK\r\n", "what comes before a wrong password does not wait");
        client.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(client.0.read(&mut [0]).is_err(), "the reply waits");
        client.0.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    }
    let mut closed = server.connect();
    closed.send("AUTH wrong\r\nPING\r\n");
    assert_eq!(closed.rest(), wrong, "one more is closed");
    let mut right = server.connect();
    right.ask("AUTH all", "+OK\r\n");
    let counts = server.shared.traffic(Listener::Resp).counts();
    assert_eq!((counts.wrong_secrets, counts.cut_off), (11, 1));
    server.shared.start_draining();
    for client in &mut waiting {
        client.expect(wrong, "shutdown does not wait");
    }
}

#[test]
fn a_password_that_is_taken_away_ends_its_connections() {
    let server = server();
    let mut kept = server.connect();
    kept.ask("AUTH all", "+OK\r\n");
    let mut lowered = server.connect();
    lowered.ask("AUTH settler", "+OK\r\n");
    let mut gone = server.connect();
    gone.ask("AUTH checker", "+OK\r\n");
    let all = [Permission::Read, Permission::Check, Permission::Settle];
    let tokens = vec![token("all", &all), token("settler", &[Permission::Read])];
    server.shared.set_access(Access::new(tokens));
    kept.ask("PING", "+PONG\r\n");
    lowered.ask("TG.RESET per-user a", "-NOPERM");
    gone.send("PING\r\n");
    assert_eq!(gone.rest(), "");
    // A listener that required no password now requires one.
    let open = Server::start();
    let mut client = open.connect();
    client.ask("PING", "+PONG\r\n");
    open.shared.set_access(access());
    client.ask("PING", "-NOAUTH");
}
