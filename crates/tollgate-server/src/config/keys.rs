//! Every key of a configuration file, once: the readers, "did you mean" and the JSON schema are
//! made from these tables, so they cannot tell different stories.

mod server;
mod store;

use Origin::{Ours, Reference};
use Shape::{Count, Endpoint, Flag, List, Map, Named, OneOf, Path, Period, Text, Texts};
use server::{TLS, TLS_OF, TOKEN};
pub(super) use store::STORE;
use store::{LEASE, LEASES, MEMORY, REDIS, SNAPSHOT};

/// A map in a file.
#[derive(Debug)]
pub(super) struct Section {
    /// Its name in messages, with an article, and in the schema.
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
}

/// A key of a section.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) origin: Origin,
    pub(super) about: &'static str,
}

/// Who has made a key up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// envoyproxy/ratelimit.
    Reference,
    /// Tollgate.
    Ours,
}

/// What the value of a key looks like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A text; a number or a boolean counts as what is written.
    Text,
    /// A text or a list of texts.
    Texts,
    /// True or false.
    Flag,
    /// A whole number.
    Count,
    /// A whole number, or the word `off`.
    CountOrOff,
    /// A percentage.
    Percent,
    /// A duration, such as `30s`.
    Period,
    /// A duration, or the word `off`.
    PeriodOrOff,
    /// The path of a file.
    Path,
    /// Where to listen.
    Endpoint,
    /// A word or a list of words, of these.
    Words(&'static [&'static str]),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// One of these words, or a section.
    WordOr(&'static [&'static str], &'static Section),
    /// A section.
    Map(&'static Section),
    /// Sections by name; a text stands for the first key of one.
    Named(&'static Section),
    /// A list of sections.
    List(&'static Section),
    /// A list of lists of sections; a section alone counts as a list of one.
    Lists(&'static Section),
    /// Whatever JSON can say.
    Json,
}

const fn key(name: &'static str, shape: Shape, origin: Origin, about: &'static str) -> Key {
    Key { name, shape, origin, about }
}

/// All sections, the outermost first.
pub(super) static SECTIONS: [&Section; 18] = [
    &FILE,
    &DEFAULTS,
    &DESCRIPTOR,
    &LIMIT,
    &REPLACED,
    &OVERRIDE,
    &BAN,
    &FORWARD_AUTH,
    &AUTH_ENTRY,
    &SERVER,
    &TLS,
    &SNAPSHOT,
    &MEMORY,
    &STORE,
    &TLS_OF,
    &TOKEN,
    &REDIS,
    &LEASE,
];

pub(super) static FAILURES: [&str; 5] = ["open", "closed", "local", "allow", "deny"];
pub(super) static ALGORITHMS: [&str; 7] = [
    "fixed-window",
    "gcra",
    "token-bucket",
    "leaky-bucket",
    "anchored-window",
    "sliding-counter",
    "sliding-log",
];
pub(super) static UNITS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];
pub(super) static INHERITS: [&str; 4] = ["as-is", "reset", "proportional", "additive"];
pub(super) static SOURCES: [&str; 4] = ["client-address", "path", "method", "host"];

pub(super) static FILE: Section = Section {
    name: "a file",
    keys: &[
        key("domain", Text, Reference, "The name that requests ask for. One per file."),
        key(
            "descriptors",
            List(&DESCRIPTOR),
            Reference,
            "The rules: a tree, matched entry by entry.",
        ),
        key("merge", Flag, Ours, "Other files may have the same domain, if they say so too."),
        key("defaults", Map(&DEFAULTS), Ours, "What the rules of the domain have in common."),
        key(
            "forward_auth",
            List(&FORWARD_AUTH),
            Ours,
            "How requests of proxies become descriptors.",
        ),
        key("server", Map(&SERVER), Ours, "Settings of the process. Flags override them."),
        key("stores", Named(&STORE), Ours, "Stores beside the default one, by name."),
    ],
};

pub(super) static DEFAULTS: Section = Section {
    name: "defaults",
    keys: &[
        key(
            "algorithm",
            OneOf(&ALGORITHMS),
            Ours,
            "The algorithm of limits that name none: fixed-window if not said.",
        ),
        key("count_refused", Flag, Ours, "Charge refused hits too, as the reference does."),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens when a store cannot answer: local if not said.",
        ),
        key("shadow_mode", Flag, Ours, "Let everything pass, and only report."),
        key("store", Text, Ours, "The store of rules that name none, by name."),
        key(
            "lease",
            Shape::WordOr(&LEASES, &LEASE),
            Ours,
            "Whether permits of a shared store are taken in advance: off if not said.",
        ),
    ],
};

pub(super) static DESCRIPTOR: Section = Section {
    name: "a descriptor",
    keys: &[
        key("key", Text, Reference, "The key that an entry must have."),
        key(
            "value",
            Text,
            Reference,
            "The value that it must have; '*' stands for any characters. Without, any value, each \
             with a count of its own.",
        ),
        key(
            "regex",
            Text,
            Ours,
            "Instead of value: a regular expression that the value must match.",
        ),
        key(
            "cidr",
            Texts,
            Ours,
            "Instead of value: networks, one of which the address must be in.",
        ),
        key("rate_limit", Map(&LIMIT), Reference, "The limit of requests that end here."),
        key(
            "rate_limits",
            List(&LIMIT),
            Ours,
            "Several limits, one decision: all or none is charged.",
        ),
        key("descriptors", List(&DESCRIPTOR), Reference, "The next level."),
        key("overrides", List(&OVERRIDE), Ours, "Limits of single values."),
        key("shadow_mode", Flag, Reference, "Report refusals, and let pass."),
        key(
            "quota_mode",
            Flag,
            Reference,
            "Refuse only if all limits in this mode of a request refuse.",
        ),
        key(
            "count_refused",
            Flag,
            Ours,
            "Charge refused hits too: for costs that are reported afterwards. The file's default if not said.",
        ),
        key(
            "share_threshold",
            Flag,
            Reference,
            "All values that match the pattern share one count.",
        ),
        key(
            "value_to_metric",
            Flag,
            Reference,
            "Accepted, and without effect: a value never becomes a label.",
        ),
        key(
            "detailed_metric",
            Flag,
            Reference,
            "Accepted, and without effect: a value never becomes a label.",
        ),
        key("metadata", Shape::Json, Reference, "Told to the proxy when the rule passes."),
        key(
            "enforce",
            Shape::Percent,
            Ours,
            "The share of keys for which a refusal counts, such as 25%; others are in shadow mode.",
        ),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens when the store cannot answer: let pass (open), refuse (closed), or decide by \
             this process's share (local).",
        ),
        key("ban", Map(&BAN), Ours, "Blocks keys that are refused again and again."),
        key("parents", Texts, Ours, "Names of limits of this domain that are charged too."),
        key("store", Text, Ours, "The store that holds the state, by name."),
        key(
            "lease",
            Shape::WordOr(&LEASES, &LEASE),
            Ours,
            "Whether permits of a shared store are taken in advance: the file's default if not said.",
        ),
    ],
};

