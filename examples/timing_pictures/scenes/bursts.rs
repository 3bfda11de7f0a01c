//! Bursts: debounce and throttle.

use super::super::drawing::{Kind, Picture, Row};
use super::Log;
use std::{error::Error, time::Duration};
use tollgate::{Debouncer, Driver, Fired, ManualClock, Throttle};

pub(super) fn all() -> Result<Vec<Picture>, Box<dyn Error>> {
    Ok(vec![debounce()?, throttle()?])
}

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Two bursts: the first lasts longer than a caller wants to wait.
pub(super) const TRIGGERS: [u64; 15] =
    [10, 30, 50, 80, 110, 130, 160, 190, 210, 230, 260, 400, 420, 520, 600];

/// Names the n-th trigger.
fn name(number: usize) -> String {
    char::from(b'a' + number as u8).to_string()
}

pub(super) fn inputs(label: &str, triggers: &[u64]) -> Row {
    let marks: Vec<_> =
        triggers.iter().enumerate().map(|(number, at)| (*at, name(number))).collect();
    Row::new(label).marked(Kind::In, &marks)
}

/// Triggers at the given times, and moves the clock to the end.
pub(super) fn play(
    hand: &ManualClock,
    triggers: &[u64],
    length: u64,
    mut trigger: impl FnMut(String),
) {
    for (number, at) in triggers.iter().enumerate() {
        hand.set(tollgate::Tick::from_millis(*at));
        trigger(name(number));
    }
    hand.set(tollgate::Tick::from_millis(length));
}

fn debounce() -> Result<Picture, Box<dyn Error>> {
    let mut rows = vec![inputs("triggers", &TRIGGERS)];
    let edges = ["trailing", "leading", "both edges"];
    for max_wait in [None, Some(120)] {
        for (number, edge) in edges.into_iter().enumerate() {
            let (hand, log) = (ManualClock::new(), Log::default());
            let builder = Debouncer::builder(ms(50)).driver(Driver::manual(&hand));
            let builder = match edge {
                "leading" => builder.leading(),
                "both edges" => builder.both_edges(),
                _ => builder.trailing(),
            };
            let builder = match max_wait {
                Some(most) => builder.max_wait(ms(most)),
                None => builder,
            };
            let (notes, at) = (log.clone(), hand.clone());
            let debouncer =
                builder.start(move |fired: Fired<String>| notes.note(&at, fired.into_value()))?;
            play(&hand, &TRIGGERS, 700, |value| {
                debouncer.trigger(value);
            });
            let label = match max_wait {
                Some(most) => format!("{edge}, max_wait {most}"),
                None => edge.to_owned(),
            };
            let row = Row::new(label).marked(Kind::Run, &log.take());
            rows.push(if number == 0 { row.grouped() } else { row });
        }
    }
    Ok(Picture {
        name: "timing-debounce.svg",
        title: "Debounce: delay 50 ms",
        length: 700,
        grid: 50,
        rows,
    })
}

fn throttle() -> Result<Picture, Box<dyn Error>> {
    let mut rows = vec![inputs("triggers", &TRIGGERS)];
    for (number, edge) in ["both edges", "leading", "trailing"].into_iter().enumerate() {
        let (hand, log) = (ManualClock::new(), Log::default());
        let builder = Throttle::builder(ms(100)).driver(Driver::manual(&hand));
        let builder = match edge {
            "leading" => builder.leading(),
            "trailing" => builder.trailing(),
            _ => builder.both_edges(),
        };
        let (notes, at) = (log.clone(), hand.clone());
        let throttle =
            builder.start(move |fired: Fired<String>| notes.note(&at, fired.into_value()))?;
        play(&hand, &TRIGGERS, 700, |value| {
            throttle.trigger(value);
        });
        let row = Row::new(edge).marked(Kind::Run, &log.take());
        rows.push(if number == 0 { row.grouped() } else { row });
    }
    Ok(Picture {
        name: "timing-throttle.svg",
        title: "Throttle: interval 100 ms",
        length: 700,
        grid: 50,
        rows,
    })
}
