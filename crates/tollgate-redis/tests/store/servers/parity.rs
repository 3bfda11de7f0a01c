//! The same calls at the same times, by the scripts and by the algorithms of the library: the same
//! decisions, permits left and waits.
//!
//! The scripts count microseconds. So times are whole microseconds here and waits are rounded up to
//! one. Steps are multiples of 100 us, because the library rounds the start of an anchored window, to
//! 50 us for the limits here.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Decision, ManualClock, Quota,
    store::{Demand, MemoryStore, Policy, Store},
};
use tollgate_redis::{Link, RedisStore};
use tollgate_rig::{Flavor, Redis};

const QUOTAS: [&str; 11] = [
    "10/s",
    "3/s",
    "7/min",
    "1000/h",
    "1/s burst 1",
    "97/s burst 13",
    "999983/h burst 31",
    "2500000/s burst 7",
    "11/day burst 5",
    // The burst in 9000ths of a microsecond, and permits x fractions, are more than a double holds.
    "1000/30d",
    "10000000/s burst 99999999999999",
];
const WINDOWS: [&str; 7] = ["10/s", "3/s", "7/min", "1000/h", "1/s", "4999/h", "4/day"];

fn rounded_up(wait: Duration) -> Duration {
    Duration::from_micros(wait.as_nanos().div_ceil(1000) as u64)
}

fn lasts_whole_ninths(quota: Quota) -> bool {
    (9 * quota.period().as_nanos()).is_multiple_of(u128::from(quota.count()))
}

struct Pair {
    store: RedisStore,
    policy: Policy,
    twin: MemoryStore,
    hand: ManualClock,
    twin_hand: ManualClock,
    about: String,
    /// Whether a permit of every quota so far lasts whole ninths of a nanosecond, or there was only one quota.
    is_exact: bool,
}

impl Pair {
    fn new(link: &Link, prefix: &str, algorithm: Algorithm, quota: Quota) -> Self {
        let ((clock, hand), (twin_clock, twin_hand)) = (Clock::manual(), Clock::manual());
        for clock in [&clock, &twin_clock] {
            clock.set_wall_offset(Duration::from_secs(1_800_000_000));
        }
        let builder = RedisStore::builder(link.clone()).prefix(prefix);
        let store = builder.given_time(clock).build().unwrap();
        let twin = MemoryStore::builder().clock(twin_clock).build().unwrap();
        let policy = Policy::with_algorithm("trace", quota, algorithm).unwrap();
        let about = format!("{algorithm}, {quota}, {prefix}");
        Self { store, policy, twin, hand, twin_hand, about, is_exact: true }
    }

    fn advance(&self, by: Duration) {
        self.hand.advance(by);
        self.twin_hand.advance(by);
    }

    fn compare(&self, seen: &Decision, expected: &Decision, step: usize, verb: &str) {
        let about = format!("{}, step {step}, {verb} of {}", self.about, expected.cost());
        let told = |it: &Decision| (it.is_allowed(), it.is_never(), it.remaining(), it.limit());
        assert_eq!(told(seen), told(expected), "{about}");
        // Where a permit does not last whole ninths, a change of quota rounds to a ninth or two, here and there
        // in their own way, and waits are rounded up to microseconds.
        let slack = Duration::from_micros(u64::from(!self.is_exact));
        let close = |one: Option<Duration>, two: Option<Duration>| match (one, two) {
            (Some(one), Some(two)) => rounded_up(one).abs_diff(rounded_up(two)) <= slack,
            (one, two) => one == two,
        };
        let waits = [seen, expected].map(|it| it.retry_after(it.at()));
        assert!(close(waits[0], waits[1]), "{about}: the waits are {waits:?}");
        let fulls = [seen, expected].map(|it| it.reset_after(it.at()));
        assert!(close(fulls[0], fulls[1]), "{about}: full after {fulls:?}");
    }