pub(super) static LIMIT: Section = Section {
    name: "a rate limit",
    keys: &[
        key(
            "unit",
            OneOf(&UNITS),
            Reference,
            "The time that requests_per_unit is for, in any case.",
        ),
        key("requests_per_unit", Count, Reference, "How many; 0 refuses everything."),
        key("unlimited", Flag, Reference, "Lets everything pass. Excludes the others."),
        key("name", Text, Reference, "What replaces and parents call it."),
        key(
            "replaces",
            List(&REPLACED),
            Reference,
            "Limits that do not apply to a request to which this one does.",
        ),
        key("per", Period, Ours, "Instead of unit: any time, such as 30s."),
        key("burst", Count, Ours, "How many at once, if not requests_per_unit. Only for gcra."),
        key("quota", Text, Ours, "Instead of all these, one text: \"100/min burst 20\"."),
        key("algorithm", OneOf(&ALGORITHMS), Ours, "How to count."),
        key(
            "inherit",
            OneOf(&INHERITS),
            Ours,
            "What keys keep of their use when a reload changes the rate: additive if not said.",
        ),
    ],
};

pub(super) static REPLACED: Section = Section {
    name: "an entry of replaces",
    keys: &[key("name", Text, Reference, "The name of the limit that does not apply.")],
};

pub(super) static OVERRIDE: Section = Section {
    name: "an override",
    keys: &[
        key("value", Text, Ours, "The value that it is for."),
        key("values", Texts, Ours, "Several values, each with a count of its own."),
        key("requests_per_unit", Count, Ours, "How many, in the time of the descriptor's limit."),
        key("burst", Count, Ours, "How many at once. Only for gcra."),
        key("unlimited", Flag, Ours, "Lets these values pass."),
    ],
};

pub(super) static BAN: Section = Section {
    name: "a ban",
    keys: &[
        key("after", Count, Ours, "How many refusals lead to a ban."),
        key("within", Period, Ours, "In which time they must come."),
        key(
            "for",
            Period,
            Ours,
            "How long the first ban lasts; each further one lasts twice as long.",
        ),
        key("most", Period, Ours, "The longest ban: 64 times the first if not said."),
    ],
};

pub(super) static FORWARD_AUTH: Section = Section {
    name: "a forward_auth",
    keys: &[
        key("path", Text, Ours, "The path that the proxy asks, such as /auth."),
        key("domain", Text, Ours, "The domain to ask."),
        key(
            "descriptors",
            Shape::Lists(&AUTH_ENTRY),
            Ours,
            "The descriptors, each a list of entries. One with an entry that the request does not \
             have is left out.",
        ),
        key(
            "trusted_hops",
            Count,
            Ours,
            "How many proxies in front of the asking one may be believed about X-Forwarded-For.",
        ),
    ],
};

