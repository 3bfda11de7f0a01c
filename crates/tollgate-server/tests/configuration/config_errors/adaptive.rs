//! Rules with `adaptive` whose rate cannot move as they say.

use super::check_one;

#[test]
fn rates_that_cannot_move_are_refused() {
    const LIMIT: &str = "rate_limit: {unit: second, requests_per_unit: 50}";
    let with = |adaptive: &str| format!("adaptive: {adaptive}, {LIMIT}");
    for (text, error) in [
        (with("{min: 10/s}"), "3:12 adaptive needs 'follow', for example follow: cpu"),
        (with("{follow: cpu}"), "3:12 adaptive needs 'min', for example min: 10/s"),
        (
            with("{follow: memory, min: 10/s}"),
            "3:31 'memory' is not a valid value of 'follow'; use one of cpu, reports",
        ),
        (
            with("{follow: report, min: 10/s}"),
            "3:31 'report' is not a valid value of 'follow'; did you mean 'reports'?",
        ),
        (
            with("{follow: cpu, min: 10/s, taget: 80%}"),
            "3:47 config error, unknown key 'taget'; did you mean 'target'?",
        ),
        (
            with("{follow: cpu, min: 10/s, target: 99%}"),
            "3:55 'target' must be a whole percentage from 5% to 95%, not '99%'; 70% is a good start",
        ),
        (
            with("{follow: reports, min: 10/s, target: 80%}"),
            "3:51 'target' belongs to 'follow: cpu'; remove it",
        ),
        (
            with("{follow: cpu, min: 10/s, slow_above: 1s}"),
            "3:47 'slow_above' belongs to 'follow: reports'; remove it",
        ),
        (
            with("{follow: cpu, min: 60/s}"),
            "3:36 'min' of 60/s is above the limit's rate; lower it",
        ),
        (
            with("{follow: cpu, min: 10/s, max: 40/s}"),
            "3:47 'max' of 40/s is below the limit's rate; raise it, or leave it out",
        ),
        (
            with("{follow: cpu, min: 10/s burst 5}"),
            "3:36 'min' must be a rate above 0 such as 10/s; a burst comes from the limit, and \
             keeps its relation to the rate",
        ),
        (
            with("{follow: cpu, min: 10/s, period: 10ms}"),
            "3:47 'period' of 10ms is out of range; use 100ms to 60s, usually 1s",
        ),
        (
            with("{follow: cpu, min: 1/min}"),
            "3:12 'adaptive': min 0.016666666666666666 brings less than one permit in the time of \
             the burst or window, so nothing would ever pass; raise min or the burst, or take a \
             longer window",
        ),
        (
            "adaptive: {follow: cpu, min: 10/s}".to_owned(),
            "3:12 'adaptive' moves the rate of one limit; give the descriptor exactly one \
             'rate_limit' above 0 that is not unlimited",
        ),
        (
            "adaptive: {follow: cpu, min: 1/s}, rate_limit: {unlimited: true}".to_owned(),
            "3:12 'adaptive' moves the rate of one limit; give the descriptor exactly one \
             'rate_limit' above 0 that is not unlimited",
        ),
        (
            format!("lease: auto, {}", with("{follow: cpu, min: 10/s}")),
            "3:12 'lease' and 'adaptive' exclude each other, because permits taken in advance \
             would keep an old rate; remove one of them",
        ),
    ] {
        check_one(&[(&text, &[error])]);
    }
}
