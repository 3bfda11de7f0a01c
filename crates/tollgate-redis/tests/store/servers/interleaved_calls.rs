//! Calls that interleave, rollouts, full ledgers, and damaged states.

use crate::servers::patient::patient;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::{Duration, UNIX_EPOCH},
};
use tollgate::{
    Algorithm, Clock, ManualClock, Quota,
    store::{Demand, MemoryStore, Permits, Policy, Store},
};
use tollgate_redis::{
    FairShare, FleetSize, HeartbeatSettings, LeaseSettings, Link, Member, Rate, RedisStore,
    Resource, TwoTier, slot_of,
};
use tollgate_rig::{Cluster, Flavor, Redis, quota_changes};

pub(super) async fn start() -> (Redis, Link) {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    (redis, link)
}

pub(super) fn timed(link: &Link, prefix: &str) -> (RedisStore, ManualClock) {
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(1_800_000_000));
    let store = RedisStore::builder(link.clone()).prefix(prefix).given_time(clock).build().unwrap();
    (store, hand)
}

/// Two processes of a rollout call alternately: one has the old quota, the other the new one. Time
/// stands still, so both together get no more than the larger burst.
#[tokio::test]
async fn a_rollout_admits_no_more_than_the_larger_quota() {
    let (_redis, link) = start().await;
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        for (from, to) in [(10, 50), (50, 10)] {
            let prefix = format!("{algorithm}{from}");
            let [one, two] = [0, 1].map(|_| timed(&link, &prefix).0);
            let of = |n| Policy::with_algorithm("p", Quota::per_hour(n), algorithm).unwrap();
            let (old, new) = (of(from), of(to));
            for _ in 0..3 {
                let _ = one.acquire(&mut [Demand::new(&old, b"k", 1)]).await.unwrap();
            }
            let mut admitted = 3;
            for turn in 0..120 {
                let (store, policy) = if turn % 2 == 0 { (&two, &new) } else { (&one, &old) };
                let decision = store.acquire(&mut [Demand::new(policy, b"k", 1)]).await;
                admitted += u64::from(decision.unwrap().is_allowed());
            }
            if admitted > 50 {
                wrong.push(format!("{algorithm}, {from} to {to}: {admitted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A small burst and a large one with the same rate: both together get no more than the rate and
/// both bursts, in any order of calls.
#[tokio::test]
async fn two_bursts_of_one_key_add_up_to_no_more_than_both() {
    let (_redis, link) = start().await;
    let [(one, first), (two, second)] = [0, 1].map(|_| timed(&link, "bursts"));
    let [small, large] = ["10/s burst 10", "10/s burst 1000"]
        .map(|it| Policy::new("p", it.parse().unwrap()).unwrap());
    let mut admitted = 0;
    for turn in 0..3000 {
        let (store, policy) = if turn % 2 == 0 { (&one, &small) } else { (&two, &large) };
        let decision = store.acquire(&mut [Demand::new(policy, b"k", 1)]).await;
        admitted += u64::from(decision.unwrap().is_allowed());
        for hand in [&first, &second] {
            hand.advance(Duration::from_millis(10));
        }
    }
    assert!((1000..=1010 + 300).contains(&admitted), "{admitted}");
}

/// When an exhausted key passes next after a change of its quota: the table of docs/keys.md.
#[tokio::test]
async fn an_exhausted_key_passes_next_as_documented() {
    let (_redis, link) = start().await;
    for (row, change) in quota_changes().into_iter().enumerate() {
        let algorithm = change.algorithm.parse().unwrap();
        let [old, new] = change
            .quotas
            .each_ref()
            .map(|it| Policy::with_algorithm("p", it.parse().unwrap(), algorithm).unwrap());
        let (store, hand) = timed(&link, &format!("change{row}"));
        let take = async |policy: &Policy, cost| {
            let mut demands = [Demand::new(policy, b"k", cost)];
            store.acquire(&mut demands).await.unwrap()
        };
        assert!(take(&old, old.quota().capacity()).await.is_allowed());
        if change.wait > Duration::ZERO {
            let denied = take(&new, 1).await;
            assert_eq!(denied.retry_after(denied.at()), Some(change.wait), "{change:?}");
            hand.advance(change.wait - Duration::from_micros(1));
            assert!(take(&new, 1).await.is_denied(), "{change:?}: too early");
            hand.advance(Duration::from_micros(1));
        }
        assert!(take(&new, 1).await.is_allowed(), "{change:?}: too late");
    }
}

/// A debt stays, however short the new quota is.
#[tokio::test]
async fn a_debt_outlives_a_change_of_quota() {
    let (_redis, link) = start().await;
    for change in quota_changes().into_iter().filter(|it| it.algorithm == "gcra") {
        let [old, new] =
            change.quotas.each_ref().map(|it| Policy::new("p", it.parse().unwrap()).unwrap());
        let (store, hand) = timed(&link, &change.quotas.concat());
        let debt = Demand::new(&old, b"k", 3 * old.quota().capacity());
        assert!(store.force(&debt).await.unwrap().is_allowed());
        hand.advance(Duration::from_millis(1));
        let [owed, still] = [Demand::new(&old, b"k", 0), Demand::new(&new, b"k", 0)];
        let owed = store.peek(&mut [owed]).await.unwrap().full_at();
        let still = store.peek(&mut [still]).await.unwrap().full_at();
        assert_eq!(still, owed, "{change:?}");
    }
}

/// Many concurrent calls under two quotas of one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_quotas_of_a_hot_key_are_no_failure() {
    let (_redis, link) = start().await;
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow] {
        let prefix = format!("{algorithm}");
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let store = RedisStore::builder(link.clone()).prefix(&prefix).build().unwrap();
                tokio::spawn(async move {
                    let quota = Quota::per_hour(if task % 2 == 0 { 1000 } else { 2000 });
                    let policy = Policy::with_algorithm("p", quota, algorithm).unwrap();
                    let mut failed = 0;
                    for _ in 0..50 {
                        let taken = store.acquire(&mut [Demand::new(&policy, b"k", 1)]).await;
                        failed += u32::from(taken.is_err());
                    }
                    failed
                })
            })
            .collect();
        let mut failed = 0;
        for task in tasks {
            failed += task.await.unwrap();
        }
        assert_eq!(failed, 0, "{algorithm}");
    }
}

/// Polls a future once, and leaves it pending.
fn begin<F: Future>(runtime: &tokio::runtime::Runtime, mut future: Pin<&mut F>) {
    let is_pending = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(runtime.block_on(is_pending), "ready at once");
}

/// A runtime that is no longer driven must not block others.
#[test]
fn a_line_is_not_led_by_a_runtime_that_stands_still() {
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let own = own.unwrap();
    let (_redis, link) = own.block_on(start());
    let store = RedisStore::builder(link).join_above(1).build().unwrap();
    let policy = Policy::new("p", Quota::per_hour(100)).unwrap();
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, two) = (single(), single());
    let mut demands = [[Demand::new(&policy, b"k", 1)], [Demand::new(&policy, b"k", 1)]];
    let [first, second] = &mut demands;
    let mut first = Box::pin(store.acquire(first));
    let mut second = Box::pin(store.acquire(second));
    // The first call is under way, the second waits in the queue.
    begin(&one, first.as_mut());
    begin(&two, second.as_mut());
    let _ = one.block_on(first).unwrap();
    let waited = two.block_on(async { tokio::time::timeout(Duration::from_secs(5), second).await });
    assert!(waited.expect("an answer").unwrap().is_allowed());
}

