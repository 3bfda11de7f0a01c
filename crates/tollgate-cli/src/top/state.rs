//! The server's responses, and the user's choice of what to show.

use crate::client::ClientError;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde::Deserialize;
use std::{borrow::Cow, collections::BTreeMap};

/// The responses of one refresh.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) policies: Policies,
    pub(super) top: Top,
    pub(super) store: Store,
    pub(super) config: Config,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Policies {
    pub(super) total: usize,
    pub(super) policies: Vec<Policy>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Policy {
    pub(super) id: String,
    pub(super) label: String,
    pub(super) limit: Option<Limit>,
    pub(super) mode: String,
    pub(super) level: Option<u64>,
    /// Slots in use by a `concurrency` rule.
    #[serde(default)]
    pub(super) in_flight: Option<u64>,
    /// The rate in force, for a policy with an adaptive rate.
    #[serde(default)]
    pub(super) adaptive: Option<Adaptive>,
    /// Thresholds, and how often keys have crossed them.
    #[serde(default)]
    pub(super) warn: Vec<Threshold>,
    pub(super) rates: Rates,
    #[serde(default)]
    pub(super) history: Vec<[u32; 2]>,
    pub(super) bypassed_until: Option<Until>,
}

impl Policy {
    /// Returns the rate of the last seconds.
    pub(super) fn rate(&self) -> Rate {
        Rate::recent(&self.history).unwrap_or(self.rates.short)
    }

    /// Returns its limit as a short text.
    pub(super) fn limit_text(&self) -> Cow<'_, str> {
        let text = self.limit.as_ref().map_or("unlimited", |limit| &limit.text);
        match (self.in_flight, &self.adaptive) {
            (Some(in_flight), _) => Cow::Owned(format!("{text}, {in_flight} now")),
            (None, Some(Adaptive { per_second, reason, .. })) => {
                Cow::Owned(format!("{text}, now {}/s {reason}", tenths(*per_second)))
            }
            (None, None) => Cow::Borrowed(text),
        }
    }

    /// Returns the details beside its row: how its rate moves, and its thresholds.
    pub(super) fn details(&self) -> Vec<String> {
        let adaptive = self.adaptive.as_ref().map(|adaptive| {
            let Adaptive { per_second, reason, follow, own, min, max } = adaptive;
            let [now, own, min, max] = [*per_second, *own, *min, *max].map(tenths);
            let own = if own == now { String::new() } else { format!(", by itself {own}/s") };
            format!("adaptive: {now}/s of {min} to {max}/s, follows {follow}: {reason}{own}")
        });
        let crossed = self.warn.iter().map(|Threshold { percent, crossed }| {
            let times = if *crossed == 1 { "time" } else { "times" };
            format!("{percent} % crossed {crossed} {times}")
        });
        let crossed: Vec<String> = crossed.collect();
        let thresholds =
            (!crossed.is_empty()).then(|| format!("thresholds: {}", crossed.join(", ")));
        adaptive.into_iter().chain(thresholds).collect()
    }
}

