//! The parts of a stack: settings and reasons for `explain`, and clones that show state.

use super::StackError;
use crate::{
    BreakerLayer, RateLimitLayer, TimeoutLayer, client::PaceLayer, concurrency::LimitHandle,
};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tollgate::{Breaker, RetryPolicy, hedge::HedgePolicy, self_throttle::SelfThrottle};

/// How often a fallback was used.
pub(super) type Used = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The parts of a stack, by the place of each.
pub(super) struct Parts {
    pub(super) name: Box<str>,
    pub(super) kind: &'static str,
    /// The name of the innermost timeout.
    pub(super) attempt_name: &'static str,
    lines: BTreeMap<u8, Line>,
    pub(super) fallback: Option<Used>,
    pub(super) rate_limit: Option<RateLimitLayer>,
    pub(super) total: Option<TimeoutLayer>,
    pub(super) attempt: Option<TimeoutLayer>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) hedge: Option<HedgePolicy>,
    pub(super) throttle: Option<SelfThrottle>,
    pub(super) pace: Option<PaceLayer>,
    pub(super) breaker: Option<BreakerLayer>,
    /// Limits on calls in flight, by the name of the part.
    pub(super) limits: BTreeMap<&'static str, LimitHandle>,
}

/// One line of `explain`.
struct Line {
    part: &'static str,
    settings: String,
    why: &'static str,
}

impl Parts {
    pub(super) fn new(kind: &'static str, attempt_name: &'static str, name: Box<str>) -> Self {
        Self {
            name,
            kind,
            attempt_name,
            lines: BTreeMap::new(),
            fallback: None,
            rate_limit: None,
            total: None,
            attempt: None,
            retry: None,
            hedge: None,
            throttle: None,
            pace: None,
            breaker: None,
            limits: BTreeMap::new(),
        }
    }

    /// Records a part. `place` counts from the outside.
    pub(super) fn line(
        &mut self,
        place: u8,
        (part, why): (&'static str, &'static str),
        settings: String,
    ) {
        self.lines.insert(place, Line { part, settings, why });
    }

    /// Records a limit on calls in flight; its refusals name this part from now on.
    pub(super) fn limit(
        &mut self,
        place: u8,
        (part, why): (&'static str, &'static str),
        limit: LimitHandle,
    ) {
        limit.name_part(part);
        self.line(place, (part, why), limit.summary());
        self.limits.insert(part, limit);
    }

    /// Returns the breaker, if one breaker serves all calls.
    pub(super) fn one_breaker(&self) -> Option<&Breaker> {
        self.breaker.as_ref().and_then(BreakerLayer::breaker)
    }

    /// Checks the rules that no layer can check alone.
    pub(super) fn check(&self) -> Result<(), StackError> {
        if self.name.is_empty() {
            return Err(StackError::NoName);
        }
        if self.lines.is_empty() {
            return Err(StackError::NoPart);
        }
        let total =
            bound(self.total.as_ref(), ("total timeout", "`total`, `trust_deadline`"), |it| {
                it.total().or(it.reads_deadline().then_some(Duration::MAX))
            })?;
        let attempt = bound(
            self.attempt.as_ref(),
            (self.attempt_name, "`attempt`, `head`, `body_idle`"),
            TimeoutLayer::attempt,
        )?;
        if let (Some(attempt), Some(total)) = (attempt, total)
            && attempt > total
        {
            return Err(StackError::Inverted { attempt, total });
        }
        let budgets = self.retry.as_ref().zip(self.hedge.as_ref());
        match budgets {
            Some((retry, hedge)) if !retry.budget().is_shared_with(hedge.budget()) => {
                Err(StackError::TwoBudgets)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the time that a timeout layer allows at its place.
fn bound(
    layer: Option<&TimeoutLayer>,
    (part, setting): (&'static str, &'static str),
    time: impl Fn(&TimeoutLayer) -> Option<Duration>,
) -> Result<Option<Duration>, StackError> {
    let Some(layer) = layer else { return Ok(None) };
    time(layer).map(Some).ok_or(StackError::Unbounded { part, setting })
}

/// The text of `explain`: a line for each part, from the outside in.
impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} stack `{}`, from the outside in:", self.kind, self.name)?;
        for (number, Line { part, settings, why }) in self.lines.values().enumerate() {
            writeln!(f, "{:2}. {part}: {settings}; {why}", number + 1)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.lines.values().map(|line| line.part).collect::<Vec<_>>();
        f.debug_struct("Parts").field("name", &self.name).field("parts", &parts).finish()
    }
}
