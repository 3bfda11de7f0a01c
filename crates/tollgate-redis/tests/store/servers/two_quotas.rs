//! Two services with different quotas for one policy on one Redis call alternately for a long time:
//! the permits that both get together, and the number of their requests.
//!
//! The scripts are the shipped ones. The test moves the server's clock, and services reach the
//! server through a proxy that counts requests.

use super::interleaved_calls::{start, timed};
use crate::servers::patient::patient;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tollgate::{
    Algorithm, Clock, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::RedisStore;
use tollgate_rig::{Flavor, Proxy, Redis};

/// A multiple of every rounding step and window here.
const START: Duration = Duration::from_secs(1_800_000_000);

/// The admissions of both services: when, and how much.
struct Run {
    admitted: Vec<(Duration, u64)>,
    calls: u64,
    requests: u64,
    lasted: Duration,
}

/// Lets two services call with their quotas, a random one at random times. Fewer permits refill
/// than they ask for, so both are denied often.
async fn alternate(rig: &mut Rig, algorithm: Algorithm, quotas: [Quota; 2], seed: u64) -> Run {
    let mut random = fastrand::Rng::with_seed(seed);
    let prefix = format!("{algorithm}{}{}", quotas[0], quotas[1]);
    rig.stop_time(START);
    let services = quotas.map(|quota| {
        let (clock, _hand) = Clock::manual();
        clock.set_wall_offset(START - Duration::from_secs(1));
        let link = patient(&format!("redis://{}", rig.proxy.address()));
        let store = RedisStore::builder(link).prefix(&prefix).clock(clock).build().unwrap();
        (store, Policy::with_algorithm("p", quota, algorithm).unwrap())
    });
    for (store, policy) in &services {
        store.link().ready(Duration::from_secs(20)).await.unwrap();
        // Loads the script.
        let _ = store.acquire(&mut [Demand::new(policy, b"warm", 1)]).await.unwrap();
    }
    let permit = quotas.map(|it| it.period() / u32::try_from(it.count()).unwrap());
    let step = permit[0].min(permit[1]);
    let (mut now, mut admitted, before) = (START, Vec::new(), rig.proxy.requests());
    let calls = 1500;
    let mut turn = 0;
    for _ in 0..calls {
        // Long runs of one service, and quick changes.
        turn = if random.u8(0..4) == 0 { random.usize(0..2) } else { 1 - turn };
        let (store, policy) = &services[turn];
        let cost = random.u64(1..=3).min(policy.quota().capacity());
        let decision = store.acquire(&mut [Demand::new(policy, b"k", cost)]).await.unwrap();
        if decision.is_allowed() {
            admitted.push((now, cost));
        }
        let by = match random.u8(0..40) {
            // Sometimes both rest.
            0 => step * 20,
            1..20 => Duration::ZERO,
            _ => step * random.u32(0..1000) / 500,
        };
        now += whole_micros(by, algorithm, quotas[0]);
        rig.stop_time(now);
    }
    let requests = rig.proxy.requests() - before;
    Run { admitted, calls, requests, lasted: now - START }
}

/// The server counts microseconds, and rounds the start of an anchored window: to a 1200th of it
/// here.
fn whole_micros(by: Duration, algorithm: Algorithm, quota: Quota) -> Duration {
    let grain = match algorithm {
        Algorithm::AnchoredWindow => quota.period().as_micros() / 1200,
        _ => 1,
    };
    Duration::from_micros((by.as_micros() / grain * grain) as u64)
}

struct Rig {
    redis: Redis,
    proxy: Proxy,
}

impl Rig {
    fn start() -> Self {
        let redis = Redis::builder(Flavor::Redis).faketime().start();
        let proxy = Proxy::start(redis.address());
        Self { redis, proxy }
    }

    fn stop_time(&mut self, since_epoch: Duration) {
        let time: SystemTime = UNIX_EPOCH + since_epoch;
        self.redis.stop_time(time);
    }
}

impl Run {
    fn sum(&self) -> u64 {
        self.admitted.iter().map(|(_, cost)| cost).sum()
    }

    /// Returns the most by which the admitted permits exceed `quota`'s rate in any interval. One
    /// more permit adds `period` in these units, and a microsecond subtracts `count`.
    fn above_rate(&self, quota: Quota) -> u128 {
        let (permit, per_micro) = (quota.period().as_micros(), u128::from(quota.count()));
        let (mut level, mut most, mut last) = (0_u128, 0, START);
        for (at, cost) in &self.admitted {
            level = level.saturating_sub((*at - last).as_micros() * per_micro);
            level += u128::from(*cost) * permit;
            (most, last) = (most.max(level), *at);
        }
        most
    }
}

/// The larger rate and both bursts, for any quotas; the larger quota if burst / rate is equal.
#[tokio::test]
async fn two_token_buckets_together_keep_to_the_larger_rate() {
    let mut rig = Rig::start();
    for (seed, (one, two)) in [
        // Equal burst / rate, with permits of whole ninths of a nanosecond and others.
        ("10/min", "100/min"),
        ("7/min", "11/min"),
        ("97/s burst 97", "3/s burst 3"),
        ("100000/s burst 1000", "10000/s burst 100"),
        // Any burst / rate.
        ("10/s burst 10", "10/s burst 200"),
        ("97/s burst 13", "3/s burst 100"),
        ("99999/s burst 10", "7777/s burst 100"),
    ]
    .into_iter()
    .enumerate()
    {
        let quotas: [Quota; 2] = [one, two].map(|it| it.parse().unwrap());
        let run = alternate(&mut rig, Algorithm::Gcra, quotas, seed as u64).await;
        let about = format!("{one} and {two}, seed {seed}: {} in {:?}", run.sum(), run.lasted);
        let refill = |it: Quota| u128::from(it.capacity()) * it.period().as_nanos();
        let [a, b] = quotas;
        let rate = |it: Quota| it.count() as f64 / it.period().as_secs_f64();
        let (fast, slow) = if rate(a) > rate(b) { (a, b) } else { (b, a) };
        let is_alike = refill(a) * u128::from(b.count()) == refill(b) * u128::from(a.count());
        let burst = match is_alike {
            true => fast.capacity(),
            false => fast.capacity() + slow.capacity(),
        };
        let above = run.above_rate(fast);
        assert!(above <= u128::from(burst) * fast.period().as_micros(), "{about}: {above}");
        // Nor do they block each other. Permits that refill while both rest for longer than a burst
        // are lost.
        let least = (run.lasted.as_secs_f64() * rate(slow) * 0.9) as u64;
        assert!(run.sum() >= least, "{about}: less than {least}");
        assert_eq!(run.requests, run.calls, "{about}: one request for each call");
    }
}

/// Windows of one length have one count: it never exceeds the larger limit.
#[tokio::test]
async fn two_windows_together_keep_to_the_larger_limit() {
    let mut rig = Rig::start();
    for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Gcra) {
        let quotas = [Quota::per_minute(10), Quota::per_minute(50)];
        let run = alternate(&mut rig, algorithm, quotas, 7).await;
        let minute = Duration::from_secs(60);
        let about = format!("{algorithm}: {} in {:?}", run.sum(), run.lasted);
        let mut window = (START, 0);
        for (row, (at, cost)) in run.admitted.iter().enumerate() {
            let start = match algorithm {
                Algorithm::AnchoredWindow if *at < window.0 + minute && row > 0 => window.0,
                Algorithm::AnchoredWindow => *at,
                _ => *at - Duration::from_micros(((*at).as_micros() % minute.as_micros()) as u64),
            };
            window = (start, cost + if start == window.0 { window.1 } else { 0 });
            assert!(window.1 <= 50, "{about}: {} in the window of {:?}", window.1, at);
            if algorithm == Algorithm::SlidingLog {
                let recent = run.admitted[..=row].iter().filter(|it| it.0 + minute > *at);
                let recent: u64 = recent.map(|(_, cost)| cost).sum();
                assert!(recent <= 50, "{about}: {recent} in a minute before {at:?}");
            }
        }
        assert!(run.sum() >= run.lasted.as_secs() / 60 * 30, "{about}: too few");
        assert_eq!(run.requests, run.calls, "{about}: one request for each call");
    }
}

