//! How a layer is put together, and what is wrong with it.

use super::{
    ConcurrencyLayer,
    door::{Door, Hook, Slots},
};
use crate::{
    answer::{Body, Headers, Label, LabelError, Refusal, Unit, Verdict},
    key::KeyError,
};
use bytes::Bytes;
use http::Response;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{Clock, Quota};

/// Builds a [`ConcurrencyLayer`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyLayerBuilder {
    slots: Slots,
    name: Option<String>,
    max_wait: Option<Duration>,
    retry_after: Option<Duration>,
    refusal: Refusal,
    headers: Headers,
    body: Body,
    hook: Option<Hook>,
}

impl ConcurrencyLayerBuilder {
    pub(super) fn new(slots: Slots) -> Self {
        Self {
            slots,
            name: None,
            max_wait: None,
            retry_after: None,
            refusal: Refusal::ReducedCapacity,
            headers: Headers::new(),
            body: Body::Problem,
            hook: None,
        }
    }

    /// Sets what clients are told the limit is called, by default the name of the limit, or
    /// "concurrency" if that has none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Waits for a slot, so long at most; by default nobody waits.
    ///
    /// How many may wait is said by the limit (`max_waiting`, which is 0 unless set; for keys this
    /// is not checked). Whoever comes then is refused at once. Places are given in the order of
    /// calls, and the time counts from the call. A client that hangs up leaves the queue when the
    /// server sees it: over HTTP/1 with a large body unread, that may be only when its turn or the
    /// end of its wait has come.
    ///
    /// Outside of a tokio runtime nobody waits either. As with all of tokio's timers, a runtime that
    /// was built without them makes calls that have to wait panic.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = Some(longest);
        self
    }

    /// Tells refused clients to come back after so long; by default they are told no time, since
    /// nobody knows when a slot is free.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Sets why clients are refused when all slots are taken, by default
    /// [`Refusal::ReducedCapacity`]: 503.
    ///
    /// Where the key is the client, [`Refusal::QuotaExceeded`] says that it has its share: 429. When
    /// the limit is closed, or too many keys are in use, it is 503 all the same.
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Sets which headers refused clients are told. Those who pass are told none: what is free now
    /// says nothing about the next moment.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the form of a refusal's body, by default a problem in JSON.
    pub fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// Changes the response to refused requests.
    pub fn refuse_with(
        mut self,
        hook: impl Fn(&Verdict<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`ConcurrencyLayerError`] names what is wrong and a way out.
    pub fn build(self) -> Result<ConcurrencyLayer, ConcurrencyLayerError> {
        let Self { slots, name, max_wait, retry_after, refusal, headers, body, hook } = self;
        if max_wait.is_some_and(|longest| longest.is_zero()) {
            return Err(ConcurrencyLayerError::ZeroWait);
        }
        if refusal == Refusal::Forbidden {
            return Err(ConcurrencyLayerError::Forbidden);
        }
        let (own, limit) = match &slots {
            Slots::All(limit) => {
                if max_wait.is_some() && limit.max_waiting() == 0 {
                    return Err(ConcurrencyLayerError::NoQueue);
                }
                (limit.name(), limit.limit())
            }
            Slots::Each(limit, key) => {
                key.check().map_err(ConcurrencyLayerError::Key)?;
                (limit.name(), limit.limit())
            }
        };
        let own = if own.is_empty() { "concurrency" } else { own };
        let name = name.unwrap_or_else(|| own.into());
        // The limit may change later: clients are told the one in force.
        let label = Label::builder(name, Quota::once(limit)).unit(Unit::ConcurrentRequests);
        let label = label.build().map_err(ConcurrencyLayerError::Label)?;
        let clock = Clock::monotonic();
        let door =
            Door { slots, label, max_wait, retry_after, refusal, headers, body, hook, clock };
        Ok(ConcurrencyLayer { door: Arc::new(door) })
    }
}

impl fmt::Debug for ConcurrencyLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLayerBuilder")
            .field("slots", &self.slots)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}

/// What is wrong with a [`ConcurrencyLayer`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ConcurrencyLayerError {
    /// There is a longest wait, but nobody may wait.
    NoQueue,
    /// The longest wait is zero.
    ZeroWait,
    /// Whoever finds no slot is told that it may never pass.
    Forbidden,
    /// The key cannot be used.
    Key(KeyError),
    /// The name cannot be told.
    Label(LabelError),
}

impl ConcurrencyLayerError {
    /// Returns the code, which never changes: `TG-R01`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoQueue => "TG-R01",
            Self::ZeroWait => "TG-R02",
            Self::Forbidden => "TG-R03",
            Self::Key(error) => error.code(),
            Self::Label(_) => "TG-R04",
        }
    }
}

impl fmt::Display for ConcurrencyLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str(
                "`max_wait` is set, but `max_waiting` of the limit is 0, so nobody can wait; raise \
                 that, or leave out `max_wait`",
            )?,
            Self::ZeroWait => f.write_str(
                "a `max_wait` of 0 s is no wait; leave it out, so that requests are refused at once",
            )?,
            Self::Forbidden => f.write_str(
                "refusal `Forbidden` says that a client may never pass, but a slot comes free; take \
                 `ReducedCapacity` or `QuotaExceeded`",
            )?,
            Self::Key(error) => return error.fmt(f),
            Self::Label(error) => error.fmt(f)?,
        }
        write!(f, " ({})", self.code())
    }
}

impl std::error::Error for ConcurrencyLayerError {}
