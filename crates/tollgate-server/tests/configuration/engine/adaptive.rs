//! Rules with `adaptive`: a rate that follows reports or the CPU load.

use super::{Bench, plan};
use std::time::Duration;
use tollgate::{
    CallOutcome,
    adaptive::{
        LimitReason,
        rate::{CpuLoad, RateReport},
    },
};
use tollgate_server::{
    engine::{Hits, Report},
    plan::AdaptiveRule,
};

const REPORTS: &str = "descriptors:
  - key: user
    rate_limit: {name: upstream, quota: 100/s burst 200, algorithm: gcra}
    adaptive: {follow: reports, min: 10/s}
    overrides: [{value: vip, requests_per_unit: 1000}]
  - key: fixed
    rate_limit: {name: fixed, unit: second, requests_per_unit: 5}
";
const CPU: &str = "descriptors:
  - key: user
    rate_limit: {name: cpu-bound, unit: minute, requests_per_unit: 6000}
    adaptive: {follow: cpu, target: 60%, min: 10/s}
";

impl Bench {
    fn report(&self, outcome: CallOutcome, latency_ms: Option<u64>, count: u64) -> RateReport {
        let latency = latency_ms.map(Duration::from_millis);
        let report = Report { policy: "upstream", outcome, latency, count };
        self.engine.report(&self.engine.plan_arc(), &report).unwrap().report()
    }

    /// Reports calls, and lets two periods pass.
    fn period(&self, outcome: CallOutcome, count: u64) -> f64 {
        self.report(outcome, None, count);
        self.hand.advance(Duration::from_secs(2));
        self.engine.adapt();
        self.rule(AdaptiveRule::report).rate
    }

    fn rule<T>(&self, read: impl Fn(&AdaptiveRule) -> T) -> T {
        let plan = self.engine.plan_arc();
        let (_, rule) = plan.adaptive_rules().next().unwrap();
        read(rule)
    }

    /// Takes as many single permits as there are.
    fn takes(&mut self, descriptor: &str) -> u64 {
        let mut taken = 0;
        while taken < 10_000 && self.check(&[descriptor]) {
            taken += 1;
        }
        taken
    }
}

fn rounded(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}

#[test]
fn the_rate_follows_reports_between_min_and_max() {
    let mut bench = Bench::new(REPORTS);
    assert_eq!(bench.rule(AdaptiveRule::report).reason, LimitReason::Starting);
    assert_eq!(bench.takes("user=ann"), 200, "the full limit");
    assert_eq!(rounded(bench.period(CallOutcome::Overload, 20)), 90.0);
    assert_eq!(rounded(bench.period(CallOutcome::Failure, 20)), 81.0);
    assert_eq!(bench.rule(AdaptiveRule::report).reason, LimitReason::Overload);
    // The burst keeps its relation to the rate: two seconds.
    assert_eq!(bench.takes("user=new"), 162);
    for _ in 0..30 {
        bench.period(CallOutcome::Failure, 20);
    }
    let low = bench.rule(AdaptiveRule::report);
    assert_eq!((low.rate, low.reason), (10.0, LimitReason::AtMin));
    assert_eq!(bench.takes("user=newer"), 20);
    assert_eq!(bench.takes("user=vip"), 1000, "the limit of a single value does not move");
    assert_eq!(bench.period(CallOutcome::Success, 20), 15.0, "a twentieth of the maximum");
    for _ in 0..30 {
        bench.period(CallOutcome::Success, 20);
    }
    let high = bench.rule(AdaptiveRule::report);
    assert_eq!((high.rate, high.reason), (100.0, LimitReason::AtMax));
    assert_eq!(bench.takes("user=newest"), 200);
}

#[test]
fn an_exhausted_key_stays_exhausted_and_refills_at_the_rate_of_now() {
    let mut bench = Bench::new(REPORTS);
    assert_eq!(bench.takes("user=ann"), 200);
    for _ in 0..30 {
        bench.period(CallOutcome::Failure, 20);
        let _ = bench.takes("user=ann");
    }
    bench.hand.advance(Duration::from_secs(1));
    assert_eq!(bench.takes("user=ann"), 10, "a second at the minimum");
    assert!(!bench.check_n(&["user=ann"], Hits::Take(1)));
    assert_eq!(bench.remaining(), [Some(0)]);
}

#[test]
fn a_period_without_enough_reports_changes_nothing() {
    let bench = Bench::new(REPORTS);
    assert_eq!(bench.period(CallOutcome::Failure, 9), 100.0, "nine are too few");
    assert_eq!(rounded(bench.period(CallOutcome::Failure, 1)), 90.0, "the tenth ends the period");
}

