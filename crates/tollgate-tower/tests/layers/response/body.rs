//! Bodies.

use super::*;
use serde_json::{Value, json};
use tollgate_tower::answer::{Body, Refusal, Unit};

const SECOND: Duration = Duration::from_secs(1);
const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

#[test]
fn a_problem_says_what_and_when() {
    let label = label("default", Quota::per_minute(100));
    let parts = [Told::new(&label, later(100, Duration::from_millis(4001)))];
    let response = Headers::new().response(&verdict(&parts), Body::Problem);
    assert_eq!(response.status(), 429);
    assert_eq!(text(response.headers(), "content-type"), Some("application/problem+json"));
    assert_eq!(text(response.headers(), "retry-after"), Some("5"));
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    let expected = json!({
        "type": format!("{TYPES}quota-exceeded"),
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Policy default allows 100 requests per 60 s; retry in 5 s.",
        "violated-policies": ["default"],
    });
    assert_eq!(body, expected);
}

#[test]
fn each_refusal_has_its_type_title_and_status() {
    for (refusal, name, title, status) in [
        (Refusal::QuotaExceeded, "quota-exceeded", "Quota Exceeded", 429),
        (Refusal::ReducedCapacity, "temporary-reduced-capacity", "Temporary Reduced Capacity", 503),
        (Refusal::AbnormalUsage, "abnormal-usage-detected", "Abnormal Usage Detected", 429),
    ] {
        let verdict = verdict(&[]).refused(refusal);
        let response = Headers::new().response(&verdict, Body::Problem);
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(body["type"], format!("{TYPES}{name}"));
        assert_eq!((&body["title"], &body["status"]), (&json!(title), &json!(status)));
        assert_eq!(body["violated-policies"], json!([]));
    }
    let verdict = verdict(&[]).refused(Refusal::Forbidden);
    let response = Headers::new().response(&verdict, Body::Problem);
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!((&body["type"], &body["status"]), (&json!("about:blank"), &json!(403)));
}

#[test]
fn details_are_sentences() {
    let ms = Duration::from_millis;
    let of = |quota| label("p", quota);
    let (minute, burst) = (of(Quota::per_minute(5)), of(Quota::per_second(10).burst(20)));
    let short = of(Quota::per(5, ms(100)));
    let once = of(Quota::once(5));
    let unit = |quota, unit| Label::builder("p", quota).unit(unit).build().unwrap();
    let bytes = unit(Quota::per_second(9), Unit::ContentBytes);
    let slots = unit(Quota::once(8), Unit::ConcurrentRequests);
    let tokens = unit(Quota::per_day(9), Unit::Other("tokens".into()));
    let large = Answer {
        outcome: Outcome::Never,
        at: NOW,
        cost: 9,
        limit: 5,
        remaining: 5,
        retry_at: NOW,
        full_at: Some(NOW),
    };
    for (label, decision, expected) in [
        (&minute, later(5, ms(1)), "Policy p allows 5 requests per 60 s; retry in 1 s."),
        (
            &burst,
            later(20, SECOND),
            "Policy p allows 10 requests per 1 s, 20 at once; retry in 1 s.",
        ),
        (&short, later(5, ms(7)), "Policy p allows 5 requests per 100 ms; retry in 1 s."),
        (&bytes, later(9, SECOND), "Policy p allows 9 bytes per 1 s; retry in 1 s."),
        (&tokens, later(9, SECOND), "Policy p allows 9 tokens per 86400 s; retry in 1 s."),
        (&slots, never(8), "Policy p allows 8 concurrent requests; retry later."),
        (&once, never(5), "Policy p allows 5 requests in total; they do not refill."),
        (
            &minute,
            Decision::answered(large),
            "Policy p allows at most 5 requests at once; ask for less.",
        ),
    ] {
        let parts = [Told::new(label, decision)];
        let response = Headers::new().response(&verdict(&parts), Body::Text);
        assert_eq!(text(response.headers(), "content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(response.body(), &format!("{expected}\n"));
    }
    for (refusal, expected) in [
        (Refusal::QuotaExceeded, "The quota is used up; retry in 2 s.\n"),
        (Refusal::ReducedCapacity, "The server is too busy; retry in 2 s.\n"),
        (
            Refusal::AbnormalUsage,
            "This client is throttled because of unusual usage; retry in 2 s.\n",
        ),
        (Refusal::Forbidden, "This client is not allowed.\n"),
    ] {
        let verdict = verdict(&[]).refused(refusal).wait_at_least(2 * SECOND);
        assert_eq!(Headers::new().response(&verdict, Body::Text).body(), expected);
    }
}

#[test]
fn only_policies_that_refuse_are_named_each_once() {
    let (user, global) =
        (label("us\"er%0A\\ ", Quota::per_minute(5)), label("g", Quota::per_day(9)));
    let watched = label("watched", Quota::per_minute(1));
    let parts = [
        Told::new(&global, allowed(9, 1, SECOND)),
        Told::new(&user, later(5, SECOND)),
        Told::new(&watched, later(1, SECOND)).shadow(),
        Told::new(&user, later(5, 2 * SECOND)),
    ];
    let response = Headers::new().response(&verdict(&parts), Body::Problem);
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(body["violated-policies"], json!(["us\"er%0A\\ "]));
    assert_eq!(text(response.headers(), "retry-after"), Some("2"));
}

#[test]
fn an_empty_body_has_no_type() {
    let response =
        Headers::new().response(&verdict(&[]).refused(Refusal::QuotaExceeded), Body::Empty);
    assert_eq!((response.status().as_u16(), response.body().len()), (429, 0));
    assert_eq!(text(response.headers(), "content-type"), None);
}
