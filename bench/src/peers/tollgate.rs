//! Tollgate's own rows.

use super::{
    DENIED_BURST, FULL_RATE, HAMMERED_BURST, HAMMERED_RATE, PARTLY_BURST, PARTLY_RATE, PARTLY_USED,
};
use crate::{
    grid::{Ask, Case, Row},
    harness::Subject,
};
use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, KeyedBuilder, KeyedLimiter, Limiter, LimiterBuilder, Outcome, Quota, TopKeys,
    observe::{Event, Observer, StripedCounter},
};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns the quota of a case for GCRA.
pub(crate) const fn quota(case: Case) -> Quota {
    match case {
        Case::Full => Quota::per_second(FULL_RATE).burst(FULL_RATE),
        Case::Partly | Case::Half => Quota::per_second(PARTLY_RATE).burst(PARTLY_BURST),
        Case::Denied => Quota::per_hour(1).burst(DENIED_BURST),
        Case::Hammered => Quota::per_second(HAMMERED_RATE).burst(HAMMERED_BURST),
    }
}

/// Builds a GCRA limiter in the state of a case, with the settings of `with`.
pub(crate) fn limiter(case: Case, with: impl Fn(LimiterBuilder) -> LimiterBuilder) -> Limiter {
    let limiter =
        with(Limiter::builder(quota(case))).build().expect("the quotas of the cases make sense");
    match case {
        Case::Partly => assert!(limiter.try_acquire_n(PARTLY_USED).is_allowed()),
        Case::Denied => assert!(limiter.try_acquire_n(DENIED_BURST).is_allowed()),
        Case::Full | Case::Half | Case::Hammered => {}
    }
    limiter
}

/// Returns a clock of its own, whose thread ends with the subject: otherwise it would disturb the
/// others.
pub(crate) fn cached() -> Clock {
    Clock::cached().expect("one more thread can be started")
}

/// A row of [`Limiter::try_acquire`], read as a bool.
pub(crate) fn plain(
    name: &'static str,
    with: impl Fn(LimiterBuilder) -> LimiterBuilder + 'static,
) -> Row {
    let build = move |case| Some(limiter(case, &with));
    Row::handle(name, build, Passes)
}

/// Reads the answer as a bool.
#[derive(Clone, Copy)]
struct Passes;

impl Ask<Limiter> for Passes {
    #[inline(always)]
    fn ask(self, limiter: &Limiter) -> bool {
        limiter.try_acquire().is_allowed()
    }
}

/// Reads more of the answer.
#[derive(Clone, Copy)]
struct Reads<const WHAT: u8>;

const REMAINING: u8 = 0;
const RETRY_AT: u8 = 1;
const KEPT: u8 = 2;

impl<const WHAT: u8> Ask<Limiter> for Reads<WHAT> {
    #[inline(always)]
    fn ask(self, limiter: &Limiter) -> bool {
        let decision = limiter.try_acquire();
        match WHAT {
            KEPT => return black_box(decision).is_allowed(),
            RETRY_AT => {
                black_box(decision.remaining());
                black_box(decision.retry_at());
            }
            _ => {
                black_box(decision.remaining());
            }
        }
        decision.is_allowed()
    }
}

/// The default limiter.
pub(crate) fn default() -> Row {
    plain("tollgate", |builder| builder)
}

/// The limiter on the clock that costs one load.
pub(crate) fn on_cached_clock() -> Row {
    plain("tollgate, cached clock", |builder| builder.clock(cached()))
}

/// The default limiter, with the fields that most callers read of an answer.
pub(crate) fn retry_read() -> Row {
    let build = |case| Some(limiter(case, |builder| builder));
    Row::handle("tollgate, remaining and retry_at read", build, Reads::<RETRY_AT>)
}

/// The rows that show the cost of a rich answer.
pub(crate) fn rich() -> Vec<Row> {
    let build = |case| Some(limiter(case, |builder| builder));
    vec![Row::handle("tollgate, remaining read", build, Reads::<REMAINING>), retry_read(), kept()]
}

/// The default limiter, whose decisions are kept whole.
fn kept() -> Row {
    let build = |case| Some(limiter(case, |builder| builder));
    Row::handle("tollgate, whole decision kept", build, Reads::<KEPT>)
}

/// One reading of the clock for each thousand calls, passed in.
pub(crate) fn given_time() -> Row {
    Row::new("tollgate, time given (1 reading per 1000)", |case| {
        let pair = match case {
            Case::Half => [Case::Partly, Case::Denied],
            case => [case, case],
        };
        let first = limiter(pair[0], |builder| builder);
        let second = match case {
            Case::Half => limiter(pair[1], |builder| builder),
            _ => first.clone(),
        };
        Some(Subject::new(move || {
            let (first, second) = (first.clone(), second.clone());
            Box::new(move |calls| {
                let mut left = calls / 2;
                while left > 0 {
                    let (now, pairs) = (first.now(), left.min(500));
                    for _ in 0..pairs {
                        black_box(black_box(&first).try_acquire_at(now, 1).is_allowed());
                        black_box(black_box(&second).try_acquire_at(now, 1).is_allowed());
                    }
                    left -= pairs;
                }
            })
        }))
    })
}

