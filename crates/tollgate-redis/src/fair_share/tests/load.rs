//! Whole processes under simulated loads, in virtual time: each measures its demand, reports it
//! with the shipped task and enforces its share.

#![allow(clippy::disallowed_methods, reason = "tokio's time is paused: it moves when all wait")]

use super::model;
use crate::{
    Script,
    fair_share::{
        Member, Rate, Resource,
        report::{Answer, Registration, Report, SOURCE, Verb},
        task::{self, Shared, Table},
    },
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::Clock;

const SEEDS: u64 = 4;
/// When the shares have settled: after a lease of learning, and two refreshes.
const SETTLED: usize = 16;
const REFRESH: usize = 3;

/// The model of the script, a millisecond away from a process.
#[derive(Clone)]
struct Server {
    table: Arc<Mutex<model::Table>>,
    process: usize,
    clock: Clock,
}

impl Table for Server {
    async fn tell(
        &self,
        registration: &Registration,
        verb: Verb,
        report: &Report,
    ) -> Result<Answer, String> {
        sleep(Duration::from_millis(1)).await;
        let micros = self.clock.now().as_nanos() / 1_000;
        let who = (registration.id(), self.process);
        let answer = {
            let mut table = self.table.lock().unwrap();
            let answer = match verb {
                Verb::Report => table.report(micros, who, registration, report),
                Verb::Leave => {
                    table.leave(micros, who);
                    Answer::Stale
                }
            };
            assert!(table.granted(micros) <= registration.resource().capacity);
            answer
        };
        sleep(Duration::from_millis(1)).await;
        Ok(answer)
    }
}

/// The load of one process.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// A rate per second, at random times.
    Steady(f64),
    /// A rate per second, and another one between two times.
    Step { usual: f64, more: f64, from: usize, until: usize },
    /// A number of permits at once, every `every` seconds.
    Bursts { permits: usize, every: usize },
}

impl Load {
    /// Returns the times of the calls, in seconds.
    fn calls(self, rng: &mut fastrand::Rng, secs: usize) -> Vec<f64> {
        if let Self::Bursts { permits, every } = self {
            let at = |burst: usize| (burst * every) as f64 + 0.5;
            return (0..secs / every).flat_map(|burst| vec![at(burst); permits]).collect();
        }
        let (mut at, mut calls) = (0.0, Vec::new());
        while at < secs as f64 {
            let rate = match self {
                Self::Step { more, from, until, .. }
                    if (from as f64..until as f64).contains(&at) =>
                {
                    more
                }
                Self::Steady(usual) | Self::Step { usual, .. } => usual,
                Self::Bursts { .. } => unreachable!("returned above"),
            };
            at -= (1.0 - rng.f64()).ln() / rate;
            calls.push(at);
        }
        calls
    }
}

/// The results of a process's calls, by second.
#[derive(Clone, Debug, Default)]
struct Seconds {
    calls: Vec<u64>,
    refused: Vec<u64>,
    /// The share and the reported demand at the end of the second.
    share: Vec<f64>,
    wants: Vec<f64>,
}

impl Seconds {
    /// Returns the denied part of the calls between two seconds.
    fn refused(&self, from: usize, until: usize) -> f64 {
        let sum = |of: &[u64]| of[from..until].iter().sum::<u64>() as f64;
        sum(&self.refused) / sum(&self.calls).max(1.0)
    }
}

async fn process(server: Server, resource: Resource, calls: Vec<f64>, secs: usize) -> Seconds {
    let member = Member::new().id(format!("p{}", server.process));
    let registration = Registration::new(Script::new(SOURCE), resource, member).unwrap();
    let shared = Arc::new(Shared::new(registration, server.clock.clone()).unwrap());
    tokio::spawn(task::run(server, shared.clone()));
    let start = Instant::now();
    let mut seconds = Seconds::default();
    let mut calls = calls.into_iter().peekable();
    for second in 0..secs {
        let (mut count, mut refused) = (0, 0);
        while let Some(at) = calls.next_if(|at| *at < (second + 1) as f64) {
            sleep_until(start + Duration::from_secs_f64(at)).await;
            count += 1;
            refused += u64::from(shared.limiter().try_acquire().is_denied());
        }
        sleep_until(start + Duration::from_secs(second as u64 + 1)).await;
        seconds.calls.push(count);
        seconds.refused.push(refused);
        seconds.share.push(shared.share().as_f64());
        seconds.wants.push(shared.status().wants.as_f64());
    }
    seconds
}

