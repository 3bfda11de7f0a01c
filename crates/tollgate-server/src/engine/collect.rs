//! From a request to its parts: which limits it meets, with which keys.

use super::{
    Answer, Ask, Code, Engine, Hits, Part, Request, RequestError, Subject, Verb,
    request::MAX_ASKS,
    special::{By, Mode, PartKind},
};
use crate::plan::{AdaptiveRule, DomainPlan, Entry, Kind, MAX_ENTRIES, Plan, RuleIndex, ValueOf};
use tollgate::{Quota, Tick, store::Demand};
use tollgate_tower::key::rollout_place;

/// Parents of parents are followed so far.
const MAX_PARENTS: usize = 8;

/// The free values of a rule, on the stack.
#[derive(Clone, Copy)]
struct Values<'a> {
    list: [&'a [u8]; MAX_ENTRIES],
    len: usize,
}

impl<'a> Values<'a> {
    const fn new() -> Self {
        Self { list: [&[]; MAX_ENTRIES], len: 0 }
    }

    fn push(&mut self, value: &'a [u8]) {
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = value;
            self.len += 1;
        }
    }

    fn as_slice(&self) -> &[&'a [u8]] {
        &self.list[..self.len]
    }
}

/// What a part is made from.
struct Made<'a> {
    ask: usize,
    hits: Hits,
    now: Tick,
    depth: usize,
    values: &'a Values<'a>,
    /// Names of rules that are replaced.
    without: &'a [&'a str],
}

impl Engine {
    /// Fills the answer with the parts of a request, not decided yet.
    pub(super) fn collect(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        if request.asks.len() > MAX_ASKS {
            return Err(RequestError::TooMany { count: request.asks.len() });
        }
        if self.gather(plan, now, request, (&[], answer))? {
            // Parents of what is replaced are not charged: all is gathered again without it.
            let names = replaced(plan, answer);
            self.gather(plan, now, request, (&names, answer))?;
        }
        if matches!(request.verb, Verb::Peek) {
            for part in answer.parts.iter_mut().filter(|part| part.gives) {
                (part.gives, part.cost) = (false, 0);
            }
        }
        Ok(())
    }

    /// Fills the answer with the parts of a request, less rules with one of the names. Tells whether
    /// some rule replaces others.
    fn gather(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        (without, answer): (&[&str], &mut Answer),
    ) -> Result<bool, RequestError> {
        answer.clear();
        let mut replaces = false;
        for (index, ask) in request.asks.iter().enumerate() {
            match ask.subject {
                Subject::Entries(entries) if entries.len() > MAX_ENTRIES => {
                    return Err(RequestError::TooManyEntries { count: entries.len() });
                }
                Subject::Entries(entries) => {
                    let Some(domain) = plan.domain(request.domain) else { continue };
                    if ask.limit.is_some() {
                        ad_hoc(domain, (index, ask), entries, answer)?;
                    } else if let Some(found) = domain.find(entries) {
                        let values = free_values(entries, found.free);
                        let hits = ask.hits;
                        let made =
                            Made { ask: index, hits, now, depth: 0, values: &values, without };
                        let rules = match request.verb.is_of_concurrency() {
                            true => found.concurrency.as_slice(),
                            false => found.rules,
                        };
                        for rule in rules {
                            replaces |= !plan.rule(*rule).replaces().is_empty();
                            self.part(plan, *rule, &made, answer)?;
                        }
                    }
                }
                Subject::Named { policy, keys } => {
                    let rule = plan.named(policy)?;
                    fits_verb(plan, rule, request.verb)?;
                    let values = given_values(plan, rule, keys)?;
                    let hits = ask.hits;
                    let made = Made { ask: index, hits, now, depth: 0, values: &values, without };
                    self.part(plan, rule, &made, answer)?;
                }
            }
        }
        Ok(replaces)
    }

