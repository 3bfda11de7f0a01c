//! Many keys, numbers and strings, beside governor's keyed limiter and beside `scc`.

use super::{Line, Rounds, Section, figures, figures_of, rounds};
use crate::{
    Options,
    harness::{Subject, progress},
    keyed::{
        Answers, COLUMNS, KEYS, Traffic,
        child::{self, Figures},
        keys::{self, Key, Spread},
        prepare,
        store::{Loops, Peer},
        walking,
    },
    peers,
};
use std::sync::Arc;

const NUMBERS: &str = "numbers";
const STRINGS: &str = "strings";
/// Calls of the one key of [`HOT`] between two checks for the end of the order.
const HOT_CALLS: usize = 1 << 16;
/// The key that is hot.
const HOT: u64 = 7;

/// The index of each peer among the subjects; `scc` is the last one if keys are numbers.
const GROWING: usize = 0;
const BOUNDED: usize = 1;
const GOVERNOR: usize = 2;
const SCC: usize = 3;

/// Fills tables and measures them in turn: for the argument `1000 denied`, every column of such
/// keys, one after the other.
pub(crate) fn child(kind: &str, argument: &str) -> Option<Figures> {
    let (count, answers) = argument.split_once(' ')?;
    let (count, answers) = (count.parse().ok()?, Answers::find(answers)?);
    match kind {
        NUMBERS => numbers_child(count, answers),
        STRINGS => strings_child(count, answers),
        _ => None,
    }
}

/// Fills a table of each peer.
fn stores<K: Key>(
    peers: &[Peer<K>],
    answers: Answers,
    keys: &[K],
) -> Option<Vec<Arc<dyn Loops<K>>>> {
    peers.iter().map(|peer| prepare(peer, answers, keys)).collect()
}

/// Measures tables in every column, each of which makes a subject of a table.
fn columns<K: Key>(
    stores: Vec<Arc<dyn Loops<K>>>,
    columns: &[(impl Fn(&Arc<dyn Loops<K>>) -> Subject, usize)],
) -> Figures {
    let column = |(subject, threads): &(_, usize)| {
        let subjects: Vec<Subject> = stores.iter().map(subject).collect();
        figures(&subjects.iter().collect::<Vec<_>>(), *threads)
    };
    let found = columns.iter().flat_map(column).collect();
    // The process ends here; freeing millions of keys one by one would take seconds.
    std::mem::forget(stores);
    found
}

fn numbers_child(count: usize, answers: Answers) -> Option<Figures> {
    let stores = stores(&peers::numbered::all(), answers, &keys::shuffled(0..count))?;
    let order = Spread::Uniform.order(count).into_iter().map(u64::from).collect();
    let (uniform, hot): (Arc<Vec<u64>>, _) = (Arc::new(order), Arc::new(vec![HOT; HOT_CALLS]));
    let along = |asked: &Arc<Vec<u64>>| {
        let asked = Arc::clone(asked);
        move |store: &Arc<dyn Loops<u64>>| {
            let (store, asked) = (Arc::clone(store), Arc::clone(&asked));
            walking(asked.len(), move |part| {
                store.take_all(&asked[part]);
            })
        }
    };
    let mut asked = vec![(along(&uniform), 1), (along(&uniform), 2)];
    if answers == Answers::Denied {
        asked.extend([(along(&hot), 1), (along(&hot), 2)]);
    }
    Some(columns(stores, &asked))
}

fn strings_child(count: usize, answers: Answers) -> Option<Figures> {
    let traffic = Arc::new(Traffic::new(count));
    let [growing, bounded] = peers::keyed::ours();
    let stores = stores(&[growing, bounded, peers::keyed::governor()], answers, &traffic.keys)?;
    let along = |(_, spread, threads): (_, Spread, usize)| {
        let traffic = Arc::clone(&traffic);
        (move |store: &Arc<dyn Loops>| traffic.subject(store, spread), threads)
    };
    Some(columns(stores, &COLUMNS.map(along)))
}

