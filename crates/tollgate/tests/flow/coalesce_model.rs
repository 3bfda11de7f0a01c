//! A coalescer on the manual clock against a slow model: a list of adds with their times.

use proptest::prelude::*;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{Batch, Coalescer, Driver, FlushCause, ManualClock, Tick};

/// When to flush, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Rules {
    window: Option<u64>,
    quiet: Option<u64>,
    max_wait: Option<u64>,
    max_size: usize,
}

/// A batch: when it left, why, its entries, first and last add.
type Flushed = (u64, FlushCause, Vec<(u8, Vec<u32>)>, u64, u64);

/// Walks through every millisecond: batches that are due leave first, then adds come in.
fn model(rules: Rules, adds: &[(u64, u8)], end: u64) -> Vec<Flushed> {
    let mut out = Vec::new();
    let mut open: Vec<(u64, u8, u32)> = Vec::new();
    let leave = |open: &mut Vec<(u64, u8, u32)>, at, cause| {
        let mut entries: Vec<(u8, Vec<u32>)> = Vec::new();
        let (first, last) = (open[0].0, open[open.len() - 1].0);
        for (_, key, number) in open.drain(..) {
            match entries.iter_mut().find(|entry| entry.0 == key) {
                Some(entry) => entry.1.push(number),
                None => entries.push((key, vec![number])),
            }
        }
        (at, cause, entries, first, last)
    };
    let mut adds = adds.iter().zip(0_u32..).peekable();
    for now in 0..=end {
        if let (Some(first), Some(last)) = (open.first(), open.last()) {
            let (first, last) = (first.0, last.0);
            let after = |from: u64, wait: Option<u64>| wait.is_some_and(|wait| now >= from + wait);
            let cause = match () {
                () if after(first, rules.window) => Some(FlushCause::Window),
                () if after(last, rules.quiet) => Some(FlushCause::Quiet),
                () if after(first, rules.max_wait) => Some(FlushCause::MaxWait),
                () => None,
            };
            out.extend(cause.map(|cause| leave(&mut open, now, cause)));
        }
        while let Some((&(_, key), number)) = adds.next_if(|((at, _), _)| *at == now) {
            open.push((now, key, number));
            let mut keys: Vec<u8> = open.iter().map(|add| add.1).collect();
            keys.sort_unstable();
            keys.dedup();
            if rules.window == Some(0) {
                out.push(leave(&mut open, now, FlushCause::Window));
            } else if keys.len() == rules.max_size {
                out.push(leave(&mut open, now, FlushCause::Size));
            }
        }
    }
    if !open.is_empty() {
        out.push(leave(&mut open, end, FlushCause::Finish));
    }
    out
}

fn rules() -> impl Strategy<Value = Rules> {
    let times = prop_oneof![
        Just((None, None, None)),
        (0..50_u64).prop_map(|window| (Some(window), None, None)),
        (1..30_u64).prop_map(|quiet| (None, Some(quiet), None)),
        (1..30_u64, 0..60_u64).prop_map(|(quiet, more)| (None, Some(quiet), Some(quiet + more))),
    ];
    (times, 2..6_usize).prop_map(|((window, quiet, max_wait), max_size)| Rules {
        window,
        quiet,
        max_wait,
        max_size,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn batches_are_those_of_the_model(
        rules in rules(),
        gaps in prop::collection::vec((prop_oneof![Just(0), 0..20_u64, 20..70_u64], 0..7_u8), 0..60),
        tail in 0..100_u64,
    ) {
        let mut at = 0;
        let adds: Vec<(u64, u8)> = gaps
            .into_iter()
            .map(|(gap, key)| {
                at += gap;
                (at, key)
            })
            .collect();
        let end = at + tail;
        let hand = ManualClock::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, clock) = (Arc::clone(&seen), hand.clone());
        let ms = |tick: Tick| tick.as_nanos() / 1_000_000;
        let mut builder = Coalescer::fold(|held: &mut Vec<u32>, new: Vec<u32>| held.extend(new))
            .max_size(rules.max_size)
            .driver(Driver::manual(&hand));
        if let Some(window) = rules.window {
            builder = builder.window(Duration::from_millis(window));
        }
        if let Some(quiet) = rules.quiet {
            builder = builder.quiet(Duration::from_millis(quiet));
        }
        if let Some(max_wait) = rules.max_wait {
            builder = builder.max_wait(Duration::from_millis(max_wait));
        }
        let coalescer = builder
            .start(move |batch: Batch<u8, Vec<u32>>| {
                let (first, last) = (ms(batch.first_at()), ms(batch.last_at()));
                let (now, cause) = (ms(clock.now()), batch.cause());
                log.lock().unwrap().push((now, cause, batch.into_entries(), first, last));
            })
            .unwrap();
        for (&(at, key), number) in adds.iter().zip(0..) {
            hand.set(Tick::from_millis(at));
            coalescer.try_add(key, vec![number]).unwrap();
        }
        hand.set(Tick::from_millis(end));
        drop(coalescer);
        prop_assert_eq!(&*seen.lock().unwrap(), &model(rules, &adds, end));
        prop_assert_eq!(hand.timers(), 0);
    }
}
