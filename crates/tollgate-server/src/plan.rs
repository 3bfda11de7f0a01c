//! A configuration, compiled: which rules a descriptor meets, and what each of them counts.
//!
//! # Finding the rules of a descriptor
//!
//! Entry by entry, from the root of its domain. At each level the entry's key chooses among the
//! nodes: the one with exactly its value, else the first pattern (wildcard, regular expression,
//! network) in the order of the file, else the node without a value. The search never backtracks.
//! The limits of the node at the last entry apply; none apply if the tree ends earlier, or later.
//!
//! # Counting
//!
//! Each limit is a rule with its own policy. Its key in the store consists of the *free* values on
//! its path: those that the configuration leaves open. If a rule has one free value, that value is
//! its key.

mod adaptive;
mod agreed;
mod compile;
mod live;
mod rule;
mod tree;

pub use adaptive::AdaptiveRule;
pub use compile::PlanError;
pub use live::{Counted, Live, LiveCounts};
pub use rule::{Kind, Parent, Rule, Slots, ValueOf};
pub use tree::{Entry, Found};

use crate::config::{Config, Defaults, ForwardAuth, Unit};
use std::{borrow::Cow, collections::HashMap, fmt};
use tollgate::store::Policy;
use tree::Level;

/// The most entries that a descriptor can have.
pub const MAX_ENTRIES: usize = 32;

/// The number of a rule in its plan.
pub type RuleIndex = u32;

/// A compiled configuration.
#[derive(Debug)]
pub struct Plan {
    version: u64,
    domains: HashMap<Box<str>, DomainPlan>,
    /// The rules of the configuration, and behind them those of limits that come with calls.
    rules: Vec<Rule>,
    /// How many rules are of the configuration.
    configured: usize,
    /// Rules by what they can be called; `None` for names that several have.
    names: HashMap<Box<str>, Option<RuleIndex>>,
    /// The rules whose rate moves.
    adaptive: Vec<RuleIndex>,
    forward_auth: Vec<ForwardAuth>,
    config: Config,
}

/// A compiled domain.
#[derive(Debug)]
pub struct DomainPlan {
    level: Level,
    defaults: Defaults,
    store: usize,
    /// For limits that come with the request: one policy for each unit.
    windows: [Policy; Unit::ALL.len()],
    /// Counts these limits.
    override_rule: RuleIndex,
}

impl DomainPlan {
    /// Returns what the rules have in common.
    #[must_use]
    pub const fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Returns the number of the store of limits that come with the request.
    #[must_use]
    pub const fn store(&self) -> usize {
        self.store
    }

    /// Returns the policies of limits that come with the request.
    #[must_use]
    pub const fn windows(&self) -> &[Policy] {
        &self.windows
    }

    /// Returns the policy of limits that come with the request.
    #[must_use]
    pub fn window(&self, unit: Unit) -> &Policy {
        let index = Unit::ALL.iter().position(|known| *known == unit);
        &self.windows[index.unwrap_or(0)]
    }

    /// Returns the rule that counts limits that come with the request and share no other rule's count.
    #[must_use]
    pub const fn override_rule(&self) -> RuleIndex {
        self.override_rule
    }

    /// Finds the rules that a descriptor meets.
    #[must_use]
    pub fn find<'p>(&'p self, entries: &[Entry<'_>]) -> Option<Found<'p>> {
        self.level.find(entries)
    }

    /// Tells how a descriptor finds its rules, step by step, in words.
    #[must_use]
    pub fn explain(&self, entries: &[Entry<'_>]) -> Vec<String> {
        self.level.explain(entries)
    }
}

/// Why a name names no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Nothing is called so.
    Unknown {
        /// The name.
        name: String,
        /// A name that looks like it.
        nearest: Option<String>,
        /// Names that there are: the first few, and `...` if there are more.
        known: String,
    },
    /// Several are.
    Ambiguous {
        /// The name.
        name: String,
        /// The full names of two of them.
        ids: Vec<String>,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, nearest: Some(nearest), .. } => {
                write!(f, "there is no policy \"{name}\"; did you mean \"{nearest}\"?")
            }
            Self::Unknown { name, nearest: None, known } => {
                write!(f, "there is no policy \"{name}\"; use one of {known}")
            }
            Self::Ambiguous { name, ids } => {
                write!(f, "several policies are named \"{name}\"; use one of {}", ids.join(", "))
            }
        }
    }
}

impl std::error::Error for NameError {}

