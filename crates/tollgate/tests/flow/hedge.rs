//! Hedges: when one is sent, whose answer counts, and what stops them. Tokio's clock is paused.
#![cfg(feature = "tokio")]

use proptest::prelude::*;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};
use tokio::time::timeout;
use tollgate::{
    Breaker, CallOutcome, Clock, Concurrency, ConfigError, RetryBudget, Tick, hedge,
    hedge::{HedgePolicy, HedgePolicyBuilder, HedgedAttempts, HedgedCall},
};

const DELAY: Duration = ms(50);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn after_50_ms() -> HedgePolicyBuilder {
    HedgePolicy::after(DELAY).clock(Clock::tokio())
}

/// The course of an attempt: it takes this many milliseconds, and then succeeds or fails.
type Script = (u64, bool);

/// The result of a call.
#[derive(Debug, PartialEq)]
struct Run {
    /// The number of the attempt whose answer was returned, from 1 on.
    answer: Result<usize, usize>,
    at_ms: u64,
    starts: Vec<u64>,
}

/// Counts the live instances.
struct Alive(Rc<Cell<usize>>);

impl Alive {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn wait(length: Duration) {
    let _over = timeout(length, std::future::pending::<()>()).await;
}

async fn run(policy: &HedgePolicy, scripts: &[Script]) -> Run {
    let clock = policy.clock();
    let began = clock.now();
    let since = || u64::try_from(clock.now().since(began).as_millis()).unwrap();
    let (starts, alive) = (RefCell::new(Vec::new()), Rc::new(Cell::new(0)));
    let answer = hedge(policy, || {
        let number = starts.borrow().len() + 1;
        starts.borrow_mut().push(since());
        let (takes_ms, succeeds) = scripts[number - 1];
        let guard = Alive::new(&alive);
        async move {
            let _guard = guard;
            wait(ms(takes_ms)).await;
            if succeeds { Ok(number) } else { Err(number) }
        }
    })
    .await;
    assert_eq!(alive.get(), 0, "all attempts are gone before the answer is seen");
    let at_ms = since();
    Run { answer, at_ms, starts: starts.into_inner() }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_sent_again_and_the_first_success_counts() {
    let one = || after_50_ms().build().unwrap();
    let two = || after_50_ms().max_hedges(2).build().unwrap();
    let any = || after_50_ms().first_answer_wins().build().unwrap();
    let (ok, fails) = (true, false);
    for (row, (policy, scripts, answer, at_ms, starts)) in [
        (one(), vec![(10, ok)], Ok(1), 10, vec![0]),
        (one(), vec![(50, ok)], Ok(1), 50, vec![0]), // not longer than the delay
        (one(), vec![(100, ok), (20, ok)], Ok(2), 70, vec![0, 50]),
        (one(), vec![(60, ok), (20, ok)], Ok(1), 60, vec![0, 50]),
        (one(), vec![(10, fails)], Err(1), 10, vec![0]), // a failure is left to retries
        (one(), vec![(60, fails), (30, ok)], Ok(2), 80, vec![0, 50]),
        (one(), vec![(90, ok), (20, fails)], Ok(1), 90, vec![0, 50]),
        (one(), vec![(100, fails), (10, fails)], Err(1), 100, vec![0, 50]),
        (one(), vec![(60, fails), (60, fails)], Err(1), 110, vec![0, 50]),
        (any(), vec![(60, fails), (30, ok)], Err(1), 60, vec![0, 50]),
        (any(), vec![(90, ok), (20, fails)], Err(2), 70, vec![0, 50]),
        (two(), vec![(500, ok), (500, ok), (10, ok)], Ok(3), 110, vec![0, 50, 100]),
        (two(), vec![(60, fails), (500, ok), (10, ok)], Ok(3), 110, vec![0, 50, 100]),
        (two(), vec![(60, fails), (20, fails)], Err(1), 70, vec![0, 50]),
    ]
    .into_iter()
    .enumerate()
    {
        let expected = Run { answer, at_ms, starts };
        assert_eq!(run(&policy, &scripts).await, expected, "row {row}: {scripts:?}");
        let hedges = expected.starts.len() as u64 - 1;
        let wins = u64::from(matches!(expected.answer, Ok(2..) | Err(2..)));
        let counts = policy.counts();
        assert_eq!((counts.calls, counts.hedges, counts.wins), (1, hedges, wins), "row {row}");
    }
}

/// Goes from event to event, and looks at every attempt each time.
fn model(scripts: &[Script], delay_ms: u64, max_hedges: usize) -> Run {
    let (mut starts, mut failed) = (vec![0], Vec::new());
    for now in 0.. {
        for (index, start) in starts.clone().into_iter().enumerate() {
            let (takes_ms, succeeds) = scripts[index];
            if start + takes_ms == now && succeeds {
                return Run { answer: Ok(index + 1), at_ms: now, starts };
            }
            if start + takes_ms == now {
                failed.push(index + 1);
            }
        }
        if failed.len() == starts.len() {
            let first = *failed.iter().min().unwrap();
            return Run { answer: Err(first), at_ms: now, starts };
        }
        if starts.len() <= max_hedges && now == starts.len() as u64 * delay_ms {
            starts.push(now);
        }
    }
    unreachable!("attempts end");
}

proptest! {
    #[test]
    fn every_call_goes_as_in_a_model_that_steps_through_time(
        scripts in prop::collection::vec((1_u64..120, any::<bool>()), 5),
        delay_ms in 1_u64..60,
        max_hedges in 1_u32..5,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let found = runtime.block_on(async {
            let policy = HedgePolicy::after(ms(delay_ms)).max_hedges(max_hedges);
            run(&policy.clock(Clock::tokio()).build().unwrap(), &scripts).await
        });
        prop_assert_eq!(found, model(&scripts, delay_ms, max_hedges as usize));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_may_be_dropped_at_any_time() {
    for cancelled_after in [0, 20, 50, 70, 99, 100, 130] {
        let policy = after_50_ms().max_hedges(2).build().unwrap();
        let alive = Rc::new(Cell::new(0));
        let call = hedge(&policy, || {
            let guard = Alive::new(&alive);
            async move {
                let _guard = guard;
                std::future::pending::<Result<(), ()>>().await
            }
        });
        assert!(timeout(ms(cancelled_after), call).await.is_err());
        assert_eq!(alive.get(), 0, "after {cancelled_after} ms");
    }
}

const SLOW: [Script; 2] = [(100, true), (10, true)];

#[tokio::test(start_paused = true)]
async fn hedges_draw_from_the_budget_that_successes_fill() {
    let budget = RetryBudget::builder().percent(50).min_per_second(0).clock(Clock::tokio());
    let budget = budget.build().unwrap();
    let policy = after_50_ms().budget(budget.clone()).build().unwrap();
    assert_eq!(run(&policy, &SLOW).await.starts, [0], "an empty budget");
    assert_eq!(run(&policy, &SLOW).await.starts, [0], "half a hedge");
    assert_eq!(run(&policy, &SLOW).await.starts, [0, 50]);
    assert_eq!(policy.counts().out_of_budget, 2);
    assert_eq!(run(&policy, &[(1, false)]).await.at_ms, 1);
    assert_eq!(run(&policy, &SLOW).await.starts, [0], "a failure adds nothing");

    // A retry policy fills the budget that it shares.
    let before = budget.balance();
    let policy = after_50_ms().shared_budget(budget.clone()).build().unwrap();
    for _ in 0..10 {
        run(&policy, &[(1, true)]).await;
    }
    assert_eq!(budget.balance(), before);
    budget.record(CallOutcome::Success);
    budget.record(CallOutcome::Success);
    assert_eq!(run(&policy, &SLOW).await.starts, [0, 50]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_hedged_while_the_breaker_is_not_closed() {
    let breaker = Breaker::builder().clock(Clock::tokio()).build().unwrap();
    let policy = after_50_ms().breaker(&breaker).build().unwrap();
    assert_eq!(run(&policy, &SLOW).await.starts, [0, 50]);
    breaker.trip_for(ms(1));
    assert_eq!(run(&policy, &SLOW).await.starts, [0], "open");
    let trial = breaker.try_pass().unwrap();
    assert_eq!(run(&policy, &SLOW).await.starts, [0], "half-open");
    drop(trial);
    breaker.automatic();
    assert_eq!(run(&policy, &SLOW).await.starts, [0, 50]);
    assert_eq!(policy.counts().breaker_not_closed, 2);
    assert_eq!(policy.budget().refused(), 0, "and the budget is not asked");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_hedged_while_the_limit_is_full() {
    let limit = Concurrency::new(2).unwrap();
    let policy = after_50_ms().concurrency(&limit).build().unwrap();
    let first = limit.try_acquire().unwrap();
    assert_eq!(run(&policy, &SLOW).await.starts, [0, 50]);
    let second = limit.try_acquire().unwrap();
    assert_eq!(run(&policy, &SLOW).await.starts, [0]);
    assert_eq!(policy.counts().limit_full, 1);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn no_hedge_starts_at_or_after_the_deadline() {
    let policy = after_50_ms().build().unwrap();
    let until = |wait| policy.until(policy.clock().now().saturating_add(wait));
    assert_eq!(run(&until(ms(50)), &SLOW).await.starts, [0]);
    assert_eq!(run(&until(ms(51)), &SLOW).await.starts, [0, 50]);
}

#[test]
fn without_a_runtime_a_call_is_made_once() {
    let far = HedgePolicy::after(Duration::from_secs(3600)).build().unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut call = HedgedCall::new(&far, std::future::pending::<()>());
    let next = || Some(std::future::pending());
    assert!(call.poll_with(&mut context, next, |()| CallOutcome::Success).is_pending());
    assert_eq!(far.counts().hedges, 0);
}

/// Draws from a log-normal distribution with a median of 20 ms; 3 % of the calls take ten times as long.
fn latency(random: &mut fastrand::Rng) -> Duration {
    let (u, v) = (1.0 - random.f64(), random.f64());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let factor = if random.f64() < 0.03 { 10.0 } else { 1.0 };
    Duration::from_secs_f64(0.020 * (0.3 * normal).exp() * factor)
}

/// Makes calls one after the other; returns the 99th percentile in milliseconds, and the share of
/// hedged calls.
fn simulate(policy: HedgePolicyBuilder) -> (f64, f64) {
    let (clock, hand) = Clock::manual();
    let policy = policy.clock(clock).build().unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..20_000 {
        let began = hand.now();
        let first_ends = began.saturating_add(latency(&mut random));
        let mut attempts = policy.start(began);
        let due = attempts.next_due().filter(|due| *due < first_ends);
        let hedge_ends = due.and_then(|due| {
            hand.set(due);
            let is_sent = policy.try_hedge(&mut attempts, due);
            is_sent.then(|| due.saturating_add(latency(&mut random)))
        });
        let (number, ends) = match hedge_ends.filter(|ends| *ends < first_ends) {
            Some(ends) => (1, ends),
            None => (0, first_ends),
        };
        hand.set(ends);
        assert!(policy.ended(&mut attempts, number, ends, CallOutcome::Success));
        took.push(ends.since(began));
    }
    took.drain(..1000);
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100].as_secs_f64() * 1000.0;
    let counts = policy.counts();
    (p99, counts.hedges as f64 / counts.calls as f64)
}

#[test]
fn the_tail_is_cut_as_far_as_simulated() {
    let never = HedgePolicy::after(Duration::from_secs(3600));
    for (row, (policy, p99_ms, share)) in [
        (never, 219.0, 0.0),
        (HedgePolicy::at_percentile(95.0), 58.0, 0.050),
        (HedgePolicy::at_percentile(90.0), 52.0, 0.099),
        (HedgePolicy::at_percentile(99.0), 217.0, 0.010), // inside the slow tail
    ]
    .into_iter()
    .enumerate()
    {
        let (found_ms, found_share) = simulate(policy);
        assert!((found_ms / p99_ms - 1.0_f64).abs() < 0.1, "row {row}: {found_ms} ms");
        assert!((found_share - share).abs() <= share / 10.0, "row {row}: {found_share}");
    }
}

#[test]
fn a_percentile_needs_calls_and_errors_are_no_latencies() {
    let (clock, hand) = Clock::manual();
    let policy = HedgePolicy::at_percentile(50.0).min_calls(10).clock(clock).build().unwrap();
    let call = |takes, outcome| {
        let mut attempts = policy.start(hand.now());
        hand.advance(takes);
        let _ends = policy.ended(&mut attempts, 0, hand.now(), outcome);
    };
    (0..50).for_each(|_| call(ms(1), CallOutcome::Failure));
    (0..9).for_each(|_| call(ms(100), CallOutcome::Success));
    assert_eq!((policy.delay(), policy.start(hand.now()).next_due()), (None, None));
    call(ms(100), CallOutcome::Success);
    let delay = policy.delay().unwrap().as_secs_f64();
    assert!((delay / 0.1 - 1.0).abs() < 1.0 / 64.0, "{delay}");
    hand.set(Tick::MAX);
    assert_eq!(policy.delay(), None, "nothing for a window");
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let text = |builder: HedgePolicyBuilder| builder.build().unwrap_err().to_string();
    let some = || HedgePolicy::after(DELAY);
    assert!(text(HedgePolicy::after(Duration::ZERO)).starts_with("a delay of 0 s would send"));
    for percent in [0.0, -1.0, 100.0, f64::NAN] {
        let text = text(HedgePolicy::at_percentile(percent));
        assert!(text.starts_with(&format!("percentile {percent} is out of range; use")), "{text}");
    }
    for most in [0, 5] {
        let expected = format!("max_hedges {most} is out of range; use 1 to 4, or no hedging");
        assert_eq!(text(some().max_hedges(most)), expected);
    }
    assert!(text(some().min_calls(0)).starts_with("min_calls 0 is out of range"));
    assert!(text(some().window(Duration::ZERO)).starts_with("window 0ns is out of range"));
}

#[test]
fn its_types_can_be_shared_and_printed() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    shared::<(HedgePolicy, HedgePolicyBuilder, HedgedAttempts)>();
    shared::<HedgedCall<std::future::Ready<()>>>();
    error::<ConfigError>();
}
