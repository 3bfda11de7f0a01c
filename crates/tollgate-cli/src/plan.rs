//! The plan of a run: the checked command line.

use crate::{
    args::{Command, CompareArgs, Format, TableArgs, Traffic},
    arrivals::{
        self,
        suggest::{self, Suggestion},
    },
    replay::{Events, Replay},
};
use tollgate::{Algorithm, Quota, QuotaError};

/// An invalid command line. The text names the value, the rule and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputError(pub(crate) String);

impl InputError {
    fn new(error: impl std::error::Error) -> Self {
        Self(error.to_string())
    }
}

/// The report to write. Every invalid argument has been rejected before.
#[derive(Debug)]
pub(crate) enum Plan {
    Table(Table),
    Compare(Comparison),
    Explain(Quota),
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) replay: Replay,
    pub(crate) events: Events,
    pub(crate) format: Format,
    /// Hints to print below the table, for new users.
    pub(crate) hints: &'static str,
}

/// A comparison: the same events through every algorithm.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) quota: Quota,
    pub(crate) events: Events,
    pub(crate) replays: Vec<Replay>,
    /// The changes and omissions, with their reasons.
    pub(crate) notes: Vec<String>,
}

const HINTS: &str = "
Try next:
  tollgate table 10/min burst 2      your own quota, event by event
  tollgate compare 10/s              every algorithm on the same events
  tollgate explain 60/min            what a quota means, in words and numbers
";

impl Plan {
    pub(crate) fn new(command: &Command) -> Result<Self, InputError> {
        match command {
            Command::Table(args) => {
                table(args, if args.traffic.quota.is_empty() { HINTS } else { "" }).map(Self::Table)
            }
            Command::Compare(args) => compare(args).map(Self::Compare),
            Command::Explain(args) => quota(&args.quota).map(Self::Explain),
        }
    }
}

fn table(args: &TableArgs, hints: &'static str) -> Result<Table, InputError> {
    let algorithm = match &args.algorithm {
        Some(name) => name.parse().map_err(InputError::new)?,
        None => Algorithm::default(),
    };
    let quota = match args.traffic.quota.as_slice() {
        [] => default_quota(algorithm),
        words => quota(words)?,
    };
    let events = events(&args.traffic, &quota, suggest::for_table)?;
    Ok(Table {
        replay: Replay::run(quota, algorithm, &events).map_err(InputError::new)?,
        events,
        format: args.format,
        hints,
    })
}

fn compare(args: &CompareArgs) -> Result<Comparison, InputError> {
    let quota = match args.traffic.quota.as_slice() {
        [] => Quota::per_second(10),
        words => quota(words)?,
    };
    let events = events(&args.traffic, &quota, suggest::for_compare)?;
    let (mut replays, mut notes) = (Vec::new(), Vec::new());
    for algorithm in Algorithm::ALL {
        let replay = match Replay::run(quota, algorithm, &events) {
            Err(QuotaError::BurstOnWindow { .. }) if quota.count() > 0 => {
                Replay::run(quota.without_burst(), algorithm, &events)
            }
            other => other,
        };
        match replay {
            Ok(replay) => replays.push(replay),
            Err(QuotaError::BurstOnWindow { .. }) => notes.push(format!(
                "{algorithm} is left out: a budget that never refills has no window"
            )),
            Err(error) => notes.push(format!("{algorithm} is left out: {error}")),
        }
    }
    if let Some(window) = replays.iter().find(|replay| replay.quota != quota) {
        let (window, burst) = (window.quota, quota.capacity());
        notes.push(format!(
            "windows have no burst: they run with {window}; only gcra uses the burst {burst}"
        ));
    }
    Ok(Comparison { quota, events, replays, notes })
}

/// The default quota: small enough to be exhausted in a few rows.
fn default_quota(algorithm: Algorithm) -> Quota {
    match algorithm {
        Algorithm::Gcra => Quota::per_second(5).burst(3),
        _ => Quota::per_second(5),
    }
}

fn quota(words: &[String]) -> Result<Quota, InputError> {
    let quota: Quota = words.join(" ").parse().map_err(InputError::new)?;
    quota.check().map_err(InputError::new)?;
    Ok(quota)
}

type Suggest = fn(&Quota, Option<u64>) -> Suggestion;

fn events(traffic: &Traffic, quota: &Quota, suggest: Suggest) -> Result<Events, InputError> {
    let Suggestion { arrivals, cost } = match &traffic.arrivals {
        Some(arrivals) => {
            Suggestion { arrivals: arrivals.clone(), cost: traffic.cost.unwrap_or(1) }
        }
        None => suggest(quota, traffic.cost),
    };
    Ok(Events { ticks: arrivals::parse(&arrivals).map_err(InputError::new)?, arrivals, cost })
}
