//! Commands about the server itself.

use super::{
    command::{self, COMMANDS, Spec, is},
    docs::{self, Doc},
    parse::Args,
    session::{Batch, Session},
};
use crate::engine::Backend;
use std::fmt::Write;

/// The Redis version that the server reports: clients choose features by it.
pub(super) const REDIS_VERSION: &str = "7.4.0";

/// Returns how many keys the default store has; `None` if the store is not in this process.
fn keys(batch: &Batch<'_>) -> Option<u64> {
    let store = batch.engine.stores().first().and_then(Backend::memory);
    store.map(|store| store.len() as u64)
}

impl Session {
    /// `DBSIZE`
    pub(super) fn db_size(&mut self, batch: &Batch<'_>) {
        match keys(batch) {
            Some(keys) => self.replies.count(keys),
            None => self.wrong(format_args!(
                "ERR the keys are in a shared store; ask its servers for their number"
            )),
        }
    }

    /// `TIME`
    pub(super) fn time(&mut self, batch: &Batch<'_>) {
        let wall = batch.engine.clock().to_wall(batch.now);
        self.replies.array(2);
        self.replies.bulk(wall.as_secs().to_string());
        self.replies.bulk(wall.subsec_micros().to_string());
    }

    /// `CONFIG GET name`: there are no settings to get.
    pub(super) fn config(&mut self, args: &Args<'_>) {
        if is(args.at(1), "GET") && args.len() > 2 {
            return self.replies.map(0);
        }
        self.wrong(format_args!(
            "ERR CONFIG supports only GET; change the configuration file instead"
        ));
    }

    /// `INFO [section ...]`
    pub(super) fn info(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let wants = |section: &str| {
            let all = ["all", "default", "everything", section];
            args.len() == 1 || args.iter_from(1).any(|word| all.iter().any(|name| is(word, name)))
        };
        let (traffic, mut text) = (self.traffic().counts(), String::new());
        if wants("server") {
            let uptime = batch.now.since(self.shared().admin.started()).as_secs();
            let _ = write!(
                text,
                "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
                 tollgate_version:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{uptime}\r\n\
                 uptime_in_days:{}\r\nplan_version:{}\r\n\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id(),
                uptime / 86_400,
                batch.plan.version(),
            );
        }
        if wants("clients") {
            let _ = write!(
                text,
                "# Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\n\r\n",
                traffic.open,
                self.shared().settings.max_connections,
            );
        }
        if wants("persistence") {
            // Clients that wait until a server is ready check this.
            text.push_str("# Persistence\r\nloading:0\r\n\r\n");
        }
        if wants("stats") {
            let _ = write!(
                text,
                "# Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
                 rejected_connections:{}\r\ntotal_error_replies:{}\r\n\r\n",
                traffic.accepted, traffic.requests, traffic.turned_away, traffic.bad_requests,
            );
        }
        if wants("replication") {
            text.push_str("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n");
        }
        if wants("cluster") {
            text.push_str("# Cluster\r\ncluster_enabled:0\r\n\r\n");
        }
        if wants("keyspace") {
            text.push_str("# Keyspace\r\n");
            if let Some(keys) = keys(batch) {
                let _ = write!(text, "db0:keys={keys},expires={keys},avg_ttl=0\r\n");
            }
        }
        self.replies.text(&text);
    }

    /// `COMMAND [COUNT|LIST|DOCS|INFO [name ...]]`
    pub(super) fn commands(&mut self, args: &Args<'_>) {
        let verb = args.at(1).to_ascii_lowercase();
        match (&verb[..], args.len()) {
            (b"", 1) => self.describe_all(),
            (b"info", 2) => self.describe_all(),
            (b"info", _) => {
                self.replies.array(args.len() - 2);
                for name in args.iter_from(2) {
                    match (command::find(name), docs::find_subcommand(name)) {
                        (Some(spec), _) => self.describe(spec),
                        (None, Some(doc)) => self.describe_subcommand(doc),
                        (None, None) => self.replies.null(),
                    }
                }
            }
            (b"count", 2) => self.replies.int(COMMANDS.len() as i64),
            (b"list", 2) => {
                self.replies.array(COMMANDS.len());
                for spec in &COMMANDS {
                    self.replies.bulk(spec.name);
                }
            }
            (b"docs", _) => self.document(args),
            _ => self.wrong(format_args!(
                "ERR unknown subcommand or wrong number of arguments. Use COUNT, DOCS, INFO and \
                 LIST."
            )),
        }
    }

    fn describe_all(&mut self) {
        self.replies.array(COMMANDS.len());
        for spec in &COMMANDS {
            self.describe(spec);
        }
    }

    /// `COMMAND DOCS [name ...]`: of all commands, or of those that exist.
    fn document(&mut self, args: &Args<'_>) {
        let is_wanted = |(doc, _): &(&Doc, _)| {
            args.len() == 2 || args.iter_from(2).any(|name| is(name, doc.name))
        };
        let wanted = || docs::commands().filter(is_wanted);
        self.replies.map(wanted().count());
        for (doc, subcommands) in wanted() {
            self.replies.bulk(doc.name);
            doc.write(subcommands, &mut self.replies);
        }
    }

    fn describe(&mut self, spec: &Spec) {
        let keys = [spec.keys.0, spec.keys.1, spec.keys.2];
        let subcommands = docs::subcommands_of(spec.name);
        self.describe_as((spec.name, spec.arity, spec.writes), keys, subcommands.len());
        for doc in subcommands {
            self.describe_subcommand(doc);
        }
    }

    fn describe_subcommand(&mut self, doc: &Doc) {
        self.describe_as((doc.name, doc.arity(), false), [0; 3], 0);
    }

    /// Writes name, arity, flags and keys, three lists that are empty here, and how many subcommands follow.
    fn describe_as(
        &mut self,
        (name, arity, writes): (&str, i64, bool),
        keys: [i64; 3],
        subcommands: usize,
    ) {
        let replies = &mut self.replies;
        replies.array(10);
        replies.bulk(name);
        replies.int(arity);
        replies.array(2);
        replies.word(if writes { "write" } else { "readonly" });
        replies.word("fast");
        for place in keys {
            replies.int(place);
        }
        for _ in 0..3 {
            replies.array(0);
        }
        replies.array(subcommands);
    }
}
