//! Metrics, as Prometheus reads them.
//!
//! Written by hand, family by family, in pieces: a scrape of ten thousand rules never has the whole
//! text in memory and gives other connections their turn between pieces. Labels are policies,
//! domains, results, reasons, listeners and stores: what the configuration names, never a key.
//!
//! A policy is called by its name. If two policies of a domain have the same name, both are called by
//! their ids, so that no two series are equal.
//!
//! Series of reasons that never occurred are left out, except the two that every policy has:
//! `allowed` and `denied` by `quota`. So a rate has a zero to start from where it matters. Limits that come with
//! calls (`shop!override`, `cl.throttle`) are policies like others, from their first decision on.

mod families;
mod family;
mod process;
mod samples;
mod text;

use crate::{
    admin::ControlStatus,
    engine::RemoteStatus,
    plan::{Plan, Rule, RuleIndex},
    server::Shared,
};
use family::{Family, Next};
use std::{collections::HashMap, sync::Arc};
use text::Writer;
use tollgate::Tick;

/// A piece is about so long, in bytes.
const PIECE: usize = 32 << 10;

/// Which of the two text forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the form that an `Accept` header asks for.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let wants = |kind: &str| {
            accept.split(',').any(|part| {
                let mut fields = part.split(';').map(str::trim);
                let is_it = fields.next().is_some_and(|name| name.eq_ignore_ascii_case(kind));
                is_it && !fields.any(|field| matches!(field, "q=0" | "q=0.0"))
            })
        };
        if wants("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }
}

/// All metrics as of one moment, piece by piece: an iterator over texts.
#[derive(Debug)]
pub struct Exposition {
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    /// Whether a rule is called by its name.
    is_named: Vec<bool>,
    control: Option<ControlStatus>,
    /// How many are in flight, by the ids of rules, where that is known.
    in_flight: HashMap<Box<str>, u64>,
    /// The shared stores, by number.
    remotes: Vec<(usize, RemoteStatus)>,
    now: Tick,
    format: Format,
    family: usize,
    /// Where in the family's list of rules to go on.
    at: usize,
    is_over: bool,
}

impl Exposition {
    /// Returns the metrics of a server as of now.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, format: Format) -> Self {
        let plan = shared.engine.plan_arc();
        let is_named = named(&plan);
        let control = shared.admin.control().map(|control| control.status());
        let now = shared.engine.now();
        let shared = Arc::clone(shared);
        let numbered = shared.engine.stores().iter().enumerate();
        let remotes = numbered.filter_map(|(at, store)| Some((at, store.remote()?.status())));
        let remotes = remotes.collect();
        let in_flight = shared.engine.in_flight(&plan);
        Self {
            shared,
            plan,
            is_named,
            control,
            in_flight,
            remotes,
            now,
            format,
            family: 0,
            at: 0,
            is_over: false,
        }
    }

    /// Returns the type for the `Content-Type` header.
    #[must_use]
    pub const fn content_type(&self) -> &'static str {
        match self.format {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns what a rule is called in metrics.
    fn label(&self, index: usize) -> &str {
        let rule = self.plan.rule(index as RuleIndex);
        if self.is_named[index] { rule.label() } else { rule.id() }
    }
}

/// Tells for each rule whether its name is its own: no other of the domain has it, as name or as id.
fn named(plan: &Plan) -> Vec<bool> {
    let mut uses: HashMap<(&str, &str), u32> = HashMap::new();
    for rule in plan.all_rules() {
        *uses.entry((rule.domain(), rule.id())).or_default() += 1;
        if let Some(name) = rule.name() {
            *uses.entry((rule.domain(), name)).or_default() += 1;
        }
    }
    let is_own =
        |rule: &Rule| rule.name().is_some_and(|name| uses.get(&(rule.domain(), name)) == Some(&1));
    plan.all_rules().iter().map(is_own).collect()
}

impl Iterator for Exposition {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let mut writer = Writer::new(self.format, PIECE);
        while writer.len() < PIECE {
            let Some(family) = Family::ALL.get(self.family) else {
                writer.end();
                self.is_over = true;
                break;
            };
            if self.at == 0 {
                writer.head(family);
            }
            match family.write(self, &mut writer) {
                Next::Rule(at) => self.at = at,
                Next::Family => (self.family, self.at) = (self.family + 1, 0),
            }
        }
        Some(writer.into_text())
    }
}
