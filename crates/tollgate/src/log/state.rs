//! Decisions about lines, and the count of what was left out.
//!
//! A [`KeyedLimiter`] decides, without a lock. A line that is left out is added to a map of pending notices, under a short lock.
//! There are several maps, and a thread adds to that of its stripe, so threads that leave lines out at once do not wait
//! for each other. A line that passes takes the notices of its callsite out of the maps, and writes their sum; it locks only
//! maps that have any. So each line left out is in one map until exactly one thread takes it out.

use super::{
    LogCounts, LogThrottleBuilder, LogUnit,
    notice::{Content, Notice, flush_request},
};
use crate::{
    Clock, KeyedError, KeyedLimiter, Quota,
    observe::{StripedCounter, own_stripe},
    sync::{Mutex, Padded, lock},
};
use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tracing::{
    Dispatch, Event, Metadata,
    callsite::Identifier,
    dispatcher::{WeakDispatch, get_default},
    field::{Field, Visit},
    subscriber::NoSubscriber,
};

/// The field by which a callsite chooses its quota.
const RATE: &str = "tollgate.rate";

/// Lines with the same key share a quota and a notice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LineKey {
    callsite: Identifier,
    /// Fingerprint of the value of the field, if lines are counted by one.
    value: u64,
}

/// The value of the field that lines are counted by.
#[derive(Clone, Debug)]
pub(super) struct FieldValue {
    fingerprint: u64,
    /// What a notice shows of it.
    shown: Box<str>,
}

impl FieldValue {
    /// Characters that a notice shows.
    const SHOWN: usize = 64;

    /// Returns the value of a field among those that `record` shows to a visitor.
    pub(super) fn find(name: &str, record: impl FnOnce(&mut dyn Visit)) -> Option<Self> {
        // Values are chosen by strangers, so the fingerprint has a secret. Spans keep it for every throttle.
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut text = TextOf { name, text: None };
        record(&mut text);
        let text = text.text?;
        let shown = text.chars().take(Self::SHOWN).collect::<String>().into();
        Some(Self { fingerprint: SECRET.hash_one(&text), shown })
    }
}

/// How the lines of a callsite with a `tollgate.rate` are treated.
#[derive(Clone, Debug)]
enum Override {
    NeverLeftOut,
    Quota(KeyedLimiter<LineKey>),
}

pub(super) enum LineDecision {
    /// The line passes, after these notices.
    Pass([Option<Notice>; 2]),
    /// It is left out; true if it is the first since the last notice of its key.
    LeftOut { is_first: bool },
}

#[derive(Debug)]
pub(super) struct State {
    /// Tells throttles of one subscriber apart.
    pub(super) number: u64,
    limiter: KeyedLimiter<LineKey>,
    unit: LogUnit,
    by: Option<Box<str>>,
    exempt: Vec<Box<str>>,
    max_keys: u64,
    /// As many as the program has callsites with that field; `None` if the value of the field makes no sense.
    overrides: RwLock<HashMap<Identifier, Option<Override>>>,
    pending: [Padded<PendingNotices>; PENDING_MAPS],
    passed: StripedCounter,
    left_out: StripedCounter,
    /// The subscriber that the layer is a part of.
    dispatch: Mutex<Option<WeakDispatch>>,
}

/// Four threads that leave lines out at once do not wait for each other.
const PENDING_MAPS: usize = 4;

/// Lines left out that no notice was written for yet.
#[derive(Debug, Default)]
struct PendingNotices {
    notices: Mutex<Notices>,
    /// Whether `notices` has any by key.
    has_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Notices {
    /// At most `max_keys` in each map.
    by_key: HashMap<LineKey, Notice>,
    of_others: Option<Notice>,
}

impl State {
    pub(super) fn new(builder: LogThrottleBuilder) -> Result<Self, KeyedError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let LogThrottleBuilder { quota, unit, by, exempt, max_keys, driver, .. } = builder;
        Ok(Self {
            // ORDERING: Relaxed. A number that is given out once.
            number: NEXT.fetch_add(1, Relaxed),
            limiter: limiter(quota, max_keys, driver.clock())?,
            unit,
            by,
            exempt,
            max_keys,
            overrides: RwLock::default(),
            pending: Default::default(),
            passed: StripedCounter::new(),
            left_out: StripedCounter::new(),
            dispatch: Mutex::default(),
        })
    }