    async fn step(&mut self, random: &mut fastrand::Rng, step: usize, quotas: &[&str]) {
        let most = self.policy.quota().capacity();
        let cost = match random.u8(0..10) {
            0 => 0,
            1 => most + random.u64(0..3),
            2 if random.u8(0..4) == 0 => most.min(5000) * random.u64(0..20),
            2..5 => random.u64(0..=most.min(50)),
            _ => 1,
        };
        let (store, twin) = (&self.store, &self.twin);
        let mut demands = [Demand::new(&self.policy, b"key", cost)];
        match random.u8(0..14) {
            0 => {
                let seen = store.peek(&mut demands).await.unwrap();
                self.compare(&seen, &twin.peek(&mut demands).await.unwrap(), step, "peek");
            }
            1 => {
                let seen = store.force(&demands[0]).await.unwrap();
                self.compare(&seen, &twin.force(&demands[0]).await.unwrap(), step, "force");
            }
            2 => {
                let given = store.refund(&demands[0]).await.unwrap();
                let expected = twin.refund(&demands[0]).await.unwrap();
                assert_eq!(given, expected, "{}, step {step}: refund", self.about);
            }
            3 => {
                let seen = store.up_to(&mut demands[0]).await.unwrap();
                self.compare(&seen, &twin.up_to(&mut demands[0]).await.unwrap(), step, "up to");
            }
            4 if !quotas.is_empty() && random.u8(0..4) == 0 => {
                let quota: Quota = random.choice(quotas).unwrap().parse().unwrap();
                if quota != self.policy.quota() {
                    self.change(quota, step).await;
                }
            }
            5 if random.u8(0..10) == 0 => {
                store.reset(&demands[0]).await.unwrap();
                twin.reset(&demands[0]).await.unwrap();
            }
            _ => {
                let seen = store.acquire(&mut demands).await.unwrap();
                self.compare(&seen, &twin.acquire(&mut demands).await.unwrap(), step, "take");
            }
        }
    }

    /// Goes on with another quota, which both put in force at its first use.
    async fn change(&mut self, quota: Quota, step: usize) {
        let algorithm = self.policy.algorithm();
        self.is_exact &= lasts_whole_ninths(self.policy.quota()) && lasts_whole_ninths(quota);
        self.policy = Policy::with_algorithm("trace", quota, algorithm).unwrap();
        self.about = format!("{}, then {quota} at {step}", self.about);
        let mut demands = [Demand::new(&self.policy, b"key", 1)];
        let seen = self.store.peek(&mut demands).await.unwrap();
        self.compare(&seen, &self.twin.peek(&mut demands).await.unwrap(), step, "look");
    }
}

async fn replay(flavor: Flavor, steps: usize, changing: bool) {
    let redis = Redis::start(flavor);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    for algorithm in Algorithm::ALL {
        let quotas = if algorithm == Algorithm::Gcra { &QUOTAS[..] } else { &WINDOWS[..] };
        for (seed, quota) in quotas.iter().enumerate() {
            let quota: Quota = quota.parse().unwrap();
            let prefix = format!("{algorithm}{seed}{changing}");
            let mut random = fastrand::Rng::with_seed(seed as u64);
            let mut pair = Pair::new(&link, &prefix, algorithm, quota);
            for step in 0..steps {
                let quota = pair.policy.quota();
                let permit = quota.period().as_micros() as u64 / quota.count();
                let most = (permit / 30).clamp(10, 1_000_000_000);
                if random.u8(0..2) == 0 {
                    pair.advance(Duration::from_micros(100 * random.u64(0..most)));
                }
                // Some windows, in which a debt is paid off.
                if random.u8(0..30) == 0 {
                    let windows = quota.period().as_micros() as u64 * random.u64(0..6000) / 100_000;
                    pair.advance(Duration::from_micros(100 * windows.min(1_000_000_000_000)));
                }
                pair.step(&mut random, step, if changing { quotas } else { &[] }).await;
            }
        }
    }
}

#[tokio::test]
async fn the_scripts_decide_as_the_library_does() {
    replay(Flavor::Redis, 400, false).await;
}

#[tokio::test]
async fn and_so_they_do_when_quotas_change() {
    replay(Flavor::Redis, 400, true).await;
}

#[tokio::test]
async fn and_so_they_do_in_valkey() {
    replay(Flavor::Valkey, 200, true).await;
}
