//! The same axum application, behind each of the layers.

use axum::{
    Router,
    body::Body,
    extract::ConnectInfo,
    http::{Request, Response, StatusCode},
    routing::get,
};
use http_body_util::BodyExt;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::Quota;
use tollgate_tower::{
    Key, LayerError, Policy, RateLimitLayer,
    answer::{Headers, Legacy, OnSuccess},
};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_layer::Layer;
use tower_service::Service;

/// What is in front of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// Nothing; where requests are refused, a layer that only says so.
    Bare,
    /// tower_governor, which tells limit and remaining.
    Governor,
    /// One policy, with the headers that come by default.
    Default,
    /// One policy, with the headers that tower_governor has, and the time of the reset.
    Legacy,
    /// Three policies in one decision: address, user, all. The address refuses, if one does.
    Three,
    /// tower_governor that tells nothing to those who pass.
    GovernorSilent,
    /// One policy that tells nothing to those who pass.
    Silent,
}

impl Guard {
    pub(super) const ALL: [Self; 7] = [
        Self::Bare,
        Self::Governor,
        Self::Default,
        Self::Legacy,
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
            Self::Governor => "tower_governor 0.8, use_headers()",
            Self::Default => "tollgate, headers as they come",
            Self::Legacy => "tollgate, X-RateLimit-* only",
            Self::Three => "tollgate, three policies",
            Self::GovernorSilent => "tower_governor 0.8, no headers",
            Self::Silent => "tollgate, no headers",
        }
    }

    /// Returns the row of tower_governor that does the same.
    pub(super) const fn peer(self) -> Option<Self> {
        match self {
            Self::Default | Self::Legacy | Self::Three => Some(Self::Governor),
            Self::Silent => Some(Self::GovernorSilent),
            Self::Bare | Self::Governor | Self::GovernorSilent => None,
        }
    }
}

/// What becomes of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// A thousand each second and a burst of ten million: all pass.
    Allowed,
    /// One each hour, which is used: all are refused.
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

/// Somebody that a layer further out has found.
#[derive(Clone)]
pub(super) struct User(u64);

/// Returns the application behind a guard.
pub(super) fn app(guard: Guard, case: Case) -> Result<Router, String> {
    let bare = Router::new().route("/", get(|| async { "hello" }));
    let (period, burst) = case.limits();
    let mut config = GovernorConfigBuilder::default();
    config.period(period).burst_size(burst);
    Ok(match guard {
        Guard::Bare if case == Case::Refused => bare.layer(Constant),
        Guard::Bare => bare,
        Guard::Governor => {
            let config = config.use_headers().finish().ok_or("a burst of zero")?;
            bare.layer(GovernorLayer::new(config))
        }
        Guard::GovernorSilent => {
            let config = config.finish().ok_or("a burst of zero")?;
            bare.layer(GovernorLayer::new(config))
        }
        Guard::Default | Guard::Legacy | Guard::Three | Guard::Silent => {
            bare.layer(tollgate(guard, case.quota()).map_err(|error| error.to_string())?)
        }
    })
}

fn tollgate(guard: Guard, quota: Quota) -> Result<RateLimitLayer, LayerError> {
    let layer = RateLimitLayer::builder().policy(Policy::new("address", quota).key(Key::peer()));
    let ample = Case::Allowed.quota();
    match guard {
        Guard::Three => layer
            .policy(Policy::new("user", ample).key(Key::extension(|user: &User| &user.0)))
            .policy(Policy::new("global", ample)),
        Guard::Legacy => layer.headers(Headers::bare().legacy(Legacy::Delta)),
        Guard::Silent => layer.headers(Headers::bare().on_success(OnSuccess::Nothing)),
        _ => layer,
    }
    .build()
}

/// A layer that refuses whoever comes.
#[derive(Clone, Copy)]
struct Constant;

/// A service that refuses whoever comes.
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

/// Asks as one client after the other, and counts the answers that are not as they should be.
pub(super) struct Driver {
    app: Router,
    expected: StatusCode,
    keys: u32,
    at: u32,
    pub(super) wrong: u64,
}

impl Driver {
    /// The step from one client to the next, so that neighbours in time are none in number: a
    /// prime that divides no number of keys here, so all of them have their turn.
    const STEP: u32 = 7919;

    /// Starts with an application; if it is to refuse, each client uses up what it has.
    pub(super) fn new(app: Router, case: Case, keys: u32) -> Self {
        let mut driver = Self { app, expected: case.status(), keys, at: 0, wrong: 0 };
        if case == Case::Refused {
            (0..keys).for_each(|_| driver.ask());
        }
        driver.wrong = 0;
        driver
    }

    /// Sends one request, and takes the answer to its end.
    pub(super) fn ask(&mut self) {
        self.at = (self.at + Self::STEP) % self.keys;
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(address(self.at)));
        request.extensions_mut().insert(User(u64::from(self.at)));
        let future = pin!(answer(&mut self.app, request));
        // Nothing of this waits for anything.
        let polled = future.poll(&mut Context::from_waker(Waker::noop()));
        self.wrong += u64::from(polled != Poll::Ready(Some(self.expected)));
    }
}

async fn answer(app: &mut Router, request: Request<Body>) -> Option<StatusCode> {
    let mut response = app.call(request).await.ok()?;
    let body = response.body_mut();
    while let Some(frame) = body.frame().await {
        frame.ok()?;
    }
    Some(response.status())
}
