//! `/v1/enter`, `/v1/renew` and `/v1/leave`: slots of `concurrency` rules.

use super::{
    body::{Body, Extra, ReplyOptions},
    call::Call,
    json::Bad,
    limits::{push_bool, push_millis},
    reply::{Kind, Problem, Reply},
    route::{Desk, Moment, problem},
};
use crate::{
    engine::{Answer, Request, Verb},
    net::Permission,
    plan::Plan,
};
use tollgate_tower::answer::raw::{push_number, push_text, retry_seconds};

impl Desk {
    /// `/v1/enter`
    pub(super) async fn enter(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let text = self.body(moment, call, Permission::Check)?;
        let options = ReplyOptions::read(call.query)?;
        if options.explain.is_some() {
            return Err(Bad::new("\"explain\" belongs to /v1/check; leave it out").into());
        }
        let body = Body::read(text, Extra::Nothing)?;
        self.run(moment, &body, Verb::Enter).await?;
        write_entry(&self.answer, &moment.plan, &mut self.reply);
        self.refuse_with(options.denied_status);
        Ok(())
    }

    /// `/v1/renew` and `/v1/leave`
    pub(super) async fn hold(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let text = self.body(moment, call, Permission::Check)?;
        let body = Body::read(text, Extra::Id)?;
        let gone = || {
            let id: String = body.id().chars().take(80).collect();
            let text = format!(
                "\"{id}\" is not a lease of this policy and key: it is unknown, left or expired; \
                 enter again"
            );
            Problem::new(Kind::NoLease, text)
        };
        let id = body.id().parse().map_err(|_| gone())?;
        let leaves = call.path == "/v1/leave";
        let verb = if leaves { Verb::Leave(id) } else { Verb::Renew(id) };
        self.run(moment, &body, verb).await?;
        if !self.answer.is_allowed() {
            return Err(gone());
        }
        let out = &mut self.reply.body;
        if leaves {
            out.extend_from_slice(b"{\"left\":true}");
        } else {
            out.extend_from_slice(b"{\"renewed\":true,\"lease_ms\":");
            let slots = self.answer.slots(&moment.plan);
            push_millis(out, slots.map(|slots| slots.lease));
            out.push(b'}');
        }
        Ok(())
    }

    async fn run(&mut self, moment: &Moment, body: &Body<'_>, verb: Verb) -> Result<(), Problem> {
        let values = body.values();
        let asks = body.asks(&values);
        let request = Request { domain: body.domain(), asks: asks.as_slice(), verb };
        let Self { shared, answer, .. } = self;
        let decided = shared.engine.decide(&moment.plan, moment.now(), &request, answer).await;
        decided.map_err(|error| problem(&error))
    }
}

/// Writes the reply to `/v1/enter`.
fn write_entry(answer: &Answer, plan: &Plan, reply: &mut Reply) {
    let (entry, slots) = (answer.entry(), answer.slots(plan));
    let wait = entry.and_then(|entry| entry.retry_after);
    reply.status = if answer.is_allowed() { 200 } else { 429 };
    reply.header_text("Cache-Control", "no-store");
    if answer.is_degraded() {
        reply.header_text("Tollgate-Degraded", "true");
    }
    if let Some(wait) = wait {
        reply.header("Retry-After", |out| push_number(out, retry_seconds(wait)));
    }
    let out = &mut reply.body;
    out.extend_from_slice(b"{\"allowed\":");
    push_bool(out, answer.is_allowed());
    if answer.is_degraded() {
        out.extend_from_slice(b",\"degraded\":true");
    }
    if let Some(bound) = answer.bound() {
        out.extend_from_slice(b",\"detail\":");
        push_text(out, bound);
    }
    let rule = answer.parts().first().map(|part| part.rule);
    let id = entry.and_then(|entry| entry.id).map(|id| id.to_string());
    for (field, text) in [
        (",\"policy\":", rule.map(|rule| plan.rule(rule).label())),
        (",\"id\":", id.as_deref()),
        (",\"reason\":", Some(entry.map_or("unlimited", |entry| entry.reason))),
    ] {
        out.extend_from_slice(field.as_bytes());
        match text {
            Some(text) => push_text(out, text),
            None => out.extend_from_slice(b"null"),
        }
    }
    for (field, number) in [
        (",\"limit\":", slots.map(|slots| slots.limit)),
        (",\"in_flight\":", entry.and_then(|entry| entry.in_flight)),
    ] {
        out.extend_from_slice(field.as_bytes());
        match number {
            Some(number) => push_number(out, number),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.extend_from_slice(b",\"lease_ms\":");
    push_millis(out, slots.map(|slots| slots.lease));
    out.extend_from_slice(b",\"retry_after_ms\":");
    push_millis(out, wait);
    out.push(b'}');
}
