//! Traces of a lane: the event at each millisecond, and when the next call may start.

use super::*;
use crate::client::Reader;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::{Algorithm, Clock, Limiter, Quota};

/// One step.
enum Do {
    /// A call starts.
    Start,
    /// The call of that number gets this answer.
    Answer(u64, u16, &'static str),
    /// The call of that number is lost.
    Lose(u64),
}
use Do::{Answer, Lose, Start};

fn learned(status: u16, lines: &str) -> Learned {
    let mut headers = HeaderMap::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        let name: HeaderName = name.trim().parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let status = StatusCode::from_u16(status).unwrap();
    Reader::new().read(status, &headers, Duration::from_secs(1_700_000_000))
}

fn lane_of(spend: Spend) -> Lane {
    Lane::new(Manner { spend, longest: Reader::new().bound() })
}

/// Runs the steps. Each has its millisecond and the expected millisecond of the next start.
fn run(spend: Spend, steps: &[(u64, Do, u64)]) -> Lane {
    let mut lane = lane_of(spend);
    for (row, (at, step, expected)) in steps.iter().enumerate() {
        let now = Tick::from_millis(*at);
        match step {
            Start => {
                assert!(lane.next_at(now) <= now, "row {row}: a call starts too early");
                lane.start(now);
            }
            Answer(number, status, lines) => {
                lane.answer(now, *number, &learned(*status, lines));
            }
            Lose(number) => lane.lose(*number),
        }
        assert_eq!(lane.next_at(now), Tick::from_millis(*expected), "row {row}");
    }
    lane
}

#[test]
fn no_more_than_what_is_left_before_its_time() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (10, Answer(0, 200, "RateLimit: \"a\";r=2;t=5"), 10),
            (20, Start, 20),
            (30, Start, 5010),
            // The calls in flight may or may not be counted in the 9 that are left.
            (40, Answer(1, 200, "RateLimit: \"a\";r=9;t=5"), 40),
            (41, Start, 41),
            // The answer to the second reports less, and one is in flight.
            (50, Answer(2, 200, "RateLimit: \"a\";r=1;t=5"), 5050),
            (60, Answer(3, 200, "RateLimit: \"a\";r=1;t=5"), 60),
        ],
    );
}

#[test]
fn an_answer_to_an_earlier_call_raises_nothing_but_that_it_is_there() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (0, Start, 0),
            // One is left and two are in flight, which may or may not be counted in it.
            (10, Answer(2, 200, "RateLimit: \"a\";r=1;t=5"), 5010),
            (11, Answer(0, 200, "RateLimit: \"a\";r=3;t=5"), 5010),
            (12, Answer(1, 200, "RateLimit: \"a\";r=2;t=5"), 12),
            (13, Start, 5010),
        ],
    );
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (10, Answer(1, 200, "RateLimit: \"a\";r=2;t=5"), 10),
            // It was counted after the other.
            (11, Answer(0, 200, "RateLimit: \"a\";r=1;t=5"), 11),
            (12, Start, 5011),
        ],
    );
}

#[test]
fn the_least_that_was_told_since_the_last_news_holds() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (10, Answer(0, 200, "RateLimit: \"a\";r=6;t=5"), 10),
            (20, Start, 20),
            // The second call was counted after the third, but its answer comes first.
            (30, Answer(1, 200, "RateLimit: \"a\";r=1;t=5"), 5030),
            (40, Answer(2, 200, "RateLimit: \"a\";r=2;t=5"), 40),
            (50, Start, 5030),
            // That one was started after all the others, and reports more.
            (60, Answer(3, 200, "RateLimit: \"a\";r=2;t=5"), 60),
        ],
    );
    // An answer to a call that was in flight does not revoke what was reported about tokens.
    let tokens = |left| match left {
        0 => "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 9s",
        _ => "x-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-tokens: 9s",
    };
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (10, Answer(0, 200, tokens(0)), 9010),
            (20, Answer(1, 200, tokens(5)), 9010),
        ],
    );
}

