use super::*;

#[test]
fn the_last_count_is_kept_while_the_store_is_away() {
    let mut keeper = Keeper::new(Duration::from_secs(5));
    for (row, (at, answer, expected)) in [
        (0, Some(8), Some(8)),
        (1, None, None),
        (60, None, None),
        (61, Some(1), Some(8)), // a new set that fills again
        (62, Some(7), Some(8)),
        (67, Some(7), Some(7)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(keeper.take(Tick::from_secs(at), answer), expected, "row {row}");
    }
}

#[test]
fn nonsense_is_named() {
    let base = HeartbeatSettings::new;
    for settings in [
        base().interval(Duration::ZERO),
        base().life(Duration::from_secs(1)),
        base().life(Duration::from_secs(1000)),
        base().expected(0),
    ] {
        assert!(settings.check().is_err(), "{settings:?}");
    }
    let error = base().life(Duration::from_secs(1)).check().unwrap_err().to_string();
    let text = "life 1s is not between 2 and 100 intervals; use a life of about 5 intervals";
    assert_eq!(error, text);
}

#[cfg(feature = "test-servers")]
mod servers {
    use super::*;
    use tollgate_rig::{Flavor, Redis};

    /// Returns the shipped script, with the time as its last argument.
    fn script() -> Script {
        let line = "local clock = redis.call('TIME')";
        assert_eq!(SOURCE.matches(line).count(), 1);
        Script::new(SOURCE.replace(line, "local clock = {ARGV[5], 0}"))
    }

    #[tokio::test]
    async fn counts_those_whose_life_has_not_ended() {
        let redis = Redis::start(Flavor::Redis);
        // Patient, as it is not about deadlines.
        let url = format!("{}?deadline=60s&connect_timeout=60s", redis.url());
        let link = Link::open(url.parse().unwrap()).unwrap();
        let process = |id: &str, life: u64| FleetSet {
            script: script(),
            key: b"tollgate:{fleet}:test".to_vec(),
            id: id.to_owned(),
            settings: HeartbeatSettings::new().life(Duration::from_secs(life)),
        };
        let (a, b, long) = (process("a", 5), process("b", 5), process("long", 50));
        for (row, (at, who, verb, expected)) in [
            (0, &a, "beat", 1),
            (1, &b, "beat", 2),
            (1, &b, "beat", 2),
            (4, &b, "beat", 2),
            (5, &b, "beat", 1), // a was killed
            (6, &a, "beat", 2),
            (6, &a, "leave", 1),
            (6, &a, "leave", 1),
            (7, &long, "beat", 2),
            (56, &a, "beat", 2),
            (57, &b, "beat", 2),
        ]
        .into_iter()
        .enumerate()
        {
            // The real time of the key must not end it here.
            let mut call = who.script.call(1, 5);
            call.push(&who.key);
            call.push(who.id.as_bytes());
            call.push_number(who.settings.life.as_micros() as u64);
            call.push(verb.as_bytes());
            call.push_number(2);
            call.push_number(1_763_000_000 + at);
            let reply = link.run(Route::Any, &who.script, call).await.unwrap();
            assert_eq!(reply.int(), Some(expected), "row {row}");
        }
        let mut call = long.script.call(1, 5);
        for part in ["tollgate:{fleet}:test", "third", "5000000", "beat", "2", "1763000057"] {
            call.push(part.as_bytes());
        }
        let reply = link.run(Route::Any, &long.script, call).await.unwrap();
        assert_eq!(reply.int(), Some(-1), "no room");
        let mut command = Command::new("PTTL", 1);
        command.push(b"tollgate:{fleet}:test");
        let ttl = link.call(Route::Any, command).await.unwrap().int().unwrap();
        assert!((40_000..=50_001).contains(&ttl), "{ttl} ms: the longest life");
    }
}
