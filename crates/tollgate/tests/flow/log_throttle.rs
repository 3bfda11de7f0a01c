//! The log throttle, in tables: which lines pass, and the text of the notices.

use std::{
    error::Error as _,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Driver, Initial, ManualClock, Quota,
    log::{LogThrottle, LogThrottleBuilder, LogThrottleHandle, LogUnit},
};
use tracing::{Event, Subscriber, field::Field};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

const SECOND: Duration = Duration::from_secs(1);

/// An output that keeps its lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Line>>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: String,
    pub(crate) target: String,
    pub(crate) message: String,
    pub(crate) callsite: Option<String>,
    pub(crate) key: Option<String>,
    /// How many lines it replaces, if it is a notice.
    pub(crate) left_out: Option<u64>,
}

impl tracing::field::Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "left_out" {
            self.left_out = Some(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "callsite" => self.callsite = Some(value.into()),
            "key" => self.key = Some(value.into()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let level = metadata.level().to_string();
        let mut line = Line { level, target: metadata.target().into(), ..Line::default() };
        event.record(&mut line);
        self.0.lock().unwrap().push(line);
    }
}

impl Recorder {
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap().clone()
    }

    /// Takes the texts; a notice becomes its number.
    fn take(&self) -> Vec<String> {
        let lines = std::mem::take(&mut *self.0.lock().unwrap());
        let text = |line: Line| line.left_out.map_or(line.message, |lines| format!("+{lines}"));
        lines.into_iter().map(text).collect()
    }
}

/// A throttle before an output, in a subscriber of its own.
struct Setup {
    hand: ManualClock,
    output: Recorder,
    handle: LogThrottleHandle,
    dispatch: tracing::Dispatch,
}

impl Setup {
    fn new(quota: Quota, set: impl FnOnce(LogThrottleBuilder) -> LogThrottleBuilder) -> Self {
        let (hand, output) = (ManualClock::new(), Recorder::default());
        let builder = LogThrottle::builder(quota).driver(Driver::manual(&hand));
        let throttle = set(builder).build().unwrap();
        let handle = throttle.handle();
        let layer = throttle.wrap(output.clone());
        let dispatch = tracing::Dispatch::new(tracing_subscriber::registry().with(layer));
        Self { hand, output, handle, dispatch }
    }

    fn run(&self, log: impl FnOnce()) -> Vec<String> {
        tracing::dispatcher::with_default(&self.dispatch, log);
        self.output.take()
    }
}

fn per_minute() -> Quota {
    Quota::per_minute(60).burst(20)
}

#[test]
fn a_thousand_lines_at_once_are_twenty_and_a_notice_of_the_others() {
    let setup = Setup::new(per_minute(), |builder| builder);
    let log = |lines: u32| (0..lines).for_each(|_| tracing::warn!("full"));
    // seconds later, lines emitted, the lines written
    let rows: [(u64, u32, Vec<&str>); 5] = [
        (0, 1000, vec!["full"; 20]),
        (1, 1, vec!["+980", "full"]),
        (1, 1, vec!["full"]),
        (1, 3, vec!["full"]),
        (2, 2, vec!["+2", "full", "full"]),
    ];
    for (row, (later, lines, written)) in rows.into_iter().enumerate() {
        setup.hand.advance(SECOND * u32::try_from(later).unwrap());
        assert_eq!(setup.run(|| log(lines)), written, "row {row}");
    }
    let counts = setup.handle.counts();
    assert_eq!((counts.passed, counts.left_out), (25, 982));
}

#[test]
fn callsites_have_quotas_of_their_own() {
    let setup = Setup::new(Quota::per_minute(1), |builder| builder);
    let log = || {
        for _ in 0..3 {
            tracing::warn!("one");
            tracing::error!("two");
        }
    };
    assert_eq!(setup.run(log), ["one", "two"]);
    // A line of one callsite does not affect another.
    setup.hand.advance(SECOND * 20);
    assert_eq!(setup.run(|| tracing::info!("three")), ["three"]);
}

