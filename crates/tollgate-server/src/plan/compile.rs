//! Compiles a configuration to a plan.

use super::{
    AdaptiveRule, DomainPlan, Kind, Live, MAX_ENTRIES, Parent, Plan, Rule, RuleIndex, Slots,
    ValueOf,
    tree::{Level, Pattern},
};
use crate::config::{
    Ban, Concurrency, Config, Defaults, Descriptor, Domain, Lease, Limit, Place, Rate, Unit,
    ValueMatch,
};
use std::{collections::HashMap, fmt, sync::Arc};
use tollgate::{Algorithm, Escalation, KeyedError, Quota, QuotaError, store::Policy};

/// Why a configuration cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The place of the cause.
    pub at: Place,
    /// The mistake.
    pub text: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}

impl std::error::Error for PlanError {}

/// One level of the path to a node.
#[derive(Clone, Debug)]
struct Step {
    key: Box<str>,
    /// The value, if only one matches.
    fixed: Option<Box<str>>,
    is_free: bool,
    /// The level's part of the id.
    text: String,
}

struct Compiler<'a> {
    old: Option<&'a Plan>,
    top_keys: usize,
    stores: HashMap<&'a str, usize>,
    rules: Vec<Rule>,
    /// The path of each rule.
    paths: Vec<Vec<Step>>,
    /// Parents by name, resolved when all rules are known.
    wanted: Vec<(RuleIndex, Place, Vec<String>)>,
}

impl Plan {
    /// Compiles a configuration. Rules that `old` has too keep their counts.
    ///
    /// # Errors
    ///
    /// When a quota is invalid, or a name refers to nothing.
    pub fn compile(config: Config, old: Option<&Self>) -> Result<Self, PlanError> {
        let numbered = config.stores.iter().enumerate();
        let mut compiler = Compiler {
            old,
            top_keys: config.server.top_keys.unwrap_or(DEFAULT_TOP_KEYS),
            stores: numbered.map(|(index, store)| (&*store.name, index + 1)).collect(),
            rules: Vec::new(),
            paths: Vec::new(),
            wanted: Vec::new(),
        };
        let mut domains: HashMap<Box<str>, DomainPlan> = HashMap::new();
        for domain in &config.domains {
            let compiled = compiler.domain(domain)?;
            domains.insert(domain.name.as_str().into(), compiled);
        }
        compiler.link_parents()?;
        let configured = compiler.rules.len();
        for domain in &config.domains {
            let id = format!("{}!override", escaped(&domain.name, ":"));
            let index = compiler.per_call_rule(domain, &id)?;
            if let Some(compiled) = domains.get_mut(domain.name.as_str()) {
                compiled.override_rule = index;
            }
        }
        compiler.per_call_rule(&Domain::default(), "cl.throttle")?;
        let rules = compiler.rules;
        let names = names(&rules);
        let version = old.map_or(1, |old| old.version + 1);
        let forward_auth = config.forward_auth.clone();
        let moves = |(index, rule): (usize, &Rule)| rule.adaptive.is_some().then_some(index as u32);
        let adaptive = rules.iter().enumerate().filter_map(moves).collect();
        Ok(Self { version, domains, rules, configured, names, adaptive, forward_auth, config })
    }
}

/// How many keys of each policy are remembered by name, unless the configuration sets it.
const DEFAULT_TOP_KEYS: usize = 100;

/// Returns the rules by their names.
fn names(rules: &[Rule]) -> HashMap<Box<str>, Option<RuleIndex>> {
    let mut names: HashMap<Box<str>, Option<RuleIndex>> = HashMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let index = index as RuleIndex;
        if let Some(name) = rule.name() {
            let full = format!("{}/{name}", rule.domain());
            for name in [name, &full] {
                names.entry(name.into()).and_modify(|known| *known = None).or_insert(Some(index));
            }
        }
    }
    // An id takes precedence over a name that looks like one.
    for (index, rule) in rules.iter().enumerate() {
        names.insert(rule.id().into(), Some(index as RuleIndex));
    }
    names
}

