//! The bodies of `/v1`, and the query of a `GET`.

use super::json::{Bad, Json, once, unknown};
use crate::{
    engine::{Ask, Hits, MAX_ASKS, MAX_LIFE, Subject, Ticket},
    plan::{Entry, MAX_ENTRIES},
};
use std::{borrow::Cow, time::Duration};

/// The subject of a request: one policy, several, or descriptors.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    one: Named<'a>,
    limits: Option<Vec<Named<'a>>>,
    domain: Option<Cow<'a, str>>,
    descriptors: Option<Vec<Descriptor<'a>>>,
    hits: Option<u64>,
    life_ms: Option<u64>,
    id: Option<Cow<'a, str>>,
}

/// A policy by name.
#[derive(Debug, Default)]
struct Named<'a> {
    policy: Option<Cow<'a, str>>,
    key: Option<Cow<'a, str>>,
    keys: Option<Vec<Cow<'a, str>>>,
    cost: Option<u64>,
}

#[derive(Debug, Default)]
struct Descriptor<'a> {
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    hits: Option<u64>,
}

const FIELDS: [&str; 10] =
    ["policy", "key", "keys", "cost", "limits", "domain", "descriptors", "hits", "life_ms", "id"];
const SHAPES: &str = "send {\"policy\": .., \"key\": ..}, or {\"limits\": [..]}, or {\"domain\": \
                      .., \"descriptors\": [..]}";

/// The field that a body may have in addition to its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    Nothing,
    /// `life_ms`: the lifetime of a reservation.
    Life,
    /// `id`: the lease to renew or to leave. Required.
    Id,
}

impl<'a> Body<'a> {
    /// Reads a body.
    pub(super) fn read(text: &'a str, extra: Extra) -> Result<Self, Bad> {
        let mut body = Self::default();
        let mut json = Json::new(text);
        json.object("the body", |json, field| body.field(json, field))?;
        json.end()?;
        body.judged(extra)
    }

    fn field(&mut self, json: &mut Json<'a>, field: &str) -> Result<(), Bad> {
        match field {
            "limits" => {
                let mut limits = Vec::new();
                json.list((field, MAX_ASKS), |json| {
                    let mut limit = Named::default();
                    json.object("limits", |json, field| {
                        if limit.field(json, field)? {
                            Ok(())
                        } else {
                            Err(unknown(field, &FIELDS[..4]))
                        }
                    })?;
                    limit.judged()?;
                    limits.push(limit);
                    Ok(())
                })?;
                once(&mut self.limits, field, limits)
            }
            "domain" => once(&mut self.domain, field, json.text(field)?),
            "descriptors" => {
                let mut descriptors = Vec::new();
                json.list((field, MAX_ASKS), |json| {
                    descriptors.push(Descriptor::read(json)?);
                    Ok(())
                })?;
                once(&mut self.descriptors, field, descriptors)
            }
            "hits" => once(&mut self.hits, field, json.number(field)?),
            "life_ms" => once(&mut self.life_ms, field, json.number(field)?),
            "id" => once(&mut self.id, field, json.text(field)?),
            _ if self.one.field(json, field)? => Ok(()),
            _ => Err(unknown(field, &FIELDS)),
        }
    }