#[test]
fn a_flood_that_just_ends_is_reported_after_thirty_seconds() {
    let setup = Setup::new(per_minute(), |builder| builder);
    setup.run(|| (0..1000).for_each(|_| tracing::warn!("full")));
    setup.hand.advance(SECOND * 30 - Duration::from_nanos(1));
    assert!(setup.output.take().is_empty());
    setup.hand.advance(Duration::from_nanos(1));
    let notices = setup.output.lines();
    assert_eq!(notices.len(), 1);
    let Line { level, target, message, callsite, key, left_out } = notices[0].clone();
    assert_eq!((level.as_str(), target.as_str()), ("WARN", "tollgate::log"));
    assert_eq!((message.as_str(), left_out, key), ("980 log lines left out", Some(980), None));
    assert!(callsite.unwrap().contains("flow/log_throttle.rs:"));
    // Only once.
    setup.output.take();
    setup.hand.advance(SECOND * 300);
    setup.handle.flush();
    assert!(setup.output.take().is_empty());
}

#[test]
fn a_flush_and_the_end_of_the_handle_report_at_once() {
    let setup = Setup::new(Quota::per_minute(1), |builder| builder);
    setup.run(|| (0..5).for_each(|_| tracing::warn!("full")));
    setup.handle.flush();
    assert_eq!(setup.output.take(), ["+4"]);
    setup.run(|| (0..3).for_each(|_| tracing::debug!("more")));
    drop(setup.handle);
    assert_eq!(setup.output.take(), ["+2"]);
}

#[test]
fn without_a_subscriber_a_flush_keeps_the_count() {
    let (hand, output) = (ManualClock::new(), Recorder::default());
    let builder = LogThrottle::builder(per_minute()).driver(Driver::manual(&hand));
    let throttle = builder.build().unwrap();
    let handle = throttle.handle();
    handle.flush();
    let subscriber = tracing_subscriber::registry().with(throttle.wrap(output.clone()));
    tracing::subscriber::with_default(subscriber, || {
        (0..22).for_each(|_| tracing::warn!("full"));
    });
    handle.flush();
    assert_eq!(handle.counts().left_out, 2);
    assert_eq!(output.lines().len(), 20);
}

#[test]
fn an_event_overrides_the_quota_of_its_callsite() {
    let setup = Setup::new(Quota::per_minute(2), |builder| builder);
    let run = |log: &dyn Fn()| setup.run(|| (0..4).for_each(|_| log()));
    assert_eq!(run(&|| tracing::info!(tollgate.rate = "3/min", "own")), ["own"; 3]);
    assert_eq!(run(&|| tracing::info!(tollgate.rate = false, "all")), ["all"; 4]);
    let lines = run(&|| tracing::info!(tollgate.rate = "3/mn", "wrong"));
    assert_eq!(lines[1..], ["wrong"; 2]);
    assert!(
        lines[0].starts_with("the tollgate.rate \"3/mn\" of a log line is neither"),
        "{lines:?}"
    );
    assert_eq!(run(&|| tracing::info!(tollgate.rate = 7, "no quota"))[1..], ["no quota"; 2]);
    // The default is untouched.
    assert_eq!(run(&|| tracing::info!("default")), ["default"; 2]);
}

#[test]
fn values_of_a_field_count_by_themselves() {
    let setup = Setup::new(Quota::per_minute(1), |builder| builder.by("tenant"));
    let log = |tenant: &str, other: u32| tracing::info!(tenant, other, "{tenant}");
    let lines = setup.run(|| {
        for other in 0..3 {
            log("a", other);
            log("b", other);
        }
    });
    assert_eq!(lines, ["a", "b"]);
    setup.handle.flush();
    let mut notices = setup.output.lines();
    notices.sort_by(|one, two| one.key.cmp(&two.key));
    let keys: Vec<_> = notices.iter().map(|line| (line.key.as_deref(), line.left_out)).collect();
    assert_eq!(keys, [(Some("a"), Some(2)), (Some("b"), Some(2))]);
}

