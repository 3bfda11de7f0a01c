//! The cost of a guard, in nanoseconds: a figure for the docs, not a check.
//!
//! `cargo test --release -p tollgate-redis --features test-servers --test failover -- --ignored
//! --nocapture guard_cost`

use crate::servers::guard_support::{Flaky, Mode, policy};
use tollgate::{
    Clock, Quota,
    store::{Demand, MemoryStore, Store},
    testing::block_on,
};
use tollgate_redis::{FailurePolicy, FleetSize, Guarded};

/// Runs are short, and the best of many counts: so that others on the machine do not.
const CALLS: u32 = 5_000;
const RUNS: u32 = 300;

/// Returns the nanoseconds of one call, in the best run.
fn measured<S: Store>(store: &S, names: &[&str], quota: Quota) -> u64 {
    let policies: Vec<_> = names.iter().map(|name| policy(name, quota)).collect();
    let clock = Clock::monotonic();
    let keys: Vec<[u8; 4]> = (0..1024_u32).map(u32::to_le_bytes).collect();
    let run = || {
        let start = clock.now();
        for call in 0..CALLS {
            let key = &keys[call as usize % keys.len()];
            let decision = match &policies[..] {
                [one] => block_on(store.acquire(&mut [Demand::new(one, key, 1)])),
                [one, two, three] => {
                    let mut demands = [one, two, three].map(|it| Demand::new(it, key, 1));
                    block_on(store.acquire(&mut demands))
                }
                _ => panic!("one or three"),
            };
            let _ = std::hint::black_box(decision.unwrap());
        }
        clock.now().since(start).as_nanos() as u64 / u64::from(CALLS)
    };
    (0..RUNS).map(|_| run()).min().unwrap()
}

#[test]
#[ignore = "measures; see the head of the file"]
fn what_a_guard_costs() {
    let quota = Quota::per_second(100_000_000).burst(1_000_000_000);
    let spent = Quota::per_hour(1);
    let memory = MemoryStore::builder().bounded(100_000).build().unwrap();
    println!("memory store alone         {:>6} ns", measured(&memory, &["a"], quota));
    let guard = |warm| {
        let flaky = Flaky::on(Clock::monotonic());
        let store = Guarded::builder(flaky.clone()).fleet(FleetSize::fixed(4)).warm(warm);
        let store = store.failure_of("open", FailurePolicy::Open);
        (store.failure_of("closed", FailurePolicy::Closed).build().unwrap(), flaky)
    };
    let (_, flaky) = guard(false);
    println!("the test's store alone     {:>6} ns", measured(&flaky, &["a"], quota));
    println!("  three demands            {:>6} ns", measured(&flaky, &["a", "b", "c"], quota));
    for (warm, name) in [(false, "cold"), (true, "warm")] {
        let (store, _) = guard(warm);
        println!("guarded, {name}, up         {:>6} ns", measured(&store, &["a"], quota));
        println!("  three demands            {:>6} ns", measured(&store, &["a", "b", "c"], quota));
        println!("  quota spent              {:>6} ns", measured(&store, &["s"], spent));
    }
    let (store, flaky) = guard(true);
    flaky.set(Mode::Down);
    println!("guarded, down, open        {:>6} ns", measured(&store, &["open"], quota));
    println!("  closed                   {:>6} ns", measured(&store, &["closed"], quota));
    println!("  local, admitted          {:>6} ns", measured(&store, &["a"], quota));
    println!("  local, refused           {:>6} ns", measured(&store, &["s"], spent));
    println!("  three demands, admitted  {:>6} ns", measured(&store, &["a", "b", "open"], quota));
}
