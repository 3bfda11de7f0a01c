//! Samples with labels of their own.

use super::{Exposition, text::Writer};
use crate::{
    admin::{LostLogLines, store_name},
    engine::BOUNDS_NS,
    net::{Listener, RefusalReason},
};
use std::time::Duration;

pub(super) fn refusals(from: &Exposition, writer: &mut Writer) {
    for listener in Listener::ALL {
        let counts = from.shared.traffic(listener).counts().refused;
        for (reason, count) in RefusalReason::ALL.into_iter().zip(counts) {
            let labels = [("listener", listener.name()), ("reason", reason.name())];
            writer.sample("tollgate_refused_total", &labels, count);
        }
    }
}

pub(super) fn store_decisions(from: &Exposition, writer: &mut Writer) {
    for (number, status) in &from.remotes {
        let counts = &status.counts;
        let [open, closed, local] = counts.degraded;
        for (by, count) in [
            ("store", counts.calls),
            ("lease", counts.leased),
            ("known-refusal", counts.refused_here),
            ("failed-open", open),
            ("failed-closed", closed),
            ("failed-local", local),
        ] {
            let labels = [("store", store_name(&from.plan, *number)), ("by", by)];
            writer.sample("tollgate_store_decisions_total", &labels, count);
        }
    }
}

/// Writes one sample for each rule whose rate moves, with the reason of now.
pub(super) fn adaptive_rates(from: &Exposition, writer: &mut Writer) {
    for (index, rule) in from.plan.adaptive_rules() {
        let (policy, domain) = (from.label(index as usize), from.plan.rule(index).domain());
        let labels = [("policy", policy), ("domain", domain), ("reason", rule.reason())];
        writer.sample("tollgate_adaptive_rate", &labels, rule.report().rate);
    }
}

/// Counts blocked and overridden keys.
pub(super) fn specials(from: &Exposition) -> (f64, f64) {
    let (mut blocked, mut overridden) = (0.0, 0.0);
    for special in from.shared.engine.overlay().list(from.now, usize::MAX) {
        blocked += f64::from(u8::from(special.blocked_until.is_some()));
        overridden += f64::from(u8::from(special.limit.is_some()));
    }
    (blocked, overridden)
}

pub(super) fn decision_seconds(from: &Exposition, writer: &mut Writer) {
    let (counts, sum) = from.shared.engine.timing().read();
    let mut total = 0_u64;
    for (index, count) in counts.iter().enumerate() {
        total += count;
        let bound = BOUNDS_NS.get(index).map(|ns| Duration::from_nanos(*ns).as_secs_f64());
        let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
        writer.sample("tollgate_decision_seconds_bucket", &[("le", &bound)], total);
    }
    writer.sample("tollgate_decision_seconds_sum", &[], sum.as_secs_f64());
    writer.sample("tollgate_decision_seconds_count", &[], total);
}

pub(super) fn config_loads(from: &Exposition, writer: &mut Writer) {
    if let Some(control) = &from.control {
        for (result, count) in [("ok", control.loads), ("error", control.failed_loads)] {
            writer.sample("tollgate_config_load_total", &[("result", result)], count);
        }
    }
}

pub(super) fn log_lines_lost(from: &Exposition, writer: &mut Writer) {
    if let Some(LostLogLines { throttled, dropped }) = from.shared.admin.lost_log_lines() {
        for (reason, count) in [("throttled", throttled), ("dropped", dropped)] {
            writer.sample("tollgate_log_lines_lost_total", &[("reason", reason)], count);
        }
    }
}
