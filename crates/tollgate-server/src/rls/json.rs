//! The same over JSON: `POST /json`, as the reference has it.
//!
//! The body is a `RateLimitRequest` in protobuf's JSON form, the answer a `RateLimitResponse`. Names
//! may be written in camel case or as in the `.proto` file, numbers also as text, enums by name or
//! number; names that there are not are refused.

use super::{
    decide::{self, Decided},
    request::{Decoder, Descriptor, LimitOverride, RateLimitRequest},
    response::{Headers, RateLimitCode, Told},
};
use crate::{engine::Answer, net::Permissions, plan::Entry, server::Shared};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};
use std::{borrow::Cow, fmt, marker::PhantomData};

/// An answer for the HTTP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonReply {
    /// 200 if it passes, 429 if it is denied, 400 if the request is invalid, 403 if it gives
    /// permits back and may not, 503 if a required store does not respond.
    pub status: u16,
    /// Headers, in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body: JSON, or a plain text that says what is wrong.
    pub body: Vec<u8>,
}

impl JsonReply {
    fn wrong(status: u16, text: &dyn fmt::Display) -> Self {
        Self {
            status,
            headers: vec![("content-type", "text/plain; charset=utf-8".into())],
            // An error may repeat what the client has sent.
            body: text.to_string().chars().take(1000).collect::<String>().into_bytes(),
        }
    }
}

/// Decides what the body of a `POST /json` asks, for a client with these permissions.
pub async fn json(
    shared: &Shared,
    granted: Permissions,
    body: &[u8],
    answer: &mut Answer,
) -> JsonReply {
    let request: Request<'_> = match serde_json::from_slice(body) {
        Ok(Object(request)) => request,
        Err(error) => return JsonReply::wrong(400, &format!("not a RateLimitRequest: {error}")),
    };
    let request = request.as_request();
    let engine = &shared.engine;
    let (plan, now) = (engine.plan(), engine.now());
    let mut decoder = Decoder::new();
    let decided =
        decide::decide((shared, granted), (&plan, now), &request, (&mut decoder, answer)).await;
    match decided {
        Ok(()) => {}
        Err(Decided::Store(text)) => return JsonReply::wrong(503, &text),
        Err(Decided::Forbidden(text)) => return JsonReply::wrong(403, &text),
        Err(Decided::Bad(error)) => return JsonReply::wrong(400, &error),
        Err(Decided::Engine(error)) => return JsonReply::wrong(400, &error),
    }
    let code = RateLimitCode::overall(answer);
    let mut reply = Map::new();
    reply.insert("overallCode".into(), code.name().into());
    let statuses = answer.statuses().iter();
    let statuses = statuses.map(|status| told_json(&Told::new(answer, &plan, status, now)));
    reply.insert("statuses".into(), statuses.collect::<Vec<_>>().into());
    let headers = shared.settings.response_headers.then(|| Headers::new(answer, &plan, now));
    let each = headers.flatten();
    let each = each.iter().flat_map(Headers::each);
    let headers: Vec<_> =
        each.map(|(name, value)| json!({"key": name, "value": value.to_string()})).collect();
    if !headers.is_empty() {
        reply.insert("responseHeadersToAdd".into(), headers.into());
    }
    if shared.settings.dynamic_metadata {
        let metadata = super::metadata::metadata(&request, answer, &plan);
        reply.insert("dynamicMetadata".into(), metadata.into());
    }
    JsonReply {
        status: if code == RateLimitCode::Ok { 200 } else { 429 },
        headers: vec![("content-type", "application/json".into())],
        body: Value::Object(reply).to_string().into_bytes(),
    }
}

/// Returns a status; fields with their default are left out.
fn told_json(told: &Told<'_>) -> Value {
    let mut status = Map::new();
    status.insert("code".into(), told.code.name().into());
    if let Some(limit) = &told.limit {
        let mut current = Map::new();
        if let Some(name) = limit.name {
            current.insert("name".into(), name.into());
        }
        if limit.requests != 0 {
            current.insert("requestsPerUnit".into(), limit.requests.into());
        }
        if let Some(unit) = limit.unit {
            current.insert("unit".into(), unit.name().to_ascii_uppercase().into());
        }
        status.insert("currentLimit".into(), current.into());
        status.insert("durationUntilReset".into(), format!("{}s", told.reset_secs).into());
    }
    if told.remaining != 0 {
        status.insert("limitRemaining".into(), told.remaining.into());
    }
    status.into()
}

