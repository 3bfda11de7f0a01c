//! Endpoints that only read.

use super::{
    Alarm, Audit,
    key::{look, unusable},
    policies::limit,
    query::Query,
    reply::{Problem, Reply, ago, json_reply, millis_up, until},
};
use crate::{
    engine::{Code, KeyText, LimitReport, Part, RemoteStatus},
    net::Listener,
    plan::{Plan, Rule},
    server::Shared,
};
use http::StatusCode;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tollgate::{Tick, TopKey};

/// Keys in a response: the default, and the maximum.
const USUAL_TOP: u64 = 10;
const MOST_TOP: u64 = 10_000;

/// Blocks and overrides in an answer at most.
const MOST_SPECIALS: usize = 10_000;
/// How long a bound that was reached is a problem of `/health/detail`.
const BOUND_SHOWN: Duration = Duration::from_secs(60);

/// `GET /health`
pub(super) fn health(query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    Ok(json!({ "status": "alive" }))
}

/// Returns why decisions are degraded, if they are: a store cannot be reached, and each policy's
/// `failure` decides.
pub(super) fn degraded(shared: &Shared) -> Option<String> {
    if let Some((number, why)) = shared.engine.degraded() {
        let plan = shared.engine.plan();
        let name = store_name(&plan, number);
        return Some(format!("the store \"{name}\" cannot be reached: {why}"));
    }
    let is_failing = shared.admin.sampler().is_store_failing();
    is_failing.then(|| {
        let last = shared.engine.health().last().unwrap_or_default();
        format!("a store has failed in each of the last three seconds: {last}")
    })
}

/// `GET /ready`
pub(super) fn ready(shared: &Shared, query: &Query) -> Result<Reply, Problem> {
    query.only(&["strict"]).map_err(Problem::bad)?;
    let is_strict = query.number("strict", 0, 1).map_err(Problem::bad)? == 1;
    let degraded = degraded(shared);
    if let Some(why) = shared.not_ready() {
        let why = match degraded.filter(|_| !shared.is_leaving()) {
            Some(store) => format!("{why}: {store}"),
            None => why.to_owned(),
        };
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    match degraded {
        None => Ok(json_reply(StatusCode::OK, &json!({ "status": "ready" }))),
        Some(why) if is_strict => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why)),
        // A store that is down is down for every process, and some process must respond.
        Some(why) => Ok(json_reply(StatusCode::OK, &json!({ "status": "degraded", "why": why }))),
    }
}

