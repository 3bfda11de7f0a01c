//! What a stack knows of a limit on requests in flight.

use super::{shared::SharedLimit, slot::Slots};
use crate::{AdaptiveLayer, ConcurrencyLayer, stack::LimitReport};
use std::{fmt, sync::Arc};
use tollgate::watch::{Collector, Samples, WeakCollector};

/// A limit of a layer, to look at.
pub(crate) struct LimitHandle(Arc<SharedLimit>);

impl LimitHandle {
    pub(super) const fn new(shared: Arc<SharedLimit>) -> Self {
        Self(shared)
    }

    /// Refuses in the name of this part of a stack. A layer in several stacks keeps its first name.
    pub(crate) fn name_part(&self, part: &'static str) {
        let _named = self.0.part.set(part);
    }

    /// Returns the settings in one line.
    pub(crate) fn summary(&self) -> String {
        let (limit, settings) = (self.0.slots.limit(), &self.0.settings);
        let limit = match &self.0.slots {
            Slots::All(_) => format!("{limit} in flight"),
            Slots::Each(keyed, _) => {
                format!("{limit} in flight for each of up to {} keys", keyed.max_keys())
            }
            Slots::Adaptive(adaptive) | Slots::Partitioned(adaptive, _) => {
                format!("as many in flight as the law `{}` finds", adaptive.report().law)
            }
        };
        match (settings.max_wait, self.0.slots.shared()) {
            (None, _) => format!("{limit}, no queue"),
            (Some(longest), None) => format!("{limit}, waits of up to {longest:?}"),
            (Some(longest), Some(shared)) => {
                let most = shared.max_waiting();
                format!("{limit}, a queue of {most} with waits of up to {longest:?}")
            }
        }
    }

    pub(crate) fn report(&self, part: &'static str) -> LimitReport {
        let (in_flight, waiting, reason) = match &self.0.slots {
            Slots::All(limit) => (limit.in_flight(), limit.waiting(), None),
            Slots::Each(limit, _) => (limit.total_in_flight(), limit.total_waiting(), None),
            Slots::Adaptive(limit) | Slots::Partitioned(limit, _) => {
                let report = limit.report();
                (report.in_flight, report.waiting, Some(report.reason))
            }
        };
        LimitReport { part, limit: self.0.slots.limit(), in_flight, waiting, reason }
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitHandle").field(&self.0.slots).finish()
    }
}

impl SharedLimit {
    /// Writes the decisions of the layer, and as a part the limit with its level.
    fn collect(&self, samples: &mut Samples) {
        self.watch.collect(0, samples);
        let limit: &dyn Collector = match &self.slots {
            Slots::All(limit) => limit,
            Slots::Each(limit, _) => limit,
            Slots::Adaptive(limit) | Slots::Partitioned(limit, _) => limit,
        };
        samples.part("slots", limit);
    }
}

impl Collector for LimitHandle {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("concurrency_layer");
        self.0.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.0, Self::new)
    }
}

/// Has the limit as a part.
impl Collector for ConcurrencyLayer {
    fn collect(&self, samples: &mut Samples) {
        self.handle().collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.handle().weak()
    }
}

/// Has the limit as a part.
impl Collector for AdaptiveLayer {
    fn collect(&self, samples: &mut Samples) {
        self.handle().collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.handle().weak()
    }
}
