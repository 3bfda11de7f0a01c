//! The keys of stores.

use super::{
    FAILURES,
    Origin::Ours,
    Section,
    Shape::{Count, Map, OneOf, Path, Period, Text},
    key,
};

pub(in crate::config) static LEASES: [&str; 2] = ["off", "auto"];

pub(in crate::config) static SNAPSHOT: Section = Section {
    name: "a snapshot",
    keys: &[
        key("path", Path, Ours, "The file."),
        key("every", Period, Ours, "How often to write it."),
    ],
};

pub(in crate::config) static MEMORY: Section = Section {
    name: "memory",
    keys: &[
        key("bounded", Count, Ours, "Fixed memory for this many live keys."),
        key("max_keys", Count, Ours, "The maximum number of keys in a growing table."),
        key(
            "max_reservations",
            Count,
            Ours,
            "The maximum number of open reservations; default: 131072. Each limit of a reservation \
             counts.",
        ),
        key(
            "max_reservations_per_policy",
            Count,
            Ours,
            "The maximum number of open reservations per policy; default: 65536.",
        ),
        key(
            "max_reservations_per_key",
            Count,
            Ours,
            "The maximum number of open reservations per key; default: 1024.",
        ),
        key(
            "max_permits",
            Count,
            Ours,
            "The maximum number of leases of concurrency rules; default: 1048576.",
        ),
    ],
};

pub(in crate::config) static STORE: Section = Section {
    name: "a store",
    keys: &[
        key("url", Text, Ours, "Where it keeps its state: memory, or redis://host:6379."),
        key("redis", Map(&REDIS), Ours, "Options, if it is in Redis."),
        key("memory", Map(&MEMORY), Ours, "Its bounds."),
        key("snapshot", Map(&SNAPSHOT), Ours, "The snapshot, which survives restarts."),
    ],
};

pub(in crate::config) static REDIS: Section = Section {
    name: "redis",
    keys: &[
        key("password_file", Path, Ours, "File with the password of the servers."),
        key(
            "fleet_size",
            Text,
            Ours,
            "Number of processes that share the limits, or auto to count them.",
        ),
        key("deadline", Period, Ours, "Timeout of a call."),
        key(
            "startup_wait",
            Period,
            Ours,
            "How long to wait for the servers at start; default: 10s.",
        ),
        key("prefix", Text, Ours, "Prefix of all key names."),
        key(
            "key_secret_file",
            Path,
            Ours,
            "File with a secret of 32 hexadecimal digits; Redis then stores fingerprints of the \
             keys.",
        ),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens to CL.THROTTLE while the store cannot be reached; default: local.",
        ),
    ],
};

pub(in crate::config) static LEASE: Section = Section {
    name: "a lease",
    keys: &[key("sync", Period, Ours, "How often to report usage to the store.")],
};
