//! Keys survive a restart: their states go to a file and come back, and nothing else does.

use crate::support::*;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, KeyedLimiter, ManualClock, Quota, Reason, Tick,
    store::{Demand, MemoryStore, Policy},
};

/// A clock that reads `tick` at wall time `wall`.
fn clock_at(tick: Tick, wall: Duration) -> (Clock, ManualClock) {
    let (clock, hand) = Clock::manual();
    hand.set(tick);
    clock.set_wall_offset(wall - Duration::from_nanos(tick.as_nanos()));
    (clock, hand)
}

const YEAR: Tick = Tick::from_secs(366 * 86_400);

fn limiter(
    folder: &Folder,
    clock: Clock,
    algorithm: Algorithm,
    bounded: bool,
) -> KeyedLimiter<str> {
    let builder = KeyedLimiter::builder(Quota::per_minute(30)).algorithm(algorithm);
    let builder = if bounded { builder.bounded(500) } else { builder };
    builder.clock(clock).seed(folder.seed()).build().unwrap()
}

/// After a restart a key has the same permits as without one.
#[test]
fn the_time_in_between_counts_as_elapsed() {
    for (algorithm, bounded) in
        Algorithm::ALL.into_iter().flat_map(|one| [(one, false), (one, true)])
    {
        for down_ms in [0, 1, 900, 7_777, 20_000, 45_000, 90_000, 150_000] {
            let folder = Folder::new();
            let wall = Duration::from_secs(1_800_000_007);
            let (clock, hand) = clock_at(ms(3_000_000), wall);
            let before = limiter(&folder, clock, algorithm, bounded);
            let mut random = Random(7);
            for step in 0..600 {
                let _ =
                    before.try_acquire_n(&format!("key {}", random.below(200)), random.below(9));
                if step % 30 == 0 {
                    let _ = before.force(&format!("key {}", random.below(200)), 80);
                }
                if step % 10 == 0 {
                    hand.advance(Duration::from_millis(random.below(900)));
                }
            }
            let saved = before.save(folder.file("state")).unwrap();
            assert!(saved > 20, "{saved}");
            // Another process: another origin of ticks, later by the wall clock.
            let down = Duration::from_millis(down_ms);
            let wall = before.clock().to_wall(before.now()) + down;
            let (clock, _) = clock_at(YEAR, wall);
            let after = limiter(&folder, clock, algorithm, bounded);
            let restored = after.restore(folder.file("state")).unwrap();
            hand.advance(down);
            assert!(restored <= saved);
            for key in 0..200 {
                let key = format!("key {key}");
                assert_eq!(
                    after.available(&key),
                    before.available(&key),
                    "{algorithm}, bounded {bounded}, down for {down:?}, {key}"
                );
            }
        }
    }
}