/// A server behind several connections: it counts calls in any order, and its answers overtake each
/// other. Returns the refusals and the calls that were sent within a minute.
fn shuffled(algorithm: Algorithm, quota: Quota, seed: u64) -> (u32, u32) {
    const CONNECTIONS: usize = 6;
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone()).build();
    let (limiter, mut lane) = (limiter.unwrap(), lane_of(Spend::Burst));
    let (mut sent, mut counted) = (Vec::new(), Vec::new());
    let (mut refused, mut calls, mut state) = (0, 0, seed);
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    let begin = clock.now();
    while clock.now().since(begin) < Duration::from_secs(60) {
        let now = clock.now();
        match random(4) {
            0 | 1 if sent.len() + counted.len() < CONNECTIONS && lane.next_at(now) <= now => {
                // Nothing is known before the first answer.
                if calls != 1 || lane.in_flight == 0 {
                    sent.push(lane.start(now));
                    calls += 1;
                }
            }
            2 if !sent.is_empty() => {
                let number = sent.swap_remove(random(sent.len()));
                let decision = limiter.try_acquire();
                refused += u32::from(!decision.is_allowed());
                let mut learned = learned(200, "RateLimit: \"a\";r=0;t=0");
                let policy = &mut learned.policies[0];
                policy.remaining = decision.remaining();
                let time = decision.retry_after(now).or(decision.reset_after(now)).unwrap();
                policy.reset_after = Some(Duration::from_secs(time.as_secs() + 1));
                (policy.limit, policy.window) = (Some(decision.limit()), Some(quota.period()));
                counted.push((number, learned));
            }
            3 if !counted.is_empty() => {
                let (number, learned) = counted.swap_remove(random(counted.len()));
                lane.answer(now, number, &learned);
            }
            _ => hand.advance(Duration::from_millis(random(40) as u64)),
        }
    }
    (refused, calls)
}

#[test]
fn in_whatever_order_calls_are_counted_and_heard_none_is_refused() {
    let quota = Quota::per(20, Duration::from_secs(10));
    for algorithm in Algorithm::ALL {
        // Of 120, and 20 more where there is a burst.
        let least = match algorithm {
            Algorithm::SlidingCounter => 60,
            Algorithm::SlidingLog => 100,
            _ => 120,
        };
        for seed in 0..40 {
            let (refused, calls) = shuffled(algorithm, quota, seed);
            let row = format!("{algorithm}, seed {seed}: {refused} of {calls} refused");
            assert!(refused == 0 && calls >= least, "{row}");
        }
    }
}

#[test]
fn an_answer_from_a_window_that_is_over_does_not_stop_the_next() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (
                0,
                Answer(1, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=0;t=3"),
                3000,
            ),
            (3000, Start, 4000),
            (
                3010,
                Answer(0, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=1;t=3"),
                4000,
            ),
        ],
    );
}

#[test]
fn what_is_left_is_spread_evenly() {
    run(
        Spend::Even,
        &[
            (0, Start, 0),
            (0, Answer(0, 200, "RateLimit: \"a\";r=10;t=5"), 500),
            (500, Start, 1000),
            (600, Answer(1, 200, "RateLimit: \"a\";r=4;t=4"), 1500),
            (1500, Start, 2500),
        ],
    );
    run(
        Spend::EvenBelow(50),
        &[
            (0, Start, 0),
            (0, Answer(0, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=6;t=3"), 0),
            (0, Start, 0),
            (0, Answer(1, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=5;t=3"), 600),
        ],
    );
}

#[test]
fn after_its_time_a_policy_goes_on_at_its_own_rate() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (
                0,
                Answer(0, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=0;t=3"),
                3000,
            ),
            (3000, Start, 4000),
            (4000, Start, 5000),
            // An answer reports more.
            (
                4100,
                Answer(1, 200, "RateLimit-Policy: \"a\";q=10;w=10\nRateLimit: \"a\";r=9;t=9"),
                4100,
            ),
        ],
    );
}

#[test]
fn after_its_time_a_policy_of_unknown_rate_is_probed() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Answer(0, 200, "RateLimit: \"a\";r=0;t=3"), 3000),
            (3000, Start, 4000),
            (3100, Lose(1), 3100),
            (3100, Start, 4100),
            // No answer within a second: another probe.
            (4100, Start, 5100),
            (4200, Answer(2, 200, ""), 4200),
        ],
    );
}