#[test]
fn slow_successes_count_as_bad_if_the_file_says_so() {
    let yaml =
        REPORTS.replace("min: 10/s}", "min: 10/s, max: 150/s, slow_above: 300ms, period: 5s}");
    let bench = Bench::new(&yaml);
    for (row, (latency_ms, expected)) in
        [(Some(300), 107.5), (None, 115.0), (Some(301), 103.5)].into_iter().enumerate()
    {
        bench.report(CallOutcome::Success, latency_ms, 20);
        bench.hand.advance(Duration::from_secs(6));
        bench.engine.adapt();
        assert_eq!(rounded(bench.rule(AdaptiveRule::report).rate), expected, "row {row}");
    }
    assert_eq!(bench.rule(AdaptiveRule::report).reason, LimitReason::Queueing);
}

#[test]
fn the_rate_follows_the_cpu_load_in_a_window() {
    let mut bench = Bench::new(CPU);
    let (cpu, dial) = CpuLoad::manual();
    bench.engine.set_cpu_source(cpu);
    for (row, (load, rate, reason)) in [
        (0.62, 100.0, LimitReason::Holding),
        (1.0, 90.0, LimitReason::Overload),
        (1.0, 81.0, LimitReason::Overload),
    ]
    .into_iter()
    .enumerate()
    {
        dial.set(load);
        // Long enough for the mean of the load to forget.
        bench.hand.advance(Duration::from_secs(60));
        bench.engine.adapt();
        let report = bench.rule(AdaptiveRule::report);
        assert_eq!((rounded(report.rate), report.reason), (rate, reason), "row {row}");
    }
    assert_eq!(bench.takes("user=ann"), 4860, "81 a second in a minute");
    let plan = bench.engine.plan_arc();
    assert_eq!(bench.answer.report(&plan, bench.engine.now()).unwrap().limit, 4860);
    dial.set(0.1);
    for _ in 0..10 {
        bench.hand.advance(Duration::from_secs(60));
        bench.engine.adapt();
    }
    assert_eq!(bench.rule(AdaptiveRule::report).reason, LimitReason::AtMax);
}

#[test]
fn a_reload_keeps_the_rate_that_the_bounds_allow() {
    let mut bench = Bench::new(REPORTS);
    for _ in 0..10 {
        bench.period(CallOutcome::Failure, 20);
    }
    let before = bench.rule(AdaptiveRule::report);
    assert_eq!(rounded(before.rate), 34.87);
    // The same rule on another line: the law goes on as it was.
    bench.load(&REPORTS.replace("descriptors:", "# moved\n\ndescriptors:"));
    assert_eq!(bench.rule(AdaptiveRule::report), before);
    // max, min, rate
    for (row, (min, max, rate)) in
        [("20/s", "200/s", 34.87), ("50/s", "200/s", 50.0), ("10/s", "100/s", 50.0)]
            .into_iter()
            .enumerate()
    {
        bench.load(&REPORTS.replace("min: 10/s", &format!("min: {min}, max: {max}")));
        assert_eq!(rounded(bench.rule(AdaptiveRule::report).rate), rate, "row {row}");
        assert_eq!(bench.takes(&format!("user=row{row}")), (rate * 2.0) as u64, "row {row}");
    }
    bench.load(&REPORTS.replace("    adaptive: {follow: reports, min: 10/s}\n", ""));
    assert_eq!(bench.engine.plan_arc().adaptive_rules().count(), 0);
    assert_eq!(bench.takes("user=fixed"), 200, "the limit of the file");
}

#[test]
fn reports_that_make_no_sense_are_refused() {
    let both =
        format!("{REPORTS}{}", &CPU["descriptors:\n".len()..].replace("key: user", "key: x"));
    let bench = Bench::new(&both);
    let plan = bench.engine.plan_arc();
    let usual =
        Report { policy: "upstream", outcome: CallOutcome::Success, latency: None, count: 1 };
    let long = Some(Duration::from_secs(3601));
    for (report, words) in [
        (
            Report { count: 0, ..usual },
            "count 0 is out of range; one report can be about 1 to 1000",
        ),
        (Report { count: 1001, ..usual }, "count 1001 is out of range"),
        (Report { latency: long, ..usual }, "a latency of 3601000 ms is out of range"),
        (Report { policy: "upstraem", ..usual }, "there is no policy \"upstraem\""),
        (Report { policy: "fixed", ..usual }, "policy \"fixed\" is fixed; do not report its calls"),
        (Report { policy: "cpu-bound", ..usual }, "follows the CPU load, not reports"),
    ] {
        let error = bench.engine.report(&plan, &report).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(bench.engine.report(&plan, &usual).is_ok());
}

#[test]
fn a_rule_with_adaptive_takes_no_permits_in_advance() {
    let yaml = format!("defaults: {{lease: auto}}\n{REPORTS}");
    let plan = plan(&yaml, None);
    let lease = |name| plan.rule(plan.named(name).unwrap()).lease().to_string();
    assert_eq!((&*lease("upstream"), &*lease("fixed")), ("off", "auto"));
}
