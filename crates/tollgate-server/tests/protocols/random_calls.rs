//! Random calls over every protocol against an independent model: after each call the reply, the metrics and the
//! state of the store must be what the model says.

mod calls;
mod model;

use crate::edges::Edges;
use calls::Caller;
use model::Model;
use std::{collections::BTreeMap, time::Duration};
use tokio::task::LocalSet;
use tollgate::store::Demand;
use tollgate_server::{
    metrics::{Exposition, Format},
    net::Access,
    server::Settings,
};

const CONFIG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: user-minute, unit: minute, requests_per_unit: 6}
      - {name: user-hour, unit: hour, requests_per_unit: 20}
  - {key: late, count_refused: true, rate_limit: {name: late, unit: minute, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {name: shadow, unit: minute, requests_per_unit: 3}}
  - {key: one, quota_mode: true, rate_limit: {name: one, unit: minute, requests_per_unit: 2}}
  - {key: two, quota_mode: true, rate_limit: {name: two, unit: minute, requests_per_unit: 4}}
  - {key: shut, rate_limit: {name: shut, unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {name: free, unlimited: true}}
  - {key: bucket, rate_limit: {name: bucket, quota: 10/s burst 20, algorithm: gcra}}
  - key: upstream
    rate_limit: {name: upstream, quota: 100/s, algorithm: gcra}
    adaptive: {follow: reports, min: 10/s}
forward_auth:
  - path: /auth
    domain: shop
    descriptors:
      - [{key: user, header: X-User}]
      - [{key: bucket, header: X-Bucket}]
";

/// A small generator, so that a seed is a run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Reads the samples of the metrics that the model knows, by name and labels.
fn metrics(edges: &Edges) -> BTreeMap<String, u64> {
    let text: String = Exposition::new(&edges.shared, Format::Prometheus).collect();
    let families = [
        "tollgate_decisions_total{",
        "tollgate_permits_total{",
        "tollgate_charged_permits_total{",
        "tollgate_returned_permits_total{",
    ];
    let lines = text.lines().filter(|line| families.iter().any(|name| line.starts_with(name)));
    let samples = lines.map(|line| line.rsplit_once(' ').unwrap());
    let counted = samples.map(|(series, value)| (series.to_owned(), value.parse().unwrap()));
    counted.filter(|(_, value)| *value > 0).collect()
}

/// Compares what the store has left of each key with the model.
fn check_store(edges: &Edges, model: &Model, row: &str) {
    let plan = edges.shared.engine.plan_arc();
    let store = edges.shared.engine.stores()[0].memory().unwrap();
    for ((rule, key), left) in model.levels() {
        let rule = plan.rule(plan.named(rule).unwrap());
        let Some(policy) = rule.kind().policy() else { continue };
        let mut demands = [Demand::new(policy, key.as_bytes(), 0)];
        let looked = store.peek_at(edges.shared.engine.now(), &mut demands).unwrap();
        assert_eq!(looked.remaining(), left, "{row}: {} of {key}", rule.label());
    }
}

async fn run(seed: u64, calls: usize) {
    let access = Access { negative_hits: true, ..Access::default() };
    let settings = Settings { access, response_headers: false, ..Settings::default() };
    let mut edges = Edges::start(CONFIG, settings).await;
    let wall = edges.shared.engine.clock().to_wall(edges.shared.engine.now());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut model = Model::new(wall);
    let mut caller = Caller::default();
    for call in 0..calls {
        // Steps that the bucket refills by whole permits in.
        let step = Duration::from_millis(random.pick(&[0, 0, 0, 100, 500, 20_000, 100_000]));
        edges.hand.advance(step);
        model.advance(step);
        let what = caller.call(&mut edges, &mut model, &mut random).await;
        let row = format!("seed {seed}, call {call}: {what}");
        check_store(&edges, &model, &row);
        assert_eq!(metrics(&edges), model.metrics(), "{row}");
    }
}

#[tokio::test]
async fn replies_metrics_and_state_agree_with_the_model() {
    for seed in 1..=12 {
        LocalSet::new().run_until(run(seed, 150)).await;
    }
}
