//! The families of headers that report limits. The first family found is read.

use super::{
    field::{self, Bare, Item, MOST_BYTES, MOST_MEMBERS},
    learned::{Learned, LearnedPolicy, Unit},
    time,
};
use crate::answer::Label;
use http::HeaderMap;
use std::{borrow::Cow, time::Duration};

/// A part of every name that [`read`] looks for.
pub(super) const WORD: &str = "limit";

/// Names of a triple of headers, all in lower case.
#[derive(Clone, Copy, Debug)]
struct Triple {
    policy: Option<&'static str>,
    unit: Unit,
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

const fn triple(limit: &'static str, remaining: &'static str, reset: &'static str) -> Triple {
    Triple { policy: None, unit: Unit::Requests, limit, remaining, reset }
}

impl Triple {
    const fn named(self, policy: &'static str, unit: Unit) -> Self {
        Self { policy: Some(policy), unit, ..self }
    }
}

macro_rules! anthropic {
    ($what:literal, $unit:expr) => {
        triple(
            concat!("anthropic-ratelimit-", $what, "-limit"),
            concat!("anthropic-ratelimit-", $what, "-remaining"),
            concat!("anthropic-ratelimit-", $what, "-reset"),
        )
        .named($what, $unit)
    };
}

macro_rules! openai {
    ($what:literal, $unit:expr) => {
        triple(
            concat!("x-ratelimit-limit-", $what),
            concat!("x-ratelimit-remaining-", $what),
            concat!("x-ratelimit-reset-", $what),
        )
        .named($what, $unit)
    };
}

const GENERATION_A: Triple = triple("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset");

/// Families of triples, in the order in which [`read`] looks for them.
const FAMILIES: [&[Triple]; 5] = [
    &[GENERATION_A],
    &[
        anthropic!("requests", Unit::Requests),
        anthropic!("tokens", Unit::Other),
        anthropic!("input-tokens", Unit::Other),
        anthropic!("output-tokens", Unit::Other),
    ],
    &[openai!("requests", Unit::Requests), openai!("tokens", Unit::Other)],
    &[
        triple("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset-after"),
        triple("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    ],
    &[triple("x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset")],
];

/// Names per window, as Kong has them, with the window's length in seconds. The headers do not say
/// how long a month or a year is, so these are the longest, 31 and 366 days: no call is early.
const KONG: [(&str, Triple, u64); 6] = [
    ("second", triple("x-ratelimit-limit-second", "x-ratelimit-remaining-second", ""), 1),
    ("minute", triple("x-ratelimit-limit-minute", "x-ratelimit-remaining-minute", ""), 60),
    ("hour", triple("x-ratelimit-limit-hour", "x-ratelimit-remaining-hour", ""), 3_600),
    ("day", triple("x-ratelimit-limit-day", "x-ratelimit-remaining-day", ""), 86_400),
    ("month", triple("x-ratelimit-limit-month", "x-ratelimit-remaining-month", ""), 2_678_400),
    ("year", triple("x-ratelimit-limit-year", "x-ratelimit-remaining-year", ""), 31_622_400),
];

/// Tells whether the headers of the draft are there, of any revision.
pub(super) fn is_draft(headers: &HeaderMap) -> bool {
    ["ratelimit", "beta-ratelimit", GENERATION_A.remaining]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Reads the first family found into `learned`.
pub(super) fn read(headers: &HeaderMap, wall: Duration, learned: &mut Learned) {
    for (name, policy) in
        [("ratelimit", "ratelimit-policy"), ("beta-ratelimit", "beta-ratelimit-policy")]
    {
        if headers.contains_key(name) {
            let policies = joined(headers, policy);
            let policies = policies.as_ref().map(|text| text.as_deref().and_then(field::list));
            learned.malformed += u32::from(matches!(policies, Some(None)));
            let policies = policies.flatten().unwrap_or_default();
            match joined(headers, name).flatten().and_then(|text| current(&text, &policies)) {
                Some(read) => learned.policies = read,
                None => learned.malformed += 1,
            }
            if !learned.policies.is_empty() {
                return;
            }
        }
    }
    for family in FAMILIES {
        for triple in family {
            read_triple(headers, triple, wall, learned);
            // Two spellings of one triple are neighbours in the list: the first one found suffices.
            if triple.policy.is_none() && !learned.policies.is_empty() {
                break;
            }
        }
        if !learned.policies.is_empty() {
            return;
        }
    }
    for (name, triple, seconds) in &KONG {
        let triple = triple.named(name, Unit::Requests);
        let known = learned.policies.len();
        read_triple(headers, &triple, wall, learned);
        for policy in &mut learned.policies[known..] {
            policy.window = Some(Duration::from_secs(*seconds));
        }
    }
    if learned.policies.is_empty() {
        read_used(headers, learned);
    }
}

/// Reads `RateLimit` of revisions 07 to 11.
fn current(text: &str, policies: &[Item<'_>]) -> Option<Vec<LearnedPolicy>> {
    if let Some(items) = field::list(text).filter(|items| items.iter().any(is_named)) {
        let policy = |(index, item)| generation_c(item, policy_of(&items, index, policies));
        return items.iter().enumerate().map(policy).collect();
    }
    let pairs = field::dictionary(text)?;
    let find = |key| pairs.iter().rev().find(|(name, _)| *name == key).map(|(_, item)| &item.bare);
    let limit = match find("limit") {
        Some(limit) => Some(limit.count()?),
        None => None,
    };
    let (remaining, reset) = (find("remaining")?.count()?, find("reset")?.count()?);
    Some(vec![LearnedPolicy {
        name: None,
        unit: Unit::Requests,
        limit,
        remaining,
        reset_after: Some(Duration::from_secs(reset)),
        window: window_of(limit, policies),
    }])
}

/// Tells whether an item is one of generation C. A dictionary of revision 07 begins with a key,
/// which reads like a token, but has no `r`.
fn is_named(item: &Item<'_>) -> bool {
    matches!(item.bare, Bare::Text(_)) && item.parameter("r").is_some()
}

/// Finds the policy of an item. Several servers in a row may have policies of one name, and each
/// adds its own, so the second item belongs to the second policy. If one of them has added only one
/// of the two, the policy of an item is unknown.
fn policy_of<'p, 't>(
    items: &[Item<'_>],
    index: usize,
    policies: &'p [Item<'t>],
) -> Option<&'p Item<'t>> {
    let is_same = |other: &&Item<'_>| other.bare == items[index].bare;
    let mut same = policies.iter().filter(|policy| policy.bare == items[index].bare);
    let is_whole = same.clone().count() == items.iter().filter(is_same).count();
    let before = items[..index].iter().filter(is_same).count();
    if is_whole { same.nth(before) } else { None }
}

fn generation_c(item: &Item<'_>, policy: Option<&Item<'_>>) -> Option<LearnedPolicy> {
    let Bare::Text(name) = &item.bare else { return None };
    if name.len() > Label::NAME_MAX {
        return None;
    }
    let remaining = item.parameter("r")?.count()?;
    let reset_after = match item.parameter("t") {
        Some(seconds) => Some(Duration::from_secs(seconds.count()?)),
        None => None,
    };
    let parameter = |key| policy.and_then(|policy| policy.parameter(key));
    let unit = match parameter("qu") {
        None => Unit::Requests,
        Some(Bare::Text(unit)) => match unit.as_str() {
            "request" | "requests" => Unit::Requests,
            "concurrent-requests" => Unit::Concurrent,
            _ => Unit::Other,
        },
        Some(_) => Unit::Other,
    };
    let window = parameter("w").and_then(Bare::count).filter(|window| *window > 0);
    Some(LearnedPolicy {
        name: Some(name.as_str().into()),
        unit,
        limit: parameter("q").and_then(Bare::count),
        remaining,
        reset_after,
        window: window.map(Duration::from_secs),
    })
}

/// Finds the window of a limit among policies such as `100;w=60`.
fn window_of(limit: Option<u64>, policies: &[Item<'_>]) -> Option<Duration> {
    let limit = limit?;
    let mut windows = policies
        .iter()
        .filter(|policy| policy.bare.count() == Some(limit))
        .filter_map(|policy| policy.parameter("w").and_then(Bare::count));
    windows.find(|window| *window > 0).map(Duration::from_secs)
}

/// Reads three headers, of which the second must be there.
fn read_triple(headers: &HeaderMap, triple: &Triple, wall: Duration, learned: &mut Learned) {
    let Some(remaining) = headers.get(triple.remaining) else { return };
    // The other spelling of that triple is next in the list.
    if triple.reset.ends_with("-after") && !headers.contains_key(triple.reset) {
        return;
    }
    let remaining = remaining.to_str().ok().and_then(|text| time::decimal(text.trim()));
    let Some(remaining) = remaining.map(|remaining| remaining.as_secs()) else {
        learned.malformed += 1;
        return;
    };
    let (limit, mut window) = match joined(headers, triple.limit) {
        None => (None, None),
        Some(text) => match text.and_then(|text| read_limit(&text)) {
            Some((limit, window)) => (Some(limit), window),
            None => {
                learned.malformed += 1;
                (None, None)
            }
        },
    };
    if window.is_none() && triple.limit == GENERATION_A.limit {
        let policies = joined(headers, "ratelimit-policy").flatten();
        let policies = policies.as_deref().and_then(field::list).unwrap_or_default();
        window = window_of(limit, &policies);
    }
    let mut reset_after = None;
    if let Some(value) = (!triple.reset.is_empty()).then(|| headers.get(triple.reset)).flatten() {
        reset_after = value.to_str().ok().and_then(|text| time::distance(text, wall));
        learned.malformed += u32::from(reset_after.is_none());
    }
    learned.policies.push(LearnedPolicy {
        name: triple.policy.map(Into::into),
        unit: triple.unit,
        limit,
        remaining,
        reset_after,
        window,
    });
}

/// Reads a limit: a number, or, as Envoy writes it, a number followed by policies with windows.
fn read_limit(text: &str) -> Option<(u64, Option<Duration>)> {
    if let Some(limit) = time::decimal(text.trim()) {
        return Some((limit.as_secs(), None));
    }
    let items = field::list(text)?;
    let limit = items.first()?.bare.count()?;
    Some((limit, window_of(Some(limit), &items)))
}

/// Reads `32/40`: 32 of 40 are used.
fn read_used(headers: &HeaderMap, learned: &mut Learned) {
    let Some(value) = headers.get("x-shopify-shop-api-call-limit") else { return };
    let parts = value.to_str().ok().and_then(|text| text.trim().split_once('/'));
    let parts = parts.and_then(|(used, limit)| Some((time::decimal(used)?, time::decimal(limit)?)));
    let Some((used, limit)) = parts else {
        learned.malformed += 1;
        return;
    };
    learned.policies.push(LearnedPolicy {
        name: None,
        unit: Unit::Requests,
        limit: Some(limit.as_secs()),
        remaining: limit.saturating_sub(used).as_secs(),
        reset_after: None,
        window: None,
    });
}

/// Joins the lines of a field: `None` if there are none, `Some(None)` if they are not text or too
/// long.
#[allow(clippy::option_option, reason = "absent and malformed are told apart")]
fn joined<'a>(headers: &'a HeaderMap, name: &str) -> Option<Option<Cow<'a, str>>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    let Ok(first) = first.to_str() else { return Some(None) };
    let mut joined = Cow::Borrowed(first);
    for (count, line) in lines.enumerate() {
        let Ok(line) = line.to_str() else { return Some(None) };
        if count >= MOST_MEMBERS || joined.len() + line.len() > MOST_BYTES {
            return Some(None);
        }
        let text = joined.to_mut();
        text.push_str(", ");
        text.push_str(line);
    }
    Some(Some(joined))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_the_word_by_which_responses_are_sorted_out() {
        let triples =
            FAMILIES.into_iter().flatten().chain(KONG.iter().map(|(_, triple, _)| triple));
        let names = triples.flat_map(|triple| [triple.limit, triple.remaining, triple.reset]);
        for name in names.filter(|name| !name.is_empty()) {
            assert!(name.contains(WORD), "{name}");
        }
    }
}
