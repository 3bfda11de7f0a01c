//! Limits that come with a descriptor, in place of its rule's.
//!
//! The reference counts hits by descriptor and window, regardless of the limit. So an override with
//! the rule's unit shares the count of the rule, and any other has a window of its own unit.

use super::{
    AdHocLimit, Answer, Code, Hits, Part, RequestError,
    collect::{Target, bytes_at, write_key},
    request::MAX_ASKS,
    special::{By, Mode, PartLimit},
};
use crate::plan::{Entry, Kind, Plan, RuleIndex};
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Policy},
};

/// Adds the limit that comes with a descriptor.
pub(super) fn override_part(
    (plan, target): (&Plan, &Target<'_>),
    (ask, hits, limit): (usize, Hits, AdHocLimit),
    entries: &[Entry<'_>],
    answer: &mut Answer,
) -> Result<(), RequestError> {
    let Some(domain) = target.domain else { return Ok(()) };
    if answer.parts.len() >= MAX_ASKS {
        return Err(RequestError::TooMany { count: answer.parts.len() + 1 });
    }
    let quota = Quota::per(limit.count, limit.unit.length());
    let shared = shared_rule(plan, target, limit);
    let key = match shared {
        Some(_) => write_key(target.values.as_slice(), &mut answer.keys),
        None => {
            let pairs = entries.iter().flat_map(|it| [it.key.as_bytes(), it.value.as_bytes()]);
            write_key(&pairs.collect::<Vec<_>>(), &mut answer.keys)
        }
    };
    let nonsense = |error: &dyn std::fmt::Display| RequestError::Limit(error.to_string());
    let mode = if domain.defaults().shadow_mode { Mode::Shadow } else { Mode::Enforced };
    let (mut code, mut by, mut algorithm) = (Code::Allowed, By::Nothing, Algorithm::FixedWindow);
    if let Some((_, rule_policy)) = shared {
        algorithm = rule_policy.algorithm();
    }
    if limit.count == 0 {
        code = mode.refused(Code::Denied);
    } else {
        let policy = match shared {
            // Policies of one name share the states of their keys.
            Some((_, rule_policy)) => Policy::with_algorithm(rule_policy.name(), quota, algorithm)
                .map_err(|error| nonsense(&error))?,
            None => {
                let window = domain.window(limit.unit);
                Demand::ad_hoc(window, b"", 1, quota).map_err(|error| nonsense(&error))?;
                window.clone()
            }
        };
        by = By::Listed(answer.policies.len());
        answer.policies.push(policy);
    }
    let (count, per) = (limit.count, limit.unit.length());
    let rule = shared.map_or(domain.override_rule(), |(rule, _)| rule);
    let (Hits::Take(cost) | Hits::Give(cost)) = hits;
    answer.parts.push(Part {
        rule,
        is_override: true,
        ask,
        cost,
        code,
        decision: None,
        blocked_until: None,
        before: None,
        charged: 0,
        store: plan.rule(rule).store(),
        limit: Some(PartLimit { count, per, capacity: count, algorithm }),
        by,
        mode,
        is_decided: limit.count == 0,
        key,
        gives: matches!(hits, Hits::Give(_)),
        failure: domain.defaults().failure,
        counts_refused: domain.defaults().count_refused,
        is_parent: false,
        is_entered_here: false,
    });
    Ok(())
}

/// Returns the rule whose count an override shares: one of the same unit that the descriptor meets. Where
/// values share a count (`share_threshold`), the reference counts an override by the value.
fn shared_rule<'p>(
    plan: &'p Plan,
    target: &Target<'_>,
    limit: AdHocLimit,
) -> Option<(RuleIndex, &'p Policy)> {
    target.rules.clone().find_map(|index| {
        let rule = plan.rule(index);
        let Kind::Counted { policy, .. } = rule.kind() else { return None };
        let is_same = rule.kind().unit() == Some(limit.unit) && !rule.shares_values();
        is_same.then_some((index, policy))
    })
}

/// Refuses a request that holds two limits against one count: no store can, and the reference's answer depends
/// on the order of its descriptors.
pub(super) fn check_shared_counts(plan: &Plan, answer: &Answer) -> Result<(), RequestError> {
    let Answer { parts, keys, policies, .. } = answer;
    let name = |part: &Part| match part.by {
        By::Listed(index) => Some(policies[index].name()),
        By::Rule => plan.rule(part.rule).kind().policy().map(Policy::name),
        By::Nothing => None,
    };
    for (index, one) in parts.iter().enumerate().filter(|(_, part)| part.is_override) {
        let of_same_count = |other: &&Part| {
            let is_same = bytes_at(keys, other.key) == bytes_at(keys, one.key);
            is_same && other.store == one.store && name(other).is_some() && name(other) == name(one)
        };
        let others = parts.iter().enumerate().filter(|(other, _)| *other != index);
        let mut same = others.map(|(_, part)| part).filter(of_same_count);
        let differs = |other: &&Part| other.limit != one.limit;
        if let Some((one, other)) = one.limit.zip(same.find(differs).and_then(|other| other.limit))
        {
            return Err(RequestError::Limit(format!(
                "a descriptor appears twice, with limits of {} and {} for one count; give both the \
                 same limit",
                other.count, one.count
            )));
        }
    }
    Ok(())
}
