//! From a request to its parts: which limits it meets, with which keys.

use super::{
    Answer, Code, Engine, Hits, Part, Request, RequestError, Subject, Verb,
    overrides::{check_shared_counts, override_part},
    request::MAX_ASKS,
    special::{By, Mode, PartLimit},
};
use crate::plan::{
    AdaptiveRule, DomainPlan, Entry, Kind, MAX_ENTRIES, Plan, Rule, RuleIndex, ValueOf,
};
use tollgate::Tick;
use tollgate_tower::key::rollout_place;

/// Parents of parents are followed so far.
const MAX_PARENTS: usize = 8;

/// The free values of a rule, on the stack.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
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

    pub(super) fn as_slice(&self) -> &[&'a [u8]] {
        &self.list[..self.len]
    }
}

/// The values that a part is made from.
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
        answer.epoch = self.clock.wall_offset();
        let mut replaces = false;
        for (index, ask) in request.asks.iter().enumerate() {
            let Some(target) = target(plan, request, index)? else { continue };
            if let (Some(limit), Subject::Entries(entries)) = (ask.limit, ask.subject) {
                override_part((plan, &target), (index, ask.hits, limit), entries, answer)?;
                continue;
            }
            let Target { rules, values, .. } = &target;
            let made = Made { ask: index, hits: ask.hits, now, depth: 0, values, without };
            for rule in rules.clone() {
                replaces |= !plan.rule(rule).replaces().is_empty();
                self.part(plan, rule, &made, answer)?;
            }
        }
        if request.asks.iter().any(|ask| ask.limit.is_some()) {
            check_shared_counts(plan, answer)?;
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
        let limit = PartLimit::of(kind, adaptive.zip(other.as_ref()));
        let by = match (other, kind.policy()) {
            (Some(policy), _) => {
                answer.policies.push(policy);
                By::Listed(answer.policies.len() - 1)
            }
            (None, Some(_)) => By::Rule,
            (None, None) => By::Nothing,
        };
        let mode = mode_of(rule, made);
        let banned = rule.live().bans().and_then(|bans| bans.blocked_until(key_bytes, made.now));
        let blocked = special.as_ref().and_then(|special| special.blocked_until).or(banned);
        let is_bypassed = rule.live().bypassed_until(made.now).is_some();
        let (code, is_decided) = match kind {
            _ if is_bypassed => (Code::Bypassed, true),
            _ if blocked.is_some() => (mode.refused(Code::Blocked), true),
            Kind::Unlimited => (Code::Unlimited, true),
            Kind::Closed { .. } => (mode.refused(Code::Denied), true),
            Kind::Counted { .. } | Kind::Concurrency(_) | Kind::PerCall => (Code::Allowed, false),
        };
        answer.parts.push(Part {
            rule: index,
            is_override: false,
            ask: made.ask,
            cost,
            code,
            decision: None,
            blocked_until: blocked,
            before: None,
            charged: 0,
            store: rule.store(),
            limit,
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

/// The subject of an ask: the rates of a node or its `concurrency` rule, with their free values.
pub(super) struct Target<'a> {
    pub(super) rules: std::ops::Range<RuleIndex>,
    pub(super) values: Values<'a>,
    /// The domain; `None` if a policy was named.
    pub(super) domain: Option<&'a DomainPlan>,
}

/// Finds the subject of an ask: by its descriptor, or by the name of a policy, which stands for all
/// rates of its node. Returns `None` if nothing limits it.
fn target<'a>(
    plan: &'a Plan,
    request: &Request<'a>,
    index: usize,
) -> Result<Option<Target<'a>>, RequestError> {
    let ask = &request.asks[index];
    match ask.subject {
        Subject::Entries(entries) if entries.len() > MAX_ENTRIES => {
            Err(RequestError::TooManyEntries { count: entries.len() })
        }
        Subject::Entries(entries) => {
            let Some(domain) = plan.domain(request.domain) else { return Ok(None) };
            let found = domain.find(entries);
            let rules = match found {
                None => 0..0,
                Some(found) if request.verb.is_of_concurrency() => {
                    found.concurrency.map_or(0..0, |rule| rule..rule + 1)
                }
                Some(found) => found.rules.first().map_or(0..0, |rule| plan.rule(*rule).node()),
            };
            let values = free_values(entries, found.map_or(0, |found| found.free));
            Ok(Some(Target { rules, values, domain: Some(domain) }))
        }
        Subject::Named { policy, keys } => {
            let rule = plan.named(policy)?;
            fits_verb(plan, rule, request.verb)?;
            named_once(plan, (request, index), rule)?;
            let (rules, values) = (plan.rule(rule).node(), given_values(plan, rule, keys)?);
            Ok(Some(Target { rules, values, domain: None }))
        }
    }
}

/// Refuses a request that names two limits of one node for one key: each name stands for both, so both would be
/// charged twice. (The same name twice is charged twice, as the same descriptor twice is.)
fn named_once(
    plan: &Plan,
    (request, index): (&Request<'_>, usize),
    rule: RuleIndex,
) -> Result<(), RequestError> {
    let Subject::Named { keys, .. } = request.asks[index].subject else { return Ok(()) };
    for ask in &request.asks[..index] {
        let Subject::Named { policy, keys: others } = ask.subject else { continue };
        let other = plan.named(policy)?;
        if other != rule && plan.rule(other).node() == plan.rule(rule).node() && keys == others {
            let (one, two) = (plan.rule(other).label(), plan.rule(rule).label());
            return Err(RequestError::Limit(format!(
                "policies \"{one}\" and \"{two}\" are limits of one descriptor and are charged \
                 together; name one of them"
            )));
        }
    }
    Ok(())
}

/// Tells whether a policy that was named limits what a verb is about.
fn fits_verb(plan: &Plan, rule: RuleIndex, verb: Verb) -> Result<(), RequestError> {
    let rule = plan.rule(rule);
    if matches!(rule.kind(), Kind::PerCall) {
        return Err(RequestError::Limit(format!(
            "policy \"{}\" takes its limit from each call; name a policy of the configuration",
            rule.label()
        )));
    }
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

/// Appends the key of some values, and returns its range. One value is its own key; several are
/// separated by their lengths.
pub(super) fn write_key(values: &[&[u8]], keys: &mut Vec<u8>) -> (u32, u32) {
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

pub(super) fn bytes_at(keys: &[u8], (start, end): (u32, u32)) -> &[u8] {
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
        let may = part.rule == rule && part.gives == gives && (is_parent || part.is_parent);
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
        names.extend(plan.rule(part.rule).replaces().iter().map(|name| &**name));
    }
    names
}

/// Returns what a refusal means.
fn mode_of(rule: &Rule, made: &Made<'_>) -> Mode {
    let is_enforced = || is_enforced(rule.enforce(), made.values.as_slice(), made.now);
    match () {
        () if rule.is_shadow() || !is_enforced() => Mode::Shadow,
        () if rule.is_quota_mode() => Mode::Quota,
        () => Mode::Enforced,
    }
}

/// Tells whether a key is among the percentage for which denials count. A key always is or always
/// is not, in every process and in the layers of `tollgate-tower`; without a key, the time of each
/// call decides.
fn is_enforced(percent: u8, values: &[&[u8]], now: Tick) -> bool {
    let place = || match values {
        [] => rollout_place([now.as_nanos().to_le_bytes()]),
        values => rollout_place(values),
    };
    percent >= 100 || place() < percent
}
