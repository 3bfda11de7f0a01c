//! Checks that need the whole configuration and not only one value.

mod parents;

use super::{
    Config, Descriptor, Domain, Limit, Override, Place, Rate, ValueMatch, error::Errors,
    suggest::nearest, tree::shown,
};
use std::{
    collections::{HashMap, HashSet},
    mem::{Discriminant, discriminant},
    net::IpAddr,
};
use tollgate::{
    Algorithm, Quota,
    adaptive::rate::{AdaptiveRate, CurrentPolicy},
    store::Policy,
};

/// The most limits in one decision: the library reports the denying limits as a bit mask.
const LIMITS_MAX: usize = 64;

/// Records every error of a configuration.
pub(super) fn judge(config: &Config, errors: &mut Errors) {
    unique_stores(config, errors);
    for domain in &config.domains {
        let mut judge = Judge { domain, errors };
        judge.level(&domain.descriptors, &mut vec![domain.name.clone()]);
    }
    unique_paths(config, errors);
    if errors.is_partial {
        return;
    }
    let stores: HashSet<&str> = config.stores.iter().map(|store| &*store.name).collect();
    for domain in &config.domains {
        parents::judge(domain, errors);
        store_exists(&stores, domain.defaults.store.as_deref(), &domain.at, errors);
        stores_exist(&stores, &domain.descriptors, errors);
    }
    let domains: HashSet<&str> = config.domains.iter().map(|domain| &*domain.name).collect();
    for auth in &config.forward_auth {
        if !auth.domain.is_empty() && !domains.contains(&*auth.domain) {
            let hint = did_you_mean(&auth.domain, &domains, errors);
            let text = format!("there is no domain '{}'{hint}", shown(&auth.domain));
            errors.add(auth.at.clone(), text);
        }
    }
}

/// Returns a hint, unless the error is only counted.
fn did_you_mean<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a &'a str>,
    errors: &Errors,
) -> String {
    if errors.is_full() {
        return String::new();
    }
    let near = nearest(wrong, known.into_iter().copied());
    near.map_or(String::new(), |near| format!("; did you mean '{near}'?"))
}

fn unique_stores(config: &Config, errors: &mut Errors) {
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for store in &config.stores {
        if let Some(first) = seen.insert(&store.name, &store.at) {
            let text = format!(
                "the store '{}' is already defined in {first}; rename or remove one",
                shown(&store.name)
            );
            errors.add(store.at.clone(), text);
        }
    }
}

fn unique_paths(config: &Config, errors: &mut Errors) {
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for auth in &config.forward_auth {
        if !auth.path.is_empty()
            && let Some(first) = seen.insert(&auth.path, &auth.at)
        {
            let text = format!(
                "the path '{}' is already defined in {first}; change or remove one",
                shown(&auth.path)
            );
            errors.add(auth.at.clone(), text);
        }
    }
}

fn store_exists(stores: &HashSet<&str>, store: Option<&str>, at: &Place, errors: &mut Errors) {
    let Some(store) = store.filter(|store| *store != "default" && !stores.contains(store)) else {
        return;
    };
    let hint = did_you_mean(store, stores, errors);
    errors.add(at.clone(), format!("there is no store '{}'{hint}", shown(store)));
}

fn stores_exist(stores: &HashSet<&str>, descriptors: &[Descriptor], errors: &mut Errors) {
    for descriptor in descriptors {
        store_exists(stores, descriptor.store.as_deref(), &descriptor.at, errors);
        stores_exist(stores, &descriptor.descriptors, errors);
    }
}

struct Judge<'a> {
    domain: &'a Domain,
    errors: &'a mut Errors,
}