/// Claims of several quotas on one key are given back in any order: no call fails, and no caller
/// gets more than the remaining permits.
#[tokio::test]
async fn claims_of_ad_hoc_quotas_leave_the_state_whole() {
    let (_redis, link) = start().await;
    let quotas: Vec<Quota> = ["3/s burst 20", "7/s burst 20", "1000/s burst 20", "11/min burst 20"]
        .iter()
        .map(|it| it.parse().unwrap())
        .collect();
    let policy = Policy::ad_hoc("p");
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (store, hand) = timed(&link, &format!("s{seed}"));
        let mut open = Vec::new();
        for step in 0..60 {
            let quota = *random.choice(&quotas).unwrap();
            let cost = random.u64(1..4);
            let mut demands = [Demand::ad_hoc(&policy, b"k", cost, quota).unwrap()];
            let failed = match random.u8(0..6) {
                0 | 1 => store
                    .reserve(&mut demands, Duration::from_secs(60))
                    .await
                    .map(|it| open.extend(it.id))
                    .err(),
                2 if !open.is_empty() => {
                    let id = open.swap_remove(random.usize(..open.len()));
                    store.settle(id, &[random.u64(0..2)]).await.err()
                }
                3 => store.refund(&demands[0]).await.err(),
                4 => {
                    hand.advance(Duration::from_micros(random.u64(0..90_000)));
                    None
                }
                _ => store.acquire(&mut demands).await.err(),
            };
            assert!(failed.is_none(), "seed {seed}, step {step}: {failed:?}");
        }
    }
}

