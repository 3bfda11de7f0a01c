//! An API with three limits in one decision: by address, by user, and one for all requests.
//!
//! `cargo run -p tollgate-examples --bin axum_limits`, then
//! `curl -i -H 'x-api-key: alice-key' localhost:3000/`.

use axum::{
    Extension, Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tollgate::Quota;
use tollgate_tower::{LayerError, Policy, RateLimitLayer, answer::Refusal, key::Key};

/// The sender of a request, set by [`authenticate`].
#[derive(Clone)]
struct User {
    name: &'static str,
}

/// Finds the user by the API key. A request without a key comes from a guest; a wrong key gets 401.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let name = match request.headers().get("x-api-key").map(|key| key.as_bytes()) {
        None => return next.run(request).await,
        Some(b"alice-key") => "alice",
        Some(b"bob-key") => "bob",
        Some(_) => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(User { name });
    next.run(request).await
}

async fn hello(user: Option<Extension<User>>) -> String {
    format!("hello, {}", user.map_or("guest", |Extension(user)| user.name))
}

/// A request passes if all policies agree; then all are charged, or none.
fn limits() -> Result<RateLimitLayer, LayerError> {
    RateLimitLayer::builder()
        // Behind a proxy this would be the proxy: see `Key::client`.
        .policy(Policy::new("per-address", Quota::per_hour(12)).key(Key::peer()))
        // Guests have no user, and are counted by their address only.
        .policy(
            Policy::new("per-user", Quota::per_hour(5))
                .key(Key::extension(|user: &User| user.name).or_skip()),
        )
        // 503 instead of 429: a client that comes when all permits are used up is not at fault.
        .policy(Policy::new("global", Quota::per_second(1_000)).refusal(Refusal::ReducedCapacity))
        .build()
}

/// Returns the service.
pub(crate) fn app() -> Result<Router, LayerError> {
    Ok(Router::new()
        .route("/", get(hello))
        .layer(limits()?)
        // The last layer is the outermost: users are known before they are counted. Wrong API keys
        // never reach the limits; `login_protection` shows how to limit guessing.
        .layer(from_fn(authenticate)))
}

/// Serves it. Without the connect info the address of a client is unknown.
pub(crate) async fn serve(listener: TcpListener, app: Router) -> std::io::Result<()> {
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, app()?).await?;
    Ok(())
}
