//! Events on the current span.

use super::{Event, KeyForm, Observer, sampling::Sampling};
use std::sync::Arc;

/// Records denials as `tracing` events on the current span: at level `INFO`, target `tollgate`.
///
/// Fields: `limiter`, `verb`, `cost`, `limit`, `remaining`, `enforced` (false if the request passed all the same
/// because the policy is in trial mode); of a denial also `quota`, `retry_after_ns`, `never`, and `key` if it is
/// [shown](Self::show_key). Admissions are recorded at level `TRACE`, so they cost a check of the
/// level only.
///
/// Clones share what they have [sampled](Self::sample_one_in).
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, Quota, observe::{KeyForm, TracingObserver}};
///
/// let observer = TracingObserver::new().sample_one_in(100).show_key(KeyForm::Hashed);
/// let limiter = Limiter::builder(Quota::per_second(5)).name("api").observer(observer).build()?;
/// # let _ = limiter;
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TracingObserver {
    key_form: Option<KeyForm>,
    /// `None` records each denial.
    sampling: Option<Arc<Sampling>>,
}

impl TracingObserver {
    /// Returns an observer that shows no keys.
    #[must_use]
    pub const fn new() -> Self {
        Self { key_form: None, sampling: None }
    }

    /// Records one denial in `count`: the first, and every `count`-th after it. 0 and 1 record each,
    /// the default. Denials that no subscriber wants are not counted.
    #[must_use]
    pub fn sample_one_in(mut self, count: u64) -> Self {
        self.sampling = Some(Arc::new(Sampling::one_in(count)));
        self
    }

    /// Tells whether this denial is one of the sample.
    fn is_sampled(&self) -> bool {
        self.sampling.as_ref().is_none_or(|sampling| sampling.picks())
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
        } else if tracing::enabled!(target: "tollgate", tracing::Level::INFO) && self.is_sampled() {
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
