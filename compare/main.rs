//! Two trees of Tollgate side by side: the same random traces, and the same answers.
//!
//! `compare/run` builds and starts it.

mod trace;

mod new {
    use tollgate as subject;
    include!("side.rs");
}

mod old {
    use old_tollgate as subject;
    include!("side.rs");
}

use std::{collections::BTreeMap, process::ExitCode};
use trace::{Call, Host, Kind, Random, Seen, Trace};

/// A difference that is meant: why, and whether it is this one. A trace ends at such a difference, because
/// the states differ from there on.
type Meant = (&'static str, fn(&Difference) -> bool);

/// Every difference that is meant.
const MEANT: &[Meant] = &[
    ("burst and debt together refill within 4.5 years, also by an uneven quota", |found| {
        let is_far = |seen: &Seen| match seen {
            Seen::Decision { at, full_at: Some(full_at), .. } => full_at - at > 1 << 56,
            // Beyond the last time that a clock can show.
            Seen::Decision { outcome, full_at: None, .. } => *outcome == "allowed",
            Seen::Refused(error) => error.contains("takes more than 4.5 years to refill"),
            _ => false,
        };
        // A store does not say what it owes after a settlement or a change of quota.
        let slow = found.trace.quotas.iter().any(|quota| quota.contains("1day"));
        let is_huge = |(_, call): &(u64, Call)| match call {
            Call::Settle(_, cost) => cost >> 30 > 0,
            Call::Change { .. } => slow,
            _ => false,
        };
        found.old.iter().chain(&found.new).any(is_far) || found.trace.calls.iter().any(is_huge)
    }),
    ("a budget that never refills counts whole permits, and its debt may exceed it", |found| {
        found.trace.quotas.iter().any(|quota| quota.starts_with("0 per"))
    }),
    ("a change of quota multiplies the tick by which the trees round differently", |found| {
        let before = &found.trace.calls[..found.index];
        let is_change = |(_, call): &(u64, Call)| matches!(call, Call::Change { .. });
        before.iter().any(is_change) && within((10_000_000_000, 1), &found.old, &found.new)
    }),
    (
        "a window that a refund or a change of quota has emptied is forgotten, also by a clock that goes back",
        |found| {
            let goes_back = |pair: &[(u64, Call)]| pair[1].0 < pair[0].0;
            matches!(found.trace.host, Host::Limiter(1 | 3))
                && found.trace.calls.windows(2).any(goes_back)
        },
    ),
    ("a sliding window carries what was booked beyond its limit", |found| {
        let is_sliding = match &found.trace.host {
            Host::Limiter(algorithm) | Host::Keyed(algorithm) => *algorithm >= 3,
            Host::Store(kinds) => {
                kinds.iter().any(|kind| matches!(kind, Kind::Plain(algorithm) if *algorithm >= 3))
            }
        };
        let books = |(_, call): &(u64, Call)| {
            matches!(call, Call::Force(_) | Call::Settle(..) | Call::Change { .. })
        };
        is_sliding && found.trace.calls.iter().any(books)
    }),
    ("a refund counts a permit that has refilled in part", |found| {
        let is_refund = matches!(found.trace.calls.last(), Some((_, Call::Refund(_))));
        let counts_more = |(old, new): (&Seen, &Seen)| match (old, new) {
            (Seen::Number(old), Seen::Number(new)) => (*old..=old + 1).contains(new),
            (old, new) => old == new,
        };
        is_refund && found.old.iter().zip(&found.new).all(counts_more)
    }),
    ("a part of a permit that is given back is not rounded", |found| {
        let gives_back =
            |(_, call): &(u64, Call)| matches!(call, Call::Cancel(_) | Call::Settle(..));
        found.trace.calls.iter().any(gives_back) && within((1, 0), &found.old, &found.new)
    }),
    ("what is exactly one window old is outside a sliding counter, a tick earlier", |found| {
        let is_counter = match &found.trace.host {
            Host::Limiter(algorithm) | Host::Keyed(algorithm) => *algorithm == 3,
            Host::Store(kinds) => kinds.iter().any(|kind| matches!(kind, Kind::Plain(3))),
        };
        is_counter && within((1, 1), &found.old, &found.new)
    }),
    (
        "a reservation of nothing leaves an idle limiter as it is, so an earlier call passes",
        |found| {
            let is_of_nothing = |(_, call): &(u64, Call)| match call {
                Call::Reserve(targets, _) => targets.iter().any(|target| target.cost == 0),
                _ => false,
            };
            let mut without = found.trace.clone();
            without.calls.retain(|call| !is_of_nothing(call));
            without.calls.len() < found.trace.calls.len()
                && play(&without, &mut BTreeMap::new()).is_none()
        },
    ),
    ("a sliding log forgets nothing that was reserved at the origin of the clock", |found| {
        let mut later = found.trace.clone();
        // The same a nanosecond after the origin, and at the same wall time.
        later.epoch_ns = later.epoch_ns.saturating_sub(1);
        later.calls.iter_mut().for_each(|(at, _)| *at += 1);
        let is_at_origin = (found.trace.calls.iter())
            .any(|(at, call)| *at == 0 && matches!(call, Call::Reserve(..)));
        is_at_origin && has_log(&found.trace.host) && play(&later, &mut BTreeMap::new()).is_none()
    }),
    ("other counts fit a word", |found| {
        let is_debt = |seen: &Seen| match seen {
            Seen::Refused(error) => ["does not fit the slots", "the maximum for this running"]
                .iter()
                .any(|text| error.contains(text)),
            Seen::Decision { outcome, .. } => *outcome == "never",
            _ => false,
        };
        let last = found.trace.calls.last().map(|(_, call)| call);
        let may_fit = matches!(last, Some(Call::Force(_) | Call::Settle(..) | Call::Change { .. }));
        may_fit && found.old.iter().any(is_debt) != found.new.iter().any(is_debt)
    }),
    (
        "limits that come with a call share a state, and a reservation by one outlasts calls by others",
        |found| {
            let Host::Store(kinds) = &found.trace.host else { return false };
            let ends = |(_, call): &(u64, Call)| matches!(call, Call::Cancel(_) | Call::Settle(..));
            kinds.iter().any(|kind| matches!(kind, Kind::AdHoc))
                && (within((100, 1), &found.old, &found.new) || found.trace.calls.iter().any(ends))
        },
    ),
];

fn has_log(host: &Host) -> bool {
    match host {
        Host::Limiter(algorithm) | Host::Keyed(algorithm) => *algorithm == 4,
        Host::Store(kinds) => kinds.iter().any(|kind| matches!(kind, Kind::Plain(4))),
    }
}

/// The first call of a trace that the two trees answer differently.
struct Difference {
    trace: Trace,
    /// The number of the call; it is the last one of the trace.
    index: usize,
    old: Vec<Seen>,
    new: Vec<Seen>,
}

impl Difference {
    fn meant(&self) -> Option<&'static str> {
        MEANT.iter().find(|(_, is_this)| is_this(self)).map(|(reason, _)| *reason)
    }

    fn print(&self) {
        let Self { trace, index, old, new } = self;
        println!(
            "the trees differ at the last call of\n  {:?}, epoch {} ns",
            trace.host, trace.epoch_ns
        );
        for (number, quota) in trace.quotas.iter().enumerate() {
            println!("  quota {number}: {quota}");
        }
        for (at, call) in trace.calls.iter().take(index + 1) {
            println!("  at {at} ns: {call:?}");
        }
        old.iter()
            .zip(new)
            .filter(|(old, new)| old != new)
            .for_each(|(old, new)| println!("old: {old:?}\nnew: {new:?}"));
    }
}

