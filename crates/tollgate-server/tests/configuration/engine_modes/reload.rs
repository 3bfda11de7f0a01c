//! State that survives a reload.

use super::bench::Bench;
use std::time::Duration;
use tollgate_server::{
    engine::{Hits, Verb},
    plan::Counted,
};

fn yaml(count: u64, big: u64, huge: u64) -> String {
    format!(
        "descriptors:
  - key: k
    rate_limit: {{name: k, unit: hour, requests_per_unit: {count}}}
    overrides: [{{value: big, requests_per_unit: {big}}}, {{value: huge, requests_per_unit: {huge}}}]
"
    )
}

#[test]
fn overrides_keep_what_is_used() {
    // before, after, and the remaining permits of each when 5 were used
    for (before, after, left) in [
        ((10, 20, 40), (11, 22, 44), [6, 17, 39]),
        ((10, 20, 40), (20, 40, 80), [15, 35, 75]), // each becomes the next key's old one
        ((20, 40, 80), (10, 20, 40), [5, 15, 35]),
        ((10, 20, 20), (10, 30, 30), [5, 25, 25]),
        ((10, 20, 40), (10, 30, 40), [5, 25, 35]),
    ] {
        let mut bench = Bench::new(&yaml(before.0, before.1, before.2));
        let keys = ["k=1", "k=big", "k=huge"];
        for key in keys {
            assert!(bench.verb(&[(key, Hits::Take(5))], Verb::Check));
        }
        bench.load(&yaml(after.0, after.1, after.2));
        assert_eq!(keys.map(|key| bench.left(key)), left, "{before:?} to {after:?}");
    }
}

#[test]
fn thousands_of_reloads_cost_no_room() {
    let mut bench = Bench::new("descriptors: []\n");
    for round in 1..=3_000 {
        bench.load(&yaml(10 + round, 20 + 2 * round, 9));
        assert!(bench.check(&["k=1"]) && bench.check(&["k=big"]), "{round}");
    }
    assert_eq!((bench.left("k=1"), bench.left("k=big")), (10, 3_020));
    assert_eq!(bench.engine.health().errors(), 0);
}

/// Regression: a bypass ended as soon as a reload changed the ban, and the counts fell to zero.
#[test]
fn counts_and_bypasses_survive_another_ban() {
    let rule = "descriptors:\n  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}";
    let mut bench = Bench::new(&format!("{rule}}}\n"));
    let until = bench.engine.now().saturating_add(Duration::from_secs(60));
    bench.engine.plan().rules()[0].live().bypass_until(until);
    assert!(bench.check(&["k=1"]));
    bench.load(&format!("{rule}, ban: {{after: 3, within: 1m, for: 1m}}}}\n"));
    assert!(bench.check(&["k=1"]) && bench.check(&["k=1"]));
    let counts = bench.engine.plan().rules()[0].live().counts();
    assert_eq!(counts.of(Counted::Bypassed), 3);
}
