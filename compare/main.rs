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
use trace::{Call, Random, Seen, Trace};

/// A difference that is meant: why, and whether it is this one. A trace ends at such a difference, because
/// the states differ from there on.
type Meant = (&'static str, fn(&Difference) -> bool);

/// Every difference that is meant. None: the trees agree in all they answer.
const MEANT: &[Meant] = &[];

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
        for (at, call) in &trace.calls[..=*index] {
            println!("  at {at} ns: {call:?}");
        }
        println!("old: {old:#?}\nnew: {new:#?}");
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
    for (index, (at, call)) in trace.calls.iter().enumerate() {
        let (old, new) = (old.call(*at, call), new.call(*at, call));
        if old != new {
            return differ(index, old, new);
        }
        *agreed.entry(name(call)).or_default() += 1;
    }
    None
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
