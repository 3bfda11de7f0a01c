//! Endpoints that change something. The audit log records each attempt, including failed ones.

use super::{
    AuditEntry,
    key::{KeyLook, look, unusable},
    policies::limit,
    read::key_text,
    reply::{Problem, Reply, json_reply, until},
};
use crate::{
    config::{Rate, Unit},
    engine::Backend,
    net::Client,
    plan::{Kind, Plan, Rule},
    server::Shared,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tollgate::{
    Quota, Tick,
    store::{Demand, Policy, Store},
};

/// The longest bypass: what should last longer belongs into the configuration.
const MOST_BYPASS: Duration = Duration::from_secs(24 * 3600);

/// The longest block or override.
const MOST_SPECIAL: Duration = Duration::from_secs(365 * 24 * 3600);

/// A key of a policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyBody {
    policy: String,
    /// The key of a policy with one value.
    key: Option<String>,
    /// The values of a key, in the order of the path.
    keys: Option<Vec<String>>,
    for_ms: Option<u64>,
    limit: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BypassBody {
    policy: String,
    for_ms: u64,
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let wrong = |error| Problem::bad(format!("the body does not match this endpoint: {error}"));
    serde_json::from_slice(body).map_err(wrong)
}

/// Does what `action` says, and writes it down.
pub(super) async fn change(
    shared: &Shared,
    client: &Client,
    action: &'static str,
    body: &[u8],
) -> Result<Reply, Problem> {
    let done = match action {
        "/reload" => reload(shared).await,
        "/bypass" => bypass(shared, body),
        _ => of_key(shared, action, body).await,
    };
    let error = done.as_ref().err().map(|problem| problem.detail.clone());
    let what = String::from_utf8_lossy(body).split_whitespace().collect::<Vec<_>>().join(" ");
    let (at, who) = (shared.engine.now(), client.to_string());
    shared.admin.audit().note(AuditEntry { at, who, action, what, error });
    done.map(|value| json_reply(StatusCode::OK, &value))
}

async fn reload(shared: &Shared) -> Result<Value, Problem> {
    let Some(control) = shared.admin.control() else {
        let text = "this server has no configuration file to reload";
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, text));
    };
    match control.reload().await {
        Ok(report) => Ok(json!({ "version": report.version, "warnings": report.warnings })),
        Err(error) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("the configuration was not loaded; the previous one stays in force: {error}"),
        )),
    }
}

fn bypass(shared: &Shared, body: &[u8]) -> Result<Value, Problem> {
    let BypassBody { policy, for_ms } = parsed(body)?;
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let index = plan.named(&policy).map_err(|error| unusable(&error.into()))?;
    let rule = plan.rule(index);
    let end = match for_ms {
        0 => Tick::ZERO,
        _ => end(now, Some(for_ms), MOST_BYPASS)?,
    };
    rule.live().bypass_until(end);
    let clock = shared.engine.clock();
    let told = rule.live().bypassed_until(now).map(|end| until(clock, now, end));
    Ok(json!({ "policy": rule.label(), "bypassed_until": told }))
}

/// Returns when something ends that lasts so long.
fn end(now: Tick, for_ms: Option<u64>, most: Duration) -> Result<Tick, Problem> {
    let Some(for_ms) = for_ms else {
        return Err(Problem::bad("`for_ms` is missing; give the duration in milliseconds"));
    };
    let time = Duration::from_millis(for_ms);
    if time.is_zero() || time > most {
        let most = most.as_millis();
        return Err(Problem::bad(format!("for_ms {for_ms} is out of range; give 1 to {most}")));
    }
    Ok(now.saturating_add(time))
}

/// Refuses fields that an action does not take: they would else be taken for done.
fn check_fields(action: &str, body: &KeyBody) -> Result<(), Problem> {
    let has_end = matches!(action, "/block" | "/override");
    let unused =
        |field| Err(Problem::bad(format!("{action} does not take `{field}`; leave it out")));
    match () {
        () if body.for_ms.is_some() && !has_end => unused("for_ms"),
        () if body.limit.is_some() && action != "/override" => unused("limit"),
        () if body.key.is_some() && body.keys.is_some() => {
            Err(Problem::bad("give either `key` or `keys`"))
        }
        () => Ok(()),
    }
}

