//! Scenarios of a fleet.

use super::sim::{Path, Sim, resource};
use crate::{
    Command, Route,
    fair_share::{Member, Mode, Rate, Sharing, report::Answer},
};
use std::time::Duration;

const REFRESH: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(10);

/// Three processes that want 1000, 50 and 10 of 120, after learning.
async fn settled(sharing: Sharing) -> Sim {
    let mut sim = Sim::new(resource().sharing(sharing)).await;
    for wants in [1000, 50, 10] {
        sim.join(Member::new(), wants);
    }
    settle(&mut sim).await;
    sim
}

/// Learning takes four rounds, and moving shares two.
async fn settle(sim: &mut Sim) {
    for _ in 0..7 {
        sim.round().await;
        sim.advance(REFRESH);
    }
}

#[tokio::test]
async fn doormans_examples_on_a_real_server() {
    assert_eq!(settled(Sharing::Fair).await.shares(), [60, 50, 10]);
    let sim = settled(Sharing::Proportional).await;
    assert_eq!(sim.share(0).to_string(), "69.690721/s");
    assert_eq!(sim.share(1).to_string(), "40.309278/s");
    assert_eq!(sim.share(2).to_string(), "10/s");
}

#[tokio::test]
async fn newcomers_get_nothing_while_a_new_table_learns() {
    let mut sim = Sim::new(resource()).await;
    sim.join(Member::new(), 100);
    sim.round().await;
    assert_eq!((sim.share(0), sim.mode(0)), (Rate::ZERO, Mode::Learning));
    sim.advance(LEASE - Duration::from_micros(1));
    sim.round().await;
    assert_eq!(sim.mode(0), Mode::Learning);
    sim.advance(Duration::from_micros(1));
    sim.round().await;
    assert_eq!((sim.share(0), sim.mode(0)), (Rate::per_second(100), Mode::Granted));

    let mut sim = Sim::new(resource().learning(Duration::ZERO)).await;
    sim.join(Member::new(), 100);
    sim.round().await;
    assert_eq!(sim.share(0), Rate::per_second(100), "a fleet that trusts its table starts at once");
}

#[tokio::test]
async fn a_spike_gets_its_share_within_two_rounds_and_gives_it_back() {
    let mut sim = settled(Sharing::Fair).await;
    sim.want(2, Rate::per_second(500));
    sim.round().await;
    sim.advance(REFRESH);
    sim.round().await;
    assert_eq!(sim.shares(), [40, 40, 40]);
    sim.want(2, Rate::per_second(10));
    sim.advance(REFRESH);
    sim.round().await;
    sim.advance(REFRESH);
    sim.round().await;
    assert_eq!(sim.shares(), [60, 50, 10]);
}

#[tokio::test]
async fn the_share_of_a_killed_process_is_free_after_its_lease() {
    let mut sim = settled(Sharing::Fair).await;
    sim.round().await;
    sim.kill(0);
    sim.want(1, Rate::per_second(500));
    for step in 1..=3 {
        sim.advance(REFRESH);
        sim.round().await;
        assert_eq!(sim.share(1), Rate::per_second(50), "step {step}: the others do not know");
    }
    sim.advance(REFRESH);
    sim.round().await;
    assert_eq!(sim.shares()[1..], [110, 10]);
}

#[tokio::test]
async fn who_leaves_gives_its_share_back_at_once() {
    let mut sim = settled(Sharing::Fair).await;
    sim.want(1, Rate::per_second(500));
    sim.leave(0).await;
    sim.refresh(1).await;
    assert_eq!(sim.share(1), Rate::per_second(110));
}

#[tokio::test]
async fn a_lost_table_is_learned_again_and_the_sum_stays_within_the_capacity() {
    let mut sim = settled(Sharing::Fair).await;
    sim.flush().await;
    let newcomer = sim.join(Member::new(), 1000);
    // The greedy newcomer comes first, before any other process has restated its share.
    sim.refresh(newcomer).await;
    assert_eq!((sim.share(newcomer), sim.mode(newcomer)), (Rate::ZERO, Mode::Learning));
    for _ in 0..3 {
        sim.round().await;
        assert_eq!(sim.shares(), [60, 50, 10, 0]);
        sim.advance(REFRESH);
    }
    sim.advance(Duration::from_secs(1));
    for _ in 0..2 {
        sim.round().await;
        sim.advance(REFRESH);
    }
    assert_eq!(sim.shares(), [36, 36, 10, 36], "a quarter each, and what one leaves");
}

