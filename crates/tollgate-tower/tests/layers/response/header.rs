//! Headers.

use super::*;
use tollgate::Reason;
use tollgate_tower::answer::{Draft, Jitter, Legacy, OnSuccess, Partition, Refusal, Unit};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn times_are_rounded_up_and_agree() {
    let label = label("p", Quota::per_minute(5));
    // nanoseconds to wait, seconds in the header
    for (ns, expected) in [
        (0, "1"),
        (1, "1"),
        (999_999_999, "1"),
        (1_000_000_000, "1"),
        (1_000_000_001, "2"),
        (59_000_000_001, "60"),
        (60_000_000_000, "60"),
        (86_400_000_000_000, "86400"),
    ] {
        let parts = [Told::new(&label, later(5, Duration::from_nanos(ns)))];
        let headers = written(Headers::new(), &verdict(&parts));
        assert_eq!(text(&headers, "retry-after"), Some(expected), "{ns} ns");
        assert_eq!(items(&headers, "ratelimit"), [item("p", &[("r", "0"), ("t", expected)])]);
        assert_eq!(text(&headers, "cache-control"), Some("no-store"));
    }
}

#[test]
fn what_passes_is_told_what_is_left() {
    let label = label("p", Quota::per_minute(5));
    let parts = [Told::new(&label, allowed(5, 3, 24 * SECOND))];
    let headers = written(Headers::new(), &verdict(&parts));
    assert_eq!(items(&headers, "ratelimit"), [item("p", &[("r", "3"), ("t", "24")])]);
    assert_eq!(items(&headers, "ratelimit-policy"), [item("p", &[("q", "5"), ("w", "60")])]);
    assert_eq!(headers.len(), 2);
    let nothing = Headers::new().on_success(OnSuccess::Nothing);
    assert_eq!(written(nothing, &verdict(&parts)).len(), 0);
    assert_eq!(written(Headers::bare(), &verdict(&parts)).len(), 0);
}

#[test]
fn no_time_is_told_if_no_wait_helps() {
    let label = label("p", Quota::once(5));
    let spent = Answer {
        outcome: Outcome::Never,
        at: NOW,
        cost: 1,
        limit: 5,
        remaining: 0,
        retry_at: NOW,
        full_at: None,
    };
    let parts = [Told::new(&label, Decision::answered(spent))];
    let all = Headers::new().three_fields().legacy(Legacy::Delta);
    let headers = written(all, &verdict(&parts));
    assert_eq!(text(&headers, "retry-after"), None);
    assert_eq!(items(&headers, "ratelimit"), [item("p", &[("r", "0")])]);
    assert_eq!(items(&headers, "ratelimit-policy"), [item("p", &[("q", "5")])]);
    assert_eq!(text(&headers, "ratelimit-reset"), None);
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), None);
}

#[test]
fn older_headers_are_sent_if_asked_for() {
    let label = label("p", Quota::per_minute(5));
    let parts = [Told::new(&label, allowed(5, 3, Duration::from_millis(23_001)))];
    let verdict = verdict(&parts);
    let three = written(Headers::bare().three_fields(), &verdict);
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    assert_eq!(names.map(|name| text(&three, name)), [Some("5"), Some("3"), Some("24")]);
    assert_eq!(three.len(), 3);
    let delta = written(Headers::bare().legacy(Legacy::Delta), &verdict);
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(names.map(|name| text(&delta, name)), [Some("5"), Some("3"), Some("24")]);
    assert_eq!(delta.len(), 3);
    // The origin is at second 2000, the decision is 1000 seconds later, and the reset 23.001 s
    // after that.
    let epoch = written(Headers::bare().legacy(Legacy::Epoch), &verdict);
    assert_eq!(names.map(|name| text(&epoch, name)), [Some("5"), Some("3"), Some("3024")]);
    assert_eq!(text(&epoch, "date"), Some("Thu, 01 Jan 1970 00:50:00 GMT"));
    assert_eq!(epoch.len(), 4);
}

#[test]
fn names_survive_whatever_is_in_them() {
    for (name, expected) in [
        ("per-user", "per-user"),
        ("a \"quoted\" \\ name", "a \"quoted\" \\ name"),
        ("100 % 0x7e ~", "100 % 0x7e ~"),
        (";r=9,", ";r=9,"),
    ] {
        let label = label(name, Quota::per_minute(5));
        let parts = [Told::new(&label, allowed(5, 3, SECOND))];
        let headers = written(Headers::new(), &verdict(&parts));
        assert_eq!(items(&headers, "ratelimit")[0].0, expected);
        assert_eq!(items(&headers, "ratelimit-policy")[0].0, expected);
    }
}