    fn part(
        &self,
        plan: &Plan,
        index: RuleIndex,
        made: &Made<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        let rule = plan.rule(index);
        if !made.without.is_empty() && rule.name().is_some_and(|name| made.without.contains(&name))
        {
            return Ok(());
        }
        let key = write_key(made.values.as_slice(), &mut answer.keys);
        let is_parent = made.depth > 0;
        let Some(cost) = cost_beside(answer, (index, key), made.hits, is_parent) else {
            return Ok(());
        };
        if answer.parts.len() >= MAX_ASKS {
            return Err(RequestError::TooMany { count: answer.parts.len() + 1 });
        }
        let key_bytes = &answer.keys[key.0 as usize..key.1 as usize];
        let special = self.overlay.look(rule, key_bytes, made.now);
        let last = made.values.as_slice().last().and_then(|last| std::str::from_utf8(last).ok());
        let overridden = special.as_ref().and_then(|special| special.limit.as_ref());
        let kind = overridden.map_or_else(|| rule.kind_of(last), |(kind, _)| kind);
        // Only the rule's own limit moves, not that of a single value or of an administrator.
        let adaptive = rule.adaptive().filter(|_| std::ptr::eq(kind, rule.kind()));
        let other = match kind.policy() {
            _ if adaptive.is_some() => adaptive.map(AdaptiveRule::policy),
            policy if policy != rule.kind().policy() => policy.cloned(),
            _ => None,
        };
        let by = match (other, kind.policy()) {
            (Some(policy), _) => {
                answer.policies.push(policy);
                By::Listed(answer.policies.len() - 1)
            }
            (None, Some(_)) => By::Rule,
            (None, None) => By::Nothing,
        };
        let mode = match () {
            () if rule.is_shadow()
                || !is_enforced(rule.enforce(), made.values.as_slice(), made.now) =>
            {
                Mode::Shadow
            }
            () if rule.is_quota_mode() => Mode::Quota,
            () => Mode::Enforced,
        };
        let banned = rule.live().bans().and_then(|bans| bans.blocked_until(key_bytes, made.now));
        let blocked = special.as_ref().and_then(|special| special.blocked_until).or(banned);
        let is_bypassed = rule.live().bypassed_until(made.now).is_some();
        let (code, is_decided) = match kind {
            _ if is_bypassed => (Code::Bypassed, true),
            _ if blocked.is_some() => (mode.refused(Code::Blocked), true),
            Kind::Unlimited => (Code::Unlimited, true),
            Kind::Closed { .. } => (mode.refused(Code::Denied), true),
            Kind::Counted { .. } | Kind::Concurrency(_) => (Code::Allowed, false),
        };
        answer.parts.push(Part {
            rule: Some(index),
            ask: made.ask,
            cost,
            code,
            decision: None,
            blocked_until: blocked,
            store: rule.store(),
            kind: PartKind::of(kind).moved(adaptive),
            by,
            mode,
            is_decided,
            key,
            gives: matches!(made.hits, Hits::Give(_)),
            failure: rule.failure(),
            counts_refused: rule.counts_refused(),
            is_parent,
            is_entered_here: false,
        });
        self.parents(plan, index, made, answer)
    }

    fn parents(
        &self,
        plan: &Plan,
        child: RuleIndex,
        made: &Made<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        if made.depth == MAX_PARENTS {
            return Ok(());
        }
        for parent in plan.rule(child).parents() {
            let mut values = Values::new();
            for value in &parent.values {
                values.push(match value {
                    ValueOf::Free(index) => {
                        made.values.list.get(*index).copied().unwrap_or_default()
                    }
                    ValueOf::Fixed(value) => value.as_bytes(),
                });
            }
            let depth = made.depth + 1;
            let made = Made { values: &values, depth, ..*made };
            self.part(plan, parent.rule, &made, answer)?;
        }
        Ok(())
    }
}

fn free_values<'a>(entries: &[Entry<'a>], free: u32) -> Values<'a> {
    let mut values = Values::new();
    for (index, entry) in entries.iter().enumerate() {
        if free >> index & 1 == 1 {
            values.push(entry.value.as_bytes());
        }
    }
    values
}

/// Tells whether a policy that was named limits what a verb is about.
fn fits_verb(plan: &Plan, rule: RuleIndex, verb: Verb) -> Result<(), RequestError> {
    let rule = plan.rule(rule);
    let is_concurrency = rule.kind().slots().is_some();
    if is_concurrency == verb.is_of_concurrency() {
        return Ok(());
    }
    Err(RequestError::WrongVerb { policy: rule.label().into(), is_concurrency })
}

fn given_values<'a>(
    plan: &Plan,
    rule: RuleIndex,
    keys: &[&'a [u8]],
) -> Result<Values<'a>, RequestError> {
    let rule = plan.rule(rule);
    let wanted = rule.free_keys();
    // A policy without free values takes an empty key, too.
    let keys = if wanted.is_empty() && keys == [b""] { &[] } else { keys };
    if keys.len() != wanted.len() {
        let wanted = wanted.iter().map(ToString::to_string).collect();
        return Err(RequestError::Keys { policy: rule.label().into(), wanted, given: keys.len() });
    }
    let mut values = Values::new();
    keys.iter().for_each(|key| values.push(key));
    Ok(values)
}

/// Appends the key of some values, and returns where it is. One value is its own key; several are
/// told apart by their lengths.
fn write_key(values: &[&[u8]], keys: &mut Vec<u8>) -> (u32, u32) {
    let start = keys.len();
    if let [value] = values {
        keys.extend_from_slice(value);
    } else {
        for value in values {
            // OVERFLOW: no protocol takes a value of 4 GiB.
            keys.extend_from_slice(&(value.len() as u32).to_le_bytes());
            keys.extend_from_slice(value);
        }
    }
    (start as u32, keys.len() as u32)
}

