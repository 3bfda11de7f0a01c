//! A hundred thousand debouncers: the cost of a trigger, and the memory of a key.

use crate::{
    Options,
    harness::{Subject, progress},
    keyed::keys::Spread,
    machine, stats,
    table::{Table, figure},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tollgate::{Debouncer, KeyedDebouncer};

const KEYS: usize = 100_000;
/// So long that nothing falls due during the measurement.
const HOUR: Duration = Duration::from_secs(3600);
/// So short that most keys go quiet between two triggers, if all keys get equally many triggers.
const SHORT: Duration = Duration::from_millis(20);
const TRIGGERS: usize = 4_000_000;

type Keyed = KeyedDebouncer<u64, u64>;

const SPREADS: [(&str, Spread); 2] = [("uniform", Spread::Uniform), ("zipf", Spread::Zipf)];

/// Starts debouncers that count their runs.
fn start(delay: Duration, runs: &Arc<AtomicU64>) -> Option<Keyed> {
    let runs = Arc::clone(runs);
    // ORDERING: Relaxed, the count publishes nothing.
    let action = move |_, _| _ = runs.fetch_add(1, Relaxed);
    Keyed::builder(delay).max_keys(KEYS).start(action).ok()
}

/// Starts debouncers that hold every key.
fn held() -> Option<Arc<Keyed>> {
    let debouncer = start(HOUR, &Arc::default())?;
    (0..KEYS as u64).all(|key| debouncer.trigger(key, 0).is_ok()).then(|| Arc::new(debouncer))
}

/// Triggers along an order, over and over; each thread begins at another place.
fn keyed_subject(spread: Spread) -> Option<Subject> {
    let (debouncer, order) = (held()?, Arc::new(spread.order(KEYS)));
    let threads = AtomicUsize::new(0);
    let subject = Subject::new(move || {
        let (debouncer, order) = (Arc::clone(&debouncer), Arc::clone(&order));
        // ORDERING: Relaxed is enough, the number publishes nothing.
        let mut next = threads.fetch_add(1, Relaxed) * 7 * order.len() / 16 % order.len();
        Box::new(move |calls| {
            for value in 0..calls {
                // A key that is held is never refused.
                drop(debouncer.trigger(u64::from(order[next]), value));
                next = (next + 1) % order.len();
            }
        })
    });
    Some(subject.waiting())
}

/// Triggers one debouncer.
fn single_subject() -> Option<Subject> {
    let debouncer = Debouncer::new(HOUR, |_| ()).ok()?;
    let subject = Subject::new(move || {
        let debouncer = debouncer.clone();
        Box::new(move |calls| (0..calls).for_each(|value| _ = debouncer.trigger(value)))
    });
    Some(subject.waiting())
}

/// Counts the blocks that a million triggers allocate.
fn blocks(subject: &Subject) -> u64 {
    let mut run = subject.runner();
    run(1000);
    let before = machine::allocations();
    run(1_000_000);
    machine::allocations() - before
}

/// Prints the cost of a trigger.
fn triggers(rounds: usize) {
    println!("\n### debounce, a trigger\n");
    println!(
        "Nanoseconds per trigger as each thread sees them, keys and values of 8 bytes, nothing falls \
         due; median of {rounds} rounds. Blocks of memory asked for by a million triggers.\n"
    );
    let rows = [
        ("Debouncer", single_subject()),
        ("KeyedDebouncer, 100 000 keys, uniform", keyed_subject(Spread::Uniform)),
        ("KeyedDebouncer, 100 000 keys, zipf", keyed_subject(Spread::Zipf)),
    ];
    let mut table = Table::new(["", "1 thread", "2 threads", "blocks"]);
    for (name, subject) in rows {
        let Some(subject) = subject else { continue };
        progress(&format!("debounce: {name}"));
        let median = |threads| stats::median((0..rounds).map(|_| subject.ns_per_call(threads)));
        let (one, two) = (median(1), median(2));
        table.line([name.into(), figure(one), figure(two), blocks(&subject).to_string()]);
    }
    progress("");
    println!("{table}");
}

/// Prints the memory of a key that is held. The heap must be fresh, so this comes first.
fn memory() {
    let before = machine::resident_bytes().unwrap_or(0);
    let Some(debouncer) = held() else { return };
    let full = machine::resident_bytes().unwrap_or(0).saturating_sub(before);
    let count = debouncer.cancel_all();
    let left = machine::resident_bytes().unwrap_or(0).saturating_sub(before);
    println!(
        "Memory: {:.0} resident bytes for each of {count} keys that are held; {left} bytes in all \
         after they have gone (the stack of the worker's thread is one part of it).",
        full as f64 / KEYS as f64
    );
}

fn threads_now() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Triggers at random while keys fall due, and waits until nothing is pending.
fn live(spread: Spread) -> Option<[String; 8]> {
    let runs = Arc::new(AtomicU64::new(0));
    let debouncer = start(SHORT, &runs)?;
    let order = spread.order(KEYS);
    let idle = threads_now();
    let (mut most_keys, mut most_threads) = (0, 0);
    let (begin, cpu, blocks) = (Instant::now(), machine::thread_cpu_ns(), machine::allocations());
    for number in 0..TRIGGERS {
        drop(debouncer.trigger(u64::from(order[number % order.len()]), number as u64));
        if number % 100_000 == 0 {
            most_keys = most_keys.max(debouncer.len());
            most_threads = most_threads.max(threads_now() - idle);
        }
    }
    let (cpu, blocks) = (machine::thread_cpu_ns() - cpu, machine::allocations() - blocks);
    let wall = begin.elapsed();
    let end = Instant::now();
    while !debouncer.is_empty() || threads_now() > idle {
        if end.elapsed() > Duration::from_secs(10) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let per_trigger = |ns: f64| format!("{:.0}", ns / TRIGGERS as f64);
    // ORDERING: Relaxed, no action runs any more.
    Some([
        per_trigger(cpu as f64),
        per_trigger(wall.as_nanos() as f64),
        format!("{:.1}", blocks as f64 * 1e6 / TRIGGERS as f64),
        runs.load(Relaxed).to_string(),
        most_keys.to_string(),
        most_threads.to_string(),
        debouncer.len().to_string(),
        (threads_now() - idle).to_string(),
    ])
}

/// Prints the tables.
pub(crate) fn run(options: &Options) {
    println!("\n## debounce: {KEYS} keyed debouncers\n");
    memory();
    triggers(options.rounds());
    println!("### debounce, while keys come and go\n");
    println!(
        "{TRIGGERS} triggers at random by one thread, delay {SHORT:?}, while the worker runs what is \
         due on the other processor. Nanoseconds of processor and of wall time per trigger, blocks \
         of memory per million, runs of the action; then keys and threads at most, and those left \
         once all is quiet.\n"
    );
    let mut table = Table::new([
        "keys",
        "ns, cpu",
        "ns, wall",
        "blocks",
        "runs",
        "keys",
        "threads",
        "keys left",
        "threads left",
    ]);
    for (name, spread) in SPREADS {
        progress(&format!("debounce, live: {name}"));
        if let Some(cells) = live(spread) {
            table.line([name.to_owned()].into_iter().chain(cells));
        }
    }
    progress("");
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_held_are_triggered_without_a_block() {
        let subject = keyed_subject(Spread::Zipf).unwrap();
        let mut run = subject.runner();
        run(1000);
        let before = machine::allocations();
        run(10_000);
        assert_eq!(machine::allocations() - before, 0);
    }
}
