//! Debouncers and throttles compared with the real lodash: thousands of random scripts, on clocks
//! that the tests move, and every run and every `pending` compared.
//!
//! The tests look for lodash in `target/npm` (or `TOLLGATE_NPM`).

use serde_json::{Value, json};
use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tollgate::{Debouncer, Driver, Fired, ManualClock, Throttle};

const SCRIPTS_OF_A_KIND: usize = 400;
const SEED: u64 = 20_260_715;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Trigger,
    Flush,
    Cancel,
    /// Only time passes.
    Nothing,
    /// Lodash only: triggers before the timers that are due have fired.
    Late,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Trigger => "trigger",
            Self::Flush => "flush",
            Self::Cancel => "cancel",
            Self::Nothing => "nothing",
            Self::Late => "late",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Edges {
    Leading,
    Trailing,
    Both,
}

#[derive(Clone, Debug)]
struct Script {
    throttle: bool,
    wait: u64,
    max_wait: Option<u64>,
    edges: Edges,
    keep_stale: bool,
    events: Vec<(u64, Op, u64)>,
    /// The calls that each run makes.
    inside: Vec<Vec<Op>>,
}

/// When it ran and with which value, and whether it was pending after each event.
#[derive(Debug, PartialEq, Eq)]
struct Trace {
    runs: Vec<(u64, u64)>,
    pending: Vec<bool>,
}

impl Script {
    fn end(&self) -> u64 {
        let last = self.events.last().map_or(0, |(at, ..)| *at);
        last + 100 * (self.wait + self.max_wait.unwrap_or(0))
    }

    fn json(&self) -> Value {
        let names = |ops: &Vec<Op>| ops.iter().map(|op| op.name()).collect::<Vec<_>>();
        json!({
            "throttle": self.throttle,
            "wait": self.wait,
            "max_wait": self.max_wait,
            "leading": matches!(self.edges, Edges::Leading | Edges::Both),
            "trailing": matches!(self.edges, Edges::Trailing | Edges::Both),
            "keep_stale": self.keep_stale,
            "events": self.events.iter().map(|(at, op, value)| json!([at, op.name(), value]))
                .collect::<Vec<_>>(),
            "inside": self.inside.iter().map(names).collect::<Vec<_>>(),
            "end": self.end(),
        })
    }

    fn is_undisturbed(&self) -> bool {
        let mut ops = self.events.iter().map(|(_, op, _)| op).chain(self.inside.iter().flatten());
        ops.all(|op| matches!(op, Op::Trigger | Op::Nothing))
    }
}

/// The methods that both have, for the player.
trait Toy: Clone + Send + Sync + 'static {
    fn act(&self, op: Op, value: u64);
    fn is_pending(&self) -> bool;
    fn end(&self);
}

impl Toy for Debouncer<u64> {
    fn act(&self, op: Op, value: u64) {
        match op {
            Op::Trigger | Op::Late => {
                self.trigger(value);
            }
            Op::Flush => {
                self.flush();
            }
            Op::Cancel => {
                self.cancel();
            }
            Op::Nothing => {}
        }
    }

    fn is_pending(&self) -> bool {
        self.is_pending()
    }

    fn end(&self) {
        self.stop();
    }
}

impl Toy for Throttle<u64> {
    fn act(&self, op: Op, value: u64) {
        (**self).act(op, value);
    }

    fn is_pending(&self) -> bool {
        (**self).is_pending()
    }

    fn end(&self) {
        (**self).end();
    }
}

type Action = Box<dyn FnMut(Fired<u64>) + Send>;

fn play<D: Toy>(script: &Script, start: impl FnOnce(&ManualClock, Action) -> D) -> Trace {
    let hand = ManualClock::new();
    let runs: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let myself: Arc<OnceLock<D>> = Arc::default();
    let (log, me, inside) = (Arc::clone(&runs), Arc::clone(&myself), script.inside.clone());
    let clock = hand.clone();
    let toy = start(
        &hand,
        Box::new(move |fired| {
            let at_ms = clock.now().as_nanos() / 1_000_000;
            let run = {
                let mut log = log.lock().unwrap();
                log.push((at_ms, fired.into_value()));
                log.len() - 1
            };
            for op in inside.get(run).into_iter().flatten() {
                me.get().unwrap().act(*op, 1_000 + run as u64);
            }
        }),
    );
    assert!(myself.set(toy.clone()).is_ok());
    let mut now = 0;
    let pending = script
        .events
        .iter()
        .map(|(at, op, value)| {
            hand.advance(Duration::from_millis(at - now));
            now = *at;
            toy.act(*op, *value);
            toy.is_pending()
        })
        .collect();
    hand.advance(Duration::from_millis(script.end() - now));
    // The action owns its own handle.
    toy.end();
    let runs = runs.lock().unwrap().clone();
    Trace { runs, pending }
}