/// A full ledger must not fill others.
#[tokio::test]
async fn a_full_ledger_fills_no_other() {
    let (_redis, link) = start().await;
    let store = RedisStore::builder(link).max_claims(4).build().unwrap();
    let policy = Policy::new("p", Quota::per_hour(1000)).unwrap();
    let life = Duration::from_secs(60);
    let mut ids = Vec::new();
    for _ in 0..4 {
        let reserved = store.reserve(&mut [Demand::new(&policy, b"busy", 1)], life).await.unwrap();
        ids.extend(reserved.id);
    }
    for _ in 0..4 {
        let mut both = [Demand::new(&policy, b"calm", 1), Demand::new(&policy, b"busy", 1)];
        assert!(store.reserve(&mut both, life).await.unwrap_err().is_full());
    }
    assert!(store.settle(ids[0], &[1]).await.unwrap());
    let mut both = [Demand::new(&policy, b"calm", 1), Demand::new(&policy, b"busy", 1)];
    assert!(store.reserve(&mut both, life).await.unwrap().id.is_some());
}

/// Products that a double cannot represent: no failure, and no permits beyond the limit.
#[tokio::test]
async fn the_largest_leases_are_answered() {
    let (_redis, link) = start().await;
    let (store, _hand) = timed(&link, "huge");
    for burst in [1_u64 << 49, Quota::BURST_MAX] {
        let quota = Quota::per_second(1_000_000_000).burst(burst);
        let policy = Policy::new(format!("b{burst}"), quota).unwrap();
        let mut taken = 0;
        for cost in [burst / 2 + 1, u64::MAX, 1, u64::MAX] {
            let decision = store.up_to(&mut Demand::new(&policy, b"k", cost)).await.unwrap();
            taken += if decision.is_allowed() { decision.cost() } else { 0 };
        }
        assert!((burst - 10..=burst).contains(&taken), "{taken} of {burst}");
    }
}

/// Any content under our names in Redis leads to an answer or an error, never to a panic.
#[tokio::test]
async fn damaged_states_do_not_panic() {
    let (redis, link) = start().await;
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let (store, _hand) = timed(&link, "d");
    let big = 9_007_199_254_740_991.0_f64.to_le_bytes();
    let now = 1_800_000_000_000_000.0_f64.to_le_bytes();
    let nan = f64::NAN.to_le_bytes();
    let minus = (-5.0_f64).to_le_bytes();
    let tails: [&[u8]; 6] = [&[], &[0; 3], &[0xff; 30], &nan, &big, &minus];
    for algorithm in Algorithm::ALL {
        let policy = Policy::with_algorithm("p", Quota::per_minute(10), algorithm).unwrap();
        let letter = match algorithm {
            Algorithm::Gcra => "g",
            Algorithm::FixedWindow => "f60000000",
            Algorithm::AnchoredWindow => "a60000000",
            Algorithm::SlidingCounter => "c60000000",
            _ => "l60000000",
        };
        for tail in tails {
            for numbers in [[big; 3], [now; 3], [nan; 3], [minus; 3], [now, big, minus]] {
                let key = format!("d:{letter}:{{k}}:p");
                let _: () = redis::cmd("DEL").arg(&key).query(&mut connection).unwrap();
                let width = if letter.starts_with(['f', 'a']) { 2 } else { 3 };
                if letter.starts_with('l') {
                    let head = [&numbers[0][..], tail].concat();
                    let entry = [numbers[1], numbers[2]].concat();
                    let _: () = redis::cmd("RPUSH")
                        .arg(&key)
                        .arg(head)
                        .arg(entry)
                        .query(&mut connection)
                        .unwrap();
                } else {
                    let value = [numbers[..width].concat(), tail.to_vec()].concat();
                    let _: () =
                        redis::cmd("SET").arg(&key).arg(value).query(&mut connection).unwrap();
                }
                let mut demands = [Demand::new(&policy, b"k", 1)];
                let _ = store.peek(&mut demands).await;
                let _ = store.acquire(&mut demands).await;
                let _ = store.refund(&demands[0]).await;
                let _ = store.lease(&mut demands[0], Duration::from_secs(1)).await;
            }
        }
    }
}