/// Starts a child process in each round. Returns its figures, by column.
fn ask(
    (kind, subjects): (&str, usize),
    (count, answers): (usize, Answers),
    options: &Options,
) -> Vec<Rounds> {
    let columns = match (kind, answers) {
        (NUMBERS, Answers::Allowed) => 2,
        _ => 4,
    };
    let mut found: Vec<Rounds> = (0..columns).map(|_| Rounds::new(subjects)).collect();
    for round in 0..rounds(options) {
        let name = answers.name();
        progress(&format!("{count} {kind}, {name}, round {}", round + 1));
        let figures = child::ask("decisions", kind, &format!("{count} {name}"));
        let figures = figures.unwrap_or_default();
        for (rounds, figures) in found.iter_mut().zip(figures.chunks(figures_of(subjects))) {
            rounds.figures.push(figures.to_vec());
        }
    }
    found
}

/// The number of keys, in words, and the aim compared with governor.
const COUNTS: [(usize, &str, &str); 3] = [
    (1000, "1000 keys", "<= 0.75"),
    (100_000, "100 000 keys", "<= 0.9"),
    (KEYS, "1M keys", "<= 0.7"),
];

/// Keys that are numbers.
pub(super) fn numbers(options: &Options) -> Vec<Section> {
    let lines: [Vec<Line>; 3] = Default::default();
    let [mut growing, mut bounded, mut scc] = lines;
    for (count, count_name, count_aim) in COUNTS {
        for answers in [Answers::Allowed, Answers::Denied] {
            let found = ask((NUMBERS, SCC + 1), (count, answers), options);
            let cases = match answers {
                Answers::Allowed => [("partly used", count_aim), ("", "")],
                Answers::Denied => [("denied", count_aim), ("one hot key denied", "<= 0.6")],
            };
            for (index, rounds) in found.iter().enumerate() {
                let ((case, aim), threads) = (cases[index / 2], index % 2 + 1);
                let what = format!("{count_name}, {case}, threads: {threads}");
                growing.push(rounds.line(&what, (GROWING, GOVERNOR), aim));
                bounded.push(rounds.line(&what, (BOUNDED, GOVERNOR), aim));
                scc.push(rounds.line(&what, (GROWING, SCC), "<= 0.8"));
            }
        }
    }
    let section = |title, peer, lines| Section { title, columns: ["ns ours", peer], lines };
    vec![
        section("u64 keys, growing table", "ns governor", growing),
        section("u64 keys, bounded table", "ns governor", bounded),
        section("u64 keys, growing table beside words in scc", "ns scc", scc),
    ]
}

/// Keys that are strings.
pub(super) fn strings(options: &Options) -> Vec<Section> {
    let (mut growing, mut bounded) = (Vec::new(), Vec::new());
    for answers in [Answers::Allowed, Answers::Denied] {
        let found = ask((STRINGS, GOVERNOR + 1), (KEYS, answers), options);
        for ((column, ..), rounds) in COLUMNS.iter().zip(&found) {
            let what = format!("{}, {column}", answers.name());
            growing.push(rounds.line(&what, (GROWING, GOVERNOR), "<= 0.5"));
            bounded.push(rounds.line(&what, (BOUNDED, GOVERNOR), "<= 0.5"));
        }
    }
    let section = |title, lines| Section { title, columns: ["ns ours", "ns governor"], lines };
    vec![
        section("1M strings, growing table", growing),
        section("1M strings, bounded table", bounded),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_with_all_columns() {
        let found = |kind, argument| child(kind, argument).map(|figures| figures.len());
        assert_eq!(found(NUMBERS, "1000 allowed"), Some(2 * figures_of(SCC + 1)));
        assert_eq!(found(NUMBERS, "many allowed"), None);
        assert_eq!(found("words", "1000 allowed"), None);
    }
}