/// Windows of different lengths have separate keys: each service gets its own quota, and no more.
#[tokio::test]
async fn windows_of_two_lengths_do_not_share() {
    let mut rig = Rig::start();
    for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Gcra) {
        let quotas = [Quota::per_minute(10), Quota::per_hour(20)];
        rig.stop_time(START);
        let link = patient(&format!("redis://{}", rig.proxy.address()));
        link.ready(Duration::from_secs(20)).await.unwrap();
        let mut admitted = [0; 2];
        for call in 0..100 {
            let store = RedisStore::builder(link.clone()).prefix(algorithm.name()).build().unwrap();
            let policy = Policy::with_algorithm("p", quotas[call % 2], algorithm).unwrap();
            let decision = store.acquire(&mut [Demand::new(&policy, b"k", 1)]).await.unwrap();
            admitted[call % 2] += u64::from(decision.is_allowed());
        }
        assert_eq!(admitted, [10, 20], "{algorithm}");
    }
}

/// A service with a short quota gives back a permit that a service with a longer quota has used.
/// That does not become a debt, which would outlast the longer quota.
#[tokio::test]
async fn a_refund_makes_no_debt_of_what_another_quota_left() {
    let mut rig = Rig::start();
    let service = |since: u64, quota: &str| {
        let (clock, _hand) = Clock::manual();
        clock.set_wall_offset(START + Duration::from_secs(since));
        let link = patient(&format!("redis://{}", rig.proxy.address()));
        let store = RedisStore::builder(link).prefix("refund").clock(clock).build().unwrap();
        (store, Policy::new("p", quota.parse().unwrap()).unwrap())
    };
    // The third one starts when the second has gone.
    let services = [service(0, "1000/min"), service(0, "1000/day"), service(20, "1000/min")];
    let [short, long, later] = &services;
    rig.stop_time(START + Duration::from_secs(10));
    for (store, _) in &services {
        store.link().ready(Duration::from_secs(20)).await.unwrap();
    }
    let taken = long.0.acquire(&mut [Demand::new(&long.1, b"k", 1000)]).await.unwrap();
    assert!(taken.is_allowed());
    assert_eq!(short.0.refund(&Demand::new(&short.1, b"k", 1)).await.unwrap(), 1);
    rig.stop_time(START + Duration::from_secs(21));
    let look = later.0.peek(&mut [Demand::new(&later.1, b"k", 1)]).await.unwrap();
    assert!(look.is_allowed(), "{:?}", look.retry_after(look.at()));
}

