//! Reads limits, overrides and bans.

use super::super::{
    Ban, Concurrency, Limit, Override, Rate, Unit,
    fields::{Fields, Reader},
    keys::UNITS,
    suggest::nearest,
    tree::{Kind, shown, whole_number},
};
use std::time::Duration;
use tollgate::{Initial, Quota};

/// Stands for a rate that has been complained about: nothing else is wrong with it.
const BROKEN: Rate =
    Rate::Counted { count: 0, per: Duration::from_secs(1), unit: None, burst: None };

/// Reads the limits of a descriptor: `rate_limit` and `rate_limits`.
pub(super) fn limits(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Limit> {
    let mut all: Vec<Fields<'_>> = reader.inner(fields, "rate_limit").into_iter().collect();
    all.extend(reader.inner_list(fields, "rate_limits"));
    all.iter().map(|limit_fields| limit(reader, limit_fields)).collect()
}

fn limit(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Limit {
    let name = reader.text(fields, "name").filter(|name| !name.is_empty());
    let replaces = replaces(reader, fields, name.as_deref());
    let algorithm = reader.word(fields, "algorithm", |name| name.parse().ok());
    let rate = rate(reader, fields);
    let warn = warn(reader, fields, rate);
    let rate = rate.unwrap_or(BROKEN);
    let at = reader.place(fields.spot);
    Limit { at, name, replaces, rate, algorithm, warn }
}

/// Reads the thresholds of a limit: `80%`, `80` or a list of these.
fn warn(reader: &mut Reader<'_>, fields: &Fields<'_>, rate: Option<Rate>) -> Vec<u8> {
    let Some(node) = fields.get("warn") else { return Vec::new() };
    let texts = reader.texts(fields, "warn");
    if matches!(rate, Some(Rate::Unlimited | Rate::Counted { count: 0, .. })) {
        let text = "'warn' has percentages of a limit above 0; give one, or remove 'warn'";
        reader.error(fields.spot_of("warn"), text);
    }
    if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
        reader.error(node.spot, "'warn' is empty; write for example [80%, 95%], or remove it");
    }
    if texts.len() > Limit::WARN_MAX {
        let (count, most) = (texts.len(), Limit::WARN_MAX);
        let text = format!("'warn' has {count} percentages; use at most {most}");
        reader.error(node.spot, text);
        return Vec::new();
    }
    let mut percents: Vec<u8> = Vec::new();
    for (text, spot) in texts {
        let number = whole_number(text.strip_suffix('%').unwrap_or(&text).trim()).ok();
        let percent = number.and_then(|number| u8::try_from(number).ok());
        let Some(percent) = percent.filter(|percent| (1..=100).contains(percent)) else {
            let text = shown(&text);
            let text = format!(
                "'warn' must have whole percentages from 1% to 100% of the limit, not '{text}'"
            );
            reader.error(spot, text);
            continue;
        };
        match percents.last() {
            Some(last) if *last == percent => {
                reader.error(spot, format!("{percent}% is listed twice in 'warn'; remove one"));
            }
            Some(last) if *last > percent => {
                let text = format!("'warn' must ascend, but {percent}% follows {last}%; sort it");
                reader.error(spot, text);
            }
            _ => percents.push(percent),
        }
    }
    percents
}

/// Reads the `concurrency` of a descriptor.
pub(super) fn concurrency(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Concurrency> {
    let fields = reader.inner(fields, "concurrency")?;
    reader.missing(&fields, "limit", "limit: 10");
    let name = reader.text(&fields, "name").filter(|name| !name.is_empty());
    let limit = reader.count(&fields, "limit");
    let lease = reader.period(&fields, "lease").unwrap_or(Concurrency::DEFAULT_LEASE);
    let (most, leases) = (Concurrency::LIMIT_MAX, Concurrency::LEASES);
    if let Some(limit) = limit.filter(|limit| !(1..=most).contains(limit)) {
        let text = format!("'limit' is {limit}; a concurrency limit must be from 1 to {most}");
        reader.error(fields.spot_of("limit"), text);
    }
    if !leases.contains(&lease) {
        let text = format!(
            "'lease' of {lease:?} is out of range; use 100ms to 24h, usually the longest time \
             between two renewals"
        );
        reader.error(fields.spot_of("lease"), text);
    }
    Some(Concurrency { at: reader.place(fields.spot), name, limit: limit?, lease })
}

fn replaces(reader: &mut Reader<'_>, fields: &Fields<'_>, own: Option<&str>) -> Vec<String> {
    let mut names = Vec::new();
    for item in reader.inner_list(fields, "replaces") {
        let name = reader.text(&item, "name").unwrap_or_default();
        if name.is_empty() {
            reader.error(item.spot, "should not have an empty replaces entry; add 'name: NAME'");
        } else if own == Some(&name) {
            let text = "replaces should not contain name of same descriptor";
            reader.error(item.spot_of("name"), text);
        } else {
            names.push(name);
        }
    }
    names
}

fn rate(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Rate> {
    if fields.entry("quota").is_some() {
        return quota(reader, fields);
    }
    let unlimited = reader.flag(fields, "unlimited").unwrap_or(false);
    if unlimited {
        return alone(reader, fields, "unlimited").then_some(Rate::Unlimited);
    }
    let (unit, per) = (unit(reader, fields), reader.period(fields, "per"));
    let count = reader.count(fields, "requests_per_unit");
    let burst = reader.count(fields, "burst");
    if fields.get("requests_per_unit").is_none() {
        let text = "a rate limit needs 'requests_per_unit'; 0 denies everything, and 'unlimited: \
                    true' denies nothing";
        reader.error(fields.spot, text);
    }
    let (per, unit) = match (unit, per) {
        (Some(_), Some(_)) => {
            let text = "'unit' and 'per' exclude each other; keep one";
            reader.error(fields.spot_of("per"), text);
            return None;
        }
        (Some(unit), None) => (unit.length(), Some(unit)),
        (None, Some(per)) => (per, Unit::of(per)),
        (None, None) => {
            if fields.get("unit").is_none() && fields.get("per").is_none() {
                let text = format!("invalid rate limit unit ''; use one of {}", UNITS.join(", "));
                reader.error(fields.spot, text);
            }
            return None;
        }
    };
    Some(Rate::Counted { count: count?, per, unit, burst })
}

fn unit(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Unit> {
    let node = fields.get("unit")?;
    let text = reader.text_of(node, "unit")?;
    match text.parse::<Unit>() {
        Ok(unit) => Some(unit),
        Err(error) => {
            let near = if reader.errors.is_full() { None } else { nearest(&text, UNITS) };
            let text = match near {
                Some(near) => format!("invalid rate limit unit '{text}'; did you mean '{near}'?"),
                None => error.to_string(),
            };
            reader.error(node.spot, text);
            None
        }
    }
}

/// Complains about what says how much beside `name`, which says it all.
fn alone(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str) -> bool {
    let mut alone = true;
    for other in ["unit", "requests_per_unit", "per", "burst", "unlimited", "quota"] {
        if other == name || fields.section.find(other).is_none() || fields.entry(other).is_none() {
            continue;
        }
        let text = match (name, other) {
            ("unlimited", "unit") => {
                "should not specify rate limit unit when unlimited; remove one of them".to_owned()
            }
            _ => format!("'{other}' and '{name}' exclude each other; remove one of them"),
        };
        reader.error(fields.spot_of(other), text);
        alone = false;
    }
    alone
}

fn quota(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Rate> {
    let alone = alone(reader, fields, "quota");
    let quota: Quota = reader.parsed(fields, "quota")?;
    if quota.initial_fill() != Initial::Full {
        let text = "'quota': a new key always starts full; remove 'initial'";
        reader.error(fields.spot_of("quota"), text);
        return None;
    }
    if quota.is_unlimited() {
        if quota.explicit_burst().is_some() {
            let text = "'quota': unlimited has no burst; remove it, or give a rate";
            reader.error(fields.spot_of("quota"), text);
        }
        return alone.then_some(Rate::Unlimited);
    }
    let (count, per) = (quota.count(), quota.period());
    let rate = Rate::Counted { count, per, unit: Unit::of(per), burst: quota.explicit_burst() };
    alone.then_some(rate)
}

/// Reads the overrides of a descriptor with these limits.
pub(super) fn overrides(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    limits: &[Limit],
) -> Vec<Override> {
    let items = reader.inner_list(fields, "overrides");
    if items.is_empty() {
        return Vec::new();
    }
    let own = match limits {
        [Limit { rate: Rate::Counted { per, unit, .. }, .. }] => Some((*per, *unit)),
        _ => None,
    };
    if own.is_none() {
        let text = "'overrides' need exactly one limit that is not unlimited, which sets the \
                    period of their numbers; add one";
        reader.error(fields.spot_of("overrides"), text);
    }
    items.iter().filter_map(|item| override_of(reader, item, own?)).collect()
}

fn override_of(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    (per, unit): (Duration, Option<Unit>),
) -> Option<Override> {
    let mut values: Vec<String> = reader.text(fields, "value").into_iter().collect();
    values.extend(reader.texts(fields, "values").into_iter().map(|(value, _)| value));
    if values.is_empty() {
        reader.error(fields.spot, "an override needs 'value' or 'values'");
    }
    let rate = if reader.flag(fields, "unlimited").unwrap_or(false) {
        alone(reader, fields, "unlimited").then_some(Rate::Unlimited)?
    } else {
        reader.missing(fields, "requests_per_unit", "requests_per_unit: 100");
        let count = reader.count(fields, "requests_per_unit");
        let burst = reader.count(fields, "burst");
        Rate::Counted { count: count?, per, unit, burst }
    };
    Some(Override { at: reader.place(fields.spot), values, rate })
}

/// Reads the ban of a descriptor.
pub(super) fn ban(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Ban> {
    let fields = reader.inner(fields, "ban")?;
    for (name, example) in [("after", "after: 5"), ("within", "within: 1m"), ("for", "for: 30s")] {
        reader.missing(&fields, name, example);
    }
    let after = reader.small(&fields, "after");
    let within = reader.period(&fields, "within");
    let first = reader.period(&fields, "for");
    let most = reader.period(&fields, "most");
    if after == Some(0) {
        reader.error(fields.spot_of("after"), "'after' must be at least 1 denial");
    }
    let (after, within, first) = (after?, within?, first?);
    // As the library does if nothing is said.
    let most = most.unwrap_or(first.saturating_mul(64));
    if most < first {
        reader
            .error(fields.spot_of("most"), "'most' must not be shorter than 'for', the first ban");
    }
    Some(Ban { after, within, first, most })
}
