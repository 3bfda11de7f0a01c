//! The share of one process: a state machine that receives the time as a value.
//!
//! ```text
//!  joining --answer--> granted (or learning) --lease over, no answer--> safe --answer--> granted
//!     |                                                                  ^
//!     '------------------------- no answer ------------------------------'
//! ```
//!
//! Two rules keep the sum of all shares within the capacity while no process reaches the store:
//!
//! 1. A lease ends here one lease after the report was *sent*, so before it ends in the table.
//! 2. After the lease, the share is the smaller of the last grant and the safe capacity. It grows
//!    to the safe capacity only one lease after the first report that failed: every earlier grant
//!    of any process is over by then.

use super::{
    Rate,
    report::{Answer, Report},
};
use std::time::Duration;
use tollgate::Tick;

/// Where a share comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// No answer yet: the share is zero.
    Joining,
    /// The table is new and only restates what processes hold.
    Learning,
    /// Granted, and the lease has not ended.
    Granted,
    /// The store is away and the lease is over: the safe capacity.
    Safe,
    /// The table is full, or another process uses this name: the share is zero.
    Refused,
    /// This process has left: the share is zero.
    Left,
}

#[derive(Debug)]
pub(super) struct Holder {
    capacity: Rate,
    safe_capacity: Option<Rate>,
    lease: Duration,
    number: u64,
    grant: Option<Grant>,
    /// The first report without an answer since the last answer.
    failing_since: Option<Tick>,
    clients: Option<u32>,
    refused: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    sent: Tick,
    share: Rate,
    until: Tick,
    learning_until: Tick,
}

impl Holder {
    pub(super) fn new(capacity: Rate, safe_capacity: Option<Rate>, lease: Duration) -> Self {
        Self {
            capacity,
            safe_capacity,
            lease,
            number: 0,
            grant: None,
            failing_since: None,
            clients: None,
            refused: None,
        }
    }

    /// Returns the next report.
    pub(super) fn report(&mut self, now: Tick, wants: Rate) -> Report {
        self.number += 1;
        Report { number: self.number, has: self.share(now).0, wants }
    }

    /// Handles the answer to a report that was sent at `sent`. Returns whether the share has
    /// shrunk: the difference is free for others only after another report.
    pub(super) fn answered(&mut self, sent: Tick, report: &Report, answer: Answer) -> bool {
        self.failing_since = None;
        self.refused = match answer {
            Answer::Full => Some("500 processes share the resource, which is the maximum"),
            Answer::InUse => {
                Some("another process uses the name of this process; choose a different name")
            }
            Answer::Stale | Answer::Granted { .. } => None,
        };
        match answer {
            Answer::Granted { share, clients, learning } => {
                let until = sent.saturating_add(self.lease);
                let learning_until = sent.saturating_add(learning);
                self.grant = Some(Grant { sent, share, until, learning_until });
                self.clients = Some(clients);
                share < report.has
            }
            Answer::Full | Answer::InUse => {
                self.grant = None;
                false
            }
            Answer::Stale => false,
        }
    }

    /// Records that a report got no answer, as of now.
    pub(super) fn failed(&mut self, now: Tick) {
        self.failing_since.get_or_insert(now);
    }

    /// Returns the share in force and where it comes from.
    pub(super) fn share(&self, now: Tick) -> (Rate, Mode) {
        if self.refused.is_some() {
            return (Rate::ZERO, Mode::Refused);
        }
        let last = match self.grant {
            Some(grant) if now < grant.until && now < grant.learning_until => {
                return (grant.share, Mode::Learning);
            }
            Some(grant) if now < grant.until => return (grant.share, Mode::Granted),
            Some(grant) => grant.share,
            None if self.failing_since.is_none() => return (Rate::ZERO, Mode::Joining),
            None => Rate::ZERO,
        };
        let calm = self.calm().is_some_and(|calm| now >= calm);
        let share = if calm { self.safe() } else { last.min(self.safe()) };
        (share, Mode::Safe)
    }

    /// Returns when the share changes by itself after `now`.
    pub(super) fn next_change(&self, now: Tick) -> Option<Tick> {
        let ends = self.grant.map(|grant| grant.until);
        [ends, self.calm()].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Returns the remaining time of the lease.
    pub(super) fn lease_left(&self, now: Tick) -> Duration {
        self.grant.map_or(Duration::ZERO, |grant| grant.until.since(now))
    }

    /// Tells whether the last report got no answer.
    pub(super) fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    /// Returns when the table stops learning, if the last answer came before that.
    pub(super) fn learned(&self) -> Option<Tick> {
        let grant = self.grant.filter(|grant| grant.learning_until > grant.sent)?;
        Some(grant.learning_until)
    }

    pub(super) fn clients(&self) -> Option<u32> {
        self.clients
    }

    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refused
    }

    /// Returns when every lease of any process is over.
    fn calm(&self) -> Option<Tick> {
        self.failing_since.map(|since| since.saturating_add(self.lease))
    }

    fn safe(&self) -> Rate {
        let known = || self.clients.map_or(Rate::ZERO, |clients| self.capacity.split(clients));
        self.safe_capacity.unwrap_or_else(known)
    }
}

#[cfg(test)]
mod tests;