/// `GET /version`
pub(super) fn version(query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    Ok(json!({ "name": "tollgate", "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /health/detail`: 200 if all is well, 503 with the problems.
pub(super) fn detail(shared: &Shared, query: &Query) -> Result<Reply, Problem> {
    query.only(&["percent", "least"]).map_err(Problem::bad)?;
    let usual = Alarm::default();
    let percent = query.number("percent", u64::from(usual.percent), 100).map_err(Problem::bad)?;
    let least = query.number("least", usual.least, u64::MAX).map_err(Problem::bad)?;
    // OVERFLOW: a percentage is at most 100.
    let wrong = problems(shared, Alarm { percent: percent as u8, least });
    let (status, word) = match wrong.is_empty() {
        true => (StatusCode::OK, "well"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unwell"),
    };
    Ok(json_reply(status, &json!({ "status": word, "problems": wrong })))
}

/// Lists the current problems, as text.
pub(super) fn problems(shared: &Shared, alarm: Alarm) -> Vec<Value> {
    let plan = shared.engine.plan_arc();
    let mut wrong: Vec<Value> = Vec::new();
    if let Some(why) = shared.not_ready() {
        wrong.push(json!({ "what": "ready", "text": why }));
    }
    if let Some(why) = degraded(shared) {
        wrong.push(json!({ "what": "store", "text": why }));
    }
    if let Some((at, why)) = shared.engine.health().last_bound()
        && shared.engine.now().since(at) < BOUND_SHOWN
    {
        let text = format!("calls were denied in the last minute: {why}");
        wrong.push(json!({ "what": "bound", "text": text }));
    }
    for (index, rates) in shared.admin.sampler().alarms(&plan, alarm) {
        let label = plan.rule(index).label();
        let all = rates.allowed.saturating_add(rates.denied);
        let share = u128::from(rates.denied) * 100 / u128::from(all.max(1));
        let text = format!(
            "policy \"{label}\" has denied {share} % for a minute: {} of {all}",
            rates.denied
        );
        wrong.push(json!({
            "what": "policy", "policy": label, "denied": rates.denied, "allowed": rates.allowed,
            "text": text,
        }));
    }
    if let Some(status) = shared.admin.control().map(|control| control.status()) {
        if let Some(error) = status.last_load.and_then(|load| load.error) {
            let text = format!(
                "the configuration was not loaded; the previous one stays in force: {error}"
            );
            wrong.push(json!({ "what": "config", "text": text }));
        }
        for snapshot in status.snapshots {
            if let Some(error) = snapshot.error {
                let text = format!("the snapshot {} was not written: {error}", snapshot.path);
                wrong.push(json!({ "what": "snapshot", "text": text }));
            }
        }
    }
    wrong
}

/// `GET /top`
pub(super) fn top(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&["policy", "n"]).map_err(Problem::bad)?;
    let n = query.number("n", USUAL_TOP, MOST_TOP).map_err(Problem::bad)? as usize;
    let plan = shared.engine.plan_arc();
    let wanted = query.text("policy").map_err(Problem::bad)?;
    let wanted =
        wanted.ok_or_else(|| Problem::bad("the policy is missing; write /top?policy=..."))?;
    let index = plan.named(wanted).map_err(|error| unusable(&error.into()))?;
    let rule = plan.rule(index);
    let list = |keys: Vec<TopKey>| -> Vec<Value> {
        let told = |key: TopKey| {
            let keys = KeyText::read(rule, &key.name);
            json!({ "key": key.name, "keys": keys, "cost": key.count, "error": key.error })
        };
        keys.into_iter().map(told).collect()
    };
    let Some(top) = rule.top_keys() else {
        let why = match rule.free_keys() {
            [] => "the policy has no key",
            _ => "keys are not tracked; set `top_keys` above 0 in the `server` section",
        };
        return Ok(json!({ "policy": rule.label(), "watched": false, "why": why }));
    };
    Ok(json!({
        "policy": rule.label(),
        "watched": true,
        "keys": rule.free_keys(),
        "distinct": top.distinct(),
        "allowed": list(top.top_allowed(n)),
        "denied": list(top.top_denied(n)),
    }))
}

/// `GET /key`
pub(super) async fn key(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&["policy", "key"]).map_err(Problem::bad)?;
    let policy = query.text("policy").map_err(Problem::bad)?;
    let policy = policy
        .ok_or_else(|| Problem::bad("the policy is missing; write /key?policy=...&key=..."))?;
    let values: Vec<&[u8]> = query.all("key").collect();
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let found = look(shared, (&plan, now), policy, &values).await?;
    let rule = plan.rule(found.rule);
    let clock = shared.engine.clock();
    let special = shared.engine.overlay().look(rule, &found.key, now);
    let overridden = special.as_ref().and_then(|special| special.limit.as_ref());
    let banned = rule.live().bans().and_then(|bans| bans.blocked_until(&found.key, now));
    let (own, others): (Vec<&Part>, Vec<&Part>) =
        found.answer.parts().iter().partition(|part| part.rule == found.rule);
    let told = |part: &&Part| part_of(&plan, found.answer.report_of(&plan, part, now), part);
    let end = |end: Tick| until(clock, now, end);
    Ok(json!({
        "policy": rule.label(),
        "key": key_text(rule, &found.key),
        "would_pass": found.answer.is_allowed(),
        "decision": own.first().map(told),
        "others": others.iter().map(told).collect::<Vec<_>>(),
        "explain": found.explained,
        "blocked_until": special.as_ref().and_then(|special| special.blocked_until).map(end),
        "banned_until": banned.map(end),
        "override": overridden.map(|(kind, until)| json!({ "limit": limit(kind), "until": end(*until) })),
    }))
}

fn part_of(plan: &Plan, report: Option<LimitReport<'_>>, part: &Part) -> Value {
    let code = match part.code {
        Code::Allowed => "allowed",
        Code::Denied => "denied",
        Code::Shadowed => "shadowed",
        Code::QuotaSpent => "quota-spent",
        Code::Blocked => "blocked",
        Code::Bypassed => "bypassed",
        Code::Unlimited => "unlimited",
        Code::FailedOpen => "failed-open",
        Code::FailedClosed => "failed-closed",
        Code::Full => "full",
    };
    let mut told = json!({ "policy": plan.rule(part.rule).label(), "result": code });
    if let Some(report) = report {
        told["limit"] = json!(report.limit);
        told["remaining"] = json!(report.remaining);
        told["reset_after_ms"] = json!(millis_up(report.reset_after));
        if let Some(retry) = report.retry_after {
            told["retry_after_ms"] = json!(millis_up(retry));
        }
    }
    told
}

/// Returns a key as people read it.
pub(super) fn key_text(rule: &Rule, key: &[u8]) -> String {
    KeyText::of(rule, key).to_string()
}

/// `GET /specials`
pub(super) fn specials(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let clock = shared.engine.clock();
    let (mut blocked, mut overridden) = (Vec::new(), Vec::new());
    for special in shared.engine.overlay().list(now, MOST_SPECIALS) {
        let rule = plan.named(&special.rule).ok().map(|index| plan.rule(index));
        let key = rule.map_or_else(
            || String::from_utf8_lossy(&special.key).into_owned(),
            |rule| key_text(rule, &special.key),
        );
        let id = rule.map_or(&*special.rule, Rule::id);
        let policy = rule.map_or_else(|| id.into(), |rule| plan.title(rule));
        let keys = rule.and_then(|rule| KeyText::read(rule, &key));
        if let Some(end) = special.blocked_until {
            let until = until(clock, now, end);
            blocked.push(json!({
                "policy": policy, "id": id, "key": key, "keys": keys, "until": until,
            }));
        }
        if let Some((kind, end)) = &special.limit {
            overridden.push(json!({
                "policy": policy, "id": id, "key": key, "keys": keys, "limit": limit(kind),
                "until": until(clock, now, *end),
            }));
        }
    }
    let bypassed = plan.rules().iter().filter_map(|rule| {
        let end = rule.live().bypassed_until(now)?;
        let until = until(clock, now, end);
        Some(json!({ "policy": plan.title(rule), "id": rule.id(), "until": until }))
    });
    let banned = plan.rules().iter().flat_map(|rule| {
        rule.live().banned(now).into_iter().map(move |(key, end)| (rule, key, end))
    });
    let banned = banned.take(MOST_SPECIALS).map(|(rule, key, end)| {
        let key = key_text(rule, &key);
        let keys = KeyText::read(rule, &key);
        json!({
            "policy": plan.title(rule), "id": rule.id(), "key": key, "keys": keys,
            "until": until(clock, now, end),
        })
    });
    Ok(json!({
        "bypassed": bypassed.collect::<Vec<_>>(), "blocked": blocked, "overridden": overridden,
        "banned": banned.collect::<Vec<_>>(),
    }))
}

/// `GET /config`
pub(super) fn config(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let clock = shared.engine.clock();
    let status = shared.admin.control().map(|control| control.status());
    let last = status.as_ref().and_then(|status| status.last_load.as_ref());
    let domains = plan.config().domains.iter().map(|domain| &domain.name);
    Ok(json!({
        "version": plan.version(),
        "policies": plan.rules().len(),
        "domains": domains.collect::<Vec<_>>(),
        "files": status.as_ref().map(|status| &status.files),
        "loads": status.as_ref().map(|status| status.loads),
        "failed_loads": status.as_ref().map(|status| status.failed_loads),
        "last_load": last.map(|load| json!({
            "ok": load.error.is_none(),
            "when": ago(clock, now, load.at),
            "error": load.error,
            "warnings": load.warnings,
        })),
    }))
}

/// `GET /store`: the stores, and the connections that use them.
pub(super) fn store(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&[]).map_err(Problem::bad)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let clock = shared.engine.clock();
    let status = shared.admin.control().map(|control| control.status()).unwrap_or_default();
    let stores = shared.engine.stores().iter().enumerate().map(|(number, store)| {
        let snapshot = status.snapshots.iter().find(|snapshot| snapshot.store == number);
        let memory = store.memory();
        json!({
            "name": store_name(&plan, number),
            "kind": store.kind(),
            "keys": memory.map(|memory| memory.len()),
            "bytes": memory.map(|memory| memory.bytes()),
            "shared": store.remote().map(|store| remote(&store.status())),
            "snapshot": snapshot.map(|snapshot| json!({
                "path": snapshot.path,
                "written": snapshot.written.map(|at| ago(clock, now, at)),
                "error": snapshot.error,
            })),
        })
    });
    let listeners: Map<String, Value> = Listener::ALL
        .into_iter()
        .map(|listener| {
            let counts = shared.traffic(listener).counts();
            let told = json!({
                "open": counts.open, "accepted": counts.accepted,
                "turned_away": counts.turned_away, "requests": counts.requests,
                "bad_requests": counts.bad_requests, "wrong_secrets": counts.wrong_secrets,
                "most": shared.settings.max_connections,
            });
            (listener.name().to_owned(), told)
        })
        .collect();
    let health = shared.engine.health();
    Ok(json!({
        "stores": stores.collect::<Vec<_>>(),
        "errors": health.errors(),
        "degraded_decisions": health.degraded_decisions(),
        "last_error": health.last(),
        "bounds_reached": health.bounds_reached(),
        "last_bound": health.last_bound().map(|(_, text)| text),
        "is_failing": shared.admin.sampler().is_store_failing(),
        "listeners": listeners,
    }))
}

/// Returns the state of a shared store.
fn remote(status: &RemoteStatus) -> Value {
    let nodes = status.nodes.iter().map(|node| {
        json!({
            "address": node.address, "state": node.state, "in_flight": node.in_flight,
            "calls": node.calls, "errors": node.errors, "timeouts": node.timeouts,
            "shed": node.shed, "connects": node.connects, "last_error": node.last_error,
        })
    });
    let counts = &status.counts;
    let [open, closed, local] = counts.degraded;
    json!({
        "fleet_size": status.fleet_size,
        "degraded": status.degraded,
        "decided_without": { "open": open, "closed": closed, "local": local },
        "leased": counts.leased,
        "refused_here": counts.refused_here,
        "calls": counts.calls,
        "unknown_outcomes": counts.unknown,
        "wasted": counts.wasted,
        "pending_keys": status.pending,
        "carried_back": counts.carried_back,
        "dropped_keys": counts.dropped,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

/// Returns the name of a store.
pub(crate) fn store_name(plan: &Plan, number: usize) -> &str {
    let declared = number.checked_sub(1).and_then(|index| plan.config().stores.get(index));
    declared.map_or("default", |store| &store.name)
}

/// `GET /audit`
pub(super) fn audit(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    query.only(&["n"]).map_err(Problem::bad)?;
    let most = Audit::MOST as u64;
    let n = query.number("n", most, most).map_err(Problem::bad)? as usize;
    let (clock, now) = (shared.engine.clock(), shared.engine.now());
    let changes = shared.admin.audit().last(n).into_iter().map(|entry| {
        json!({
            "when": ago(clock, now, entry.at), "who": entry.who, "action": entry.action,
            "what": entry.what, "error": entry.error,
        })
    });
    Ok(json!({ "changes": changes.collect::<Vec<_>>() }))
}
