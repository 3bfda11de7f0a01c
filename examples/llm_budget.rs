//! A budget of tokens for a language model, whose actual use is known afterwards.
//!
//! The layer reserves an estimate when a request comes, and settles it by the response: tokens
//! reserved in excess come back, and missing tokens are taken, into debt if need be.
//!
//! `cargo run -p tollgate-examples --bin llm_budget`, then
//! `curl -i -H 'authorization: Bearer alice' -d 'Tell me a story' localhost:3000/chat`.

use axum::{
    Router,
    http::{HeaderMap, HeaderName},
    routing::post,
};
use tokio::net::TcpListener;
use tollgate::Quota;
use tollgate_tower::{
    Charge, Info, LayerError, Policy, RateLimitLayer, Settle, answer::Unit, key::Key,
};

/// The header in which the model reports the tokens it has used.
const TOKENS_USED: HeaderName = HeaderName::from_static("x-tokens-used");
/// The longest answer that the model gives, in tokens.
const ANSWER_MAX: u64 = 400;

/// Simulates the model: one token for a word, and twenty for the answer.
async fn chat(prompt: String) -> (HeaderMap, String) {
    let used = prompt.split_whitespace().count() as u64 + 20;
    let mut headers = HeaderMap::new();
    headers.insert(TOKENS_USED, used.into());
    (headers, "Once upon a time there was a permit.\n".to_owned())
}

/// Estimates the tokens of a request: four bytes of the prompt for each, and the longest answer.
fn estimate(info: &Info<'_>) -> u64 {
    let length = info.headers().get("content-length").and_then(|value| value.to_str().ok());
    let bytes = length.and_then(|length| length.parse::<u64>().ok()).unwrap_or(1_000);
    bytes / 4 + ANSWER_MAX
}

/// Tokens and requests are two limits of one decision.
fn limits() -> Result<RateLimitLayer, LayerError> {
    RateLimitLayer::builder()
        .policy(
            Policy::new("tokens", Quota::per_day(1_000))
                .key(Key::bearer())
                // Clients see that the unit is not requests.
                .unit(Unit::Other("tokens".into()))
                .cost_by(estimate)
                .settle(Settle::header(TOKENS_USED))
                // A model that fails costs the client nothing.
                .charge(Charge::unless_server_error()),
        )
        .policy(Policy::new("requests", Quota::per_minute(600)).key(Key::bearer()))
        .build()
}

/// Returns the service.
pub(crate) fn app() -> Result<Router, LayerError> {
    // A real service checks the token in a layer further out: see `axum_limits`.
    Ok(Router::new().route("/chat", post(chat)).layer(limits()?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app()?).await?;
    Ok(())
}
