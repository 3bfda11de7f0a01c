//! Decisions about lines, and the count of what was left out.
//!
//! The arithmetic is that of a [`KeyedLimiter`], without a lock. A line that is left out also adds to the map of losses, under a
//! short lock. A line that passes takes its callsite's loss out of the map, to be reported; it looks at the map only
//! while there are losses. So each line left out is in the map until exactly one thread takes it out.

use super::{
    LogCounts, LogThrottleBuilder, LogUnit,
    notice::{Content, Notice, asks_to_flush, flush_request},
};
use crate::{Clock, KeyedError, KeyedLimiter, Quota};
use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock,
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

/// What is counted together.
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
#[derive(Debug)]
enum Override {
    NeverLeftOut,
    Quota(KeyedLimiter<LineKey>),
    /// The value made no sense.
    Unusable,
}

pub(super) enum Verdict {
    /// The line passes, after these notices.
    Pass([Option<Notice>; 2]),
    /// It is left out; true if it is the first since the last notice of its key.
    LeftOut { is_first: bool },
}

#[derive(Debug)]
pub(super) struct State {
    /// Tells throttles of one subscriber apart.
    number: u64,
    limiter: KeyedLimiter<LineKey>,
    unit: LogUnit,
    by: Option<Box<str>>,
    exempt: Vec<Box<str>>,
    max_keys: u64,
    /// As many as the program has callsites with that field.
    overrides: RwLock<HashMap<Identifier, Arc<Override>>>,
    losses: Mutex<Losses>,
    has_losses: AtomicBool,
    passed: AtomicU64,
    left_out: AtomicU64,
    /// The subscriber that the layer is a part of.
    dispatch: Mutex<Option<WeakDispatch>>,
}

/// Lines that no notice was written for yet.
#[derive(Debug, Default)]
struct Losses {
    /// At most `max_keys`.
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
            losses: Mutex::default(),
            has_losses: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            dispatch: Mutex::default(),
        })
    }

    /// Returns the field that lines are counted by.
    pub(super) fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// Decides about a line, once.
    pub(super) fn decide(&self, event: &Event<'_>, value: Option<&FieldValue>) -> Verdict {
        let metadata = event.metadata();
        let mut wrong_rate = None;
        let is_allowed = self.is_exempt(metadata.target()) || {
            let key = LineKey::new(metadata, value);
            match self.override_of(event, &mut wrong_rate).as_deref() {
                None | Some(Override::Unusable) => self.takes(&self.limiter, &key, event),
                Some(Override::Quota(limiter)) => self.takes(limiter, &key, event),
                Some(Override::NeverLeftOut) => true,
            }
        };
        // ORDERING: Relaxed. Counts that publish nothing.
        if is_allowed {
            self.passed.fetch_add(1, Relaxed);
            Verdict::Pass([wrong_rate, self.take_loss(metadata, value)])
        } else {
            self.left_out.fetch_add(1, Relaxed);
            Verdict::LeftOut { is_first: self.add_loss(metadata, value) }
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
    fn override_of(&self, event: &Event<'_>, wrong: &mut Option<Notice>) -> Option<Arc<Override>> {
        let metadata = event.metadata();
        metadata.fields().field(RATE)?;
        let known = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&metadata.callsite()) {
            return Some(Arc::clone(found));
        }
        drop(known);
        let mut all = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
        let entry = all.entry(metadata.callsite()).or_insert_with(|| {
            let chosen = self.read_override(event).unwrap_or_else(|error| {
                let content = Content::WrongRate(error);
                *wrong = Some(Notice { about: metadata, key: None, content });
                Override::Unusable
            });
            Arc::new(chosen)
        });
        Some(Arc::clone(entry))
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

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a line that is left out. Tells whether it is the first since the last notice.
    fn add_loss(&self, about: &'static Metadata<'static>, value: Option<&FieldValue>) -> bool {
        let mut losses = self.losses();
        // ORDERING: Relaxed, here and below. It is written under the lock. A line that passes and reads an old value leaves
        // the notice to the next one, or to the flush that the first loss has started.
        self.has_losses.store(true, Relaxed);
        let key = LineKey::new(about, value);
        if let Some(notice) = losses.by_key.get_mut(&key) {
            notice.add_line();
            return false;
        }
        if losses.by_key.len() as u64 >= self.max_keys {
            let content = Content::LeftOutOfOthers(0);
            let others = losses.of_others.get_or_insert(Notice { about, key: None, content });
            others.add_line();
            return others.lines() == 1;
        }
        let shown = value.map(|value| value.shown.clone());
        losses.by_key.insert(key, Notice { about, key: shown, content: Content::LeftOut(1) });
        true
    }

    /// Takes the lines out that were left out of a callsite.
    fn take_loss(
        &self,
        about: &'static Metadata<'static>,
        value: Option<&FieldValue>,
    ) -> Option<Notice> {
        if !self.has_losses.load(Relaxed) {
            return None;
        }
        let mut losses = self.losses();
        let taken = losses.by_key.remove(&LineKey::new(about, value));
        let has_losses = !losses.by_key.is_empty() || losses.of_others.is_some();
        self.has_losses.store(has_losses, Relaxed);
        taken
    }

    /// Takes all lines out that were left out.
    pub(super) fn take_losses(&self) -> Vec<Notice> {
        let mut losses = self.losses();
        self.has_losses.store(false, Relaxed);
        let Losses { by_key, of_others } = std::mem::take(&mut *losses);
        by_key.into_values().chain(of_others).collect()
    }

    pub(super) fn counts(&self) -> LogCounts {
        // ORDERING: Relaxed. Counts that publish nothing.
        LogCounts { passed: self.passed.load(Relaxed), left_out: self.left_out.load(Relaxed) }
    }

    pub(super) fn connect(&self, dispatch: &Dispatch) {
        let weak = dispatch.downgrade();
        *self.dispatch.lock().unwrap_or_else(PoisonError::into_inner) = Some(weak);
    }

    /// Connects to the global subscriber if the layer heard of none: an `Option` or a `Vec` of layers does not pass that on.
    pub(super) fn connect_to_global(&self) {
        let mut dispatch = self.dispatch.lock().unwrap_or_else(PoisonError::into_inner);
        if dispatch.is_none() {
            // While an event is on its way, the default is the global subscriber, or none if there are scoped ones.
            get_default(|current| {
                *dispatch = (!current.is::<NoSubscriber>()).then(|| current.downgrade());
            });
        }
    }

    /// Asks the layer to flush, by an event: a layer can call the one inside only while an event is on its way.
    pub(super) fn flush(&self) {
        let dispatch = self.dispatch.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(dispatch) = dispatch.and_then(|weak| weak.upgrade()) {
            flush_request(self.number, |event| dispatch.event(event));
        }
    }

    /// Tells whether this event asks this throttle to flush.
    pub(super) fn is_asked_to_flush(&self, event: &Event<'_>) -> bool {
        asks_to_flush(event, self.number)
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
