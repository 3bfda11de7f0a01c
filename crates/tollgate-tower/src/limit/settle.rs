//! What a request has really cost: known when its response is there.

use super::status;
use http::{HeaderName, StatusCode, response::Parts};
use std::{fmt, sync::Arc};

/// Looks at the head of a response and tells something about it.
type Look<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Which responses are charged.
///
/// What is not charged is reserved when the request comes and given back when the response is there.
/// To look first and charge later would let many through at once.
///
/// # Examples
///
/// Five failed logins in a minute, and as many good ones as one likes:
///
/// ```
/// use tollgate::Quota;
/// use tollgate_tower::{Charge, Policy, key::Key};
///
/// let logins = Policy::new("logins", Quota::per_minute(5))
///     .key(Key::peer())
///     .charge(Charge::on_failure());
/// # let _ = logins;
/// ```
#[derive(Clone)]
pub struct Charge(Which);

#[derive(Clone)]
enum Which {
    All,
    /// An empty list of statuses, which `build` refuses.
    Nothing,
    Status(Arc<dyn Fn(StatusCode) -> bool + Send + Sync>),
    Head(Look<bool>),
}

impl Charge {
    /// Charges all of them, the default.
    #[must_use]
    pub const fn always() -> Self {
        Self(Which::All)
    }

    /// Charges failures, whoever is to blame: 4xx and 5xx, and in gRPC all but OK.
    #[must_use]
    pub fn on_failure() -> Self {
        Self::status(|status| status.is_client_error() || status.is_server_error())
    }

    /// Charges all but failures of the server: 5xx are given back, and in gRPC what stands for them
    /// (UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS).
    #[must_use]
    pub fn unless_server_error() -> Self {
        Self::status(|status| !status.is_server_error())
    }

    /// Charges responses with one of these statuses. That of a call of gRPC is taken as the one of
    /// HTTP that stands for it, as `google.rpc.Code` lists them: UNAUTHENTICATED is 401.
    #[must_use]
    pub fn on_status(statuses: impl Into<Vec<StatusCode>>) -> Self {
        let statuses = statuses.into();
        if statuses.is_empty() {
            return Self(Which::Nothing);
        }
        Self::status(move |status| statuses.contains(&status))
    }

    /// Charges the responses for whose head this is true. In gRPC, the status of a call that has
    /// answered something is in the trailers, and not in the head.
    #[must_use]
    pub fn by(is_charged: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self(Which::Head(Arc::new(is_charged)))
    }

    fn status(is_charged: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        Self(Which::Status(Arc::new(is_charged)))
    }

    pub(super) const fn is_always(&self) -> bool {
        matches!(self.0, Which::All)
    }

    /// Tells whether no response is ever charged.
    pub(super) const fn is_never(&self) -> bool {
        matches!(self.0, Which::Nothing)
    }

    /// Tells whether a response is charged; `None` if its trailers say so.
    pub(super) fn is_charged(&self, head: &Parts) -> Option<bool> {
        match &self.0 {
            Which::All => Some(true),
            Which::Nothing => Some(false),
            Which::Head(is_charged) => Some(is_charged(head)),
            Which::Status(is_charged) => status::of(head).map(|status| is_charged(status)),
        }
    }

    /// Tells whether a response is charged that has ended like this. If nobody knows how, it is.
    pub(super) fn is_charged_at_the_end(&self, status: Option<StatusCode>) -> bool {
        match (&self.0, status) {
            (Which::Status(is_charged), Some(status)) => is_charged(status),
            (Which::Nothing, _) => false,
            _ => true,
        }
    }
}

impl Default for Charge {
    fn default() -> Self {
        Self::always()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_always() { "Charge(always)" } else { "Charge(by)" })
    }
}

/// Where the real cost of a request is found in its response.
///
/// What the policy charges before is an estimate then, which is reserved and corrected: down, or up
/// into debt.
///
/// # Examples
///
/// A budget of tokens for a language model, which says afterwards what it has used:
///
/// ```
/// use tollgate::Quota;
/// use tollgate_tower::{Policy, Settle, key::Key};
///
/// let tokens = Policy::new("tokens", Quota::per_minute(100_000))
///     .key(Key::bearer())
///     .cost(2_000)
///     .settle(Settle::header(http::HeaderName::from_static("x-tokens-used")));
/// # let _ = tokens;
/// ```
#[derive(Clone)]
pub struct Settle(How);

#[derive(Clone)]
enum How {
    Header(HeaderName),
    BodyBytes,
    Reported,
    By(Look<Option<u64>>),
}

impl Settle {
    /// Reads the cost in a header, as a whole number. Where it is not, the estimate stays.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(How::Header(name))
    }

    /// Counts the bytes of the body as they are sent. A client that leaves pays for what it got.
    #[must_use]
    pub const fn body_bytes() -> Self {
        Self(How::BodyBytes)
    }

    /// Takes what the service reports by [`Usage`](super::Usage), until the body of the response has
    /// ended or is dropped. If it reports nothing, the estimate stays; so it does, as the least, if
    /// the request is dropped before there is a response.
    #[must_use]
    pub const fn reported() -> Self {
        Self(How::Reported)
    }

    /// Works the cost out from the head of the response; `None` leaves the estimate.
    #[must_use]
    pub fn by(actual: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(How::By(Arc::new(actual)))
    }

    /// Tells whether the cost is the length of the body.
    pub(super) const fn is_by_body(&self) -> bool {
        matches!(self.0, How::BodyBytes)
    }

    /// Tells whether the service reports the cost.
    pub(super) const fn is_reported(&self) -> bool {
        matches!(self.0, How::Reported)
    }

    /// Tells whether the cost is known when the body has ended, and not before.
    pub(super) const fn is_at_the_end(&self) -> bool {
        self.is_by_body() || self.is_reported()
    }

    /// Returns the cost if the head tells it.
    pub(super) fn head(&self, head: &Parts) -> Option<u64> {
        match &self.0 {
            How::Header(name) => head.headers.get(name)?.to_str().ok()?.trim().parse().ok(),
            How::By(actual) => actual(head),
            How::BodyBytes | How::Reported => None,
        }
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Header(name) => f.debug_tuple("Settle").field(name).finish(),
            How::BodyBytes => f.write_str("Settle(body bytes)"),
            How::Reported => f.write_str("Settle(reported)"),
            How::By(_) => f.write_str("Settle(by)"),
        }
    }
}
