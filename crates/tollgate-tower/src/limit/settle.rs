//! The actual cost of a request, which is known when its response is there.

use super::status;
use http::{HeaderName, StatusCode, response::Parts};
use std::{fmt, sync::Arc};

/// A closure that reads the head of a response.
type Look<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Which responses are charged.
///
/// The cost is reserved when the request arrives, and given back if its response is not charged. A
/// limit that looked first and charged later would admit many requests at once.
///
/// # Examples
///
/// Five failed logins in a minute, and any number of successful ones:
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

    /// Charges failures, whether the client or the server is at fault: 4xx and 5xx, and in gRPC all
    /// but OK.
    #[must_use]
    pub fn on_failure() -> Self {
        Self::status(|status| status.is_client_error() || status.is_server_error())
    }

    /// Charges all but failures of the server: 5xx are given back, and in gRPC their counterparts
    /// (UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS).
    #[must_use]
    pub fn unless_server_error() -> Self {
        Self::status(|status| !status.is_server_error())
    }

    /// Charges responses with one of these statuses. A gRPC status counts as the HTTP status that
    /// `google.rpc.Code` lists for it: UNAUTHENTICATED is 401.
    #[must_use]
    pub fn on_status(statuses: impl Into<Vec<StatusCode>>) -> Self {
        let statuses = statuses.into();
        if statuses.is_empty() {
            return Self(Which::Nothing);
        }
        Self::status(move |status| statuses.contains(&status))
    }

    /// Charges the responses for whose head this is true. In gRPC, the status of a call that has
    /// sent messages is in the trailers, and not in the head.
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

    /// Tells whether a response is charged; `None` if its trailers decide.
    pub(super) fn is_charged(&self, head: &Parts) -> Option<bool> {
        match &self.0 {
            Which::All => Some(true),
            Which::Nothing => Some(false),
            Which::Head(is_charged) => Some(is_charged(head)),
            Which::Status(is_charged) => status::of(head).map(|status| is_charged(status)),
        }
    }

    /// Tells whether a response that has ended like this is charged. If its status is unknown, it
    /// is.
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

/// The source of the actual cost of a request in its response.
///
/// The cost that the policy charges before is then an estimate, which is reserved and corrected:
/// down, or up into debt.
///
/// # Examples
///
/// A budget of tokens for a language model, which reports afterwards how many it has used:
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
    /// Reads the cost in a header, as a whole number. Without such a header, the estimate stays.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(How::Header(name))
    }

    /// Counts the bytes of the body as they are sent. A client that leaves pays for the bytes that
    /// were sent.
    #[must_use]
    pub const fn body_bytes() -> Self {
        Self(How::BodyBytes)
    }

    /// Uses the cost that the service reports by [`Usage`](super::Usage), until the body of the
    /// response has ended or is dropped. If it reports nothing, the estimate stays. If the request
    /// is dropped before there is a response, the cost is at least the estimate.
    #[must_use]
    pub const fn reported() -> Self {
        Self(How::Reported)
    }

    /// Computes the cost from the head of the response; `None` leaves the estimate.
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

    /// Tells whether the cost is known only when the body has ended.
    pub(super) const fn is_at_the_end(&self) -> bool {
        self.is_by_body() || self.is_reported()
    }

    /// Returns the cost if the head determines it.
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
