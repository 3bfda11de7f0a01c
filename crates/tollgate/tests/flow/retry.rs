//! Retries: how many attempts, when, and what stops them. Nothing sleeps: the test moves the clock.

use std::{sync::mpsc, thread, time::Duration};
use tollgate::{
    Backoff, CallOutcome, Clock, ManualClock, RetryBudget, RetryPolicy, RetryPolicyBuilder,
    ShouldRetry, Tick, retry_sync_if,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    RateLimited,
    ServerSays(u64),
    NotFound,
}

fn classify(failure: &Failure) -> ShouldRetry {
    match failure {
        Failure::RateLimited => ShouldRetry::Yes,
        Failure::ServerSays(secs) => ShouldRetry::After(Duration::from_secs(*secs)),
        Failure::NotFound => ShouldRetry::No,
    }
}

/// The record of a run: when each attempt was made, in milliseconds, and the answer.
type Run = (Vec<u64>, Result<u32, Failure>);

fn policy(
    set: impl FnOnce(RetryPolicyBuilder) -> RetryPolicyBuilder,
) -> (RetryPolicy, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = RetryPolicy::builder().backoff(Backoff::exponential(SECOND, 60 * SECOND));
    (set(builder.clock(clock)).build().unwrap(), hand)
}

/// Runs calls whose attempts have these results, and moves the clock to every timer.
fn run_sync(policy: &RetryPolicy, hand: &ManualClock, results: &[Result<u32, Failure>]) -> Run {
    let (sender, times) = mpsc::channel();
    let (mut results, clock) = (Vec::from(results).into_iter(), hand.clock());
    let call = move || {
        sender.send(clock.now().as_nanos() / 1_000_000).unwrap();
        results.next().expect("no more attempts than results")
    };
    let policy = policy.clone();
    let worker = thread::spawn(move || retry_sync_if(&policy, classify, call));
    while !worker.is_finished() {
        match hand.next_timer() {
            Some(due) => hand.set(due),
            None => thread::yield_now(),
        }
    }
    let answer = worker.join().unwrap();
    (times.iter().collect(), answer)
}

const BUSY: Result<u32, Failure> = Err(Failure::RateLimited);

/// Seed 003 (Go): three calls, pauses of one and two seconds, any other error at once.
#[test]
fn three_calls_with_pauses_of_one_and_two_seconds_and_other_errors_at_once() {
    for (results, expected) in [
        (vec![BUSY, BUSY, Ok(1)], (vec![0, 1000, 3000], Ok(1))),
        (vec![BUSY, BUSY, BUSY], (vec![0, 1000, 3000], BUSY)),
        (vec![Err(Failure::NotFound)], (vec![0], Err(Failure::NotFound))),
        (vec![BUSY, Err(Failure::NotFound)], (vec![0, 1000], Err(Failure::NotFound))),
        (vec![Ok(7)], (vec![0], Ok(7))),
    ] {
        let (policy, hand) = policy(|it| it);
        assert_eq!(run_sync(&policy, &hand, &results), expected, "{results:?}");
    }
}

#[test]
fn never_before_the_servers_time() {
    let says = |secs| Err(Failure::ServerSays(secs));
    let fixed = Backoff::fixed(Duration::from_millis(10));
    let (policy, hand) = policy(|it| it.backoff(fixed));
    let run = run_sync(&policy, &hand, &[says(5), says(0), Ok(1)]);
    assert_eq!(run, (vec![0, 5010, 5020], Ok(1)));
    let run = run_sync(&policy, &hand, &[says(31)]);
    assert_eq!((run.1, policy.counts().out_of_time), (says(31), 1), "later than max_elapsed");

    // Full jitter: not before the server's time, and at the latest when max_elapsed is over.
    for seed in 0..20 {
        let jitter = Backoff::full_jitter(20 * SECOND, 20 * SECOND);
        let (policy, hand) = self::policy(|it| it.backoff(jitter).seed(seed));
        let (times, _) = run_sync(&policy, &hand, &[says(20), Ok(1)]);
        assert!((20_000..=30_000).contains(&times[1]), "{times:?}");
    }
}

