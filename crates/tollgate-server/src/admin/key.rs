//! One key of one policy.

use super::reply::Problem;
use crate::{
    engine::{Answer, Ask, Hits, Request, RequestError, Subject, Verb},
    plan::{NameError, Plan, RuleIndex},
    server::Shared,
};
use http::StatusCode;
use serde_json::Value;
use tollgate::Tick;

/// A key that was looked at.
#[derive(Debug)]
pub(super) struct KeyLook {
    pub(super) rule: RuleIndex,
    /// The key, as the store knows it.
    pub(super) key: Box<[u8]>,
    /// The answer that a call for one permit would get.
    pub(super) answer: Answer,
    /// Why.
    pub(super) explained: Value,
}

/// Looks at a key, and changes nothing. `values` are the free values of the policy.
pub(super) async fn look(
    shared: &Shared,
    (plan, now): (&Plan, Tick),
    policy: &str,
    values: &[&[u8]],
) -> Result<KeyLook, Problem> {
    let rule = plan.named(policy).map_err(|error| unusable(&error.into()))?;
    let subject = Subject::Named { policy: plan.rule(rule).id(), keys: values };
    let asks = [Ask { subject, hits: Hits::Take(1), limit: None }];
    let request = Request { domain: "", asks: &asks, verb: Verb::Peek };
    let mut answer = Answer::new();
    let looked = shared.engine.decide(plan, now, &request, &mut answer).await;
    looked.map_err(|error| unusable(&error))?;
    let own = answer.parts().iter().find(|part| part.rule == rule);
    let key = own.map(|part| answer.key(part).into());
    let key = key.ok_or_else(|| Problem::bad("the policy counts nothing"))?;
    let explained = answer.explain(plan, now, &request);
    Ok(KeyLook { rule, key, answer, explained })
}

/// Returns the status of a request that cannot be decided.
pub(super) fn unusable(error: &RequestError) -> Problem {
    let status = match error {
        RequestError::Name(NameError::Unknown { .. }) => StatusCode::NOT_FOUND,
        RequestError::Name(NameError::Ambiguous { .. }) => StatusCode::CONFLICT,
        RequestError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    Problem::new(status, error.to_string())
}
