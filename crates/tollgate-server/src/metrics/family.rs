//! One family of metrics, and how its samples are written.

use super::{
    Exposition,
    text::{Kind, Writer},
};
use crate::{
    admin::store_name,
    engine::{NodeStatus, RemoteStatus},
    net::{Listener, TrafficCounts},
    plan::{Counted, LiveCounts, Rule},
};

/// One metric with all its series.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) samples: Samples,
}

/// The next position.
pub(super) enum Next {
    /// This rule of the same family.
    Rule(usize),
    /// The next family.
    Family,
}

/// Where samples come from.
#[derive(Debug)]
pub(super) enum Samples {
    /// Each rule.
    Rules(fn(&Exposition, &Rule, &mut RuleWriter<'_>)),
    /// Each listener.
    Listeners(fn(&Exposition, TrafficCounts) -> u64),
    /// Each store that knows it.
    Stores(fn(&Exposition, usize) -> Option<f64>),
    /// Each shared store.
    Remotes(fn(&RemoteStatus) -> f64),
    /// Each server of each shared store.
    Nodes(fn(&NodeStatus) -> u64),
    /// One sample, if it is known.
    One(fn(&Exposition) -> Option<f64>),
    /// Anything else.
    Other(fn(&Exposition, &mut Writer)),
}

/// Writes samples of one rule.
pub(super) struct RuleWriter<'a> {
    writer: &'a mut Writer,
    name: &'static str,
    policy: &'a str,
    domain: &'a str,
}

impl RuleWriter<'_> {
    pub(super) fn sample(&mut self, value: impl std::fmt::Display) {
        let labels = [("policy", self.policy), ("domain", self.domain)];
        self.writer.sample(self.name, &labels, value);
    }

    pub(super) fn labelled(&mut self, label: (&str, &str), value: impl std::fmt::Display) {
        let labels = [("policy", self.policy), ("domain", self.domain), label];
        self.writer.sample(self.name, &labels, value);
    }

    pub(super) fn counts(&mut self, counts: &LiveCounts, values: &[u64]) {
        for (kind, value) in Counted::ALL.into_iter().zip(values) {
            let is_usual = matches!(kind, Counted::Allowed | Counted::Denied);
            if !is_usual && counts.of(kind) == 0 {
                continue;
            }
            let (result, reason) = kind.labels();
            let labels = [
                ("policy", self.policy),
                ("domain", self.domain),
                ("result", result),
                ("reason", reason),
            ];
            self.writer.sample(self.name, &labels, value);
        }
    }
}

impl Family {
    /// Writes samples; if there are many, not all of them.
    pub(super) fn write(&self, from: &Exposition, writer: &mut Writer) -> Next {
        match &self.samples {
            Samples::Rules(write) => {
                let configured = from.plan.rules().len();
                for (index, rule) in from.plan.all_rules().iter().enumerate().skip(from.at) {
                    if index >= configured && !rule.live().is_used() {
                        continue;
                    }
                    if writer.len() > super::PIECE {
                        return Next::Rule(index);
                    }
                    let (name, policy, domain) = (self.name, from.label(index), rule.domain());
                    write(from, rule, &mut RuleWriter { writer, name, policy, domain });
                }
            }
            Samples::Listeners(count) => {
                for listener in Listener::ALL {
                    let counts = from.shared.traffic(listener).counts();
                    let labels = [("listener", listener.name())];
                    writer.sample(self.name, &labels, count(from, counts));
                }
            }
            Samples::Stores(read) => {
                for number in 0..from.shared.engine.stores().len() {
                    if let Some(value) = read(from, number) {
                        let labels = [("store", store_name(&from.plan, number))];
                        writer.sample(self.name, &labels, value);
                    }
                }
            }
            Samples::Remotes(read) => {
                for (number, status) in &from.remotes {
                    let labels = [("store", store_name(&from.plan, *number))];
                    writer.sample(self.name, &labels, read(status));
                }
            }
            Samples::Nodes(read) => {
                for (number, status) in &from.remotes {
                    for node in status.nodes.iter().take(MOST_NODES) {
                        let store = store_name(&from.plan, *number);
                        let labels = [("store", store), ("node", &*node.address)];
                        writer.sample(self.name, &labels, read(node));
                    }
                }
            }
            Samples::One(read) => {
                if let Some(value) = read(from) {
                    writer.sample(self.name, &[], value);
                }
            }
            Samples::Other(write) => write(from, writer),
        }
        Next::Family
    }
}

/// The most servers of one store in the metrics, so that labels are bounded for any cluster.
const MOST_NODES: usize = 128;