#[test]
fn a_deadline_ends_it_at_once() {
    let (policy, hand) = policy(|it| it.max_attempts(9));
    let run = run_sync(&policy.until(Tick::from_secs(7)), &hand, &[BUSY, BUSY, BUSY]);
    assert_eq!(run, (vec![0, 1000, 3000], BUSY), "the next would start at the deadline");
    assert_eq!((policy.counts().retries, policy.counts().out_of_time), (2, 1));
    assert_eq!(hand.now(), Tick::from_secs(3), "and nothing waited for it");
}

#[test]
fn a_spent_budget_ends_it_at_once_and_is_counted() {
    let (clock, hand) = Clock::manual();
    let budget = RetryBudget::builder().percent(20).min_per_second(0).clock(clock);
    let budget = budget.build().unwrap();
    let (policy, hand) = {
        let builder = RetryPolicy::builder().backoff(Backoff::fixed(SECOND)).budget(budget.clone());
        (builder.clock(hand.clock()).build().unwrap(), hand)
    };
    assert_eq!(run_sync(&policy, &hand, &[BUSY]), (vec![0], BUSY));
    (0..5).for_each(|_| budget.record(CallOutcome::Success));
    assert_eq!(run_sync(&policy, &hand, &[BUSY, BUSY]), (vec![0, 1000], BUSY));
    assert_eq!((policy.counts().retries, policy.counts().out_of_budget), (1, 2));
    assert_eq!(budget.refused(), 2);
}

#[test]
fn grpc_throttling_stops_at_half_of_the_tokens() {
    let budget = RetryBudget::grpc(10, 0.1).unwrap();
    let (policy, hand) = policy(|it| it.max_attempts(9).budget(budget.clone()));
    let policy = policy.until(Tick::MAX);
    // Tokens 9, 8, 7, 6 allow a retry, 5 do not.
    let (times, _) = run_sync(&policy, &hand, &[BUSY; 5]);
    assert_eq!((times.len(), policy.counts().out_of_budget), (5, 1));
    assert_eq!(run_sync(&policy, &hand, &[Ok(1)]).1, Ok(1));
    // 5.1 allow one again, but its failure leaves 4.1.
    assert!(budget.try_withdraw());
    assert_eq!(run_sync(&policy, &hand, &[BUSY]).0.len(), 1);
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::*;
    use std::cell::RefCell;
    use tollgate::{retry, retry_if};

    #[tokio::test(start_paused = true)]
    async fn a_task_pauses_by_the_clock() {
        let builder = RetryPolicy::builder().backoff(Backoff::exponential(SECOND, 60 * SECOND));
        let policy = builder.clock(Clock::tokio()).build().unwrap();
        let (clock, times) = (policy.clock().clone(), RefCell::new(vec![]));
        let attempt = || async {
            times.borrow_mut().push(clock.now().as_nanos() / 1_000_000_000);
            if times.borrow().len() < 3 { BUSY } else { Ok(3) }
        };
        assert_eq!(retry(&policy, attempt).await, Ok(3));
        assert_eq!(*times.borrow(), [0, 1, 3]);
        let gone = retry_if(&policy, classify, || async { Err::<(), _>(Failure::NotFound) });
        assert_eq!(gone.await, Err(Failure::NotFound));
    }

    #[test]
    fn outside_of_a_runtime_the_first_error_is_the_last_and_costs_nothing() {
        let policy = RetryPolicy::builder().backoff(Backoff::fixed(SECOND)).build().unwrap();
        let (before, mut attempts) = (policy.budget().balance(), 0);
        let mut future = Box::pin(retry(&policy, || {
            attempts += 1;
            async { BUSY }
        }));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let poll = future.as_mut().poll(&mut context);
        assert_eq!(poll, std::task::Poll::Ready(BUSY));
        drop(future);
        assert_eq!((attempts, policy.budget().balance()), (1, before));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_future_makes_no_further_attempt() {
        let policy = RetryPolicy::builder().backoff(Backoff::fixed(SECOND)).clock(Clock::tokio());
        let (policy, attempts) = (policy.build().unwrap(), RefCell::new(0));
        let call = retry(&policy, || {
            *attempts.borrow_mut() += 1;
            async { BUSY }
        });
        assert!(tokio::time::timeout(SECOND / 2, call).await.is_err());
        assert!(tokio::time::timeout(10 * SECOND, std::future::pending::<()>()).await.is_err());
        assert_eq!(*attempts.borrow(), 1);
    }
}
