//! The leaky bucket as a queue: even output.
//!
//! A limiter says yes or no, and lets bursts pass. A [`Pacer`] gives every caller a *slot*, a time
//! of its own, and no two slots are closer than an interval. A caller that comes too early waits; when
//! too many wait, the next is refused. So the output never exceeds the rate, not even for a moment,
//! and no caller waits longer than a full queue takes.
//!
//! The times of slots are exact (`schedule.rs`), a pure machine knows the holder of each slot (`machine.rs`), and
//! an engine of [`wait`](crate::Driver) gives it its time.

mod builder;
mod error;
mod free_slots;
mod job;
mod machine;
mod schedule;
mod slot;
#[cfg(test)]
mod tests;
mod waiting;

pub use builder::PacerBuilder;
pub use error::{Overflow, Rejected};
pub use job::Paced;
pub use slot::Slot;
pub use waiting::PacerWait;

use crate::{
    Clock, ConfigError, Quota, StopAndWait,
    observe::{Collector, Samples, WeakCollector, family},
    wait::{Engine, Machine},
};
use error::OverflowKind;
use job::Work;
use machine::PacerMachine;
use std::{fmt, time::Duration};

/// Spreads work evenly: one slot each interval, a bounded queue, a known longest delay.
///
/// Three styles share one schedule of slots and one queue:
///
/// | I want to | use |
/// |---|---|
/// | know when my slot is | [`slot`](Self::slot) |
/// | wait for my slot | [`wait`](Self::wait), awaited in a task (feature `tokio`) or [`block`](PacerWait::block)ed on |
/// | run a job at its slot | [`run`](Self::run), or `run_async` (feature `tokio`) |
///
/// # The schedule
///
/// - After idle time the first slot is now. Each further one lies one interval after the last:
///   slot `k` of a busy time lies exactly `k` x period / count after its beginning, rounded up to a
///   nanosecond. Gaps differ by at most 1 ns and no error adds up, also at 700/s or 3 in 7 s.
/// - The *queue* is all whose slot is still to come, and jobs that have not started. At most
///   [`capacity`](PacerBuilder::capacity) may be in it. The call whose slot is now does not wait, so it
///   does not count: an idle pacer takes capacity + 1 calls at one instant.
/// - So the longest delay is exactly capacity / rate: [`max_delay`](Self::max_delay).
/// - A cost of `n` takes `n` slots: its own, and the `n - 1` after it stay empty.
/// - A slot that was given out never moves. One that is given back is the next free one again if
///   it was the last; else it goes to the next caller who asks for the same cost, if it is still
///   ahead then, and stays empty if there is none. So slots come in the order of their times, and
///   after a caller has left, a later one may be served before an earlier one.
///
/// # What runs, and when
///
/// Jobs never start before their slots. Timers are late now and then, and a job that takes longer
/// than the interval delays those after it; [`Late`] says what becomes of these. Jobs run one by
/// one: closures on the worker of the [`Driver`](crate::Driver), futures as tasks of their own, so
/// only a closure can delay the next job. Jobs do not delay callers that have a slot or wait for
/// one.
///
/// # How even the output is
///
/// The schedule is even to 1 ns. What runs is as even as the timers. Those of tokio tick in
/// milliseconds, so jobs start 1 to 2 ms late, and above 1000/s those of several slots start
/// together. A thread is woken by the system some 0.1 ms late, so above 10 000/s it serves several
/// at once too. A machine that stalls makes larger batches. The rate is kept all the same, and
/// nothing starts early. `cargo run --release -p tollgate-bench -- pacer` measures it.
///
/// There is no thread and no task while no job is queued. (A drain has one, as long as a caller
/// waits.)
///
/// Clones are handles of the same pacer. What happens when the last one is dropped is said by
/// [`on_drop`](PacerBuilder::on_drop); a wait under way is a handle, a [`Slot`] and a [`Paced`] are
/// not.
///
/// # Examples
///
/// Ten mails at once, sent twenty a second:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Driver, ManualClock, Pacer, Quota};
///
/// let hand = ManualClock::new();
/// let relay = Pacer::builder(Quota::per_second(20))
///     .capacity(100)
///     .driver(Driver::manual(&hand))
///     .start()?;
/// assert_eq!(relay.max_delay(), Duration::from_secs(5));
///
/// let (outbox, sent) = std::sync::mpsc::channel();
/// for mail in 0..10 {
///     let outbox = outbox.clone();
///     relay.run(move || outbox.send(mail).unwrap_or(()))?;
/// }
/// assert_eq!(sent.try_iter().count(), 1);
/// hand.advance(Duration::from_millis(50));
/// assert_eq!(sent.try_iter().count(), 1);
/// hand.advance(Duration::from_millis(400));
/// assert_eq!(sent.try_iter().count(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Only the times, for a loop that waits by itself:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Driver, ManualClock, Pacer, Quota};
///
/// let hand = ManualClock::new();
/// let pacer = Pacer::builder(Quota::per_second(10)).driver(Driver::manual(&hand)).start()?;
/// let delays: Vec<_> = (0..3)
///     .map(|_| pacer.slot().map(|slot| slot.delay(hand.now())))
///     .collect::<Result<_, _>>()?;
/// assert_eq!(delays, [0, 100, 200].map(Duration::from_millis));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pacer {
    engine: Engine<PacerMachine<Work>>,
}