/// Like lodash's `debounce`; and like its `throttle`, which is a special case.
fn debouncer(script: &Script) -> Trace {
    play(script, |hand, action| {
        let delay = Duration::from_millis(script.wait);
        let builder = Debouncer::builder(delay).driver(Driver::manual(hand));
        let builder = match script.edges {
            Edges::Leading => builder.leading(),
            Edges::Trailing => builder.trailing(),
            Edges::Both => builder.both_edges(),
        };
        let builder = match script.max_wait {
            Some(max_wait) => builder.max_wait(Duration::from_millis(max_wait)),
            None => builder,
        };
        builder.start(action).unwrap()
    })
}

fn throttle(script: &Script) -> Trace {
    play(script, |hand, action| {
        let interval = Duration::from_millis(script.wait);
        let builder = Throttle::builder(interval).driver(Driver::manual(hand));
        let builder = match script.edges {
            Edges::Leading => builder.leading(),
            Edges::Trailing => builder.trailing(),
            Edges::Both => builder.both_edges(),
        };
        builder.start(action).unwrap()
    })
}

/// Plays scripts in lodash.
fn lodash(scripts: &[Script]) -> Vec<Trace> {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let npm = std::env::var_os("TOLLGATE_NPM")
        .map_or_else(|| package.join("../../target/npm"), PathBuf::from);
    let install = "apt-get install nodejs npm && npm install --prefix target/npm lodash@4";
    let mut node = Command::new("node")
        .arg(package.join("tests/flow/servers/lodash/debounce.js"))
        .env("NODE_PATH", npm.join("node_modules"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node does not start ({error}); install it: {install}"));
    let lines: String = scripts.iter().map(|script| format!("{}\n", script.json())).collect();
    // It reads everything before it writes. If it has ended early, its status shows that below.
    drop(node.stdin.take().unwrap().write_all(lines.as_bytes()));
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "lodash did not play; if it is not installed: {install}");
    let traces: Vec<Trace> =
        String::from_utf8(output.stdout).unwrap().lines().map(read_trace).collect();
    assert_eq!(traces.len(), scripts.len());
    traces
}

fn read_trace(line: &str) -> Trace {
    let said: Value = serde_json::from_str(line).unwrap();
    let run = |run: &Value| (run[0].as_u64().unwrap(), run[1].as_u64().unwrap());
    Trace {
        runs: said["runs"].as_array().unwrap().iter().map(run).collect(),
        pending: said["pending"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pending| pending.as_bool().unwrap())
            .collect(),
    }
}

/// `SplitMix64`: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % sides
    }

    /// The gap between the last event and the next: mostly near a boundary.
    fn gap(&mut self, wait: u64, max_wait: u64) -> u64 {
        match self.roll(10) {
            0 => 0,
            1 => 1,
            2 => wait - 1,
            3 => wait,
            4 => wait + 1,
            5 => max_wait - 1,
            6 => max_wait,
            7 => max_wait.saturating_sub(wait) + 1,
            _ => self.roll(wait + 1),
        }
    }

    fn script(&mut self, edges: Edges, has_max_wait: bool, is_disturbed: bool) -> Script {
        let wait = 1 + self.roll(40);
        let max_wait = has_max_wait.then(|| wait + self.roll(3) * self.roll(wait + 1));
        let mut at = 0;
        let events = (0..=self.roll(30))
            .map(|value| {
                at += self.gap(wait, max_wait.unwrap_or(wait));
                let op = match self.roll(20) {
                    0 | 1 if is_disturbed => Op::Flush,
                    2 | 3 if is_disturbed => Op::Cancel,
                    4 => Op::Nothing,
                    _ => Op::Trigger,
                };
                (at, op, value)
            })
            .collect();
        let inside = (0..12)
            .map(|_| match self.roll(12) {
                0 | 1 => vec![Op::Trigger],
                2 if is_disturbed => vec![Op::Flush],
                3 if is_disturbed => vec![Op::Cancel],
                // With a leading edge lodash nests three runs here, where we combine two of them.
                4 if is_disturbed && matches!(edges, Edges::Trailing) => {
                    vec![Op::Trigger, Op::Flush]
                }
                _ => Vec::new(),
            })
            .collect();
        Script { throttle: false, wait, max_wait, edges, keep_stale: false, events, inside }
    }

    fn throttle_script(&mut self, edges: Edges, is_disturbed: bool) -> Script {
        let script = self.script(edges, false, is_disturbed);
        Script { throttle: true, max_wait: Some(script.wait), ..script }
    }
}

