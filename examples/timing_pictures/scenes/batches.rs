//! Batches, and stages in a row.

use super::super::drawing::{Kind, Picture, Row};
use super::{
    Log,
    bursts::{TRIGGERS, inputs, ms, play},
};
use std::error::Error;
use tollgate::{Coalescer, CoalescerBuilder, Debouncer, Driver, Fired, ManualClock};

pub(super) fn all() -> Result<Vec<Picture>, Box<dyn Error>> {
    Ok(vec![coalesce()?, compose()?])
}

type Set = CoalescerBuilder<String, ()>;
type Way = (&'static str, fn(Set) -> Set);

/// Names of settings, and functions that set them.
const WAYS: [Way; 4] = [
    ("window 100", |set| set.window(ms(100))),
    ("quiet 50", |set| set.quiet(ms(50))),
    ("quiet 50, max_wait 120", |set| set.quiet(ms(50)).max_wait(ms(120))),
    ("window 100, max_size 3", |set| set.window(ms(100)).max_size(3)),
];

fn coalesce() -> Result<Picture, Box<dyn Error>> {
    let mut rows = vec![inputs("keys", &TRIGGERS)];
    for (number, (label, set)) in WAYS.into_iter().enumerate() {
        let (hand, log) = (ManualClock::new(), Log::default());
        let (notes, at) = (log.clone(), hand.clone());
        let coalescer = set(Coalescer::set().driver(Driver::manual(&hand)))
            .start(move |batch| notes.note(&at, batch.into_keys().collect::<String>()))?;
        play(&hand, &TRIGGERS, 700, |key| drop(coalescer.try_insert(key)));
        let row = Row::new(label).marked(Kind::Run, &log.take());
        rows.push(if number == 0 { row.grouped() } else { row });
    }
    Ok(Picture {
        name: "timing-coalesce.svg",
        title: "Coalesce: each dot is a batch, with its keys",
        length: 700,
        grid: 50,
        rows,
    })
}

fn compose() -> Result<Picture, Box<dyn Error>> {
    // Short bursts, each of which ends before the interval is over.
    let triggers = [10, 20, 60, 70, 80, 120, 180, 190, 250, 300, 310, 480, 490, 600];
    let mut rows = vec![inputs("triggers", &triggers)];
    let (hand, log) = (ManualClock::new(), Log::default());
    let (notes, at) = (log.clone(), hand.clone());
    let alone = Debouncer::builder(ms(30))
        .driver(Driver::manual(&hand))
        .start(move |fired: Fired<String>| notes.note(&at, fired.into_value()))?;
    play(&hand, &triggers, 700, |value| {
        alone.trigger(value);
    });
    rows.push(Row::new("debounce 30").marked(Kind::Run, &log.take()).grouped());
    let hand = ManualClock::new();
    let (notes, at) = (log.clone(), hand.clone());
    let both = Debouncer::builder(ms(30))
        .at_most_every(ms(150))
        .driver(Driver::manual(&hand))
        .start(move |fired: Fired<String>| notes.note(&at, fired.into_value()))?;
    play(&hand, &triggers, 700, |value| {
        both.trigger(value);
    });
    rows.push(Row::new("then throttle 150").marked(Kind::Run, &log.take()));
    Ok(Picture {
        name: "timing-compose.svg",
        title: "Debounce, then throttle: one run for a burst, and not too often",
        length: 700,
        grid: 50,
        rows,
    })
}