#[tokio::test]
async fn a_store_that_is_away_for_all_costs_no_more_than_the_capacity() {
    for (safe, after) in [(None, 40), (Some(7), 7)] {
        let mut given = resource();
        if let Some(safe) = safe {
            given = given.safe_capacity(Rate::per_second(safe));
        }
        let mut sim = Sim::new(given).await;
        for wants in [1000, 50, 10] {
            sim.join(Member::new(), wants);
        }
        settle(&mut sim).await;
        // Leases end at different times, that of the smallest share first.
        for who in [2, 1, 0] {
            sim.refresh(who).await;
            sim.advance(Duration::from_secs(1));
        }
        for _ in 0..25 {
            sim.round_away().await;
            assert!(sim.total() <= Rate::per_second(120), "{:?}", sim.shares());
            sim.advance(Duration::from_secs(1));
        }
        assert_eq!(sim.shares(), [after; 3]);
        assert_eq!(sim.mode(0), Mode::Safe);
        // Back again: no process is known, so the table first learns the shares in use.
        sim.round().await;
        assert_eq!(sim.shares(), [after; 3]);
        assert_eq!(sim.mode(0), Mode::Learning);
        for _ in 0..6 {
            sim.advance(REFRESH);
            sim.round().await;
        }
        assert_eq!(sim.shares(), [60, 50, 10]);
    }
}

#[tokio::test]
async fn one_that_is_cut_off_costs_its_safe_share() {
    let mut sim = Sim::new(resource().safe_capacity(Rate::per_second(7))).await;
    for _ in 0..3 {
        sim.join(Member::new(), 1000);
    }
    settle(&mut sim).await;
    assert_eq!(sim.shares(), [40, 40, 40]);
    for _ in 0..10 {
        sim.report(0, Path::Away).await;
        sim.refresh(1).await;
        sim.refresh(2).await;
        assert!(sim.total() <= Rate::per_second(120 + 7), "{:?}", sim.shares());
        sim.advance(REFRESH);
    }
    assert_eq!(sim.shares(), [7, 60, 60]);
    sim.round().await;
    sim.round().await;
    assert_eq!(sim.shares(), [40, 40, 40]);
}

#[tokio::test]
async fn a_clock_of_the_server_that_jumps_costs_one_refresh() {
    // Ahead, beyond all leases: what is in use is learned.
    let mut sim = settled(Sharing::Fair).await;
    sim.epoch_secs += 3_600;
    sim.round().await;
    assert_eq!((sim.shares(), sim.mode(0)), (vec![60, 50, 10], Mode::Learning));

    // Ahead, so that some leases end early: their shares count twice until they report.
    let mut sim = settled(Sharing::Fair).await;
    sim.refresh(0).await;
    sim.advance(Duration::from_secs(2));
    sim.refresh(1).await;
    sim.refresh(2).await;
    sim.want(1, Rate::per_second(1000));
    sim.epoch_secs += 9;
    sim.refresh(1).await;
    assert_eq!(sim.shares(), [60, 110, 10]);
    sim.refresh(0).await;
    sim.refresh(1).await;
    assert!(sim.total() <= Rate::per_second(120), "{:?}", sim.shares());

    // Back: live processes write their rows again, and learning does not last longer.
    let mut sim = Sim::new(resource()).await;
    sim.join(Member::new(), 100);
    sim.round().await;
    sim.epoch_secs -= 3_600;
    for _ in 0..5 {
        sim.round().await;
        sim.advance(REFRESH);
    }
    assert_eq!((sim.share(0), sim.mode(0)), (Rate::per_second(100), Mode::Granted));
}

