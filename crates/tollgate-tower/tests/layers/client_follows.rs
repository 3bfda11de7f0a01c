//! A client that follows a server with a real limit: it is hardly ever refused, and does not wait
//! longer than necessary.

use crate::stub::{Stub, get, response, seconds};
use http::{Request, Response};
use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{Algorithm, Clock, Limiter, Quota};
use tollgate_tower::client::{PaceLayer, Spend};
use tower::{Layer, ServiceExt};

/// The headers that the server sends.
#[derive(Clone, Copy, Debug)]
enum Tells {
    /// The current draft, with the policy.
    Current,
    /// The current draft, only the remaining calls.
    Left,
    /// `X-RateLimit-*` with a Unix time.
    Legacy,
    /// Only `Retry-After` when it refuses.
    Nothing,
}

/// Returns a clock whose wall time starts at a full second, so that each run is the same.
fn clock() -> Clock {
    let clock = Clock::tokio();
    clock.set_wall_offset(seconds(1_700_000_000));
    clock
}

/// A server with this quota that counts its refusals.
fn server(quota: Quota, algorithm: Algorithm, tells: Tells) -> (Stub, Arc<AtomicU64>) {
    let clock = clock();
    let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    let refusals = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refusals);
    let reply = move |_: &Request<()>| -> Response<()> {
        let decision = limiter.try_acquire();
        let now = decision.at();
        let up = |time: Duration| time.as_nanos().div_ceil(1_000_000_000);
        let retry = decision.retry_after(now).map(up);
        let reset = up(decision.reset_after(now).unwrap());
        let left = decision.remaining();
        let mut text = String::new();
        let time = retry.unwrap_or(reset);
        match tells {
            Tells::Current | Tells::Left => {
                writeln!(text, "RateLimit: \"a\";r={left};t={time}").unwrap();
                if matches!(tells, Tells::Current) {
                    let window = quota.period().as_secs();
                    writeln!(text, "RateLimit-Policy: \"a\";q={};w={window}", quota.count())
                        .unwrap();
                }
            }
            Tells::Legacy => {
                let at = up(clock.to_wall(now)) + time;
                let limit = decision.limit();
                write!(text, "X-RateLimit-Limit: {limit}\nX-RateLimit-Remaining: {left}\n")
                    .unwrap();
                writeln!(text, "X-RateLimit-Reset: {at}").unwrap();
            }
            Tells::Nothing => {}
        }
        if decision.is_allowed() {
            return response(200, &text);
        }
        // ORDERING: Relaxed. One thread.
        counted.fetch_add(1, Relaxed);
        writeln!(text, "Retry-After: {}", retry.unwrap().max(1)).unwrap();
        response(429, &text)
    };
    (Stub::new(reply), refusals)
}

/// Makes 200 calls, eight at a time, and returns refusals and seconds.
async fn run(stub: &Stub, refusals: &AtomicU64, spend: Spend) -> (u64, u64) {
    let builder = PaceLayer::builder().spend(spend).max_wait(seconds(600)).clock(clock());
    let layer = builder.build().unwrap();
    let client = layer.layer(stub.clone());
    let next = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (client, next, stub) = (client.clone(), Arc::clone(&next), stub.clone());
            tokio::spawn(async move {
                // ORDERING: Relaxed. One thread.
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= 200 {
                        return;
                    }
                    // Some take longer than others, so that answers overtake each other.
                    stub.delay(Duration::from_millis(number * 37 % 150));
                    client.clone().oneshot(get("http://a/")).await.unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    (refusals.load(Relaxed), stub.now().as_secs())
}

/// 200 calls at 20 in 10 s, the first 20 of them at once, take 90 s at best.
const QUOTA: Quota = Quota::per(20, seconds(10));

#[tokio::test(start_paused = true)]
async fn a_server_that_tells_is_followed_without_refusals() {
    use Algorithm::{FixedWindow, Gcra, SlidingCounter, SlidingLog};
    for tells in [Tells::Current, Tells::Left, Tells::Legacy] {
        for (algorithm, spend, most_seconds) in [
            (Gcra, Spend::Burst, 105),
            (Gcra, Spend::Even, 105),
            (Gcra, Spend::default(), 105),
            (FixedWindow, Spend::Burst, 105),
            (FixedWindow, Spend::Even, 110),
            (FixedWindow, Spend::default(), 110),
            // Such a server reports the remaining calls for the whole window, although some permits
            // come back earlier. A client that follows it gets half of the rate in the worst case.
            (SlidingLog, Spend::Burst, 115),
            (SlidingLog, Spend::default(), 220),
            (SlidingCounter, Spend::Burst, 220),
            (SlidingCounter, Spend::default(), 220),
        ] {
            let (stub, refusals) = server(QUOTA, algorithm, tells);
            let (refused, took) = run(&stub, &refusals, spend).await;
            let row = format!("{tells:?} {algorithm:?} {spend:?}: {refused} refused, {took} s");
            assert_eq!(refused, 0, "{row}");
            assert!((90..=most_seconds).contains(&took), "{row}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_refuses_is_not_pestered() {
    let (stub, refusals) = server(QUOTA, Algorithm::Gcra, Tells::Nothing);
    let (refused, took) = run(&stub, &refusals, Spend::default()).await;
    // The up to eight calls in flight are refused with each stop, and a probe ends the stop.
    let stops = took / 2 + 2;
    assert!(refused <= 8 * stops && refused < 100, "{refused} refused in {took} s");
}
