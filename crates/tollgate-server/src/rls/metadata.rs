//! Dynamic metadata: the request, and the metadata of the rules that let it pass.
//!
//! It is off by default, so it is built as JSON first: `google.protobuf.Struct` is JSON in
//! protobuf.

use super::{
    request::{LimitOverride, RateLimitRequest},
    wire::{write_bytes, write_double, write_message, write_number_always},
};
use crate::{
    config::Unit,
    engine::{Answer, Code},
    plan::Plan,
};
use serde_json::{Map, Value, json};

/// The deepest metadata that is written; deeper values are written as null.
const MAX_DEPTH: usize = 64;

/// Returns the metadata of an answer, in the reference's form.
pub(super) fn metadata(
    request: &RateLimitRequest<'_>,
    answer: &Answer,
    plan: &Plan,
) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("domain".into(), request.domain.into());
    let mut descriptors = Vec::new();
    for (descriptor, entries) in request.descriptors() {
        let mut told = Map::new();
        let texts = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
        told.insert("entries".into(), texts.collect::<Vec<_>>().into());
        if let Some(limit) = descriptor.limit {
            told.insert("limit".into(), limit_text(limit).into());
        }
        if let Some(hits) = descriptor.hits_addend {
            told.insert("hitsAddend".into(), json!(hits));
        }
        descriptors.push(Value::Object(told));
    }
    all.insert("descriptors".into(), descriptors.into());
    if request.hits_addend != 0 {
        all.insert("hitsAddend".into(), json!(request.hits_addend));
    }
    if answer.is_degraded() {
        all.insert("degraded".into(), true.into());
    }
    let mut merged = Map::new();
    for part in answer.parts() {
        let passed = !part.code.is_refused() && part.code != Code::QuotaSpent;
        if let Some(Value::Object(told)) = plan.rule(part.rule).metadata()
            && passed
            && !part.is_override
        {
            merge(&mut merged, told);
        }
    }
    if !merged.is_empty() {
        all.insert("metadata".into(), Value::Object(merged));
    }
    all
}

/// Merges metadata as the reference does: the first value of a name wins, and maps are merged.
fn merge(all: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (Some(_), _) => {}
            (None, _) => {
                all.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Returns a limit in protobuf's text form.
fn limit_text(limit: LimitOverride) -> String {
    let unit = match Unit::from_number(limit.unit) {
        Some(unit) => unit.name().to_ascii_uppercase(),
        None => limit.unit.to_string(),
    };
    format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit)
}

/// Appends a `google.protobuf.Struct` as field 6 of the response.
pub(super) fn write(out: &mut Vec<u8>, all: &Map<String, Value>) {
    write_message(out, 6, |out| write_struct(out, all, 0));
}

fn write_struct(out: &mut Vec<u8>, map: &Map<String, Value>, depth: usize) {
    for (name, value) in map {
        write_message(out, 1, |out| {
            write_bytes(out, 1, name.as_bytes());
            write_message(out, 2, |out| write_value(out, value, depth + 1));
        });
    }
}

fn write_value(out: &mut Vec<u8>, value: &Value, depth: usize) {
    match value {
        _ if depth > MAX_DEPTH => write_number_always(out, 1, 0),
        Value::Null => write_number_always(out, 1, 0),
        Value::Number(number) => write_double(out, 2, number.as_f64().unwrap_or(0.0)),
        Value::String(text) => write_bytes(out, 3, text.as_bytes()),
        Value::Bool(is) => write_number_always(out, 4, u64::from(*is)),
        Value::Object(map) => write_message(out, 5, |out| write_struct(out, map, depth)),
        Value::Array(list) => write_message(out, 6, |out| {
            for value in list {
                write_message(out, 1, |out| write_value(out, value, depth + 1));
            }
        }),
    }
}
