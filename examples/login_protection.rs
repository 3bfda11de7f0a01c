//! Failed logins are limited, successful ones are not.
//!
//! Each attempt reserves a permit when it comes, and gets it back when it succeeds. So a thousand
//! guesses at the same time get no further than a thousand one by one.
//!
//! `cargo run -p tollgate-examples --bin login_protection`, then
//! `curl -i -d 'alice:guess' localhost:3000/login`.

use axum::{
    Router,
    http::{Method, StatusCode},
    routing::post,
};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tollgate::Quota;
use tollgate_tower::{
    Charge, Info, LayerError, Policy, RateLimitLayer,
    key::{ClientAddress, Key},
};

/// Checks a password. A real service has a slow hash here, which is one more reason to limit.
async fn login(body: String) -> (StatusCode, &'static str) {
    match body.split_once(':') {
        Some(("alice", "correct horse")) => (StatusCode::OK, "welcome\n"),
        Some(_) => (StatusCode::UNAUTHORIZED, "wrong name or password\n"),
        None => (StatusCode::BAD_REQUEST, "write name:password\n"),
    }
}

fn is_attempt(info: &Info<'_>) -> bool {
    info.method() == Method::POST
}

/// Two limits on failures: one for an address, and a wider one for clients with many IPv6
/// addresses.
fn limits() -> Result<RateLimitLayer, LayerError> {
    let network = ClientAddress::peer().ipv6_prefix(48).ipv4_prefix(24);
    RateLimitLayer::builder()
        .policy(
            Policy::new("failures", Quota::per_hour(5))
                .key(Key::peer())
                // A request for the form is not counted; 4xx and 5xx are charged, the rest is given
                // back.
                .only(is_attempt)
                .charge(Charge::on_failure()),
        )
        .policy(
            Policy::new("failures-of-network", Quota::per_hour(50))
                .key(Key::client(network))
                .only(is_attempt)
                .charge(Charge::on_failure()),
        )
        .build()
}

/// Returns the service: only the login is limited.
pub(crate) fn app() -> Result<Router, LayerError> {
    Ok(Router::new()
        .route("/login", post(login))
        .route_layer(limits()?)
        .route("/", post(|| async { "not limited\n" })))
}

/// Serves it, with the addresses of clients.
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
