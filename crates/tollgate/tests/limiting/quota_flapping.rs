//! Quotas that change again and again: no key gets more than the stated bound by it, and none is
//! refused for longer than stated.
#![cfg(feature = "testing")]

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Assigned, Clock, KeyedLimiter, ManualClock, Quota, Reservation, Tick,
    store::{Demand, MemoryStore, Policy, Store},
    testing::block_on,
};

/// The way in which the quota of a key changes.
#[derive(Clone, Copy, Debug)]
enum By {
    Quota,
    Bounded,
    Override,
    Tier,
    /// A policy of the same name, made at the change.
    Policy,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Take(u64),
    Refund(u64),
    Reserve(u64),
    Cancel,
    Change(usize),
    /// Thousandths of the time that the quota in force takes to refill.
    Wait(u64),
}

/// A key whose quota changes.
struct Subject {
    by: By,
    limiter: KeyedLimiter<str>,
    store: MemoryStore,
    policy: Policy,
    open: Vec<Reservation>,
}

impl Subject {
    fn new(by: By, quota: Quota, clock: &Clock) -> Self {
        let builder = KeyedLimiter::<str>::builder(quota).clock(clock.clone()).tier("t", quota);
        let builder = match by {
            By::Bounded => builder.bounded(100),
            By::Tier => builder.quota_by(Duration::from_secs(1), |_| Assigned::Tier("t".into())),
            _ => builder,
        };
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let policy = Policy::new("p", quota).unwrap();
        Self { by, limiter: builder.build().unwrap(), store, policy, open: Vec::new() }
    }

    fn change(&mut self, quota: Quota) {
        match self.by {
            By::Quota | By::Bounded => self.limiter.set_quota(quota).unwrap(),
            By::Override => self.limiter.override_quota("k", quota, None).unwrap(),
            By::Tier => self.limiter.set_tier("t", quota).unwrap(),
            By::Policy => {
                self.policy = Policy::new("p", quota).unwrap();
                self.store.declare(std::slice::from_ref(&self.policy)).unwrap();
            }
        }
    }

    fn take(&self, cost: u64) -> bool {
        match self.by {
            By::Policy => {
                self.store.acquire_one_now(&self.policy, b"k", cost).unwrap().is_allowed()
            }
            _ => self.limiter.try_acquire_n("k", cost).is_allowed(),
        }
    }

    fn refund(&self, cost: u64) -> u64 {
        match self.by {
            By::Policy => {
                block_on(self.store.refund(&Demand::new(&self.policy, b"k", cost))).unwrap()
            }
            _ => self.limiter.refund("k", cost),
        }
    }

    /// Returns how long a cost takes to be free.
    fn wait(&self, now: Tick, cost: u64) -> Duration {
        let decision = match self.by {
            By::Policy => {
                block_on(self.store.peek(&mut [Demand::new(&self.policy, b"k", cost)])).unwrap()
            }
            _ => self.limiter.peek_n("k", cost),
        };
        decision.retry_after(now).unwrap_or_default()
    }
}

fn refill(quota: Quota) -> Duration {
    Duration::from_nanos(
        (u128::from(quota.capacity()) * quota.period().as_nanos()).div_ceil(quota.count().into())
            as u64,
    )
}

fn actions() -> impl Strategy<Value = Vec<Do>> {
    prop::collection::vec(
        prop_oneof![
            4 => (1_u64..1200).prop_map(Do::Take),
            1 => (1_u64..50).prop_map(Do::Refund),
            1 => (1_u64..50).prop_map(Do::Reserve),
            1 => Just(Do::Cancel),
            3 => (0_usize..6).prop_map(Do::Change),
            2 => (0_u64..400).prop_map(Do::Wait),
        ],
        1..60,
    )
}

fn any_way() -> impl Strategy<Value = By> {
    prop_oneof![
        Just(By::Quota),
        Just(By::Bounded),
        Just(By::Override),
        Just(By::Tier),
        Just(By::Policy)
    ]
}

