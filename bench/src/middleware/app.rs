//! The same axum application, behind each of the layers.

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::ConnectInfo,
    http::{Request, Response, StatusCode},
    routing::get,
};
use governor::middleware::{NoOpMiddleware, RateLimitingMiddleware, StateInformationMiddleware};
use http_body_util::BodyExt;
use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::Quota;
use tollgate_tower::{
    Key, Policy, RateLimitLayer,
    answer::{Headers, Legacy, OnSuccess},
};
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::GovernorConfigBuilder,
    key_extractor::{GlobalKeyExtractor, KeyExtractor, PeerIpKeyExtractor},
};
use tower_layer::Layer;
use tower_service::Service;

/// The layer in front of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// None; where requests are refused, a layer that only refuses.
    Bare,
    /// A layer that does nothing: the overhead of axum for any layer.
    Idle,
    /// tower_governor, which reports limit and remaining.
    Governor,
    /// One policy, with the headers that come by default.
    Default,
    /// The same, with the body of its own type.
    Same,
    /// One policy, with the headers that tower_governor has, and the time of the reset.
    Legacy,
    /// Three policies in one decision: address, user, all. The address refuses, if one does.
    Three,
    /// The same three by tower_governor: a layer for each, the address outermost.
    GovernorThree,
    /// tower_governor without headers on responses to requests that pass.
    GovernorSilent,
    /// One policy without headers on responses to requests that pass.
    Silent,
}

impl Guard {
    pub(super) const ALL: [Self; 10] = [
        Self::Bare,
        Self::Idle,
        Self::Governor,
        Self::Default,
        Self::Same,
        Self::Legacy,
        Self::GovernorThree,
        Self::Three,
        Self::GovernorSilent,
        Self::Silent,
    ];

    pub(super) const fn name(self, case: Case) -> &'static str {
        match self {
            Self::Bare => match case {
                Case::Allowed => "no layer",
                Case::Refused => "a layer that says 429 and nothing else",
            },
            Self::Idle => "a layer that does nothing",
            Self::Governor => "tower_governor 0.8, use_headers()",
            Self::Default => "tollgate, headers as they come",
            Self::Same => "tollgate, the same, same_body()",
            Self::Legacy => "tollgate, X-RateLimit-* only",
            Self::Three => "tollgate, three policies",
            Self::GovernorThree => "tower_governor 0.8, three layers",
            Self::GovernorSilent => "tower_governor 0.8, no headers",
            Self::Silent => "tollgate, no headers",
        }
    }

    /// Returns the row of tower_governor that does the same.
    pub(super) const fn peer(self) -> Option<Self> {
        match self {
            Self::Default | Self::Same | Self::Legacy => Some(Self::Governor),
            Self::Three => Some(Self::GovernorThree),
            Self::Silent => Some(Self::GovernorSilent),
            Self::Bare
            | Self::Idle
            | Self::Governor
            | Self::GovernorThree
            | Self::GovernorSilent => None,
        }
    }
}

/// The result of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// A thousand each second and a burst of ten million: all pass.
    Allowed,
    /// One each hour, which is used up: all are refused.
    Refused,
}

impl Case {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Allowed => StatusCode::OK,
            Self::Refused => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns the time in which one permit comes back, and the burst.
    const fn limits(self) -> (Duration, u32) {
        match self {
            Self::Allowed => (Duration::from_millis(1), 10_000_000),
            Self::Refused => (Duration::from_secs(3600), 1),
        }
    }

    fn quota(self) -> Quota {
        let (period, burst) = self.limits();
        Quota::one_every(period).burst(u64::from(burst))
    }
}

/// The place of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `Router::layer`: axum puts it around each route, and boxes its futures and bodies.
    Inside,
    /// Around the whole router, as a service.
    Around,
}

/// A user that an outer layer has found.
#[derive(Clone)]
pub(super) struct User(u64);

/// Returns the application with a layer inside.
pub(super) fn router(guard: Guard, case: Case) -> Result<Router, String> {
    let bare = bare();
    let router = match guard {
        Guard::Bare | Guard::Idle if case == Case::Refused => bare.layer(Constant),
        Guard::Bare => bare,
        Guard::Idle => bare.layer(Idle),
        Guard::Governor => bare.layer(telling(case)?),
        Guard::GovernorSilent => bare.layer(silent(case)?),
        Guard::GovernorThree => {
            bare.layer(ample(GlobalKeyExtractor)?).layer(ample(ByUser)?).layer(telling(case)?)
        }
        Guard::Default | Guard::Legacy | Guard::Three | Guard::Silent => {
            bare.layer(tollgate(guard, case)?)
        }
        Guard::Same => bare.layer(tollgate(guard, case)?.same_body()),
    };
    // As when it is served: layers are put around the routes once.
    Ok(router.with_state(()))
}

/// Sends requests to the application with a layer around it.
fn around(guard: Guard, case: Case) -> Result<Ask, String> {
    let bare = bare();
    Ok(match guard {
        Guard::Bare | Guard::Idle if case == Case::Refused => asking(Constant.layer(bare)),
        Guard::Bare => asking(bare),
        Guard::Idle => asking(Idle.layer(bare)),
        Guard::Governor => asking(telling(case)?.layer(bare)),
        Guard::GovernorSilent => asking(silent(case)?.layer(bare)),
        Guard::GovernorThree => {
            let inner = ample(ByUser)?.layer(ample(GlobalKeyExtractor)?.layer(bare));
            asking(telling(case)?.layer(inner))
        }
        Guard::Default | Guard::Legacy | Guard::Three | Guard::Silent => {
            asking(tollgate(guard, case)?.layer(bare))
        }
        Guard::Same => asking(tollgate(guard, case)?.same_body().layer(bare)),
    })
}

