//! Policies, as administrators see them.

use super::{
    Window,
    key::unusable,
    query::Query,
    reply::{Problem, millis_up, until},
};
use crate::{
    config::Rate,
    plan::{AdaptiveRule, Counted, Kind, Plan, Rule},
    server::Shared,
};
use serde_json::{Map, Value, json};
use std::{collections::HashMap, fmt::Write};
use tollgate::{
    Tick,
    adaptive::rate::RateReport,
    store::{Demand, Policy},
};

/// Policies in one response: the default, and the maximum.
const USUAL: u64 = 1000;
const MOST: u64 = 20_000;

/// After so many policies, the task yields to others.
const PIECE: usize = 16;

/// Samples in the history of a policy.
const HISTORY: u64 = 60;

/// `GET /policies`: as text, because there may be many.
pub(super) async fn policies(shared: &Shared, query: &Query) -> Result<String, Problem> {
    let known = ["domain", "filter", "only", "sort", "limit", "offset", "history"];
    query.only(&known).map_err(Problem::bad)?;
    let page = || -> Result<_, String> {
        let limit = query.number("limit", USUAL, MOST)?;
        let offset = query.number("offset", 0, u64::from(u32::MAX))?;
        Ok((limit as usize, offset as usize, query.number("history", 0, HISTORY)? as usize))
    };
    let (limit, offset, history) = page().map_err(Problem::bad)?;
    let domain = query.text("domain").map_err(Problem::bad)?;
    let filter = query.text("filter").map_err(Problem::bad)?.unwrap_or("").to_lowercase();
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let is_kind: fn(&Rule) -> bool = match query.text("only").map_err(Problem::bad)? {
        None => |_| true,
        Some("adaptive") => |rule| rule.adaptive().is_some(),
        Some("concurrency") => |rule| rule.kind().slots().is_some(),
        Some(only) => {
            let only: String = only.chars().take(40).collect();
            let text = format!("only={only} is unknown; use adaptive or concurrency");
            return Err(Problem::bad(text));
        }
    };
    let picked = |rule: &&Rule| {
        is_kind(rule)
            && domain.is_none_or(|domain| rule.domain() == domain)
            && (filter.is_empty()
                || rule.label().to_lowercase().contains(&filter)
                || rule.id().to_lowercase().contains(&filter))
    };
    let mut rules: Vec<&Rule> = plan.rules_in_use().filter(picked).collect();
    sort(shared, query.text("sort").map_err(Problem::bad)?, &mut rules)?;
    let (total, in_flight) = (rules.len(), shared.engine.in_flight(&plan));
    let seen = Seen { plan: &plan, now, in_flight: &in_flight };
    let mut text = format!("{{\"version\":{},\"total\":{total},\"policies\":[", plan.version());
    for (index, rule) in rules.into_iter().skip(offset).take(limit).enumerate() {
        if index > 0 {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", describe(shared, &seen, rule, history));
        if index % PIECE == PIECE - 1 {
            // Decisions of other connections of this worker come first.
            tokio::task::yield_now().await;
        }
    }
    text.push_str("]}\n");
    Ok(text)
}

/// Sorts the rules by name, or by recent admissions or denials, the most first. Without `by`, the
/// order is that of the files.
fn sort(shared: &Shared, by: Option<&str>, rules: &mut [&Rule]) -> Result<(), Problem> {
    let sampler = shared.admin.sampler();
    let rates = |rule: &&Rule| sampler.rates(rule.live(), Window::Short);
    match by {
        None | Some("file") => {}
        Some("name") => rules.sort_by(|one, other| one.label().cmp(other.label())),
        Some("allowed") => rules.sort_by_cached_key(|rule| std::cmp::Reverse(rates(rule).allowed)),
        Some("denied") => rules.sort_by_cached_key(|rule| {
            let rates = rates(rule);
            std::cmp::Reverse((rates.denied, rates.allowed))
        }),
        Some(by) => {
            let by: String = by.chars().take(40).collect();
            let text = format!("sort={by} is unknown; use file, name, allowed or denied");
            return Err(Problem::bad(text));
        }
    }
    Ok(())
}

/// `GET /policies/{name}`
pub(super) fn policy(shared: &Shared, name: &str, query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let index = plan.named(name).map_err(|error| unusable(&error.into()))?;
    let in_flight = shared.engine.in_flight(&plan);
    let seen = Seen { plan: &plan, now, in_flight: &in_flight };
    Ok(describe(shared, &seen, plan.rule(index), HISTORY as usize))
}

/// The values that the policies of one response share.
struct Seen<'a> {
    plan: &'a Plan,
    now: Tick,
    /// How many calls are in flight, by the ids of rules.
    in_flight: &'a HashMap<Box<str>, u64>,
}

/// Returns the bounds that a shared store guarantees for a rule.
fn bounds(shared: &Shared, rule: &Rule) -> Option<Value> {
    let store = shared.engine.stores().get(rule.store())?.remote()?;
    let bounds = store.bounds(rule.kind().policy()?)?;
    Some(json!({
        "above": bounds.above,
        "below": bounds.below,
        "held_for_ms": millis_up(bounds.held_for),
        "while_away": bounds.while_away,
        "text": bounds.text,
    }))
}

