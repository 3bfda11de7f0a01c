//! Maps paths to their handlers.

use super::{
    body::{Body, Extra, ReplyOptions, Settlement},
    call::Call,
    forward,
    json::Bad,
    limits::{self, Told},
    reply::{JSON, Kind, Problem, Reply},
};
use crate::{
    engine::{Answer, DEFAULT_LIFE, Request, RequestError, Verb},
    net::{
        Access, AuthError, Client, Penalty, Permission, Permissions, bearer,
        browser::{Foreign, is_json},
    },
    plan::Plan,
    rls,
    server::Shared,
    trace::{Done, Outcome, Tally},
};
use arc_swap::Guard;
use std::sync::Arc;
use tokio::sync::watch;
use tollgate::Tick;

/// State that a connection keeps between its requests.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) answer: Answer,
    pub(super) reply: Reply,
    drain: watch::Receiver<bool>,
    was_draining: bool,
}

/// The plan, the time and the permissions for a batch of requests.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) plan: Guard<Arc<Plan>>,
    access: Guard<Arc<Access>>,
    now: Tick,
}

impl Moment {
    pub(super) fn new(shared: &Shared) -> Self {
        let engine = &shared.engine;
        Self { plan: engine.plan(), access: shared.access(), now: engine.now() }
    }

    pub(super) const fn now(&self) -> Tick {
        self.now
    }
}

/// The paths, and the methods that each takes.
pub(super) const ROUTES: [(&str, &str); 17] = [
    ("/v1/check", "GET, HEAD, POST"),
    ("/v1/peek", "GET, HEAD, POST"),
    ("/v1/reserve", "POST"),
    ("/v1/settle", "POST"),
    ("/v1/cancel", "POST"),
    ("/v1/refund", "POST"),
    ("/v1/reset", "POST"),
    ("/v1/enter", "POST"),
    ("/v1/renew", "POST"),
    ("/v1/leave", "POST"),
    ("/v1/report", "POST"),
    ("/v1/policies", "GET, HEAD"),
    ("/healthcheck", "GET, HEAD"),
    ("/healthz", "GET, HEAD"),
    ("/openapi.json", "GET, HEAD"),
    ("/json", "POST"),
    ("/", "GET, HEAD"),
];