const ALL_EDGES: [Edges; 3] = [Edges::Leading, Edges::Trailing, Edges::Both];

fn assert_same(scripts: &[Script]) {
    for (row, (script, theirs)) in scripts.iter().zip(lodash(scripts)).enumerate() {
        assert_eq!(debouncer(script), theirs, "seed {SEED}, script {row}: {}", script.json());
    }
}

#[test]
fn a_debouncer_runs_when_lodash_does() {
    let mut dice = Dice(SEED);
    let mut scripts = Vec::new();
    for edges in ALL_EDGES {
        for has_max_wait in [false, true] {
            for number in 0..SCRIPTS_OF_A_KIND {
                scripts.push(dice.script(edges, has_max_wait, number % 4 != 0));
            }
        }
    }
    assert_same(&scripts);
}

#[test]
fn a_debouncer_with_the_delay_as_its_longest_wait_is_the_throttle_of_lodash() {
    let mut dice = Dice(SEED);
    let mut scripts = Vec::new();
    for edges in ALL_EDGES {
        for number in 0..SCRIPTS_OF_A_KIND {
            scripts.push(dice.throttle_script(edges, number % 4 != 0));
        }
    }
    assert_same(&scripts);
}

fn is_spaced(runs: &[(u64, u64)], interval: u64) -> bool {
    runs.windows(2).all(|pair| pair[1].0 - pair[0].0 >= interval)
}

#[test]
fn a_throttle_runs_when_lodash_does_unless_that_runs_twice_in_an_interval() {
    let mut dice = Dice(SEED);
    let mut scripts = Vec::new();
    for edges in ALL_EDGES {
        for _ in 0..SCRIPTS_OF_A_KIND {
            scripts.push(dice.throttle_script(edges, false));
        }
    }
    let mut differs = 0;
    for (row, (script, theirs)) in scripts.iter().zip(lodash(&scripts)).enumerate() {
        assert!(script.is_undisturbed());
        let ours = throttle(script);
        let context = format!("seed {SEED}, script {row}: {}", script.json());
        assert!(is_spaced(&ours.runs, script.wait), "{ours:?}, {context}");
        if is_spaced(&theirs.runs, script.wait) {
            assert_eq!(ours, theirs, "{context}");
        } else {
            assert!(matches!(script.edges, Edges::Both), "{context}");
            differs += 1;
        }
    }
    // Most traces are equal, but the difference shows.
    assert!((1..scripts.len() / 3).contains(&differs), "{differs} of {}", scripts.len());
}

/// Each row is a difference that the docs name: the script, lodash's runs, ours.
#[test]
fn the_differences_are_those_that_the_docs_name() {
    let script = |wait, max_wait, edges, events: &[(u64, Op, u64)]| Script {
        throttle: false,
        wait,
        max_wait,
        edges,
        keep_stale: true,
        events: events.to_vec(),
        inside: Vec::new(),
    };
    let spacing = [(0, Op::Trigger, 1), (80, Op::Trigger, 2), (185, Op::Trigger, 3)];
    let spacing = Script { throttle: true, ..script(100, Some(100), Edges::Both, &spacing) };
    let stale = [(0, Op::Trigger, 1), (60, Op::Flush, 0), (90, Op::Trigger, 2)];
    let stale = script(100, Some(100), Edges::Trailing, &stale);
    let nested = [(0, Op::Trigger, 1)];
    let nested = Script {
        inside: vec![vec![Op::Trigger, Op::Flush, Op::Trigger, Op::Flush]],
        ..script(100, None, Edges::Trailing, &nested)
    };
    let late = [(0, Op::Trigger, 1), (130, Op::Late, 2)];
    let late = script(100, None, Edges::Trailing, &late);
    let scripts = [spacing, stale, nested, late];
    let theirs: Vec<_> = lodash(&scripts).into_iter().map(|trace| trace.runs).collect();
    assert_eq!(theirs[0], [(0, 1), (100, 2), (185, 3)]);
    assert_eq!(throttle(&scripts[0]).runs, [(0, 1), (100, 2), (200, 3)]);
    assert_eq!(theirs[1], [(60, 1), (160, 2)]);
    assert_eq!(debouncer(&scripts[1]).runs, [(60, 1), (190, 2)]);
    assert_eq!(theirs[2], [(100, 1), (100, 1_000), (100, 1_000)]);
    assert_eq!(debouncer(&scripts[2]).runs, [(100, 1), (100, 1_000)]);
    // A manual clock is never late. The tests of the state machine cover a late worker.
    assert_eq!(theirs[3], [(230, 2)]);
}