    /// Returns the field that lines are counted by.
    pub(super) fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// Decides about a line, once.
    pub(super) fn decide(&self, event: &Event<'_>, value: Option<&FieldValue>) -> LineDecision {
        let metadata = event.metadata();
        let key = LineKey::new(metadata, value);
        let mut wrong_rate = None;
        let is_allowed = self.is_exempt(metadata.target())
            || match self.override_of(event, &mut wrong_rate) {
                None => self.takes(&self.limiter, &key, event),
                Some(Override::Quota(limiter)) => self.takes(&limiter, &key, event),
                Some(Override::NeverLeftOut) => true,
            };
        if is_allowed {
            self.passed.add(1);
            LineDecision::Pass([wrong_rate, self.take_notice(&key)])
        } else {
            self.left_out.add(1);
            LineDecision::LeftOut { is_first: self.add_left_out(key, metadata, value) }
        }
    }

    fn is_exempt(&self, target: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with("::");
        self.exempt.iter().any(|exempt| target.strip_prefix(&**exempt).is_some_and(is_below))
    }

    fn takes(&self, limiter: &KeyedLimiter<LineKey>, key: &LineKey, event: &Event<'_>) -> bool {
        match self.unit {
            LogUnit::Lines => limiter.try_acquire(key).is_allowed(),
            // A line that cannot pass is not formatted to learn its length.
            LogUnit::Bytes => {
                limiter.peek(key).is_allowed()
                    && limiter.try_acquire_on_credit(key, length(event)).is_allowed()
            }
        }
    }

