//! The tree of a domain, and the walk down.

use super::{MAX_ENTRIES, RuleIndex};
use ipnet::IpNet;
use regex::Regex;
use std::{collections::HashMap, fmt, net::IpAddr};

/// One entry of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the property.
    pub key: &'a str,
    /// The value of the property.
    pub value: &'a str,
}

impl<'a> Entry<'a> {
    /// Returns an entry.
    #[must_use]
    pub const fn new(key: &'a str, value: &'a str) -> Self {
        Self { key, value }
    }
}

/// The nodes of one level, by key.
#[derive(Debug, Default)]
pub(super) struct Level {
    keys: HashMap<Box<str>, KeyNodes>,
}

/// The nodes with one key.
#[derive(Debug, Default)]
struct KeyNodes {
    exact: HashMap<Box<str>, Node>,
    patterns: Vec<(Pattern, Node)>,
    any: Option<Box<Node>>,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) rules: Box<[RuleIndex]>,
    pub(super) concurrency: Option<RuleIndex>,
    pub(super) next: Level,
    /// Whether the value at this node is part of the key.
    pub(super) is_free: bool,
}

impl Node {
    fn has_rules(&self) -> bool {
        !self.rules.is_empty() || self.concurrency.is_some()
    }
}

/// Which values a node takes.
#[derive(Debug)]
pub(super) enum Pattern {
    Wildcard(Box<[Box<str>]>),
    Regex(Regex),
    Networks(Vec<IpNet>),
}

impl Pattern {
    /// Returns a pattern in which `*` stands for any characters, or none.
    pub(super) fn wildcard(text: &str) -> Self {
        Self::Wildcard(text.split('*').map(Into::into).collect())
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Wildcard(parts) => matches_parts(parts, value),
            Self::Regex(regex) => regex.is_match(value),
            Self::Networks(networks) => value.parse::<IpAddr>().is_ok_and(|address| {
                let address = address.to_canonical();
                networks.iter().any(|network| network.contains(&address))
            }),
        }
    }
}

/// Matches what is between the stars, each at its first place: no way back is needed.
fn matches_parts(parts: &[Box<str>], value: &str) -> bool {
    let (Some((first, rest)), mut value) = (parts.split_first(), value) else { return false };
    let Some((last, middle)) = rest.split_last() else { return value == &**first };
    let Some(after) = value.strip_prefix(&**first) else { return false };
    value = after;
    for part in middle {
        let Some(at) = value.find(&**part) else { return false };
        value = &value[at + part.len()..];
    }
    value.ends_with(&**last)
}

/// Where a descriptor has ended: the rules that apply, and which of its values are free.
#[derive(Clone, Copy, Debug)]
pub struct Found<'p> {
    /// The rules that limit a rate. If there is none, `concurrency` is not `None`.
    pub rules: &'p [RuleIndex],
    /// The rule that limits how many are in flight.
    pub concurrency: Option<RuleIndex>,
    /// One bit for each entry whose value is part of the key.
    pub free: u32,
}

impl Level {
    /// Returns the place for a node, made if need be.
    pub(super) fn insert(
        &mut self,
        key: &str,
        value: Option<&str>,
        pattern: Option<Pattern>,
    ) -> &mut Node {
        let nodes = self.keys.entry(key.into()).or_default();
        match (value, pattern) {
            (Some(value), _) => nodes.exact.entry(value.into()).or_default(),
            (None, Some(pattern)) => {
                nodes.patterns.push((pattern, Node::default()));
                let last = nodes.patterns.len() - 1;
                &mut nodes.patterns[last].1
            }
            (None, None) => nodes.any.get_or_insert_default(),
        }
    }

    /// Walks down.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<Found<'_>> {
        if entries.len() > MAX_ENTRIES {
            return None;
        }
        let (mut level, mut free) = (self, 0_u32);
        let (last, before) = entries.split_last()?;
        for (index, entry) in before.iter().enumerate() {
            let node = level.node(entry)?;
            free |= u32::from(node.is_free) << index;
            level = &node.next;
        }
        let node = level.node(last)?;
        free |= u32::from(node.is_free) << before.len();
        let Node { rules, concurrency, .. } = node;
        node.has_rules().then_some(Found { rules, concurrency: *concurrency, free })
    }

    /// Tells the walk down, step by step, in words.
    pub(super) fn explain(&self, entries: &[Entry<'_>]) -> Vec<String> {
        let (mut steps, mut level) = (Vec::new(), self);
        for (index, entry) in entries.iter().enumerate() {
            let Entry { key, value } = entry;
            let Some(nodes) = level.keys.get(*key) else {
                let known: Vec<&str> = level.keys.keys().map(|key| &**key).collect();
                steps.push(format!(
                    "{key}={value}: no descriptor at this level has the key \"{key}\"{}",
                    among(known)
                ));
                return steps;
            };
            let by = if nodes.exact.contains_key(*value) {
                "this exact value".into()
            } else if let Some((pattern, _)) =
                nodes.patterns.iter().find(|(it, _)| it.matches(value))
            {
                format!("the first pattern that matches, {pattern}")
            } else if nodes.any.is_some() {
                "any value".into()
            } else {
                let known = nodes.exact.keys().map(|value| &**value).collect();
                steps.push(format!(
                    "{key}={value}: no descriptor matches this value{}",
                    among(known)
                ));
                return steps;
            };
            let Some(node) = level.node(entry) else { return steps };
            let free = if node.is_free { ", each value counted separately" } else { "" };
            steps.push(format!("{key}={value}: matched by {by}{free}"));
            let is_last = index + 1 == entries.len();
            if is_last && !node.has_rules() {
                steps.push("the descriptor ends here, and there is no limit at this level".into());
            }
            level = &node.next;
        }
        steps
    }

    fn node(&self, entry: &Entry<'_>) -> Option<&Node> {
        let nodes = self.keys.get(entry.key)?;
        if let Some(node) = nodes.exact.get(entry.value) {
            return Some(node);
        }
        let pattern = nodes.patterns.iter().find(|(pattern, _)| pattern.matches(entry.value));
        match pattern {
            Some((_, node)) => Some(node),
            None => nodes.any.as_deref(),
        }
    }
}

/// Lists what there is, if that is not too much.
fn among(mut known: Vec<&str>) -> String {
    known.sort_unstable();
    match known.len() {
        0 => String::new(),
        1..=8 => format!("; known: {}", known.join(", ")),
        count => format!("; {count} others are known"),
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wildcard(parts) => f.write_str(&parts.join("*")),
            Self::Regex(regex) => write!(f, "/{}/", regex.as_str()),
            Self::Networks(networks) => {
                let texts: Vec<_> = networks.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, value, expected) in [
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*", "", true),
            ("/api/*/cart", "/api/v1/cart", true),
            ("/api/*/cart", "/api/cart", false),
            ("/api/*/cart", "/api//cart", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*ab", "aab", true),
            ("ab*ba", "aba", false), // the ends do not overlap
            ("**", "x", true),
        ] {
            let found = Pattern::wildcard(pattern).matches(value);
            assert_eq!(found, expected, "{pattern} and {value}");
        }
    }
}
