//! From a request of Envoy to the engine's answer.

use super::request::{BadRequest, Decoder, RateLimitRequest};
use crate::{
    engine::{Answer, Hits, Request, RequestError, Verb},
    net::Permissions,
    plan::Plan,
    server::Shared,
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
    /// The client may not send negative hits.
    Forbidden(&'static str),
}

/// Decides a request.
pub(super) async fn decide(
    (shared, granted): (&Shared, Permissions),
    (plan, now): (&Plan, Tick),
    request: &RateLimitRequest<'_>,
    (decoder, answer): (&mut Decoder, &mut Answer),
) -> Result<(), Decided> {
    let asks = decoder.asks(request).map_err(Decided::Bad)?;
    if asks.iter().any(|ask| matches!(ask.hits, Hits::Give(_)))
        && let Some(why) = shared.access().refuses_negative_hits(granted)
    {
        decoder.put_asks_back(asks);
        return Err(Decided::Forbidden(why));
    }
    let asked = Request { domain: request.domain, asks: &asks, verb: Verb::Check };
    let decided = shared.engine.decide(plan, now, &asked, answer).await;
    decoder.put_asks_back(asks);
    decided.map_err(|error| match error {
        RequestError::Store(_) => Decided::Store(error.to_string()),
        _ => Decided::Engine(error),
    })
}
