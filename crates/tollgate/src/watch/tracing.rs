//! Events on the current span.

use super::{Event, KeyForm, Observer};

/// Records denials as `tracing` events on the current span: at level `INFO`, target `tollgate`.
///
/// Fields: `limiter`, `verb`, `cost`, `limit`, `remaining`, `enforced` (false where a denial was only
/// watched); of a denial also `quota`, `retry_after_ns`, `never`, and `key` if it is
/// [shown](Self::show_key). Admissions are recorded at level `TRACE`, so they cost a check of the
/// level only.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver {
    key_form: Option<KeyForm>,
}

impl TracingObserver {
    /// Returns an observer that shows no keys.
    #[must_use]
    pub const fn new() -> Self {
        Self { key_form: None }
    }

    /// Adds the key to the events of denials, by default not: keys are often personal data.
    #[must_use]
    pub const fn show_key(mut self, form: KeyForm) -> Self {
        self.key_form = Some(form);
        self
    }
}

impl Observer for TracingObserver {
    fn decided(&self, event: &Event<'_>) {
        let Event { name, verb, decision, is_enforced, .. } = *event;
        if decision.is_allowed() {
            tracing::trace!(
                target: "tollgate",
                limiter = name,
                verb = verb.name(),
                cost = decision.cost(),
                limit = decision.limit(),
                remaining = decision.remaining(),
                enforced = is_enforced,
                "allowed"
            );
        } else if tracing::enabled!(target: "tollgate", tracing::Level::INFO) {
            let retry_after_ns =
                decision.retry_after(decision.at()).map(|wait| wait.as_nanos() as u64);
            tracing::info!(
                target: "tollgate",
                limiter = name,
                verb = verb.name(),
                cost = decision.cost(),
                limit = decision.limit(),
                remaining = decision.remaining(),
                quota = event.quota().map(tracing::field::display),
                key = event.key.zip(self.key_form).map(|(key, form)| key.text(form)),
                retry_after_ns,
                never = decision.is_never(),
                enforced = is_enforced,
                "denied"
            );
        }
    }
}
