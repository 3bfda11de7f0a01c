//! Composes the scripts from their parts.
//!
//! Each algorithm is written once (`lua/gcra.lua` and its like), and every verb uses it. The
//! shipped scripts read the server's time; those for tests receive it with the call.

use super::rule::Kind;
use crate::Script;
use std::sync::OnceLock;

/// The operation on one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Take,
    UpTo,
    /// Takes as many permits as are free, with a claim.
    Lease,
    /// Books into debt, or not at all.
    Force,
    /// Books into debt, as far as the bound allows.
    ForceUpTo,
    Refund,
    /// Gives back the permits of a claim.
    Settle,
    /// Reverts a recent take.
    Undo,
}

const VERBS: [Verb; 8] = [
    Verb::Take,
    Verb::UpTo,
    Verb::Lease,
    Verb::Force,
    Verb::ForceUpTo,
    Verb::Refund,
    Verb::Settle,
    Verb::Undo,
];

/// All scripts, for one source of time.
#[derive(Debug)]
pub(crate) struct Scripts {
    one: Vec<Script>,
    many: Several,
    reserve: Several,
    pub(crate) permits: Script,
    pub(crate) claim: Script,
}

/// A script for several states. There is one for each set of kinds in a decision, composed at its
/// first call. It has only their definitions, because a server runs through all definitions of a
/// script at each call.
#[derive(Debug)]
struct Several {
    time: &'static str,
    tail: String,
    by_kinds: [OnceLock<Script>; 1 << Kind::ALL.len()],
}

impl Several {
    fn new(time: &'static str, tail: &[&str]) -> Self {
        let by_kinds = [const { OnceLock::new() }; 1 << Kind::ALL.len()];
        Self { time, tail: tail.concat(), by_kinds }
    }

    fn of(&self, kinds: impl Iterator<Item = Kind>) -> &Script {
        let set = kinds.fold(0, |set, kind| set | 1 << kind as usize);
        self.by_kinds[set].get_or_init(|| {
            let kinds = Kind::ALL.into_iter().filter(|kind| set >> *kind as usize & 1 == 1);
            Script::new([self.time, &several(kinds, &self.tail)].concat())
        })
    }
}

/// The source of the time. Newer servers return the same time for every call within a script; 7.0
/// does not, so the script reads it once.
const SERVER_TIME: &str = "local GRACE = 0
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
";
/// In tests the given time stands still while the server's goes on, so states live an hour longer.
const GIVEN_TIME: &str = "local GRACE = 3600000
local now = tonumber(table.remove(ARGV))
";

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../lua/", $name, ".lua"))
    };
}

/// Returns the functions that read, judge, write and show a kind of state.
fn basics(kind: Kind) -> String {
    match kind {
        Kind::Gcra => lua!("gcra").into(),
        Kind::Fixed => [lua!("fixed"), lua!("window")].concat(),
        Kind::Anchored => [lua!("anchored"), lua!("window")].concat(),
        Kind::Counter => [lua!("exact"), lua!("counter")].concat(),
        Kind::Log => lua!("log").into(),
    }
}

fn more(kind: Kind) -> &'static str {
    match kind {
        Kind::Gcra => concat!(lua!("exact"), lua!("gcra_more")),
        Kind::Fixed | Kind::Anchored => lua!("window_more"),
        Kind::Counter => lua!("counter_more"),
        Kind::Log => lua!("log_more"),
    }
}

fn one(kind: Kind, verb: Verb) -> String {
    let parts: &[&str] = match (verb, kind.is_gcra()) {
        (Verb::Take, _) => return [&basics(kind), lua!("one")].concat(),
        (Verb::UpTo, _) => &[more(kind), lua!("up_to")],
        (Verb::Lease, _) => &[more(kind), lua!("ledger"), lua!("lease")],
        (Verb::Force, _) => &[more(kind), "local partly = false\n", lua!("force")],
        (Verb::ForceUpTo, _) => &[more(kind), "local partly = true\n", lua!("force")],
        (Verb::Refund, _) => &[more(kind), lua!("ledger"), lua!("refund")],
        (Verb::Settle, true) => &[more(kind), lua!("ledger"), lua!("settle_gcra")],
        (Verb::Undo, true) => &[more(kind), lua!("ledger"), lua!("undo_gcra")],
        (Verb::Settle, false) => {
            &[more(kind), lua!("ledger"), lua!("give_back_to"), lua!("settle_window")]
        }
        (Verb::Undo, false) => &[more(kind), lua!("give_back_to"), lua!("undo_window")],
    };
    [basics(kind), parts.concat()].concat()
}

fn several(kinds: impl Iterator<Item = Kind>, tail: &str) -> String {
    let mut source = String::from("local M = {}\n");
    for kind in kinds {
        source.push_str("do\n");
        source.push_str(&basics(kind));
        source.push_str(&format!(
            "M[{}] = {{ read = read, judge = judge, write = write, show = show }}\nend\n",
            kind.letter()
        ));
    }
    source.push_str(tail);
    source
}

impl Scripts {
    /// Returns the shipped scripts, which use the server's time.
    pub(crate) fn shipped() -> &'static Self {
        static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
        SCRIPTS.get_or_init(|| Self::new(SERVER_TIME))
    }

    /// Returns the same scripts with the time as the last argument of a call.
    pub(crate) fn with_time() -> &'static Self {
        static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
        SCRIPTS.get_or_init(|| Self::new(GIVEN_TIME))
    }

    fn new(time: &'static str) -> Self {
        let script = |source: &str| Script::new([time, source].concat());
        let pairs = Kind::ALL.into_iter().flat_map(|kind| VERBS.map(|verb| one(kind, verb)));
        Self {
            one: pairs.map(|source| script(&source)).collect(),
            many: Several::new(time, &[lua!("many"), lua!("many_take")]),
            reserve: Several::new(time, &[lua!("many"), lua!("ledger"), lua!("many_reserve")]),
            permits: script(lua!("permits")),
            claim: script(lua!("claim")),
        }
    }

    /// Returns the script of a verb on one state.
    pub(crate) fn one(&self, kind: Kind, verb: Verb) -> &Script {
        &self.one[kind as usize * VERBS.len() + verb as usize]
    }
    /// Returns the script that takes from states of these kinds.
    pub(crate) fn many(&self, kinds: impl Iterator<Item = Kind>) -> &Script {
        self.many.of(kinds)
    }

    /// Returns the script that reserves from states of these kinds.
    pub(crate) fn reserve(&self, kinds: impl Iterator<Item = Kind>) -> &Script {
        self.reserve.of(kinds)
    }
}
