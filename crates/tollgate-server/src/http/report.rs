//! `/v1/report`: how calls ended, for rules whose rate follows reports.

use super::{
    call::Call,
    json::{Bad, Json, once, unknown},
    reply::{JSON, Problem},
    route::{Desk, Moment, problem},
};
use crate::{config::suggest::nearest, engine::Report, net::Permission};
use std::{borrow::Cow, time::Duration};
use tollgate::{CallOutcome, adaptive::rate::RateReport};

/// The body of a report.
#[derive(Debug)]
pub(super) struct ReportBody<'a> {
    policy: Cow<'a, str>,
    outcome: CallOutcome,
    latency: Option<Duration>,
    count: u64,
}

const FIELDS: [&str; 4] = ["policy", "outcome", "latency_ms", "count"];

impl<'a> ReportBody<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, Bad> {
        let (mut policy, mut outcome, mut latency, mut count) = (None, None, None, None);
        let mut json = Json::new(text);
        json.object("the body", |json, field| match field {
            "policy" => once(&mut policy, field, json.text(field)?),
            "outcome" => once(&mut outcome, field, outcome_of(&json.text(field)?)?),
            "latency_ms" => once(&mut latency, field, json.number(field)?),
            "count" => once(&mut count, field, json.number(field)?),
            _ => Err(unknown(field, &FIELDS)),
        })?;
        json.end()?;
        let policy = policy.ok_or_else(|| Bad::new("\"policy\" is missing; name the policy"))?;
        let missing =
            || Bad(format!("\"outcome\" is missing; use {}", Report::OUTCOMES.join(", ")));
        Ok(Self {
            policy,
            outcome: outcome.ok_or_else(missing)?,
            latency: latency.map(Duration::from_millis),
            count: count.unwrap_or(1),
        })
    }
}

fn outcome_of(word: &str) -> Result<CallOutcome, Bad> {
    Report::outcome(word).ok_or_else(|| {
        let shown: String = word.chars().take(40).collect();
        let hint = match nearest(&shown, Report::OUTCOMES) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("use {}", Report::OUTCOMES.join(", ")),
        };
        Bad(format!("\"outcome\" is \"{shown}\"; {hint}"))
    })
}

impl Desk {
    /// `/v1/report`
    pub(super) fn report(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let text = self.body(moment, call, Permission::Settle)?;
        let body = ReportBody::read(text)?;
        let ReportBody { outcome, latency, count, .. } = body;
        let report = Report { policy: &body.policy, outcome, latency, count };
        let rule =
            self.shared.engine.report(&moment.plan, &report).map_err(|error| problem(&error))?;
        let RateReport { rate, min, max, .. } = rule.report();
        let told = serde_json::json!({
            "reported": count,
            "per_second": rate,
            "min_per_second": min,
            "max_per_second": max,
            "reason": rule.reason(),
        });
        self.reply.body.extend_from_slice(told.to_string().as_bytes());
        self.reply.content_type = JSON;
        Ok(())
    }
}