    /// Reads the query of a `GET`: its subject, and the options of the reply.
    pub(super) fn query(query: &'a str) -> Result<(Self, ReplyOptions), Bad> {
        let (mut body, mut options) = (Self::default(), ReplyOptions::default());
        let mut keys: Vec<Cow<'a, str>> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match name {
                "policy" => once(&mut body.one.policy, name, value)?,
                "key" if keys.len() == MAX_ENTRIES => {
                    return Err(Bad(format!("\"key\" is given more than {MAX_ENTRIES} times")));
                }
                "key" => keys.push(value),
                "cost" => once(&mut body.one.cost, name, Json::new(&value).number(name)?)?,
                _ if options.field(name, &value)? => {}
                _ => {
                    let known = ["policy", "key", "cost", "denied_status", "explain"];
                    return Err(unknown(name, &known));
                }
            }
        }
        match keys.len() {
            0 => {}
            1 => body.one.key = keys.pop(),
            _ => body.one.keys = Some(keys),
        }
        Ok((body.judged(Extra::Nothing)?, options))
    }

    fn judged(self, extra: Extra) -> Result<Self, Bad> {
        let Self { one, limits, domain, descriptors, hits, life_ms, id } = &self;
        let has_one = one.policy.is_some() || one.key.is_some() || one.keys.is_some();
        let has_descriptors = domain.is_some() || descriptors.is_some();
        match (has_one, limits, has_descriptors) {
            (true, None, false) => one.judged()?,
            (false, Some(limits), false) if limits.is_empty() => {
                return Err(Bad::new("\"limits\" is empty; add a policy to it"));
            }
            (false, Some(_), false) => {}
            (false, None, true) => match (domain, descriptors) {
                (Some(_), Some(list)) if !list.is_empty() => {}
                (None, _) => {
                    return Err(Bad::new("\"domain\" is missing; \"descriptors\" needs it"));
                }
                _ => {
                    return Err(Bad::new(
                        "\"descriptors\" is missing or empty; add a descriptor to it",
                    ));
                }
            },
            (false, None, false) => {
                return Err(Bad(format!("the request names no limit; {SHAPES}")));
            }
            _ => return Err(Bad(format!("the request mixes two forms; {SHAPES}"))),
        }
        if one.cost.is_some() && !has_one {
            return Err(Bad::new("\"cost\" belongs to \"policy\"; use \"hits\" with descriptors"));
        }
        if hits.is_some() && !has_descriptors {
            return Err(Bad::new("\"hits\" belongs to descriptors; use \"cost\" with a policy"));
        }
        match (id, extra) {
            (None, Extra::Id) => {
                return Err(Bad::new("\"id\" is missing; use the one that /v1/enter returned"));
            }
            (Some(_), Extra::Nothing | Extra::Life) => {
                let text = "\"id\" belongs to /v1/renew and /v1/leave; leave it out";
                return Err(Bad::new(text));
            }
            (Some(_), Extra::Id) if one.cost.or(*hits).is_some() => {
                let text = "\"cost\" and \"hits\" belong to /v1/enter; a lease keeps its slots";
                return Err(Bad::new(text));
            }
            _ => {}
        }
        let most = MAX_LIFE.as_millis();
        match life_ms {
            Some(_) if extra != Extra::Life => {
                Err(Bad::new("\"life_ms\" belongs to /v1/reserve; leave it out"))
            }
            Some(life) if *life == 0 || u128::from(*life) > most => {
                Err(Bad(format!("\"life_ms\" is {life}; it must be between 1 and {most}")))
            }
            _ => Ok(self),
        }
    }

    /// Returns the lifetime that a reservation asks for.
    pub(super) fn life(&self) -> Option<Duration> {
        self.life_ms.map(Duration::from_millis)
    }

    /// Returns the id of the lease to renew or to leave.
    pub(super) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// Returns the values that the asks of the body refer to.
    pub(super) fn values(&self) -> Values<'_> {
        if let Some(descriptors) = &self.descriptors {
            let all = descriptors.iter().flat_map(|descriptor| &descriptor.entries);
            return Values::Entries(all.map(|(key, value)| Entry { key, value }).collect());
        }
        match (&self.limits, &self.one.keys, &self.one.key) {
            (None, None, None) => Values::None,
            (None, None, Some(key)) => Values::One([key.as_bytes()]),
            (None, ..) => Values::Keys(vec![self.one.values()]),
            (Some(limits), ..) => Values::Keys(limits.iter().map(Named::values).collect()),
        }
    }

    /// Returns the asks of the body, over its [`values`](Self::values).
    pub(super) fn asks<'s>(&'s self, values: &'s Values<'s>) -> Asks<'s> {
        match values {
            Values::None => Asks::One([self.one.ask(&[])]),
            Values::One(key) => Asks::One([self.one.ask(key)]),
            Values::Keys(keys) => {
                let one = std::slice::from_ref(&self.one);
                let named = self.limits.as_deref().unwrap_or(one);
                Asks::Many(named.iter().zip(keys).map(|(named, keys)| named.ask(keys)).collect())
            }
            Values::Entries(entries) => {
                let mut rest = &entries[..];
                let asks = self.descriptors.iter().flatten().map(|descriptor| {
                    let (its, after) = rest.split_at(descriptor.entries.len());
                    rest = after;
                    let hits = Hits::Take(descriptor.hits.or(self.hits).unwrap_or(1));
                    Ask { subject: Subject::Entries(its), hits, limit: None }
                });
                Asks::Many(asks.collect())
            }
        }
    }

    /// Returns the domain of its descriptors.
    pub(super) fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_default()
    }
}

