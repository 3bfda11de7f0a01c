//! A log line for some denials: never a flood.

use super::{Event, KeyForm, Observer, sampling::Sampling};
use crate::{Clock, Decision, Quota, Tick, clock::tick::duration_nanos};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Hands at most one denial per interval to a function that logs it, and says how many it left out.
///
/// It may pick one denial in a hundred, and lines may show the key, the quota and the level:
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, KeyedLimiter, Quota, observe::{DenialLog, KeyForm}};
///
/// let log = DenialLog::new(Clock::monotonic(), Duration::from_secs(1), |line| eprintln!("{line}"))
///     .sample_one_in(100)
///     .show_key(KeyForm::Hashed)
///     .show_level();
/// let limiter = KeyedLimiter::<str>::builder(Quota::per_second(5)).name("api").observer(log).build()?;
/// # let _ = limiter;
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
pub struct DenialLog {
    clock: Clock,
    every_ns: u64,
    sampling: Sampling,
    key_form: Option<KeyForm>,
    shows_level: bool,
    /// Tick from which the next line may be written.
    next_ns: AtomicU64,
    left_out: AtomicU64,
    write: Box<dyn Fn(&DenialLine<'_>) + Send + Sync>,
}

/// One denial that is worth a line.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DenialLine<'a> {
    /// Name of the limiter.
    pub name: &'a str,
    /// The denial. Its level is [`remaining`](Decision::remaining) of [`limit`](Decision::limit).
    pub decision: Decision,
    /// Denials since the last line that got none.
    pub left_out: u64,
    /// Whether it was refused; if not, the policy was in trial mode.
    pub is_enforced: bool,
    /// The key as text, if the log [shows](DenialLog::show_key) it and the event has one.
    pub key: Option<&'a str>,
    /// The quota, if the log [shows](DenialLog::show_level) it and the event has one.
    pub quota: Option<Quota>,
    shows_level: bool,
}

impl fmt::Display for DenialLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, decision, left_out, is_enforced, key, quota, shows_level } = self;
        f.write_str(if *is_enforced { "denied by" } else { "would be denied by" })?;
        write!(f, " \"{name}\": cost {} of {}", decision.cost(), decision.limit())?;
        match decision.retry_after(decision.at()) {
            // It passes as soon as there is room, at an unknown time.
            Some(Duration::ZERO) => {}
            Some(wait) => write!(f, ", retry after {wait:?}")?,
            None => f.write_str(", never passes")?,
        }
        if let Some(key) = key {
            write!(f, ", key {key}")?;
        }
        if let Some(quota) = quota {
            write!(f, ", quota {quota}")?;
        }
        if *shows_level {
            write!(f, ", {} left", decision.remaining())?;
        }
        if *left_out > 0 { write!(f, " ({left_out} more since the last line)") } else { Ok(()) }
    }
}

impl DenialLog {
    /// Returns a log that calls `write` at most once per `every`.
    pub fn new(
        clock: Clock,
        every: Duration,
        write: impl Fn(&DenialLine<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            clock,
            every_ns: duration_nanos(every),
            sampling: Sampling::one_in(1),
            key_form: None,
            shows_level: false,
            next_ns: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            write: Box::new(write),
        }
    }

    /// Considers one denial in `count`: the first, and every `count`-th after it. 0 and 1 consider
    /// each, the default. The denials between are counted as left out.
    #[must_use]
    pub const fn sample_one_in(mut self, count: u64) -> Self {
        self.sampling = Sampling::one_in(count);
        self
    }

    /// Shows the key of the denial, by default not: keys are often personal data.
    #[must_use]
    pub const fn show_key(mut self, form: KeyForm) -> Self {
        self.key_form = Some(form);
        self
    }

    /// Shows the quota and how many permits are left, by default not.
    #[must_use]
    pub const fn show_level(mut self) -> Self {
        self.shows_level = true;
        self
    }

    /// Tells whether this thread is the one to write a line now.
    fn is_due(&self, now: Tick) -> bool {
        let now_ns = now.as_nanos();
        // ORDERING: Relaxed. The exchange makes one thread the writer; the line itself is its own.
        let next_ns = self.next_ns.load(Relaxed);
        let later = now_ns.saturating_add(self.every_ns);
        now_ns >= next_ns && self.next_ns.compare_exchange(next_ns, later, Relaxed, Relaxed).is_ok()
    }
}

impl Observer for DenialLog {
    fn decided(&self, event: &Event<'_>) {
        if event.decision.is_allowed() {
            return;
        }
        if self.sampling.picks() && self.is_due(self.clock.now()) {
            // ORDERING: Relaxed. A count for people.
            let left_out = self.left_out.swap(0, Relaxed);
            let Event { name, decision, is_enforced, .. } = *event;
            let key = event.key.zip(self.key_form).map(|(key, form)| key.text(form));
            (self.write)(&DenialLine {
                name,
                decision: *decision,
                left_out,
                is_enforced,
                key: key.as_deref(),
                quota: self.shows_level.then(|| event.quota()).flatten(),
                shows_level: self.shows_level,
            });
        } else {
            // ORDERING: Relaxed. A count for people.
            self.left_out.fetch_add(1, Relaxed);
        }
    }
}

impl fmt::Debug for DenialLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = Duration::from_nanos(self.every_ns);
        f.debug_struct("DenialLog").field("every", &every).finish_non_exhaustive()
    }
}
