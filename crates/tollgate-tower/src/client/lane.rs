//! The limits of one server as the client knows them, and when the next call to it may start: a
//! pure state machine.
//!
//! Its inputs are times and answers, its output is the tick of the next start. Nothing here waits
//! or locks.
//!
//! # The rules
//!
//! 1. "r left for t" lets r calls start before t has passed. Calls that are still in flight may or
//!    may not be counted in r, so they are subtracted. When such a call is answered later, it is no
//!    longer in flight, so one more may start. But the client cannot know which of the two calls
//!    the server counted first, so that answer cannot raise the remaining calls further, only lower
//!    them. Only an answer to a call that was started after the last such *news* is news itself. If
//!    answers to calls that the server may have counted after it reported fewer remaining calls
//!    meanwhile, the lower number holds.
//! 2. When t has passed, the remaining calls are still allowed. If none remained, calls start at
//!    the policy's own rate, one every window / limit, until an answer brings news. If that rate is
//!    unknown, one call goes ahead as a probe, and the others wait for its answer.
//! 3. A refusal with a time stops all calls until then, and a probe goes first. A refusal without a
//!    time stops them for 1 s, twice that for the next one, and so on up to a minute.
//! 4. If a probe is not answered within 1 s, another follows.
//!
//! 5. However long a window is, no more than [`Manner::longest`] passes from start to start: a
//!    limit reported that long ago may be outdated, and only an answer can tell.
//!
//! Policies that count other units than requests (tokens, bytes) stop calls only when nothing is
//! left. Policies of one name in one answer belong to several servers in a row, and each counts by
//! itself.

use super::{
    learned::{Learned, LearnedPolicy, Refusal, RetryWhen, Unit},
    spend::Spend,
};
use std::time::Duration;
use tollgate::Tick;

/// The most policies of one server that are remembered.
const MOST_POLICIES: usize = 16;
/// The pause after a refusal without a time, and between probes.
const PAUSE: Duration = Duration::from_secs(1);
/// How often that pause doubles: up to 64 s, capped at a minute.
const MOST_DOUBLINGS: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How the limits that a server reports are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) spend: Spend,
    /// Times further ahead than this are not believed.
    pub(super) longest: Duration,
}

/// The limits of one server, as far as they are known.
#[derive(Debug)]
pub(super) struct Lane {
    manner: Manner,
    policies: Vec<Known>,
    stopped_until: Tick,
    probe: Option<Probe>,
    /// Calls without an answer.
    in_flight: u64,
    /// The number of the next call.
    next: u64,
    /// Calls below that number were started before the last news arrived.
    news_from: u64,
    last_start: Option<Tick>,
    /// Refusals in a row that did not say when to retry.
    silent: u32,
}

/// Calls from this number on may show whether the server admits calls again.
#[derive(Clone, Copy, Debug)]
struct Probe {
    from: u64,
    since: Option<Tick>,
}

/// The state of a policy, as far as it is known.
#[derive(Debug)]
struct Known {
    name: Option<Box<str>>,
    unit: Unit,
    /// How many policies of that name and unit precede it in an answer.
    nth: u8,
    /// How many calls may start; below zero if more are in flight than were left...
    left: i64,
    /// ...before this.
    until: Tick,
    /// The least time from start to start.
    interval: Duration,
    /// Whether the interval is our own guess until an answer comes.
    is_guess: bool,
    /// How long the remaining calls have to last, if no answer comes.
    span: Duration,
    /// The time of one call at the policy's own rate.
    per_call: Option<Duration>,
    /// The fewest remaining calls that were reported since the last news, and until when they
    /// count.
    least: Option<(u64, Tick)>,
}

impl Lane {
    pub(super) fn new(manner: Manner) -> Self {
        Self {
            manner,
            policies: Vec::new(),
            stopped_until: Tick::ZERO,
            probe: None,
            in_flight: 0,
            next: 0,
            news_from: 0,
            last_start: None,
            silent: 0,
        }
    }

