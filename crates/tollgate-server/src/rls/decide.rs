//! From a request of Envoy to the engine's answer.

use super::request::{BadRequest, Decoder, RateLimitRequest};
use crate::{
    engine::{Answer, Engine, Request, RequestError, Verb},
    plan::Plan,
};
use tollgate::Tick;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Decided {
    /// The request means nothing.
    Bad(BadRequest),
    /// The engine cannot decide it.
    Engine(RequestError),
    /// A store did not answer, and no rule says what then.
    Store(String),
}

/// Decides a request.
pub(super) async fn decide(
    engine: &Engine,
    (plan, now): (&Plan, Tick),
    request: &RateLimitRequest<'_>,
    (decoder, answer): (&mut Decoder, &mut Answer),
) -> Result<(), Decided> {
    let asks = decoder.asks(request).map_err(Decided::Bad)?;
    let asked = Request { domain: request.domain, asks: &asks, verb: Verb::Check };
    let decided = engine.decide(plan, now, &asked, answer).await;
    decoder.put_asks_back(asks);
    decided.map_err(|error| match error {
        RequestError::Store(_) => Decided::Store(error.to_string()),
        _ => Decided::Engine(error),
    })
}