#[test]
fn numbers_stay_within_structured_fields() {
    let most = "999999999999999";
    let label = Label::builder("p", Quota::per_second(1).burst(u64::MAX)).build().unwrap();
    let parts = [Told::new(&label, allowed(u64::MAX, u64::MAX, SECOND))];
    let headers = written(Headers::new().three_fields(), &verdict(&parts));
    assert_eq!(items(&headers, "ratelimit"), [item("p", &[("r", most), ("t", "1")])]);
    assert_eq!(items(&headers, "ratelimit-policy")[0].1["q"], most);
    assert_eq!(text(&headers, "ratelimit-remaining"), Some(most));
}

#[test]
fn what_binds_comes_first_and_all_policies_are_named_once() {
    let user = label("user", Quota::per_minute(5));
    let global = label("global", Quota::per_second(100));
    let open = label("open", Quota::unlimited());
    let bytes = Label::builder("bytes", Quota::per_hour(1_000_000)).unit(Unit::ContentBytes);
    let bytes = bytes.build().unwrap();
    let told = |label, decision| Told::new(label, decision);
    let (five, thirty) = (5 * SECOND, 30 * SECOND);
    // parts, the binding limit, its r and t, all policies
    for (parts, binding, all) in [
        (
            vec![told(&global, allowed(100, 90, SECOND)), told(&user, allowed(5, 4, five))],
            ("user", "4", Some("5")),
            &["user", "global"][..],
        ),
        (
            vec![told(&global, later(100, five)), told(&user, later(5, thirty))],
            ("user", "0", Some("30")),
            &["user", "global"],
        ),
        (
            vec![told(&global, later(100, SECOND)), told(&user, allowed(5, 0, thirty))],
            ("global", "0", Some("1")),
            &["global", "user"],
        ),
        (
            vec![told(&user, later(5, thirty)).shadow(), told(&global, allowed(100, 9, SECOND))],
            ("global", "9", Some("1")),
            &["global"],
        ),
        (
            vec![told(&open, allowed(u64::MAX, 0, SECOND)), told(&user, allowed(5, 4, five))],
            ("user", "4", Some("5")),
            &["user"],
        ),
        (
            vec![told(&user, allowed(5, 4, five)), told(&bytes, allowed(1_000_000, 99, five))],
            ("bytes", "99", Some("5")),
            &["bytes", "user"],
        ),
        (
            vec![
                told(&user, allowed(3, 3, five)),
                told(&bytes, allowed(1_000_000, 900_000, five)),
                told(&global, allowed(1000, 5, five)),
            ],
            ("bytes", "900000", Some("5")),
            &["bytes", "user", "global"],
        ),
        (
            vec![told(&user, allowed(5, 4, five)), told(&user, allowed(5, 2, five))],
            ("user", "2", Some("5")),
            &["user"],
        ),
    ] {
        let headers = written(Headers::new(), &verdict(&parts));
        let left = items(&headers, "ratelimit");
        let (name, parameters) = &left[0];
        let t = parameters.get("t").map(String::as_str);
        assert_eq!((name.as_str(), parameters["r"].as_str(), t), binding);
        let policies = items(&headers, "ratelimit-policy");
        assert_eq!(policies.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), all);
    }
}

#[test]
fn nothing_is_told_where_nothing_limits() {
    let open = label("open", Quota::unlimited());
    let parts = [Told::new(&open, allowed(u64::MAX, u64::MAX, SECOND))];
    let all = Headers::new().three_fields().legacy(Legacy::Epoch).envoy();
    for parts in [&parts[..], &[]] {
        assert_eq!(written(all, &verdict(parts)).len(), 0);
    }
}

#[test]
fn who_is_on_a_deny_list_is_refused_where_nothing_limits() {
    let (open, user) = (label("open", Quota::unlimited()), label("user", Quota::per_minute(5)));
    let parts = [Told::new(&user, allowed(5, 3, SECOND)), Told::new(&open, never(u64::MAX))];
    let verdict = verdict(&parts);
    assert!(!verdict.is_allowed());
    let headers = written(Headers::new(), &verdict);
    assert_eq!(text(&headers, "retry-after"), None);
    assert_eq!(items(&headers, "ratelimit-policy").len(), 1);
}

#[test]
fn there_are_at_most_sixteen_policies() {
    let labels: Vec<_> = (0..64).map(|n| label(&format!("p{n}"), Quota::per_minute(5))).collect();
    let parts: Vec<_> = labels.iter().map(|label| Told::new(label, later(5, SECOND))).collect();
    let headers = written(Headers::new(), &verdict(&parts));
    assert_eq!(items(&headers, "ratelimit-policy").len(), 16);
}

#[test]
fn a_partition_is_told_as_bytes_and_never_as_the_key() {
    let label = label("p", Quota::per_minute(5));
    let partition = Partition::hashed(&[7; 16], b"alice@example.org");
    let parts = [Told::new(&label, later(5, SECOND)).partition(partition)];
    let headers = written(Headers::new(), &verdict(&parts));
    assert_eq!(items(&headers, "ratelimit")[0].1["pk"], "12 bytes");
    assert_eq!(items(&headers, "ratelimit-policy")[0].1["pk"], "12 bytes");
}