/// Returns a rule with its counts, rates and state as JSON.
fn describe(shared: &Shared, seen: &Seen<'_>, rule: &Rule, history: usize) -> Value {
    let Seen { plan, now, in_flight } = *seen;
    let live = rule.live();
    let counts = live.counts();
    let by_reason: Map<String, Value> = Counted::ALL
        .iter()
        .map(|kind| {
            let (result, reason) = kind.labels();
            (format!("{result}.{reason}"), json!(counts.of(*kind)))
        })
        .collect();
    let sampler = shared.admin.sampler();
    let rates = |window| {
        let rates = sampler.rates(live, window);
        json!({
            "allowed_per_second": rounded(rates.allowed_per_second()),
            "denied_per_second": rounded(rates.denied_per_second()),
            "allowed": rates.allowed,
            "denied": rates.denied,
        })
    };
    let crossed = |percent: &u8| json!({"percent": percent, "crossed": live.crossed(*percent)});
    let parents = rule.parents().iter().map(|parent| plan.rule(parent.rule).label());
    let (clock, level) = (shared.engine.clock(), level(shared, rule, now));
    let mut told = json!({
        "id": rule.id(),
        "name": rule.name(),
        "label": plan.title(rule),
        "domain": rule.domain(),
        "key": rule.free_keys(),
        "limit": limit(rule.kind()),
        "algorithm": rule.kind().policy().map(|policy| policy.algorithm().name()),
        "mode": if rule.is_shadow() { "shadow" } else if rule.is_quota_mode() { "quota" } else { "enforced" },
        "enforce_percent": rule.enforce(),
        "counts_refused": rule.counts_refused(),
        "warn": rule.warn().iter().map(crossed).collect::<Vec<_>>(),
        "failure": rule.failure().name(),
        "lease": rule.lease().to_string(),
        "bounds": bounds(shared, rule),
        "parents": parents.collect::<Vec<_>>(),
        "store": rule.store(),
        "declared": rule.place().to_string(),
        "allowed": counts.allowed(),
        "denied": counts.denied(),
        "decisions": by_reason,
        "charged_permits": counts.charged,
        "returned_permits": counts.returned,
        "banned": live.banned(now).len(),
        "rates": { "10s": rates(Window::Short), "60s": rates(Window::Long) },
        "in_flight": in_flight.get(rule.id()),
        "adaptive": rule.adaptive().map(adaptive),
        "level": level.map(|level| level.left),
        "capacity": level.map(|level| level.full),
        "bypassed_until": live.bypassed_until(now).map(|end| until(clock, now, end)),
    });
    if history > 0 {
        told["history"] = json!(sampler.history(live, history));
    }
    told
}

/// Returns the rate in force, how far it may move, and why it is what it is.
pub(super) fn adaptive(rule: &AdaptiveRule) -> Value {
    let RateReport { rate, min, max, .. } = rule.report();
    json!({
        "follow": rule.follow().name(),
        "per_second": rounded(rate),
        "own_per_second": rounded(rule.own_rate()),
        "min_per_second": rounded(min),
        "max_per_second": rounded(max),
        "reason": rule.reason(),
        "limit": rule.policy().quota().to_string(),
    })
}

fn rounded(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

/// Returns a limit as text and numbers; null for none.
pub(super) fn limit(kind: &Kind) -> Value {
    let burst = match kind {
        Kind::Counted { rate: Rate::Counted { burst, .. }, .. } => *burst,
        _ => None,
    };
    let quota = kind.policy().map(Policy::quota);
    if let Some(slots) = kind.slots() {
        return json!({
            "text": format!("{} in flight", slots.limit),
            "count": slots.limit,
            "lease_seconds": slots.lease.as_secs_f64(),
        });
    }
    if matches!(kind, Kind::PerCall) {
        return json!({ "text": "comes with each call" });
    }
    match (kind.count(), kind.per()) {
        (Some(count), Some(per)) => json!({
            "text": quota.map_or_else(|| "closed".to_owned(), |quota| quota.to_string()),
            "count": count,
            "seconds": per.as_secs_f64(),
            "unit": kind.unit().map(crate::config::Unit::name),
            "burst": burst,
        }),
        _ => Value::Null,
    }
}

/// The remaining permits of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// Permits that are left now.
    pub(crate) left: u64,
    /// Permits when nothing is used.
    pub(crate) full: u64,
}

/// Returns how many permits are left of a policy without a key, if its store is in this process.
pub(crate) fn level(shared: &Shared, rule: &Rule, now: Tick) -> Option<Level> {
    if !rule.free_keys().is_empty() {
        return None;
    }
    let store = shared.engine.stores().get(rule.store())?.memory()?;
    let policy = rule.policy_now()?;
    let mut demands = [Demand::new(&policy, b"", 0)];
    let decision = store.peek_at(now, &mut demands).ok()?;
    Some(Level { left: decision.remaining(), full: decision.limit() })
}