/// The state after an action.
struct After<'a> {
    subject: &'a Subject,
    hand: &'a ManualClock,
    now: Tick,
    quota: Quota,
    since: Tick,
    changes: u64,
    /// The admitted permits, less those that were given back.
    net: i64,
}

/// Runs the actions, and calls `check` after each.
fn run(
    by: By,
    quotas: &[Quota],
    actions: &[Do],
    mut check: impl FnMut(After<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (clock, hand): (Clock, ManualClock) = Clock::manual();
    hand.advance(Duration::from_secs(86_400));
    let (mut quota, mut since, mut changes) = (quotas[0], hand.now(), 0);
    let mut subject = Subject::new(by, quota, &clock);
    for action in actions {
        let mut net = 0;
        match *action {
            Do::Take(cost) => {
                let cost = cost.min(quota.capacity());
                net = if subject.take(cost) { cost as i64 } else { 0 };
            }
            Do::Refund(cost) => net = -(subject.refund(cost) as i64),
            Do::Reserve(cost) if !matches!(by, By::Policy) => {
                if let Ok(open) =
                    subject.limiter.reserve_within("k", cost.min(quota.capacity()), Duration::ZERO)
                {
                    net = cost.min(quota.capacity()) as i64;
                    subject.open.push(open);
                }
            }
            Do::Cancel => {
                if let Some(open) = subject.open.pop() {
                    // It counts whole permits, and gives back a part of one more.
                    net = -1 - open.cancel() as i64;
                }
            }
            Do::Change(number) => {
                (quota, since) = (quotas[number % quotas.len()], hand.now());
                subject.change(quota);
                changes += 1;
            }
            Do::Wait(part) => hand.advance(refill(quota) / 1000 * part as u32),
            Do::Reserve(_) => {}
        }
        check(After {
            subject: &subject,
            hand: &hand,
            now: hand.now(),
            quota,
            since,
            changes,
            net,
        })?;
    }
    Ok(())
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

proptest! {
    /// No debt is booked here, so a key waits for the refill time of its quota, or up to a quarter
    /// longer after a change.
    #[test]
    fn nobody_is_stuck_by_an_older_quota(by in any_way(), actions in actions()) {
        let quotas = ["1000/day", "1000/min", "1/h", "10/s", "60/h burst 60", "60/h burst 58"].map(quota);
        run(by, &quotas, &actions, |After { subject, now, quota, since, .. }| {
            let most = (refill(quota) * 5 / 4).max(refill(quota) + refill(quota.burst(1)));
            let longest = most.saturating_sub(now.since(since)).max(refill(quota));
            let wait = subject.wait(now, 1);
            prop_assert!(wait <= longest, "{wait:?} under {quota}, at most {longest:?}");
            Ok(())
        })?;
    }

    /// A call that is repeated when its wait is over passes, and not a nanosecond before.
    #[test]
    fn a_named_wait_is_exact(by in any_way(), actions in actions(), part in 1_u64..=1000) {
        let quotas = ["10 per 19s", "1/s", "10/s burst 13", "9/s burst 10", "1/h", "1000/day"].map(quota);
        let mut left = actions.len();
        run(by, &quotas, &actions, |After { subject, hand, quota, .. }| {
            left -= 1;
            let cost = (quota.capacity() * part / 1000).max(1);
            let wait = subject.wait(hand.now(), cost);
            if left > 0 || wait.is_zero() {
                return Ok(());
            }
            hand.advance(wait - Duration::from_nanos(1));
            prop_assert_eq!(subject.wait(hand.now(), cost), Duration::from_nanos(1));
            hand.advance(Duration::from_nanos(1));
            prop_assert!(subject.take(cost), "{} of {}", cost, quota);
            Ok(())
        })?;
    }

    /// If quotas have equal burst / rate, each permit is worth the same share of its quota, and
    /// shares are bounded as by one quota.
    #[test]
    fn equal_bursts_in_time_gain_nothing(by in any_way(), actions in actions()) {
        let quotas = ["10/min", "100/min", "1000/min", "6/min", "30/min", "1/min"].map(quota);
        let (mut level, mut last) = (0.0_f64, None);
        run(by, &quotas, &actions, |After { now, quota, net, .. }| {
            let passed = last.replace(now).map_or(0.0, |last| now.since(last).as_secs_f64() / 60.0);
            level = (level - passed).max(0.0) + net as f64 / quota.capacity() as f64;
            prop_assert!(level <= 1.0 + 1e-6 , "{level}");
            Ok(())
        })?;
    }

    /// With any quotas, a change frees at most a burst of the new one.
    #[test]
    fn a_change_frees_one_burst_at_most(by in any_way(), actions in actions()) {
        let quotas = ["1000/day", "1000/min", "1/h", "10/s", "97/s burst 13", "3/s burst 100"].map(quota);
        let (mut level, mut of) = (0.0_f64, None);
        let mut last = None;
        run(by, &quotas, &actions, |After { now, quota, changes, net, .. }| {
            if of.replace(changes) != Some(changes) {
                level = 0.0;
            }
            let rate = quota.count() as f64 / quota.period().as_secs_f64();
            let passed = last.replace(now).map_or(0.0, |last: Tick| now.since(last).as_secs_f64());
            level = (level - passed * rate).max(0.0) + net as f64;
            prop_assert!(level <= quota.capacity() as f64 + 1e-6, "{level} of {quota}");
            Ok(())
        })?;
    }
}

/// A refund under a new quota does not turn the rest of an older quota's use into a debt.
#[test]
fn what_an_older_quota_left_does_not_become_a_debt_by_a_refund() {
    let (clock, hand) = Clock::manual();
    hand.advance(Duration::from_secs(86_400));
    let limiter = KeyedLimiter::<str>::builder(quota("60/h")).clock(clock).build().unwrap();
    assert!(limiter.try_acquire_n("k", 60).is_allowed());
    limiter.set_quota(quota("60/h burst 58")).unwrap();
    assert_eq!(limiter.refund("k", 1), 1);
    limiter.set_quota(quota("10/s")).unwrap();
    let wait = limiter.peek_n("k", 1).retry_after(hand.now()).unwrap();
    assert!(wait <= Duration::from_millis(100), "{wait:?}");
}

/// A debt stays, even if so much of it is paid that the rest could be the use of a longer quota.
#[test]
fn a_debt_that_is_paid_in_part_outlives_a_change_of_quota() {
    let (clock, hand) = Clock::manual();
    hand.advance(Duration::from_secs(86_400));
    let limiter = KeyedLimiter::<str>::builder(quota("10/h")).clock(clock).build().unwrap();
    let _ = limiter.penalize("k", 20);
    hand.advance(Duration::from_secs(4000));
    limiter.set_quota(quota("10/s")).unwrap();
    let wait = limiter.peek_n("k", 10).retry_after(hand.now()).unwrap();
    assert_eq!(wait, Duration::from_secs(7200 - 4000));
}

/// If a longer quota books permits after a shorter one has come into force, they do not count as
/// older use.
#[test]
fn what_is_booked_later_by_a_longer_quota_is_not_shortened() {
    let (clock, hand) = Clock::manual();
    hand.advance(Duration::from_secs(86_400));
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let [long, short] = ["1000/day", "1000/min"].map(|it| Policy::new("p", quota(it)).unwrap());
    store.declare([&long, &short]).unwrap();
    hand.advance(Duration::from_secs(2 * 86_400));
    assert!(store.acquire_one_now(&long, b"k", 500).unwrap().is_allowed());
    let denied = store.acquire_one_now(&short, b"k", 1).unwrap();
    let free = Duration::from_secs(86_400 / 2) - Duration::from_millis(60 * 999);
    assert_eq!(denied.retry_after(hand.now()), Some(free));
}