#[test]
fn no_key_and_no_seed_is_in_the_file() {
    for bounded in [false, true] {
        let folder = Folder::new();
        let limiter = limiter(
            &folder,
            clock_at(YEAR, Duration::from_secs(1_800_000_000)).0,
            Algorithm::Gcra,
            bounded,
        );
        let keys: Vec<_> = (0..300).map(|key| format!("customer-{key}@example.org")).collect();
        assert!(keys.iter().all(|key| limiter.try_acquire(key).is_allowed()));
        limiter.block("blocked-customer", Duration::from_secs(60)).unwrap();
        assert_eq!(limiter.save(folder.file("state")).unwrap(), 301);
        let bytes = std::fs::read(folder.file("state")).unwrap();
        let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        assert!(!keys.iter().any(|key| has(key.as_bytes())));
        for part in ["customer", "example"] {
            assert!(!has(part.as_bytes()), "{part}");
        }
        // The seed is 32 hexadecimal digits in its file, and two words in memory.
        let seed = std::fs::read_to_string(folder.file("seed")).unwrap();
        let digits = seed.split(' ').nth(1).unwrap();
        assert_eq!(digits.len(), 32);
        for half in [&digits[..16], &digits[16..]] {
            let word = u64::from_str_radix(half, 16).unwrap();
            assert!(
                !has(half.as_bytes()) && !has(&word.to_le_bytes()) && !has(&word.to_be_bytes())
            );
        }
        assert!(bytes.len() < 301 * 64 + 500, "{} bytes", bytes.len());
    }
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_seed_and_snapshot() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let limiter = limiter(&folder, Clock::monotonic(), Algorithm::Gcra, false);
    limiter.save(folder.file("state")).unwrap();
    for name in ["seed", "state"] {
        let mode = std::fs::metadata(folder.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn blocks_survive_and_quotas_may_change_meanwhile() {
    let folder = Folder::new();
    let wall = Duration::from_secs(1_800_000_000);
    let before = limiter(&folder, clock_at(YEAR, wall).0, Algorithm::Gcra, false);
    let _ = before.try_acquire_n("alice", 20);
    before.block("mallory", Duration::from_secs(60)).unwrap();
    before.save(folder.file("state")).unwrap();
    let (clock, _) = clock_at(ms(5), wall + Duration::from_secs(30));
    let builder = KeyedLimiter::<str>::builder(Quota::per_minute(60)).clock(clock);
    let after = builder.seed(folder.seed()).build().unwrap();
    assert_eq!(after.restore(folder.file("state")).unwrap(), 2);
    let refused = after.try_acquire("mallory");
    assert_eq!(refused.reason(), Reason::Blocked);
    assert_eq!(refused.retry_after(after.now()), Some(Duration::from_secs(30)));
    // Forty seconds of a minute were used, and ten still are.
    assert_eq!(after.available("alice"), 50);
    after.set_quota(Quota::per_minute(90)).unwrap();
    assert_eq!(after.available("alice"), 75);
}

#[test]
fn a_foreign_damaged_or_strange_file_is_refused_and_changes_nothing() {
    let folder = Folder::new();
    let (state, clock) =
        (folder.file("state"), || clock_at(YEAR, Duration::from_secs(1_800_000_000)).0);
    let gcra = |bounded| limiter(&folder, clock(), Algorithm::Gcra, bounded);
    let before = gcra(false);
    let _ = before.try_acquire_n("alice", 7);
    before.save(&state).unwrap();
    let after = gcra(false);
    assert!(after.restore(folder.file("nothing")).unwrap_err().is_missing());
    let refuse = |path: &Path| {
        let error = after.restore(path).unwrap_err();
        assert_eq!(after.available("alice"), 30, "{error}");
        error
    };
    let bytes = std::fs::read(&state).unwrap();
    let other = folder.file("other");
    std::fs::write(&other, b"#!/bin/sh\nrm -rf /\n").unwrap();
    assert!(refuse(&other).is_foreign());
    std::fs::write(&other, &bytes[..bytes.len() - 3]).unwrap();
    assert!(refuse(&other).is_damaged());
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    std::fs::write(&other, &flipped).unwrap();
    assert!(refuse(&other).is_damaged());
    // Made under another seed, or with another fingerprint.
    let stranger = KeyedLimiter::<str>::builder(Quota::per_minute(30)).clock(clock());
    let error = stranger.build().unwrap().restore(&state).unwrap_err();
    assert!(error.is_wrong_seed(), "{error}");
    let fast = KeyedLimiter::<str>::builder(Quota::per_minute(30)).seed(folder.seed());
    let error = fast.fast_fingerprints().build().unwrap().restore(&state).unwrap_err();
    assert!(error.is_unknown_scheme(), "{error}");
    assert_eq!(gcra(true).restore(&state).unwrap(), 1, "the size of the table does not matter");
    assert_eq!(after.restore(&state).unwrap(), 1);
    assert_eq!(after.available("alice"), 23);
}

/// Takes continue while snapshots are written; each file is complete and holds all that was settled
/// before.
#[test]
fn saving_goes_on_beside_deciding() {
    for bounded in [false, true] {
        let folder = Folder::new();
        let clock = || clock_at(YEAR, Duration::from_secs(1_800_000_000)).0;
        let before = limiter(&folder, clock(), Algorithm::Gcra, bounded);
        for key in 0..300 {
            let _ = before.try_acquire_n(&format!("settled {key}"), 5);
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also when an assertion fails: the other thread waits for it.
            let _done = SetOnDrop(&done);
            scope.spawn(|| {
                let mut random = Random(1);
                while !done.load(Relaxed) {
                    let _ = before.try_acquire(&format!("other {}", random.below(100)));
                }
            });
            for _ in 0..20 {
                before.save(folder.file("state")).unwrap();
                let after = limiter(&folder, clock(), Algorithm::Gcra, bounded);
                after.restore(folder.file("state")).unwrap();
                let lost = (0..300).filter(|key| after.available(&format!("settled {key}")) != 25);
                assert_eq!(lost.count(), 0);
            }
        });
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_store_comes_back_with_its_policies() {
    let folder = Folder::new();
    let wall = Duration::from_secs(1_800_000_000);
    let store = |wall| {
        let builder = MemoryStore::builder().clock(clock_at(YEAR, wall).0);
        builder.seed(folder.seed()).build().unwrap()
    };
    let policies = || {
        Algorithm::ALL
            .map(|one| Policy::with_algorithm(one.name(), Quota::per_day(9), one).unwrap())
    };
    let before = store(wall);
    for policy in &policies() {
        let mut demands = [Demand::new(policy, b"alice", 4), Demand::new(policy, b"bob", 2)];
        assert!(before.acquire_now(&mut demands).unwrap().is_allowed());
    }
    assert_eq!(before.save(folder.file("state")).unwrap(), 10);
    let after = store(wall + Duration::from_secs(1));
    assert_eq!(after.restore(folder.file("state")).unwrap(), 10);
    for policy in &policies() {
        for (key, left) in [(&b"alice"[..], 5), (b"bob", 7), (b"carol", 9)] {
            let decision = after.acquire_now(&mut [Demand::new(policy, key, 0)]).unwrap();
            assert_eq!(decision.remaining(), left, "{policy:?}");
        }
    }
}
