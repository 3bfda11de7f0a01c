//! Limiters, keys, stores, hierarchies and concurrency: what they decide.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod ad_hoc;
mod ad_hoc_model;
mod api;
mod claims_and_quotas;
mod concurrency;
mod flood;
mod full_tables;
mod hierarchy;
mod hierarchy_borrowing;
mod hierarchy_model;
mod hierarchy_outcomes;
mod keyed;
mod keyed_quota;
mod limits;
mod many_policies;
mod model;
mod oracle;
mod peer_faults;
mod quota_change;
mod quota_table;
mod rate;
mod refund;
mod settle;
mod snapshot;
mod steps;
mod store;
mod store_one;
mod store_together;
mod striped;
mod striped_threads;
mod support;
mod threads;
mod time;
mod top_keys;
mod watch;
