//! Forward-auth: a proxy asks before it lets a request through.
//!
//! The proxy sends the headers of the original request, with its address, path, method and host in
//! separate headers. The configuration defines the descriptors of the request; all of them are one
//! decision. A descriptor is omitted if the request lacks one of its entries. The code of the
//! layers (`tollgate_tower::key`) identifies clients, so that both count them alike.

use super::{call::Call, json::Bad, limits::Told, route::Desk};
use crate::{
    config::{AuthEntry, AuthKey, AuthSource, ForwardAuth},
    engine::{Ask, Hits, Request, Subject, Verb},
    net::browser::bare_host,
    plan::{Entry, Plan},
};
use std::{borrow::Cow, net::SocketAddr};
use tollgate::Tick;
use tollgate_tower::{
    Info, Peer,
    key::{Found, KeyBytes},
};

/// Decides what a proxy asks.
pub(super) async fn answer(
    (plan, now): (&Plan, Tick),
    route: &ForwardAuth,
    call: &Call<'_>,
    desk: &mut Desk,
) -> Result<(), super::reply::Problem> {
    let Desk { shared, client, answer, reply, .. } = desk;
    let seen = seen_by_layers(route, call, client.peer);
    let mut values: Vec<(&str, Cow<'_, str>)> = Vec::new();
    let mut counts: Vec<usize> = Vec::new();
    for descriptor in &route.descriptors {
        let before = values.len();
        for entry in descriptor {
            match value(entry, call, &seen)? {
                Some(value) => values.push((&entry.key, value)),
                None => {
                    values.truncate(before);
                    break;
                }
            }
        }
        if values.len() > before {
            counts.push(values.len() - before);
        }
    }
    let entries: Vec<_> = values.iter().map(|(key, value)| Entry { key, value }).collect();
    let (mut rest, mut asks) = (&entries[..], Vec::with_capacity(counts.len()));
    for count in counts {
        let (its, after) = rest.split_at(count);
        asks.push(Ask { subject: Subject::Entries(its), hits: Hits::Take(1), limit: None });
        rest = after;
    }
    let request = Request { domain: &route.domain, asks: &asks, verb: Verb::Check };
    let decided = shared.engine.decide(plan, now, &request, answer).await;
    decided.map_err(|error| Bad(error.to_string()))?;
    let told = Told { plan, now, answer };
    told.headers(shared, reply);
    if !answer.is_allowed() {
        reply.status = 429;
        told.refusal(reply);
    }
    Ok(())
}

/// Returns the request as layers see it: the headers that they look for clients in, and the peer.
fn seen_by_layers(
    route: &ForwardAuth,
    call: &Call<'_>,
    peer: Option<SocketAddr>,
) -> http::Request<()> {
    let mut request = http::Request::new(());
    for name in &route.headers {
        for value in call.fields.values(name) {
            if let (Ok(name), Ok(value)) =
                (name.parse::<http::HeaderName>(), http::HeaderValue::from_bytes(value))
            {
                request.headers_mut().append(name, value);
            }
        }
    }
    if let (Some(peer), false) = (peer, route.headers.is_empty()) {
        request.extensions_mut().insert(Peer(peer));
    }
    request
}

/// Returns the client that a key of the layers finds, as text; `None` if there is none.
fn found(key: &AuthKey, seen: &http::Request<()>) -> Result<Option<String>, Bad> {
    let mut bytes = KeyBytes::new();
    match key.key.find(&Info::of(seen), &mut bytes) {
        Found::Ambiguous => {
            let text = "the request has two tokens, cookies or headers that name different clients; \
                        send one";
            Err(Bad(text.to_owned()))
        }
        _ => Ok(bytes.texts().next().map(|text| String::from_utf8_lossy(&text).into_owned())),
    }
}

/// Returns the value of an entry; `None` if the request has none and there is no other.
fn value<'a>(
    entry: &'a AuthEntry,
    call: &Call<'a>,
    seen: &http::Request<()>,
) -> Result<Option<Cow<'a, str>>, Bad> {
    let fields = call.fields;
    let first = |names: [&str; 2]| fields.text(names[0]).or_else(|| fields.text(names[1]));
    let value = match &entry.from {
        AuthSource::Header(name) => fields.text(name),
        AuthSource::Value(value) => Some(Cow::Borrowed(value.as_str())),
        AuthSource::Client([list, single]) => {
            let has_list = seen.headers().contains_key("x-forwarded-for");
            found(if has_list { list } else { single }, seen)?.map(Cow::Owned)
        }
        AuthSource::Key(key) => found(key, seen)?.map(Cow::Owned),
        AuthSource::Path => first(["X-Forwarded-Uri", "X-Original-URI"]).map(without_query),
        AuthSource::Method => first(["X-Forwarded-Method", "X-Original-Method"]),
        AuthSource::Host => first(["X-Forwarded-Host", "Host"]).map(|host| bare_host(&host).into()),
    };
    Ok(value.or_else(|| entry.default.as_deref().map(Cow::Borrowed)))
}

fn without_query(uri: Cow<'_, str>) -> Cow<'_, str> {
    match uri.find(['?', '#']) {
        None => uri,
        Some(at) => Cow::Owned(uri[..at].to_owned()),
    }
}
