//! A model of the service, written again in the simplest way: plain counts, no shared code.

use std::{collections::BTreeMap, time::Duration};

/// How a rule counts and refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Enforced,
    Shadow,
    Quota,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// A limit, and the length of its window in seconds.
    Window(u64, u64),
    /// 10 a second, burst 20.
    Bucket,
    Unlimited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) count: Count,
    mode: Mode,
    counts_refused: bool,
}

const fn rule(name: &'static str, count: Count) -> Rule {
    Rule { name, count, mode: Mode::Enforced, counts_refused: false }
}

/// The rules of each descriptor.
pub(crate) fn node(key: &str) -> Vec<Rule> {
    let minute = |name, limit| rule(name, Count::Window(limit, 60));
    match key {
        "user" => vec![minute("user-minute", 6), rule("user-hour", Count::Window(20, 3600))],
        "late" => vec![Rule { counts_refused: true, ..minute("late", 5) }],
        "shadow" => vec![Rule { mode: Mode::Shadow, ..minute("shadow", 3) }],
        "one" => vec![Rule { mode: Mode::Quota, ..minute("one", 2) }],
        "two" => vec![Rule { mode: Mode::Quota, ..minute("two", 4) }],
        "shut" => vec![minute("shut", 0)],
        "free" => vec![rule("free", Count::Unlimited)],
        "bucket" => vec![rule("bucket", Count::Bucket)],
        _ => Vec::new(),
    }
}

/// One limit of a request, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) ask: usize,
    pub(crate) rule: Rule,
    pub(crate) key: String,
    pub(crate) cost: u64,
    pub(crate) code: &'static str,
    /// Permits left, and milliseconds until it may pass (`None`: never) and until all are back.
    pub(crate) left: u64,
    pub(crate) retry: Option<u64>,
    pub(crate) reset: u64,
    charged: u64,
}

impl Part {
    pub(crate) fn is_refused(&self) -> bool {
        self.code == "denied"
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        match self.rule.count {
            Count::Window(limit, _) => Some(limit),
            Count::Bucket => Some(20),
            Count::Unlimited => None,
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) allowed: bool,
    pub(crate) parts: Vec<Part>,
}

impl Decided {
    /// Returns the limit that decides.
    pub(crate) fn bound(&self) -> Option<&Part> {
        let rank = |part: &&Part| match part.code {
            "denied" => (0, u64::MAX - part.retry.map_or(u64::MAX, |retry| retry)),
            "spent" => (2, 0),
            _ if part.rule.mode == Mode::Shadow => (2, part.left),
            _ => (1, part.left),
        };
        self.parts.iter().filter(|part| part.limit().is_some()).min_by_key(rank)
    }

    /// Returns the limit that the service reports to Envoy for a descriptor.
    pub(crate) fn of_ask(&self, ask: usize) -> Option<&Part> {
        let rank = |part: &&Part| match part.code {
            "denied" => (0, u64::MAX - part.retry.map_or(u64::MAX, |retry| retry)),
            "spent" => (1, 0),
            "unlimited" => (3, 0),
            _ => (2, part.left),
        };
        self.parts.iter().filter(|part| part.ask == ask).min_by_key(rank)
    }
}

/// The use of a key: in the window that ends then, or until when the bucket is not full.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    window_end_ms: u64,
    count: u64,
    full_at_ms: u64,
}

pub(crate) struct Model {
    now_ms: u64,
    states: BTreeMap<(&'static str, String), State>,
    counters: BTreeMap<String, u64>,
}

/// A window's permits that a reservation holds.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) ask: usize,
    rule: Rule,
    key: String,
    cost: u64,
    window_end_ms: u64,
}

impl Model {
    pub(crate) fn new(wall: Duration) -> Self {
        let now_ms = wall.as_millis() as u64;
        Self { now_ms, states: BTreeMap::new(), counters: BTreeMap::new() }
    }

