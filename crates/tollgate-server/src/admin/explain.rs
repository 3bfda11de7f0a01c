//! Explains which limits a request would meet, and why.

use super::{key::unusable, query::Query, reply::Problem};
use crate::{
    engine::{Answer, Ask, Hits, Request, Subject, Verb},
    plan::Entry,
    server::Shared,
};
use serde_json::{Value, json};

/// The most entries of a descriptor.
const MOST_ENTRIES: usize = 32;

/// `GET /explain`: decides about a descriptor and charges nothing.
pub(super) async fn explain(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&["domain", "entry", "cost"]).map_err(Problem::bad)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let cost = query.number("cost", 1, u64::MAX).map_err(Problem::bad)?;
    let domain = query.text("domain").map_err(Problem::bad)?.unwrap_or("");
    // A server with one domain needs no name for it.
    let domain = match (domain, plan.config().domains.as_slice()) {
        ("", [only]) => &only.name,
        _ => domain,
    };
    let entries = query.all("entry").map(entry).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() || entries.len() > MOST_ENTRIES {
        let text = format!(
            "a descriptor has 1 to {MOST_ENTRIES} entries, and this one {}; write \
             /explain?domain=...&entry=key=value",
            entries.len()
        );
        return Err(Problem::bad(text));
    }
    let subject = Subject::Entries(&entries);
    let asks = [Ask { subject, hits: Hits::Take(cost), limit: None }];
    let request = Request { domain, asks: &asks, verb: Verb::Peek };
    let mut answer = Answer::new();
    let decided = shared.engine.decide(&plan, now, &request, &mut answer).await;
    decided.map_err(|error| unusable(&error))?;
    let mut explained = answer.explain(&plan, now, &request);
    explained["allowed"] = json!(answer.is_allowed());
    Ok(explained)
}

fn entry(text: &[u8]) -> Result<Entry<'_>, Problem> {
    let text = std::str::from_utf8(text)
        .map_err(|_| Problem::bad("an entry is not UTF-8; write entry=key=value"))?;
    // An entry without a value has an empty one, as in Envoy's protocol.
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match key {
        "" => Err(Problem::bad(format!(
            "the entry \"{}\" has no key; write entry=key=value",
            text.chars().take(40).collect::<String>()
        ))),
        _ => Ok(Entry::new(key, value)),
    }
}
