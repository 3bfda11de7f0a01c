//! Settings that load, but may be mistakes.

use super::{
    Config, Defaults, Descriptor, Domain, Endpoint, Failure, Lease, Limit, MemorySettings, Place,
    Rate, RedisOptions, SnapshotSettings, StoreKind, ValueMatch, judge::matches, tree::shown,
};
use crate::net::Listener;
use std::{collections::HashSet, fmt, time::Duration};
use tollgate::Algorithm;

/// A setting that may be a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// Where it stands.
    pub place: Place,
    /// The kind, for example `shadow-mode`.
    pub name: &'static str,
    /// The effect of the setting, and how to avoid it.
    pub text: String,
}

/// Writes `file:line:column: warning (name): text`.
impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: warning ({}): {}", self.place, self.name, self.text)
    }
}

/// All kinds of lints.
pub const LINTS: [&str; 18] = [
    "never-matched",
    "match-all",
    "unanchored-regex",
    "client-chosen-key",
    "refuses-all",
    "tiny-burst",
    "short-window",
    "double-at-border",
    "below-unlimited",
    "unknown-replaced",
    "shadow-mode",
    "partly-enforced",
    "deny-on-failure",
    "counts-refused",
    "no-metric-label",
    "unused-store-setting",
    "no-shared-store",
    "open-negative-hits",
];

const COUNTS_REFUSED: &str = "denied hits are charged too, as in envoyproxy/ratelimit: a caller \
                              that keeps retrying may never pass again";

/// The most lints that are reported.
const LINTS_MAX: usize = 1000;

/// Returns the lints, in the order of the files: the first 1000.
#[must_use]
pub fn lint(config: &Config) -> Vec<Lint> {
    let has_bound = |memory: &MemorySettings| memory.bounded.or(memory.max_keys).is_some();
    // Every table in memory is bounded; the lint is about a bound that nobody has chosen. In Redis,
    // keys expire by themselves, and the memory is not in this process.
    let bounded = |kind: &StoreKind, memory| *kind != StoreKind::Memory || has_bound(memory);
    let named = config.stores.iter().filter(|store| bounded(&store.kind, &store.memory));
    let mut bounded_stores: HashSet<&str> = named.map(|store| &*store.name).collect();
    let default_kind = config.server.store.clone().unwrap_or_default();
    if bounded(&default_kind, &config.server.memory) {
        bounded_stores.insert("default");
    }
    let in_memory = config.stores.iter().filter(|store| store.kind == StoreKind::Memory);
    let mut in_memory: HashSet<&str> = in_memory.map(|store| &*store.name).collect();
    // If the file does not set the store, a flag may set another one.
    if config.server.store == Some(StoreKind::Memory) {
        in_memory.insert("default");
    }
    let mut lints = Vec::new();
    unused(config, &mut lints);
    open_negative_hits(config, &mut lints);
    for domain in &config.domains {
        let mut names = HashSet::new();
        limit_names(&domain.descriptors, &mut names);
        let stores = (&bounded_stores, &in_memory);
        let mut linter = Linter { domain, stores, names, lints: &mut lints };
        linter.defaults(&domain.defaults);
        linter.level(&domain.descriptors);
    }
    lints
}

