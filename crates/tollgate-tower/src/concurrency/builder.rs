//! The builder of both layers.

use super::{
    ConcurrencyLayer, ConcurrencyLayerError, Shedding,
    priority::PrioritySource,
    recent::{Degradation, DegradationHook, Recent},
    shared::{Settings, SharedLimit},
    shed::Shedder,
    slot::Slots,
};
use crate::{
    Info,
    answer::{Label, Refusal, Unit},
    classify::Classify,
    key::Trust,
    misuse::Hints,
    observe::{InstrumentSettings, instrument_setters},
    queued,
    refusal::{RefusalFormat, refusal_setters},
};
use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};
use tollgate::{Priority, Quota};

/// Builds a [`ConcurrencyLayer`] or an [`AdaptiveLayer`](crate::AdaptiveLayer). Settings are
/// validated by `build` only.
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyLayerBuilder<L = ConcurrencyLayer> {
    slots: Slots,
    name: Option<String>,
    refusal: Option<Refusal>,
    pub(super) settings: Settings,
    refusals: RefusalFormat,
    instruments: InstrumentSettings,
    shedding: Vec<Shedding>,
    degradation: Option<DegradationHook>,
    layer: PhantomData<fn() -> L>,
}

impl<L> ConcurrencyLayerBuilder<L> {
    pub(super) fn new(slots: Slots) -> Self {
        let settings = Settings {
            max_wait: None,
            retry_after: None,
            priorities: PrioritySource::default(),
            bypass: None,
            measurement: None,
            has_shedding_header: false,
        };
        Self {
            slots,
            name: None,
            refusal: None,
            settings,
            refusals: RefusalFormat::default(),
            instruments: InstrumentSettings::default(),
            shedding: Vec::new(),
            degradation: None,
            layer: PhantomData,
        }
    }

    /// Enables the measurement that adaptive limits need.
    pub(super) fn adaptive(mut self) -> Self {
        self.settings.measurement = Some(Classify::default());
        // Clients of an overloaded service should not come back at once.
        self.settings.retry_after = Some(Duration::from_secs(1));
        self
    }