/// Adds a limit that comes with the request.
fn ad_hoc(
    domain: &DomainPlan,
    (index, ask): (usize, &Ask<'_>),
    entries: &[Entry<'_>],
    answer: &mut Answer,
) -> Result<(), RequestError> {
    let Some(limit) = ask.limit else { return Ok(()) };
    let mut values = Vec::with_capacity(2 * entries.len());
    for entry in entries {
        values.extend([entry.key.as_bytes(), entry.value.as_bytes()]);
    }
    let key = write_key(&values, &mut answer.keys);
    if answer.parts.len() >= MAX_ASKS {
        return Err(RequestError::TooMany { count: answer.parts.len() + 1 });
    }
    // No store can hold two limits against one count.
    let differs = |part: &Part| match part.kind {
        PartKind::AdHoc(known) => {
            let is_same = bytes_at(&answer.keys, part.key) == bytes_at(&answer.keys, key);
            is_same && known.unit == limit.unit && known.count != limit.count
        }
        _ => false,
    };
    if let Some(Part { kind: PartKind::AdHoc(known), .. }) =
        answer.parts.iter().find(|p| differs(p))
    {
        return Err(RequestError::Limit(format!(
            "a descriptor appears twice, with the limits {} and {} per {}; give both the same \
             limit",
            known.count, limit.count, limit.unit
        )));
    }
    let policy = domain.window(limit.unit);
    let mode = if domain.defaults().shadow_mode { Mode::Shadow } else { Mode::Enforced };
    let (code, by) = if limit.count == 0 {
        (mode.refused(Code::Denied), By::Nothing)
    } else {
        let quota = Quota::per(limit.count, limit.unit.length());
        Demand::ad_hoc(policy, b"", 1, quota)
            .map_err(|error| RequestError::Limit(error.to_string()))?;
        answer.policies.push(policy.clone());
        (Code::Allowed, By::Listed(answer.policies.len() - 1))
    };
    answer.parts.push(Part {
        rule: None,
        ask: index,
        cost: if let Hits::Give(give) = ask.hits { give } else { ask.hits.taken() },
        code,
        decision: None,
        blocked_until: None,
        store: domain.store(),
        kind: PartKind::AdHoc(limit),
        by,
        mode,
        is_decided: limit.count == 0,
        key,
        gives: matches!(ask.hits, Hits::Give(_)),
        failure: domain.defaults().failure,
        counts_refused: domain.defaults().count_refused,
        is_parent: false,
        is_entered_here: false,
    });
    Ok(())
}

fn bytes_at(keys: &[u8], (start, end): (u32, u32)) -> &[u8] {
    &keys[start as usize..end as usize]
}

/// Returns what a part costs beside those that are there already; `None` if one of them is enough. A
/// parent is charged once for the largest cost, also if a descriptor of the request is about it.
fn cost_beside(
    answer: &mut Answer,
    (rule, key): (RuleIndex, (u32, u32)),
    hits: Hits,
    is_parent: bool,
) -> Option<u64> {
    let (Hits::Take(cost) | Hits::Give(cost)) = hits;
    let gives = matches!(hits, Hits::Give(_));
    let Answer { parts, keys, .. } = answer;
    let same = parts.iter_mut().filter(|part| {
        let may = part.rule == Some(rule) && part.gives == gives && (is_parent || part.is_parent);
        may && bytes_at(keys, part.key) == bytes_at(keys, key)
    });
    let Some(known) = same.max_by_key(|part| part.cost) else { return Some(cost) };
    let largest = cost.max(known.cost);
    if is_parent {
        known.cost = largest;
        return None;
    }
    known.cost = 0;
    Some(largest)
}

/// Returns the names of rules that other rules of the request replace.
fn replaced<'p>(plan: &'p Plan, answer: &Answer) -> Vec<&'p str> {
    let mut names: Vec<&str> = Vec::new();
    for part in &answer.parts {
        if let Some(rule) = part.rule {
            names.extend(plan.rule(rule).replaces().iter().map(|name| &**name));
        }
    }
    names
}

/// Tells whether a key is among the percentage for which refusals count. The same key always is or is
/// not, in every process and in the layers of `tollgate-tower`; without a key it is decided anew each time.
fn is_enforced(percent: u8, values: &[&[u8]], now: Tick) -> bool {
    let place = || match values {
        [] => rollout_place([now.as_nanos().to_le_bytes()]),
        values => rollout_place(values),
    };
    percent >= 100 || place() < percent
}