impl Compiler<'_> {
    fn domain(&mut self, domain: &Domain) -> Result<DomainPlan, PlanError> {
        let mut level = Level::default();
        let mut path = Vec::new();
        self.level(domain, &domain.descriptors, &mut level, &mut path)?;
        let prefix = escaped(&domain.name, ":");
        let old = self.old.and_then(|old| old.domain(&domain.name));
        let store = self.store(domain.defaults.store.as_deref(), &domain.at)?;
        let windows = match old {
            Some(old) if old.store == store => old.windows.clone(),
            _ => ad_hoc_windows(&prefix).map_err(|error| at(&domain.at, &error))?,
        };
        let defaults = domain.defaults.clone();
        Ok(DomainPlan { level, defaults, store, windows, override_rule: 0 })
    }

    fn level(
        &mut self,
        domain: &Domain,
        descriptors: &[Descriptor],
        level: &mut Level,
        path: &mut Vec<Step>,
    ) -> Result<(), PlanError> {
        for descriptor in descriptors {
            if path.len() == MAX_ENTRIES {
                let text =
                    format!("descriptors are nested deeper than {MAX_ENTRIES} levels; use fewer");
                return Err(PlanError { at: descriptor.at.clone(), text });
            }
            let fixed = match &descriptor.value {
                ValueMatch::Exact(value) => Some(value.as_str()),
                _ => None,
            };
            let is_free = fixed.is_none() && !descriptor.share_threshold;
            path.push(Step {
                key: descriptor.key.as_str().into(),
                fixed: fixed.map(Into::into),
                is_free,
                text: step_text(descriptor),
            });
            let first = self.rules.len();
            for (number, limit) in descriptor.limits.iter().enumerate() {
                let rule = self.rule(domain, (descriptor, limit, number), path)?;
                self.rules.push(rule);
                self.paths.push(path.clone());
                if !descriptor.parents.is_empty() {
                    let index = self.rules.len() as RuleIndex - 1;
                    self.wanted.push((index, descriptor.at.clone(), descriptor.parents.clone()));
                }
            }
            let (first, end) = (first as RuleIndex, self.rules.len() as RuleIndex);
            for rule in &mut self.rules[first as usize..] {
                rule.node = (first, end);
            }
            let rules = (first..end).collect();
            let concurrency = self.concurrency(domain, descriptor, path)?;
            let node = level.insert(&descriptor.key, fixed, pattern(&descriptor.value));
            (node.is_free, node.rules, node.concurrency) = (is_free, rules, concurrency);
            self.level(domain, &descriptor.descriptors, &mut node.next, path)?;
            path.pop();
        }
        Ok(())
    }

    /// Adds the rule of a descriptor's `concurrency`, if it has one.
    fn concurrency(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        path: &[Step],
    ) -> Result<Option<RuleIndex>, PlanError> {
        let Some(Concurrency { at, name, limit, lease }) = &descriptor.concurrency else {
            return Ok(None);
        };
        // No other rule's id ends like this: `#` is escaped in keys and values.
        let id: Box<str> = format!("{}#concurrency", id(domain, path, 0)).into();
        let rule = Rule {
            live: self.live(&id, None).map_err(|error| self::at(at, &error))?,
            name: name.as_deref().map(Into::into),
            kind: Kind::Concurrency(Slots { limit: *limit, lease: *lease }),
            quota_mode: false,
            count_refused: false,
            lease: Lease::Off,
            place: at.clone(),
            ..self.bare_rule(domain, (descriptor, id), path)?
        };
        let index = self.rules.len() as RuleIndex;
        self.rules.push(Rule { node: (index, index + 1), ..rule });
        self.paths.push(path.to_vec());
        Ok(Some(index))
    }

    /// Adds a rule that counts limits that come with the calls.
    fn per_call_rule(&mut self, domain: &Domain, id: &str) -> Result<RuleIndex, PlanError> {
        let (defaults, id) = (&domain.defaults, Box::from(id));
        let index = self.rules.len() as RuleIndex;
        let rule = Rule {
            live: self.live(&id, None).map_err(|error| at(&domain.at, &error))?,
            id,
            name: None,
            domain: domain.name.as_str().into(),
            kind: Kind::PerCall,
            adaptive: None,
            overrides: HashMap::new(),
            free_keys: Box::new(["key".into()]),
            is_last_free: false,
            shadow: defaults.shadow_mode,
            quota_mode: false,
            count_refused: defaults.count_refused,
            warn: Box::default(),
            enforce: 100,
            failure: defaults.failure,
            replaces: Box::default(),
            parents: Box::default(),
            metadata: None,
            lease: Lease::Off,
            store: self.store(defaults.store.as_deref(), &domain.at)?,
            place: domain.at.clone(),
            node: (index, index + 1),
            shares_values: false,
        };
        self.rules.push(rule);
        Ok(index)
    }

    fn rule(
        &self,
        domain: &Domain,
        (descriptor, limit, number): (&Descriptor, &Limit, usize),
        path: &[Step],
    ) -> Result<Rule, PlanError> {
        let defaults = &domain.defaults;
        let bare = self.bare_rule(domain, (descriptor, id(domain, path, number)), path)?;
        let (id, store) = (&bare.id, bare.store);
        // A policy belongs to the store that it was first used with.
        let before = self.old.and_then(|old| old.with_id(id));
        let before = before.filter(|before| before.store == store);
        let kind = kind_of(id, &limit.rate, limit.algorithm, defaults)
            .map_err(|error| at(&limit.at, &error))?;
        let kind = unless_same(kind, before.map(|before| &before.kind));
        let mut overrides = HashMap::new();
        for special in &descriptor.overrides {
            let kind = kind_of(id, &special.rate, limit.algorithm, defaults)
                .map_err(|error| at(&special.at, &error))?;
            for value in &special.values {
                let before = before.and_then(|before| before.overrides.get(value.as_str()));
                overrides.insert(value.as_str().into(), unless_same(kind.clone(), before));
            }
        }
        let adaptive = descriptor.adaptive.as_ref().zip(kind.policy().zip(limit.rate.per_second()));
        let adaptive = adaptive.map(|(settings, full)| {
            let before = before.and_then(|before| before.adaptive.as_ref());
            AdaptiveRule::new(settings, full, before)
        });
        Ok(Rule {
            name: limit.name.as_deref().map(Into::into),
            // Permits taken in advance would keep an old rate.
            lease: if adaptive.is_some() { Lease::Off } else { bare.lease },
            adaptive,
            kind,
            overrides,
            warn: limit.warn.as_slice().into(),
            replaces: limit.replaces.iter().map(|name| name.as_str().into()).collect(),
            place: limit.at.clone(),
            ..bare
        })
    }

    /// Returns the settings that a rule takes from its descriptor, without its limit.
    fn bare_rule(
        &self,
        domain: &Domain,
        (descriptor, id): (&Descriptor, Box<str>),
        path: &[Step],
    ) -> Result<Rule, PlanError> {
        let defaults = &domain.defaults;
        let store = descriptor.store.as_deref().or(defaults.store.as_deref());
        let free = path.iter().filter(|step| step.is_free);
        Ok(Rule {
            live: self.live(&id, descriptor.ban).map_err(|error| at(&descriptor.at, &error))?,
            id,
            name: None,
            domain: domain.name.as_str().into(),
            kind: Kind::Unlimited,
            adaptive: None,
            overrides: HashMap::new(),
            free_keys: free.map(|step| step.key.clone()).collect(),
            is_last_free: path.last().is_some_and(|step| step.is_free),
            shadow: descriptor.shadow_mode || defaults.shadow_mode,
            quota_mode: descriptor.quota_mode,
            count_refused: descriptor.count_refused.unwrap_or(defaults.count_refused),
            warn: Box::default(),
            enforce: descriptor.enforce,
            failure: descriptor.failure.unwrap_or(defaults.failure),
            replaces: Box::default(),
            parents: Box::default(),
            metadata: descriptor.metadata.clone(),
            lease: descriptor.lease.unwrap_or(defaults.lease),
            store: self.store(store, &descriptor.at)?,
            place: descriptor.at.clone(),
            node: (0, 0),
            shares_values: path.iter().any(|step| !step.is_free && step.fixed.is_none()),
        })
    }

    /// Returns the number of a store.
    fn store(&self, name: Option<&str>, at: &Place) -> Result<usize, PlanError> {
        let Some(name) = name.filter(|name| *name != "default") else { return Ok(0) };
        self.stores.get(name).copied().ok_or_else(|| PlanError {
            at: at.clone(),
            text: format!("there is no store \"{name}\"; declare it under `stores`"),
        })
    }

    /// Returns the counts of the rule that had this id before, or fresh ones.
    fn live(&self, id: &str, ban: Option<Ban>) -> Result<Arc<Live>, KeyedError> {
        let ban = ban.map(|ban| Escalation::new(ban.after, ban.within, ban.first).most(ban.most));
        let known = self.old.and_then(|old| Some(old.with_id(id)?.live()));
        Ok(match known {
            Some(live) if live.fits(ban, self.top_keys) => Arc::clone(live),
            Some(live) => Arc::new(Live::new(ban, self.top_keys)?.after(live)),
            None => Arc::new(Live::new(ban, self.top_keys)?),
        })
    }

    fn link_parents(&mut self) -> Result<(), PlanError> {
        for (index, place, names) in std::mem::take(&mut self.wanted) {
            let mut parents = Vec::new();
            for name in names {
                parents.push(
                    self.parent(index, &name)
                        .map_err(|text| PlanError { at: place.clone(), text })?,
                );
            }
            self.rules[index as usize].parents = parents.into();
        }
        Ok(())
    }

    fn parent(&self, child: RuleIndex, name: &str) -> Result<Parent, String> {
        let domain = self.rules[child as usize].domain();
        let same = |(_, rule): &&(usize, &Rule)| {
            rule.domain() == domain && rule.name() == Some(name) && rule.kind().slots().is_none()
        };
        let numbered: Vec<_> = self.rules.iter().enumerate().collect();
        let mut found = numbered.iter().filter(same);
        let (Some((index, parent)), None) = (found.next(), found.next()) else {
            return Err(format!(
                "the parent \"{name}\" must be the name of exactly one limit of the domain"
            ));
        };
        let path = &self.paths[child as usize];
        let values = parent.free_keys().iter().map(|key| {
            let position = path.iter().position(|step| step.key == *key);
            let step = position.map(|at| (at, &path[at]));
            match step {
                Some((at, step)) if step.is_free => {
                    let free = path[..at].iter().filter(|step| step.is_free).count();
                    Ok(ValueOf::Free(free))
                }
                Some((_, Step { fixed: Some(value), .. })) => Ok(ValueOf::Fixed(value.clone())),
                _ => Err(format!("the parent \"{name}\" needs a value for \"{key}\", which this descriptor does not have")),
            }
        });
        Ok(Parent { rule: *index as RuleIndex, values: values.collect::<Result<_, _>>()? })
    }
}

