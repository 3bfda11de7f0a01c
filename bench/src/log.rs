//! The cost of a log throttle per line, compared with tracing-throttle and with no throttle.

use crate::{
    Options,
    harness::{Subject, progress},
    stats,
    table::{Table, figure},
};
use std::io;
use tollgate::{Quota, log::LogThrottle};
use tracing::{Dispatch, Level};
use tracing_subscriber::{Layer, filter::LevelFilter, fmt, prelude::*};
use tracing_throttle::{Policy, TracingRateLimitLayer};

/// So large that every line passes.
const PLENTY: u32 = 1_000_000_000;

type Output = Box<dyn Layer<tracing_subscriber::Registry> + Send + Sync>;

/// An output that formats a line and throws it away.
fn output() -> impl Layer<tracing_subscriber::Registry> + Send + Sync {
    fmt::layer().with_ansi(false).with_writer(io::sink)
}

fn ours(quota: Quota, by: Option<&str>) -> Option<Output> {
    let builder = LogThrottle::builder(quota);
    let builder = by.into_iter().fold(builder, |builder, field| builder.by(field));
    Some(builder.build().ok()?.wrap(output()).boxed())
}

fn theirs(burst: f64, per_second: f64) -> Option<Output> {
    let policy = Policy::token_bucket(burst, per_second).ok()?;
    let filter = TracingRateLimitLayer::builder().with_policy(policy).build().ok()?;
    Some(output().with_filter(filter).boxed())
}

/// Logs one line over and over; the field of each differs if `differs`.
fn subject(layer: Option<Output>, differs: Differs) -> Option<Subject> {
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(layer?));
    let subject = Subject::new(move || {
        let dispatch = dispatch.clone();
        let mut next = 0_u64;
        Box::new(move |calls| {
            tracing::dispatcher::with_default(&dispatch, || {
                for _ in 0..calls {
                    if differs == Differs::Yes {
                        next += 1;
                    }
                    tracing::warn!(user = next, "cannot reach {}", "10.0.0.5");
                }
            });
        })
    });
    Some(subject.waiting())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Differs {
    Yes,
    No,
}

/// Prints the table.
pub(crate) fn run(options: &Options) {
    let rounds = options.rounds();
    println!("\n## log: a throttle for each line\n");
    println!(
        "Nanoseconds per `warn!` with one number, as each thread sees them, median of {rounds} rounds. Lines that pass are \
         formatted and thrown away.\n"
    );
    let (all, none) = (Quota::per_second(u64::from(PLENTY)), Quota::once(1));
    let off = output().with_filter(LevelFilter::from_level(Level::ERROR)).boxed();
    let rows = [
        ("switched off by a filter", subject(Some(off), Differs::No)),
        ("passes: no throttle", subject(Some(output().boxed()), Differs::No)),
        ("passes: LogThrottle", subject(ours(all, None), Differs::No)),
        ("passes: tracing-throttle", subject(theirs(PLENTY.into(), PLENTY.into()), Differs::No)),
        ("left out: LogThrottle", subject(ours(none, None), Differs::No)),
        ("left out: LogThrottle by the number", subject(ours(none, Some("user")), Differs::No)),
        ("left out: tracing-throttle", subject(theirs(1.0, 0.001), Differs::No)),
        ("left out: LogThrottle, the number differs", subject(ours(none, None), Differs::Yes)),
        ("passes: tracing-throttle, the number differs", subject(theirs(1.0, 0.001), Differs::Yes)),
    ];
    let mut table = Table::new(["", "1 thread", "2 threads"]);
    for (name, subject) in rows {
        let Some(subject) = subject else { continue };
        progress(&format!("log: {name}"));
        let median = |threads| stats::median((0..rounds).map(|_| subject.ns_per_call(threads)));
        table.line([name.to_owned(), figure(median(1)), figure(median(2))]);
    }
    progress("");
    println!("{table}");
}
