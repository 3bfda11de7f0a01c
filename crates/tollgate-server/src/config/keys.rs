//! Every key of a configuration file, listed once: the readers, "did you mean" and the JSON schema
//! all use these tables, so they cannot contradict each other.

mod limit;
mod server;
mod store;

use Origin::{Ours, Reference};
use Shape::{Count, Endpoint, Flag, List, Map, Named, OneOf, Path, Period, Text, Texts};
use limit::{ADAPTIVE, BAN, CONCURRENCY, LIMIT, OVERRIDE, REPLACED};
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

/// The project that a key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// envoyproxy/ratelimit.
    Reference,
    /// Tollgate.
    Ours,
}

/// The form of a key's value.
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
    /// A percentage or a list of percentages, above 0.
    Percents,
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
pub(super) static SECTIONS: [&Section; 20] = [
    &FILE,
    &DEFAULTS,
    &DESCRIPTOR,
    &LIMIT,
    &CONCURRENCY,
    &ADAPTIVE,
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
pub(super) static SOURCES: [&str; 5] = ["client-address", "bearer", "path", "method", "host"];
pub(super) static RESETS: [&str; 2] = ["delta", "epoch"];

pub(super) static FILE: Section = Section {
    name: "a file",
    keys: &[
        key("domain", Text, Reference, "The domain that requests name. One per file."),
        key(
            "descriptors",
            List(&DESCRIPTOR),
            Reference,
            "The rules: a tree, matched entry by entry.",
        ),
        key("merge", Flag, Ours, "Let other files define the same domain; all must set it."),
        key("defaults", Map(&DEFAULTS), Ours, "Defaults for the rules of the domain."),
        key(
            "forward_auth",
            List(&FORWARD_AUTH),
            Ours,
            "Maps the requests of proxies to descriptors.",
        ),
        key("server", Map(&SERVER), Ours, "Settings of the process. Flags override them."),
        key("stores", Named(&STORE), Ours, "Additional stores, by name."),
    ],
};

pub(super) static DEFAULTS: Section = Section {
    name: "defaults",
    keys: &[
        key(
            "algorithm",
            OneOf(&ALGORITHMS),
            Ours,
            "The algorithm of limits that do not name one; default: fixed-window.",
        ),
        key("count_refused", Flag, Ours, "Charge denied hits too, as envoyproxy/ratelimit does."),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens while a store cannot be reached; default: local.",
        ),
        key("shadow_mode", Flag, Ours, "Let every request pass, and only report denials."),
        key("store", Text, Ours, "The store of rules that do not name one."),
        key(
            "lease",
            Shape::WordOr(&LEASES, &LEASE),
            Ours,
            "Whether to take permits from a shared store in advance; default: off.",
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
            "The value that it must have; '*' matches any characters. If left out, every value \
             matches and is counted separately.",
        ),
        key(
            "regex",
            Text,
            Ours,
            "Instead of value: a regular expression that the value must match.",
        ),
        key("cidr", Texts, Ours, "Instead of value: networks; the address must be in one of them."),
        key(
            "rate_limit",
            Map(&LIMIT),
            Reference,
            "The limit of requests whose descriptor ends here.",
        ),
        key(
            "rate_limits",
            List(&LIMIT),
            Ours,
            "Several limits in one decision: either all are charged or none.",
        ),
        key(
            "concurrency",
            Map(&CONCURRENCY),
            Ours,
            "How many requests may be in flight at once: enter, renew and leave.",
        ),
        key(
            "adaptive",
            Map(&ADAPTIVE),
            Ours,
            "Moves the rate of the limit between a minimum and a maximum.",
        ),
        key("descriptors", List(&DESCRIPTOR), Reference, "The rules for the next entry."),
        key("overrides", List(&OVERRIDE), Ours, "Other limits for single values."),
        key("shadow_mode", Flag, Reference, "Report denials, but let the requests pass."),
        key(
            "quota_mode",
            Flag,
            Reference,
            "Deny only if all limits of the request that are in this mode deny.",
        ),
        key(
            "count_refused",
            Flag,
            Ours,
            "Charge denied hits too, for costs that are reported afterwards; default: that of the \
             file.",
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
            "Accepted without effect: a value never becomes a metric label.",
        ),
        key(
            "detailed_metric",
            Flag,
            Reference,
            "Accepted without effect: a value never becomes a metric label.",
        ),
        key(
            "metadata",
            Shape::Json,
            Reference,
            "Sent to the proxy when the rule allows a request.",
        ),
        key(
            "enforce",
            Shape::Percent,
            Ours,
            "The share of keys for which the rule is enforced, such as 25%; the others are in \
             shadow mode.",
        ),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens while the store cannot be reached: allow (open), deny (closed), or \
             decide by this process's share (local).",
        ),
        key("ban", Map(&BAN), Ours, "Blocks keys that are denied repeatedly."),
        key("parents", Texts, Ours, "Other limits of this domain that are charged as well."),
        key("store", Text, Ours, "The store that holds the state, by name."),
        key(
            "lease",
            Shape::WordOr(&LEASES, &LEASE),
            Ours,
            "Whether to take permits from a shared store in advance; default: that of the file.",
        ),
    ],
};

