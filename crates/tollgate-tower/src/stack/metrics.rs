//! The state of a stack through the `metrics` facade.
//!
//! The only labels are the stack's name and the names of parts, which are fixed when it is built.

use super::{observe::number, parts::Parts};
use metrics::{Counter, Gauge, counter, gauge};
use tollgate::RetryBudget;

/// The metrics of one stack. Parts that it does not have get none.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) answered: Counter,
    pub(super) timed_out: Counter,
    pub(super) failed: Counter,
    /// By the number of the part.
    pub(super) refused: Vec<Counter>,
    fallbacks: Option<Counter>,
    breaker: Option<(Gauge, Counter)>,
    retries: Option<Counter>,
    hedges: Option<Counter>,
    budget: Option<(Gauge, Counter)>,
    throttle: Option<Gauge>,
    /// In the order of the stack's limits.
    limits: Vec<LimitGauges>,
}

#[derive(Debug)]
struct LimitGauges {
    limit: Gauge,
    in_flight: Gauge,
    waiting: Gauge,
}

impl Metrics {
    pub(super) fn new(parts: &Parts, names: &[&'static str]) -> Self {
        let stack = || parts.name.to_string();
        let calls = |result: &'static str| counter!("tollgate_stack_calls_total", "stack" => stack(), "result" => result);
        let refused = |part: &&'static str| counter!("tollgate_stack_refusals_total", "stack" => stack(), "part" => *part);
        let limit = |part: &'static str| LimitGauges {
            limit: gauge!("tollgate_stack_limit", "stack" => stack(), "part" => part),
            in_flight: gauge!("tollgate_stack_in_flight", "stack" => stack(), "part" => part),
            waiting: gauge!("tollgate_stack_waiting", "stack" => stack(), "part" => part),
        };
        Self {
            answered: calls("answered"),
            timed_out: calls("timed_out"),
            failed: calls("failed"),
            refused: names.iter().map(refused).collect(),
            fallbacks: parts
                .fallback
                .as_ref()
                .map(|_| counter!("tollgate_stack_fallbacks_total", "stack" => stack())),
            breaker: parts.one_breaker().map(|_| {
                (
                    gauge!("tollgate_stack_breaker_state", "stack" => stack()),
                    counter!("tollgate_stack_breaker_opened_total", "stack" => stack()),
                )
            }),
            retries: parts
                .retry
                .as_ref()
                .map(|_| counter!("tollgate_stack_retries_total", "stack" => stack())),
            hedges: parts
                .hedge
                .as_ref()
                .map(|_| counter!("tollgate_stack_hedges_total", "stack" => stack())),
            budget: parts.budget().map(|_| {
                (
                    gauge!("tollgate_stack_budget", "stack" => stack()),
                    counter!("tollgate_stack_budget_refused_total", "stack" => stack()),
                )
            }),
            throttle: parts
                .throttle
                .as_ref()
                .map(|_| gauge!("tollgate_stack_throttle_probability", "stack" => stack())),
            limits: parts.limits.keys().map(|part| limit(part)).collect(),
        }
    }

    /// Brings everything up to date that the parts count themselves.
    pub(super) fn publish(&self, parts: &Parts) {
        if let (Some(fallbacks), Some(used)) = (&self.fallbacks, &parts.fallback) {
            fallbacks.absolute(used());
        }
        if let (Some((state, opened)), Some(breaker)) = (&self.breaker, parts.one_breaker()) {
            state.set(number(breaker.state()));
            opened.absolute(breaker.counts().opened);
        }
        if let (Some(retries), Some(policy)) = (&self.retries, &parts.retry) {
            retries.absolute(policy.counts().retries);
        }
        if let (Some(hedges), Some(policy)) = (&self.hedges, &parts.hedge) {
            hedges.absolute(policy.counts().hedges);
        }
        if let (Some((balance, refused)), Some(budget)) = (&self.budget, parts.budget()) {
            balance.set(RetryBudget::balance(budget) as f64);
            refused.absolute(budget.refused());
        }
        if let (Some(gauge), Some(probability)) = (&self.throttle, parts.throttle_probability()) {
            gauge.set(probability);
        }
        for (gauges, report) in self.limits.iter().zip(parts.limit_reports()) {
            gauges.limit.set(report.limit as f64);
            gauges.in_flight.set(report.in_flight as f64);
            gauges.waiting.set(report.waiting as f64);
        }
    }
}
