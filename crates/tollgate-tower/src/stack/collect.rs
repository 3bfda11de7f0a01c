//! The metrics of a stack.

use super::{
    ClientStack, ServerStack, StackHandle,
    observe::{PARTS, State},
};
use crate::observe::metric;
use std::sync::Arc;
use tollgate::observe::{Collector, Samples, WeakCollector};

impl State {
    /// Writes the counts of results, and the metrics of every part.
    fn collect(&self, samples: &mut Samples) {
        let (counts, parts) = (self.counts(), &self.parts);
        samples.kind(if parts.kind == "client" { "client_stack" } else { "server_stack" });
        for (result, count) in [
            ("answered", counts.answered),
            ("timed_out", counts.timed_out),
            ("failed", counts.failed),
        ] {
            samples.count_by(&metric::STACK_CALLS, result, count);
        }
        for (part, count) in PARTS.into_iter().zip(self.refused()) {
            samples.count_by(&metric::STACK_REFUSALS, part, count);
        }
        if parts.fallback.is_some() {
            samples.count(&metric::FALLBACKS, counts.degraded);
        }
        let mut part = |name: &str, collector: Option<&dyn Collector>| {
            collector.into_iter().for_each(|it| samples.part(name, it));
        };
        part("total timeout", parts.total.as_ref().map(|it| it as _));
        part("rate limit", parts.rate_limit.as_ref().map(|it| it as _));
        part("retry", parts.retry.as_ref().map(|it| it as _));
        part("hedge", parts.hedge.as_ref().map(|it| it as _));
        part("self-throttle", parts.throttle.as_ref().map(|it| it as _));
        part("pace", parts.pace.as_ref().map(|it| it as _));
        part("breaker", parts.breaker.as_ref().map(|it| it as _));
        for (name, limit) in &parts.limits {
            part(name, Some(limit));
        }
        part(parts.attempt_name, parts.attempt.as_ref().map(|it| it as _));
    }
}

/// Reports the counts of results, and has every part of the stack as a part.
impl Collector for StackHandle {
    fn collect(&self, samples: &mut Samples) {
        self.state.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.state, |state: Arc<_>| Self { state })
    }
}

/// Reports the same as its [`StackHandle`].
impl<L> Collector for ClientStack<L> {
    fn collect(&self, samples: &mut Samples) {
        self.handle().collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.handle().weak()
    }
}

/// Reports the same as its [`StackHandle`].
impl<L> Collector for ServerStack<L> {
    fn collect(&self, samples: &mut Samples) {
        self.handle().collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.handle().weak()
    }
}
