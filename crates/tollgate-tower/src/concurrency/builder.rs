//! How a layer is put together, and what is wrong with it.

use super::{
    ConcurrencyLayer,
    shared::{Hook, SharedLimit, Slots},
};
use crate::{
    answer::{Body, Headers, Label, LabelError, Refusal, Unit, Verdict},
    key::KeyError,
    misuse::Hints,
    queued,
    watch::Watching,
};
use bytes::Bytes;
use http::Response;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{Clock, Quota, watch::Observer};

/// Builds a [`ConcurrencyLayer`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyLayerBuilder {
    slots: Slots,
    name: Option<String>,
    max_wait: Option<Duration>,
    retry_after: Option<Duration>,
    refusal: Option<Refusal>,
    headers: Headers,
    body: Body,
    hook: Option<Hook>,
    watching: Watching,
}

impl ConcurrencyLayerBuilder {
    pub(super) fn new(slots: Slots) -> Self {
        Self {
            slots,
            name: None,
            max_wait: None,
            retry_after: None,
            refusal: None,
            headers: Headers::new(),
            body: Body::Problem,
            hook: None,
            watching: Watching::default(),
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
    /// Without a tokio runtime that has timers nobody waits either: whoever would have to is refused.
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

    /// Sets why clients are refused when all slots are taken.
    ///
    /// By default this is [`Refusal::ReducedCapacity`] (503) where all share one limit, which is not
    /// the fault of the client, and [`Refusal::QuotaExceeded`] (429) where each key has a limit: it
    /// has its share. When the limit is closed, or too many keys are in use, it is 503 all the same.
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(refusal);
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

    /// Tells an observer of each decision, under the name of the limit; called several times, of all
    /// of them.
    ///
    /// Who finds no slot is denied for now, and told of with a wait of zero unless
    /// [`retry_after`](Self::retry_after) is set; by a closed limit one is denied for ever. Whoever
    /// waits is told of when the wait is over. That nobody knows whom to count is no decision.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.watching.observer(observer);
        self
    }

    /// Counts decisions through the `metrics` facade, as `tollgate_decisions_total` and
    /// `tollgate_permits_total`, and requests that were refused because nobody knows whom to count,
    /// as `tollgate_no_key_total`.
    ///
    /// The labels are the name of the limit and the outcome, never anything of a request. The
    /// recorder must be installed before the layer is built.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.watching.metrics();
        self
    }

    /// Records refusals as events on the current span, at level `INFO` and with the target
    /// `tollgate`; those who pass at level `TRACE`.
    pub fn span_events(mut self) -> Self {
        self.watching.span_events();
        self
    }

    /// Writes a line into the log (`tracing`, level `WARN`, target `tollgate`) for a refusal, at most
    /// one in this time; it says how many were left out. Zero is a line for each.
    pub fn log_denials(mut self, every: Duration) -> Self {
        self.watching.log_denials(every);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`ConcurrencyLayerError`] names what is wrong and a way out.
    pub fn build(self) -> Result<ConcurrencyLayer, ConcurrencyLayerError> {
        let Self { slots, name, max_wait, retry_after, refusal, headers, body, hook, watching } =
            self;
        if max_wait.is_some_and(|longest| longest.is_zero()) {
            return Err(ConcurrencyLayerError::ZeroWait);
        }
        if max_wait.is_some() {
            queued::has_queue();
        }
        if refusal == Some(Refusal::Forbidden) {
            return Err(ConcurrencyLayerError::Forbidden);
        }
        let (own, limit, usual) = match &slots {
            Slots::All(limit) => {
                if max_wait.is_some() && limit.max_waiting() == 0 {
                    return Err(ConcurrencyLayerError::NoQueue);
                }
                (limit.name(), limit.limit(), Refusal::ReducedCapacity)
            }
            Slots::Each(limit, key) => {
                key.check().map_err(ConcurrencyLayerError::Key)?;
                (limit.name(), limit.limit(), Refusal::QuotaExceeded)
            }
        };
        let own = if own.is_empty() { "concurrency" } else { own };
        let name = name.unwrap_or_else(|| own.into());
        // The limit may change later: clients are told the one in force.
        let label = Label::builder(&*name, Quota::once(limit)).unit(Unit::ConcurrentRequests);
        let label = label.build().map_err(ConcurrencyLayerError::Label)?;
        let (clock, refusal) = (Clock::monotonic(), refusal.unwrap_or(usual));
        let (watch, hints) = (watching.ready(&clock, std::iter::once(&*name)), Hints::default());
        Ok(ConcurrencyLayer {
            shared: Arc::new(SharedLimit {
                slots,
                label,
                max_wait,
                retry_after,
                refusal,
                headers,
                body,
                hook,
                clock,
                watch,
                hints,
            }),
        })
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

    /// Returns where the documentation tells more.
    #[must_use]
    pub const fn docs(&self) -> &'static str {
        match self {
            Self::NoQueue => docs!("http.md#tg-r01"),
            Self::ZeroWait => docs!("http.md#tg-r02"),
            Self::Forbidden => docs!("http.md#tg-r03"),
            Self::Key(error) => error.docs(),
            Self::Label(_) => docs!("http.md#tg-r04"),
        }
    }
}

impl fmt::Display for ConcurrencyLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str(
                "`max_wait` is set, but `max_waiting` of the limit is 0, so no request can wait; \
                 raise `max_waiting`, or leave out `max_wait`",
            )?,
            Self::ZeroWait => {
                f.write_str("`max_wait` is 0 s; leave it out to deny requests at once")?
            }
            Self::Forbidden => f.write_str(
                "the refusal `Forbidden` says that a client may never pass, but slots become free; \
                 use `ReducedCapacity` or `QuotaExceeded`",
            )?,
            Self::Key(error) => return error.fmt(f),
            Self::Label(error) => error.say(f)?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for ConcurrencyLayerError {}
