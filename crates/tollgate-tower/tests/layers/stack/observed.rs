//! What a stack reports: counts, a text, metrics and span events.

use super::*;
use crate::heard::Heard;

#[tokio::test(start_paused = true)]
async fn a_report_has_a_line_for_each_part_with_state() {
    let breaker = breaker();
    let stack = full!(&breaker, slots(3, 4).1, pace(ms(500)).1).build().unwrap();
    let service = stack.layer(Strict::new([status(429, 0), status(200, 0), HANGS]));
    assert_eq!(once(&service).await, Ok(200));
    let mut running = Box::pin(once(&service));
    assert!(poll_once(&mut running).is_pending());
    let refused = {
        breaker.hold_open();
        refusal(&service).await
    };
    assert_eq!(refused.part(), "breaker");
    // The retry's token has come back within its pause of 100 ms: ten in a second, and 100 at most.
    assert!(stack.handle().budget().unwrap().try_withdraw());
    let expected = "\
calls: 1 answered, 0 timed out, 0 failed, 1 refused by breaker; 0 degraded
breaker: held_open, opened 0 times, 1 refused
retry: 1 retries, 0 out of budget
hedge: 0 hedges, 0 won
budget: 99 retries or hedges
self-throttle: refuses with probability 0.00
pace: 3 sent, 0 waited, 0 refused
concurrency: 1 of 3 in flight, 0 waiting
total timeout: 0 late, 0 not run
attempt timeout: 0 late, 0 not run
";
    assert_eq!(stack.handle().report().to_string(), expected);
    assert_eq!(stack.handle().budget().unwrap().balance(), 99);
}

/// Runs a test in a runtime whose time is virtual.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
}

#[test]
fn refusals_timeouts_and_changes_of_the_breaker_are_events_of_the_current_span() {
    let heard = Heard::during(|| {
        run(async {
            let breaker = breaker();
            let stack = full!(&breaker, slots(3, 0).1, pace(ms(500)).1).span_events();
            let stack = stack.build().unwrap();
            let service = stack.layer(Strict::new([status(500, 0), HANGS, status(200, 0)]));
            assert_eq!(once(&service).await, Ok(500)); // an answer is no event
            assert_eq!(once(&service).await, Ok(504));
            breaker.automatic();
            breaker.trip_for(ms(9_000));
            assert_eq!(refusal(&service).await.part(), "breaker");
            breaker.hold_open();
            let _report = stack.handle().report();
        });
    });
    let changed =
        |state| format!("WARN message=the breaker changed its state stack=payments state={state}");
    assert_eq!(
        heard,
        [
            changed("open"),
            "INFO message=the attempt did not end within 2s (timeout `attempt`) stack=payments \
             phase=attempt".to_owned(),
            "INFO message=refused by breaker: an operator opened it; retry after 9s stack=payments \
             part=breaker retry_after_ms=9000".to_owned(),
            changed("held_open"),
        ]
    );
}

#[test]
fn a_stack_reports_nothing_unless_it_is_asked_to() {
    let heard = Heard::during(|| {
        run(async {
            let breaker = breaker();
            breaker.hold_open();
            let stack = full!(&breaker, slots(3, 0).1, pace(ms(500)).1).build().unwrap();
            assert_eq!(refusal(&stack.layer(Strict::new([HANGS]))).await.part(), "breaker");
        });
    });
    assert_eq!(heard, [""; 0]);
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_show_calls_refusals_and_the_state_of_every_part() {
    use bytes::Bytes;
    use tollgate_tower::FallbackLayer;
    let counted = crate::heard::counted(|| {
        run(async {
            let breaker = breaker();
            let value = FallbackLayer::value(Response::new(Bytes::new())).build().unwrap();
            let stack = full!(&breaker, slots(3, 4).1, pace(ms(500)).1).fallback(value).metrics();
            let stack = stack.build().unwrap();
            let service = stack.layer(Strict::new([status(429, 0), status(200, 0), HANGS]));
            assert_eq!(once(&service).await, Ok(200));
            let mut running = Box::pin(once(&service));
            assert!(poll_once(&mut running).is_pending());
            breaker.hold_open();
            assert_eq!(once(&service).await, Ok(200), "the fallback");
            assert!(stack.handle().budget().unwrap().try_withdraw());
            let _report = stack.handle().report();
        });
    });
    let counted: Vec<_> = counted.iter().filter(|line| !line.ends_with(" 0")).collect();
    assert_eq!(
        counted,
        [
            "tollgate_stack_breaker_state{stack=payments} 12",
            "tollgate_stack_budget{stack=payments} 99",
            "tollgate_stack_calls_total{stack=payments,result=answered} 1",
            "tollgate_stack_fallbacks_total{stack=payments} 1",
            "tollgate_stack_in_flight{stack=payments,part=concurrency} 1",
            "tollgate_stack_limit{stack=payments,part=concurrency} 3",
            "tollgate_stack_refusals_total{stack=payments,part=breaker} 1",
            "tollgate_stack_retries_total{stack=payments} 1",
        ]
    );
}