/// Like the store in memory.
#[tokio::test]
async fn no_permits_in_flight_are_no_error() {
    let (_redis, link) = start().await;
    let store = RedisStore::new(link).unwrap();
    let twin = MemoryStore::new();
    let life = Duration::from_secs(5);
    for (limit, cost) in [(0, 0), (5, 0), (5, 6), (0, 1), (5, 5), (5, 0)] {
        let permits = Permits { cost, ..Permits::new("p", b"k", limit) };
        let (seen, expected) =
            (store.enter(&permits, life).await, twin.enter(&permits, life).await);
        let expected = expected.unwrap();
        let seen = seen.unwrap_or_else(|error| panic!("{limit}, {cost}: {error}"));
        assert_eq!(
            (seen.id.is_some(), seen.in_flight),
            (expected.id.is_some(), expected.in_flight),
            "{limit}, {cost}"
        );
        if let (Some(id), Some(other)) = (seen.id, expected.id) {
            assert_eq!(
                store.renew(&permits, id, life).await.unwrap(),
                twin.renew(&permits, other, life).await.unwrap(),
                "{limit}, {cost}"
            );
        }
    }
}

/// The server's clock goes back, and the quota changes.
#[tokio::test]
async fn a_step_back_and_a_change_of_quota_cost_no_more_than_a_step_back() {
    let redis = std::sync::Mutex::new(Redis::builder(Flavor::Redis).faketime().start());
    let link = patient(&redis.lock().unwrap().url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let at = UNIX_EPOCH + Duration::from_secs(1_800_000_030);
    for algorithm in Algorithm::ALL {
        let store =
            RedisStore::builder(link.clone()).prefix(format!("{algorithm}")).build().unwrap();
        let of = |n| Policy::with_algorithm("p", Quota::per_minute(n), algorithm).unwrap();
        let (old, new) = (of(10), of(20));
        redis.lock().unwrap().stop_time(at);
        assert!(store.acquire(&mut [Demand::new(&old, b"k", 10)]).await.unwrap().is_allowed());
        redis.lock().unwrap().stop_time(at - Duration::from_secs(86_400));
        let refused = store.acquire(&mut [Demand::new(&new, b"k", 20)]).await.unwrap();
        let wait = refused.retry_after(refused.at()).unwrap();
        assert!(wait <= Duration::from_secs(121), "{algorithm}: {wait:?}");
    }
}

/// Claims of two quotas on one key: giving back one of them moves the mark of the other.
#[tokio::test]
async fn a_claim_of_another_quota_is_given_back_whole() {
    let (_redis, link) = start().await;
    let (store, hand) = timed(&link, "claims");
    let policy = Policy::ad_hoc("p");
    let [sevenths, thirds] = ["7/s burst 40", "3/s burst 40"].map(|it| it.parse().unwrap());
    let of = |quota, cost| [Demand::ad_hoc(&policy, b"k", cost, quota).unwrap()];
    let life = Duration::from_secs(60);
    let one = store.reserve(&mut of(sevenths, 1), life).await.unwrap().id.unwrap();
    let two = store.reserve(&mut of(thirds, 2), life).await.unwrap().id.unwrap();
    let _ = store.acquire(&mut of(thirds, 6)).await.unwrap();
    assert!(store.settle(one, &[0]).await.unwrap());
    hand.advance(Duration::from_micros(1));
    assert!(store.settle(two, &[0]).await.unwrap());
    // Six are taken, and the other two are back, regardless of the fraction of a microsecond in
    // their marks.
    assert_eq!(store.peek(&mut of(thirds, 0)).await.unwrap().remaining(), 34);
    assert!(store.acquire(&mut of(thirds, 1)).await.unwrap().is_allowed());
}

/// A day from now, by the server's clock.
fn tomorrow(redis: &Redis) -> u64 {
    let time = redis.time().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(86_400);
    u64::try_from(time.as_micros()).unwrap()
}

/// The server's clock goes back by a day, and a counted process is gone: it must not count for a
/// day.
#[tokio::test]
async fn a_step_back_keeps_nobody_alive() {
    let (redis, link) = start().await;
    let far = tomorrow(&redis).to_string();
    let _ = redis.cli(&["ZADD", "tollgate:{fleet}:f", &far, "ghost"]);
    let settings = HeartbeatSettings::new()
        .interval(Duration::from_millis(50))
        .life(Duration::from_millis(500));
    let (fleet, beat) = FleetSize::counted(link, "f", settings).unwrap();
    assert!(beat.ready(Duration::from_secs(10)).await);
    assert_eq!(fleet.get(), 2);
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    let alone = async {
        while fleet.get() != 1 {
            pause.tick().await;
        }
    };
    let alone = tokio::time::timeout(Duration::from_secs(10), alone).await;
    assert!(alone.is_ok(), "{fleet:?}");
}

/// The same for shares: the share of the process that is gone is free again.
#[tokio::test]
async fn a_step_back_keeps_no_share() {
    let (redis, link) = start().await;
    let mut row = Vec::new();
    let held = 120_000_000.0;
    for number in [held, held, held, tomorrow(&redis) as f64, 1.0, 1.0] {
        row.extend_from_slice(&f64::to_le_bytes(number));
    }
    row.extend_from_slice(&[1, 0, 0]);
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut put = redis::cmd("HSET");
    put.arg("tollgate:{allot:r}").arg("ghost").arg(row).exec(&mut connection).unwrap();
    let resource = Resource::new("r", Rate::per_second(120))
        .lease(Duration::from_millis(500))
        .learning(Duration::ZERO)
        .refresh(Duration::from_millis(100))
        .soonest(Duration::from_millis(10));
    let share = FairShare::join(link, resource, Member::new()).unwrap();
    share.wants(Rate::per_second(100)).unwrap();
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    let granted = async {
        while share.share() != Rate::per_second(100) {
            pause.tick().await;
        }
    };
    let granted = tokio::time::timeout(Duration::from_secs(10), granted).await;
    assert!(granted.is_ok(), "{:?}", share.status());
}

/// A request that waits for permits that another request fetches depends on that request's task.
#[test]
fn a_lease_is_not_fetched_by_a_runtime_that_stands_still() {
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let own = own.unwrap();
    let (_redis, link) = own.block_on(start());
    let (clock, hand) = Clock::manual();
    let store = RedisStore::builder(link).clock(clock).build().unwrap();
    let store = TwoTier::builder(store, FleetSize::fixed(1)).leases(LeaseSettings::new());
    let store = store.build().unwrap();
    let policy = Policy::new("p", Quota::per_second(1000)).unwrap();
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, two) = (single(), single());
    let mut demands = [1, 1, 1].map(|cost| [Demand::new(&policy, b"k", cost)]);
    let [first, second, third] = &mut demands;
    let mut first = Box::pin(store.acquire(first));
    begin(&one, first.as_mut());
    let mut second = Box::pin(store.acquire(second));
    begin(&two, second.as_mut());
    // A request a second later finds that no fetch is making progress, and fetches for the waiters,
    // too.
    hand.advance(Duration::from_millis(1001));
    let both = async { (store.acquire(third).await, second.await) };
    let (third, second) = two.block_on(both);
    assert!(third.unwrap().is_allowed() && second.unwrap().is_allowed());
}

