//! Runs one bad day from start to end, and checks the results.

use super::{
    day::Day,
    fleet::{FAILURES, Fleet, KEY, LIMIT, Seat, Tally, pause, says_one},
};
use std::{sync::Arc, time::Duration};
use tokio::task::spawn_blocking;
use tollgate::{
    Clock, Decision,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{Bound, FailurePolicy, Link, RedisStore};

/// Calls of each seat before the break and again during the break; and calls after it.
pub(crate) const CALLS_BEFORE: u64 = 20;
pub(crate) const CALLS_DOWN: u64 = 300;

/// The results of a day.
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) degrades: bool,
    /// The errors of the store at first, with open breakers, and later.
    pub(crate) errors: Vec<String>,
    /// The duration of decisions until the breakers were open, and from then on.
    pub(crate) noticing: Vec<Duration>,
    pub(crate) down: Vec<Duration>,
    /// The time from the end of the repair until the store decides again.
    pub(crate) recovered: Duration,
    pub(crate) rows: [Row; 3],
}

/// The results of a day for one failure policy.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) failure: FailurePolicy,
    pub(crate) tally: Tally,
    pub(crate) bound: Bound,
    /// Calls of unknown outcome up to recovery, and in total.
    pub(crate) unknown: u64,
    pub(crate) unknown_in_all: u64,
    pub(crate) carried: u64,
    pub(crate) dropped: u64,
    /// The permits booked in the store after recovery.
    pub(crate) spent: u64,
    /// The permits of the tally that the store had admitted by then.
    pub(crate) by_store_then: u64,
    /// The permits admitted without the store by then.
    pub(crate) degraded_then: u64,
}

/// Runs a bad day.
pub(crate) async fn run(day: Day) -> Report {
    let clock = Clock::monotonic();
    let mut fleet = Fleet::open(&day);
    if day.begins_well {
        fleet.until_well().await;
        fleet.calls(CALLS_BEFORE, |_| false).await;
    }
    let began = clock.now();
    let breaking = spawn_blocking({
        let breaks = Arc::clone(&day.breaks);
        move || breaks()
    });
    // Calls are under way when it breaks.
    let (mut errors, mut noticing) = (Vec::new(), fleet.calls(CALLS_BEFORE, |_| false).await);
    breaking.await.unwrap();
    if day.degrades {
        errors.push(fleet.error(&[""]).await);
        noticing.extend(fleet.until_noticed().await);
        errors.push(fleet.error(&[""]).await);
    }
    let down = fleet.calls(CALLS_DOWN, |_| false).await;
    // Times only the decisions without the store.
    let timed = down.into_iter().filter(|call| call.is_degraded == day.degrades);
    let mut down: Vec<_> = timed.map(|call| call.took).collect();
    down.sort_unstable();
    if day.degrades {
        // In the end the errors show the actual cause, not only a lost connection.
        let is_said = errors.iter().any(|error| says_one(error, day.says));
        errors.push(fleet.error(if is_said { &[""] } else { day.says }).await);
    }
    let mending = spawn_blocking({
        let mends = Arc::clone(&day.mends);
        move || mends()
    });
    while !mending.is_finished() {
        fleet.calls(1, |_| false).await;
        pause(20).await;
    }
    mending.await.unwrap();
    let mended = clock.now();
    fleet.until_well().await;
    let recovered = clock.now().since(mended);
    fleet.until_carried().await;
    let mut rows = rows(&day, &fleet).await;
    // Uses up the remaining permits.
    fleet.calls(2 * LIMIT, |decision| decision.is_denied() && !decision.is_degraded()).await;
    fleet.until_carried().await;
    for (number, row) in rows.iter_mut().enumerate() {
        row.tally = fleet.tallies[number];
        row.unknown_in_all = fleet.sum(number, |seat| seat.guard.status().unknown_outcomes);
        check(&day, row, clock.now().since(began));
        let doubtful = |seat: &Seat| {
            let status = seat.guard.status();
            status.unknown_outcomes + status.carried_back + LIMIT * status.dropped_spend
        };
        let doubtful = fleet.sum(number, doubtful);
        if row.tally.refused_by_store > 0 {
            assert!(row.tally.admitted_by_store + doubtful >= LIMIT, "{}: lost: {row:?}", day.name);
        }
    }
    assert!(errors.iter().all(|error| error.is_transient() && !error.is_full()), "{errors:?}");
    let texts: Vec<_> = errors.iter().map(|error| without_addresses(error)).collect();
    let report = Report {
        name: day.name,
        degrades: day.degrades,
        errors: texts,
        noticing: noticing.into_iter().map(|call| call.took).collect(),
        down,
        recovered,
        rows,
    };
    report.check_times(&day);
    report
}

