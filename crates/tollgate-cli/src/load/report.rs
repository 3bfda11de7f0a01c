//! The results of a run, for people and for programs.

use super::{
    plan::{Plan, Wire},
    schedule::Pace,
    tally::{LatencyMs, Tally},
};
use crate::counted;
use serde::Serialize;
use std::io::{self, Write};

/// The result of a run. The names of the fields are those of the JSON, and stay.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) protocol: &'static str,
    pub(crate) address: String,
    /// `closed` or `open`.
    pub(crate) mode: &'static str,
    pub(crate) connections: u64,
    pub(crate) threads: u64,
    /// Requests in flight on a connection; not in an open loop.
    pub(crate) depth: Option<u64>,
    /// Requests due each second; only in an open loop.
    pub(crate) target_rate: Option<u64>,
    /// From the end of the warm-up to the last answer.
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Answers each second.
    pub(crate) rate: f64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// The expected number of allowed requests, if the user has set it.
    pub(crate) expected_allowed: Option<u64>,
    /// Everything that went wrong, the two below included.
    pub(crate) errors: u64,
    /// Sent, but never answered.
    pub(crate) unanswered: u64,
    /// Due, but never sent; only in an open loop.
    pub(crate) unsent: u64,
    pub(crate) reconnects: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) latency_ms: LatencyMs,
    /// All answers, those by a limit, and those without one; the warm-up included.
    #[serde(skip)]
    answers: u64,
    #[serde(skip)]
    connected: u64,
    #[serde(skip)]
    pub(crate) decided: u64,
    #[serde(skip)]
    unmatched: u64,
}

impl Report {
    /// Draws the sum. A run that a user ended early misses nothing that was never sent.
    pub(crate) fn new(plan: &Plan, tally: &Tally, ended_early: bool) -> Self {
        let schedule = &plan.schedule;
        let (mode, depth, target_rate) = match schedule.pace {
            Pace::Closed { depth } => ("closed", Some(depth), None),
            Pace::Open { rate } => ("open", open_depth(plan), Some(rate)),
        };
        let unsent = match target_rate {
            Some(_) if !ended_early => planned(plan).saturating_sub(tally.sent),
            _ => 0,
        };
        let unanswered = tally.unanswered();
        let seconds = tally.last_ns.saturating_sub(schedule.measure_from_ns) as f64 / 1e9;
        let mut first_error = tally.first_error.clone();
        if first_error.is_none() && (unanswered > 0 || tally.answers == 0) {
            first_error = Some(format!("no response for {:?}", plan.timeout));
        }
        Self {
            protocol: plan.wire.name(),
            address: plan.target.to_string(),
            mode,
            connections: schedule.connections,
            threads: plan.threads,
            depth,
            target_rate,
            seconds,
            sent: tally.sent,
            answered: tally.measured,
            rate: if seconds > 0.0 { tally.measured as f64 / seconds } else { 0.0 },
            allowed: tally.allowed,
            denied: tally.denied,
            expected_allowed: plan.admit_exactly,
            errors: tally.errors + unanswered + unsent,
            unanswered,
            unsent,
            reconnects: tally.reconnects,
            first_error,
            latency_ms: tally.latency_ms(),
            answers: tally.answers,
            connected: tally.connected,
            decided: tally.decided,
            unmatched: tally.unmatched,
        }
    }

    /// Says what is wrong with the result, if anything: the run failed then.
    pub(crate) fn problem(&self, plan: &Plan) -> Option<String> {
        let shown = self.first_error.as_deref().unwrap_or("no error was recorded");
        let asked = &plan.asked;
        if self.decided == 0 && self.unmatched > 0 {
            return Some(format!(
                "nothing matched: the server has no limit for {asked}, so every request passed; \
                 name a limit that it has. `tollgate serve` without a configuration has --domain \
                 example --descriptor user={{key}}, and `tollgate check --list FILE` lists yours"
            ));
        }
        if self.connected == 0 || (self.sent == 0 && self.answers == 0) {
            let what = if self.connected == 0 { "could be sent" } else { "was answered" };
            return Some(format!(
                "no request {what}: {shown}; is the server running, and is this its address (`load \
                 {} ADDRESS`)? For TLS add --tls, for a private CA --cacert, for mutual TLS --cert \
                 and --key",
                self.protocol
            ));
        }
        if self.errors > plan.max_errors {
            let (errors, most) = (counted(self.errors, "error"), plan.max_errors);
            let way_out = match self.decided {
                0 => {
                    format!("; no response was a decision, so check the address, --tls and {asked}")
                }
                _ => String::new(),
            };
            return Some(format!(
                "{errors}, above --max-errors {most}; the first: {shown}{way_out}"
            ));
        }
        match plan.admit_exactly {
            Some(wanted) if wanted != self.allowed => Some(format!(
                "{} allowed, expected exactly {wanted} ({:+})",
                counted(self.allowed, "request"),
                i128::from(self.allowed) - i128::from(wanted)
            )),
            _ => None,
        }
    }