fn tenths(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

#[derive(Debug, Deserialize)]
pub(super) struct Threshold {
    pub(super) percent: u8,
    pub(super) crossed: u64,
}

/// The rate of a policy with an adaptive rate, and the reason for it.
#[derive(Debug, Deserialize)]
pub(super) struct Adaptive {
    pub(super) per_second: f64,
    pub(super) reason: String,
    pub(super) follow: String,
    /// The rate that this process would allow if the fleet had not agreed on less.
    #[serde(rename = "own_per_second")]
    pub(super) own: f64,
    #[serde(rename = "min_per_second")]
    pub(super) min: f64,
    #[serde(rename = "max_per_second")]
    pub(super) max: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Limit {
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rates {
    #[serde(rename = "10s")]
    pub(super) short: Rate,
}

/// How many seconds the shown rates cover.
pub(super) const RECENT: usize = 3;

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Rate {
    pub(super) allowed_per_second: f64,
    pub(super) denied_per_second: f64,
}

impl Rate {
    /// Returns the rate over the last seconds of a history of allowed and denied decisions; `None`
    /// if the history is empty.
    fn recent(history: &[[u32; 2]]) -> Option<Self> {
        let last = history.last_chunk::<RECENT>().map_or(history, |last| last);
        let mean = |index: usize| {
            let sum: f64 = last.iter().map(|second| f64::from(second[index])).sum();
            sum / last.len() as f64
        };
        let (allowed_per_second, denied_per_second) = (mean(0), mean(1));
        (!last.is_empty()).then_some(Self { allowed_per_second, denied_per_second })
    }

    /// Returns the percentage of denials; `None` if there were no decisions.
    pub(super) fn denied_percent(&self) -> Option<f64> {
        let all = self.allowed_per_second + self.denied_per_second;
        (all > 0.0).then(|| self.denied_per_second * 100.0 / all)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Until {
    pub(super) left_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Top {
    #[serde(default)]
    pub(super) policy: String,
    pub(super) why: Option<String>,
    #[serde(default)]
    pub(super) denied: Vec<TopKey>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopKey {
    pub(super) key: String,
    pub(super) cost: u64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Store {
    pub(super) stores: Vec<OneStore>,
    pub(super) errors: u64,
    pub(super) is_failing: bool,
    pub(super) last_error: Option<String>,
    pub(super) listeners: BTreeMap<String, Listener>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneStore {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) keys: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) shared: Option<Remote>,
}

/// The state of a store that several processes share.
#[derive(Debug, Deserialize)]
pub(super) struct Remote {
    pub(super) fleet_size: u32,
    pub(super) degraded: Option<String>,
    pub(super) leased: u64,
    pub(super) calls: u64,
    pub(super) nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) address: String,
    /// `up`, or why the link sends no calls: `connecting`, or `open` and `probing` for its circuit
    /// breaker.
    pub(super) state: String,
    pub(super) in_flight: u64,
    pub(super) last_error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Listener {
    pub(super) open: u64,
    pub(super) most: u64,
    pub(super) requests: u64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    pub(super) version: u64,
    pub(super) last_load: Option<Load>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Load {
    pub(super) error: Option<String>,
}

/// The order of the policies. The server sorts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Denied,
    Allowed,
    Name,
    File,
}

impl Sort {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Allowed => "allowed",
            Self::Name => "name",
            Self::File => "file",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Denied => Self::Allowed,
            Self::Allowed => Self::Name,
            Self::Name => Self::File,
            Self::File => Self::Denied,
        }
    }
}

/// The next step after a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Draw,
    /// Request new figures from the server at once.
    Ask,
    Quit,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) server: String,
    pub(super) picture: Picture,
    /// Why the picture is out of date.
    pub(super) error: Option<String>,
    sort: Sort,
    filter: String,
    /// Whether the output is plain text, without a user at the keyboard.
    pub(super) is_plain: bool,
    /// Whether key presses go to the filter.
    pub(super) is_typing: bool,
    /// Whether the list of key bindings is shown.
    pub(super) is_help: bool,
    /// The id of the selected policy: policies move when they are sorted.
    chosen: Option<String>,
}

/// The longest filter.
const LONGEST: usize = 80;

impl State {
    pub(super) fn new(server: String, filter: String) -> Self {
        Self {
            server,
            picture: Picture::default(),
            error: None,
            sort: Sort::default(),
            filter,
            is_plain: false,
            is_typing: false,
            is_help: false,
            chosen: None,
        }
    }

    pub(super) const fn sort(&self) -> Sort {
        self.sort
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    /// Shows the new figures. After an error, the old ones stay.
    pub(super) fn show(&mut self, told: Result<Picture, ClientError>) {
        match told {
            Ok(picture) => (self.picture, self.error) = (picture, None),
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// Returns the position of the selected policy, or of the first if it is gone.
    pub(super) fn position(&self) -> Option<usize> {
        let policies = &self.picture.policies.policies;
        let chosen = self.chosen.as_ref();
        let found = chosen.and_then(|id| policies.iter().position(|policy| policy.id == *id));
        found.or((!policies.is_empty()).then_some(0))
    }

    /// Returns the selected policy among those in the response; the first if it is not there.
    pub(super) fn choice<'a>(&self, told: &'a Policies) -> Option<&'a Policy> {
        let chosen = self.chosen.as_ref();
        let found = chosen.and_then(|id| told.policies.iter().find(|policy| policy.id == *id));
        found.or(told.policies.first())
    }

    /// Handles a key press.
    pub(super) fn press(&mut self, key: KeyEvent) -> Then {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Then::Quit;
        }
        if self.is_typing {
            return self.type_filter(key.code);
        }
        if self.is_help && key.code != KeyCode::Char('q') {
            self.is_help = false;
            return Then::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Then::Quit,
            KeyCode::Char('?') => {
                self.is_help = true;
                return Then::Draw;
            }
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => {
                self.is_typing = true;
                return Then::Draw;
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.step(usize::checked_sub),
            KeyCode::Down | KeyCode::Char('j') => self.step(usize::checked_add),
            _ => return Then::Draw,
        }
        Then::Ask
    }

    fn type_filter(&mut self, code: KeyCode) -> Then {
        match code {
            KeyCode::Enter => {
                self.is_typing = false;
                return Then::Draw;
            }
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(typed) if self.filter.len() < LONGEST => self.filter.push(typed),
            _ => return Then::Draw,
        }
        Then::Ask
    }

    fn step(&mut self, step: fn(usize, usize) -> Option<usize>) {
        let next = self.position().and_then(|at| step(at, 1));
        let policies = &self.picture.policies.policies;
        if let Some(policy) = next.and_then(|at| policies.get(at)) {
            self.chosen = Some(policy.id.clone());
        }
    }
}
