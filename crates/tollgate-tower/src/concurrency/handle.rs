//! The view that a stack has of a limit on requests in flight.

use super::{ConcurrencyLimit, shared::SharedLimit, slot::Slots};
use crate::{AdaptiveLayer, ConcurrencyLayer, LayerCounts, stack::LimitReport};
use std::{fmt, sync::Arc};
use tollgate::observe::{Collector, Health, Samples, WeakCollector};
use tower_layer::Layer;

/// A limit of a layer, for reading its state.
pub(crate) struct LimitHandle(Arc<SharedLimit>);

impl LimitHandle {
    pub(super) const fn new(shared: Arc<SharedLimit>) -> Self {
        Self(shared)
    }

    /// Makes refusals name this part of a stack. A layer in several stacks keeps its first name.
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
        self.instruments.collect(0, samples);
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

/// The methods that the two layers share: all but their builders.
macro_rules! layers {
    ($($layer:ident)*) => {$(
        impl $layer {
            /// Returns what happened to the requests of the layer; decisions if it was built with
            /// [`counted`](crate::ConcurrencyLayerBuilder::counted). Shed requests are denied ones.
            #[must_use]
            pub fn counts(&self) -> LayerCounts {
                self.shared.instruments.counts(0).unwrap_or_default()
            }

            /// Tells whether the layer refuses nearly every request: at least 100 decisions over at least 10 s,
            /// of which 95 % were refusals. Unknown unless the layer was built with
            /// [`counted`](crate::ConcurrencyLayerBuilder::counted).
            #[must_use]
            pub fn health(&self) -> Health {
                self.shared.instruments.health(0).unwrap_or(Health::Unknown)
            }

            pub(crate) fn handle(&self) -> LimitHandle {
                LimitHandle::new(Arc::clone(&self.shared))
            }
        }

        impl<S> Layer<S> for $layer {
            type Service = ConcurrencyLimit<S>;

            fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
                ConcurrencyLimit { inner, shared: Arc::clone(&self.shared) }
            }
        }

        impl fmt::Debug for $layer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($layer)).field(&self.shared.slots).finish()
            }
        }

        /// Has the limit as a part.
        impl Collector for $layer {
            fn collect(&self, samples: &mut Samples) {
                self.handle().collect(samples);
            }

            fn weak(&self) -> WeakCollector {
                self.handle().weak()
            }
        }
    )*};
}

layers!(ConcurrencyLayer AdaptiveLayer);