/// Plays a trace on both trees. Returns the first difference, and how many calls agreed by their names.
fn play(trace: &Trace, agreed: &mut BTreeMap<&'static str, u64>) -> Option<Difference> {
    let differ = |index: usize, old: Vec<Seen>, new: Vec<Seen>| {
        let mut trace = trace.clone();
        trace.calls.truncate(index + 1);
        Some(Difference { trace, index, old, new })
    };
    let (mut old, mut new) = match (old::Side::new(trace), new::Side::new(trace)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(old), Err(new)) if old == new => return None,
        (old, new) => {
            let text = |error: Option<String>| vec![Seen::Refused(error.unwrap_or_default())];
            return differ(0, text(old.err()), text(new.err()));
        }
    };
    // Where a permit takes no whole number of nanoseconds, the old tree kept the fraction in units of its own.
    let ticks_apart = u64::from(trace.is_uneven());
    for (index, (at, call)) in trace.calls.iter().enumerate() {
        let (old, new) = (old.call(*at, call), new.call(*at, call));
        if !within((ticks_apart, 0), &old, &new) {
            return differ(index, old, new);
        }
        *agreed.entry(name(call)).or_default() += 1;
    }
    None
}

/// Whether the answers differ only in times and permits, and in those by so much at most.
fn within((ticks, permits): (u64, u64), old: &[Seen], new: &[Seen]) -> bool {
    let near = |(old, new): (Option<u64>, Option<u64>)| match (old, new) {
        (Some(old), Some(new)) => old.abs_diff(new) <= ticks,
        (old, new) => old == new,
    };
    let alike = |(old, new): (&Seen, &Seen)| {
        let (old_times, old_remaining, old) = old.split();
        let (new_times, new_remaining, new) = new.split();
        let is_level_near = old_remaining.abs_diff(new_remaining) <= permits;
        old == new && is_level_near && old_times.into_iter().zip(new_times).all(near)
    };
    old.len() == new.len() && old.iter().zip(new).all(alike)
}

