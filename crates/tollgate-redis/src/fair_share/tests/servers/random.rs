//! Random fleets: the script and its model give the same answers, and the sum is within the
//! capacity.

use super::sim::{Path, Sim, resource};
use crate::fair_share::{Member, Rate, Resource, Sharing};
use std::time::Duration;

/// Amounts from a few millionths to the highest.
fn any_rate(rng: &mut fastrand::Rng) -> Rate {
    let most = *rng.choice(&[20, 200_000_000, Rate::MAX.as_micros()]).unwrap();
    Rate::from_micros(rng.u64(0..=most))
}

fn any_resource(rng: &mut fastrand::Rng) -> Resource {
    let each = any_rate(rng);
    let sharing = match rng.u8(..7) {
        0 => Sharing::Static { each },
        1 | 2 => Sharing::Proportional,
        3 | 4 => Sharing::Fair,
        5 => Sharing::bands(),
        _ => Sharing::Bands { floor_ppm: rng.u32(0..=125_000) },
    };
    let resource = Resource::new(resource().name, any_rate(rng)).sharing(sharing);
    if rng.bool() { resource.learning(Duration::ZERO) } else { resource }
}

#[tokio::test]
async fn the_script_and_its_twin_agree_on_random_fleets() {
    let mut sim = Sim::new(resource()).await;
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let resource = any_resource(&mut rng);
        sim.begin(resource.clone()).await;
        let processes = rng.usize(1..20);
        for _ in 0..processes {
            sim.join(Member::new().weight(rng.u16(1..=1000)).band(rng.u8(..8)), 0);
        }
        for _ in 0..60 {
            let who = rng.usize(..processes);
            match rng.u8(..20) {
                0 => sim.flush().await,
                1 => sim.advance(Duration::from_micros(rng.u64(..20_000_000))),
                2 => sim.leave(who).await,
                3 => {
                    sim.report(who, Path::ReplyLost).await;
                }
                4 => {
                    sim.report(who, Path::Away).await;
                }
                _ => {
                    sim.want(who, any_rate(&mut rng));
                    sim.refresh(who).await;
                }
            }
            sim.advance(Duration::from_micros(rng.u64(..1_000_000)));
        }
    }
}

/// Each wants a millionth more than its part before the one before it was served, so that each pass
/// of water filling serves one: after eight of them the script sorts.
#[tokio::test]
async fn the_script_and_its_twin_agree_when_filling_takes_many_passes() {
    let mut sim = Sim::new(resource()).await;
    for seed in 0..10 {
        let mut rng = fastrand::Rng::with_seed(2_000 + seed);
        let given = Resource::new(resource().name, Rate::MAX).learning(Duration::ZERO);
        sim.begin(given).await;
        let weights: Vec<u64> = (0..14).map(|_| rng.u64(1..=3)).collect();
        let (mut left, mut weights_left) = (Rate::MAX.as_micros(), weights.iter().sum::<u64>());
        let (mut wants, mut before) = (0, 0);
        for weight in weights {
            let who = sim.join(Member::new().weight(weight as u16), 0);
            if who > 0 {
                let (left_before, weights_before) = (left + wants, weights_left + before);
                wants = left_before / weights_before * weight + weight;
            }
            sim.want(who, Rate::from_micros(if who == 13 { Rate::MAX.as_micros() } else { wants }));
            left = left.saturating_sub(wants);
            (weights_left, before) = (weights_left - weight, weight);
        }
        for _ in 0..3 {
            sim.round().await;
            sim.advance(Duration::from_secs(3));
        }
    }
}

#[tokio::test]
async fn whatever_is_lost_the_shares_in_force_stay_within_the_capacity() {
    let mut sim = Sim::new(resource()).await;
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(1_000 + seed);
        let mut given = any_resource(&mut rng).safe_capacity(Rate::ZERO);
        given.learning = None;
        let capacity = given.capacity;
        sim.begin(given).await;
        // Everybody is known to want something, so that there is something to lose.
        let mut processes = rng.usize(2..10);
        for _ in 0..processes {
            sim.join(Member::new().weight(rng.u16(1..=1000)).band(rng.u8(..8)), 1_000);
        }
        for _ in 0..4 {
            sim.round().await;
            sim.advance(Duration::from_secs(3));
        }
        let mut late = Vec::new();
        for step in 0..80 {
            let who = rng.usize(..processes);
            match rng.u8(..20) {
                0 => sim.flush().await,
                1 => {
                    sim.join(Member::new(), 1_000_000);
                    processes += 1;
                }
                2..6 => {
                    sim.report(who, Path::ReplyLost).await;
                }
                6..8 => {
                    sim.report(who, Path::Away).await;
                }
                8 => late.push((who, sim.prepare(who))),
                9 if !late.is_empty() => {
                    let (who, report) = late.swap_remove(rng.usize(..late.len()));
                    sim.deliver(who, &report).await;
                }
                _ => {
                    sim.want(who, any_rate(&mut rng));
                    sim.report(who, Path::Well).await;
                }
            }
            assert!(sim.total() <= capacity, "seed {seed}, step {step}: {} in all", sim.total());
            sim.advance(Duration::from_micros(rng.u64(..1_500_000)));
            assert!(sim.total() <= capacity, "seed {seed}, step {step}: later");
        }
    }
}
