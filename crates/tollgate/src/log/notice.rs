//! Events of the throttle's own: notices, and the request to flush.
//!
//! An event needs a static callsite, and its level is fixed. So there is one callsite for each level.

use std::sync::LazyLock;
use tracing::{
    Event, Level, Metadata, Subscriber as _,
    callsite::{DefaultCallsite, Identifier},
    field::{Field, FieldSet, Value, Visit, display},
    metadata::Kind,
};
use tracing_subscriber::{
    Registry,
    filter::LevelFilter,
    layer::{Layered, SubscriberExt as _},
};

macro_rules! callsite {
    ($metadata:ident, $name:literal, $level:expr, $fields:expr) => {
        static $metadata: Metadata<'static> = {
            static SITE: DefaultCallsite = DefaultCallsite::new(&$metadata);
            let fields = FieldSet::new($fields, Identifier(&SITE));
            Metadata::new($name, "tollgate::log", $level, None, None, None, fields, Kind::EVENT)
        };
    };
}

const NOTICE_FIELDS: &[&str] = &["message", "callsite", "left_out", "key"];

callsite!(AT_ERROR, "log throttle", Level::ERROR, NOTICE_FIELDS);
callsite!(AT_WARN, "log throttle", Level::WARN, NOTICE_FIELDS);
callsite!(AT_INFO, "log throttle", Level::INFO, NOTICE_FIELDS);
callsite!(AT_DEBUG, "log throttle", Level::DEBUG, NOTICE_FIELDS);
callsite!(AT_TRACE, "log throttle", Level::TRACE, NOTICE_FIELDS);
callsite!(FLUSH, "log throttle flush", Level::ERROR, &["throttle"]);

fn of_level(level: Level) -> &'static Metadata<'static> {
    match level {
        Level::ERROR => &AT_ERROR,
        Level::WARN => &AT_WARN,
        Level::INFO => &AT_INFO,
        Level::DEBUG => &AT_DEBUG,
        Level::TRACE => &AT_TRACE,
    }
}

/// What a notice says.
#[derive(Debug)]
pub(super) struct Notice {
    /// The callsite that it is about; of several, one of them.
    pub(super) about: &'static Metadata<'static>,
    /// The value of the field that lines are counted by.
    pub(super) key: Option<Box<str>>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// So many lines of one callsite were left out.
    LeftOut(u64),
    /// So many lines of callsites or values beyond `max_keys`.
    LeftOutOfOthers(u64),
    /// The `tollgate.rate` of the callsite cannot be used.
    WrongRate(String),
}

impl Notice {
    pub(super) fn lines(&self) -> u64 {
        match self.content {
            Content::LeftOut(lines) | Content::LeftOutOfOthers(lines) => lines,
            Content::WrongRate(_) => 0,
        }
    }

    /// Counts more lines.
    pub(super) fn add_lines(&mut self, more: u64) {
        if let Content::LeftOut(lines) | Content::LeftOutOfOthers(lines) = &mut self.content {
            *lines = lines.saturating_add(more);
        }
    }

    /// Adds its lines to a notice about the same lines, if there is one.
    pub(super) fn merge_into(self, sum: &mut Option<Self>) {
        match sum {
            Some(sum) => sum.add_lines(self.lines()),
            None => *sum = Some(self),
        }
    }

    /// Calls `deliver` with the event.
    pub(super) fn as_event(&self, deliver: impl FnOnce(&Event<'_>)) {
        let callsite = match (&self.content, self.about.file(), self.about.line()) {
            (Content::LeftOutOfOthers(_), ..) => "several".to_owned(),
            (_, Some(file), Some(line)) => format!("{file}:{line}"),
            _ => self.about.target().to_owned(),
        };
        let lines = self.lines();
        let message = match &self.content {
            Content::WrongRate(error) => error.clone(),
            _ if lines == 1 => "1 log line left out".to_owned(),
            _ => format!("{lines} log lines left out"),
        };
        // As the macros record a message: an output that shows strings in quotes shows this one without.
        let message = display(message);
        let metadata = of_level(*self.about.level());
        let mut fields = metadata.fields().iter();
        let mut next = || fields.next().expect("there are as many fields as names");
        let key = self.key.as_deref();
        let values = [
            (&next(), Some(&message as &dyn Value)),
            (&next(), Some(&callsite.as_str() as &dyn Value)),
            (&next(), (lines > 0).then_some(&lines as &dyn Value)),
            (&next(), key.as_ref().map(|key| key as &dyn Value)),
        ];
        deliver(&Event::new(metadata, &metadata.fields().value_set(&values)));
    }
}

/// Calls `send` with the event that asks the throttle of this number to flush.
pub(super) fn flush_request(throttle: u64, send: impl FnOnce(&Event<'_>)) {
    forget_filter_answers();
    let field = FLUSH.fields().iter().next().expect("a flush has one field");
    let values = [(&field, Some(&throttle as &dyn Value))];
    send(&Event::new(&FLUSH, &FLUSH.fields().value_set(&values)));
}

/// Makes the filters on this thread forget what they answered last.
///
/// A filter of a layer keeps its answer to `enabled` for the event that follows. After `tracing::enabled!` none follows.
/// An answer that is left from another line would keep the request from the throttle, and let other outputs show it. A subscriber
/// that wants nothing clears the answers, which belong to the thread.
fn forget_filter_answers() {
    static NOTHING: LazyLock<Layered<LevelFilter, Registry>> =
        LazyLock::new(|| tracing_subscriber::registry().with(LevelFilter::OFF));
    NOTHING.enabled(&FLUSH);
}

/// Tells whether the event asks some throttle to flush.
pub(super) fn is_flush_request(event: &Event<'_>) -> bool {
    event.metadata().callsite() == FLUSH.callsite()
}

/// Tells whether the event asks the throttle of this number to flush.
pub(super) fn asks_to_flush(event: &Event<'_>, throttle: u64) -> bool {
    struct Number(Option<u64>);
    impl Visit for Number {
        fn record_u64(&mut self, _: &Field, number: u64) {
            self.0 = Some(number);
        }
        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }
    if !is_flush_request(event) {
        return false;
    }
    let mut number = Number(None);
    event.record(&mut number);
    number.0 == Some(throttle)
}