#[test]
fn what_was_left_is_still_there_after_its_time() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Answer(0, 200, "RateLimit: \"a\";r=2;t=3"), 0),
            (3000, Start, 3000),
            (3000, Start, 6000),
        ],
    );
}

#[test]
fn a_refusal_stops_all_until_its_time_and_then_one_goes_first() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (0, Start, 0),
            (10, Answer(0, 429, "Retry-After: 5"), 5010),
            // The answers to calls in flight: one is refused, one passes.
            (20, Answer(1, 429, "Retry-After: 5"), 5020),
            (30, Answer(2, 200, ""), 5020),
            (5020, Start, 6020),
            (5030, Answer(3, 503, "Retry-After: 1"), 6030),
            (6030, Start, 7030),
            (6040, Answer(4, 200, ""), 6040),
        ],
    );
}

#[test]
fn a_refusal_that_says_nothing_stops_longer_each_time() {
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Start, 0),
            (0, Answer(0, 429, ""), 1000),
            // They were in flight together, so this is the same refusal.
            (0, Answer(1, 429, ""), 1000),
            (1000, Start, 2000),
            (1000, Answer(2, 429, ""), 3000),
            (3000, Start, 4000),
            (3000, Answer(3, 429, ""), 7000),
            (7000, Start, 8000),
            (8000, Answer(4, 200, ""), 8000),
            (8000, Start, 8000),
            (8000, Answer(5, 429, ""), 9000),
        ],
    );
}