/// The description of this API for programs.
const OPENAPI: &str = include_str!("openapi.json");

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, client: Client) -> Self {
        let drain = shared.drain();
        let was_draining = *drain.borrow();
        let (answer, reply) = (Answer::new(), Reply::default());
        Self { shared, client, answer, reply, drain, was_draining }
    }

    /// Tells whether the server is shutting down. The server signals this only once, so it is
    /// enough to check whether the channel has changed, and that takes no lock.
    pub(super) fn is_draining(&self) -> bool {
        self.was_draining || self.drain.has_changed().unwrap_or(true)
    }

    /// Answers a request. The result is in `self.reply`.
    pub(super) async fn answer(&mut self, moment: &Moment, call: &Call<'_>) {
        let trace = &self.shared.trace;
        let traced = trace.begin(trace.caller(|| call.fields.values("traceparent").next()));
        if traced.is_some() {
            // A fresh answer, so that the trace shows this request alone.
            self.answer = Answer::new();
        }
        self.reply.clear();
        if let Err(problem) = self.route(moment, call).await {
            self.reply.problem(&problem);
        }
        if let Some(traced) = traced {
            self.shared.trace.end(traced, &self.shared.engine, self.done(moment, call));
        }
    }

    /// Returns the trace data of an answered request.
    #[cold]
    fn done(&self, moment: &Moment, call: &Call<'_>) -> Done {
        let known = ROUTES.iter().map(|(path, _)| *path).find(|path| *path == call.path);
        let route = moment.plan.forward_auth(call.path).map(|route| route.path.as_str());
        // A method that a client has made up is not repeated: a span has one of a few names.
        let method = ["GET", "HEAD", "POST"].into_iter().find(|method| *method == call.method);
        let name = format!("{} {}", method.unwrap_or("HTTP"), known.or(route).unwrap_or("*"));
        Done {
            name: name.into(),
            protocol: "http",
            begun: moment.now,
            tally: Tally::of(&self.answer, &moment.plan, moment.now),
            outcome: Outcome::Http(self.reply.status),
        }
    }

    async fn route(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let plan = &*moment.plan;
        match (call.method, call.path) {
            ("POST", "/v1/check") => self.decide(moment, call, Verb::Check).await,
            ("POST", path) if path.starts_with("/v1/") => self.post(moment, call).await,
            ("GET" | "HEAD", "/v1/check") => self.query(moment, call, Verb::Check).await,
            ("GET" | "HEAD", "/v1/peek") => self.query(moment, call, Verb::Peek).await,
            ("GET" | "HEAD", "/v1/policies") => {
                self.authorize(moment, call, Permission::Read)?;
                limits::list(plan, &mut self.reply);
                Ok(())
            }
            ("GET" | "HEAD", "/healthcheck") => self.health(500),
            ("GET" | "HEAD", "/healthz") => self.health(503),
            ("GET" | "HEAD", "/openapi.json") => {
                self.reply.body.extend_from_slice(OPENAPI.as_bytes());
                Ok(())
            }
            ("GET" | "HEAD", "/") => {
                self.reply.plain(200, "Tollgate. API description: /openapi.json\n");
                Ok(())
            }
            ("POST", "/json") => self.json(moment, call).await,
            (_, path) => match plan.forward_auth(path) {
                Some(route) => forward::answer((plan, moment.now), route, call, self).await,
                None => Err(self.lost(call)),
            },
        }
    }

    /// Envoy's protocol as JSON.
    async fn json(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let granted = self.authorize(moment, call, Permission::Check)?;
        let told = rls::json::json(&self.shared, granted, call.body, &mut self.answer).await;
        self.reply.plain(told.status, "");
        for (name, value) in &told.headers {
            match *name {
                "content-type" if value.starts_with("application/json") => {
                    self.reply.content_type = JSON;
                }
                "content-type" => {}
                name => self.reply.header_text(name, value),
            }
        }
        self.reply.is_bad = matches!(told.status, 400 | 403);
        self.reply.body.extend_from_slice(&told.body);
        Ok(())
    }

    async fn post(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        match call.path {
            "/v1/peek" => self.decide(moment, call, Verb::Peek).await,
            "/v1/reserve" => self.decide(moment, call, Verb::Reserve(DEFAULT_LIFE)).await,
            "/v1/settle" => {
                let text = self.body(moment, call, Permission::Settle)?;
                self.settle(&Settlement::settle(text)?, "settled").await
            }
            "/v1/cancel" => {
                let text = self.body(moment, call, Permission::Settle)?;
                self.settle(&Settlement::cancel(text)?, "cancelled").await
            }
            "/v1/refund" | "/v1/reset" => self.give(moment, call).await,
            "/v1/report" => self.report(moment, call),
            "/v1/enter" => self.enter(moment, call).await,
            "/v1/renew" | "/v1/leave" => self.hold(moment, call).await,
            path => match moment.plan.forward_auth(path) {
                Some(route) => forward::answer((&moment.plan, moment.now), route, call, self).await,
                None => Err(self.lost(call)),
            },
        }
    }

    /// Returns the error for an unknown path, or for a wrong method.
    #[cold]
    fn lost(&mut self, call: &Call<'_>) -> Problem {
        let path: String = call.path.chars().take(80).collect();
        if let Some((_, methods)) = ROUTES.iter().find(|(known, _)| *known == call.path) {
            self.reply.header_text("Allow", methods);
            let method: String = call.method.chars().take(20).collect();
            return Problem::new(
                Kind::MethodNotAllowed,
                format!("{path} does not support {method}; use {methods}"),
            );
        }
        let text = format!(
            "there is no path \"{path}\"; /openapi.json lists the paths, and `forward_auth` in the \
             configuration adds some"
        );
        Problem::new(Kind::NotFound, text)
    }

    /// Returns the permissions of the client, if they include the needed one.
    fn authorize(
        &mut self,
        moment: &Moment,
        call: &Call<'_>,
        needed: Permission,
    ) -> Result<Permissions, Problem> {
        let (headers, authorization) = call.fields.caller();
        let access = &*moment.access;
        access.check_browser(&self.client, &headers).map_err(|foreign| of_foreign(&foreign))?;
        let granted = access.authenticate(&self.client, authorization.and_then(bearer));
        if granted == Err(AuthError::WrongSecret) {
            self.reply.penalty = Some(Penalty::of(&self.shared, &self.client));
        }
        let granted = granted.map_err(|_| {
            let text = "send a token of the server's `http_token_file` or `tokens` as \
                        `Authorization: Bearer ..`";
            Problem::new(Kind::Unauthorized, text)
        })?;
        if granted.has(needed) {
            return Ok(granted);
        }
        let text = format!(
            "{} needs the permission `{needed}`, which this token does not grant; add it to \
             `permissions` of the token",
            call.path
        );
        Err(Problem::new(Kind::Forbidden, text))
    }

    /// Returns the body of a request after checking its permission and content type.
    pub(super) fn body<'a>(
        &mut self,
        moment: &Moment,
        call: &Call<'a>,
        needed: Permission,
    ) -> Result<&'a str, Problem> {
        self.authorize(moment, call, needed)?;
        let kind = call.fields.values("Content-Type").next();
        // A web page can send any other type to any server without a preflight request.
        if !kind.map_or(call.body.is_empty(), is_json) {
            let kind = String::from_utf8_lossy(kind.unwrap_or_default());
            let kind: String = kind.chars().take(80).collect();
            let text = format!("Content-Type is \"{kind}\"; send application/json (`curl --json`)");
            return Err(Problem::new(Kind::NotJson, text));
        }
        std::str::from_utf8(call.body).map_err(|error| {
            let at = error.valid_up_to();
            Problem::from(Bad(format!("the body is not UTF-8 at byte {at}; send JSON in UTF-8")))
        })
    }

    async fn query(&mut self, moment: &Moment, call: &Call<'_>, verb: Verb) -> Result<(), Problem> {
        self.authorize(moment, call, permission(verb))?;
        let (body, options) = Body::query(call.query)?;
        self.decided(moment, call, &body, (verb, options)).await
    }

    async fn decide(
        &mut self,
        moment: &Moment,
        call: &Call<'_>,
        verb: Verb,
    ) -> Result<(), Problem> {
        let text = self.body(moment, call, permission(verb))?;
        let options = ReplyOptions::read(call.query)?;
        let extra = if let Verb::Reserve(_) = verb { Extra::Life } else { Extra::Nothing };
        let body = Body::read(text, extra)?;
        let verb = match (verb, body.life()) {
            (Verb::Reserve(_), Some(life)) => Verb::Reserve(life),
            _ => verb,
        };
        self.decided(moment, call, &body, (verb, options)).await
    }

    async fn decided(
        &mut self,
        moment: &Moment,
        call: &Call<'_>,
        body: &Body<'_>,
        (verb, options): (Verb, ReplyOptions),
    ) -> Result<(), Problem> {
        let explains = options.explain == Some(true);
        if explains {
            // The explanation reveals keys and rules that a client need not know.
            self.authorize(moment, call, Permission::Read)?;
        }
        let Self { shared, answer, reply, .. } = self;
        let (plan, now) = (&**moment.plan, moment.now);
        let values = body.values();
        let asks = body.asks(&values);
        let request = Request { domain: body.domain(), asks: asks.as_slice(), verb };
        shared.engine.decide(plan, now, &request, answer).await.map_err(|error| problem(&error))?;
        let told = Told { plan, now, answer };
        told.headers(shared, reply);
        told.open_body(&mut reply.body);
        if let Verb::Reserve(_) = verb {
            let id = match answer.ticket() {
                Some(ticket) => format!(",\"id\":\"{ticket}\""),
                None => ",\"id\":null".to_owned(),
            };
            reply.body.extend_from_slice(id.as_bytes());
        }
        if explains {
            let explained = format!(",\"explain\":{}", answer.explain(plan, now, &request));
            reply.body.extend_from_slice(explained.as_bytes());
        }
        reply.body.push(b'}');
        reply.status = if answer.is_allowed() { 200 } else { 429 };
        self.refuse_with(options.denied_status);
        Ok(())
    }

    /// Sets the status that the client wants for refusals.
    pub(super) fn refuse_with(&mut self, status: Option<u16>) {
        if let (429, Some(status)) = (self.reply.status, status) {
            self.reply.status = status;
        }
    }

    async fn settle(&mut self, settlement: &Settlement<'_>, done: &str) -> Result<(), Problem> {
        let gone = || {
            let id: String = settlement.id.chars().take(80).collect();
            let text = format!(
                "\"{id}\" is not an open reservation of this server: it is unknown, settled or \
                 expired"
            );
            Problem::new(Kind::NoReservation, text)
        };
        let ticket = settlement.id.parse().map_err(|_| gone())?;
        let settled = self.shared.engine.settle(&ticket, &settlement.actual).await;
        if !settled.map_err(|error| problem(&error))? {
            return Err(gone());
        }
        self.reply.body.extend_from_slice(format!("{{\"{done}\":true}}").as_bytes());
        Ok(())
    }

    async fn give(&mut self, moment: &Moment, call: &Call<'_>) -> Result<(), Problem> {
        let text = self.body(moment, call, Permission::Settle)?;
        let body = Body::read(text, Extra::Nothing)?;
        let Self { shared, answer, reply, .. } = self;
        let (plan, now) = (&**moment.plan, moment.now);
        let values = body.values();
        let asks = body.asks(&values);
        let request = Request { domain: body.domain(), asks: asks.as_slice(), verb: Verb::Peek };
        let done = if call.path == "/v1/refund" {
            let given = shared.engine.refund(plan, now, &request, answer).await;
            format!("{{\"refunded\":{}}}", given.map_err(|error| problem(&error))?)
        } else {
            shared
                .engine
                .reset(plan, now, &request, answer)
                .await
                .map_err(|error| problem(&error))?;
            "{\"reset\":true}".to_owned()
        };
        reply.body.extend_from_slice(done.as_bytes());
        reply.content_type = JSON;
        Ok(())
    }

    /// Replies whether new requests are welcome; `bad` is the status if they are not.
    fn health(&mut self, bad: u16) -> Result<(), Problem> {
        if self.shared.not_ready().is_some() {
            self.reply.plain(bad, "draining");
        } else {
            self.reply.plain(200, "OK");
        }
        Ok(())
    }
}

fn of_foreign(foreign: &Foreign) -> Problem {
    let kind = match foreign {
        Foreign::Origin(_) => Kind::ForeignOrigin,
        Foreign::Host(_) => Kind::ForeignHost,
    };
    Problem::new(kind, foreign.to_string())
}

/// Returns the permission that a verb needs.
const fn permission(verb: Verb) -> Permission {
    match verb {
        Verb::Peek => Permission::Read,
        Verb::Check | Verb::Reserve(_) | Verb::Enter | Verb::Renew(_) | Verb::Leave(_) => {
            Permission::Check
        }
    }
}

pub(super) fn problem(error: &RequestError) -> Problem {
    let kind = match error {
        RequestError::Name(_) => Kind::NoPolicy,
        RequestError::Store(_) => Kind::StoreFailed,
        _ => Kind::BadRequest,
    };
    Problem::new(kind, error.to_string())
}