impl Plan {
    /// Returns the number of this plan: how many were loaded before it, and one.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the configuration that it was made from.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns all domains.
    pub fn domains(&self) -> impl Iterator<Item = &DomainPlan> {
        self.domains.values()
    }

    /// Returns a domain.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&DomainPlan> {
        self.domains.get(name)
    }

    /// Returns the rules of the configuration, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules[..self.configured]
    }

    /// Returns all rules: those of the configuration, and then the [`per_call_rules`](Self::per_call_rules).
    #[must_use]
    pub fn all_rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rules that count limits that come with calls: one for each domain, named after it
    /// (`shop!override`), and `cl.throttle`.
    #[must_use]
    pub fn per_call_rules(&self) -> &[Rule] {
        &self.rules[self.configured..]
    }

    /// Returns the rules of the configuration, and then those of limits that come with calls which have decided
    /// something.
    pub fn rules_in_use(&self) -> impl Iterator<Item = &Rule> {
        self.rules().iter().chain(self.per_call_rules().iter().filter(|rule| rule.live().is_used()))
    }

    /// Returns the rule of `CL.THROTTLE` and `THROTTLE`.
    #[must_use]
    pub fn throttle_rule(&self) -> &Rule {
        // INVARIANT: compiling adds it last.
        &self.rules[self.rules.len() - 1]
    }

    /// Returns a rule. Its number must be of this plan.
    #[must_use]
    pub fn rule(&self, index: RuleIndex) -> &Rule {
        &self.rules[index as usize]
    }

    /// Returns the rules whose rate moves, each with its rate.
    pub fn adaptive_rules(&self) -> impl Iterator<Item = (RuleIndex, &AdaptiveRule)> {
        self.adaptive.iter().filter_map(|index| Some((*index, self.rule(*index).adaptive()?)))
    }

    /// Returns how requests of proxies become descriptors.
    #[must_use]
    pub fn forward_auth(&self, path: &str) -> Option<&ForwardAuth> {
        self.forward_auth.iter().find(|route| route.path == path)
    }

    /// Finds a rule by what it is called: its name, `domain/name`, or its id.
    ///
    /// # Errors
    ///
    /// When there is none, or when several have the name.
    pub fn named(&self, name: &str) -> Result<RuleIndex, NameError> {
        match self.names.get(name) {
            Some(Some(index)) => Ok(*index),
            Some(None) => {
                let same = |rule: &&Rule| {
                    let full = name.strip_prefix(rule.domain()).and_then(|it| it.strip_prefix('/'));
                    rule.name().is_some_and(|it| it == name || Some(it) == full)
                };
                let ids = self.rules.iter().filter(same).take(3).map(|rule| rule.id().into());
                Err(NameError::Ambiguous { name: shortened(name), ids: ids.collect() })
            }
            None => Err(self.unknown(name)),
        }
    }

    /// Returns the rule with an id, which is not just a name that looks like it.
    #[must_use]
    pub fn with_id(&self, id: &str) -> Option<&Rule> {
        let rule = self.rule((*self.names.get(id)?)?);
        (rule.id() == id).then_some(rule)
    }

    /// Returns what tells a rule from all others: its label, the label after its domain, or else its id.
    #[must_use]
    pub fn title<'r>(&self, rule: &'r Rule) -> Cow<'r, str> {
        let is_it = |name: &str| {
            let found = self.names.get(name).copied().flatten();
            found.is_some_and(|index| self.rule(index).id() == rule.id())
        };
        let full = || format!("{}/{}", rule.domain(), rule.label());
        match rule.label() {
            label if is_it(label) => label.into(),
            _ => Some(full()).filter(|full| is_it(full)).map_or(rule.id().into(), Cow::from),
        }
    }

    #[cold]
    fn unknown(&self, name: &str) -> NameError {
        let lower = name.to_ascii_lowercase();
        let alike = |known: &&str| {
            let known = known.to_ascii_lowercase();
            known.starts_with(&lower) || lower.starts_with(&known)
        };
        let names = self.rules().iter().map(Rule::label);
        let nearest = names.filter(|known| !name.is_empty() && alike(known)).min();
        let mut known: Vec<&str> = self.rules().iter().take(KNOWN).map(Rule::label).collect();
        match self.rules().len() {
            0 => known.push("none, because the configuration has no limits"),
            count if count > KNOWN => known.push("..."),
            _ => {}
        }
        let (nearest, known) = (nearest.map(Into::into), known.join(", "));
        NameError::Unknown { name: shortened(name), nearest, known }
    }
}

/// Names that an error lists.
const KNOWN: usize = 8;

fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}
