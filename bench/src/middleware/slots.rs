//! The overhead of limits on requests in flight per request, compared with tower's
//! `ConcurrencyLimit`.

use super::{
    added,
    app::{Ask, asking, bare},
};
use crate::{
    harness::{Runner, Subject, progress},
    stats::{median, median_ratio},
    table::{Table, figure},
};
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use std::{error::Error, time::Duration};
use tollgate::{
    Concurrency,
    adaptive::{AdaptiveConcurrency, law::DampedAimd},
};
use tollgate_tower::{AdaptiveLayer, ConcurrencyLayer};
use tower::limit::ConcurrencyLimitLayer;
use tower_layer::Layer;

const ABOUT: &str = "\
Nanoseconds of a request to an axum application with one route, called in process by one thread and \
taken to the end of its body, with a limit on requests in flight around the router. All pass. *added* \
is the difference to the row without a layer in the same round, *of tower* that as a share of what \
tower's `ConcurrencyLimit` adds. tower frees a slot with the head of the response, tollgate with the \
end of its body; the adaptive rows also read the clock twice and give a sample to their law.";

const LIMIT: usize = 1_000;
const ROWS: [&str; 6] = [
    "no layer",
    "tower 0.5, `ConcurrencyLimit`",
    "tollgate, `ConcurrencyLayer`",
    "tollgate, `AdaptiveLayer`, probing gradient",
    "tollgate, `AdaptiveLayer`, damped AIMD, with a queue",
    "tollgate, the same, shedding by load, with the header",
];
/// The row of tower's layer.
const TOWER: usize = 1;

/// Prints the table.
pub(super) fn run(rounds: usize) {
    println!("\n### middleware, requests in flight\n\n{ABOUT}\n");
    let mut values = vec![Vec::new(); ROWS.len()];
    for round in 0..rounds {
        // Each round begins with another row, so that no row always follows the same one.
        for turn in 0..ROWS.len() {
            let row = (turn + round) % ROWS.len();
            progress(&format!("round {}/{rounds}: {}", round + 1, ROWS[row]));
            values[row].push(ns(row));
        }
    }
    progress("");
    let tower = added(&values[TOWER], &values[0]);
    let mut table = Table::new(["", "ns", "added", "of tower"]);
    for (row, name) in ROWS.into_iter().enumerate() {
        let more = added(&values[row], &values[0]);
        let share = median_ratio(&more, &tower).filter(|_| row > TOWER);
        let share = share.map_or_else(|| "-".into(), |share| format!("{share:.2}"));
        let more = if row == 0 { "-".into() } else { figure(median(more)) };
        let ns = figure(median(values[row].iter().copied()));
        table.line(vec![name.into(), ns, more, share]);
    }
    println!("{table}");
}

/// Returns nanoseconds per request.
fn ns(row: usize) -> Option<f64> {
    let subject = Subject::new(move || -> Runner {
        let mut ask = application(row).ok();
        Box::new(move |calls| {
            for _ in 0..calls {
                let request = Request::new(Body::empty());
                let status = ask.as_mut().and_then(|ask| ask(request));
                assert_eq!(status, Some(StatusCode::OK), "all requests pass");
            }
        })
    });
    subject.ns_per_call(1)
}

/// Returns the application behind the layer of a row.
fn application(row: usize) -> Result<Ask, Box<dyn Error>> {
    let damped = || -> Result<_, Box<dyn Error>> {
        let queue = Concurrency::builder(0).max_waiting(100).build()?;
        let law = DampedAimd::builder(Duration::from_millis(200)).build()?;
        let limit = AdaptiveConcurrency::over(queue, law);
        Ok(AdaptiveLayer::builder(limit).max_wait(Duration::from_millis(100)))
    };
    Ok(match row {
        0 => asking(bare()),
        TOWER => asking(ConcurrencyLimitLayer::new(LIMIT).layer(bare())),
        2 => {
            let limit = Concurrency::new(LIMIT as u64)?;
            asking(ConcurrencyLayer::builder(limit).build()?.layer(bare()))
        }
        3 => {
            let layer = AdaptiveLayer::builder(AdaptiveConcurrency::new());
            asking(layer.build()?.layer(bare()))
        }
        4 => asking(damped()?.build()?.layer(bare())),
        _ => {
            let shedding = tollgate_tower::Shedding::load(|| 0.1, 0.9);
            asking(damped()?.shed(shedding).shedding_header().build()?.layer(bare()))
        }
    })
}