fn at(place: &Place, error: &impl fmt::Display) -> PlanError {
    PlanError { at: place.clone(), text: error.to_string() }
}

fn ad_hoc_windows(prefix: &str) -> Result<[Policy; Unit::ALL.len()], QuotaError> {
    let made =
        Unit::ALL.map(|unit| Policy::ad_hoc_window(format!("{prefix}!{unit}"), unit.length()));
    let mut windows = Vec::with_capacity(made.len());
    for window in made {
        windows.push(window?);
    }
    windows.try_into().map_err(|_| unreachable!("as many as there are units"))
}

/// Returns the previous kind if it is equal: the store then keeps the same policy and, when its
/// quota changes later, knows all its holders.
fn unless_same(kind: Kind, before: Option<&Kind>) -> Kind {
    before.filter(|before| **before == kind).cloned().unwrap_or(kind)
}

fn pattern(value: &ValueMatch) -> Option<Pattern> {
    match value {
        ValueMatch::Any | ValueMatch::Exact(_) => None,
        ValueMatch::Wildcard(text) => Some(Pattern::wildcard(text)),
        ValueMatch::Regex(regex) => Some(Pattern::Regex(regex.0.clone())),
        ValueMatch::Cidr(networks) => Some(Pattern::Networks(networks.clone())),
    }
}

