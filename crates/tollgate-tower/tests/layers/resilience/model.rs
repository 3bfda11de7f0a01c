//! Random runs against slow models: the layers behave exactly like a breaker and a clock alone.

use super::*;
use http_body_util::BodyExt;
use proptest::prelude::*;
use tollgate::CallOutcome;
use tollgate_tower::{NotRun, TimeoutError, TimeoutLayer};

#[derive(Clone, Copy, Debug)]
enum Step {
    Answer(u16),
    Error,
    /// Another layer refuses it, with a status that would count.
    Refusal,
    DropUnpolled,
    DropRunning,
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::sample::select(vec![200, 404, 429, 499, 500, 501, 503]).prop_map(Step::Answer),
        1 => Just(Step::Error),
        1 => Just(Step::Refusal),
        1 => Just(Step::DropUnpolled),
        1 => Just(Step::DropRunning),
        3 => (0..4_000_u64).prop_map(Step::Advance),
    ]
}

impl Step {
    fn request(self) -> Request<String> {
        match self {
            Self::Answer(status) => answered(head(status, &[])),
            Self::Error => request("/fails"),
            Self::DropRunning => request("/hangs"),
            Self::Refusal => {
                let mut refused = head(503, &[]);
                refused.extensions_mut().insert(NotRun);
                answered(refused)
            }
            Self::DropUnpolled | Self::Advance(_) => request("/"),
        }
    }

    /// Returns the outcome that the breaker has to record; `None` for a drop.
    fn outcome(self) -> Option<CallOutcome> {
        Some(match self {
            Self::Answer(429 | 503) | Self::Error => CallOutcome::Overload,
            Self::Answer(500) => CallOutcome::Failure,
            Self::Answer(499) | Self::Refusal => CallOutcome::Ignore,
            Self::Answer(_) => CallOutcome::Success,
            Self::DropUnpolled | Self::DropRunning | Self::Advance(_) => return None,
        })
    }
}

/// Calls through the layer, and returns for how long it refuses.
async fn take(service: &mut BreakerService<Inner>, step: Step) -> Option<Duration> {
    let mut running = call(service, step.request()).await;
    if let Step::DropRunning | Step::DropUnpolled = step {
        // A refusal is ready at the first poll, and a call that hangs is not.
        let is_polled = matches!(step, Step::DropRunning);
        return match is_polled.then(|| poll_once(&mut running)) {
            Some(Poll::Ready(Ok(response))) => refused_by(&response).and_then(|(_, wait)| wait),
            _ => None,
        };
    }
    let response = running.await.ok()?;
    refused_by(&response).and_then(|(_, wait)| wait)
}

proptest! {
    /// The layer decides and counts like a breaker to which a test reports each outcome.
    #[test]
    fn the_layer_is_its_breaker(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut scene = scene(|builder| builder);
            let (clock, hand) = Clock::manual();
            let model = settings(clock.clone()).build().unwrap();
            for (number, step) in steps.iter().enumerate() {
                if let Step::Advance(ms) = step {
                    scene.hand.advance(MS * u32::try_from(*ms).unwrap());
                    hand.advance(MS * u32::try_from(*ms).unwrap());
                    continue;
                }
                let refused = take(&mut scene.service, *step).await;
                let expected = match model.try_pass() {
                    Ok(pass) => {
                        match step.outcome() {
                            Some(outcome) => pass.end(outcome),
                            None => drop(pass),
                        }
                        None
                    }
                    Err(open) => open.retry_after(clock.now()),
                };
                if !matches!(step, Step::DropUnpolled) {
                    prop_assert_eq!(refused, expected, "step {}, {:?}", number, step);
                }
                prop_assert_eq!(scene.breaker.state(), model.state(), "step {}", number);
                prop_assert_eq!(scene.breaker.counts(), model.counts(), "step {}", number);
            }
            Ok(())
        })?;
    }

    /// A body ends when the first gap is too long, or when its time is over. Times are at least
    /// 5 ms apart, since tokio's timers have a resolution of a millisecond.
    #[test]
    fn a_body_is_late_as_the_model_says(
        gaps in prop::collection::vec(0..40_u64, 0..12),
        idle in prop::option::of(1..40_u64),
        total in prop::option::of(41..200_u64),
    ) {
        let (idle, total) = (idle.map(|it| it * 10 + 5), total.map(|it| it * 10 + 5));
        prop_assume!(idle.is_some() || total.is_some());
        // The model: frames until the earlier of both ends.
        let (mut at, mut frames, mut expected) = (0, 0, None);
        for gap in gaps.iter().map(|gap| gap * 10) {
            let idle_end = idle.filter(|idle| gap > *idle).map(|idle| (at + idle, "body_idle"));
            let total_end = total.filter(|total| at + gap > *total).map(|total| (total, "total"));
            // If both end at the same time, the bound of the call counts.
            expected = total_end.into_iter().chain(idle_end).min_by_key(|(end, _)| *end);
            if expected.is_some() {
                break;
            }
            (at, frames) = (at + gap, frames + 1);
        }
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        let seen = runtime.block_on(async {
            let mut layer = TimeoutLayer::builder().clock(Clock::tokio());
            if let Some(ms) = idle {
                layer = layer.body_idle(Duration::from_millis(ms));
            }
            if let Some(ms) = total {
                layer = layer.total(Duration::from_millis(ms));
            }
            let (service, mut senders) = limited(&layer.build().unwrap());
            let mut body = once(&service, request("/")).await.unwrap().into_body();
            let sender = senders.recv().await.unwrap();
            tokio::spawn(async move {
                for gap in gaps {
                    let gap = Duration::from_millis(gap * 10);
                    let _over = tokio::time::timeout(gap, std::future::pending::<()>()).await;
                    let _gone = sender.send(Ok("frame"));
                }
            });
            let mut seen = 0;
            loop {
                match body.frame().await {
                    Some(Ok(_)) => seen += 1,
                    Some(Err(error)) => {
                        let late = error.downcast_ref::<TimeoutError>().unwrap();
                        return (seen, Some(late.phase().name()));
                    }
                    None => return (seen, None),
                }
            }
        });
        prop_assert_eq!(seen, (frames, expected.map(|(_, phase)| phase)));
    }
}
