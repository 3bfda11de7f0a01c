//! The reports of a stack: counts, a text, metrics and span events.

use super::*;
use crate::heard::Heard;
use tollgate::observe::Registry;

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
            assert_eq!(once(&service).await, Ok(500)); // an answer is not an event
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

#[tokio::test(start_paused = true)]
async fn metrics_show_calls_refusals_and_the_state_of_every_part() {
    use bytes::Bytes;
    use tollgate_tower::FallbackLayer;
    let breaker = breaker();
    let value = FallbackLayer::value(Response::new(Bytes::new())).build().unwrap();
    let stack = full!(&breaker, slots(3, 4).1, pace(ms(500)).1).fallback(value).build().unwrap();
    let registry = Registry::new();
    registry.add("payments", &stack).unwrap();
    let service = stack.layer(Strict::new([status(429, 0), status(200, 0), HANGS]));
    assert_eq!(once(&service).await, Ok(200));
    let mut running = Box::pin(once(&service));
    assert!(poll_once(&mut running).is_pending());
    breaker.hold_open();
    assert_eq!(once(&service).await, Ok(200), "the fallback");
    assert!(stack.handle().budget().unwrap().try_withdraw());
    let reports = registry.list();
    let names: Vec<_> = reports.iter().map(|report| (&*report.name, report.kind)).collect();
    assert_eq!(
        names,
        [
            ("payments", "client_stack"),
            ("payments/total timeout", "timeout_layer"),
            ("payments/retry", "retry_policy"),
            ("payments/retry/budget", "retry_budget"),
            ("payments/hedge", "hedge_policy"),
            ("payments/hedge/budget", "retry_budget"),
            ("payments/self-throttle", "self_throttle"),
            ("payments/pace", "pace_layer"),
            ("payments/pace/quota", "limiter"),
            ("payments/breaker", "breaker"),
            ("payments/concurrency", "concurrency_layer"),
            ("payments/concurrency/slots", "concurrency"),
            ("payments/attempt timeout", "timeout_layer"),
        ]
    );
    let text = registry.prometheus();
    for line in [
        "tollgate_stack_calls_total{limiter=\"payments\",result=\"answered\"} 1",
        "tollgate_stack_refusals_total{limiter=\"payments\",part=\"breaker\"} 1",
        "tollgate_fallbacks_total{limiter=\"payments\"} 1",
        "tollgate_breaker_state{limiter=\"payments/breaker\",state=\"held_open\"} 1",
        "tollgate_in_flight{limiter=\"payments/concurrency/slots\"} 1",
        "tollgate_in_flight_limit{limiter=\"payments/concurrency/slots\"} 3",
        "tollgate_paced_calls_total{limiter=\"payments/pace\",event=\"sent\"} 3",
        "tollgate_timeouts_total{limiter=\"payments/attempt timeout\",phase=\"attempt\"} 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
}
