//! The keys of limits.

use super::{
    ALGORITHMS,
    Origin::{Ours, Reference},
    Section,
    Shape::{Count, Flag, List, OneOf, Percent, Percents, Period, Text, Texts},
    UNITS, key,
};

pub(in crate::config) static LIMIT: Section = Section {
    name: "a rate limit",
    keys: &[
        key(
            "unit",
            OneOf(&UNITS),
            Reference,
            "The period of requests_per_unit; case does not matter.",
        ),
        key("requests_per_unit", Count, Reference, "Requests per unit; 0 denies everything."),
        key("unlimited", Flag, Reference, "Lets every request pass. Excludes the other keys."),
        key("name", Text, Reference, "The name by which replaces and parents refer to it."),
        key(
            "replaces",
            List(&REPLACED),
            Reference,
            "Limits that do not apply to a request if this one does.",
        ),
        key("per", Period, Ours, "Instead of unit: any period, such as 30s."),
        key(
            "burst",
            Count,
            Ours,
            "How many can pass at once; default: requests_per_unit. Only for gcra.",
        ),
        key("quota", Text, Ours, "Instead of all these, one string: \"100/min burst 20\"."),
        key("algorithm", OneOf(&ALGORITHMS), Ours, "How to count."),
        key(
            "warn",
            Percents,
            Ours,
            "Percentages of the limit, such as [80%, 95%]: a metric and a log line tell when a key \
             has used so much.",
        ),
    ],
};

pub(in crate::config) static CONCURRENCY: Section = Section {
    name: "a concurrency limit",
    keys: &[
        key("limit", Count, Ours, "How many may be in flight at once, for each key."),
        key(
            "lease",
            Period,
            Ours,
            "How long a caller that neither renews nor leaves holds its slot; default: 60s.",
        ),
        key("name", Text, Ours, "The name of the policy."),
    ],
};

/// The signals that the rate of a limit can follow.
static FOLLOWED: [&str; 2] = ["cpu", "reports"];

pub(in crate::config) static ADAPTIVE: Section = Section {
    name: "adaptive",
    keys: &[
        key(
            "follow",
            OneOf(&FOLLOWED),
            Ours,
            "What the rate follows: the CPU load of this host, or what callers report.",
        ),
        key("min", Text, Ours, "The lowest rate, such as 10/s."),
        key("max", Text, Ours, "The highest rate; default: that of the limit."),
        key("target", Percent, Ours, "For cpu: the load to keep, 5% to 95%; default: 70%."),
        key(
            "slow_above",
            Period,
            Ours,
            "For reports: successes that take longer count as bad; default: latency does not count.",
        ),
        key(
            "period",
            Period,
            Ours,
            "How often the rate moves; default: 250ms for cpu, 1s for reports.",
        ),
    ],
};

pub(in crate::config) static REPLACED: Section = Section {
    name: "an entry of replaces",
    keys: &[key("name", Text, Reference, "The name of the limit that does not apply.")],
};

pub(in crate::config) static OVERRIDE: Section = Section {
    name: "an override",
    keys: &[
        key("value", Text, Ours, "The value to override."),
        key("values", Texts, Ours, "Several values, each counted separately."),
        key("requests_per_unit", Count, Ours, "Requests per unit of the descriptor's limit."),
        key("burst", Count, Ours, "How many can pass at once. Only for gcra."),
        key("unlimited", Flag, Ours, "Lets every request with these values pass."),
    ],
};

pub(in crate::config) static BAN: Section = Section {
    name: "a ban",
    keys: &[
        key("after", Count, Ours, "How many denials lead to a ban."),
        key("within", Period, Ours, "The period in which they must occur."),
        key(
            "for",
            Period,
            Ours,
            "How long the first ban lasts; each further ban lasts twice as long as the one before.",
        ),
        key("most", Period, Ours, "The longest ban; default: 64 times the first."),
    ],
};