/// Reports settings of stores that have no effect there.
fn unused(config: &Config, lints: &mut Vec<Lint>) {
    type Said<'a> = (&'a RedisOptions, &'a MemorySettings, Option<&'a SnapshotSettings>);
    let mut look = |place: &Place, name: &str, kind: &StoreKind, said: Said<'_>| {
        let (redis, memory, snapshot) = said;
        let text = match kind {
            StoreKind::Redis(_) if snapshot.is_some() || *memory != MemorySettings::default() => {
                format!(
                    "the store '{}' is in Redis, which keeps the state: 'memory' and 'snapshot' \
                     have no effect; remove them",
                    shown(name)
                )
            }
            StoreKind::Memory if *redis != RedisOptions::default() => format!(
                "the store '{}' is in memory, so 'redis' has no effect; remove it, or name the \
                 servers in 'store'",
                shown(name)
            ),
            _ => return,
        };
        lints.push(Lint { place: place.clone(), name: "unused-store-setting", text });
    };
    let server = &config.server;
    if let Some(kind) = &server.store {
        let place = config.domains.first().map(|domain| Place { line: 0, ..domain.at.clone() });
        let said = (&server.redis, &server.memory, server.snapshot.as_ref());
        look(&place.unwrap_or_default(), "default", kind, said);
    }
    for store in &config.stores {
        let said = (&store.redis, &store.memory, store.snapshot.as_ref());
        look(&store.at, &store.name, &store.kind, said);
    }
}

/// Reports that every client may give permits back.
fn open_negative_hits(config: &Config, lints: &mut Vec<Lint>) {
    let server = &config.server;
    let is_open = |listener: Listener, endpoint: &Option<Endpoint>| {
        let mut tokens = server.tokens.iter();
        let has_token = tokens.any(|token| token.listeners.contains(&listener))
            || listener == Listener::Http && server.http_token_file.is_some();
        *endpoint != Some(Endpoint::Off) && !has_token
    };
    let (http, grpc) =
        (is_open(Listener::Http, &server.http), is_open(Listener::Grpc, &server.grpc));
    if server.negative_hits == Some(true) && (http || grpc) {
        let place = config.domains.first().map(|domain| Place { line: 0, ..domain.at.clone() });
        let text = "'negative_hits' lets every client of gRPC and /json give permits back, and so \
                    pass any limit; use 'tokens' to grant the permission 'settle'";
        let place = place.unwrap_or_default();
        lints.push(Lint { place, name: "open-negative-hits", text: text.into() });
    }
}

fn limit_names<'a>(descriptors: &'a [Descriptor], names: &mut HashSet<&'a str>) {
    for descriptor in descriptors {
        names.extend(descriptor.limits.iter().filter_map(|limit| limit.name.as_deref()));
        limit_names(&descriptor.descriptors, names);
    }
}

struct Linter<'a> {
    domain: &'a Domain,
    /// The stores whose memory has a bound, and those that are in memory.
    stores: (&'a HashSet<&'a str>, &'a HashSet<&'a str>),
    names: HashSet<&'a str>,
    lints: &'a mut Vec<Lint>,
}

impl<'a> Linter<'a> {
    fn add(&mut self, place: &Place, name: &'static str, text: impl Into<String>) {
        if self.lints.len() < LINTS_MAX {
            self.lints.push(Lint { place: place.clone(), name, text: text.into() });
        }
    }

    fn defaults(&mut self, defaults: &Defaults) {
        let at = &self.domain.at;
        if defaults.shadow_mode {
            let text = "the whole domain is in shadow mode: nothing is ever denied";
            self.add(at, "shadow-mode", text);
        }
        if defaults.failure == Failure::Closed {
            let text = "while a store cannot be reached, every request of this domain is denied; \
                        use 'failure: closed' only where that is better than no limit";
            self.add(at, "deny-on-failure", text);
        }
        if defaults.count_refused {
            self.add(at, "counts-refused", COUNTS_REFUSED);
        }
    }

    fn level(&mut self, siblings: &'a [Descriptor]) {
        self.never_matched(siblings);
        for descriptor in siblings {
            self.descriptor(descriptor);
            self.pattern(descriptor);
            for limit in &descriptor.limits {
                self.limit(limit);
            }
            self.level(&descriptor.descriptors);
        }
    }