/// When jobs run that could not start at their slots.
///
/// It concerns jobs only. Slots of callers, and waits, keep to the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Late {
    /// The schedule stays, the default. A late job starts at once, and so do those behind it that are
    /// due too, until they have caught up. No rate is lost; for that moment the output is faster.
    #[default]
    KeepPace,
    /// The gap stays. A job starts an interval (times the cost) after the last one has started, or
    /// later. The output of jobs is never faster than the rate; what was late stays late until the
    /// queue has been empty, and jobs may wait longer than [`Pacer::max_delay`].
    ///
    /// Every timer is a little late, and each time that much of the rate is lost. With a tokio driver
    /// it is 1 to 2 ms a job, half of the rate at 1000/s: choose it for intervals that are long
    /// beside that.
    KeepGap,
}

/// Whether a stop serves the queue or drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queued {
    /// It is served, each at its slot; only new ones are refused.
    Drain,
    /// It is dropped: jobs do not run, and those who wait are refused.
    Drop,
}

impl Pacer {
    /// Begins a pacer. It takes the rate of the quota.
    ///
    /// One passes at a time, so there is no burst: a quota with an explicit burst other than 1 is
    /// refused. The burst that a quota has by default, as many as one period brings, means nothing
    /// here: `Quota::per_second(50)` is one slot each 20 ms.
    pub fn builder(quota: Quota) -> PacerBuilder {
        PacerBuilder::new(quota)
    }

    /// Takes the next slot, and says when it is. Never waits.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if the queue is full or the pacer is stopped.
    pub fn slot(&self) -> Result<Slot, Overflow> {
        self.slot_n(1)
    }

    /// Takes the next `cost` slots, and says when the first is. Never waits.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if the queue is full, the pacer is stopped, or the cost can never fit.
    pub fn slot_n(&self, cost: u64) -> Result<Slot, Overflow> {
        let reserved = self.engine.event(|machine, now| machine.reserve(now, cost));
        let at = reserved.unwrap_or_else(|| Err(self.refusal(cost, OverflowKind::Stopped)))?;
        Ok(Slot { engine: self.engine.downgrade(), at, cost })
    }

    fn refusal(&self, cost: u64, kind: OverflowKind) -> Overflow {
        self.engine.look(|machine, now| machine.overflow(now, cost, kind))
    }

    /// Returns how much is queued: slots that are to come, and jobs that have not started.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.engine.look(PacerMachine::queued)
    }

    /// Returns how much may be queued.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.engine.look(|machine, _| machine.capacity)
    }

    /// Returns the longest delay of an admitted call: capacity / rate, rounded up.
    #[must_use]
    pub fn max_delay(&self) -> Duration {
        self.engine.look(|machine, _| machine.max_delay())
    }

    /// Returns the quota whose rate is in force.
    #[must_use]
    pub fn rate(&self) -> Quota {
        self.engine.look(|machine, _| machine.schedule.quota)
    }

    /// Returns the clock of the slots.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.engine.driver().clock()
    }

    /// Changes the rate of all slots that are not given out yet.
    ///
    /// Those that are stay. The first new one lies one new interval (times its cost) after the last
    /// of them. Slots that were given back in their midst stay empty.
    ///
    /// # Errors
    ///
    /// As [`PacerBuilder::start`], and if the pacer is stopped.
    pub fn set_rate(&self, quota: Quota) -> Result<(), ConfigError> {
        builder::check(&quota, self.capacity())?;
        let set = self.engine.event(|machine, now| machine.set_rate(now, quota));
        set.ok_or_else(|| ConfigError::new("the pacer is stopped; start a new one"))
    }

    /// Stops it: no call is admitted any more, and the queue is drained or dropped.
    ///
    /// After `stop(Queued::Drop)` has returned no job starts. One that runs goes on. To drop what
    /// still drains, stop it again.
    ///
    /// A drain needs the driver. A tokio runtime that has shut down serves nothing, so there a
    /// stop always drops the queue. While a runtime exists but is not driven, a
    /// drain does not end; `stop(Queued::Drop)` ends it, except for futures that have started. By a
    /// manual driver a drain ends when the hand gets there.
    pub fn stop(&self, queued: Queued) {
        match queued {
            Queued::Drain => self.engine.finish(),
            Queued::Drop => self.engine.stop(),
        }
    }

    /// Stops it, and waits at most for `within` until no job runs, and none is left to run.
    ///
    /// A drain also waits until the last slot that a caller waits for has come, and for futures
    /// that were run. A job that waits for its own end gets an error at once.
    pub fn stop_and_wait(&self, queued: Queued, within: Duration) -> StopAndWait {
        self.stop(queued);
        self.engine.ended(within)
    }

    /// Tells whether it was stopped. It may still drain.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.engine.is_stopped()
    }

    /// Returns how many jobs have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.engine.panics()
    }
}

impl fmt::Debug for Pacer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, capacity, queued, due) = self.engine.look(|machine, now| {
            (machine.schedule.quota, machine.capacity, machine.queued(now), machine.due())
        });
        f.debug_struct("Pacer")
            .field("rate", &format_args!("{rate}"))
            .field("capacity", &capacity)
            .field("queued", &queued)
            .field("due", &due)
            .finish_non_exhaustive()
    }
}

impl Collector for Pacer {
    fn collect(&self, samples: &mut Samples) {
        let look = |machine: &PacerMachine<Work>, now| {
            (
                machine.schedule.quota,
                machine.queued(now),
                machine.capacity,
                machine.refused,
                machine.waits.clone(),
            )
        };
        let (quota, queued, capacity, refused, waits) = self.engine.look(look);
        samples.kind("pacer");
        samples.quota(quota);
        samples.queue(queued, capacity);
        samples.calls(waits.count(), refused);
        samples.waits(&family::WAITS, waits);
        samples.panics(&self.engine);
    }

    fn weak(&self) -> WeakCollector {
        let engine = self.engine.downgrade();
        WeakCollector::new(move || Some(Box::new(Self { engine: engine.upgrade()? })))
    }
}