impl Judge<'_> {
    /// Checks siblings and their children.
    fn level(&mut self, siblings: &[Descriptor], path: &mut Vec<String>) {
        // The reference confuses the key `a` with the value `b` and the key `a_b`; here they are
        // two.
        let mut seen: HashMap<(Discriminant<ValueMatch>, &str, String), &Place> = HashMap::new();
        for descriptor in siblings {
            let composite = composite(descriptor);
            let name = (discriminant(&descriptor.value), &*descriptor.key, composite.clone());
            if let Some(first) = seen.get(&name) {
                // The path may be long, so it is built only if the error is reported.
                let told = !self.errors.is_full();
                let path =
                    if told { format!("{}.{composite}", path.join(".")) } else { String::new() };
                let path = shown(&path);
                let text = format!("duplicate descriptor composite key '{path}'; see {first}");
                self.errors.add(descriptor.at.clone(), text);
            }
            self.descriptor(descriptor);
            if !descriptor.descriptors.is_empty() {
                path.push(composite);
                self.level(&descriptor.descriptors, path);
                path.pop();
            }
            seen.entry(name).or_insert(&descriptor.at);
        }
    }

    fn descriptor(&mut self, descriptor: &Descriptor) {
        let is_pattern = !matches!(descriptor.value, ValueMatch::Any | ValueMatch::Exact(_));
        if descriptor.share_threshold && !is_pattern {
            let text = "share_threshold is for a 'value' with '*', a 'regex' or a 'cidr', whose \
                        matches then share one count; remove it";
            self.errors.add(descriptor.at.clone(), text);
        }
        for limit in &descriptor.limits {
            self.rate(&limit.rate, limit, &limit.at);
        }
        let mut names: HashSet<&str> = HashSet::new();
        let rates = descriptor.limits.iter().map(|limit| (limit.name.as_deref(), &limit.at));
        let in_flight = descriptor.concurrency.iter().map(|it| (it.name.as_deref(), &it.at));
        for (name, at) in rates.chain(in_flight) {
            if let Some(name) = name
                && !names.insert(name)
            {
                let text =
                    format!("two limits of one descriptor are named '{}'; rename one", shown(name));
                self.errors.add(at.clone(), text);
            }
        }
        self.overrides(descriptor);
        self.adaptive(descriptor);
    }

    /// Checks with the library that the rate can move within its bounds.
    fn adaptive(&mut self, descriptor: &Descriptor) {
        let (Some(adaptive), [limit]) = (&descriptor.adaptive, &descriptor.limits[..]) else {
            return;
        };
        let algorithm = limit.algorithm.unwrap_or(self.domain.defaults.algorithm);
        // An invalid limit has its own error already.
        let Ok(Some(policy)) = policy_of(&limit.rate, algorithm) else { return };
        let policy = CurrentPolicy::new(policy);
        let law = adaptive.law(adaptive.max);
        let built = law.and_then(|law| AdaptiveRate::of_policy(&policy, law).build());
        if let Err(error) = built {
            self.errors.add(adaptive.at.clone(), format!("'adaptive': {error}"));
        }
    }

    fn overrides(&mut self, descriptor: &Descriptor) {
        let Some(first) = descriptor.overrides.first() else { return };
        if matches!(descriptor.value, ValueMatch::Exact(_)) || descriptor.share_threshold {
            let text = "an override needs a descriptor that counts each value separately; this one \
                        has a single count";
            self.errors.add(first.at.clone(), text);
            return;
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for Override { at, values, rate } in &descriptor.overrides {
            if let [limit] = &descriptor.limits[..] {
                self.rate(rate, limit, at);
            }
            for value in values {
                let wrong = if !seen.insert(value) {
                    "already has an override; remove one"
                } else if !matches(&descriptor.value, value) {
                    "is not matched by this descriptor; remove the override or correct the value"
                } else {
                    continue;
                };
                self.errors.add(at.clone(), format!("'{}' {wrong}", shown(value)));
            }
        }
    }

    fn rate(&mut self, rate: &Rate, limit: &Limit, at: &Place) {
        let algorithm = limit.algorithm.unwrap_or(self.domain.defaults.algorithm);
        let Err(mut text) = check_rate(rate, algorithm) else { return };
        let burst = matches!(rate, Rate::Counted { burst: Some(_), .. });
        if burst && limit.algorithm.is_none() && algorithm != Algorithm::Gcra {
            text.push_str(
                " (write 'algorithm: gcra'; this limit names no algorithm, so the default applies)",
            );
        }
        self.errors.add(at.clone(), text);
    }
}

/// Names a descriptor among its siblings, as the reference does.
fn composite(descriptor: &Descriptor) -> String {
    let key = &descriptor.key;
    match &descriptor.value {
        ValueMatch::Any => key.clone(),
        ValueMatch::Exact(value) | ValueMatch::Wildcard(value) => format!("{key}_{value}"),
        ValueMatch::Regex(regex) => format!("{key}_regex:{}", regex.0),
        ValueMatch::Cidr(networks) => {
            let mut networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
            networks.sort();
            networks.dedup();
            format!("{key}_cidr:{}", networks.join(","))
        }
    }
}

/// Checks with the library that it can count this rate.
fn check_rate(rate: &Rate, algorithm: Algorithm) -> Result<(), String> {
    policy_of(rate, algorithm).map(drop)
}

/// Returns a policy for the rate; `None` if nothing is counted.
fn policy_of(rate: &Rate, algorithm: Algorithm) -> Result<Option<Policy>, String> {
    let Rate::Counted { count, per, burst, .. } = *rate else { return Ok(None) };
    match (count, burst) {
        (0, Some(1..)) => {
            return Err("0 requests deny everything, so a burst has no effect; remove it".into());
        }
        (0, _) => return Ok(None),
        (_, Some(0)) => {
            return Err(
                "burst 0 denies everything; use at least 1, or set requests_per_unit to 0".into()
            );
        }
        _ => {}
    }
    let quota = Quota::per(count, per);
    let quota = burst.map_or(quota, |burst| quota.burst(burst));
    Policy::with_algorithm("", quota, algorithm).map(Some).map_err(|error| error.to_string())
}

/// Returns true if a descriptor with this pattern matches a value.
pub(super) fn matches(pattern: &ValueMatch, value: &str) -> bool {
    match pattern {
        ValueMatch::Any => true,
        ValueMatch::Exact(exact) => exact == value,
        ValueMatch::Wildcard(pattern) => wildcard_matches(pattern, value),
        ValueMatch::Regex(regex) => regex.0.is_match(value),
        ValueMatch::Cidr(networks) => value
            .parse::<IpAddr>()
            .is_ok_and(|address| networks.iter().any(|network| network.contains(&address))),
    }
}

/// Matches from the left: each part at its first place, which leaves most for the parts after it.
fn wildcard_matches(pattern: &str, value: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = value.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(index) => rest = &rest[index + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::wildcard_matches;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("/api/*", "/api/x/y", true),
            ("/api/*/cart", "/api/7/cart", true),
            ("/api/*/cart", "/api/cart", false),
            ("/api/*/cart", "/api/7/cart/8", false),
            ("a*b*c", "a-b-b-c", true),
            ("ab*ba", "aba", false),
            ("*ab", "aab", true),
            ("a**b", "ab", true),
            ("a", "a", true),
            ("a", "ab", false),
        ] {
            assert_eq!(wildcard_matches(pattern, value), expected, "{pattern} {value}");
        }
    }
}
