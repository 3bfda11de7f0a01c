//! Bad days of one server.

use super::day::{Day, Deeds};
use std::{fs, time::Duration};
use tollgate_redis::Secret;
use tollgate_rig::{Flavor, Mode, Proxy, Redis};

/// Words of a server that is too slow, or says nothing: of calls, of probes, and of connections.
const SILENT: &[&str] = &["within 50ms", "PING", "no connection within 500ms"];

/// Words of a server that is not there.
const REFUSED: &str = "Connection refused";

pub(crate) fn killed(flavor: Flavor) -> Day {
    let redis = Redis::builder(flavor).appendonly().start();
    let (url, deeds): (_, Deeds<Redis>) = (redis.url(), (Redis::kill, Redis::restart));
    Day::new("killed with -9, restarted", &url, redis, deeds).says(&[REFUSED])
}

pub(crate) fn forgetful(flavor: Flavor) -> Day {
    let redis = Redis::start(flavor);
    let (url, deeds): (_, Deeds<Redis>) = (redis.url(), (Redis::kill, Redis::restart));
    let day = Day::new("the same, nothing on disk", &url, redis, deeds);
    day.says(&[REFUSED]).forgets()
}

pub(crate) fn two_tiers(flavor: Flavor) -> Day {
    let mut day = killed(flavor);
    (day.name, day.is_tiered) = ("killed, two tiers on top", true);
    day
}

pub(crate) fn frozen(flavor: Flavor) -> Day {
    let redis = Redis::start(flavor);
    let (url, deeds): (_, Deeds<Redis>) = (redis.url(), (Redis::freeze, Redis::thaw));
    Day::new("stopped with SIGSTOP, continued", &url, redis, deeds).says(SILENT)
}

/// A day of the network: a mode of the proxy that ends when the proxy passes all again.
fn network(flavor: Flavor, name: &'static str, breaks: fn(&mut (Redis, Proxy))) -> Day {
    let redis = Redis::start(flavor);
    let proxy = Proxy::start(redis.address());
    let (direct, url) = (redis.url(), format!("redis://{}", proxy.address()));
    let mends = |(_, proxy): &mut (Redis, Proxy)| proxy.set(Mode::Pass);
    Day::new(name, &url, (redis, proxy), (breaks, mends)).reads(&direct)
}

pub(crate) fn black_hole(flavor: Flavor) -> Day {
    network(flavor, "black hole", |(_, proxy)| proxy.set(Mode::BlackHole)).says(SILENT)
}

pub(crate) fn slow(flavor: Flavor) -> Day {
    network(flavor, "replies after 200 ms", |(_, proxy)| {
        proxy.set(Mode::Delay(Duration::from_millis(200)));
    })
    .says(SILENT)
}

pub(crate) fn replies_lost(flavor: Flavor) -> Day {
    network(flavor, "replies are lost", |(_, proxy)| proxy.set(Mode::DropReplies)).says(SILENT)
}

pub(crate) fn reset(flavor: Flavor) -> Day {
    network(flavor, "reset in the middle of a reply", |(_, proxy)| proxy.set(Mode::ResetAfter(3)))
        .says(&["reset by peer"])
}

pub(crate) fn corrupt(flavor: Flavor) -> Day {
    network(flavor, "a corrupt byte", |(_, proxy)| proxy.set(Mode::Corrupt(1)))
        .says(&["is not a whole number"])
}

pub(crate) fn flushed(flavor: Flavor) -> Day {
    let redis = Redis::start(flavor);
    let breaks = |redis: &mut Redis| assert_eq!(redis.cli(&["SCRIPT", "FLUSH"]), "OK");
    let mut day = Day::new("SCRIPT FLUSH", &redis.url(), redis, (breaks, |_| {}));
    // Not about deadlines: nothing at all must be noticed, however busy the machine is.
    day.settings.deadline = Duration::from_secs(60);
    day.degrades = false;
    day
}

pub(crate) fn full(flavor: Flavor) -> Day {
    let redis = Redis::builder(flavor).line("maxmemory-policy noeviction").start();
    let breaks = |redis: &mut Redis| {
        let value = "x".repeat(100_000);
        (0..50).for_each(|_| drop(redis.cli(&["RPUSH", "filling", &value])));
        // Clearly above, as buffers of connections count too and come and go.
        let used: u64 = redis.info("memory")["used_memory"].parse().unwrap();
        let most = (used - (1 << 20)).to_string();
        assert_eq!(redis.cli(&["CONFIG", "SET", "maxmemory", &most]), "OK");
    };
    let mends = |redis: &mut Redis| assert_eq!(redis.cli(&["DEL", "filling"]), "1");
    Day::new("out of memory, noeviction", &redis.url(), redis, (breaks, mends))
        .says(&["OOM command not allowed"])
}

pub(crate) fn read_only(flavor: Flavor) -> Day {
    let redis = Redis::start(flavor);
    // Of a primary that is not there: it keeps what it has, and takes no writes.
    let breaks = |redis: &mut Redis| {
        let nobody = tollgate_rig::Port::reserve().number().to_string();
        assert_eq!(redis.cli(&["REPLICAOF", "127.0.0.1", &nobody]), "OK");
    };
    let mends = |redis: &mut Redis| assert_eq!(redis.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    Day::new("READONLY", &redis.url(), redis, (breaks, mends)).says(&["READONLY You can't write"])
}

/// A server with a user for the processes. The rig is another user.
fn with_password(flavor: Flavor) -> Redis {
    let redis = Redis::builder(flavor).user("fleet", "first", "~* +@all").start();
    fs::write(redis.folder().join("password"), "first\n").unwrap();
    redis
}

pub(crate) fn rotated(flavor: Flavor) -> Day {
    let redis = with_password(flavor);
    let secret = Secret::in_file(redis.folder().join("password"));
    let breaks = |redis: &mut Redis| {
        assert_eq!(redis.cli(&["ACL", "SETUSER", "fleet", "resetpass", ">second"]), "OK");
        // Else those who are logged in stay so.
        assert_ne!(redis.cli(&["CLIENT", "KILL", "USER", "fleet"]), "0");
    };
    let mends = |redis: &mut Redis| {
        fs::write(redis.folder().join("password"), "second\n").unwrap();
    };
    let url = redis.url();
    let mut day = Day::new("password changed, file follows", &url, redis, (breaks, mends));
    (day.settings.user, day.settings.password) = (Some("fleet".into()), Some(secret));
    day.says(&["WRONGPASS invalid username-password pair"])
}

pub(crate) fn wrong_password(flavor: Flavor) -> Day {
    let redis = with_password(flavor);
    let mends = |redis: &mut Redis| {
        assert_eq!(redis.cli(&["ACL", "SETUSER", "fleet", ">wrong"]), "OK");
    };
    let url = redis.url();
    let mut day = Day::new("wrong password from the start", &url, redis, (|_| {}, mends));
    day.settings.user = Some("fleet".into());
    day.settings.password = Some(Secret::new("wrong"));
    day.begins_well = false;
    day.says(&["WRONGPASS invalid username-password pair"])
}
