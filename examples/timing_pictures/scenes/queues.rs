//! Queues: waiting for a limiter, and the pacer.

use super::super::drawing::{Kind, Picture, Row};
use super::{Log, millis};
use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{Clock, Driver, Limiter, LimiterBuilder, ManualClock, Pacer, Quota, Tick, Wait};

pub(super) fn all() -> Result<Vec<Picture>, Box<dyn Error>> {
    Ok(vec![order()?, large()?, pacer()?])
}

/// A caller of a limiter.
struct Guest {
    name: &'static str,
    comes: u64,
    cost: u64,
    /// The time at which it gives up.
    leaves: Option<u64>,
    patience: Option<u64>,
}

const fn guest(name: &'static str, comes: u64) -> Guest {
    Guest { name, comes, cost: 1, leaves: None, patience: None }
}

/// Plays the callers for `length` milliseconds, and returns a row for each.
fn play(
    builder: LimiterBuilder,
    guests: &[Guest],
    (used, length): (u64, u64),
) -> Result<Vec<Row>, Box<dyn Error>> {
    let (clock, hand) = Clock::manual();
    let limiter = builder.clock(clock).build()?;
    let _used = limiter.try_acquire_n(used);
    let mut waits: Vec<Option<Pin<Box<Wait>>>> = guests.iter().map(|_| None).collect();
    let mut rows: Vec<_> = guests.iter().map(|guest| Row::new(guest.name)).collect();
    for now in 0..length {
        for ((guest, wait), row) in guests.iter().zip(&mut waits).zip(&mut rows) {
            let mark = |row: &mut Row, kind, text: &str| {
                let marked = std::mem::replace(row, Row::new(guest.name));
                *row = marked.spanned(guest.comes, now).marked(kind, &[(now, text)]);
            };
            if guest.comes == now {
                let asked = limiter.acquire_n(guest.cost);
                let asked = match guest.patience {
                    Some(most) => asked.within(Duration::from_millis(most)),
                    None => asked,
                };
                *wait = Some(Box::pin(asked));
                mark(row, Kind::In, "");
            }
            if guest.leaves == Some(now) && wait.take().is_some() {
                mark(row, Kind::Bad, "leaves");
            }
            let Some(pending) = wait else { continue };
            match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => {}
                Poll::Ready(Ok(_)) => {
                    mark(row, Kind::Run, &now.to_string());
                    *wait = None;
                }
                Poll::Ready(Err(_)) => {
                    mark(row, Kind::Bad, "refused");
                    *wait = None;
                }
            }
        }
        hand.advance(Duration::from_millis(1));
    }
    debug_assert_eq!(millis(&hand), length);
    Ok(rows)
}

fn titled(mut rows: Vec<Row>, title: &str) -> Vec<Row> {
    if let Some(first) = rows.first_mut() {
        first.label = format!("{title}  {}", first.label);
        first.is_first_of_group = true;
    }
    rows
}

/// First come, first served; and the newest first.
fn order() -> Result<Picture, Box<dyn Error>> {
    let quota = Quota::per_second(50).burst(1);
    let guests = [
        guest("a", 0),
        guest("b", 5),
        Guest { leaves: Some(32), ..guest("c leaves", 10) },
        guest("d", 15),
        Guest { patience: Some(40), ..guest("e has 40 ms", 20) },
        guest("f", 50),
    ];
    let fair = play(Limiter::builder(quota), &guests, (1, 160))?;
    let newest = play(Limiter::builder(quota).newest_first(), &guests, (1, 160))?;
    let rows = [titled(fair, "oldest first"), titled(newest, "newest first")];
    Ok(Picture {
        name: "timing-waiting.svg",
        title: "Six wait for one permit each: 50 per second, burst 1",
        length: 160,
        grid: 20,
        rows: rows.into_iter().flatten().collect(),
    })
}

/// A large request among small ones.
fn large() -> Result<Picture, Box<dyn Error>> {
    let quota = Quota::per_second(100).burst(10);
    let guests = [
        guest("cost 1", 0),
        Guest { cost: 8, ..guest("cost 8", 5) },
        guest("cost 1", 10),
        guest("cost 1", 20),
        Guest { cost: 3, ..guest("cost 3", 25) },
    ];
    Ok(Picture {
        name: "timing-large.svg",
        title: "A large request is not starved: 100 per second, burst 10, empty at first",
        length: 160,
        grid: 10,
        rows: play(Limiter::builder(quota), &guests, (10, 160))?,
    })
}

/// Bursts come in, and leave at an even pace.
fn pacer() -> Result<Picture, Box<dyn Error>> {
    let first = [5, 13, 21, 29, 37];
    let second = (110..220).step_by(8);
    let arrivals = first.into_iter().chain(second).chain([390, 400]);
    let (hand, log) = (ManualClock::new(), Log::default());
    let quota = Quota::per_second(50);
    let pacer = Pacer::builder(quota).capacity(6).driver(Driver::manual(&hand)).start()?;
    let (mut inputs, mut refused) = (Vec::new(), Vec::new());
    for (number, at) in arrivals.enumerate() {
        hand.set(Tick::from_millis(at));
        let name = char::from(b'a' + number as u8).to_string();
        inputs.push((at, name.clone()));
        let (notes, clock, job) = (log.clone(), hand.clone(), name.clone());
        if pacer.run(move || notes.note(&clock, job)).is_err() {
            refused.push((at, name));
        }
    }
    hand.set(Tick::from_millis(480));
    Ok(Picture {
        name: "timing-pacer.svg",
        title: "A pacer: 50 per second, at most 6 queued",
        length: 480,
        grid: 20,
        rows: vec![
            Row::new("arrive").marked(Kind::In, &inputs),
            Row::new("refused: queue full").marked(Kind::Bad, &refused),
            Row::new("run").marked(Kind::Run, &log.take()),
        ],
    })
}