async fn rows(day: &Day, fleet: &Fleet) -> [Row; 3] {
    let long = Duration::from_secs(60);
    let link = Link::open(day.reads.clone().deadline(long).connect_timeout(long)).unwrap();
    let store = RedisStore::new(link).unwrap();
    let mut rows = Vec::new();
    for (number, failure) in FAILURES.into_iter().enumerate() {
        let seat = &fleet.seats[number];
        let left = store.peek(&mut [Demand::new(&seat.policy, KEY, 0)]).await.unwrap();
        let tally = fleet.tallies[number];
        rows.push(Row {
            failure,
            tally,
            bound: seat.guard.bound(&seat.policy).unwrap(),
            unknown: fleet.sum(number, |seat| seat.guard.status().unknown_outcomes),
            unknown_in_all: 0,
            carried: fleet.sum(number, |seat| seat.guard.status().carried_back),
            dropped: fleet.sum(number, |seat| seat.guard.status().dropped_spend),
            spent: spent(&left, &seat.policy),
            by_store_then: tally.admitted_by_store,
            degraded_then: tally.admitted_degraded,
        });
    }
    rows.try_into().expect("a row for each failure policy")
}

/// Returns the booked permits, including a debt: the number that must refill until all are back.
fn spent(decision: &Decision, policy: &Policy) -> u64 {
    let each = policy.quota().period().as_nanos() / u128::from(LIMIT);
    let wait = decision.reset_after(decision.at()).unwrap_or_default().as_nanos();
    u64::try_from(wait.div_ceil(each)).unwrap()
}

/// Checks the admitted and booked permits.
fn check(day: &Day, row: &Row, lasted: Duration) {
    let Row { failure, tally, bound, unknown, carried, dropped, spent, .. } = row;
    let (by_store_then, degraded_then) = (row.by_store_then, row.degraded_then);
    let say = format!("{}: {row:?}", day.name);
    // The store: every admission that it reported is booked, and every unknown one was booked at
    // most once.
    if day.keeps_state {
        assert!(*spent >= by_store_then + carried, "booked: {say}");
        assert!(tally.admitted_by_store <= LIMIT, "the store kept its limit: {say}");
    } else {
        assert!(tally.admitted_by_store <= 2 * LIMIT, "the limit anew, once: {say}");
    }
    assert!(*spent <= by_store_then + degraded_then + unknown, "at most once: {say}");
    if *dropped == 0 {
        assert!(*spent <= by_store_then + carried + unknown, "at most once: {say}");
    }
    // The failure policy: the calls that pass without the store.
    match failure {
        FailurePolicy::Open => assert_eq!(tally.refused_degraded, 0, "all passes: {say}"),
        FailurePolicy::Closed => assert_eq!(tally.admitted_degraded, 0, "nothing passes: {say}"),
        _ => {
            assert!(*carried <= degraded_then, "no more than was admitted: {say}");
            if *dropped == 0 {
                assert!(carried + unknown >= degraded_then, "all comes back: {say}");
            }
        }
    }
    if !day.degrades {
        assert_eq!(tally.admitted_degraded + tally.refused_degraded, 0, "not noticed: {say}");
    } else if *failure == FailurePolicy::Local {
        // A booking whose reply came too late on a busy machine is not repeated.
        assert!(*carried + *dropped > 0, "some comes back: {say}");
        assert!(tally.refused_degraded > 0, "a share and no more: {say}");
    }
    // The documented bound.
    if let (Some(per_window), Some(once)) = (bound.while_down_per_window, bound.while_down_once) {
        let year = Duration::from_secs(366 * 86_400).as_secs_f64();
        let refilled = (per_window as f64 * lasted.as_secs_f64() / year).ceil() as u64;
        assert!(tally.admitted_degraded <= once + refilled, "while down: {say}");
        assert!(tally.admitted() <= 2 * LIMIT + once + refilled, "in all: {say}");
    }
}

impl Report {
    /// Generous, because the machine may be busy.
    fn check_times(&self, day: &Day) {
        if self.degrades {
            let [half, most] = [50, 90].map(|percent| percentile(&self.down, percent));
            let deadline = day.settings.deadline;
            assert!(half < deadline / 2, "{}: {half:?} in the middle", self.name);
            assert!(most < deadline, "{}: {most:?} of nine in ten", self.name);
        }
    }
}

pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or_default()
}

/// Returns the text of an error, without the parts that differ from run to run.
fn without_addresses(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let mut parts = text.split("127.0.0.1:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "server" + part.trim_start_matches(|it: char| it.is_ascii_digit())
    })
}