/// Runs one process for each load.
fn run(seed: u64, resource: &Resource, loads: &[Load], secs: usize) -> Vec<Seconds> {
    // The jitter of the tasks comes from the thread's generator.
    fastrand::seed(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (table, clock) = (Arc::default(), Clock::tokio());
        let start = |(process_number, load): (usize, &Load)| {
            let server =
                Server { table: Arc::clone(&table), process: process_number, clock: clock.clone() };
            tokio::spawn(process(server, resource.clone(), load.calls(&mut rng, secs), secs))
        };
        let tasks: Vec<_> = loads.iter().enumerate().map(start).collect();
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.unwrap());
        }
        all
    })
}

fn partner(capacity: u64) -> Resource {
    Resource::new("partner", Rate::per_second(capacity))
}

#[test]
fn a_steady_load_that_fits_is_admitted() {
    for seed in 0..SEEDS {
        let offered = [100.0, 300.0, 50.0];
        let fleet = run(seed, &partner(600), &offered.map(Load::Steady), 120);
        for (process, offered) in fleet.iter().zip(offered) {
            let refused = process.refused(SETTLED, 120);
            assert!(refused < 0.002, "seed {seed}: {refused} of {offered}/s refused");
            let wants = &process.wants[SETTLED..];
            let near = |wants: &f64| (offered..1.6 * offered).contains(wants);
            assert!(wants.iter().all(near), "seed {seed}: {offered}/s reported as {wants:?}");
        }
    }
}

#[test]
fn small_demands_are_met_when_a_large_one_does_not_fit() {
    for seed in 0..SEEDS {
        let offered = [10.0, 900.0, 60.0];
        let fleet = run(seed, &partner(600), &offered.map(Load::Steady), 120);
        for small in [0, 2] {
            let refused = fleet[small].refused(SETTLED, 120);
            assert!(refused < 0.015, "seed {seed}: {refused} of {}/s refused", offered[small]);
        }
        let admitted = 900.0 * (1.0 - fleet[1].refused(SETTLED, 120));
        assert!(admitted > 480.0, "seed {seed}: {admitted} of the 530 that the small ones leave");
    }
}

#[test]
fn shares_follow_a_rise_within_two_refreshes_and_a_fall_within_three() {
    let (from, until) = (40, 70);
    let rises = Load::Step { usual: 20.0, more: 200.0, from, until };
    for seed in 0..SEEDS {
        let fleet = run(seed, &partner(600), &[Load::Steady(450.0), rises], 100);
        let [steady, rises] = &fleet[..] else { panic!("two processes") };
        let risen = rises.refused(from + 2 * REFRESH, until);
        assert!(risen < 0.01, "seed {seed}: {risen} refused: {:?}", &rises.share[from..until]);
        let shares = &steady.share[until + 3 * REFRESH..];
        assert!(shares.iter().all(|share| *share > 450.0), "seed {seed}: {shares:?}");
        let fallen = steady.refused(until + 3 * REFRESH, 100);
        assert!(fallen < 0.01, "seed {seed}: {fallen} refused: {shares:?}");
    }
}

#[test]
fn bursts_take_nothing_from_others() {
    // Permits at once, seconds between bursts, burst in seconds, the least part that is admitted.
    for (permits, every, burst, least) in
        [(100, 1, 1, 0.85), (100, 1, 3, 0.97), (300, 3, 1, 0.35), (300, 3, 3, 0.9)]
    {
        let resource = partner(600).burst(Duration::from_secs(burst));
        for seed in 0..SEEDS {
            let loads = [Load::Steady(300.0), Load::Bursts { permits, every }];
            let fleet = run(seed, &resource, &loads, 120);
            let row = format!("seed {seed}, {permits} every {every} s with a burst of {burst} s");
            let refused = fleet[0].refused(SETTLED, 120);
            assert!(refused < 0.002, "{row}: {refused} of the steady load refused");
            let passed = 1.0 - fleet[1].refused(SETTLED, 120);
            assert!(passed > least, "{row}: {passed} passed");
        }
    }
}