    /// Returns when the next call may start: `now`, or later.
    pub(super) fn next_at(&mut self, now: Tick) -> Tick {
        self.renew(now);
        let mut at = now.max(self.stopped_until);
        for policy in &self.policies {
            if policy.left <= 0 {
                at = at.max(policy.until);
            } else if let Some(last) = self.last_start {
                at = at.max(last.saturating_add(policy.interval));
            }
        }
        if let Some(since) = self.probe.and_then(|probe| probe.since) {
            at = at.max(since.saturating_add(PAUSE));
        }
        at
    }

    /// Returns a lower bound for the start of a call that has this many others before it.
    pub(super) fn earliest(&mut self, now: Tick, ahead: u64) -> Tick {
        let next = self.next_at(now);
        let mut at = next;
        for policy in self.policies.iter().filter(|policy| policy.unit == Unit::Requests) {
            let most = policy.left.saturating_add(signed(self.in_flight));
            let bound = if most <= signed(ahead) {
                policy.until
            } else if policy.is_guess {
                next
            } else {
                let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
                next.saturating_add(policy.interval.saturating_mul(ahead))
            };
            at = at.max(bound);
        }
        at
    }

    /// Starts a call, and returns its number.
    pub(super) fn start(&mut self, now: Tick) -> u64 {
        for policy in &mut self.policies {
            policy.left = policy.left.saturating_sub(1);
        }
        if let Some(probe) = &mut self.probe {
            probe.since = Some(now);
        }
        self.last_start = Some(now);
        self.in_flight += 1;
        self.next += 1;
        self.next - 1
    }

    /// Removes a call that ended without an answer from the calls in flight.
    pub(super) fn lose(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(probe) = self.probe.as_mut().filter(|probe| number >= probe.from) {
            probe.since = None;
        }
    }

    /// Processes an answer. Tells whether it stopped the lane.
    pub(super) fn answer(&mut self, now: Tick, number: u64, learned: &Learned) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        let is_late = number < self.news_from;
        if !is_late {
            self.news_from = self.next;
        }
        let is_news = self.probe.is_none_or(|probe| number >= probe.from);
        let stop = self.stop_of(learned, is_news);
        if stop.is_none() && is_news {
            self.probe = None;
        }
        let mut pause = stop;
        for (index, policy) in learned.policies.iter().enumerate() {
            let is_same =
                |other: &&LearnedPolicy| other.name == policy.name && other.unit == policy.unit;
            let nth = learned.policies[..index].iter().filter(is_same).count();
            let told = Told { policy, nth: u8::try_from(nth).unwrap_or(u8::MAX) };
            // Retry-After takes precedence over the time of a policy that is used up.
            let is_empty = policy.remaining == 0;
            let time = stop.filter(|_| is_empty).or(policy.reset_after);
            match time {
                _ if policy.unit == Unit::Concurrent => {}
                Some(time) if is_empty || policy.unit == Unit::Requests => {
                    self.adopt(now, told, time, is_late);
                }
                _ => {
                    self.policies.retain(|known| is_late || !known.is(told));
                    if is_empty && time.is_none() {
                        pause = pause.max(Some(PAUSE));
                    }
                }
            }
        }
        if let Some(pause) = pause {
            self.stopped_until = self.stopped_until.max(now.saturating_add(pause));
            if is_news {
                self.probe = Some(Probe { from: self.next, since: None });
            }
        }
        pause.is_some()
    }

    /// Tells whether forgetting this lane changes nothing.
    pub(super) fn is_idle(&self, now: Tick) -> bool {
        self.in_flight == 0
            && self.stopped_until <= now
            && self.policies.iter().all(|policy| policy.until <= now)
    }

    /// Returns how long a refusal stops all calls.
    fn stop_of(&mut self, learned: &Learned, is_news: bool) -> Option<Duration> {
        let stop = match (learned.refusal, learned.retry) {
            (Some(_), Some(RetryWhen::After(after))) => Some(after),
            (Some(Refusal::Client), _) => {
                let known = learned.named();
                // Refusals of calls that were in flight together count as one.
                let before = if is_news { self.silent } else { self.silent.saturating_sub(1) };
                let pause = PAUSE * 2_u32.pow(before.min(MOST_DOUBLINGS));
                if known.is_none() && is_news {
                    self.silent = self.silent.saturating_add(1);
                }
                Some(known.unwrap_or(pause.min(LONGEST_PAUSE)))
            }
            _ => None,
        };
        if stop.is_none() && is_news {
            self.silent = 0;
        }
        stop
    }

    fn adopt(&mut self, now: Tick, told: Told<'_>, time: Duration, is_late: bool) {
        let (in_flight, manner) = (self.in_flight, self.manner);
        let left = told.policy.remaining;
        let fresh = |left, time| Known::new(now, told, (told.free(left, in_flight), time), manner);
        let Some(known) = self.policies.iter_mut().find(|known| known.is(told)) else {
            if self.policies.len() == MOST_POLICIES {
                let first = self.policies.iter().enumerate().min_by_key(|(_, known)| known.until);
                if let Some((index, _)) = first {
                    self.policies.swap_remove(index);
                }
            }
            self.policies.push(fresh(left, time));
            return;
        };
        let least = known.least.filter(|(_, until)| *until > now);
        if !is_late || known.until <= now {
            // Calls with a lower number may have been counted after it.
            let (left, time) = match least.filter(|(least, _)| *least < left) {
                Some((least, until)) => (least, time.min(until.since(now))),
                None => (left, time),
            };
            *known = fresh(left, time);
        } else if !known.is_guess {
            // During a guess, a late answer describes a window that is over.
            let late = fresh(left, time);
            let least = least.filter(|(least, _)| *least <= left).unwrap_or((left, late.until));
            if late.left <= known.left {
                *known = late;
            } else {
                known.left = known.left.saturating_add(1);
            }
            known.least = Some(least);
        }
    }

    /// Renews policies whose time has passed.
    fn renew(&mut self, now: Tick) {
        let mut needs_probe = false;
        self.policies.retain_mut(|policy| {
            if policy.until > now {
                return true;
            }
            policy.until = policy.until.saturating_add(policy.span);
            if policy.until <= now {
                policy.until = now.saturating_add(policy.span);
            }
            if policy.left > 0 {
                return policy.span > Duration::ZERO;
            }
            let Some(per_call) = policy.per_call else {
                needs_probe |= policy.unit == Unit::Requests;
                return false;
            };
            policy.left = i64::MAX;
            (policy.interval, policy.is_guess) = (per_call, true);
            true
        });
        if needs_probe && self.probe.is_none() {
            self.probe = Some(Probe { from: self.next, since: None });
        }
    }
}