/// The largest limit for rows that keep an entry per event, and are reset before each batch.
const LOG_LIMIT: u64 = 200_000;

fn windowed(case: Case, algorithm: Algorithm) -> Option<Limiter> {
    let quota = match (case, algorithm) {
        // A window does not refill between two calls.
        (Case::Full | Case::Half, _) => return None,
        (Case::Partly, Algorithm::SlidingLog) => Quota::per(LOG_LIMIT, DAY),
        (Case::Partly, Algorithm::SlidingCounter) => Quota::per(50_000_000, DAY),
        (Case::Partly, _) => Quota::per(PARTLY_BURST, DAY),
        (Case::Denied, _) => Quota::per(DENIED_BURST, DAY),
        (Case::Hammered, _) => Quota::per(HAMMERED_BURST, Duration::from_micros(100)),
    };
    let built = Limiter::builder(quota).algorithm(algorithm).build();
    let limiter = match built {
        Ok(limiter) => limiter,
        Err(error) => {
            eprintln!("\n{algorithm}, {case:?}: {error}");
            return None;
        }
    };
    if case == Case::Denied {
        while limiter.try_acquire().is_allowed() {}
    }
    Some(limiter)
}

fn window(algorithm: Algorithm) -> Row {
    Row::new(format!("tollgate, {algorithm}"), move |case| {
        let limiter = windowed(case, algorithm)?;
        let subject = crate::grid::repeating(limiter.clone(), |limiter: &Limiter| {
            limiter.try_acquire().is_allowed()
        });
        Some(match case {
            Case::Partly => subject.prepared(LOG_LIMIT / 2, move || limiter.reset()),
            _ => subject,
        })
    })
}

/// The other algorithms.
pub(crate) fn windows() -> Vec<Row> {
    Algorithm::ALL.into_iter().skip(1).map(window).collect()
}

/// Batches of permits held by each thread.
pub(crate) fn leased(batch: u64, clock: Option<fn() -> Clock>) -> Row {
    let suffix = if clock.is_some() { ", cached clock" } else { "" };
    Row::new(format!("tollgate, lease of {batch}{suffix}"), move |case| {
        let limiter = limiter(case, |builder| match clock {
            Some(clock) => builder.clock(clock()),
            None => builder,
        });
        Some(Subject::new(move || {
            let mut lease = limiter.lease(batch, Duration::from_millis(10));
            Box::new(move |calls| {
                for _ in 0..calls {
                    black_box(black_box(&mut lease).try_acquire().is_allowed());
                }
            })
        }))
    })
}

/// An observer that ignores all events.
#[derive(Debug)]
struct Listener;

impl Observer for Listener {
    fn decided(&self, event: &Event<'_>) {
        black_box(event.decision.is_allowed());
    }
}

/// The rows that show the cost of observing.
pub(crate) fn observed() -> Vec<Row> {
    vec![
        kept(),
        plain("tollgate, counted", LimiterBuilder::counted),
        plain("tollgate, counted and observed", |builder| builder.observer(Listener)),
    ]
}

/// A keyed limiter, called with one key: plain, counted, and with the names of heavy keys.
pub(crate) fn observed_keys() -> Vec<Row> {
    let row = |name, with: fn(KeyedBuilder<u64>) -> KeyedBuilder<u64>| {
        let build = move |case| {
            let keys = with(KeyedLimiter::builder(quota(case))).build().ok()?;
            if case == Case::Denied {
                assert!(keys.try_acquire_n(&KEY, DENIED_BURST).is_allowed());
            }
            Some(keys)
        };
        Row::shared(name, build, |keys: &KeyedLimiter<u64>| keys.try_acquire(&KEY).is_allowed())
    };
    vec![
        row("keyed", |builder| builder),
        row("keyed, counted", KeyedBuilder::counted),
        row("keyed, top 100 keys", |builder| builder.top_keys(100)),
        row("keyed, counted, top 100 keys", |builder| builder.counted().top_keys(100)),
    ]
}

const KEY: u64 = 7;

/// Counters that threads add to, and the names of heavy keys.
pub(crate) fn counters() -> Vec<Row> {
    vec![
        Row::shared(
            "one atomic",
            |_| Some(AtomicU64::new(0)),
            |count| {
                count.fetch_add(1, Relaxed);
                true
            },
        ),
        Row::shared(
            "StripedCounter",
            |_| Some(StripedCounter::new()),
            |count| {
                count.add(1);
                true
            },
        ),
        Row::shared(
            "TopKeys::record of one key",
            |_| Some(TopKeys::new(100)),
            |top| {
                top.record(&KEY, KEY, Outcome::Allowed, 1);
                true
            },
        ),
    ]
}