#[test]
fn other_words_for_stop() {
    for (status, lines, expected) in [
        // The policy's time, since there is no other.
        (429, "RateLimit: \"a\";r=0;t=7", 7000),
        // Retry-After takes precedence, in both directions.
        (429, "RateLimit: \"a\";r=0;t=7\nRetry-After: 3", 3000),
        (429, "RateLimit: \"a\";r=0;t=7\nRetry-After: 9", 9000),
        (403, "Retry-After: 60", 60_000),
        (403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60", 60_000),
        (200, "grpc-status: 8\ngrpc-retry-pushback-ms: 1500", 1500),
        (200, "grpc-status: 14\ngrpc-retry-pushback-ms: 1500", 1500),
        // None are left, and the answer does not say for how long.
        (200, "X-Shopify-Shop-Api-Call-Limit: 40/40", 1000),
        // Tokens are used up.
        (200, "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s", 360_000),
        // These do not stop calls: overload without a time, tokens left, a cached refusal, calls
        // left.
        (503, "", 0),
        (500, "Retry-After: 9", 0),
        (200, "Retry-After: 9", 0),
        (200, "x-ratelimit-remaining-tokens: 1\nx-ratelimit-reset-tokens: 6m0s", 0),
        (429, "Retry-After: 9\nAge: 5", 0),
        (200, "X-Shopify-Shop-Api-Call-Limit: 39/40", 0),
        (200, "RateLimit-Policy: \"c\";q=5;qu=\"concurrent-requests\"\nRateLimit: \"c\";r=0", 0),
    ] {
        let mut lane = lane_of(Spend::Burst);
        let number = lane.start(Tick::ZERO);
        lane.answer(Tick::ZERO, number, &learned(status, lines));
        assert_eq!(lane.next_at(Tick::ZERO), Tick::from_millis(expected), "{status} {lines}");
    }
}

#[test]
fn the_earliest_start_is_known_as_far_as_it_is_certain() {
    let mut lane = lane_of(Spend::Even);
    let now = Tick::ZERO;
    assert_eq!(lane.earliest(now, 1000), now);
    let number = lane.start(now);
    lane.answer(now, number, &learned(200, "RateLimit: \"a\";r=10;t=5"));
    for (ahead, expected_ms) in [(0, 500), (1, 1000), (9, 5000), (10, 5000), (1000, 5000)] {
        assert_eq!(lane.earliest(now, ahead), Tick::from_millis(expected_ms), "{ahead}");
    }
}

#[test]
fn the_number_of_policies_is_bounded() {
    let mut lane = lane_of(Spend::Burst);
    for seconds in 1..100_u64 {
        let mut learned = learned(200, "RateLimit: \"a\";r=1;t=5");
        learned.policies[0].name = Some(seconds.to_string().into());
        let number = lane.start(Tick::ZERO);
        lane.answer(Tick::from_secs(seconds), number, &learned);
    }
    assert_eq!(lane.policies.len(), MOST_POLICIES);
    // The latest are kept.
    assert!(lane.policies.iter().any(|policy| policy.name.as_deref() == Some("99")));
}

#[test]
fn a_lane_takes_four_kilobytes_at_most() {
    let policies = MOST_POLICIES * (size_of::<Known>() + crate::answer::Label::NAME_MAX);
    assert!(size_of::<Lane>() + policies <= 4096, "{policies}");
}

#[test]
fn policies_of_one_name_are_followed_each() {
    let (both, one) = (
        "RateLimit-Policy: \"a\";q=5;w=1, \"a\";q=9;w=9\nRateLimit: \"a\";r=1;t=1, \"a\";r=2;t=9",
        "RateLimit: \"a\";r=0;t=1, \"a\";r=1;t=8",
    );
    run(
        Spend::Burst,
        &[
            (0, Start, 0),
            (0, Answer(0, 200, both), 0),
            (0, Start, 1000),
            // The first goes on at its own rate, one in 200 ms; of the second one is left.
            (1000, Start, 9000),
            // An answer reports each of them again.
            (1100, Answer(1, 200, one), 9100),
        ],
    );
    let names = |lines| learned(200, lines).policies.iter().map(|it| it.limit).collect::<Vec<_>>();
    assert_eq!(names(both), [Some(5), Some(9)]);
    // It is unknown whose policy it is.
    let single = "RateLimit-Policy: \"a\";q=5;w=1\nRateLimit: \"a\";r=1;t=1, \"a\";r=2;t=9";
    assert_eq!(names(single), [None, None]);
}

#[test]
fn a_long_window_is_asked_for_after_the_longest_time() {
    const HOUR: u64 = 3_600_000;
    for (policy, expected) in [
        ("RateLimit-Policy: \"a\";q=10;w=31536000\nRateLimit: \"a\";r=0;t=1", HOUR),
        ("RateLimit-Policy: \"a\";q=1;w=999999999999999\nRateLimit: \"a\";r=0;t=1", HOUR),
        // Its own rate is faster than that.
        ("RateLimit-Policy: \"a\";q=8640;w=86400\nRateLimit: \"a\";r=0;t=1", 10_000),
    ] {
        let mut lane = lane_of(Spend::Burst);
        let number = lane.start(Tick::ZERO);
        lane.answer(Tick::ZERO, number, &learned(200, policy));
        let due = lane.next_at(Tick::from_secs(1));
        assert_eq!(due, Tick::from_millis(expected), "{policy}");
    }
}

#[test]
fn a_lane_is_idle_when_nothing_is_owed() {
    let mut lane = lane_of(Spend::Burst);
    assert!(lane.is_idle(Tick::ZERO));
    let number = lane.start(Tick::ZERO);
    assert!(!lane.is_idle(Tick::ZERO));
    lane.answer(Tick::ZERO, number, &learned(429, "Retry-After: 5"));
    assert!(!lane.is_idle(Tick::from_millis(4999)));
    assert!(lane.is_idle(Tick::from_millis(5000)));
}
