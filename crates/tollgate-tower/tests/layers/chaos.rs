//! Injected faults: which calls get one, and which properties of a call stay as they are.

use super::strict::{HANGS, Strict, error, get, status};
use http::StatusCode;
use std::time::Duration;
use tokio::time::{advance, timeout};
use tollgate_tower::testing::{ChaosBuilder, ChaosLayer, Fault};
use tower::{Layer, Service, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const DOWN: Fault = Fault::status(StatusCode::SERVICE_UNAVAILABLE);

#[tokio::test(start_paused = true)]
async fn each_fault_does_what_it_says() {
    let strict = Strict::new([status(200, 5)]);
    let shared = strict.shared();
    let chaos = ChaosLayer::builder().error_with(|| "injected").build().unwrap();
    let handle = chaos.handle();
    let mut service = chaos.layer(strict);
    let mut call = async |faults: Vec<Fault>| {
        handle.set(faults).unwrap();
        let began = shared.now_ms();
        let call = service.ready().await.unwrap().call(get("/"));
        let answer = timeout(SECOND, call).await.map_err(|_| "hangs").and_then(|answer| answer);
        (answer.map(|response| response.status().as_u16()), shared.now_ms() - began)
    };
    assert_eq!(call(vec![]).await, (Ok(200), 5));
    assert_eq!(call(vec![Fault::latency(20 * MS)]).await, (Ok(200), 25));
    assert_eq!(call(vec![Fault::latency(20 * MS), Fault::latency(MS)]).await, (Ok(200), 26));
    assert_eq!(call(vec![DOWN]).await, (Ok(503), 0));
    assert_eq!(call(vec![DOWN, Fault::latency(7 * MS)]).await, (Ok(503), 7));
    assert_eq!(call(vec![Fault::error()]).await, (Err("injected"), 0));
    assert_eq!(call(vec![Fault::error(), DOWN]).await, (Err("injected"), 0), "the first counts");
    assert_eq!(call(vec![Fault::hang()]).await, (Err("hangs"), 1000));
    let counts = handle.counts();
    let found = (counts.calls, counts.delayed, counts.statuses, counts.errors, counts.hung);
    assert_eq!(found, (8, 3, 2, 2, 1));
    assert_eq!(shared.starts().len(), 3, "other calls did not reach the service");
    assert_eq!(shared.reserved(), 0, "and hold nothing");
}

#[tokio::test(start_paused = true)]
async fn a_script_follows_the_clock_from_when_it_is_switched_on() {
    let chaos = ChaosLayer::builder().fault(DOWN.during(10 * SECOND..20 * SECOND)).build().unwrap();
    let handle = chaos.handle();
    let mut service = chaos.clone().layer(Strict::new([status(200, 0)]));
    let mut call = async || {
        let answer = service.ready().await.unwrap().call(get("/")).await;
        answer.unwrap().status().as_u16()
    };
    assert_eq!(call().await, 200);
    advance(10 * SECOND).await;
    assert_eq!(call().await, 503);
    handle.turn_off();
    assert!(!handle.is_on());
    assert_eq!(call().await, 200);
    advance(SECOND).await;
    handle.turn_on();
    assert_eq!(call().await, 200, "the script begins anew");
    advance(10 * SECOND).await;
    assert_eq!(call().await, 503);
    advance(10 * SECOND).await;
    assert_eq!(call().await, 200);
    assert!(handle.set([DOWN.percent(0.0)]).is_err());
    advance(SECOND).await;
    assert_eq!(call().await, 200, "a fault that is refused changes nothing");
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_sequence_of_faults_that_the_seed_repeats() {
    let run = async |seed| {
        let chaos = ChaosLayer::builder().fault(DOWN.percent(30.0)).seed(seed).build().unwrap();
        let service = chaos.layer(Strict::new([status(200, 0)]));
        let mut statuses = Vec::new();
        for _ in 0..100 {
            // Every call has a clone of its own.
            let answer = service.clone().oneshot(get("/")).await.unwrap();
            statuses.push(answer.status().as_u16());
        }
        assert_eq!(chaos.handle().counts().calls, 100);
        statuses
    };
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
    assert!((15..45).contains(&first.iter().filter(|status| **status == 503).count()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_releases_everything() {
    for (faults, takes) in [
        (vec![Fault::latency(20 * MS)], 10 * MS), // while it is delayed
        (vec![Fault::latency(20 * MS)], 30 * MS), // while the service works
        (vec![Fault::hang()], 10 * MS),
        (vec![], 10 * MS),
    ] {
        let strict = Strict::new([HANGS]);
        let shared = strict.shared();
        let chaos = ChaosLayer::builder().build().unwrap();
        chaos.handle().set(faults).unwrap();
        assert!(timeout(takes, chaos.layer(strict).oneshot(get("/"))).await.is_err());
        assert_eq!((shared.running(), shared.reserved()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn errors_and_responses_of_the_service_stay_as_they_are() {
    let chaos = ChaosLayer::builder().fault(Fault::latency(MS)).build().unwrap();
    let mut service = chaos.layer(Strict::new([error("broken", 0), status(500, 0)]));
    assert_eq!(service.ready().await.unwrap().call(get("/")).await.unwrap_err(), "broken");
    let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!((response.status().as_u16(), response.body().as_str()), (500, "500"));
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let with = |fault| ChaosLayer::builder().fault(fault);
    let text = |builder: ChaosBuilder| builder.build().unwrap_err().to_string();
    let docs = format!("(TG-X01, see {}/resilience.md#tg-x01)", super::DOCS);
    for percent in [0.0, -1.0, 100.1, f64::NAN] {
        let text = text(with(DOWN.percent(percent)));
        assert!(text.starts_with(&format!("percent {percent} of a fault is out of range; use")));
        assert!(text.ends_with(&docs), "{text}");
    }
    for times in [SECOND..SECOND, 2 * SECOND..SECOND] {
        let text = text(with(DOWN.during(times.clone())));
        assert!(text.starts_with(&format!("a fault during {times:?} never happens")), "{text}");
    }
    assert!(
        text(with(Fault::latency(Duration::ZERO))).starts_with("a latency between 0ns and 0ns")
    );
    let inverted = Fault::latency_between(2 * MS..MS);
    assert!(text(with(inverted)).starts_with("a latency between 2ms and 1ms is none; let"));
    let no_error = text(with(Fault::error()));
    assert!(no_error.starts_with("a fault is an error, but the layer cannot make one; set"));
}
