//! Bad days against real servers: what breaks, what callers see meanwhile, what passes, and that all
//! is well again without a restart.
//!
//! A day is how to break and how to mend (`days.rs`); what is done and asserted is the same for all
//! (`run.rs`). `cargo test -p tollgate-redis --features test-servers --test failover -- --ignored
//! --nocapture bad_days::table` prints the tables of docs/redis.md.

mod bytes;
mod cluster;
mod day;
mod days;
mod fleet;
mod leases;
mod line;
mod run;
mod tables;

use day::Day;
use run::run;
use tollgate_rig::Flavor;

macro_rules! bad_days {
    ($($name:ident: $day:path $(, $and:ident)?;)*) => {
        mod redis {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    println!("{}", run($day(Flavor::Redis)).await);
                }
            )*
        }

        mod valkey {
            use super::*;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    println!("{}", run($day(Flavor::$and)).await);
                }
            )?)*
        }

        /// All of them, for the tables.
        const ALL: &[fn(Flavor) -> Day] = &[$($day),*];
    };
}

// Those where the server and not the network is the trouble are had with Valkey too.
bad_days! {
    a_server_is_killed_and_restarted: days::killed, Valkey;
    a_server_is_killed_and_has_forgotten_all: days::forgetful;
    a_server_stands_still: days::frozen, Valkey;
    the_network_swallows_everything: days::black_hole;
    replies_come_too_late: days::slow;
    replies_are_lost: days::replies_lost;
    a_connection_is_reset_in_the_middle_of_a_reply: days::reset;
    a_byte_of_a_reply_is_corrupt: days::corrupt;
    scripts_are_flushed: days::flushed, Valkey;
    a_server_is_full: days::full, Valkey;
    a_server_is_read_only: days::read_only, Valkey;
    a_password_is_changed: days::rotated, Valkey;
    a_password_is_wrong_from_the_start: days::wrong_password;
    two_tiers_are_on_top: days::two_tiers;
    a_cluster_loses_a_primary: cluster::failover, Valkey;
    a_cluster_is_down: cluster::down;
    sentinels_choose_another_primary: cluster::sentinels, Valkey;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_byte_books_nothing_twice() {
    bytes::everywhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_which_a_part_is_unknown_is_unknown() {
    cluster::half_unknown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_go_through_an_outage() {
    leases::outage().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_for_others_keeps_the_deadline() {
    line::keeps_the_deadline().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints tables"]
async fn table() {
    let mut reports = Vec::new();
    for day in ALL {
        reports.push(run(day(Flavor::Redis)).await);
    }
    println!("{}", tables::markdown(&reports));
}