/// A policy in an answer.
#[derive(Clone, Copy, Debug)]
struct Told<'a> {
    policy: &'a LearnedPolicy,
    /// How many policies of that name and unit precede it.
    nth: u8,
}

impl Told<'_> {
    /// Returns how many calls may start when this many are left and this many are in flight.
    fn free(self, left: u64, in_flight: u64) -> i64 {
        match self.policy.unit {
            Unit::Requests => signed(left).saturating_sub(signed(in_flight)),
            _ => 0,
        }
    }
}

impl Known {
    fn new(now: Tick, told: Told<'_>, (left, time): (i64, Duration), manner: Manner) -> Self {
        let Told { policy, nth } = told;
        let limit = policy.limit.filter(|limit| *limit > 0);
        let counts = policy.unit == Unit::Requests;
        let per_call = policy.window.zip(limit).filter(|_| counts);
        let longest = manner.longest;
        Self {
            name: policy.name.clone(),
            unit: policy.unit,
            nth,
            left,
            until: now.saturating_add(time),
            interval: manner.spend.interval(u64::try_from(left).unwrap_or(0), limit, time),
            is_guess: false,
            span: policy.window.unwrap_or(time).min(longest),
            per_call: per_call.map(|(window, limit)| share(window, limit).min(longest)),
            least: None,
        }
    }

    fn is(&self, told: Told<'_>) -> bool {
        self.name == told.policy.name && self.unit == told.policy.unit && self.nth == told.nth
    }
}

/// Returns a count as a signed number, at most `i64::MAX`.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns one of this many equal shares of a time, rounded up.
pub(super) fn share(time: Duration, shares: u64) -> Duration {
    // OVERFLOW: a duration is below 2^94 ns; shares above 2^64 ns, 584 years, count as that.
    let nanos = time.as_nanos().div_ceil(u128::from(shares.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
