//! Decides which requests get a slot.

use super::{
    priority::PrioritySource,
    recent::Recent,
    refusal::Why,
    shed::Shedder,
    slot::{AcquireSlot, HeldSlot, Slot, Slots, Waiting},
};
use crate::{
    ConcurrencyBody, Deadline, Info,
    answer::{Label, Refusal},
    classify::Classify,
    key::{Found, KeyBytes},
    misuse::Hints,
    observe::Instruments,
    refusal::RefusalFormat,
    timer,
};
use http::{HeaderMap, HeaderValue, Response};
use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Answer, Clock, Decision, Full, Outcome, Priority,
    observe::{Event, EventKey, Verb},
};

/// Tells whether a request is exempt.
pub(super) type Bypass = Arc<dyn Fn(&Info<'_>) -> bool + Send + Sync>;

/// State that all services of a layer share.
pub(super) struct SharedLimit {
    pub(super) slots: Slots,
    pub(super) label: Label,
    pub(super) refusal: Refusal,
    pub(super) settings: Settings,
    pub(super) refusals: RefusalFormat,
    pub(super) clock: Clock,
    pub(super) instruments: Instruments,
    pub(super) hints: Hints,
    pub(super) shedders: Vec<Shedder>,
    pub(super) recent: Option<Recent>,
    /// The name of this part, if it is in a stack.
    pub(super) part: OnceLock<&'static str>,
}

/// Settings that the builder hands over as they are.
pub(super) struct Settings {
    pub(super) max_wait: Option<Duration>,
    pub(super) retry_after: Option<Duration>,
    pub(super) priorities: PrioritySource,
    pub(super) bypass: Option<Bypass>,
    /// None if the limit does not adapt.
    pub(super) measurement: Option<Classify>,
    pub(super) has_shedding_header: bool,
}

/// The decision about a request.
pub(super) enum Entered {
    /// It runs; without a slot if it is not counted.
    Inside(Option<Slot>),
    Waits(Waiting),
    Refused(Why),
}

impl SharedLimit {
    /// Takes a slot, or a place in the queue.
    pub(super) fn enter(&self, info: &Info<'_>) -> Entered {
        if self.settings.bypass.as_ref().is_some_and(|is_exempt| is_exempt(info)) {
            return Entered::Inside(None);
        }
        let observes_load = self.observes_load();
        let priority = if observes_load || self.settings.max_wait.is_some() {
            self.settings.priorities.of(info)
        } else {
            Priority::NORMAL
        };
        if observes_load {
            let now = self.clock.now();
            if self.shedders.iter().any(|shedder| shedder.sheds(priority, now)) {
                let refused = Entered::Refused(Why::Shed { limit: self.slots.limit() });
                return self.reported(refused, priority, info, || (0, 0));
            }
        }
        self.take(info, priority)
    }

    fn take(&self, info: &Info<'_>, priority: Priority) -> Entered {
        let max_wait = self.max_wait(info);
        match &self.slots {
            Slots::All(limit) => {
                let entered = match max_wait {
                    None => at_once(limit.try_acquire().map(Slot::Fixed)),
                    Some(longest) => {
                        let acquire = limit.acquire().within(longest).priority(priority);
                        self.queue(AcquireSlot::Fixed(acquire), priority, || limit.limit())
                    }
                };
                self.reported(entered, priority, info, || (limit.limit(), limit.available()))
            }
            Slots::Adaptive(adaptive) => {
                let limit = adaptive.concurrency();
                let entered = match max_wait {
                    None => at_once(adaptive.try_acquire().map(Slot::Measured)),
                    Some(longest) => {
                        let acquire = adaptive.acquire().within(longest).priority(priority);
                        self.queue(AcquireSlot::Measured(acquire), priority, || limit.limit())
                    }
                };
                self.reported(entered, priority, info, || (limit.limit(), limit.available()))
            }
            Slots::Partitioned(adaptive, try_acquire) => {
                let limit = adaptive.concurrency();
                let entered = at_once(try_acquire(info).map(Slot::Partition));
                self.reported(entered, priority, info, || (limit.limit(), limit.available()))
            }
            Slots::Each(limit, key) => {
                self.hints.look(std::iter::once(key), info);
                let mut bytes = KeyBytes::new();
                match key.find(info, &mut bytes) {
                    Found::Skip => return Entered::Inside(None),
                    Found::Refuse | Found::Ambiguous => {
                        self.instruments.no_key(0);
                        return Entered::Refused(Why::NoKey);
                    }
                    Found::Known | Found::Anonymous => {}
                }
                let key = bytes.as_bytes();
                let entered = match max_wait {
                    None => at_once(limit.try_acquire(key).map(Slot::Fixed)),
                    Some(longest) => {
                        let acquire = limit.acquire(key).within(longest).priority(priority);
                        self.queue(AcquireSlot::Fixed(acquire), priority, || limit.key_limit(key))
                    }
                };
                self.reported(entered, priority, info, || {
                    (limit.key_limit(key), limit.available(key))
                })
            }
        }
    }

    /// Returns how long a request may wait; `None` if no request may.
    fn max_wait(&self, info: &Info<'_>) -> Option<Duration> {
        let longest = self.settings.max_wait?;
        let deadline = info.extensions().get::<Deadline>();
        Some(deadline.map_or(longest, |due| longest.min(due.left() / 2)))
    }

    /// Takes a slot, or a place in the queue, in the order of calls and not of polls.
    fn queue(
        &self,
        mut acquire: AcquireSlot,
        priority: Priority,
        limit: impl FnOnce() -> u64,
    ) -> Entered {
        // A request that has to wait is polled again with the waker of its task.
        match acquire.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => at_once(answer),
            Poll::Pending if timer::has_timers() => {
                let since = self.clock.now();
                Entered::Waits(Waiting { acquire, priority, since, limit: limit() })
            }
            // Without timers the wait would have no end.
            Poll::Pending => Entered::Refused(Why::Full { limit: limit() }),
        }
    }

    /// Reports a decision; `level` returns the limit and what is left of it.
    fn reported(
        &self,
        entered: Entered,
        priority: Priority,
        info: &Info<'_>,
        level: impl FnOnce() -> (u64, u64),
    ) -> Entered {
        if self.observes_load() {
            match &entered {
                Entered::Inside(_) => self.observe(priority, Duration::ZERO, true),
                Entered::Refused(_) => {
                    self.recent.iter().for_each(|it| it.count(self.clock.now(), priority, false));
                }
                Entered::Waits(_) => {}
            }
        }
        if self.instruments.is_idle() {
            return entered;
        }
        match &entered {
            Entered::Inside(_) => self.report(info, Outcome::Allowed, level()),
            Entered::Refused(why) => self.report_refusal(info, *why),
            Entered::Waits(_) => {}
        }
        entered
    }

    /// Reports the end of a wait.
    pub(super) fn waited(&self, waiting: &Waiting, answer: &Result<Slot, Why>, info: &Info<'_>) {
        if self.observes_load() {
            let wait = self.clock.now().since(waiting.since);
            self.observe(waiting.priority, wait, answer.is_ok());
        }
        if !self.instruments.is_idle() {
            match answer {
                // The request has the slot that came free.
                Ok(_) => self.report(info, Outcome::Allowed, (waiting.limit, 0)),
                Err(why) => self.report_refusal(info, *why),
            }
        }
    }

    /// Tells whether the outcome of this decision affects later ones.
    fn observes_load(&self) -> bool {
        !self.shedders.is_empty() || self.recent.is_some()
    }

    fn observe(&self, priority: Priority, wait: Duration, is_served: bool) {
        self.shedders.iter().for_each(|shedder| shedder.waited(wait, is_served));
        self.recent.iter().for_each(|it| it.count(self.clock.now(), priority, is_served));
    }

    fn report_refusal(&self, info: &Info<'_>, why: Why) {
        match why {
            // No limit has decided.
            Why::NoKey => {}
            Why::Full { limit } | Why::TooManyKeys { limit } | Why::Shed { limit } => {
                self.report(info, Outcome::Later, (limit, 0));
            }
            Why::Closed { limit } => self.report(info, Outcome::Never, (limit, 0)),
        }
    }

    fn report(&self, info: &Info<'_>, outcome: Outcome, (limit, remaining): (u64, u64)) {
        let at = self.clock.now();
        // When a slot comes free is unknown, unless the settings say so.
        let retry_at = at.saturating_add(self.settings.retry_after.unwrap_or_default());
        let answer = Answer { outcome, at, cost: 1, limit, remaining, retry_at, full_at: None };
        let waits = self.settings.max_wait.is_some();
        let verb = if waits { Verb::Acquire } else { Verb::TryAcquire };
        let decision = Decision::answered(answer);
        // The key is found once more: only requests that are reported pay for it.
        let mut key = KeyBytes::new();
        let has_key = match &self.slots {
            Slots::Each(_, by) => {
                matches!(by.find(info, &mut key), Found::Known | Found::Anonymous)
            }
            _ => false,
        };
        self.instruments.decided(0, |name| {
            let event = Event::new(name, verb, &decision);
            if has_key { event.with_key(EventKey::Plain(&key)) } else { event }
        });
    }

    /// Tells whether [`ended`](Self::ended) has anything to do.
    pub(super) fn reads_responses(&self) -> bool {
        self.settings.measurement.is_some() || self.settings.has_shedding_header
    }

    /// Measures a call when its head, or its error, has arrived, and hands its slot to the body.
    pub(super) fn ended<R: http_body::Body, E>(
        &self,
        answer: Result<Response<R>, E>,
        slot: Option<Slot>,
    ) -> Result<Response<ConcurrencyBody<R>>, E> {
        let measurement = self.settings.measurement.as_ref();
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                if let (Some(measurement), Some(mut slot)) = (measurement, slot) {
                    slot.measure(measurement.on_error);
                }
                return Err(error);
            }
        };
        let (mut head, body) = response.into_parts();
        let held = slot.map(|slot| match measurement {
            None => HeldSlot::unmeasured(slot),
            Some(measurement) => {
                let waits_for_body = measurement.until_body && !body.is_end_stream();
                HeldSlot::new(slot, measurement.outcome(&head), waits_for_body)
            }
        });
        self.write_lowest_served(&mut head.headers);
        Ok(Response::from_parts(head, ConcurrencyBody::service(body, held)))
    }

    pub(super) fn write_lowest_served(&self, headers: &mut HeaderMap) {
        if self.settings.has_shedding_header
            && let Some(lowest) = self.recent.as_ref().and_then(Recent::lowest_served)
        {
            headers.insert("tollgate-shedding", HeaderValue::from(u16::from(lowest.urgency())));
        }
    }
}

fn at_once(answer: Result<Slot, Full>) -> Entered {
    match answer {
        Ok(slot) => Entered::Inside(Some(slot)),
        Err(full) => Entered::Refused(full.into()),
    }
}