    /// Sets the name of the limit in responses, by default the name of the limit itself, or
    /// "concurrency" if it has none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lets a request wait for a slot for at most this time; by default no request waits.
    ///
    /// The limit sets how many may wait (`max_waiting`, 0 by default; for limits per key this is
    /// not checked); further requests are refused at once, or displace a less urgent one. The most
    /// urgent request is served first, and within a priority the one that was called first. The
    /// time counts from the call, by the clock of the limit. A [`Deadline`](crate::Deadline) in
    /// the request's extensions shortens it. A request of a client that hangs up leaves the queue
    /// when the server notices: over HTTP/1 with a large unread body, that may be only when it is
    /// served or its time is over.
    ///
    /// Waiting needs a tokio runtime with timers: without one, a request that would have to wait is
    /// refused.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.settings.max_wait = Some(longest);
        self
    }

    /// Sets the `Retry-After` of refusals. By default an adaptive layer says 1 s, and other layers
    /// say nothing, since it is unknown when a slot comes free.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.settings.retry_after = Some(wait);
        self
    }

    /// Sets the reason that refused clients see when all slots are taken.
    ///
    /// By default this is [`Refusal::ReducedCapacity`] (503) for a limit that all requests share,
    /// which is not the client's fault, and [`Refusal::QuotaExceeded`] (429) for a limit per key.
    /// When the limit is closed, too many keys are in use, or requests are
    /// [shed](Self::shed), it is 503 in any case.
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(refusal);
        self
    }

    refusal_setters!();

    /// Sets a closure that finds the priority of a request.
    ///
    /// If there is no closure, or it returns `None`, the priority is a [`Priority`] in the
    /// request's extensions, else the header of a [trusted peer](Self::trust_priority), else
    /// [`Priority::NORMAL`]. The priority decides who is served first among those who
    /// [wait](Self::max_wait), and who is [shed](Self::shed) first.
    pub fn priority_by(
        mut self,
        priority: impl Fn(&Info<'_>) -> Option<Priority> + Send + Sync + 'static,
    ) -> Self {
        self.settings.priorities.by = Some(Arc::new(priority));
        self
    }

    /// Believes the `Priority` header (RFC 9218: `priority: u=1`), which in gRPC is metadata of
    /// that name, if it comes from these peers. By default no header is read: otherwise every
    /// client could claim to be urgent.
    pub fn trust_priority(mut self, trust: Trust) -> Self {
        self.settings.priorities.trust = Some(trust);
        self
    }

    /// Exempts requests, such as health checks: they take no slot, are never refused, and are not
    /// measured.
    pub fn bypass(mut self, is_exempt: impl Fn(&Info<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.settings.bypass = Some(Arc::new(is_exempt));
        self
    }

    /// Refuses the least urgent requests while the service is under pressure, although there are
    /// slots. Called several times, each of them may refuse.
    pub fn shed(mut self, shedding: Shedding) -> Self {
        self.shedding.push(shedding);
        self
    }

    /// Calls `hook` when the layer has refused more than half of its requests for a minute, and
    /// when that is over: for example, to alert an operator, or to leave a load balancer.
    ///
    /// The layer checks when a request arrives, so it notices a change with the first request after
    /// a minute; each request then takes a short lock.
    pub fn on_degradation(mut self, hook: impl Fn(Degradation) + Send + Sync + 'static) -> Self {
        self.degradation = Some(Arc::new(hook));
        self
    }

    /// Adds the header `tollgate-shedding` to responses while requests are refused: the urgency (0
    /// to 7) of the least urgent request served in the last second.
    ///
    /// Callers and outer proxies that read it can refuse less urgent requests themselves, which
    /// costs less. It reveals your load to strangers, so it is off by default.
    pub fn shedding_header(mut self) -> Self {
        self.settings.has_shedding_header = true;
        self
    }

    instrument_setters!();

    fn check(&self) -> Result<(), ConcurrencyLayerError> {
        use ConcurrencyLayerError::{
            Forbidden, Key, NoQueue, PartitionsWait, ShedNoQueue, ZeroWait,
        };
        let max_wait = self.settings.max_wait;
        if max_wait.is_some_and(|longest| longest.is_zero()) {
            return Err(ZeroWait);
        }
        if max_wait.is_some() && matches!(self.slots, Slots::Partitioned(..)) {
            return Err(PartitionsWait);
        }
        if max_wait.is_some() && self.slots.shared().is_some_and(|limit| limit.max_waiting() == 0) {
            return Err(NoQueue);
        }
        if self.refusal == Some(Refusal::Forbidden) {
            return Err(Forbidden);
        }
        if let Slots::Each(_, key) = &self.slots {
            key.check().map_err(Key)?;
        }
        if let Some(trust) = &self.settings.priorities.trust {
            trust.check("priority".into()).map_err(Key)?;
        }
        for shedding in &self.shedding {
            shedding.check()?;
            if shedding.needs_queue() && max_wait.is_none() {
                return Err(ShedNoQueue);
            }
        }
        Ok(())
    }

    pub(super) fn build_shared(self) -> Result<Arc<SharedLimit>, ConcurrencyLayerError> {
        self.check()?;
        if self.settings.max_wait.is_some() {
            queued::has_queue();
        }
        let (own, usual) = match (&self.slots, self.slots.shared()) {
            (_, Some(limit)) => (limit.name(), Refusal::ReducedCapacity),
            (Slots::Each(limit, _), None) => (limit.name(), Refusal::QuotaExceeded),
            (_, None) => ("", Refusal::QuotaExceeded),
        };
        let own = if own.is_empty() { "concurrency" } else { own };
        let name = self.name.unwrap_or_else(|| own.into());
        // The limit may change later: responses name the one in force.
        let label =
            Label::builder(&*name, Quota::once(self.slots.limit())).unit(Unit::ConcurrentRequests);
        let label = label.build().map_err(ConcurrencyLayerError::Label)?;
        let (clock, refusal) = (self.slots.clock(), self.refusal.unwrap_or(usual));
        let now = clock.now();
        let has_recent = self.degradation.is_some() || self.settings.has_shedding_header;
        Ok(Arc::new(SharedLimit {
            label,
            refusal,
            instruments: self.instruments.ready(&clock, std::iter::once(&*name)),
            hints: Hints::default(),
            shedders: self.shedding.into_iter().map(|rules| Shedder::new(rules, now)).collect(),
            recent: has_recent.then(|| Recent::new(self.degradation, now)),
            part: std::sync::OnceLock::new(),
            slots: self.slots,
            settings: self.settings,
            refusals: self.refusals,
            clock,
        }))
    }
}

impl ConcurrencyLayerBuilder {
    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`ConcurrencyLayerError`] names the fault and a way out.
    pub fn build(self) -> Result<ConcurrencyLayer, ConcurrencyLayerError> {
        self.build_shared().map(|shared| ConcurrencyLayer { shared })
    }
}

impl<L> fmt::Debug for ConcurrencyLayerBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLayerBuilder")
            .field("slots", &self.slots)
            .field("max_wait", &self.settings.max_wait)
            .finish_non_exhaustive()
    }
}