fn kind_of(
    id: &str,
    rate: &Rate,
    algorithm: Option<Algorithm>,
    defaults: &Defaults,
) -> Result<Kind, QuotaError> {
    let Rate::Counted { count, per, burst, .. } = *rate else { return Ok(Kind::Unlimited) };
    if count == 0 {
        let algorithm = algorithm.unwrap_or(defaults.algorithm);
        return Ok(Kind::Closed { rate: *rate, algorithm });
    }
    let quota = Quota::per(count, per);
    let quota = burst.map_or(quota, |burst| quota.burst(burst));
    let algorithm = algorithm.unwrap_or(defaults.algorithm);
    let policy = Policy::with_algorithm(id, quota, algorithm)?;
    Ok(Kind::Counted { policy, rate: *rate })
}

/// Returns the full name of a rule.
fn id(domain: &Domain, path: &[Step], number: usize) -> Box<str> {
    let mut id = escaped(&domain.name, ":");
    for (index, step) in path.iter().enumerate() {
        id.push(if index == 0 { ':' } else { '|' });
        id.push_str(&step.text);
    }
    if number > 0 {
        id.push_str(&format!("#{}", number + 1));
    }
    id.into()
}

fn step_text(descriptor: &Descriptor) -> String {
    let key = escaped(&descriptor.key, "|=~@#");
    match &descriptor.value {
        ValueMatch::Any => key,
        ValueMatch::Exact(value) | ValueMatch::Wildcard(value) => {
            format!("{key}={}", escaped(value, "|#"))
        }
        ValueMatch::Regex(regex) => format!("{key}~{}", escaped(regex.0.as_str(), "|#")),
        ValueMatch::Cidr(networks) => {
            let texts: Vec<_> = networks.iter().map(ToString::to_string).collect();
            format!("{key}@{}", texts.join(","))
        }
    }
}

/// Returns a text with these characters, and `%`, percent-encoded.
fn escaped(text: &str, special: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '%' || special.contains(character) {
            out.push_str(&format!("%{:02X}", u32::from(character)));
        } else {
            out.push(character);
        }
    }
    out
}
