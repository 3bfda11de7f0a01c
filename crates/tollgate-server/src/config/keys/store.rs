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
        key("every", Period, Ours, "How often it is written."),
    ],
};

pub(in crate::config) static MEMORY: Section = Section {
    name: "memory",
    keys: &[
        key("bounded", Count, Ours, "Fixed memory for so many live keys."),
        key("max_keys", Count, Ours, "The most keys of a table that grows."),
        key(
            "max_reservations",
            Count,
            Ours,
            "The most open reservations: 131072 if not said. Each limit of a reservation counts.",
        ),
        key(
            "max_reservations_per_policy",
            Count,
            Ours,
            "The most open reservations of one policy: 65536 if not said.",
        ),
        key(
            "max_reservations_per_key",
            Count,
            Ours,
            "The most open reservations of one key: 1024 if not said.",
        ),
    ],
};

pub(in crate::config) static STORE: Section = Section {
    name: "a store",
    keys: &[
        key("url", Text, Ours, "Where it keeps its state: memory, or redis://host:6379."),
        key("redis", Map(&REDIS), Ours, "How it is used, if it is in Redis."),
        key("memory", Map(&MEMORY), Ours, "Its bounds."),
        key("snapshot", Map(&SNAPSHOT), Ours, "Where it keeps its state over restarts."),
    ],
};

pub(in crate::config) static REDIS: Section = Section {
    name: "redis",
    keys: &[
        key("password_file", Path, Ours, "The file that has the password of the servers."),
        key(
            "fleet_size",
            Text,
            Ours,
            "How many processes share the limits: auto, which counts them, or a number.",
        ),
        key("deadline", Period, Ours, "How long a call may take."),
        key(
            "startup_wait",
            Period,
            Ours,
            "How long to wait at the start for the servers to answer: 10s if not said.",
        ),
        key("prefix", Text, Ours, "What the names of all keys begin with."),
        key(
            "key_secret_file",
            Path,
            Ours,
            "The file that has a secret of 32 hexadecimal digits: names in Redis are fingerprints then.",
        ),
        key(
            "failure",
            OneOf(&FAILURES),
            Ours,
            "What happens to CL.THROTTLE when the store cannot answer: local if not said.",
        ),
    ],
};

pub(in crate::config) static LEASE: Section = Section {
    name: "a lease",
    keys: &[key("sync", Period, Ours, "How often the store is told what was used.")],
};
