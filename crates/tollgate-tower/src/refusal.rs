//! Refusals: which part of a stack refused a call, why, and when to come back.
//!
//! Every layer of this crate that refuses a call answers with a response, so that the error type of
//! the stack stays as it is. [`RefusedBy`] in its extensions shows other layers and callers what
//! happened; [`NotRun`] says that no work was done. [`RefusalFormat`] writes the response.

use crate::{
    Info,
    answer::{Body, Headers, Refusal, Verdict},
};
use bytes::Bytes;
use http::{HeaderMap, Response};
use std::{fmt, sync::Arc, time::Duration};
use tollgate::Clock;

/// A mark on a response (in its extensions): the request was shed before any work was done, so
/// layers that charged for it give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRun;

/// Which part of a stack refused a call, why, and when to come back; in the extensions of the
/// response.
///
/// Layers that learn from responses, such as [`BreakerLayer`](crate::BreakerLayer) and
/// [`AdaptiveLayer`](crate::AdaptiveLayer), ignore a response with this mark: a refusal of another
/// layer says nothing about the service. It never leaves the process.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use tollgate_tower::RefusedBy;
///
/// let mut response = Response::new(());
/// let wait = Some(Duration::from_millis(250));
/// response.extensions_mut().insert(RefusedBy::new("breaker", "a trial call failed", wait));
///
/// let refused = response.extensions().get::<RefusedBy>().ok_or("it was refused")?;
/// assert_eq!((refused.part(), refused.retry_after()), ("breaker", wait));
/// assert_eq!(refused.to_string(), "refused by breaker: a trial call failed; retry after 250ms");
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedBy {
    part: &'static str,
    why: &'static str,
    retry_after: Option<Duration>,
}

impl RefusedBy {
    /// Returns the mark of a refusal. `part` is the name of the layer in lower case, `why` a
    /// sentence without a full stop.
    #[must_use]
    pub const fn new(part: &'static str, why: &'static str, retry_after: Option<Duration>) -> Self {
        Self { part, why, retry_after }
    }

    /// Returns the part that refused: `rate limit`, `concurrency`, `breaker`, `timeout`, `pace`.
    #[must_use]
    pub const fn part(&self) -> &'static str {
        self.part
    }

    /// Returns the reason.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        self.why
    }

    /// Returns how long to wait before a retry, counted from the refusal and exact: `Retry-After`
    /// is the same in whole seconds. `None` if the time is unknown, or no wait helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for RefusedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused by {}: {}", self.part, self.why)?;
        self.retry_after.map_or(Ok(()), |wait| write!(f, "; retry after {wait:?}"))
    }
}

impl std::error::Error for RefusedBy {}

impl Refusal {
    /// Returns the reason for [`RefusedBy`].
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "the quota is used up",
            Self::ReducedCapacity => "the server cannot take more requests",
            Self::AbnormalUsage => "the client is throttled because of unusual usage",
            Self::Forbidden => "the client is not allowed",
            Self::Unidentified => "the request does not identify its sender",
        }
    }
}

/// Changes the response to a refused request.
pub(crate) type RefusalHook =
    Arc<dyn Fn(&Info<'_>, &Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// The form of a layer's refusals.
#[derive(Clone)]
pub(crate) struct RefusalFormat {
    pub(crate) headers: Headers,
    pub(crate) body: Body,
    pub(crate) hook: Option<RefusalHook>,
}

impl Default for RefusalFormat {
    fn default() -> Self {
        Self { headers: Headers::new(), body: Body::Problem, hook: None }
    }
}

impl RefusalFormat {
    /// Writes a refusal, in HTTP or in gRPC; `add` adds headers before the hook sees them.
    pub(crate) fn write(
        &self,
        verdict: &Verdict<'_>,
        info: &Info<'_>,
        add: impl FnOnce(&mut HeaderMap),
    ) -> Response<Bytes> {
        let mut response = if info.is_grpc() {
            self.headers.grpc_response(verdict).map(|()| Bytes::new())
        } else {
            self.headers.response(verdict, self.body)
        };
        add(response.headers_mut());
        match &self.hook {
            Some(hook) => hook(info, verdict, response),
            None => response,
        }
    }

    /// Writes the refusal of a call that did not run, by a part that has no figures to report: 503,
    /// or UNAVAILABLE in gRPC.
    pub(crate) fn write_unavailable(
        &self,
        refused: RefusedBy,
        clock: &Clock,
        info: &Info<'_>,
    ) -> Response<Bytes> {
        let mut verdict = Verdict::new(clock, clock.now(), &[]).refused(Refusal::ReducedCapacity);
        if let Some(wait) = refused.retry_after {
            verdict = verdict.wait_at_least(wait);
        }
        let mut response = self.write(&verdict, info, |_| {});
        response.extensions_mut().insert(NotRun);
        response.extensions_mut().insert(refused);
        response
    }
}

/// Writes the setters of a builder's field `refusals`, a [`RefusalFormat`].
macro_rules! refusal_setters {
    () => {
        /// Sets the headers of the layer's responses, by default `RateLimit` and
        /// `RateLimit-Policy` where there are figures to report.
        pub fn headers(mut self, headers: $crate::answer::Headers) -> Self {
            self.refusals.headers = headers;
            self
        }

        /// Sets the form of a refusal's body, by default a problem in JSON.
        pub fn body(mut self, body: $crate::answer::Body) -> Self {
            self.refusals.body = body;
            self
        }

        /// Changes the response to refused requests.
        pub fn refuse_with(
            self,
            hook: impl Fn(
                &$crate::answer::Verdict<'_>,
                http::Response<bytes::Bytes>,
            ) -> http::Response<bytes::Bytes>
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.refuse_by(move |_, verdict, response| hook(verdict, response))
        }

        /// Does the same as [`refuse_with`](Self::refuse_with) with access to the request, for
        /// example for a page for browsers, and JSON for other clients. The last of both counts.
        pub fn refuse_by(
            mut self,
            hook: impl Fn(
                &$crate::Info<'_>,
                &$crate::answer::Verdict<'_>,
                http::Response<bytes::Bytes>,
            ) -> http::Response<bytes::Bytes>
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.refusals.hook = Some(std::sync::Arc::new(hook));
            self
        }
    };
}

pub(crate) use refusal_setters;