pub(super) fn bare() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// A layer of tower_governor that sends headers.
type Telling<K> = GovernorLayer<K, StateInformationMiddleware, Body>;

/// Counts by the user, as our policy does.
#[derive(Clone)]
struct ByUser;

impl KeyExtractor for ByUser {
    type Key = u64;

    fn extract<T>(&self, request: &Request<T>) -> Result<u64, GovernorError> {
        let user = request.extensions().get::<User>();
        user.map(|user| user.0).ok_or(GovernorError::UnableToExtractKey)
    }
}

fn telling(case: Case) -> Result<Telling<PeerIpKeyExtractor>, String> {
    governed(&mut config(case, PeerIpKeyExtractor).use_headers())
}

/// A layer that never refuses here.
fn ample<K: KeyExtractor>(key: K) -> Result<Telling<K>, String> {
    governed(&mut config(Case::Allowed, key).use_headers())
}

fn silent(case: Case) -> Result<GovernorLayer<PeerIpKeyExtractor, NoOpMiddleware, Body>, String> {
    governed(&mut config(case, PeerIpKeyExtractor))
}

fn config<K: KeyExtractor>(case: Case, key: K) -> GovernorConfigBuilder<K, NoOpMiddleware> {
    let ((period, burst), mut config) = (case.limits(), GovernorConfigBuilder::default());
    config.period(period).burst_size(burst);
    config.key_extractor(key)
}

fn governed<K, M>(
    config: &mut GovernorConfigBuilder<K, M>,
) -> Result<GovernorLayer<K, M, Body>, String>
where
    K: KeyExtractor,
    M: RateLimitingMiddleware<governor::clock::QuantaInstant>,
{
    let config = config.finish().ok_or("tower_governor takes neither period nor burst of zero")?;
    Ok(GovernorLayer::new(config))
}

fn tollgate(guard: Guard, case: Case) -> Result<RateLimitLayer, String> {
    let (quota, ample) = (case.quota(), Case::Allowed.quota());
    let layer = RateLimitLayer::builder().policy(Policy::new("address", quota).key(Key::peer()));
    let layer = match guard {
        Guard::Three => layer
            .policy(Policy::new("user", ample).key(Key::extension(|user: &User| &user.0)))
            .policy(Policy::new("global", ample)),
        Guard::Legacy => layer.headers(Headers::bare().legacy(Legacy::Delta)),
        Guard::Silent => layer.headers(Headers::bare().on_success(OnSuccess::Nothing)),
        _ => layer,
    };
    layer.build().map_err(|error| error.to_string())
}

/// A layer that does nothing.
#[derive(Clone, Copy)]
struct Idle;

/// A service that only calls the inner one.
#[derive(Clone, Copy)]
struct Idles<S>(S);

impl<S> Layer<S> for Idle {
    type Service = Idles<S>;

    fn layer(&self, inner: S) -> Idles<S> {
        Idles(inner)
    }
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Idles<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        self.0.call(request)
    }
}

/// A layer that refuses every request.
#[derive(Clone, Copy)]
struct Constant;

/// A service that refuses every request.
#[derive(Clone, Copy)]
struct Refuses;

impl<S> Layer<S> for Constant {
    type Service = Refuses;

    fn layer(&self, _: S) -> Refuses {
        Refuses
    }
}

impl Service<Request<Body>> for Refuses {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        ready(Ok(response))
    }
}

/// Returns the address of a client.
fn address(number: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)), 40_000)
}

/// Sends a request, reads the answer to its end, and returns the status.
pub(super) type Ask = Box<dyn FnMut(Request<Body>) -> Option<StatusCode>>;

pub(super) fn asking<S, R>(mut service: S) -> Ask
where
    S: Service<Request<Body>, Response = Response<R>> + 'static,
    R: HttpBody<Data = Bytes> + Unpin,
{
    Box::new(move |request| {
        let future = pin!(answer(&mut service, request));
        // No part of this waits.
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(status) => status,
            Poll::Pending => None,
        }
    })
}

async fn answer<S, R>(service: &mut S, request: Request<Body>) -> Option<StatusCode>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Unpin,
{
    poll_fn(|context| service.poll_ready(context)).await.ok()?;
    let mut response = service.call(request).await.ok()?;
    while let Some(frame) = response.body_mut().frame().await {
        frame.ok()?;
    }
    Some(response.status())
}

/// Sends requests as one client after the other, and counts the wrong answers.
pub(super) struct Driver {
    ask: Ask,
    expected: StatusCode,
    keys: u32,
    at: u32,
    pub(super) wrong: u64,
}

impl Driver {
    /// The step from one client to the next, so that successive clients are not neighbours in
    /// number: a prime that divides no number of keys here, so every client occurs.
    const STEP: u32 = 7919;

    /// Starts with an application; if it should refuse, each client uses up its permits.
    pub(super) fn new(guard: Guard, case: Case, (place, keys): (Place, u32)) -> Option<Self> {
        let ask = match place {
            Place::Inside => router(guard, case).map(asking),
            Place::Around => around(guard, case),
        };
        let ask = ask.map_err(|error| eprintln!("\n{guard:?}: {error}")).ok()?;
        let mut driver = Self { ask, expected: case.status(), keys, at: 0, wrong: 0 };
        if case == Case::Refused {
            (0..keys).for_each(|_| driver.ask());
        }
        driver.wrong = 0;
        Some(driver)
    }

    /// Sends one request, and reads the answer to its end.
    pub(super) fn ask(&mut self) {
        self.at = (self.at + Self::STEP) % self.keys;
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(address(self.at)));
        request.extensions_mut().insert(User(u64::from(self.at)));
        let status = (self.ask)(request);
        self.wrong += u64::from(status != Some(self.expected));
    }
}
