//! The cost of a call that depends on the state that a limiter holds: open reservations, and the
//! entries of a sliding log.

use crate::{
    Options,
    harness::{Subject, progress},
    stats,
    table::{Table, figure},
};
use std::{hint::black_box, time::Duration};
use tollgate::{Algorithm, KeyedLimiter, Limiter, Quota, Reservation, Tick};

/// Open reservations of one key.
const OPEN: [u64; 2] = [10, 100_000];
/// Limits of a sliding log.
const LIMITS: [u64; 2] = [10, 1_000_000];
const DAY: Duration = Duration::from_secs(86_400);

/// A row: its name, and the subject at a size.
type Row = (String, Box<dyn Fn(u64) -> Subject>);

/// The limiter of the reservations.
#[derive(Clone)]
enum Host {
    Limiter(Limiter),
    Key(KeyedLimiter<str>),
}

const KEY: &str = "key";

impl Host {
    fn reserve(&self) -> Option<Reservation> {
        let reserved = match self {
            Self::Limiter(limiter) => limiter.reserve(1),
            Self::Key(limiter) => limiter.reserve(KEY, 1),
        };
        reserved.ok()
    }

    fn take_and_refund(&self) -> u64 {
        match self {
            Self::Limiter(limiter) => {
                let _ = black_box(limiter.try_acquire());
                limiter.refund(1)
            }
            Self::Key(limiter) => {
                let _ = black_box(limiter.try_acquire(KEY));
                limiter.refund(KEY, 1)
            }
        }
    }

    fn of(algorithm: Algorithm, is_keyed: bool) -> Option<Self> {
        // Ten reservations last longer than a run.
        let quota = match algorithm {
            Algorithm::Gcra => Quota::per_minute(1).burst(1_000_000),
            _ => Quota::per(1_000_000, DAY),
        };
        if is_keyed {
            KeyedLimiter::builder(quota).algorithm(algorithm).build().ok().map(Self::Key)
        } else {
            Limiter::builder(quota).algorithm(algorithm).build().ok().map(Self::Limiter)
        }
    }
}

/// Replaces one of this many open reservations, selected by the number of the call: one
/// reservation, one cancel.
fn replace(host: &Host, open: u64, which: fn(u64) -> u64) -> Subject {
    let host = host.clone();
    Subject::new(move || {
        let host = host.clone();
        let mut held: Vec<_> = (0..open).filter_map(|_| host.reserve()).collect();
        let mut number = 0;
        Box::new(move |calls| {
            for _ in 0..calls {
                let pick = which(number) % open;
                number += 1;
                if let Some(made) = host.reserve() {
                    let old = std::mem::replace(&mut held[pick as usize], made);
                    black_box(old.cancel());
                }
            }
        })
    })
}

fn cancel_oldest(host: &Host, open: u64) -> Subject {
    replace(host, open, |number| number)
}

fn cancel_any(host: &Host, open: u64) -> Subject {
    // Knuth's multiplicative hash; its upper bits are random enough to select by.
    replace(host, open, |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33)
}

/// Takes one permit and refunds it beside this many open reservations.
fn refund(host: &Host, open: u64) -> Subject {
    let host = host.clone();
    Subject::new(move || {
        let host = host.clone();
        let held: Vec<_> = (0..open).filter_map(|_| host.reserve()).collect();
        Box::new(move |calls| {
            for _ in 0..calls {
                black_box(host.take_and_refund());
            }
            black_box(&held);
        })
    })
}

/// Requests half of the limit from a sliding log that is used up, with one entry for each permit:
/// a denial.
fn denied(limit: u64) -> Option<Subject> {
    let quota = Quota::per(limit, DAY);
    let limiter = Limiter::builder(quota).algorithm(Algorithm::SlidingLog).build().ok()?;
    let now = limiter.now().as_nanos();
    for tick in now..now + limit {
        let _ = black_box(limiter.try_acquire_at(Tick::from_nanos(tick), 1));
    }
    Some(Subject::new(move || {
        let limiter = limiter.clone();
        Box::new(move |calls| {
            for _ in 0..calls {
                let _ = black_box(limiter.try_acquire_n(limit / 2));
            }
        })
    }))
}

fn table(options: &Options, sizes: [u64; 2], rows: &[Row]) {
    let mut figures = vec![[const { Vec::new() }; 2]; rows.len()];
    for round in 0..options.rounds() {
        for ((name, subject), figures) in rows.iter().zip(&mut figures) {
            progress(&format!("round {}: {name}", round + 1));
            for (size, figures) in sizes.iter().zip(figures) {
                figures.push(subject(*size).ns_per_call(1));
            }
        }
    }
    progress("");
    let [small, large] = sizes.map(|size| size.to_string());
    let mut table = Table::new(["", &small, &large, "ratio"]);
    for ((name, _), [small, large]) in rows.iter().zip(&figures) {
        let medians = [small, large].map(|figures| stats::median(figures.iter().copied()));
        let ratio = stats::median_ratio(large, small);
        let cells = [medians[0], medians[1], ratio].map(figure);
        table.line(std::iter::once(name.clone()).chain(cells));
    }
    println!("{table}");
}

/// Prints the tables.
pub(crate) fn run(options: &Options) {
    println!("\n## ledger: a call beside what a limiter remembers\n");
    println!("Nanoseconds per call, 1 thread, with 10 and 100 000 open reservations of one key.\n");
    let mut rows: Vec<Row> = Vec::new();
    for (algorithm, is_keyed) in [
        (Algorithm::Gcra, false),
        (Algorithm::Gcra, true),
        (Algorithm::FixedWindow, true),
        (Algorithm::SlidingLog, true),
    ] {
        let host = if is_keyed { "key" } else { "limiter" };
        let of = move |measure: fn(&Host, u64) -> Subject, open| {
            // Built from scratch each time, so that only the open reservations are held.
            let host = Host::of(algorithm, is_keyed);
            host.map_or_else(|| Subject::new(|| Box::new(|_| {})), |host| measure(&host, open))
        };
        let name = |verb: &str| format!("{verb}, {host}, {algorithm}");
        rows.push((
            name("reserve + cancel the oldest"),
            Box::new(move |open| of(cancel_oldest, open)),
        ));
        rows.push((name("reserve + cancel any"), Box::new(move |open| of(cancel_any, open))));
        rows.push((name("try_acquire + refund"), Box::new(move |open| of(refund, open))));
    }
    table(options, OPEN, &rows);
    println!("Nanoseconds for a denied cost of half the limit, with limits of 10 and a million.\n");
    let nothing = || Subject::new(|| Box::new(|_| {}));
    let rows: [Row; 1] = [(
        "denied, sliding-log".into(),
        Box::new(move |limit| denied(limit).unwrap_or_else(nothing)),
    )];
    table(options, LIMITS, &rows);
}