/// A reservation over two slots, one of which cannot be settled: the other one is.
#[tokio::test]
async fn a_slot_that_cannot_be_settled_keeps_no_other() {
    let cluster = Cluster::builder(Flavor::Redis).primaries(3).replicas(0).start();
    let link = patient(&cluster.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::new(link).unwrap();
    let policy = Policy::new("p", Quota::per_hour(10)).unwrap();
    let mut both = [Demand::new(&policy, b"a", 5), Demand::new(&policy, b"b", 5)];
    let id = store.reserve(&mut both, Duration::from_secs(60)).await.unwrap().id.unwrap();
    // The record of the first slot is damaged.
    let slot = slot_of(b"{a}");
    let node = &cluster.nodes()[cluster.owner(slot)];
    let records = node.cli(&["KEYS", "tollgate:r:*"]);
    let own = records.lines().find(|it| {
        slot_of(it.as_bytes()) == slot && node.cli(&["GETRANGE", it, "8", "8"]).starts_with('\u{1}')
    });
    let _ = node.cli(&["SETRANGE", own.unwrap(), "10", "zz"]);
    assert!(store.settle(id, &[0, 0]).await.is_err());
    assert_eq!(store.peek(&mut [Demand::new(&policy, b"b", 0)]).await.unwrap().remaining(), 10);
}
