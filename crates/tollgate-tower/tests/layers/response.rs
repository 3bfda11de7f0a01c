//! The responses to clients, read back by foreign parsers.

mod any;
mod body;
mod grpc;
mod header;
mod retry;

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};
use std::{collections::BTreeMap, time::Duration};
use tollgate::{Answer, Clock, Decision, Outcome, Quota, Tick};
use tollgate_tower::answer::{Headers, Label, Told, Verdict};

/// The time of all decisions in these tests.
const NOW: Tick = Tick::from_secs(1000);

/// An item of a field: its name, and its parameters as they are written.
type Item = (String, BTreeMap<String, String>);

/// Reads a field with `sfv`, a parser of RFC 9651.
fn items(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
    let joined = lines.join(", ");
    let list: List =
        Parser::new(&joined).parse().unwrap_or_else(|error| panic!("{joined}: {error}"));
    let read = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{joined}: an inner list") };
        let BareItem::String(name) = &item.bare_item else { panic!("{joined}: no string") };
        let text = |value: &BareItem| match value {
            BareItem::Integer(number) => number.to_string(),
            BareItem::String(text) => text.as_str().to_owned(),
            BareItem::ByteSequence(bytes) => format!("{} bytes", bytes.len()),
            other => panic!("{joined}: {other:?}"),
        };
        let parameters = item.params.iter().map(|(key, value)| (key.to_string(), text(value)));
        (name.as_str().to_owned(), parameters.collect())
    };
    list.iter().map(read).collect()
}

/// Writes an item as `items` reads it.
fn item(name: &str, parameters: &[(&str, &str)]) -> Item {
    let parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    (name.into(), parameters.collect())
}

fn label(name: &str, quota: Quota) -> Label {
    Label::new(name, quota).unwrap()
}

/// A decision that was made at [`NOW`].
fn decision(outcome: Outcome, (limit, remaining): (u64, u64), wait: Duration) -> Decision {
    let (retry_at, full_at) = (NOW.saturating_add(wait), Some(NOW.saturating_add(wait)));
    Decision::answered(Answer { outcome, at: NOW, cost: 1, limit, remaining, retry_at, full_at })
}

fn allowed(limit: u64, remaining: u64, full_after: Duration) -> Decision {
    decision(Outcome::Allowed, (limit, remaining), full_after)
}

fn later(limit: u64, wait: Duration) -> Decision {
    decision(Outcome::Later, (limit, 0), wait)
}

fn never(limit: u64) -> Decision {
    decision(Outcome::Never, (limit, 0), Duration::ZERO)
}

/// A clock whose origin is at second 2000 of the epoch.
fn clock() -> Clock {
    let (clock, _hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(2000));
    clock
}

fn verdict<'a>(parts: &'a [Told<'a>]) -> Verdict<'a> {
    Verdict::new(&clock(), NOW, parts)
}

fn written(headers: Headers, verdict: &Verdict<'_>) -> HeaderMap {
    let mut map = HeaderMap::new();
    headers.write(verdict, &mut map);
    map
}

/// Returns a header, if it is there, as text.
fn text<'m>(headers: &'m HeaderMap, name: &str) -> Option<&'m str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn public_types_can_be_shared_between_threads() {
    fn check<T: Send + Sync + std::fmt::Debug>() {}
    check::<Headers>();
    check::<Label>();
    check::<Told<'_>>();
    check::<Verdict<'_>>();
}
