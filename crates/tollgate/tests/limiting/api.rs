//! The guarantees of the types at compile time.

use std::fmt::Debug;
use tollgate::{
    Algorithm, Backoff, Breaker, BreakerBuilder, BreakerCounts, BreakerState, Bypass, CallOutcome,
    Clock, ConfigError, Decision, Denied, Inherit, Initial, KeyedBreaker, Lease, Limiter,
    LimiterBuilder, ManualClock, Open, OpenReason, Outcome, ParseQuotaError, Pass, Quota,
    QuotaError, Refused, Reservation, RetryBudget, RetryBudgetBuilder, RetryCounts, RetryPolicy,
    RetryPolicyBuilder, ShouldRetry, Tick, TimerId, Trip, adaptive, adaptive::rate, hierarchy,
    observe,
};

fn shared<T: Send + Sync + Debug>() {}
fn value<T: Copy + Send + Sync + Debug + Eq>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn what_observes_is_shareable_and_printable() {
    shared::<observe::DenialLog>();
    shared::<observe::HealthCheck>();
    shared::<observe::Registry>();
    shared::<observe::Report>();
    shared::<observe::StripedCounter>();
    #[cfg(feature = "tracing")]
    shared::<observe::TracingObserver>();
    shared::<observe::WeakCollector>();
    shared::<observe::Snapshot>();
    shared::<observe::WaitHistogram>();
    value::<observe::Health>();
    value::<observe::Counts>();
    value::<observe::Family>();
    value::<observe::KeyForm>();
    error::<observe::RegistryError>();
}

#[test]
fn public_types_are_shareable_and_printable() {
    shared::<Limiter>();
    shared::<LimiterBuilder>();
    shared::<Reservation>();
    shared::<Lease>();
    shared::<Clock>();
    shared::<ManualClock>();
    shared::<Breaker>();
    shared::<BreakerBuilder>();
    shared::<KeyedBreaker<str>>();
    shared::<Pass<'static>>();
    shared::<RetryPolicy>();
    shared::<RetryPolicyBuilder>();
    shared::<RetryBudget>();
    shared::<RetryBudgetBuilder>();
    shared::<hierarchy::StrictTree>();
    shared::<hierarchy::StrictBuilder>();
    shared::<hierarchy::Level>();
    shared::<hierarchy::BorrowingTree>();
    shared::<hierarchy::BorrowingBuilder>();
    shared::<hierarchy::Class>();
    shared::<adaptive::law::Aimd>();
    shared::<adaptive::law::Vegas>();
    shared::<adaptive::law::Gradient2>();
    shared::<adaptive::law::Windowed<adaptive::law::Gradient2>>();
    shared::<adaptive::law::DampedAimd>();
    shared::<adaptive::law::ProbingGradient>();
    value::<adaptive::Sample>();
    value::<adaptive::LimitReason>();
    value::<CallOutcome>();
    shared::<rate::AdaptiveRate>();
    shared::<rate::CurrentPolicy>();
    shared::<rate::ManualCpu>();
    shared::<rate::RateReport>();
    value::<hierarchy::BorrowingDecision>();
    value::<hierarchy::ClassCounts>();
    value::<BreakerState>();
    value::<BreakerCounts>();
    value::<Open>();
    value::<OpenReason>();
    value::<Trip>();
    value::<Backoff>();
    value::<RetryCounts>();
    value::<ShouldRetry>();
    value::<Decision>();
    value::<Quota>();
    value::<Tick>();
    value::<TimerId>();
    value::<Initial>();
    value::<Inherit>();
    value::<Algorithm>();
    value::<Bypass>();
    value::<Outcome>();
    error::<ConfigError>();
    error::<Open>();
    error::<QuotaError>();
    error::<ParseQuotaError>();
    error::<Denied>();
    error::<Refused>();
    error::<adaptive::law::LawError>();
    error::<rate::CpuError>();
    error::<hierarchy::PathError>();
    error::<hierarchy::Unreserved>();
}

#[test]
fn decisions_are_small() {
    assert_eq!(size_of::<Decision>(), 64);
    assert_eq!(size_of::<Limiter>(), 8);
    assert_eq!(size_of::<Option<Limiter>>(), 8);
}

#[test]
fn quotas_are_constants() {
    const API: Quota = Quota::per_second(100).burst(20).initial(Initial::Empty);
    const CHECKED: bool = API.check().is_ok();
    const { assert!(CHECKED) };
    assert_eq!(API.capacity(), 20);
}

#[test]
fn algorithm_names_round_trip() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    assert_eq!("token-bucket".parse(), Ok(Algorithm::Gcra));
    assert_eq!(
        "leaky".parse::<Algorithm>().unwrap_err().to_string(),
        "\"leaky\" is not an algorithm; use one of token-bucket, leaky-bucket, gcra, fixed-window, \
         anchored-window, sliding-counter, sliding-log"
    );
}

#[test]
fn an_algorithm_alone_refuses_what_it_cannot_count() {
    use tollgate::algorithm::{FixedWindow, Gcra, SlidingCounter, SlidingLog};
    let (quota, epoch) = (Quota::unlimited(), std::time::Duration::ZERO);
    let text = "an unlimited quota leaves an algorithm nothing to count; use a limiter, or give a \
                rate";
    assert_eq!(Gcra::new(&quota).unwrap_err().to_string(), text);
    assert_eq!(FixedWindow::aligned(&quota, epoch), Err(QuotaError::NothingToCount));
    assert_eq!(FixedWindow::anchored(&quota, epoch), Err(QuotaError::NothingToCount));
    assert_eq!(SlidingCounter::new(&quota, epoch), Err(QuotaError::NothingToCount));
    assert_eq!(SlidingLog::new(&quota), Err(QuotaError::NothingToCount));
}
