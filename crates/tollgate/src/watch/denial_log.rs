//! A log line for some denials: never a flood.

use super::{Event, Observer};
use crate::{Clock, Decision, Tick, clock::tick::duration_nanos};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Hands at most one denial per interval to a function that logs it, and says how many it left out.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter, Quota, watch::DenialLog};
///
/// let log = DenialLog::new(Clock::monotonic(), Duration::from_secs(1), |line| eprintln!("{line}"));
/// let limiter = Limiter::builder(Quota::per_second(5)).name("api").observer(log).build()?;
/// # let _ = limiter;
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
pub struct DenialLog {
    clock: Clock,
    every_ns: u64,
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
    /// The denial.
    pub decision: Decision,
    /// Denials since the last line that got none.
    pub left_out: u64,
    /// Whether it was refused; if not, the denial was only watched.
    pub is_enforced: bool,
}

impl fmt::Display for DenialLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, decision, left_out, is_enforced } = self;
        f.write_str(if *is_enforced { "denied by" } else { "would be denied by" })?;
        write!(f, " \"{name}\": cost {} of {}", decision.cost(), decision.limit())?;
        match decision.retry_after(decision.at()) {
            // It passes as soon as there is room, and nobody knows when that is.
            Some(Duration::ZERO) => {}
            Some(wait) => write!(f, ", retry after {wait:?}")?,
            None => f.write_str(", never passes")?,
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
        let (next_ns, left_out) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { clock, every_ns: duration_nanos(every), next_ns, left_out, write: Box::new(write) }
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
        if self.is_due(self.clock.now()) {
            // ORDERING: Relaxed. A count for people.
            let left_out = self.left_out.swap(0, Relaxed);
            let Event { name, decision, is_enforced, .. } = *event;
            (self.write)(&DenialLine { name, decision: *decision, left_out, is_enforced });
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
