//! Events on the current span.

use super::{Event, Observer};

/// Records denials as `tracing` events on the current span: at level `INFO`, target `tollgate`.
///
/// The field `enforced` is false where a denial was only watched. Allowed events are recorded at level `TRACE`, so they cost a check of the level only.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

impl Observer for TracingObserver {
    fn decided(&self, event: &Event<'_>) {
        let Event { name, verb, decision, is_enforced } = *event;
        if decision.is_allowed() {
            tracing::trace!(
                target: "tollgate",
                limiter = name,
                verb = verb.name(),
                cost = decision.cost(),
                remaining = decision.remaining(),
                enforced = is_enforced,
                "allowed"
            );
        } else {
            let retry_after_ns =
                decision.retry_after(decision.at()).map(|wait| wait.as_nanos() as u64);
            tracing::info!(
                target: "tollgate",
                limiter = name,
                verb = verb.name(),
                cost = decision.cost(),
                limit = decision.limit(),
                retry_after_ns,
                never = decision.is_never(),
                enforced = is_enforced,
                "denied"
            );
        }
    }
}