    /// Returns how the callsite overrides the quota, if it does.
    fn override_of(&self, event: &Event<'_>, wrong: &mut Option<Notice>) -> Option<Override> {
        let metadata = event.metadata();
        metadata.fields().field(RATE)?;
        let known = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&metadata.callsite()) {
            return found.clone();
        }
        drop(known);
        let mut all = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
        let entry = all.entry(metadata.callsite()).or_insert_with(|| {
            let chosen = self.read_override(event);
            let chosen = chosen.map_err(|error| {
                let content = Content::WrongRate(error);
                *wrong = Some(Notice { about: metadata, key: None, content });
            });
            chosen.ok()
        });
        entry.clone()
    }

    fn read_override(&self, event: &Event<'_>) -> Result<Override, String> {
        let mut rate = TextOf { name: RATE, text: None };
        event.record(&mut rate);
        let text = rate.text.unwrap_or_default();
        if text == "false" {
            return Ok(Override::NeverLeftOut);
        }
        let wrong = |error: &dyn fmt::Display| {
            format!(
                "the {RATE} \"{text}\" of a log line is neither a quota such as \"5/min burst 10\" nor \
                 false, so the quota of the throttle applies: {error}"
            )
        };
        let quota: Quota = text.parse().map_err(|error| wrong(&error))?;
        let limiter = limiter(quota, self.max_keys, self.limiter.clock());
        limiter.map(Override::Quota).map_err(|error| wrong(&error))
    }

    /// Counts a line that is left out. Returns whether its map had no notice of the key.
    fn add_left_out(
        &self,
        key: LineKey,
        about: &'static Metadata<'static>,
        value: Option<&FieldValue>,
    ) -> bool {
        let pending = &self.pending[own_stripe() % PENDING_MAPS].0;
        let mut notices = lock(&pending.notices);
        if let Some(notice) = notices.by_key.get_mut(&key) {
            notice.add_lines(1);
            return false;
        }
        if notices.by_key.len() as u64 >= self.max_keys {
            let is_first = notices.of_others.is_none();
            let content = Content::LeftOutOfOthers(1);
            Notice { about, key: None, content }.merge_into(&mut notices.of_others);
            return is_first;
        }
        // ORDERING: Relaxed, here and below. It is written under the lock. A line that passes and reads an old value leaves
        // the notice to the next one, or to the flush that the first line has started.
        pending.has_any.store(true, Relaxed);
        let shown = value.map(|value| value.shown.clone());
        notices.by_key.insert(key, Notice { about, key: shown, content: Content::LeftOut(1) });
        true
    }

    /// Takes out the notices of a key, as one.
    fn take_notice(&self, key: &LineKey) -> Option<Notice> {
        let mut sum = None;
        for Padded(pending) in &self.pending {
            if pending.has_any.load(Relaxed) {
                let mut notices = lock(&pending.notices);
                if let Some(notice) = notices.by_key.remove(key) {
                    notice.merge_into(&mut sum);
                }
                pending.has_any.store(!notices.by_key.is_empty(), Relaxed);
            }
        }
        sum
    }

    /// Takes out all notices, one for each key.
    pub(super) fn take_notices(&self) -> Vec<Notice> {
        let (mut by_key, mut of_others) = (HashMap::new(), None);
        for Padded(pending) in &self.pending {
            let mut notices = lock(&pending.notices);
            pending.has_any.store(false, Relaxed);
            let taken = std::mem::take(&mut *notices);
            drop(notices);
            for (key, notice) in taken.by_key {
                notice.merge_into(by_key.entry(key).or_default());
            }
            taken.of_others.into_iter().for_each(|notice| notice.merge_into(&mut of_others));
        }
        by_key.into_values().chain([of_others]).flatten().collect()
    }

    /// Counts the lines of notices that no output has taken under the common notice.
    pub(super) fn put_back(&self, notices: Vec<Notice>) {
        let mut pending = lock(&self.pending[own_stripe() % PENDING_MAPS].0.notices);
        for notice in notices.into_iter().filter(|notice| notice.lines() > 0) {
            let content = Content::LeftOutOfOthers(notice.lines());
            let common = Notice { about: notice.about, key: None, content };
            common.merge_into(&mut pending.of_others);
        }
    }

    pub(super) fn counts(&self) -> LogCounts {
        LogCounts { passed: self.passed.sum(), left_out: self.left_out.sum() }
    }

    pub(super) fn connect(&self, dispatch: &Dispatch) {
        let weak = dispatch.downgrade();
        *lock(&self.dispatch) = Some(weak);
    }

    /// Connects to the global subscriber if the layer heard of none: an `Option` or a `Vec` of layers does not pass that on.
    pub(super) fn connect_to_global(&self) {
        let mut dispatch = lock(&self.dispatch);
        if dispatch.is_none() {
            // While an event is on its way, the default is the global subscriber, or none if there are scoped ones.
            get_default(|current| {
                *dispatch = (!current.is::<NoSubscriber>()).then(|| current.downgrade());
            });
        }
    }

    /// Asks the layer to flush, by an event: a layer can call the one inside only while an event is on its way.
    pub(super) fn flush(&self) {
        let dispatch = lock(&self.dispatch).clone();
        if let Some(dispatch) = dispatch.and_then(|weak| weak.upgrade()) {
            flush_request(self.number, |event| dispatch.event(event));
        }
    }
}

fn limiter(
    quota: Quota,
    max_keys: u64,
    clock: &Clock,
) -> Result<KeyedLimiter<LineKey>, KeyedError> {
    // Callsites are the program's own, and values come as fingerprints with a secret.
    let builder = KeyedLimiter::builder(quota).max_keys(max_keys).clock(clock.clone());
    builder.fast_fingerprints().build()
}

impl LineKey {
    fn new(metadata: &Metadata<'_>, value: Option<&FieldValue>) -> Self {
        let value = value.map_or(0, |value| value.fingerprint);
        Self { callsite: metadata.callsite(), value }
    }
}

/// Reads one field as text.
struct TextOf<'a> {
    name: &'a str,
    text: Option<String>,
}

impl Visit for TextOf<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == self.name {
            self.text = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == self.name {
            self.text = Some(format!("{value:?}"));
        }
    }
}

/// Returns the bytes of names and values.
fn length(event: &Event<'_>) -> u64 {
    struct Length(u64);
    impl fmt::Write for Length {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = self.0.saturating_add(text.len() as u64);
            Ok(())
        }
    }
    impl Visit for Length {
        fn record_str(&mut self, field: &Field, value: &str) {
            let _ = write!(self, "{}{value}", shown_name(field));
        }
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            let _ = write!(self, "{}{value:?}", shown_name(field));
        }
    }
    fn shown_name(field: &Field) -> &str {
        if field.name() == "message" { "" } else { field.name() }
    }
    let mut length = Length(0);
    event.record(&mut length);
    length.0.max(1)
}
