//! `CL.THROTTLE` matches redis-cell byte for byte; `THROTTLE` matches throttlecrab.

use crate::resp_support::{Client, Server};
use proptest::prelude::*;
use std::{cell::RefCell, time::Duration};

/// Rows of: milliseconds to wait, the command, its reply.
type Rows<'a> = &'a [(u64, &'a str, [i64; 5])];

fn check(rows: Rows<'_>) {
    let server = Server::start();
    let mut client = server.connect();
    for (wait, line, expected) in rows {
        server.clock.advance(Duration::from_millis(*wait));
        client.integers(line, expected);
    }
}

#[test]
fn thirty_a_minute_and_a_burst_of_fifteen() {
    check(&[
        (0, "CL.THROTTLE user123 15 30 60 1", [0, 16, 15, -1, 2]),
        (0, "CL.THROTTLE user123 15 30 60", [0, 16, 14, -1, 4]),
        (0, "cl.throttle user123 15 30 60 0", [0, 16, 14, -1, 4]),
        (0, "CL.THROTTLE user123 15 30 60 14", [0, 16, 0, -1, 32]),
        (0, "CL.THROTTLE user123 15 30 60 1", [1, 16, 0, 2, 32]),
        (0, "CL.THROTTLE user123 15 30 60 16", [1, 16, 0, 32, 32]),
        (0, "CL.THROTTLE user123 15 30 60 17", [1, 16, 0, -1, 32]),
        (500, "CL.THROTTLE user123 15 30 60 1", [1, 16, 0, 2, 32]),
        (499, "CL.THROTTLE user123 15 30 60 1", [1, 16, 0, 2, 32]),
        (1, "CL.THROTTLE user123 15 30 60 1", [1, 16, 0, 1, 31]),
        (1000, "CL.THROTTLE user123 15 30 60 1", [0, 16, 0, -1, 32]),
        (32_000, "CL.THROTTLE user123 15 30 60 0", [0, 16, 16, -1, 0]),
        (0, "CL.THROTTLE user123 15 30 60 99", [1, 16, 16, -1, 0]),
    ]);
}

#[test]
fn five_a_second_as_in_its_own_tests() {
    check(&[
        (0, "CL.THROTTLE foo 4 1 1 6", [1, 5, 5, -1, 0]),
        (0, "CL.THROTTLE foo 4 1 1", [0, 5, 4, -1, 1]),
        (0, "CL.THROTTLE foo 4 1 1", [0, 5, 3, -1, 2]),
        (0, "CL.THROTTLE foo 4 1 1", [0, 5, 2, -1, 3]),
        (0, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
        (0, "CL.THROTTLE foo 4 1 1", [0, 5, 0, -1, 5]),
        (0, "CL.THROTTLE foo 4 1 1", [1, 5, 0, 1, 5]),
        (3000, "CL.THROTTLE foo 4 1 1", [0, 5, 2, -1, 3]),
        (100, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
        (900, "CL.THROTTLE foo 4 1 1", [0, 5, 1, -1, 4]),
        (4000, "CL.THROTTLE foo 4 1 1", [0, 5, 4, -1, 1]),
        (1500, "CL.THROTTLE foo 4 1 1", [0, 5, 4, -1, 1]),
        (0, "CL.THROTTLE foo 4 1 1 0", [0, 5, 4, -1, 1]),
        (0, "CL.THROTTLE foo 4 1 1 2", [0, 5, 2, -1, 3]),
        (0, "CL.THROTTLE foo 4 1 1 5", [1, 5, 2, 3, 3]),
    ]);
}

#[test]
fn corners_are_those_of_redis_cell() {
    check(&[
        (0, "CL.THROTTLE a 0 1 2", [0, 1, 0, -1, 2]),
        (0, "CL.THROTTLE a 0 1 2", [1, 1, 0, 2, 2]),
        (0, "CL.THROTTLE never -1 1 1", [1, 0, 0, -1, 0]),
        (0, "CL.THROTTLE never -1 1 1 0", [0, 0, 0, -1, 0]),
        (0, "CL.THROTTLE never -5 1 1", [1, -4, 0, -1, 0]),
        (0, "CL.THROTTLE never -5 1 1 0", [1, -4, 0, -1, 0]),
        (0, "CL.THROTTLE +7 +1 +01 60", [0, 2, 1, -1, 60]),
        // Booked permits stay booked when the quota changes: five seconds of a burst of two.
        (0, "CL.THROTTLE b 9 1 1 5", [0, 10, 5, -1, 5]),
        (0, "CL.THROTTLE b 1 1 1", [1, 2, 0, 4, 5]),
        (0, "CL.THROTTLE b 1 1 1 0", [1, 2, 0, 3, 5]),
        (0, "CL.THROTTLE b 99 10 1 5", [0, 100, 45, -1, 6]),
        // A third of a second is not a whole number of any unit.
        (0, "CL.THROTTLE c 2 3 1", [0, 3, 2, -1, 1]),
        (0, "CL.THROTTLE c 2 3 1", [0, 3, 1, -1, 1]),
        (0, "CL.THROTTLE c 2 3 1", [0, 3, 0, -1, 1]),
        (0, "CL.THROTTLE c 2 3 1", [1, 3, 0, 1, 1]),
    ]);
}

#[test]
fn where_redis_cell_is_wrong_this_is_right() {
    check(&[
        // Redis-cell reports 6024 remaining of 6001, and all of 10^9.
        (0, "CL.THROTTLE a 6000 6000 1", [0, 6001, 6000, -1, 1]),
        (0, "CL.THROTTLE b 999999999 1000000000 1", [0, 1_000_000_000, 999_999_999, -1, 1]),
        // It returns an error for giving back more than was taken.
        (0, "CL.THROTTLE c 4 1 1 -3", [0, 5, 5, -1, 0]),
        (0, "CL.THROTTLE c 4 1 1 3", [0, 5, 2, -1, 3]),
        (0, "CL.THROTTLE c 4 1 1 -1", [0, 5, 3, -1, 2]),
        (0, "CL.THROTTLE c 4 1 1 -9223372036854775808", [0, 5, 5, -1, 0]),
    ]);
    let server = Server::start();
    let mut client = server.connect();
    // It reports the whole second below, and so sends the caller back too early.
    client.integers("CL.THROTTLE d 0 1 2", &[0, 1, 0, -1, 2]);
    server.clock.advance(Duration::from_micros(999_500));
    client.integers("CL.THROTTLE d 0 1 2", &[1, 1, 0, 2, 2]);
    server.clock.advance(Duration::from_micros(1_000_200));
    client.integers("CL.THROTTLE d 0 1 2", &[1, 1, 0, 1, 1]);
}

#[test]
fn errors_are_in_its_words() {
    let server = Server::start();
    let mut client = server.connect();
    let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    for (line, expected) in [
        ("CL.THROTTLE", usage),
        ("CL.THROTTLE a 1 1", usage),
        ("CL.THROTTLE a 1 1 1 1 1", usage),
        ("CL.THROTTLE a x 1 1", "Couldn't parse as integer: x"),
        ("CL.THROTTLE a 1 1.5 1", "Couldn't parse as integer: 1.5"),
        ("CL.THROTTLE a 1 1 ' 1'", "Couldn't parse as integer:  1"),
        ("CL.THROTTLE a 1 1 1 ''", "Couldn't parse as integer: "),
        ("CL.THROTTLE a 1 1 9223372036854775808", "Couldn't parse as integer: 9223372036854775808"),
        ("CL.THROTTLE a 1 0 1", "Zero rates are not supported"),
        ("CL.THROTTLE a 1 1 0", "Zero rates are not supported"),
        ("CL.THROTTLE a 1 2000000000 1", "Zero rates are not supported"),
        ("CL.THROTTLE a 1 -1 1", "Negative rates are not supported"),
    ] {
        client.ask(line, &format!("-Cell error: Store error: {expected}\r\n"));
    }
    client.ask("CL.THROTTLE a 9223372036854775807 1 1", "-Cell error: Store error: ");
}

#[test]
fn throttle_is_throttlecrabs() {
    check(&[
        (0, "THROTTLE a 3 30 60", [1, 3, 2, 2, 0]),
        (0, "throttle a 3 30 60 2", [1, 3, 0, 6, 0]),
        (0, "THROTTLE a 3 30 60", [0, 3, 0, 6, 2]),
        (0, "THROTTLE a 3 30 60 4", [0, 3, 0, 6, 0]),
        (0, "THROTTLE a 3 30 60 0", [1, 3, 0, 6, 0]),
        // `THROTTLE` shares its keys with `CL.THROTTLE`.
        (0, "CL.THROTTLE a 2 30 60", [1, 3, 0, 2, 6]),
        (0, "THROTTLE b 6000 6000 1", [1, 6000, 5999, 1, 0]),
    ]);
    let server = Server::start();
    let mut client = server.connect();
    for (line, expected) in [
        ("THROTTLE a 1 1", "wrong number of arguments for 'throttle' command"),
        ("THROTTLE a x 1 1", "invalid max_burst"),
        ("THROTTLE a 1 x 1", "invalid count_per_period"),
        ("THROTTLE a 1 1 x", "invalid period"),
        ("THROTTLE a 1 1 1 x", "invalid quantity"),
        ("THROTTLE a 1 1 1 -1", "negative quantity: -1"),
        ("THROTTLE a 0 1 1", "invalid rate limit parameters"),
        ("THROTTLE a 1 0 1", "invalid rate limit parameters"),
        ("THROTTLE a 1 1 -1", "invalid rate limit parameters"),
    ] {
        client.ask(line, &format!("-ERR {expected}\r\n"));
    }
}

#[test]
fn keys_live_until_they_are_full_again_or_deleted() {
    let server = Server::start();
    let mut client = server.connect();
    client.integers("CL.THROTTLE a 4 1 1 3", &[0, 5, 2, -1, 3]);
    client.integers("CL.THROTTLE b 4 1 1 1", &[0, 5, 4, -1, 1]);
    client.integers("CL.THROTTLE peeked 4 1 1 0", &[0, 5, 5, -1, 0]);
    for (wait_ms, line, expected) in [
        (0, "EXISTS a b peeked a", 3),
        (0, "TTL a", 3),
        (0, "PTTL a", 3000),
        (0, "TTL nobody", -2),
        (0, "PTTL nobody", -2),
        (100, "TTL a", 3),
        (0, "PTTL a", 2900),
        (900, "EXISTS b", 0),
        (0, "DEL a b", 1),
        (0, "UNLINK a", 0),
        (0, "EXISTS a", 0),
    ] {
        server.clock.advance(Duration::from_millis(wait_ms));
        client.ask(line, &format!(":{expected}\r\n"));
    }
    client.integers("CL.THROTTLE a 4 1 1 5", &[0, 5, 0, -1, 5]);
}

#[test]
fn eight_hundred_in_flight_over_forty_connections_admit_exactly_the_limit() {
    let server = Server::start();
    let mut clients: Vec<Client> = (0..40).map(|_| server.connect()).collect();
    let call = "*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\nhot\r\n$2\r\n99\r\n$1\r\n1\r\n$2\r\n60\r\n";
    for client in &mut clients {
        client.send(call.repeat(20) + "QUIT\r\n");
    }
    let all: String = clients.iter_mut().map(Client::rest).collect();
    assert_eq!(all.matches("*5\r\n:0\r\n:100\r\n").count(), 100);
    assert_eq!(all.matches("*5\r\n:1\r\n:100\r\n:0\r\n:60\r\n:6000\r\n").count(), 700);
}

/// Redis-cell's arithmetic, in nanoseconds, for intervals of whole microseconds, for which its
/// floating-point numbers are exact.
struct Model {
    tat: Option<i128>,
}

impl Model {
    fn ask(
        &mut self,
        now: i128,
        (burst, count, period): (i64, i64, i64),
        quantity: i64,
    ) -> [i64; 5] {
        let interval = i128::from(period) * 1_000_000_000 / i128::from(count);
        let (limit, increment) = (burst + 1, interval * i128::from(quantity));
        let tolerance = interval * i128::from(limit);
        let tat = self.tat.unwrap_or(now).max(now);
        let early = tat + increment - tolerance - now;
        let (is_limited, left) = (early > 0, if early > 0 { tat } else { tat + increment } - now);
        if !is_limited {
            self.tat = Some(tat + increment);
        }
        let retry = if is_limited && increment <= tolerance { early } else { -1_000_000_000 };
        let seconds =
            |ns: i128| ns.div_euclid(1_000_000_000) + i128::from(ns.rem_euclid(1_000_000_000) > 0);
        let next = tolerance - left;
        let remaining = if next > -interval { next / interval } else { 0 };
        let told = [i128::from(is_limited), limit.into(), remaining, seconds(retry), seconds(left)];
        told.map(|number| i64::try_from(number).unwrap())
    }
}

#[test]
fn random_calls_are_answered_as_redis_cell_answers() {
    let server = Server::start();
    let client = RefCell::new((server.connect(), 0));
    // Count and period with an interval of whole microseconds.
    let rate =
        prop_oneof![Just((1, 1)), Just((30, 60)), Just((8, 1)), Just((125, 3)), Just((1, 7))];
    let step = (0_u64..9_000, rate, -1_i64..30, 0_i64..40, 0_u8..3);
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    proptest!(config, |(steps in proptest::collection::vec(step, 1..40))| {
        let (client, key) = &mut *client.borrow_mut();
        *key += 1;
        let (mut model, mut quota) = (Model { tat: None }, (5, 1, 1));
        for (wait_ms, (count, period), burst, quantity, changes) in steps {
            server.clock.advance(Duration::from_millis(wait_ms));
            if changes == 0 {
                quota = (burst, count, period);
            }
            let (burst, count, period) = quota;
            let now = i128::from(server.clock.now().as_nanos());
            let expected = model.ask(now, quota, quantity);
            client.integers(
                &format!("CL.THROTTLE key{key} {burst} {count} {period} {quantity}"),
                &expected,
            );
        }
    });
}
