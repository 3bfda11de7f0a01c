//! The families of metrics, in the order in which they are written.

use super::{
    family::{Family, Samples},
    process::resident_bytes,
    samples::{
        adaptive_rates, config_loads, decision_seconds, log_lines_lost, refusals, specials,
        store_decisions,
    },
    text::Kind,
};
use crate::admin::level;

const fn family(name: &'static str, kind: Kind, samples: Samples, help: &'static str) -> Family {
    Family { name, kind, help, samples }
}

use Kind::{Counter, Gauge, Histogram};
use Samples::{Listeners, Nodes, One, Other, Remotes, Rules, Stores};

impl Family {
    /// All families.
    pub(super) const ALL: &[Self] = &[
        family(
            "tollgate_decisions_total",
            Counter,
            Rules(|_, rule, out| {
                let counts = rule.live().counts();
                out.counts(&counts, &counts.decisions);
            }),
            "Decisions of each policy, by result and reason.",
        ),
        family(
            "tollgate_permits_total",
            Counter,
            Rules(|_, rule, out| {
                let counts = rule.live().counts();
                out.counts(&counts, &counts.permits);
            }),
            "Permits requested by these decisions.",
        ),
        family(
            "tollgate_charged_permits_total",
            Counter,
            Rules(|_, rule, out| out.sample(rule.live().counts().charged)),
            "Permits that the store was charged, also by settlements above what was reserved.",
        ),
        family(
            "tollgate_returned_permits_total",
            Counter,
            Rules(|_, rule, out| out.sample(rule.live().counts().returned)),
            "Permits that refunds, cancellations and settlements gave back to the store.",
        ),
        family(
            "tollgate_thresholds_crossed_total",
            Counter,
            Rules(|_, rule, out| {
                for percent in rule.warn() {
                    let threshold = format!("{percent}%");
                    out.labelled(("threshold", &threshold), rule.live().crossed(*percent));
                }
            }),
            "Keys whose use reached a threshold (warn) of the policy, each once per window.",
        ),
        family(
            "tollgate_thresholds_unreported_total",
            Counter,
            One(|from| Some(from.shared.engine.unreported_thresholds() as f64)),
            "Crossings of thresholds that were not reported because too many are remembered.",
        ),
        family(
            "tollgate_limit",
            Gauge,
            Rules(|_, rule, out| {
                if let Some(count) = rule.kind().count() {
                    out.sample(count);
                }
            }),
            "Permits that a policy admits per tollgate_limit_seconds.",
        ),
        family(
            "tollgate_limit_seconds",
            Gauge,
            Rules(|_, rule, out| {
                if let Some(per) = rule.kind().per() {
                    out.sample(per.as_secs_f64());
                }
            }),
            "Period in which a policy admits its limit.",
        ),
        family(
            "tollgate_level",
            Gauge,
            Rules(|from, rule, out| {
                if let Some(level) = level(&from.shared, rule, from.now) {
                    out.sample(level.left);
                }
            }),
            "Permits left now, for policies without a key.",
        ),
        family(
            "tollgate_capacity",
            Gauge,
            Rules(|from, rule, out| {
                if let Some(level) = level(&from.shared, rule, from.now) {
                    out.sample(level.full);
                }
            }),
            "Permits when nothing is used, for policies without a key.",
        ),
        family(
            "tollgate_in_flight",
            Gauge,
            Rules(|from, rule, out| {
                if let Some(in_flight) = from.in_flight.get(rule.id()) {
                    out.sample(in_flight);
                }
            }),
            "Slots in use under a concurrency rule, over all keys; only for stores in memory.",
        ),
        family(
            "tollgate_in_flight_limit",
            Gauge,
            Rules(|_, rule, out| {
                if let Some(slots) = rule.kind().slots() {
                    out.sample(slots.limit);
                }
            }),
            "Slots of each key under a concurrency rule.",
        ),
        family(
            "tollgate_adaptive_rate",
            Gauge,
            Other(adaptive_rates),
            "Permits per second of a policy whose rate moves, by why it is what it is.",
        ),
        family(
            "tollgate_bypassed",
            Gauge,
            Rules(|from, rule, out| {
                if rule.live().bypassed_until(from.now).is_some() {
                    out.sample(1);
                }
            }),
            "1 for each policy that an administrator has bypassed.",
        ),
        family(
            "tollgate_blocked_keys",
            Gauge,
            One(|from| Some(specials(from).0)),
            "Keys that an administrator has blocked.",
        ),
        family(
            "tollgate_overridden_keys",
            Gauge,
            One(|from| Some(specials(from).1)),
            "Keys whose quota an administrator has overridden.",
        ),
        family(
            "tollgate_banned_keys",
            Gauge,
            Rules(|from, rule, out| {
                if rule.live().bans().is_some() {
                    out.sample(rule.live().banned(from.now).len());
                }
            }),
            "Keys that are banned because they were denied again and again; counted up to 1000.",
        ),
        family(
            "tollgate_decision_seconds",
            Histogram,
            Other(decision_seconds),
            "Duration of a sample of the decisions.",
        ),
        family(
            "tollgate_keys",
            Gauge,
            Stores(|from, number| Some(from.shared.engine.stores()[number].memory()?.len() as f64)),
            "Keys that have a slot in a store of this process.",
        ),
        family(
            "tollgate_keys_limit",
            Gauge,
            Stores(|from, number| {
                Some(from.shared.engine.stores()[number].memory()?.max_keys()? as f64)
            }),
            "Keys that a store of this process can hold.",
        ),
        family(
            "tollgate_table_bytes",
            Gauge,
            Stores(|from, number| {
                Some(from.shared.engine.stores()[number].memory()?.bytes() as f64)
            }),
            "Memory of these slots.",
        ),
        family(
            "tollgate_evictions_total",
            Counter,
            Stores(|from, number| {
                let store = from.shared.engine.stores()[number].memory()?;
                Some(store.table_counts().evicted as f64)
            }),
            "Live keys that were evicted because the table was full.",
        ),
        family(
            "tollgate_store_errors_total",
            Counter,
            One(|from| Some(from.shared.engine.health().errors() as f64)),
            "Calls that a store failed to answer.",
        ),
        family(
            "tollgate_bounds_reached_total",
            Counter,
            One(|from| Some(from.shared.engine.health().bounds_reached() as f64)),
            "Calls that were denied because a bound of a store was reached.",
        ),
        family(
            "tollgate_degraded_decisions_total",
            Counter,
            One(|from| Some(from.shared.engine.health().degraded_decisions() as f64)),
            "Requests that were decided without their store because it could not be reached.",
        ),
        family(
            "tollgate_store_degraded",
            Gauge,
            Remotes(|status| f64::from(u8::from(status.degraded.is_some()))),
            "1 while a shared store is unreachable and each policy's failure mode decides.",
        ),
        family(
            "tollgate_store_fleet_size",
            Gauge,
            Remotes(|status| f64::from(status.fleet_size)),
            "Processes that share the limits of a store, as counted by this one.",
        ),
        family(
            "tollgate_store_pending_keys",
            Gauge,
            Remotes(|status| status.pending as f64),
            "Keys with usage that is not yet reported to the shared store.",
        ),
        family(
            "tollgate_store_decisions_total",
            Counter,
            Other(store_decisions),
            "Decisions of a shared store, by where they were made.",
        ),
        family(
            "tollgate_store_unknown_outcomes_total",
            Counter,
            Remotes(|status| status.counts.unknown as f64),
            "Calls to a shared store with an unknown outcome: each was charged once or not at all.",
        ),
        family(
            "tollgate_store_node_up",
            Gauge,
            Nodes(|node| u64::from(node.state == "up")),
            "1 for each server of a shared store that calls are sent to; 0 while its breaker is open.",
        ),
        family(
            "tollgate_store_node_in_flight",
            Gauge,
            Nodes(|node| node.in_flight),
            "Calls that are waiting for a server's reply.",
        ),
        family(
            "tollgate_store_node_calls_total",
            Counter,
            Nodes(|node| node.calls),
            "Calls to a server.",
        ),
        family(
            "tollgate_store_node_errors_total",
            Counter,
            Nodes(|node| node.errors),
            "Calls to a server that failed, including timeouts.",
        ),
        family(
            "tollgate_store_node_timeouts_total",
            Counter,
            Nodes(|node| node.timeouts),
            "Calls to a server that timed out.",
        ),
        family(
            "tollgate_store_node_shed_total",
            Counter,
            Nodes(|node| node.shed),
            "Calls that were not sent: the breaker was open, or too many were in flight.",
        ),
        family(
            "tollgate_store_failing",
            Gauge,
            One(|from| Some(f64::from(u8::from(from.shared.admin.sampler().is_store_failing())))),
            "1 while a store has failed in each of the last three seconds.",
        ),
        family(
            "tollgate_snapshot_timestamp_seconds",
            Gauge,
            Stores(|from, number| {
                let snapshots = &from.control.as_ref()?.snapshots;
                let written = snapshots.iter().find(|one| one.store == number)?.written;
                let written = written.unwrap_or_else(|| from.shared.admin.started());
                Some(from.shared.engine.clock().to_wall(written).as_secs_f64())
            }),
            "When the last snapshot of a store was written; before the first one, when the process was started.",
        ),
        family(
            "tollgate_connections",
            Gauge,
            Listeners(|_, counts| counts.open),
            "Connections that are open.",
        ),
        family(
            "tollgate_connections_limit",
            Gauge,
            Listeners(|from, _| from.shared.settings.max_connections as u64),
            "Connections that may be open at once.",
        ),
        family(
            "tollgate_connections_accepted_total",
            Counter,
            Listeners(|_, counts| counts.accepted),
            "Connections accepted.",
        ),
        family(
            "tollgate_connections_turned_away_total",
            Counter,
            Listeners(|_, counts| counts.turned_away),
            "Connections that were closed at once: too many, or a failed TLS handshake.",
        ),
        family(
            "tollgate_refused_total",
            Counter,
            Other(refusals),
            "Requests refused and connections closed by a bound: connections, memory, descriptors, \
             slow, unread.",
        ),
        family(
            "tollgate_connection_memory_bytes",
            Gauge,
            One(|from| Some(from.shared.memory.used() as f64)),
            "Memory that connections hold.",
        ),
        family(
            "tollgate_connection_memory_limit_bytes",
            Gauge,
            One(|from| Some(from.shared.memory.limit() as f64)),
            "Memory that connections may hold.",
        ),
        family(
            "tollgate_requests_total",
            Counter,
            Listeners(|_, counts| counts.requests),
            "Requests received.",
        ),
        family(
            "tollgate_bad_requests_total",
            Counter,
            Listeners(|_, counts| counts.bad_requests),
            "Invalid requests.",
        ),
        family(
            "tollgate_wrong_secrets_total",
            Counter,
            Listeners(|_, counts| counts.wrong_secrets),
            "Wrong passwords and tokens.",
        ),
        family(
            "tollgate_wrong_secrets_cut_off_total",
            Counter,
            Listeners(|_, counts| counts.cut_off),
            "Wrong passwords and tokens that closed their connection because one source sent too \
             many.",
        ),
        family(
            "tollgate_config_version",
            Gauge,
            One(|from| Some(from.plan.version() as f64)),
            "Version of the configuration in force, starting at 1.",
        ),
        family(
            "tollgate_config_load_total",
            Counter,
            Other(config_loads),
            "Loads of the configuration, by result.",
        ),
        family(
            "tollgate_config_last_load_success",
            Gauge,
            One(|from| {
                let last = from.control.as_ref()?.last_load.as_ref()?;
                Some(f64::from(u8::from(last.error.is_none())))
            }),
            "1 if the last load of the configuration succeeded.",
        ),
        family(
            "tollgate_log_lines_lost_total",
            Counter,
            Other(log_lines_lost),
            "Log lines that were not written: throttled at their callsite, or dropped by a full output.",
        ),
        family(
            "tollgate_draining",
            Gauge,
            One(|from| Some(f64::from(u8::from(from.shared.is_leaving())))),
            "1 while the server shuts down.",
        ),
        family(
            "tollgate_build_info",
            Gauge,
            Other(|_, writer| {
                let labels = [("version", env!("CARGO_PKG_VERSION"))];
                writer.sample("tollgate_build_info", &labels, 1);
            }),
            "Version of the program.",
        ),
        family(
            "process_start_time_seconds",
            Gauge,
            One(|from| {
                let clock = from.shared.engine.clock();
                Some(clock.to_wall(from.shared.admin.started()).as_secs_f64())
            }),
            "When the process was started.",
        ),
        family(
            "process_resident_memory_bytes",
            Gauge,
            One(|_| Some(resident_bytes()? as f64)),
            "Resident memory of the process.",
        ),
    ];
}
