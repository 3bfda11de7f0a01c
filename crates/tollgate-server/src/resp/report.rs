//! `TG.REPORT`: how calls ended, for rules whose rate follows reports.

use super::{
    command::count,
    parse::Args,
    policy::{Wrong, name},
    session::{Batch, Session},
};
use crate::engine::Report;
use std::time::Duration;

impl Session {
    /// `TG.REPORT policy outcome [latency_ms [count]]`
    pub(super) fn report(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let told = read(args).and_then(|report| {
            batch.engine.report(batch.plan, &report).map_err(|error| error.to_string())
        });
        match told {
            Ok(_) => self.replies.word("OK"),
            Err(wrong) => self.wrong(format_args!("ERR {wrong}")),
        }
    }
}

fn read<'a>(args: &Args<'a>) -> Result<Report<'a>, Wrong> {
    if args.len() > 5 {
        return Err("give one policy, an outcome, and then a latency and a count if known".into());
    }
    let (policy, word) = (name(args.at(1))?, name(args.at(2))?);
    let outcome = Report::outcome(&word.to_ascii_lowercase()).ok_or_else(|| {
        let shown: String = word.chars().take(40).collect();
        format!("\"{shown}\" is not an outcome; use {}", Report::OUTCOMES.join(", "))
    })?;
    let number = |at: usize, what: &str| {
        count(args.at(at)).ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(args.at(at)).chars().take(40).collect();
            format!("\"{shown}\" is not a {what}; give a whole number")
        })
    };
    let latency = match args.len() {
        ..=3 => None,
        _ if args.at(3) == b"-" => None,
        _ => Some(Duration::from_millis(number(3, "latency in milliseconds, nor \"-\"")?)),
    };
    let count = if args.len() > 4 { number(4, "count of calls")? } else { 1 };
    Ok(Report { policy, outcome, latency, count })
}