    pub(crate) fn advance(&mut self, step: Duration) {
        self.now_ms += step.as_millis() as u64;
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn metrics(&self) -> BTreeMap<String, u64> {
        self.counters.clone()
    }

    pub(crate) fn levels(&self) -> Vec<((&'static str, String), u64)> {
        let rules: Vec<Rule> =
            ["user", "late", "shadow", "one", "two", "bucket"].into_iter().flat_map(node).collect();
        let of = |name: &str| rules.iter().find(|rule| rule.name == name).copied();
        let each = self
            .states
            .keys()
            .filter_map(|(name, key)| Some(((*name, key.clone()), self.left(&of(name)?, key))));
        each.collect()
    }

    fn state(&mut self, rule: &Rule, key: &str) -> &mut State {
        let (now, end) = (self.now_ms, self.window_end(rule));
        let state = self.states.entry((rule.name, key.to_owned())).or_default();
        if state.window_end_ms <= now {
            (state.window_end_ms, state.count) = (end, 0);
        }
        state.full_at_ms = state.full_at_ms.max(now);
        state
    }

    fn window_end(&self, rule: &Rule) -> u64 {
        match rule.count {
            Count::Window(_, seconds) => (self.now_ms / (seconds * 1000) + 1) * seconds * 1000,
            _ => 0,
        }
    }

    fn used(&self, rule: &Rule, key: &str) -> u64 {
        let state = self.states.get(&(rule.name, key.to_owned())).copied().unwrap_or_default();
        match rule.count {
            Count::Window(..) if state.window_end_ms > self.now_ms => state.count,
            Count::Bucket => state.full_at_ms.saturating_sub(self.now_ms) / 100,
            _ => 0,
        }
    }

    fn left(&self, rule: &Rule, key: &str) -> u64 {
        match rule.count {
            Count::Window(limit, _) => limit.saturating_sub(self.used(rule, key)),
            Count::Bucket => 20 - self.used(rule, key),
            Count::Unlimited => u64::MAX,
        }
    }

    fn add(&mut self, rule: &Rule, key: &str, cost: u64) {
        let state = self.state(rule, key);
        match rule.count {
            Count::Window(..) => state.count += cost,
            Count::Bucket => state.full_at_ms += cost * 100,
            Count::Unlimited => {}
        }
    }

    /// Sets the figures of a part that asks for `cost`.
    fn look(&self, part: &mut Part, cost: u64) {
        part.left = self.left(&part.rule, &part.key);
        let passes = cost <= part.left;
        (part.retry, part.reset) = match part.rule.count {
            Count::Window(limit, _) => {
                let reset = self.window_end(&part.rule) - self.now_ms;
                ((!passes && cost <= limit).then_some(reset), reset)
            }
            Count::Bucket => {
                let used = self.used(&part.rule, &part.key);
                ((!passes && cost <= 20).then(|| (used + cost - 20) * 100), used * 100)
            }
            Count::Unlimited => (None, 0),
        };
    }

    /// Decides about descriptors of one entry each: key, value, cost.
    pub(crate) fn decide(&mut self, asks: &[(&str, String, u64)], takes: bool) -> Decided {
        let mut parts = Vec::new();
        for (ask, (key, value, cost)) in asks.iter().enumerate() {
            for rule in node(key) {
                let code = if let Count::Unlimited = rule.count { "unlimited" } else { "" };
                let (key, cost) = (value.clone(), *cost);
                let (left, retry, reset, charged) = (0, None, 0, 0);
                parts.push(Part { ask, rule, key, cost, code, left, retry, reset, charged });
            }
        }
        let allowed = self.enforce(&mut parts, takes);
        self.shadows(&mut parts, allowed, takes);
        if takes {
            self.charge_refused(&mut parts, allowed);
            self.count(&parts, allowed);
        }
        Decided { allowed, parts }
    }

    /// Decides all limits in force together; those in quota mode deny only together.
    fn enforce(&mut self, parts: &mut [Part], takes: bool) -> bool {
        let allowed = loop {
            let in_force = |part: &Part| {
                part.rule.mode != Mode::Shadow && !matches!(part.code, "unlimited" | "spent")
            };
            let mut wanted: BTreeMap<(&str, String), u64> = BTreeMap::new();
            for part in parts.iter().filter(|part| in_force(part)) {
                *wanted.entry((part.rule.name, part.key.clone())).or_default() += part.cost;
            }
            for part in parts.iter_mut().filter(|part| in_force(part)) {
                let total = wanted[&(part.rule.name, part.key.clone())];
                let is_shut = matches!(part.rule.count, Count::Window(0, _));
                let passes = total <= self.left(&part.rule, &part.key) && !is_shut;
                self.look(part, total);
                part.code = if passes { "allowed" } else { "denied" };
            }
            let refuses = |part: &&Part| part.is_refused();
            if parts.iter().filter(refuses).any(|part| part.rule.mode == Mode::Enforced) {
                break false;
            }
            if !parts.iter().any(Part::is_refused) {
                break true;
            }
            if !parts.iter().any(|part| part.rule.mode == Mode::Quota && part.code == "allowed") {
                break false;
            }
            parts.iter_mut().filter(|part| part.is_refused()).for_each(|part| part.code = "spent");
        };
        if !allowed {
            let quotas = parts.iter().all(|part| {
                part.rule.mode != Mode::Quota || matches!(part.code, "spent" | "denied")
            });
            let enforced =
                parts.iter().any(|part| part.is_refused() && part.rule.mode == Mode::Enforced);
            if quotas && !enforced {
                parts
                    .iter_mut()
                    .filter(|part| part.code == "spent")
                    .for_each(|part| part.code = "denied");
            }
        }
        if allowed && takes {
            let is_charged =
                |part: &&mut Part| part.code == "allowed" && part.rule.mode != Mode::Shadow;
            for part in parts.iter_mut().filter(is_charged) {
                self.add(&part.rule, &part.key, part.cost);
                part.charged = part.cost;
            }
            for part in parts.iter_mut().filter(is_charged) {
                self.look(part, 0);
            }
        } else if allowed {
            // A peek reports the permits that would remain.
            let copy = parts.to_vec();
            for part in parts.iter_mut().filter(|part| part.code == "allowed") {
                let same = |other: &&Part| {
                    (other.rule.name, &other.key) == (part.rule.name, &part.key)
                        && other.code == "allowed"
                };
                let taken: u64 = copy.iter().filter(same).map(|other| other.cost).sum();
                part.left -= taken;
                if let Count::Bucket = part.rule.count {
                    part.reset += taken * 100;
                }
            }
        }
        allowed
    }

    fn shadows(&mut self, parts: &mut [Part], allowed: bool, takes: bool) {
        for part in parts.iter_mut().filter(|part| part.rule.mode == Mode::Shadow) {
            let passes = part.cost <= self.left(&part.rule, &part.key);
            if passes && allowed && takes {
                self.add(&part.rule, &part.key, part.cost);
                part.charged = part.cost;
            }
            self.look(part, if passes { 0 } else { part.cost });
            if passes && allowed && !takes {
                part.left -= part.cost;
            }
            part.code = if passes { "allowed" } else { "shadow" };
        }
    }

    fn charge_refused(&mut self, parts: &mut [Part], allowed: bool) {
        let forced: Vec<usize> = (0..parts.len())
            .filter(|index| {
                let part = &parts[*index];
                part.rule.counts_refused && part.cost > 0 && !(allowed && part.code == "allowed")
            })
            .collect();
        for index in &forced {
            let part = &mut parts[*index];
            part.charged = part.cost;
            let (rule, key, cost) = (part.rule, part.key.clone(), part.cost);
            self.add(&rule, &key, cost);
        }
        for index in forced {
            let cost = if parts[index].code == "allowed" { 0 } else { parts[index].cost };
            let mut part = parts[index].clone();
            self.look(&mut part, cost);
            parts[index] = part;
        }
    }

    fn bump(&mut self, series: String, by: u64) {
        if by > 0 {
            *self.counters.entry(series).or_default() += by;
        }
    }

    fn count(&mut self, parts: &[Part], allowed: bool) {
        for part in parts {
            let labels = format!("policy=\"{}\",domain=\"shop\"", part.rule.name);
            let (result, reason) = match part.code {
                "allowed" if !allowed => ("allowed", "refused-elsewhere"),
                "allowed" => ("allowed", "quota"),
                "denied" => ("denied", "quota"),
                "spent" => ("allowed", "quota-spent"),
                "shadow" => ("allowed", "shadow"),
                _ => ("allowed", "unlimited"),
            };
            let why = format!("{{{labels},result=\"{result}\",reason=\"{reason}\"}}");
            self.bump(format!("tollgate_decisions_total{why}"), 1);
            self.bump(format!("tollgate_permits_total{why}"), part.cost);
            self.bump(format!("tollgate_charged_permits_total{{{labels}}}"), part.charged);
        }
    }

    fn returned(&mut self, rule: &Rule, permits: u64) {
        let labels = format!("policy=\"{}\",domain=\"shop\"", rule.name);
        self.bump(format!("tollgate_returned_permits_total{{{labels}}}"), permits);
    }

    /// Gives back up to `cost` of each limit of a descriptor. Returns the most that one got back.
    pub(crate) fn refund(&mut self, key: &str, value: &str, cost: u64) -> u64 {
        let mut most = 0;
        for rule in node(key) {
            let given = cost.min(self.used(&rule, value));
            self.take_off(&rule, value, given);
            self.returned(&rule, given);
            most = most.max(given);
        }
        most
    }

    fn take_off(&mut self, rule: &Rule, key: &str, given: u64) {
        let state = self.state(rule, key);
        match rule.count {
            Count::Window(..) => state.count -= given,
            Count::Bucket => state.full_at_ms -= given * 100,
            Count::Unlimited => {}
        }
    }

    /// Returns the permits that an admitted reservation holds.
    pub(crate) fn reserved(&self, decided: &Decided) -> Vec<Reserved> {
        let held = |part: &&Part| part.code == "allowed" && part.rule.mode != Mode::Shadow;
        let each = decided.parts.iter().filter(held).map(|part| Reserved {
            ask: part.ask,
            rule: part.rule,
            key: part.key.clone(),
            cost: part.cost,
            window_end_ms: self.window_end(&part.rule),
        });
        each.collect()
    }

    /// Corrects a reservation to the actual cost of each ask.
    pub(crate) fn settle(&mut self, reserved: &[Reserved], actual: &[u64]) {
        for Reserved { ask, rule, key, cost, window_end_ms } in reserved {
            let actual = *actual.get(*ask).unwrap_or(&actual[0]);
            if actual > *cost {
                self.add(rule, key, actual - cost);
                let labels = format!("policy=\"{}\",domain=\"shop\"", rule.name);
                self.bump(format!("tollgate_charged_permits_total{{{labels}}}"), actual - cost);
            } else if *window_end_ms > self.now_ms {
                let given = (cost - actual).min(self.used(rule, key));
                self.take_off(rule, key, given);
                self.returned(rule, given);
            }
        }
    }

    /// Decides by 2 a second, burst 5, for a key of `CL.THROTTLE`. Returns whether it passes, and
    /// the remaining permits.
    pub(crate) fn throttle(&mut self, key: &str, cost: u64) -> (bool, u64) {
        let now = self.now_ms;
        let state = self.states.entry(("cl.throttle", key.to_owned())).or_default();
        state.full_at_ms = state.full_at_ms.max(now);
        let used = (state.full_at_ms - now).div_ceil(500);
        let passes = state.full_at_ms - now + cost * 500 <= 5 * 500;
        if passes {
            state.full_at_ms += cost * 500;
        }
        let result = if passes { "allowed" } else { "denied" };
        let labels = "policy=\"cl.throttle\",domain=\"\"";
        let why = format!("{{{labels},result=\"{result}\",reason=\"quota\"}}");
        self.bump(format!("tollgate_decisions_total{why}"), 1);
        self.bump(format!("tollgate_permits_total{why}"), cost);
        if passes {
            self.bump(format!("tollgate_charged_permits_total{{{labels}}}"), cost);
        }
        (passes, 5 - used - if passes { cost } else { 0 })
    }
}