#[test]
fn jitter_lengthens_in_proportion_to_the_window() {
    let label = label("p", Quota::per_minute(5));
    let parts = [Told::new(&label, later(5, 2 * SECOND))];
    let tenth = Jitter::percent_of_window(10).unwrap();
    // random, seconds in the header
    for (random, expected) in [(0, "2"), (1 << 63, "5"), (u64::MAX, "8")] {
        let verdict = verdict(&parts).jittered(tenth, || random);
        let headers = written(Headers::new().legacy(Legacy::Delta), &verdict);
        assert_eq!(text(&headers, "retry-after"), Some(expected));
        assert_eq!(items(&headers, "ratelimit")[0].1["t"], expected);
        assert_eq!(text(&headers, "x-ratelimit-reset"), Some(expected));
    }
    for parts in [[Told::new(&label, allowed(5, 1, SECOND))], [Told::new(&label, never(5))]] {
        let _ = verdict(&parts).jittered(tenth, || panic!("there is no wait to lengthen"));
    }
}

#[test]
fn overload_is_refused_with_the_wait_it_is_given() {
    let slots = Label::builder("slots", Quota::once(8)).unit(Unit::ConcurrentRequests);
    let slots = slots.build().unwrap();
    let parts = [Told::new(&slots, never(8))];
    let busy = verdict(&parts).refused(Refusal::ReducedCapacity);
    let headers = written(Headers::new(), &busy);
    assert_eq!(text(&headers, "retry-after"), None);
    let expected = [item("slots", &[("q", "8"), ("qu", "concurrent-requests")])];
    assert_eq!(items(&headers, "ratelimit-policy"), expected);
    let headers = written(Headers::new(), &busy.wait_at_least(2 * SECOND));
    assert_eq!(text(&headers, "retry-after"), Some("2"));
    // Without any limit, there is still a wait.
    let busy = verdict(&[]).refused(Refusal::ReducedCapacity).wait_at_least(3 * SECOND);
    let headers = written(Headers::new().envoy(), &busy);
    assert_eq!(text(&headers, "retry-after"), Some("3"));
    assert_eq!(text(&headers, "x-envoy-ratelimited"), Some("true"));
    assert_eq!(text(&headers, "ratelimit"), None);
    // A request that never passes does not pass after a wait either.
    let label = label("p", Quota::per_minute(5));
    let parts = [Told::new(&label, never(5))];
    let headers = written(Headers::new(), &verdict(&parts).wait_at_least(SECOND));
    assert_eq!(text(&headers, "retry-after"), None);
}

#[test]
fn retry_after_on_success_is_a_choice() {
    let label = label("p", Quota::per_minute(60).burst(5));
    let choice = Headers::new().on_success(OnSuccess::LeftAndRetryAfter);
    for (remaining, full_after, expected) in [(1, 4, None), (0, 5, Some("1"))] {
        let parts = [Told::new(&label, allowed(5, remaining, full_after * SECOND))];
        let headers = written(choice, &verdict(&parts));
        assert_eq!(text(&headers, "retry-after"), expected);
        assert_eq!(text(&written(Headers::new(), &verdict(&parts)), "retry-after"), None);
    }
}

#[test]
fn headers_from_further_in_are_only_tightened() {
    let label = label("outer", Quota::per_minute(5));
    let parts = [Told::new(&label, allowed(5, 3, SECOND))];
    let all = Headers::new().legacy(Legacy::Delta).on_success(OnSuccess::LeftAndRetryAfter);
    // remaining in the header before, remaining afterwards
    for (there, expected) in [("2", "2"), ("3", "3"), ("4", "3"), ("nonsense", "3")] {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", "\"inner\";r=1".parse().unwrap());
        headers.insert("x-ratelimit-remaining", there.parse().unwrap());
        headers.insert("retry-after", "7".parse().unwrap());
        all.write(&verdict(&parts), &mut headers);
        assert_eq!(text(&headers, "x-ratelimit-remaining"), Some(expected), "{there}");
        assert_eq!(text(&headers, "retry-after"), Some("7"));
        let names: Vec<_> =
            items(&headers, "ratelimit").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["inner", "outer"]);
    }
}

#[test]
fn the_draft_is_named() {
    assert_eq!(Headers::bare().draft(Draft::R11), Headers::new());
}

#[test]
fn the_reason_decides_who_is_at_fault() {
    for (reason, refusal, status) in [
        (Reason::Quota, Refusal::QuotaExceeded, 429),
        (Reason::Blocked, Refusal::AbnormalUsage, 429),
        (Reason::DenyListed, Refusal::Forbidden, 403),
        (Reason::Saturated, Refusal::ReducedCapacity, 503),
        (Reason::Degraded, Refusal::ReducedCapacity, 503),
    ] {
        assert_eq!(Refusal::of(reason), refusal);
        assert_eq!(refusal.status().as_u16(), status);
    }
}
