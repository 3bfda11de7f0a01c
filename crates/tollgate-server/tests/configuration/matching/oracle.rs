//! Which limit a descriptor meets, worked out slowly and by the words of the reference.

use std::{collections::HashSet, net::IpAddr};
use tollgate_server::{
    config::{
        Config, Descriptor, Domain, Limit, Place, Rate, Unit, ValueMatch, regex_text::RegexText,
    },
    plan::{Entry, Plan},
};

const KEYS: [&str; 3] = ["a", "b", "a_b"];
const VALUES: [&str; 12] =
    ["", "x", "xy", "y", "xyx", "10.1.2.3", "::ffff:10.0.0.1", "11.0.0.1", "*", "x*", "X", "x y"];
const WILDCARDS: [&str; 7] = ["x*", "*y", "*", "x*y", "x*x*", "**y", "1*.*"];
const REGEXES: [&str; 3] = ["^x", "y$", "[0-9]+"];

/// Bytes that decide what is made.
pub(crate) struct Dice<'a>(pub(crate) &'a [u8]);

impl Dice<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % sides
    }

    fn one_of<'s>(&mut self, all: &[&'s str]) -> &'s str {
        all[self.roll(all.len())]
    }
}

/// Makes a domain, asks for some descriptors, and compares.
pub(crate) fn check(mut dice: Dice<'_>) {
    let descriptors = level(&mut dice, 0, "");
    let domain = Domain { name: "d".into(), descriptors, ..Domain::default() };
    let config = Config { domains: vec![domain.clone()], ..Config::default() };
    let plan = Plan::compile(config, None).expect("it is a good configuration");
    for _ in 0..8 {
        let depth = 1 + dice.roll(4);
        let entries: Vec<_> =
            (0..depth).map(|_| Entry::new(dice.one_of(&KEYS), dice.one_of(&VALUES))).collect();
        let expected = meets(&domain.descriptors, &entries);
        let found = plan.domain("d").and_then(|domain| domain.find(&entries));
        let found = found.map(|found| plan.rule(found.rules[0]).name().unwrap_or("").to_owned());
        assert_eq!(found, expected, "{entries:?} in {:#?}", domain.descriptors);
    }
}

fn level(dice: &mut Dice<'_>, depth: usize, path: &str) -> Vec<Descriptor> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for _ in 0..dice.roll(5) {
        let (key, value) = (dice.one_of(&KEYS), value(dice));
        let text = format!("{path}/{key}:{value:?}");
        if !seen.insert(text.clone()) {
            continue;
        }
        let limits = if dice.roll(4) == 0 { Vec::new() } else { vec![limit(&text)] };
        let descriptors = if depth < 3 { level(dice, depth + 1, &text) } else { Vec::new() };
        all.push(descriptor(key, value, limits, descriptors));
    }
    all
}

fn value(dice: &mut Dice<'_>) -> ValueMatch {
    match dice.roll(6) {
        0 | 1 => ValueMatch::Any,
        2 | 3 => ValueMatch::Exact(dice.one_of(&VALUES[1..8]).into()),
        4 => ValueMatch::Wildcard(dice.one_of(&WILDCARDS).into()),
        _ if dice.roll(2) == 0 => {
            let regex = regex::Regex::new(dice.one_of(&REGEXES)).expect("it is a regex");
            ValueMatch::Regex(RegexText(regex))
        }
        _ => ValueMatch::Cidr(vec!["10.0.0.0/8".parse().expect("it is a network")]),
    }
}

fn limit(name: &str) -> Limit {
    let unit = Unit::Hour;
    let rate = Rate::Counted { count: 5, per: unit.length(), unit: Some(unit), burst: None };
    Limit {
        at: Place::default(),
        name: Some(name.into()),
        replaces: Vec::new(),
        rate,
        algorithm: None,
        warn: Vec::new(),
    }
}

fn descriptor(
    key: &str,
    value: ValueMatch,
    limits: Vec<Limit>,
    descriptors: Vec<Descriptor>,
) -> Descriptor {
    Descriptor {
        at: Place::default(),
        key: key.into(),
        value,
        limits,
        overrides: Vec::new(),
        concurrency: None,
        adaptive: None,
        shadow_mode: false,
        quota_mode: false,
        count_refused: None,
        share_threshold: false,
        value_to_metric: false,
        detailed_metric: false,
        metadata: None,
        enforce: 100,
        failure: None,
        ban: None,
        parents: Vec::new(),
        store: None,
        lease: None,
        descriptors,
    }
}

/// Returns the name of the limit that a descriptor meets: the exact value first, then patterns in the
/// order of the file, then the key alone; no way back; the limit must be at the last entry.
fn meets(mut level: &[Descriptor], entries: &[Entry<'_>]) -> Option<String> {
    for (index, entry) in entries.iter().enumerate() {
        let same_key = || level.iter().filter(|node| node.key == entry.key);
        let exact = same_key().find(|node| node.value == ValueMatch::Exact(entry.value.into()));
        let pattern = same_key().find(|node| matches_pattern(&node.value, entry.value));
        let any = same_key().find(|node| node.value == ValueMatch::Any);
        let node = exact.or(pattern).or(any)?;
        if index + 1 == entries.len() {
            return node.limits.first().and_then(|limit| limit.name.clone());
        }
        level = &node.descriptors;
    }
    None
}

fn matches_pattern(pattern: &ValueMatch, value: &str) -> bool {
    match pattern {
        ValueMatch::Any | ValueMatch::Exact(_) => false,
        ValueMatch::Wildcard(pattern) => matches_wildcard(pattern.as_bytes(), value.as_bytes()),
        ValueMatch::Regex(regex) => regex.0.is_match(value),
        ValueMatch::Cidr(networks) => value.parse::<IpAddr>().is_ok_and(|address| {
            networks.iter().any(|network| network.contains(&address.to_canonical()))
        }),
    }
}

/// Tries everything that a star can stand for.
fn matches_wildcard(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|skip| matches_wildcard(rest, &value[skip..])),
        Some((byte, rest)) => value
            .split_first()
            .is_some_and(|(first, left)| first == byte && matches_wildcard(rest, left)),
    }
}