pub(super) static AUTH_ENTRY: Section = Section {
    name: "an entry of forward_auth",
    keys: &[
        key("key", Text, Ours, "The entry's key."),
        key("header", Text, Ours, "Its value is that of this header of the request."),
        key("value", Text, Ours, "Instead of header: its value is always this."),
        key(
            "from",
            OneOf(&SOURCES),
            Ours,
            "Instead of header: its value is this part of the request.",
        ),
        key("default", Text, Ours, "The value if the request has none."),
    ],
};

pub(super) static SERVER: Section = Section {
    name: "server",
    keys: &[
        key("http", Endpoint, Ours, "Where to answer HTTP: 127.0.0.1:8080, unix:/path or off."),
        key("grpc", Endpoint, Ours, "Where to answer gRPC."),
        key("resp", Endpoint, Ours, "Where to answer the Redis protocol."),
        key("admin", Endpoint, Ours, "Where to answer administrators."),
        key("tls", Map(&TLS), Ours, "TLS for all listeners but those that have their own."),
        key("tls_of", Map(&TLS_OF), Ours, "TLS of single listeners."),
        key("admin_token_file", Path, Ours, "The file that has the administrators' token."),
        key(
            "resp_password_file",
            Path,
            Ours,
            "The file that has the password of the Redis protocol.",
        ),
        key("http_token_file", Path, Ours, "The file that has the token of HTTP's /v1."),
        key("tokens", List(&TOKEN), Ours, "More tokens: where each is valid, and what it grants."),
        key("negative_hits", Flag, Ours, "Let gRPC and /json give permits back: is_negative_hits."),
        key("hosts", Texts, Ours, "Names by which clients call this server, beside localhost."),
        key("origins", Texts, Ours, "Origins of web pages that may call this server."),
        key("workers", Count, Ours, "Worker threads."),
        key(
            "max_connections",
            Count,
            Ours,
            "Connections per listener; by default what the descriptor limit allows.",
        ),
        key(
            "connection_memory_bytes",
            Count,
            Ours,
            "Bytes that all connections together may hold; 134217728 (128 MiB) by default.",
        ),
        key("idle_timeout", Period, Ours, "How long a connection may be silent."),
        key(
            "drain_delay",
            Period,
            Ours,
            "How long to go on serving after SIGTERM, with /ready answering 503: 0s if not said.",
        ),
        key(
            "drain_timeout",
            Period,
            Ours,
            "How long connections have to finish at shutdown, all together: 10s if not said.",
        ),
        key(
            "request_timeout",
            Period,
            Ours,
            "How long a request may take to arrive, and a reply to be read; 10s by default.",
        ),
        key(
            "watch_interval",
            Shape::PeriodOrOff,
            Ours,
            "How often to look whether the files have changed.",
        ),
        key(
            "store",
            Text,
            Ours,
            "Where the default store keeps its state: memory, or redis://host:6379.",
        ),
        key("redis", Map(&REDIS), Ours, "How the default store is used, if it is in Redis."),
        key(
            "snapshot",
            Map(&SNAPSHOT),
            Ours,
            "Where the default store keeps its state over restarts.",
        ),
        key("memory", Map(&MEMORY), Ours, "The default store's bounds."),
        key("response_headers", Flag, Ours, "Send RateLimit headers with answers to Envoy."),
        key("dynamic_metadata", Flag, Ours, "Send dynamic metadata with answers to Envoy."),
        key("denial_log", Shape::CountOrOff, Ours, "One denial in so many is logged."),
        key("log_keys", Flag, Ours, "Show keys in logs."),
        key(
            "top_keys",
            Count,
            Ours,
            "Keys of each policy whose names are remembered for the list of top keys.",
        ),
    ],
};

impl Section {
    /// Returns the key of this name.
    pub(super) fn find(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Unit;
    use tollgate::Algorithm;

    #[test]
    fn the_words_are_those_of_the_library() {
        let known = |word: &&str| word.parse::<Algorithm>().is_ok();
        assert!(ALGORITHMS.iter().all(known));
        let names = Algorithm::ALL.map(Algorithm::name);
        assert!(names.iter().all(|name| ALGORITHMS.contains(name)));
        assert_eq!(UNITS, Unit::ALL.map(Unit::name));
    }

    #[test]
    fn every_key_is_in_a_file_that_is_read_by_the_tests() {
        let files = ["ours.yaml", "reference/every.yaml"].map(|name| {
            let path = format!("{}/tests/data/config/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).unwrap()
        });
        for key in SECTIONS.iter().flat_map(|section| section.keys) {
            let written = format!("{}:", key.name);
            assert!(files.iter().any(|file| file.contains(&written)), "{}", key.name);
        }
    }
}