    /// Prints one JSON object.
    pub(crate) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }

    /// Prints a table.
    pub(crate) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let how = match (self.depth, self.target_rate) {
            (_, Some(rate)) => format!("open loop at {rate}/s"),
            (Some(depth), _) => format!("closed loop, {depth} in flight per connection"),
            (None, None) => String::new(),
        };
        writeln!(
            out,
            "{} {}, {}, {}, {how}\n",
            self.protocol,
            self.address,
            counted(self.connections, "connection"),
            counted(self.threads, "thread")
        )?;
        let share = |count: u64| 100.0 * count as f64 / self.answered.max(1) as f64;
        writeln!(out, "  sent      {:>12}  in {:.2} s", self.sent, self.seconds)?;
        writeln!(out, "  rate      {:>12.0}  responses per second", self.rate)?;
        writeln!(out, "  allowed   {:>12}  {:.1} %", self.allowed, share(self.allowed))?;
        if let Some(wanted) = self.expected_allowed {
            let met = if wanted == self.allowed { "met exactly" } else { "not met" };
            writeln!(out, "  expected  {wanted:>12}  {met}")?;
        }
        writeln!(out, "  denied    {:>12}  {:.1} %", self.denied, share(self.denied))?;
        writeln!(out, "  errors    {:>12}", self.errors)?;
        for (name, count) in [
            ("unanswered", self.unanswered),
            ("never sent", self.unsent),
            ("reconnects", self.reconnects),
        ] {
            if count > 0 {
                writeln!(out, "  {name}{count:>12}")?;
            }
        }
        let from = if self.target_rate.is_some() { "due" } else { "sent" };
        writeln!(out, "\n  latency in ms, from when a request was {from} to its response")?;
        let LatencyMs { mean, p50, p90, p99, p999, max } = self.latency_ms;
        for (name, value) in [
            ("mean", mean),
            ("p50", p50),
            ("p90", p90),
            ("p99", p99),
            ("p99.9", p999),
            ("max", max),
        ] {
            writeln!(out, "  {name:<10}{value:>12.3}")?;
        }
        if let Some(error) = &self.first_error {
            writeln!(out, "\n  first error: {error}")?;
        }
        Ok(())
    }
}

/// In an open loop only streams bound what is in flight.
fn open_depth(plan: &Plan) -> Option<u64> {
    match plan.wire {
        Wire::Grpc { streams, .. } => Some(streams),
        _ => None,
    }
}

/// Returns how many requests of an open loop count.
fn planned(plan: &Plan) -> u64 {
    let schedule = &plan.schedule;
    let all: u64 = (0..schedule.connections).map(|it| schedule.share(it)).sum();
    let warm = match schedule.measure_from_ns {
        0 => 0,
        from => schedule.due_count(from - 1),
    };
    all.saturating_sub(warm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{
            http::HttpScan,
            keys::{KeySpace, Spread},
            schedule::Schedule,
            tally::Verdict,
            template::Template,
        },
        target::Target,
        tls::TlsArgs,
    };
    use std::{sync::Arc, time::Duration};

    fn plan(pace: Pace) -> Plan {
        Plan {
            target: Arc::new(Target::new("localhost:1", &TlsArgs::default(), b"").unwrap()),
            template: Arc::new(Template::default()),
            wire: Wire::Http(HttpScan { no_body: false }),
            asked: "--path /".into(),
            keys: KeySpace { count: 1, spread: Spread::One, seed: 0 },
            schedule: Schedule {
                pace,
                connections: 2,
                measure_from_ns: 1_000_000_000,
                end_ns: Some(2_000_000_000),
                requests: None,
            },
            threads: 1,
            timeout: Duration::from_secs(10),
            max_errors: 0,
            admit_exactly: Some(2),
        }
    }

    fn tally() -> Tally {
        let mut tally = Tally::new().unwrap();
        (tally.sent, tally.connected) = (4, 2);
        for verdict in [Verdict::Allowed, Verdict::Allowed, Verdict::Denied] {
            tally.answer(verdict, 1_000_000);
        }
        tally.last_ns = 3_000_000_000;
        tally
    }

    #[test]
    fn what_was_never_answered_is_an_error() {
        let plan = plan(Pace::Closed { depth: 1 });
        let report = Report::new(&plan, &tally(), false);
        assert_eq!((report.errors, report.unanswered, report.unsent), (1, 1, 0));
        assert_eq!((report.seconds, report.rate), (2.0, 1.5));
        assert!((report.latency_ms.p50 - 1.0).abs() < 0.01);
        assert!(report.problem(&plan).is_some_and(|text| text.contains("no response for 10s")));
    }

    #[test]
    fn what_was_due_and_never_sent_is_an_error_unless_the_user_ended_it() {
        let plan = plan(Pace::Open { rate: 10 });
        assert_eq!(Report::new(&plan, &tally(), false).unsent, 6);
        assert_eq!(Report::new(&plan, &tally(), true).unsent, 0);
    }

    #[test]
    fn exactness_is_judged_after_errors() {
        let mut plan = plan(Pace::Closed { depth: 1 });
        let mut tally = tally();
        tally.sent = 3;
        assert_eq!(Report::new(&plan, &tally, false).problem(&plan), None);
        plan.admit_exactly = Some(3);
        let text = Report::new(&plan, &tally, false).problem(&plan).unwrap();
        assert_eq!(text, "2 requests allowed, expected exactly 3 (-1)");
    }

    #[test]
    fn the_json_has_stable_names() {
        let report = Report::new(&plan(Pace::Closed { depth: 1 }), &tally(), false);
        let mut out = Vec::new();
        report.write_json(&mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        for name in ["sent", "rate", "allowed", "denied", "errors", "latency_ms", "seconds"] {
            assert!(!json[name].is_null(), "{name}");
        }
        assert!(json["latency_ms"]["p999"].is_number());
        let mut text = Vec::new();
        report.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("closed loop, 1 in flight"), "{text}");
        assert!(text.contains("expected             2  met exactly"), "{text}");
    }
}