pub(super) static FORWARD_AUTH: Section = Section {
    name: "a forward_auth",
    keys: &[
        key("path", Text, Ours, "The path that the proxy requests, such as /auth."),
        key("domain", Text, Ours, "The domain whose rules decide."),
        key(
            "descriptors",
            Shape::Lists(&AUTH_ENTRY),
            Ours,
            "The descriptors, each a list of entries. A descriptor is skipped if the request lacks \
             one of its entries.",
        ),
        key(
            "trusted_hops",
            Count,
            Ours,
            "How many proxies in front of the requesting one are trusted to write X-Forwarded-For.",
        ),
        key(
            "trusted_networks",
            Texts,
            Ours,
            "Instead of trusted_hops: the networks of all proxies that are trusted to write \
             X-Forwarded-For, the requesting one included.",
        ),
        key("ipv4_prefix", Count, Ours, "How many bits of an IPv4 address count; default: 32."),
        key("ipv6_prefix", Count, Ours, "How many bits of an IPv6 address count; default: 64."),
    ],
};

pub(super) static AUTH_ENTRY: Section = Section {
    name: "an entry of forward_auth",
    keys: &[
        key("key", Text, Ours, "The entry's key."),
        key("header", Text, Ours, "Takes the value from this header of the request."),
        key(
            "secret_header",
            Text,
            Ours,
            "Instead of header: the hash of this header, for API keys.",
        ),
        key("cookie", Text, Ours, "Instead of header: the hash of this cookie."),
        key("value", Text, Ours, "Instead of header: a fixed value."),
        key(
            "from",
            OneOf(&SOURCES),
            Ours,
            "Instead of header: takes the value from this part of the request.",
        ),
        key("default", Text, Ours, "The value if the request does not have one."),
    ],
};

pub(super) static SERVER: Section = Section {
    name: "server",
    keys: &[
        key("http", Endpoint, Ours, "Address for HTTP: 127.0.0.1:8080, unix:/path or off."),
        key("grpc", Endpoint, Ours, "Address for gRPC."),
        key("resp", Endpoint, Ours, "Address for the Redis protocol."),
        key("admin", Endpoint, Ours, "Address for the admin API."),
        key("tls", Map(&TLS), Ours, "TLS for all listeners without settings in tls_of."),
        key("tls_of", Map(&TLS_OF), Ours, "TLS of single listeners."),
        key("admin_token_file", Path, Ours, "File with the token of the admin API."),
        key("resp_password_file", Path, Ours, "File with the password for the Redis protocol."),
        key("http_token_file", Path, Ours, "File with the token for /v1."),
        key(
            "tokens",
            List(&TOKEN),
            Ours,
            "Additional tokens: where each is valid, and what it grants.",
        ),
        key(
            "negative_hits",
            Flag,
            Ours,
            "Accept is_negative_hits on gRPC and /json: clients may give permits back.",
        ),
        key("hosts", Texts, Ours, "Host names of this server, in addition to localhost."),
        key("origins", Texts, Ours, "Origins of web pages that may call this server."),
        key("workers", Count, Ours, "Worker threads."),
        key(
            "max_connections",
            Count,
            Ours,
            "Maximum connections per listener; default: what the file descriptor limit allows.",
        ),
        key(
            "connection_memory_bytes",
            Count,
            Ours,
            "Bytes that all connections together may hold; default: 134217728 (128 MiB).",
        ),
        key("idle_timeout", Period, Ours, "How long a connection may be idle."),
        key(
            "drain_delay",
            Period,
            Ours,
            "How long to keep serving after SIGTERM while /ready responds 503; default: 0s.",
        ),
        key(
            "drain_timeout",
            Period,
            Ours,
            "How long to wait for open connections at shutdown; default: 10s.",
        ),
        key(
            "request_timeout",
            Period,
            Ours,
            "How long a request may take to arrive, and a response to be read; default: 10s.",
        ),
        key(
            "watch_interval",
            Shape::PeriodOrOff,
            Ours,
            "How often to check the files for changes.",
        ),
        key(
            "store",
            Text,
            Ours,
            "Where the default store keeps its state: memory, or redis://host:6379.",
        ),
        key("redis", Map(&REDIS), Ours, "Options of the default store, if it is in Redis."),
        key(
            "snapshot",
            Map(&SNAPSHOT),
            Ours,
            "The snapshot of the default store, which survives restarts.",
        ),
        key("memory", Map(&MEMORY), Ours, "Bounds of the default store."),
        key("response_headers", Flag, Ours, "Send RateLimit headers in responses to Envoy."),
        key(
            "x_ratelimit_headers",
            OneOf(&RESETS),
            Ours,
            "Send X-RateLimit-Limit, -Remaining and -Reset over HTTP too, with the reset in seconds \
             (delta) or as a Unix time (epoch); default: not sent.",
        ),
        key("dynamic_metadata", Flag, Ours, "Send dynamic metadata in responses to Envoy."),
        key("denial_log", Shape::CountOrOff, Ours, "Log one denial out of this many."),
        key("log_keys", Flag, Ours, "Include keys in logs."),
        key(
            "top_keys",
            Count,
            Ours,
            "How many keys of each policy the list of top keys remembers by name.",
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
