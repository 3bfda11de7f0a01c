//! Services that show what a [`Registry`] holds: metrics for Prometheus, and a list for people.

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};
use tollgate::observe::Registry;
use tower_service::Service;

/// Answers requests with the contents of a [`Registry`]; for any router of tower services.
///
/// | endpoint | response |
/// |---|---|
/// | [`metrics`](Self::metrics), usually at `/metrics` | the text format of Prometheus |
/// | [`limiters`](Self::limiters), usually at `/debug/limiters` | one line for each limiter; with the feature `json`, JSON if `Accept` names `application/json` |
///
/// It answers `GET` and `HEAD`, whatever the path, and others with 405. Its responses are text that
/// browsers neither run nor cache, whatever names and keys contain. It checks no credentials: serve
/// it on an internal listener, or behind your authentication.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use tollgate::{Limiter, Quota, observe::Registry};
/// use tollgate_tower::RegistryEndpoint;
///
/// let registry = Registry::new();
/// let limiter = Limiter::builder(Quota::per_second(100)).counted().build()?;
/// registry.add("api", &limiter)?;
/// let app: Router = Router::new()
///     .route_service("/metrics", RegistryEndpoint::metrics(registry.clone()))
///     .route_service("/debug/limiters", RegistryEndpoint::limiters(registry));
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "Prometheus")]
pub struct RegistryEndpoint {
    registry: Registry,
    page: Page,
}

#[derive(Clone, Copy, Debug)]
enum Page {
    Metrics,
    Limiters,
}

impl RegistryEndpoint {
    /// Returns the endpoint that Prometheus scrapes.
    #[must_use]
    pub const fn metrics(registry: Registry) -> Self {
        Self { registry, page: Page::Metrics }
    }

    /// Returns the endpoint that lists limiters: name, quota, level and health.
    #[must_use]
    pub const fn limiters(registry: Registry) -> Self {
        Self { registry, page: Page::Limiters }
    }

    fn respond<B>(&self, request: &Request<B>) -> Response<String> {
        let (content_type, text) = match self.page {
            _ if ![Method::GET, Method::HEAD].contains(request.method()) => {
                let mut response = Response::new(String::new());
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                return response;
            }
            Page::Metrics => (Registry::PROMETHEUS_TEXT, self.registry.prometheus()),
            Page::Limiters => list(&self.registry, request),
        };
        let mut response = Response::new(text);
        for (name, value) in [
            (CONTENT_TYPE, content_type),
            (CACHE_CONTROL, "no-store"),
            // Otherwise a browser might take a name for HTML.
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Returns the list of limiters, and its content type.
fn list<B>(registry: &Registry, request: &Request<B>) -> (&'static str, String) {
    let reports = registry.list();
    #[cfg(feature = "json")]
    if accepts_json(request)
        && let Ok(json) = serde_json::to_string(&reports)
    {
        return ("application/json", json);
    }
    #[cfg(not(feature = "json"))]
    let _ = request;
    let text = reports.iter().map(|report| format!("{report}\n")).collect();
    ("text/plain; charset=utf-8", text)
}

/// Tells whether a client asks for JSON by name; `*/*` is satisfied by text.
#[cfg(feature = "json")]
fn accepts_json<B>(request: &Request<B>) -> bool {
    let accepted = request
        .headers()
        .get_all(http::header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_json = parts.next().is_some_and(|it| it.eq_ignore_ascii_case("application/json"));
        is_json && !parts.any(|it| matches!(it, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

impl<B> Service<Request<B>> for RegistryEndpoint {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(Ok(self.respond(&request)))
    }
}