/// What a longer quota has left counts as one burst from the change on, also when time comes within a burst of it.
#[tokio::test]
async fn a_wait_named_after_a_change_is_exact() {
    let (_redis, link) = start().await;
    let (store, hand) = timed(&link, "named wait");
    let [old, new] =
        ["10/s burst 13", "9/s burst 10"].map(|it| Policy::new("p", it.parse().unwrap()).unwrap());
    assert!(store.acquire(&mut [Demand::new(&old, b"k", 13)]).await.unwrap().is_allowed());
    let denied = store.acquire(&mut [Demand::new(&new, b"k", 10)]).await.unwrap();
    hand.advance(denied.retry_after(denied.at()).unwrap());
    let again = store.acquire(&mut [Demand::new(&new, b"k", 10)]).await.unwrap();
    assert!(again.is_allowed(), "{denied:?}, then {again:?}");
}

#[tokio::test]
async fn a_key_that_has_refilled_after_a_change_stays_full() {
    let (_redis, link) = start().await;
    let (store, hand) = timed(&link, "refilled");
    let [old, new] = ["10/h", "10/s"].map(|it| Policy::new("p", it.parse().unwrap()).unwrap());
    assert!(store.acquire(&mut [Demand::new(&old, b"k", 10)]).await.unwrap().is_allowed());
    assert!(store.acquire(&mut [Demand::new(&new, b"k", 1)]).await.unwrap().is_denied());
    for (wait, remaining) in [(500, 5), (500, 10), (3_598_000, 10), (500, 10)] {
        hand.advance(Duration::from_millis(wait));
        let level = store.peek(&mut [Demand::new(&new, b"k", 0)]).await.unwrap();
        assert_eq!(level.remaining(), remaining, "at {:?}", level.at());
    }
}