async fn of_key(shared: &Shared, action: &str, body: &[u8]) -> Result<Value, Problem> {
    let body: KeyBody = parsed(body)?;
    check_fields(action, &body)?;
    let keys = body.keys.as_deref().unwrap_or_default();
    let values: Vec<&[u8]> = body.key.iter().chain(keys).map(String::as_bytes).collect();
    let (plan, now) = (shared.engine.plan_arc(), shared.engine.now());
    let KeyLook { rule, key, .. } = look(shared, (&plan, now), &body.policy, &values).await?;
    let rule = plan.rule(rule);
    let target = Target { shared, plan: &plan, rule, key: &key, now };
    let mut told = match action {
        "/reset" => target.reset().await?,
        "/block" => target.block(end(now, body.for_ms, MOST_SPECIAL)?)?,
        "/unblock" => target.unblock()?,
        "/override" => {
            let text = body.limit.as_deref().ok_or_else(|| {
                Problem::bad(
                    "`limit` is missing; give one, for example \"100/min burst 5\" or \
                     \"unlimited\"",
                )
            })?;
            target.override_by(text, end(now, body.for_ms, MOST_SPECIAL)?)?
        }
        _ => target.clear()?,
    };
    told["policy"] = json!(rule.label());
    told["key"] = json!(key_text(rule, &key));
    Ok(told)
}

/// A key that is about to be changed.
struct Target<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
    rule: &'a Rule,
    key: &'a [u8],
    now: Tick,
}

impl Target<'_> {
    /// Forgets what the key has used. Its parents keep what they have counted.
    async fn reset(&self) -> Result<Value, Problem> {
        let Some(policy) = self.rule.kind().policy() else {
            return Err(Problem::bad("the policy counts nothing, so there is nothing to reset"));
        };
        let demand = Demand::new(policy, self.key, 0);
        let reset = match self.shared.engine.stores().get(self.rule.store()) {
            Some(store) => store.reset(&demand).await,
            None => Ok(()),
        };
        let failed = |error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}"));
        reset.map_err(failed)?;
        Ok(json!({ "reset": true }))
    }

    fn change(&self, how: impl FnOnce(&mut crate::engine::Special)) -> Result<(), Problem> {
        let changed = self.shared.engine.overlay().change((self.rule, self.key), self.now, how);
        changed.map_err(|error| Problem::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string()))
    }

    fn block(&self, end: Tick) -> Result<Value, Problem> {
        self.change(|special| special.blocked_until = Some(end))?;
        Ok(json!({ "blocked_until": until(self.shared.engine.clock(), self.now, end) }))
    }

    /// Ends what an administrator has blocked, and what the rule has banned.
    fn unblock(&self) -> Result<Value, Problem> {
        let mut was_blocked = false;
        self.change(|special| was_blocked = special.blocked_until.take().is_some())?;
        let bans = self.rule.live().bans();
        let was_banned = bans.is_some_and(|bans| bans.unblock(self.key, self.now));
        Ok(json!({ "was_blocked": was_blocked, "was_banned": was_banned }))
    }

    fn override_by(&self, text: &str, end: Tick) -> Result<Value, Problem> {
        let kind = self.kind(text)?;
        let told = limit(&kind);
        self.check_quota(&kind)?;
        self.change(|special| special.limit = Some((kind, end)))?;
        Ok(json!({
            "limit": told, "until": until(self.shared.engine.clock(), self.now, end),
        }))
    }

    /// Refuses an override whose quota the store cannot count, and puts the others in force as of now.
    fn check_quota(&self, kind: &Kind) -> Result<(), Problem> {
        let store = self.shared.engine.stores().get(self.rule.store()).and_then(Backend::memory);
        let (Some(store), Some(policy)) = (store, kind.policy()) else { return Ok(()) };
        store.declare([policy]).map_err(|(_, error)| Problem::bad(error.to_string()))
    }

    fn clear(&self) -> Result<Value, Problem> {
        let mut was_overridden = false;
        self.change(|special| was_overridden = special.limit.take().is_some())?;
        Ok(json!({ "was_overridden": was_overridden }))
    }

    /// Returns what a quota's text means for this rule: by its algorithm, in its state.
    fn kind(&self, text: &str) -> Result<Kind, Problem> {
        let quota: Quota = text.parse().map_err(|error| Problem::bad(format!("{error}")))?;
        if quota.is_unlimited() {
            return Ok(Kind::Unlimited);
        }
        let (count, per) = (quota.count(), quota.period());
        let burst = quota.explicit_burst();
        let rate = Rate::Counted { count, per, unit: Unit::of(per), burst };
        let domain = self.plan.domain(self.rule.domain());
        let usual = domain.map(|domain| domain.defaults().algorithm).unwrap_or_default();
        let algorithm = self.rule.kind().policy().map_or(usual, Policy::algorithm);
        let policy = Policy::with_algorithm(self.rule.id(), quota, algorithm);
        let policy = policy.map_err(|error| Problem::bad(error.to_string()))?;
        Ok(Kind::Counted { policy, rate })
    }
}