    /// Exact values match first, then patterns in the order of the file, then the key alone.
    fn never_matched(&mut self, siblings: &'a [Descriptor]) {
        /// Patterns are compared with each other; more than this would take long.
        const MOST: usize = 1000;
        let patterns: Vec<&Descriptor> = siblings
            .iter()
            .filter(|sibling| !matches!(sibling.value, ValueMatch::Any | ValueMatch::Exact(_)))
            .take(MOST)
            .collect();
        let shadows = |first: &&&Descriptor, later: &Descriptor| {
            first.key == later.key && covers(&first.value, &later.value)
        };
        for (index, later) in patterns.iter().enumerate() {
            if let Some(first) = patterns[..index].iter().find(|first| shadows(first, later)) {
                let text = format!(
                    "this rule never matches: the one at {} matches all its values and comes \
                     first; put this rule before it",
                    first.at
                );
                self.add(&later.at, "never-matched", text);
            }
        }
        for any in siblings.iter().filter(|sibling| sibling.value == ValueMatch::Any) {
            if let Some(first) = patterns.iter().find(|first| shadows(first, any)) {
                let text = format!(
                    "this rule never matches: the one at {} matches every value, and patterns take \
                     precedence; remove one of them",
                    first.at
                );
                self.add(&any.at, "never-matched", text);
            }
        }
    }

    fn descriptor(&mut self, descriptor: &Descriptor) {
        let Descriptor { at, enforce, limits, .. } = descriptor;
        if descriptor.shadow_mode {
            let text =
                "this rule is in shadow mode: it reports denials, but lets the requests pass";
            self.add(at, "shadow-mode", text);
        }
        if descriptor.count_refused == Some(true) && !self.domain.defaults.count_refused {
            self.add(at, "counts-refused", COUNTS_REFUSED);
        }
        if *enforce < 100 {
            let text = format!(
                "this rule is enforced for {enforce}% of the keys; the others are in shadow mode"
            );
            self.add(at, "partly-enforced", text);
        }
        if descriptor.value_to_metric || descriptor.detailed_metric {
            let text = "value_to_metric and detailed_metric have no effect: a value never becomes \
                        a metric label, because callers could create any number of labels";
            self.add(at, "no-metric-label", text);
        }
        let lease = descriptor.lease.unwrap_or(self.domain.defaults.lease);
        let is_shared = lease != Lease::Off || descriptor.failure == Some(Failure::Local);
        let store = self.store_of(descriptor);
        if !limits.is_empty() && is_shared && self.stores.1.contains(store) {
            let text = format!(
                "'lease' and 'failure: local' have no effect: they are for a shared store, but \
                 '{}' is in the memory of this process",
                shown(store)
            );
            self.add(at, "no-shared-store", text);
        }
        let is_unlimited = limits.iter().any(|limit| limit.rate == Rate::Unlimited);
        if is_unlimited && has_limits(&descriptor.descriptors) {
            let text = "unlimited applies only to descriptors that end here; the limits below \
                        still apply to longer ones";
            self.add(at, "below-unlimited", text);
        }
    }

