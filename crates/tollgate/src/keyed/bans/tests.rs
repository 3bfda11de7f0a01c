use super::*;
use std::time::Duration;

fn secs(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

fn bans(most: u64) -> Bans {
    let rules = Escalation::new(2, Duration::from_secs(10), Duration::from_secs(30));
    Bans::new(rules, most).expect("the rules make sense")
}

#[test]
fn a_key_that_keeps_being_refused_is_blocked_for_longer_each_time() {
    let bans = bans(10);
    // at_s, a ban begins until, blocked until afterwards
    for (row, (at, begins, blocked)) in [
        (0, None, None),
        (1, Some(31), Some(31)),
        (2, None, Some(31)), // refusals of a blocked key do not count
        (3, None, Some(31)),
        (31, None, None),
        (32, Some(92), Some(92)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(bans.refused(b"key", secs(at)), begins.map(secs), "row {row}");
        assert_eq!(bans.blocked_until(b"key", secs(at)), blocked.map(secs), "row {row}");
        assert_eq!(bans.blocked_until(b"other", secs(at)), None, "row {row}");
    }
    assert!(bans.unblock(b"key", secs(33)) && !bans.unblock(b"key", secs(33)));
    assert_eq!(bans.blocked_until(b"key", secs(33)), None);
    bans.block(b"key", secs(33), secs(40)).unwrap();
    assert_eq!(bans.blocked_until(b"key", secs(39)), Some(secs(40)));
    assert_eq!(bans.blocked_until(b"key", secs(40)), None);
    assert!(!bans.unblock(b"never seen", secs(40)));
}

#[test]
fn a_flood_of_keys_stays_bounded_and_frees_nobody() {
    let bans = bans(100);
    bans.block(b"mallory", secs(0), secs(1_000)).unwrap();
    for number in 0..10_000_u64 {
        bans.refused(&number.to_be_bytes(), secs(1));
        assert!(bans.len() <= 100);
    }
    assert_eq!(bans.blocked_until(b"mallory", secs(999)), Some(secs(1_000)));
    // When all has expired, there is room again.
    let blocked = (0..100_u64)
        .filter(|number| bans.block(&number.to_be_bytes(), secs(2_000), secs(3_000)).is_ok());
    assert!(blocked.count() >= 90);
    assert!(bans.len() <= 100);
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let second = Duration::from_secs(1);
    assert!(Bans::new(Escalation::new(0, second, second), 9).is_err());
    assert!(Bans::new(Escalation::new(1, second, Duration::ZERO), 9).is_err());
    assert!(Bans::new(Escalation::new(1, second, second), 0).is_err());
}
