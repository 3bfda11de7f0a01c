//! The hook.

use crate::{Decision, Limiter, Quota, keyed::core::Core};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

/// Which verb was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `try_acquire` and its forms.
    TryAcquire,
    /// `acquire` and its forms: told when the wait is over.
    Acquire,
    /// `up_to`.
    UpTo,
    /// `reserve` and its forms.
    Reserve,
    /// `force`.
    Force,
    /// `try_acquire_on_credit`.
    OnCredit,
}

impl Verb {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TryAcquire => "try_acquire",
            Self::Acquire => "acquire",
            Self::UpTo => "up_to",
            Self::Reserve => "reserve",
            Self::Force => "force",
            Self::OnCredit => "try_acquire_on_credit",
        }
    }

    /// Returns how many permits must be free for a call of `cost` to pass, if it asks at all.
    pub(crate) fn least(self, cost: u64) -> u64 {
        if self == Self::OnCredit { cost.min(1) } else { cost }
    }
}

/// One decision, as an [`Observer`] receives it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Name of the limiter.
    pub name: &'a str,
    /// The verb.
    pub verb: Verb,
    /// The answer.
    pub decision: &'a Decision,
    /// Whether the answer was followed. If not, the event passed all the
    /// same: a limit that is tried out.
    pub is_enforced: bool,
    /// The key that the decision is about; `None` if the source has no keys, or does not say.
    pub key: Option<EventKey<'a>>,
    quota: QuotaOf<'a>,
}

/// Where the quota of an event is found: only an observer that shows it pays for the lookup.
#[derive(Clone, Copy)]
enum QuotaOf<'a> {
    Unknown,
    Given(Quota),
    Limiter(&'a Limiter),
    Key(&'a Core, u64),
}

impl<'a> Event<'a> {
    /// Returns an event of an enforced decision: for layers that decide by themselves, and for tests
    /// of observers.
    #[must_use]
    pub const fn new(name: &'a str, verb: Verb, decision: &'a Decision) -> Self {
        Self { name, verb, decision, is_enforced: true, key: None, quota: QuotaOf::Unknown }
    }

    pub(crate) fn of_limiter(limiter: &'a Limiter, verb: Verb, decision: &'a Decision) -> Self {
        let quota = QuotaOf::Limiter(limiter);
        Self { quota, ..Self::new(limiter.name(), verb, decision) }
    }

    pub(crate) fn of_key(
        core: &'a Core,
        fingerprint: u64,
        verb: Verb,
        decision: &'a Decision,
    ) -> Self {
        let (key, quota) = (Some(EventKey::Hashed(fingerprint)), QuotaOf::Key(core, fingerprint));
        Self { key, quota, ..Self::new(&core.name, verb, decision) }
    }

    /// Says that the event passed, whatever the answer.
    #[must_use]
    pub const fn not_enforced(mut self) -> Self {
        self.is_enforced = false;
        self
    }

    /// Says which key the decision is about.
    #[must_use]
    pub const fn with_key(mut self, key: EventKey<'a>) -> Self {
        self.key = Some(key);
        self
    }

    /// Says which quota the decision rests on.
    #[must_use]
    pub const fn with_quota(mut self, quota: Quota) -> Self {
        self.quota = QuotaOf::Given(quota);
        self
    }

    /// Returns the quota that is in force where the decision was made; `None` if the source does not
    /// say. It takes a short lock.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        match self.quota {
            QuotaOf::Unknown => None,
            QuotaOf::Given(quota) => Some(quota),
            QuotaOf::Limiter(limiter) => Some(limiter.quota()),
            QuotaOf::Key(core, fingerprint) => {
                Some(core.cell_of(fingerprint, self.decision.at()).quota())
            }
        }
    }
}

impl fmt::Debug for QuotaOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "Unknown",
            Self::Given(_) => "Given",
            Self::Limiter(_) => "Limiter",
            Self::Key(..) => "Key",
        })
    }
}

/// The key of an [`Event`], as far as its source knows it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum EventKey<'a> {
    /// A fingerprint: it tells the keys of one limiter apart and reveals none. A
    /// [`KeyedLimiter`](crate::KeyedLimiter) keeps no keys, so this is all that its events have.
    Hashed(u64),
    /// The key itself. It is formatted only if an observer shows it.
    Plain(&'a dyn fmt::Display),
}

/// What log lines and span events show of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyForm {
    /// 16 hex digits that differ from process to process: the same key has the same digits, and
    /// nobody can compute the key from them.
    Hashed,
    /// The key itself, with control characters escaped, cut after 128 characters. Personal data may
    /// be in it. Where the source has only a fingerprint, the line shows that.
    Plain,
}

impl EventKey<'_> {
    /// The most characters of a plain key that are shown.
    const SHOWN_MAX: usize = 128;

    /// Returns the text that lines and events show.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::observe::{EventKey, KeyForm};
    ///
    /// let key = EventKey::Plain(&"alice\nforged line");
    /// assert_eq!(key.text(KeyForm::Plain), r"alice\nforged line");
    /// assert_eq!(key.text(KeyForm::Hashed).len(), 16);
    /// assert_eq!(EventKey::Hashed(0xABC).text(KeyForm::Plain), "0000000000000abc");
    /// ```
    #[must_use]
    pub fn text(self, form: KeyForm) -> String {
        // One secret for the whole process, so that lines of different limiters can be compared.
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        match (self, form) {
            (Self::Hashed(fingerprint), _) => format!("{fingerprint:016x}"),
            (Self::Plain(key), KeyForm::Hashed) => {
                format!("{:016x}", SECRET.hash_one(key.to_string()))
            }
            (Self::Plain(key), KeyForm::Plain) => {
                let key = key.to_string();
                key.chars().take(Self::SHOWN_MAX).flat_map(char::escape_debug).collect()
            }
        }
    }
}

impl fmt::Debug for EventKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventKey").field(&self.text(KeyForm::Hashed)).finish()
    }
}

/// Receives every decision, on the caller's thread, after the decision was made.
///
/// Keep it short: the caller waits for it. It cannot change the decision.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Receives one decision.
    fn decided(&self, event: &Event<'_>);
}

/// Several observers at once.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn decided(&self, event: &Event<'_>) {
        self.0.decided(event);
        self.1.decided(event);
    }
}

impl<T: Observer + ?Sized> Observer for std::sync::Arc<T> {
    fn decided(&self, event: &Event<'_>) {
        (**self).decided(event);
    }
}
