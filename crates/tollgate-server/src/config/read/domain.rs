//! Reads a domain and its descriptors.

use super::{
    super::{
        Defaults, Descriptor, Domain, ValueMatch,
        fields::{Fields, Reader},
        regex_text::RegexText,
        tree::{Kind, Node, Spot, shown, whole_number},
    },
    adaptive::adaptive,
    limit,
};
use crate::config::{Failure, Lease};
use regex::RegexBuilder;
use std::time::Duration;

/// The memory that one compiled expression may take, in bytes.
const REGEX_MAX: usize = 256 << 10;

/// The most expressions in a configuration: a bound on the time that reading takes.
const EXPRESSIONS_MAX: usize = 1000;

/// How often a process can report the use of a lease to the store.
const SYNC_MIN: Duration = Duration::from_millis(1);
const SYNC_MAX: Duration = Duration::from_secs(10);

/// Reads the domain of a file, if it has one.
pub(super) fn domain(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Domain> {
    let name = reader.text(fields, "domain").unwrap_or_default();
    let parts = ["descriptors", "defaults", "merge"];
    let part = parts.into_iter().find(|part| fields.entry(part).is_some());
    let alone = ["server", "stores", "forward_auth"];
    if name.is_empty() {
        let written = fields.entry("domain").is_some();
        if written || part.is_some() || alone.iter().all(|part| fields.entry(part).is_none()) {
            let spot = fields
                .entry("domain")
                .map_or(fields.spot_of(part.unwrap_or("domain")), |e| e.value.spot);
            reader.error(spot, "config file cannot have empty domain; add 'domain: NAME'");
        }
    }
    let defaults = reader.inner(fields, "defaults").map(|inner| defaults(reader, &inner));
    let descriptors = descriptors(reader, fields);
    let at = reader.place(fields.get("domain").map_or(fields.spot, |node| node.spot));
    let defaults = defaults.unwrap_or_default();
    (!name.is_empty()).then_some(Domain { at, name, defaults, descriptors })
}

fn defaults(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Defaults {
    let usual = Defaults::default();
    Defaults {
        algorithm: reader
            .word(fields, "algorithm", |name| name.parse().ok())
            .unwrap_or(usual.algorithm),
        count_refused: reader.flag(fields, "count_refused").unwrap_or(usual.count_refused),
        failure: failure(reader, fields).unwrap_or(usual.failure),
        shadow_mode: reader.flag(fields, "shadow_mode").unwrap_or(usual.shadow_mode),
        store: reader.text(fields, "store"),
        lease: lease(reader, fields).unwrap_or(usual.lease),
    }
}

pub(super) fn failure(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Failure> {
    reader.word(fields, "failure", Failure::from_word)
}

/// Reads `off`, `auto` or `{sync: 100ms}`.
fn lease(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Lease> {
    if Reader::is_off(fields, "lease") {
        return Some(Lease::Off);
    }
    if matches!(fields.get("lease")?.kind, Kind::Map(_)) {
        let inner = reader.inner(fields, "lease")?;
        reader.missing(&inner, "sync", "sync: 100ms");
        let period = reader.period(&inner, "sync")?;
        if !(SYNC_MIN..=SYNC_MAX).contains(&period) {
            let text =
                format!("'sync' of {period:?} is out of range; use 1ms to 10s, usually 100ms");
            reader.error(inner.spot_of("sync"), text);
        }
        return Some(Lease::Sync(period));
    }
    reader.word(fields, "lease", |word| (word == "auto").then_some(Lease::Auto))
}

fn descriptors(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Descriptor> {
    let items = reader.inner_list(fields, "descriptors");
    items.iter().map(|item| descriptor(reader, item)).collect()
}

fn descriptor(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Descriptor {
    let key = reader.text(fields, "key").unwrap_or_default();
    if key.is_empty() {
        reader.error(fields.spot, "descriptor has empty key; add 'key: NAME'");
    }
    let limits = limit::limits(reader, fields);
    let concurrency = limit::concurrency(reader, fields);
    if limits.is_empty() {
        for name in ["ban", "parents", "enforce", "lease"] {
            let is_used = name == "enforce" && concurrency.is_some();
            if fields.entry(name).is_some() && !is_used {
                let text = format!("'{name}' needs a limit; add 'rate_limit'");
                reader.error(fields.spot_of(name), text);
            }
        }
    }
    let overrides = limit::overrides(reader, fields, &limits);
    let adaptive = adaptive(reader, fields, &limits);
    let flag = |reader: &mut Reader<'_>, name| reader.flag(fields, name).unwrap_or(false);
    Descriptor {
        at: reader.place(fields.get("key").map_or(fields.spot, |node| node.spot)),
        value: value(reader, fields),
        shadow_mode: flag(reader, "shadow_mode"),
        quota_mode: flag(reader, "quota_mode"),
        count_refused: reader.flag(fields, "count_refused"),
        share_threshold: flag(reader, "share_threshold"),
        value_to_metric: flag(reader, "value_to_metric"),
        detailed_metric: flag(reader, "detailed_metric"),
        metadata: fields.get("metadata").map(json),
        enforce: enforce(reader, fields),
        failure: failure(reader, fields),
        ban: limit::ban(reader, fields),
        parents: reader.texts(fields, "parents").into_iter().map(|(name, _)| name).collect(),
        store: reader.text(fields, "store"),
        lease: lease(reader, fields),
        descriptors: descriptors(reader, fields),
        key,
        limits,
        concurrency,
        adaptive,
        overrides,
    }
}

fn value(reader: &mut Reader<'_>, fields: &Fields<'_>) -> ValueMatch {
    let written: Vec<&str> = ["value", "regex", "cidr"]
        .into_iter()
        .filter(|name| fields.entry(name).is_some())
        .collect();
    if let [_, second, ..] = written[..] {
        let text = format!("'{}' and '{second}' exclude each other; keep one", written[0]);
        reader.error(fields.spot_of(second), text);
    }
    if let Some(node) = fields.get("regex") {
        let text = reader.text_of(node, "regex").unwrap_or_default();
        // The error is reported already; the descriptor must not look like a duplicate of another.
        let broken = || ValueMatch::Wildcard(format!("*{text}*"));
        return regex(reader, node.spot, &text).unwrap_or_else(broken);
    }
    if fields.entry("cidr").is_some() {
        return cidr(reader, fields);
    }
    // The reference takes an empty value for none.
    match reader.text(fields, "value") {
        Some(value) if value.contains('*') => ValueMatch::Wildcard(value),
        Some(value) if !value.is_empty() => ValueMatch::Exact(value),
        _ => ValueMatch::Any,
    }
}

fn regex(reader: &mut Reader<'_>, spot: Spot, text: &str) -> Option<ValueMatch> {
    /// Its syntax tree takes a hundred times as much memory.
    const LENGTH_MAX: usize = 4096;
    if text.len() > LENGTH_MAX {
        reader.error(
            spot,
            format!("a regular expression can have at most {LENGTH_MAX} bytes; shorten it"),
        );
        return None;
    }
    reader.errors.expressions += 1;
    if reader.errors.expressions > EXPRESSIONS_MAX {
        reader
            .error(spot, format!("more than {EXPRESSIONS_MAX} regular expressions; combine some"));
        return None;
    }
    match RegexBuilder::new(text).size_limit(REGEX_MAX).build() {
        Ok(regex) => Some(ValueMatch::Regex(RegexText(regex))),
        Err(error) => {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
            let text =
                format!("'{}' is not a regular expression: {}", shown(text), why.to_lowercase());
            reader.error(spot, text);
            None
        }
    }
}

fn cidr(reader: &mut Reader<'_>, fields: &Fields<'_>) -> ValueMatch {
    let mut networks: Vec<ipnet::IpNet> = Vec::new();
    let texts = reader.texts(fields, "cidr");
    if texts.is_empty() {
        reader.error(fields.spot_of("cidr"), "'cidr' must be a network or a list of networks");
    }
    for (text, spot) in texts {
        let address = |text: &str| text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from);
        match text.parse().or_else(|_| address(&text)) {
            // The reference of a network is its first address: 10.1.2.3/8 is a slip of the pen.
            Ok(network) if network.trunc() != network => {
                let right = network.trunc();
                reader.error(
                    spot,
                    format!("'{text}' has address bits after its prefix; write {right}"),
                );
            }
            Ok(network) => networks.push(network),
            Err(_) => {
                let text = shown(&text);
                reader.error(
                    spot,
                    format!("'{text}' is not a network; write for example 10.0.0.0/8"),
                );
            }
        }
    }
    ValueMatch::Cidr(networks)
}

/// Reads `25%` or `25`.
fn enforce(reader: &mut Reader<'_>, fields: &Fields<'_>) -> u8 {
    const ALL: u8 = 100;
    let Some(node) = fields.get("enforce") else { return ALL };
    let Some(text) = reader.text_of(node, "enforce") else { return ALL };
    let number = text.strip_suffix('%').unwrap_or(&text).trim();
    match whole_number(number).ok().and_then(|number| u8::try_from(number).ok()) {
        Some(percent) if percent <= ALL => percent,
        _ => {
            let text = format!(
                "'enforce' must be a whole percentage from 0% to 100%, not '{}'",
                shown(&text)
            );
            reader.error(node.spot, text);
            ALL
        }
    }
}

/// Turns a value into JSON, for metadata.
fn json(node: &Node) -> serde_json::Value {
    match &node.kind {
        Kind::Null => serde_json::Value::Null,
        Kind::Bool(flag, _) => (*flag).into(),
        Kind::String(text) => (**text).into(),
        Kind::Number(text) => number(text),
        Kind::List(items) => items.iter().map(json).collect(),
        Kind::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.to_string(), json(&entry.value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

fn number(text: &str) -> serde_json::Value {
    let bare = text.replace('_', "");
    let bare = bare.strip_prefix('+').unwrap_or(&bare);
    let whole = bare.parse::<i64>().map(serde_json::Value::from).ok();
    whole
        .or_else(|| whole_number(text).ok().map(serde_json::Value::from))
        .or_else(|| bare.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Into::into))
        .unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::error::Errors;

    #[test]
    fn expressions_have_a_most() {
        let mut errors = Errors::default();
        errors.expressions = EXPRESSIONS_MAX - 1;
        let mut reader = Reader { file: "x".into(), errors: &mut errors };
        let mut read = |text: &str| regex(&mut reader, Spot::default(), text).is_some();
        assert!(!read(&"a".repeat(4097)), "too long, and not counted");
        assert!(read("a"));
        assert!(!read("b"));
        let told = errors.finish(()).unwrap_err().to_string();
        assert_eq!(
            told,
            "x: a regular expression can have at most 4096 bytes; shorten it\nx: more than 1000 \
             regular expressions; combine some"
        );
    }
}
