//! The cases T1 to T6: the demand of each class, and the permits that the trees give it.

use std::{fmt::Write, thread};
use tollgate::{
    Clock, ConfigError, Decision, Hierarchy, Quota, Tick,
    hierarchy::{BorrowingTree, Class, StrictTree},
};

/// The permits of the root, per second.
pub(crate) const ROOT: u64 = 1000;
/// How long each case runs.
pub(crate) const SECONDS: u64 = 60;

/// One class and its demand, per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) rate: u64,
    pub(crate) ceiling: u64,
    pub(crate) demand: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Borrowing,
    /// Like borrowing, with a soft ceiling at the root: the kernel's rule.
    #[allow(dead_code, reason = "the tests run it, the pictures do not show it")]
    BorrowingSoft,
    Strict,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    pub(crate) members: &'static [Member],
}

/// The results of one class's events over the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) admitted: u64,
    pub(crate) borrowed: u64,
    pub(crate) refused: u64,
}

impl Given {
    /// Returns (on its own share, borrowed, refused) per second, rounded to the nearest.
    pub(crate) fn per_second(&self) -> [u64; 3] {
        let rounded = |total: u64| (total + SECONDS / 2) / SECONDS;
        let admitted = rounded(self.admitted);
        [admitted - rounded(self.borrowed), rounded(self.borrowed), rounded(self.refused)]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) case: Case,
    pub(crate) given: Vec<Given>,
    /// The permits that the root lent.
    pub(crate) lent: u64,
}

const fn member(name: &'static str, rate: u64, ceiling: u64, demand: u64) -> Member {
    Member { name, rate, ceiling, demand }
}

const fn case(name: &'static str, title: &'static str, members: &'static [Member]) -> Case {
    Case { name, title, kind: Kind::Borrowing, members }
}

pub(crate) const CASES: [Case; 7] = [
    case(
        "T1",
        "A asks for more than its share, B is idle",
        &[member("A", 700, 1000, 1500), member("B", 300, 1000, 0)],
    ),
    case(
        "T2",
        "both ask for more than there is",
        &[member("A", 700, 1000, 1500), member("B", 300, 1000, 1500)],
    ),
    case(
        "T3",
        "A leaves most of its share to B",
        &[member("A", 700, 1000, 200), member("B", 300, 1000, 1500)],
    ),
    case(
        "T4",
        "as T3, but B's ceiling is 500",
        &[member("A", 700, 1000, 200), member("B", 300, 500, 1500)],
    ),
    case(
        "T5",
        "three classes, 300 are nobody's",
        &[member("A", 400, 1000, 2000), member("B", 200, 1000, 2000), member("C", 100, 1000, 50)],
    ),
    case(
        "T6",
        "A floods, C asks for its share",
        &[member("A", 400, 1000, 5000), member("B", 200, 1000, 0), member("C", 100, 1000, 100)],
    ),
    Case {
        name: "T6s",
        title: "the same flood in a strict tree",
        kind: Kind::Strict,
        members: &[
            member("A", 400, 1000, 5000),
            member("B", 200, 1000, 0),
            member("C", 100, 1000, 100),
        ],
    },
];

/// A rate with a burst of a tenth of a second.
const fn quota(rate: u64) -> Quota {
    Quota::per_second(rate).burst(rate / 10)
}

enum Tree {
    Strict(StrictTree),
    Borrowing(BorrowingTree),
}

impl Tree {
    fn new(case: &Case) -> Result<Self, ConfigError> {
        let (clock, _hand) = Clock::manual();
        if case.kind == Kind::Strict {
            let tree = Hierarchy::strict("root", quota(ROOT)).level("class", quota(ROOT));
            let tree = tree.clock(clock).build()?;
            for Member { name, ceiling, .. } in case.members {
                tree.override_quota(&[name], quota(*ceiling), None)?;
            }
            return Ok(Self::Strict(tree));
        }
        let root = match case.kind {
            Kind::BorrowingSoft => Class::new(quota(ROOT)).ceiling(quota(ROOT)).soft_ceiling(),
            _ => Class::new(quota(ROOT)),
        };
        let mut builder = Hierarchy::borrowing("root", root);
        for Member { name, rate, ceiling, .. } in case.members {
            builder = builder.class(*name, Class::new(quota(*rate)).ceiling(quota(*ceiling)));
        }
        Ok(Self::Borrowing(builder.clock(clock).build()?))
    }

    /// Returns the decision about an event, and whether it was borrowed.
    fn ask(&self, name: &str, now: Tick) -> Result<(Decision, bool), ConfigError> {
        Ok(match self {
            Self::Strict(tree) => (tree.try_acquire_at(&[name], now, 1)?, false),
            Self::Borrowing(tree) => {
                let admission = tree.try_acquire_at(&[name], now, 1)?;
                (admission.decision(), admission.is_borrowed())
            }
        })
    }
}

/// Runs a case: each class's events come evenly, and those of the next class a little later.
pub(crate) fn run(case: Case) -> Result<Outcome, ConfigError> {
    let tree = Tree::new(&case)?;
    let mut given = vec![Given { admitted: 0, borrowed: 0, refused: 0 }; case.members.len()];
    let mut counts = vec![0_u64; case.members.len()];
    let mut refused_until = vec![Tick::ZERO; case.members.len()];
    let due = |index: usize, count: u64| {
        let Member { demand, .. } = case.members[index];
        let at = (count * 1_000_000_000).checked_div(demand)?;
        (at < SECONDS * 1_000_000_000).then_some(at + 13_000 * index as u64)
    };
    let next = |counts: &[u64]| {
        let due = counts.iter().enumerate().filter_map(|(i, count)| Some((due(i, *count)?, i)));
        due.min()
    };
    while let Some((at, index)) = next(&counts) {
        counts[index] += 1;
        let (given, now) = (&mut given[index], Tick::from_nanos(at));
        // A refusal names the first tick at which the call could pass, and other calls can only
        // make it later. Slow builds rely on it and do not try before.
        if cfg!(debug_assertions) && now < refused_until[index] {
            given.refused += 1;
            continue;
        }
        let (decision, is_borrowed) = tree.ask(case.members[index].name, now)?;
        given.admitted += u64::from(decision.is_allowed());
        given.borrowed += u64::from(is_borrowed);
        given.refused += u64::from(decision.is_denied());
        refused_until[index] = decision.retry_at().unwrap_or(Tick::ZERO);
    }
    let lent = match &tree {
        Tree::Strict(_) => 0,
        Tree::Borrowing(tree) => tree.counts("root").map_or(0, |counts| counts.lent),
    };
    Ok(Outcome { case, given, lent })
}

/// Runs all cases, side by side.
pub(crate) fn run_all() -> Result<Vec<Outcome>, ConfigError> {
    thread::scope(|scope| {
        let running = CASES.map(|case| scope.spawn(move || run(case)));
        let ended = running.into_iter().map(|case| match case.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    })
}

/// The table of outcomes, as in the docs.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| case | class | rate / ceiling | asks | admitted | of which borrowed | refused |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for Outcome { case, given, .. } in outcomes {
        for (member, given) in case.members.iter().zip(given) {
            let Member { name, rate, ceiling, demand } = member;
            let [own, borrowed, refused] = given.per_second();
            let (title, admitted) = (case.name, own + borrowed);
            let rate = if case.kind == Kind::Strict { String::from("-") } else { rate.to_string() };
            let _ = writeln!(
                text,
                "| {title} | {name} | {rate} / {ceiling} | {demand} | {admitted} | {borrowed} | \
                 {refused} |"
            );
        }
    }
    text
}