    fn store_of<'d>(&self, descriptor: &'d Descriptor) -> &'d str
    where
        'a: 'd,
    {
        let said = descriptor.store.as_deref().or(self.domain.defaults.store.as_deref());
        said.unwrap_or("default")
    }

    fn pattern(&mut self, descriptor: &Descriptor) {
        let Descriptor { at, key, value, limits, share_threshold, .. } = descriptor;
        match value {
            ValueMatch::Wildcard(pattern) if covers_all(value) && !share_threshold => {
                let text = format!(
                    "'{}' matches every value and counts each separately; leave 'value' out for \
                     the same effect",
                    shown(pattern)
                );
                self.add(at, "match-all", text);
            }
            ValueMatch::Regex(regex) if !is_anchored(regex.0.as_str()) => {
                let text = format!(
                    "'{}' matches anywhere in a value; add ^ and $ to match the whole value",
                    shown(regex.0.as_str())
                );
                self.add(at, "unanchored-regex", text);
            }
            _ => {}
        }
        let is_free = !matches!(value, ValueMatch::Exact(_)) && !share_threshold;
        let is_bounded = self.stores.0.contains(self.store_of(descriptor));
        if is_free && !limits.is_empty() && !is_bounded && is_chosen(key) {
            let text = format!(
                "callers can send any '{}', so they can fill the table up to the default bound of \
                 10 million keys, about 0.3 GB; set 'server.memory' to what you can spare, or name \
                 a store that has 'memory'",
                shown(key)
            );
            self.add(at, "client-chosen-key", text);
        }
    }

    fn limit(&mut self, limit: &Limit) {
        let Limit { at, replaces, rate, algorithm, .. } = limit;
        for name in replaces {
            if !self.names.contains(name.as_str()) {
                let (name, domain) = (shown(name), shown(&self.domain.name));
                let text = format!("no limit is named '{name}' in domain '{domain}'");
                self.add(at, "unknown-replaced", text);
            }
        }
        let algorithm = algorithm.unwrap_or(self.domain.defaults.algorithm);
        let Rate::Counted { count, per, burst, .. } = *rate else { return };
        if count == 0 {
            self.add(at, "refuses-all", "0 requests: everything is denied");
            return;
        }
        let per_second = u128::from(count) * 1_000_000_000 / per.as_nanos().max(1);
        if burst == Some(1) && per_second >= 10 {
            let text = format!(
                "burst 1 at {per_second} per second denies the second of two simultaneous \
                 requests; allow some, for example burst {}",
                (per_second / 10).max(2)
            );
            self.add(at, "tiny-burst", text);
        }
        if per < Duration::from_millis(1) {
            let text = format!(
                "a period of {per:?} is shorter than the usual jitter between two requests; use a \
                 longer period with a larger count"
            );
            self.add(at, "short-window", text);
        }
        let is_window = matches!(algorithm, Algorithm::FixedWindow | Algorithm::AnchoredWindow);
        if is_window && per >= Duration::from_secs(3600) && count >= 10_000 {
            let text = format!(
                "with {algorithm}, up to {} can pass around a window boundary at any speed; use \
                 sliding-counter, or gcra with a burst",
                u128::from(count) * 2
            );
            self.add(at, "double-at-border", text);
        }
    }
}

fn has_limits(descriptors: &[Descriptor]) -> bool {
    let limited = |rate: &Rate| *rate != Rate::Unlimited;
    descriptors.iter().any(|descriptor| {
        descriptor.limits.iter().any(|limit| limited(&limit.rate))
            || has_limits(&descriptor.descriptors)
    })
}

/// Returns true if `first` surely matches every value that `later` matches.
fn covers(first: &ValueMatch, later: &ValueMatch) -> bool {
    match (first, later) {
        (first, _) if covers_all(first) => true,
        // A star in `first` matches the text that a star in `later` stands for.
        (ValueMatch::Wildcard(_), ValueMatch::Wildcard(later)) => matches(first, later),
        (ValueMatch::Cidr(first), ValueMatch::Cidr(later)) => {
            later.iter().all(|network| first.iter().any(|other| other.contains(network)))
        }
        _ => false,
    }
}

fn covers_all(pattern: &ValueMatch) -> bool {
    match pattern {
        ValueMatch::Wildcard(pattern) => pattern.chars().all(|c| c == '*'),
        ValueMatch::Regex(regex) => ["", ".*", "^.*", ".*$", "^.*$"].contains(&regex.0.as_str()),
        _ => false,
    }
}

fn is_anchored(regex: &str) -> bool {
    let start = regex.starts_with('^') || regex.starts_with("\\A");
    let end = regex.ends_with('$') || regex.ends_with("\\z");
    start && end
}

/// Returns true for the usual names of values that a client can choose freely.
fn is_chosen(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    ["header", "user_agent", "path", "uri", "url", "query", "cookie", "token", "api_key", "session"]
        .iter()
        .any(|chosen| key.contains(chosen))
}