/// The keys or entries of a body. The usual one allocates nothing.
#[derive(Debug)]
pub(super) enum Values<'a> {
    None,
    One([&'a [u8]; 1]),
    Keys(Vec<Vec<&'a [u8]>>),
    Entries(Vec<Entry<'a>>),
}

/// The asks of a body. The usual one allocates nothing.
#[derive(Debug)]
pub(super) enum Asks<'a> {
    One([Ask<'a>; 1]),
    Many(Vec<Ask<'a>>),
}

impl<'a> Asks<'a> {
    pub(super) fn as_slice(&self) -> &[Ask<'a>] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl<'a> Named<'a> {
    /// Reads a field; returns false if a policy has no such field.
    fn field(&mut self, json: &mut Json<'a>, field: &str) -> Result<bool, Bad> {
        match field {
            "policy" => once(&mut self.policy, field, json.text(field)?)?,
            "key" => once(&mut self.key, field, json.text(field)?)?,
            "keys" => {
                let mut keys = Vec::new();
                json.list((field, MAX_ENTRIES), |json| {
                    keys.push(json.text("keys")?);
                    Ok(())
                })?;
                once(&mut self.keys, field, keys)?;
            }
            "cost" => once(&mut self.cost, field, json.number(field)?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn judged(&self) -> Result<(), Bad> {
        match (&self.policy, &self.key, &self.keys) {
            (None, ..) => Err(Bad::new("\"policy\" is missing; name the policy to check")),
            (_, Some(_), Some(_)) => {
                Err(Bad::new("\"key\" and \"keys\" are both given; use one of them"))
            }
            _ => Ok(()),
        }
    }

    fn values(&self) -> Vec<&[u8]> {
        let several = self.keys.iter().flatten();
        self.key.iter().chain(several).map(|key| key.as_bytes()).collect()
    }

    fn ask<'s>(&'s self, keys: &'s [&'s [u8]]) -> Ask<'s> {
        let policy = self.policy.as_deref().unwrap_or_default();
        let hits = Hits::Take(self.cost.unwrap_or(1));
        Ask { subject: Subject::Named { policy, keys }, hits, limit: None }
    }
}

impl<'a> Descriptor<'a> {
    fn read(json: &mut Json<'a>) -> Result<Self, Bad> {
        let (mut entries, mut hits) = (None, None);
        json.object("descriptors", |json, field| match field {
            "entries" => {
                let mut list = Vec::new();
                json.list((field, MAX_ENTRIES), |json| {
                    let (mut key, mut value) = (None, None);
                    json.object("entries", |json, field| match field {
                        "key" => once(&mut key, field, json.text(field)?),
                        "value" => once(&mut value, field, json.text(field)?),
                        _ => Err(unknown(field, &["key", "value"])),
                    })?;
                    let Some(key) = key else {
                        return Err(Bad::new("an entry has no \"key\"; every entry needs one"));
                    };
                    list.push((key, value.unwrap_or_default()));
                    Ok(())
                })?;
                once(&mut entries, field, list)
            }
            "hits" => once(&mut hits, field, json.number(field)?),
            _ => Err(unknown(field, &["entries", "hits"])),
        })?;
        match entries {
            Some(entries) if !entries.is_empty() => Ok(Self { entries, hits }),
            _ => Err(Bad::new("a descriptor has no \"entries\"; every descriptor needs one")),
        }
    }
}

/// The correction of a reservation.
#[derive(Debug)]
pub(super) struct Settlement<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) actual: Vec<u64>,
}

impl<'a> Settlement<'a> {
    /// Reads the body of `settle`.
    pub(super) fn settle(text: &'a str) -> Result<Self, Bad> {
        let (mut id, mut actual) = (None, None);
        Self::fields(text, &mut id, |json, field| match field {
            "actual" => {
                let mut costs = Vec::new();
                if json.is_list() {
                    json.list((field, Ticket::ASKS), |json| {
                        costs.push(json.number("actual")?);
                        Ok(())
                    })?;
                } else {
                    costs.push(json.number(field)?);
                }
                once(&mut actual, field, costs)
            }
            _ => Err(unknown(field, &["id", "actual"])),
        })?;
        match (id, actual) {
            (Some(id), Some(actual)) if !actual.is_empty() => Ok(Self { id, actual }),
            (None, _) => Err(Bad::new("\"id\" is missing; use the one that /v1/reserve returned")),
            _ => Err(Bad::new("\"actual\" is missing or empty; give the actual cost")),
        }
    }

    /// Reads the body of `cancel`.
    pub(super) fn cancel(text: &'a str) -> Result<Self, Bad> {
        let mut id = None;
        Self::fields(text, &mut id, |_, field| Err(unknown(field, &["id"])))?;
        let id =
            id.ok_or_else(|| Bad::new("\"id\" is missing; use the one that /v1/reserve returned"))?;
        Ok(Self { id, actual: vec![0] })
    }

    fn fields(
        text: &'a str,
        id: &mut Option<Cow<'a, str>>,
        mut other: impl FnMut(&mut Json<'a>, &str) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        let mut json = Json::new(text);
        json.object("the body", |json, field| match field {
            "id" => once(id, field, json.text(field)?),
            _ => other(json, field),
        })?;
        json.end()
    }
}

/// The options of the reply, from the query of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyOptions {
    /// The status of a refusal; 429 if `None`.
    pub(super) denied_status: Option<u16>,
    /// Whether the reply explains the decision.
    pub(super) explain: Option<bool>,
}

impl ReplyOptions {
    /// Reads the query of a `POST`, which has nothing but options.
    pub(super) fn read(query: &str) -> Result<Self, Bad> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !options.field(name, value)? {
                let shown: String = query.chars().take(40).collect();
                let text = "a POST takes only denied_status and explain";
                return Err(Bad(format!("the query is \"{shown}\"; {text}")));
            }
        }
        Ok(options)
    }

    /// Reads a field; returns false if it is not an option.
    fn field(&mut self, name: &str, value: &str) -> Result<bool, Bad> {
        match name {
            "denied_status" => once(&mut self.denied_status, name, denied_status(value)?)?,
            "explain" => {
                let explain = match value {
                    "0" => false,
                    "1" => true,
                    _ => {
                        let shown: String = value.chars().take(40).collect();
                        return Err(Bad(format!("\"explain\" is \"{shown}\"; it must be 0 or 1")));
                    }
                };
                once(&mut self.explain, name, explain)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads the status for refusals.
fn denied_status(text: &str) -> Result<u16, Bad> {
    match text {
        "200" => Ok(200),
        "403" => Ok(403),
        "429" => Ok(429),
        "503" => Ok(503),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(Bad(format!("\"denied_status\" is \"{shown}\"; it must be 200, 403, 429 or 503")))
        }
    }
}

/// Decodes a value of a query.
pub(super) fn decoded(value: &str) -> Result<Cow<'_, str>, Bad> {
    if !value.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return Ok(Cow::Borrowed(value));
    }
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                match digit().zip(digit()) {
                    // OVERFLOW: two digits are at most 255.
                    Some((high, low)) => (high << 4 | low) as u8,
                    None => {
                        return Err(Bad::new(
                            "the query has a '%' without two hexadecimal digits; write %25",
                        ));
                    }
                }
            }
            plain => plain,
        });
    }
    String::from_utf8(out).map(Cow::Owned).map_err(|_| Bad::new("the query is not UTF-8"))
}
