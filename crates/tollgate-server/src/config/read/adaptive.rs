//! Reads how the rate of a limit moves.

use super::super::{
    Adaptive, Follow, Limit,
    fields::{Fields, Reader},
    tree::{shown, whole_number},
};
use tollgate::{Initial, Quota};

/// Reads the `adaptive` of a descriptor with these limits.
pub(super) fn adaptive(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    limits: &[Limit],
) -> Option<Adaptive> {
    let inner = reader.inner(fields, "adaptive")?;
    let full = match limits {
        [limit] => limit.rate.per_second(),
        _ => None,
    };
    if full.is_none() {
        let text = "'adaptive' moves the rate of one limit; give the descriptor exactly one \
                    'rate_limit' above 0 that is not unlimited";
        reader.error(fields.spot_of("adaptive"), text);
    }
    if fields.entry("lease").is_some() {
        let text = "'lease' and 'adaptive' exclude each other, because permits taken in advance \
                    would keep an old rate; remove one of them";
        reader.error(fields.spot_of("lease"), text);
    }
    reader.missing(&inner, "follow", "follow: cpu");
    reader.missing(&inner, "min", "min: 10/s");
    let follow = follow(reader, &inner);
    let (min, max) = (rate(reader, &inner, "min"), rate(reader, &inner, "max"));
    let period = reader.period(&inner, "period").or(follow.map(Follow::usual_period));
    if let Some(period) = period.filter(|period| !Adaptive::PERIODS.contains(period)) {
        let text = format!("'period' of {period:?} is out of range; use 100ms to 60s, usually 1s");
        reader.error(inner.spot_of("period"), text);
    }
    let (follow, min, full, period) = (follow?, min?, full?, period?);
    if inner.get("max").is_some() && max.is_none() {
        return None;
    }
    let max = max.unwrap_or(full);
    for (name, is_wrong, way) in [
        ("min", min > full, "is above the limit's rate; lower it"),
        ("max", max < full, "is below the limit's rate; raise it, or leave it out"),
    ] {
        if is_wrong {
            let text = inner.get(name).and_then(|node| node.text()).unwrap_or_default();
            let text = format!("'{name}' of {} {way}", shown(text));
            reader.error(inner.spot_of(name), text);
            return None;
        }
    }
    Some(Adaptive { at: reader.place(inner.spot), follow, min, max, period })
}

/// Reads what the rate follows, and the settings that belong to it.
fn follow(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Follow> {
    let word = reader.word(fields, "follow", |word| match word {
        "cpu" => Some(true),
        "reports" => Some(false),
        _ => None,
    });
    let target = target(reader, fields);
    let slow_above = reader.period(fields, "slow_above");
    let is_cpu = word?;
    let (foreign, home) = if is_cpu { ("slow_above", "reports") } else { ("target", "cpu") };
    if fields.entry(foreign).is_some() {
        let text = format!("'{foreign}' belongs to 'follow: {home}'; remove it");
        reader.error(fields.spot_of(foreign), text);
    }
    Some(match is_cpu {
        true => Follow::Cpu { target: target.unwrap_or(Adaptive::DEFAULT_TARGET) },
        false => Follow::Reports { slow_above },
    })
}

/// Reads `80%` or `80`.
fn target(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<u8> {
    let node = fields.get("target")?;
    let text = reader.text_of(node, "target")?;
    let number = text.strip_suffix('%').unwrap_or(&text).trim();
    let percent = whole_number(number).ok().and_then(|number| u8::try_from(number).ok());
    let percent = percent.filter(|percent| Adaptive::TARGETS.contains(percent));
    if percent.is_none() {
        let text = format!(
            "'target' must be a whole percentage from 5% to 95%, not '{}'; 70% is a good start",
            shown(&text)
        );
        reader.error(node.spot, text);
    }
    percent
}

/// Reads a rate such as `10/s`, in permits per second.
fn rate(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str) -> Option<f64> {
    let quota: Quota = reader.parsed(fields, name)?;
    let is_plain = quota.count() > 0
        && !quota.is_unlimited()
        && quota.explicit_burst().is_none()
        && quota.initial_fill() == Initial::Full;
    if !is_plain {
        let text = format!(
            "'{name}' must be a rate above 0 such as 10/s; a burst comes from the limit, and keeps \
             its relation to the rate"
        );
        reader.error(fields.spot_of(name), text);
        return None;
    }
    Some(quota.count() as f64 / quota.period().as_secs_f64())
}