#[test]
fn a_span_gives_its_value_to_the_lines_inside() {
    let setup = Setup::new(Quota::per_minute(1), |builder| builder.by("tenant"));
    let log = || (0..2).for_each(|_| tracing::info!("line"));
    let in_span = |tenant: &str| {
        let span = tracing::info_span!("outer", tenant);
        span.in_scope(|| tracing::info_span!("inner", other = 1).in_scope(log));
    };
    let lines = setup.run(|| {
        log();
        in_span("a");
        in_span("b");
        in_span("a");
        let late = tracing::info_span!("late", tenant = tracing::field::Empty);
        late.record("tenant", "c");
        late.in_scope(log);
        // The event's own value wins.
        tracing::info_span!("outer", tenant = "d").in_scope(|| {
            (0..2).for_each(|_| tracing::info!(tenant = "e", "own"));
        });
    });
    assert_eq!(lines, ["line", "line", "line", "line", "own"]);
    setup.handle.flush();
    let keys: Vec<_> =
        setup.output.lines().into_iter().map(|line| (line.key, line.left_out)).collect();
    for (key, left_out) in
        [(None, 1), (Some("a"), 3), (Some("b"), 1), (Some("c"), 1), (Some("e"), 1)]
    {
        assert!(keys.contains(&(key.map(String::from), Some(left_out))), "{key:?} in {keys:?}");
    }
}

#[test]
fn more_keys_than_the_bound_share_a_notice() {
    let setup = Setup::new(Quota::once(1), |builder| builder.by("user").max_keys(8));
    setup.run(|| {
        for user in 0..1000_u32 {
            (0..3).for_each(|_| tracing::info!(user, "line"));
        }
    });
    let passed = setup.handle.counts().passed;
    setup.handle.flush();
    let notices = setup.output.lines();
    assert!(notices.len() <= 9, "{} notices", notices.len());
    assert_eq!(notices.last().unwrap().callsite.as_deref(), Some("several"));
    let left_out: u64 = notices.iter().filter_map(|line| line.left_out).sum();
    assert_eq!(passed + left_out, 3000);
}

#[test]
fn bytes_are_those_of_message_and_fields() {
    let quota = Quota::per_second(100).burst(100);
    let setup = Setup::new(quota, |builder| builder.unit(LogUnit::Bytes));
    // 30 bytes: 18 of the message, "user" and "12345678".
    let log = || tracing::info!(user = 12_345_678, "eighteen byte line");
    // The fourth finds 10 bytes, passes, and owes 20.
    assert_eq!(setup.run(|| (0..9).for_each(|_| log())).len(), 4);
    setup.hand.advance(Duration::from_millis(209));
    assert!(setup.run(log).is_empty());
    setup.hand.advance(Duration::from_millis(1));
    assert_eq!(setup.run(log), ["+6", "eighteen byte line"]);
}

#[test]
fn an_exempt_target_is_never_left_out() {
    let setup = Setup::new(Quota::per_minute(1), |builder| builder.exempt_target("audit"));
    let lines = setup.run(|| {
        for _ in 0..3 {
            tracing::info!(target: "audit", "exact");
            tracing::info!(target: "audit::login", "below");
            tracing::info!(target: "auditor", "beside");
        }
    });
    let count = |text: &str| lines.iter().filter(|line| *line == text).count();
    assert_eq!((count("exact"), count("below"), count("beside")), (3, 3, 1));
}

#[test]
fn a_line_that_is_left_out_is_not_formatted() {
    struct Costly<'a>(&'a AtomicU64);
    impl fmt::Debug for Costly<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fetch_add(1, Relaxed);
            f.write_str("costly")
        }
    }
    for unit in [LogUnit::Lines, LogUnit::Bytes] {
        let setup = Setup::new(Quota::per_minute(1), |builder| builder.unit(unit));
        let formatted = AtomicU64::new(0);
        setup.run(|| tracing::info!(cost = ?Costly(&formatted), "warm"));
        let before = formatted.load(Relaxed);
        assert!(before > 0);
        let again = || (0..2).for_each(|_| tracing::info!(cost = ?Costly(&formatted), "line"));
        setup.run(again);
        // One of the two passed.
        assert_eq!(formatted.load(Relaxed), before * 2, "{unit:?}");
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let driver = || Driver::manual(&ManualClock::new());
    let builder = |quota| LogThrottle::builder(quota).driver(driver());
    for (builder, rule, cause) in [
        (builder(per_minute()).max_keys(0), "quota or max_keys", "a table for 0 keys"),
        (builder(per_minute().initial(Initial::Empty)), "quota or max_keys", "a fresh key"),
        (builder(per_minute()).notice_after(Duration::ZERO), "notice_after", "0 s"),
    ] {
        let error = builder.build().unwrap_err();
        let source = error.source().unwrap().to_string();
        assert!(error.to_string().contains(rule) && source.contains(cause), "{error}: {source}");
    }
}