#[tokio::test]
async fn a_lost_reply_does_not_free_what_is_still_in_use() {
    let mut sim = settled(Sharing::Fair).await;
    let newcomer = sim.join(Member::new(), 1000);
    sim.refresh(newcomer).await;
    // The table grants less to the first, which does not hear of it.
    sim.report(0, Path::ReplyLost).await;
    assert_eq!(sim.share(0), Rate::per_second(60));
    sim.refresh(newcomer).await;
    assert!(sim.total() <= Rate::per_second(120), "{:?}", sim.shares());
    sim.round().await;
    sim.round().await;
    assert_eq!(sim.shares(), [36, 36, 10, 36]);
}

#[tokio::test]
async fn a_report_that_arrives_late_changes_nothing() {
    let mut sim = Sim::new(resource().learning(Duration::ZERO)).await;
    let (first, second) = (sim.join(Member::new(), 80), sim.join(Member::new(), 120));
    // It says that it has nothing, and stays on the way.
    let late = sim.prepare(first);
    sim.refresh(first).await;
    sim.refresh(second).await;
    assert_eq!(sim.shares(), [80, 40]);
    assert_eq!(sim.deliver(first, &late).await, Answer::Stale);
    sim.refresh(second).await;
    assert!(sim.total() <= Rate::per_second(120), "{:?}", sim.shares());
}

#[tokio::test]
async fn lower_bands_keep_their_floor_and_no_more() {
    let mut sim = Sim::new(resource().sharing(Sharing::bands()).learning(Duration::ZERO)).await;
    for (band, wants) in [(0, 1000), (3, 1000), (3, 1000), (7, 2)] {
        sim.join(Member::new().band(band), wants);
    }
    for _ in 0..4 {
        sim.round().await;
        sim.advance(REFRESH);
    }
    // The floor is 5 % of 120 for a band.
    assert_eq!(sim.shares(), [112, 3, 3, 2]);
    sim.want(0, Rate::per_second(20));
    for _ in 0..2 {
        sim.round().await;
        sim.advance(REFRESH);
    }
    assert_eq!(sim.shares(), [20, 49, 49, 2]);
}

#[tokio::test]
async fn a_second_process_of_one_name_is_refused_until_the_lease_is_over() {
    let mut sim = Sim::new(resource().learning(Duration::ZERO)).await;
    let first = sim.join_as("worker", Member::new(), 100);
    let second = sim.join_as("worker", Member::new(), 100);
    sim.refresh(first).await;
    sim.refresh(second).await;
    assert_eq!((sim.share(second), sim.mode(second)), (Rate::ZERO, Mode::Refused));
    assert_eq!(
        sim.error(second),
        Some("another process uses the name of this process; choose a different name")
    );
    sim.leave(second).await;
    sim.refresh(first).await;
    assert_eq!(sim.share(first), Rate::per_second(100), "a stranger cannot leave for it");
    let third = sim.join_as("worker", Member::new(), 70);
    sim.advance(LEASE - Duration::from_micros(1));
    sim.refresh(third).await;
    assert_eq!(sim.mode(third), Mode::Refused);
    sim.advance(Duration::from_micros(1));
    sim.refresh(third).await;
    assert_eq!(sim.share(third), Rate::per_second(70));
}

#[tokio::test]
async fn five_hundred_processes_share_and_the_next_is_told() {
    let mut sim = Sim::new(resource().learning(Duration::ZERO)).await;
    for _ in 0..500 {
        sim.join(Member::new(), 10);
    }
    // The first twelve have it all, the others come after them.
    sim.round().await;
    let late = sim.join(Member::new(), 10);
    sim.refresh(late).await;
    assert_eq!((sim.share(late), sim.mode(late)), (Rate::ZERO, Mode::Refused));
    assert_eq!(sim.error(late), Some("500 processes share the resource, which is the maximum"));
    sim.leave(499).await;
    sim.refresh(late).await;
    assert_eq!(sim.mode(late), Mode::Granted);
}

#[tokio::test]
async fn the_table_goes_away_by_itself() {
    let mut sim = settled(Sharing::Fair).await;
    sim.round().await;
    let mut command = Command::new("PTTL", 1);
    command.push(b"tollgate:{allot:partner}");
    let ttl = sim.link.call(Route::Any, command).await.unwrap().int().unwrap();
    assert!((9_000..=10_001).contains(&ttl), "{ttl} ms");
}
