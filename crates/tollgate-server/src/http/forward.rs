//! Forward-auth: a proxy asks before it lets a request through.
//!
//! The proxy sends the headers of the original request, with its address, path, method and host in
//! headers of their own. The configuration says which descriptors become of it; all of them are one
//! decision. A descriptor with an entry that the request does not have is left out.

use super::{call::Call, json::Bad, limits::Told, reply::Reply, route::Desk};
use crate::{
    config::{AuthEntry, AuthSource, ForwardAuth},
    engine::{Ask, Hits, Request, Subject, Verb},
    net::{browser::bare_host, network},
    plan::{Entry, Plan},
};
use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};
use tollgate::Tick;
use tollgate_tower::key::read_address;

/// Decides what a proxy asks.
pub(super) async fn answer(
    (plan, now): (&Plan, Tick),
    route: &ForwardAuth,
    call: &Call<'_>,
    desk: &mut Desk,
) -> Result<(), super::reply::Problem> {
    let Desk { shared, client, answer, reply, .. } = desk;
    let mut values: Vec<(&str, Cow<'_, str>)> = Vec::new();
    let mut counts: Vec<usize> = Vec::new();
    for descriptor in &route.descriptors {
        let before = values.len();
        for entry in descriptor {
            match value(entry, route.trusted_hops, call, client.peer) {
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
    tell(Told { plan, now, answer }, reply);
    Ok(())
}

fn tell(told: Told<'_>, reply: &mut Reply) {
    told.headers(reply);
    if !told.answer.is_allowed() {
        reply.status = 429;
        told.refusal(reply);
    }
}

/// Returns the value of an entry; `None` if the request has none and there is no other.
fn value<'a>(
    entry: &'a AuthEntry,
    hops: u8,
    call: &Call<'a>,
    peer: Option<SocketAddr>,
) -> Option<Cow<'a, str>> {
    let fields = call.fields;
    let first = |names: [&str; 2]| fields.text(names[0]).or_else(|| fields.text(names[1]));
    let found = match &entry.from {
        AuthSource::Header(name) => fields.text(name),
        AuthSource::Value(value) => Some(Cow::Borrowed(value.as_str())),
        AuthSource::ClientAddress => {
            client(call, hops, peer).map(|address| Cow::Owned(network(address).to_string()))
        }
        AuthSource::Path => first(["X-Forwarded-Uri", "X-Original-URI"]).map(without_query),
        AuthSource::Method => first(["X-Forwarded-Method", "X-Original-Method"]),
        AuthSource::Host => first(["X-Forwarded-Host", "Host"]).map(|host| bare_host(&host).into()),
    };
    found.or_else(|| entry.default.as_deref().map(Cow::Borrowed))
}

fn without_query(uri: Cow<'_, str>) -> Cow<'_, str> {
    match uri.find(['?', '#']) {
        None => uri,
        Some(at) => Cow::Owned(uri[..at].to_owned()),
    }
}

/// Returns the client's address.
///
/// The asking proxy is believed about who asked it: it wrote the last entry of `X-Forwarded-For`.
/// Each trusted hop before it wrote one more. So the client is the entry with as many behind it as
/// there are trusted hops; if there are fewer, the first. What cannot be read ends the search.
fn client(call: &Call<'_>, hops: u8, peer: Option<SocketAddr>) -> Option<IpAddr> {
    let list = call.fields.text("X-Forwarded-For").or_else(|| call.fields.text("X-Real-IP"));
    let entries = list.iter().flat_map(|list| list.rsplit(',').take(usize::from(hops) + 1));
    let good = entries.map_while(|entry| read_address(entry.as_bytes())).last();
    good.or_else(|| peer.map(|peer| peer.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_client_are_one_key() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            (" 192.0.2.1 ", Some("192.0.2.1")),
            ("192.0.2.1:443", Some("192.0.2.1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("::FFFF:C000:0201", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:80", Some("192.0.2.1")),
            ("2001:db8:1:2:3:4:5:6", Some("2001:db8:1:2::")),
            ("2001:0DB8:0001:0002::", Some("2001:db8:1:2::")),
            ("[2001:db8:1:2::1]:443", Some("2001:db8:1:2::")),
            ("[2001:db8:1:2::1]", Some("2001:db8:1:2::")),
            ("fe80::1%eth0", Some("fe80::")),
            ("[fe80::1%25eth0]:80", Some("fe80::")),
            ("::1", Some("::")),
            ("unknown", None),
            ("_hidden", None),
            ("192.0.2", None),
            ("192.0.2.01", None),
            ("", None),
        ] {
            let key = read_address(text.as_bytes()).map(|address| network(address).to_string());
            assert_eq!(key.as_deref(), expected, "{text}");
        }
    }
}