fn name(call: &Call) -> &'static str {
    match call {
        Call::Try(targets) if targets.len() > 1 => "try, several demands",
        Call::Try(_) => "try",
        Call::Peek(_) => "peek",
        Call::UpTo(_) => "up_to",
        Call::Force(_) => "force",
        Call::Available(_) => "available",
        Call::Refund(_) => "refund",
        Call::Reset(_) => "reset",
        Call::Reserve(..) => "reserve",
        Call::Cancel(_) => "cancel",
        Call::Settle(..) => "settle",
        Call::Keep(_) => "keep",
        Call::Change { .. } => "change of quota",
    }
}

/// Leaves out calls as long as the trees still differ in a way that is not meant.
fn shorten(mut found: Difference) -> Difference {
    loop {
        let shorter = (0..found.trace.calls.len()).rev().find_map(|left_out| {
            let mut trace = found.trace.clone();
            trace.calls.remove(left_out);
            play(&trace, &mut BTreeMap::new()).filter(|found| found.meant().is_none())
        });
        match shorter {
            Some(shorter) => found = shorter,
            None => return found,
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let traces: u64 = arguments.next().unwrap_or(100_000);
    let seed: u64 = arguments.next().unwrap_or(18);
    let (mut agreed, mut meant) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
    for number in 0..traces {
        // A seed for each trace: one is found again by its number alone.
        let mut random = Random(seed.wrapping_mul(1 << 32).wrapping_add(number));
        let Some(found) = play(&trace::random(&mut random), &mut agreed) else { continue };
        match found.meant() {
            Some(reason) => *meant.entry(reason).or_default() += 1,
            None => {
                println!("trace {number} of seed {seed}:");
                shorten(found).print();
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{traces} traces of seed {seed}, {} calls answered alike:",
        agreed.values().sum::<u64>()
    );
    agreed.iter().for_each(|(name, count)| println!("  {name}: {count}"));
    meant.iter().for_each(|(reason, count)| println!("{count} traces ended early: {reason}"));
    ExitCode::SUCCESS
}
