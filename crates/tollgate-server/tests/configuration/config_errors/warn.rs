//! Thresholds (`warn`) that cannot be.

use super::check_one;

#[test]
fn thresholds_are_ascending_percentages_of_a_limit() {
    const RATE: &str = "unit: second, requests_per_unit: 50";
    let with = |warn: &str| format!("rate_limit: {{warn: {warn}, {RATE}}}");
    let range = |text: &str| {
        format!("'warn' must have whole percentages from 1% to 100% of the limit, not '{text}'")
    };
    for (text, error) in [
        (with("0%"), format!("3:31 {}", range("0%"))),
        (with("[80%, 101%]"), format!("3:37 {}", range("101%"))),
        (with("[300]"), format!("3:32 {}", range("300"))),
        (with("99.5%"), format!("3:31 {}", range("99.5%"))),
        (with("[high]"), format!("3:32 {}", range("high"))),
        (with("-5%"), format!("3:31 {}", range("-5%"))),
        (with("[80%, 80]"), "3:37 80% is listed twice in 'warn'; remove one".into()),
        (with("[95%, 80%]"), "3:37 'warn' must ascend, but 80% follows 95%; sort it".into()),
        (
            with("[1, 2, 3, 4, 5, 6, 7, 8, 9]"),
            "3:31 'warn' has 9 percentages; use at most 8".into(),
        ),
        (with("[]"), "3:31 'warn' is empty; write for example [80%, 95%], or remove it".into()),
        (with("{high: 80%}"), "3:31 'warn' must be a string, not a map".into()),
        (
            "rate_limit: {warn: 80%, unlimited: true}".into(),
            "3:25 'warn' has percentages of a limit above 0; give one, or remove 'warn'".into(),
        ),
        (
            "rate_limit: {warn: 80%, unit: day, requests_per_unit: 0}".into(),
            "3:25 'warn' has percentages of a limit above 0; give one, or remove 'warn'".into(),
        ),
        (
            format!("warn: 80%, rate_limit: {{{RATE}}}"),
            "3:12 config error, unknown key 'warn'; it belongs in a rate limit, but this is a \
             descriptor"
                .into(),
        ),
    ] {
        check_one(&[(&text, &[&error])]);
    }
}