/// A shorter quota cuts what is booked to one burst, so reservations of before give back one burst in all.
#[tokio::test]
async fn reservations_of_before_a_shorter_quota_give_back_one_burst_in_all() {
    let (_redis, link) = start().await;
    for youngest_first in [false, true] {
        let (store, hand) = timed(&link, &format!("reserved {youngest_first}"));
        let [old, new] = ["10/h", "10/s"].map(|it| Policy::new("p", it.parse().unwrap()).unwrap());
        let life = Duration::from_secs(60);
        let mut ids = Vec::new();
        for _ in 0..10 {
            let reserved = store.reserve(&mut [Demand::new(&old, b"k", 1)], life).await.unwrap();
            ids.push(reserved.id.unwrap());
        }
        hand.advance(Duration::from_secs(1));
        let take = async || store.acquire(&mut [Demand::new(&new, b"k", 1)]).await.unwrap();
        assert!(take().await.is_denied());
        // One that is made meanwhile keeps its claim.
        hand.advance(Duration::from_millis(100));
        let own = store.reserve(&mut [Demand::new(&new, b"k", 1)], life).await.unwrap();
        assert!(take().await.is_denied());
        assert!(store.settle(own.id.unwrap(), &[0]).await.unwrap());
        assert!(take().await.is_allowed());
        if youngest_first {
            ids.reverse();
        }
        let mut passed = 0;
        for id in ids {
            assert!(store.settle(id, &[0]).await.unwrap());
            while take().await.is_allowed() {
                passed += 1;
            }
        }
        assert!(passed <= 10, "{passed} at one instant; the youngest first: {youngest_first}");
    }
}

/// Redis refuses a budget that never refills with every verb, so between two rates it changes nothing: a
/// reservation of before gives back what it took, and no more.
#[tokio::test]
async fn a_budget_between_two_rates_is_refused_and_changes_nothing() {
    let (_redis, link) = start().await;
    let (store, hand) = timed(&link, "budget");
    let rate = Policy::new("p", Quota::per_hour(10)).unwrap();
    let budget = Policy::new("p", Quota::once(10)).unwrap();
    let life = Duration::from_secs(60);
    let by = |policy, cost| Demand::new(policy, b"k", cost);
    for _ in 0..3 {
        let reserved = store.reserve(&mut [by(&rate, 4)], life).await.unwrap();
        let before = store.peek(&mut [by(&rate, 0)]).await.unwrap().remaining();
        for demands in [&mut [by(&budget, 1)][..], &mut [by(&rate, 1), by(&budget, 1)]] {
            assert!(store.acquire(demands).await.unwrap_err().is_invalid());
            assert!(store.reserve(demands, life).await.unwrap_err().is_invalid());
            assert!(store.peek(demands).await.unwrap_err().is_invalid());
        }
        assert!(store.force(&by(&budget, 1)).await.unwrap_err().is_invalid());
        assert!(store.refund(&by(&budget, 1)).await.unwrap_err().is_invalid());
        assert!(store.lease(&mut by(&budget, 1), life).await.unwrap_err().is_invalid());
        assert!(store.up_to(&mut by(&budget, 1)).await.unwrap_err().is_invalid());
        assert!(store.reset(&by(&budget, 1)).await.unwrap_err().is_invalid());
        let level = store.peek(&mut [by(&rate, 0)]).await.unwrap();
        assert_eq!(level.remaining(), before);
        assert!(store.settle(reserved.id.unwrap(), &[1]).await.unwrap());
        assert_eq!(store.peek(&mut [by(&rate, 0)]).await.unwrap().remaining(), before + 3);
        hand.advance(Duration::from_secs(1));
    }
}
