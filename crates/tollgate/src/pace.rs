//! How often the runs of a debouncer or the batches of a coalescer may start: a pure part of their machines.
//!
//! The debouncer or coalescer comes **before** the rate. A rate in front of it would refuse events that it discards anyway,
//! and might refuse the last one, which is the one that counts. One engine drives both: one worker, one lock, no queue
//! between them.

mod booked;

pub(crate) use booked::Booked;

use crate::{ConfigError, Limiter, Tick};
use std::time::Duration;

/// How often a job may leave its machine.
#[derive(Debug)]
pub(crate) struct Pace {
    kind: PaceKind,
    /// No job leaves earlier.
    not_before: Tick,
    /// The permit of the next one. It is booked, so that callers that come later and wait in the
    /// limiter's queue do not always come first. A window cannot be booked: the pace tries again.
    booked: Booked,
}

#[derive(Debug)]
enum PaceKind {
    Free,
    /// At most one job for each interval, from start to start.
    Every(Duration),
    /// One permit for each job.
    Limited(Limiter),
}

/// How long to wait after a decision of "never": the quota of the limiter may change.
const RETRY_AFTER_NEVER: Duration = Duration::from_secs(1);

/// The latest tick at which a job is due: at [`Tick::MAX`] none is, and a job that waits for
/// its pace must still run.
const LAST: Tick = Tick::from_nanos(u64::MAX - 1);

impl Pace {
    pub(crate) const FREE: Self =
        Self { kind: PaceKind::Free, not_before: Tick::ZERO, booked: Booked::NONE };

    /// Checks what the builder of an action was given, and makes a pace of it.
    pub(crate) fn new(
        interval: Option<Duration>,
        limiter: Option<Limiter>,
    ) -> Result<Self, ConfigError> {
        let kind = match (interval, limiter) {
            (None, None) => PaceKind::Free,
            (Some(Duration::ZERO), None) => {
                let text = "the interval is zero; set one above zero, or leave it out";
                return Err(ConfigError::new(text));
            }
            (Some(interval), None) => PaceKind::Every(interval),
            (None, Some(limiter)) if limiter.peek().is_never() => {
                let text = "the limiter never admits cost 1; raise its burst, or reset it";
                return Err(ConfigError::new(text));
            }
            (None, Some(limiter)) => PaceKind::Limited(limiter),
            (Some(interval), Some(_)) => {
                return Err(ConfigError::new(format!(
                    "an interval of {interval:?} and a limiter are both set; use one of them: a \
                     limiter with burst 1 acts as an interval"
                )));
            }
        };
        Ok(Self { kind, ..Self::FREE })
    }

    /// Tells whether everything may leave at once.
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self.kind, PaceKind::Free)
    }

    /// Returns when the next job may leave, at the earliest.
    pub(crate) const fn due(&self) -> Tick {
        self.not_before
    }

    /// Takes the right to leave at `now`, if there is one.
    pub(crate) fn admits(&mut self, now: Tick) -> bool {
        if now < self.not_before {
            return false;
        }
        match &self.kind {
            PaceKind::Free => true,
            PaceKind::Every(interval) => {
                self.not_before = now.saturating_add(*interval).min(LAST);
                true
            }
            PaceKind::Limited(limiter) => {
                let reserved = self.booked.take().map_or_else(|| limiter.reserve(1), Ok);
                // The limiter may follow another clock, so only the distance carries over.
                let at = limiter.now();
                let wait = match reserved {
                    Ok(booked) if booked.act_at() <= at => {
                        booked.keep();
                        return true;
                    }
                    Ok(booked) => {
                        let wait = booked.delay(at);
                        self.booked = Booked::new(booked);
                        wait
                    }
                    Err(refused) => refused.decision().retry_after(at).unwrap_or(RETRY_AFTER_NEVER),
                };
                // A nanosecond at least, so that `due` is never in the past after a refusal.
                let wait = wait.max(Duration::from_nanos(1));
                self.not_before = now.saturating_add(wait).min(LAST);
                false
            }
        }
    }

    /// Nothing is to leave any more. Returns what is booked, to be given back without a lock.
    pub(crate) fn give_up(&mut self) -> Booked {
        std::mem::take(&mut self.booked)
    }
}