/// `null` means the default, as everywhere in protobuf's JSON form.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A message, which is an object: serde alone would take a list of its fields, too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Only<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Only<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Only(PhantomData))
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Request<'a> {
    #[serde(borrow, deserialize_with = "or_default")]
    domain: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "or_default")]
    descriptors: Vec<Object<JsonDescriptor<'a>>>,
    #[serde(rename = "hitsAddend", alias = "hits_addend", deserialize_with = "or_default")]
    hits_addend: Number,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonDescriptor<'a> {
    #[serde(borrow, deserialize_with = "or_default")]
    entries: Vec<Object<JsonEntry<'a>>>,
    limit: Option<Object<JsonLimit>>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<LongNumber>,
    #[serde(
        rename = "isNegativeHits",
        alias = "is_negative_hits",
        deserialize_with = "or_default"
    )]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonEntry<'a> {
    #[serde(borrow, deserialize_with = "or_default")]
    key: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "or_default")]
    value: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonLimit {
    #[serde(
        rename = "requestsPerUnit",
        alias = "requests_per_unit",
        deserialize_with = "or_default"
    )]
    requests_per_unit: Number,
    #[serde(deserialize_with = "or_default")]
    unit: UnitNumber,
}

impl Request<'_> {
    fn as_request(&self) -> RateLimitRequest<'_> {
        let list = self.descriptors.iter().map(|Object(descriptor)| {
            let entries = descriptor.entries.iter();
            let entries =
                entries.map(|Object(entry)| Entry::new(&entry.key, &entry.value)).collect();
            let limit = descriptor.limit.as_ref().map(|Object(limit)| LimitOverride {
                requests_per_unit: limit.requests_per_unit.0,
                unit: limit.unit.0,
            });
            let plain = Descriptor {
                limit,
                hits_addend: descriptor.hits_addend.as_ref().map(|hits| hits.0),
                is_negative_hits: descriptor.is_negative_hits,
                ..Descriptor::default()
            };
            (plain, entries)
        });
        RateLimitRequest::from_parts(&self.domain, self.hits_addend.0, list)
    }
}

/// A `uint32`: a number, or a text with one.
#[derive(Default)]
struct Number(u32);

/// A `uint64`.
struct LongNumber(u64);

/// A unit, by name or number.
#[derive(Default)]
struct UnitNumber(i32);

impl<'de> Deserialize<'de> for LongNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = match &value {
            Value::Number(number) => whole(number),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| {
            de::Error::custom(format_args!("{value} is not a whole number from 0 to {}", u64::MAX))
        })
    }
}

/// Returns a number without a fraction: 1e3 and 5.0 are such.
fn whole(number: &serde_json::Number) -> Option<u64> {
    /// Above this, floating-point numbers skip whole ones.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    number.as_u64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && (0.0..=EXACT).contains(&float)).then_some(float as u64)
    })
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LongNumber(long) = LongNumber::deserialize(deserializer)?;
        let number = u32::try_from(long);
        number.map(Self).map_err(|_| {
            de::Error::custom(format_args!(
                "{long} is above {}, the maximum of this field",
                u32::MAX
            ))
        })
    }
}

impl<'de> Deserialize<'de> for UnitNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = match &value {
            Value::Number(number) => number.as_i64().and_then(|long| i32::try_from(long).ok()),
            // Names of protobuf are in upper case and in no other.
            Value::String(text) if text == "UNKNOWN" => Some(0),
            Value::String(text) if text.chars().all(|char| char.is_ascii_uppercase()) => {
                text.parse::<crate::config::Unit>().ok().map(|unit| unit as i32)
            }
            _ => None,
        };
        number.map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{value} is not a unit; use one of SECOND to YEAR, or WEEK"
            ))
        })
    }
}
