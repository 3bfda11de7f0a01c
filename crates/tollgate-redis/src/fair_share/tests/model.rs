//! The script in Rust: the same table, with the formulas of `shares.rs`.

use crate::fair_share::{
    Claim, Rate,
    report::{Answer, Registration, Report},
    resource::CLIENTS_MAX,
};
use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Debug)]
struct Row {
    claim: Claim,
    granted: u64,
    held: u64,
    ends: u64,
    number: u64,
    run: usize,
}

/// The table of one resource. Times are microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<String, Row>,
    learn_until: Option<u64>,
}

impl Table {
    /// Takes the report of a process (`id`, and `run` for two of one name).
    pub(super) fn report(
        &mut self,
        now: u64,
        (id, run): (&str, usize),
        registration: &Registration,
        report: &Report,
    ) -> Answer {
        let is_live = |row: &Row| row.ends > now;
        let mine = self.rows.get(id).filter(|row| is_live(row)).cloned();
        if mine.as_ref().is_some_and(|row| row.run != run) {
            return Answer::InUse;
        }
        if mine.as_ref().is_some_and(|row| report.number <= row.number) {
            return Answer::Stale;
        }
        let live = self.rows.values().filter(|row| is_live(row)).count();
        if mine.is_none() && live as u64 >= CLIENTS_MAX {
            return Answer::Full;
        }
        let resource = registration.resource();
        let learning = now + resource.learning_time().as_micros() as u64;
        let went_back = self.learn_until.is_some_and(|until| until > learning);
        let nobody = live == 0 && !self.rows.is_empty();
        if self.learn_until.is_none() || nobody || went_back {
            self.learn_until = Some(learning);
        }
        self.rows.retain(|name, row| row.ends > now && name != id);
        let learn_until = self.learn_until.unwrap_or_default();
        let held: u64 = self.rows.values().map(|row| row.held).sum();
        let unused = resource.capacity.as_micros().saturating_sub(held);
        let claim = registration.claim(report.wants);
        let formula = if now < learn_until {
            report.has
        } else {
            let mut claims: Vec<Claim> = self.rows.values().map(|row| row.claim).collect();
            claims.push(claim);
            *resource.sharing.shares(resource.capacity, &claims).last().unwrap()
        };
        let granted = formula.as_micros().min(unused);
        let held = granted.max(report.has.as_micros());
        let ends = now + resource.lease.as_micros() as u64;
        let row = Row { claim, granted, held, ends, number: report.number, run };
        self.rows.insert(id.to_owned(), row);
        Answer::Granted {
            share: Rate::from_micros(granted),
            clients: self.rows.len() as u32,
            learning: Duration::from_micros(learn_until.saturating_sub(now)),
        }
    }

    pub(super) fn leave(&mut self, now: u64, (id, run): (&str, usize)) {
        if self.rows.get(id).is_none_or(|row| row.run == run || row.ends <= now) {
            self.rows.remove(id);
        }
    }

    /// Returns the sum of what was granted in leases that run.
    pub(super) fn granted(&self, now: u64) -> Rate {
        let live = self.rows.values().filter(|row| row.ends > now);
        live.map(|row| Rate::from_micros(row.granted)).sum()
    }
}
