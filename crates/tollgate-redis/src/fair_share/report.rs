//! Reports to the script, and its answers.

use super::{
    Rate, Sharing,
    resource::{CLIENTS_MAX, Member, Resource},
    shares::floor_of,
};
use crate::{Command, JoinError, Reply, Script};
use std::time::Duration;

pub(super) const SOURCE: &str = include_str!("../lua/allot.lua");

/// The constant parts of a report: the resource, the process and its run.
#[derive(Debug)]
pub(super) struct Registration {
    script: Script,
    key: Vec<u8>,
    id: String,
    /// Distinguishes two processes of one name.
    run: u64,
    resource: Resource,
    member: Member,
}

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Counts up, so that the script recognizes a report that arrives late.
    pub(super) number: u64,
    /// The share in force here.
    pub(super) has: Rate,
    pub(super) wants: Rate,
}

/// The script's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted {
        share: Rate,
        clients: u32,
        learning: Duration,
    },
    /// The script has handled a later report of this process already.
    Stale,
    Full,
    InUse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Report,
    Leave,
}

impl Registration {
    pub(super) fn new(
        script: Script,
        resource: Resource,
        member: Member,
    ) -> Result<Self, JoinError> {
        resource.check()?;
        member.check()?;
        let (key, id) = (resource.key()?, member.field()?);
        // The script keeps numbers in doubles: 53 bits.
        let run = fastrand::u64(..1 << 53);
        Ok(Self { script, key, id, run, resource, member })
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the call for a report; a test adds `more` arguments.
    pub(super) fn call(&self, verb: Verb, report: &Report, more: usize) -> Command {
        let Resource { capacity, sharing, lease, .. } = &self.resource;
        let (sharing, parameter) = match *sharing {
            Sharing::Static { each } => ("static", each.as_micros()),
            Sharing::Proportional => ("proportional", 0),
            Sharing::Fair => ("fair", 0),
            Sharing::Bands { floor_ppm } => ("bands", floor_of(*capacity, floor_ppm)),
        };
        let mut call = self.script.call(1, 14 + more);
        call.push(&self.key);
        call.push(self.id.as_bytes());
        call.push_number(self.run);
        call.push_number(report.number);
        call.push(if verb == Verb::Leave { b"leave" } else { b"report" });
        call.push_number(report.has.as_micros());
        call.push_number(report.wants.as_micros());
        call.push_number(u64::from(self.member.weight));
        call.push_number(u64::from(self.member.band));
        call.push_number(capacity.as_micros());
        call.push(sharing.as_bytes());
        call.push_number(parameter);
        call.push_number(micros(*lease));
        call.push_number(micros(self.resource.learning_time()));
        call.push_number(CLIENTS_MAX);
        call
    }
}

/// OVERFLOW: times are at most a day.
fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Answer {
    /// Reads a reply; the error describes the expected one.
    pub(super) fn read(reply: &Reply) -> Result<Self, String> {
        let numbers: Option<Vec<i64>> =
            reply.parts().and_then(|parts| parts.iter().map(Reply::int).collect());
        match numbers.as_deref() {
            Some([1 | 2, share, clients, learning]) => Ok(Self::Granted {
                share: Rate::from_micros(u64::try_from(*share).unwrap_or_default()),
                clients: u32::try_from(*clients).unwrap_or_default(),
                learning: Duration::from_micros(u64::try_from(*learning).unwrap_or_default()),
            }),
            Some([0, ..]) => Ok(Self::Stale),
            Some([-1, ..]) => Ok(Self::Full),
            Some([-2, ..]) => Ok(Self::InUse),
            _ => Err(format!("expected a share, but the server replied {reply:?}")),
        }
    }
}

#[cfg(test)]
impl Registration {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the claim of a report.
    pub(super) fn claim(&self, wants: Rate) -> super::Claim {
        super::Claim { wants, weight: self.member.weight, band: self.member.band }
    }
}
