//! The Grafana dashboard of the service: every query runs against a real Prometheus that scrapes it.

use crate::process::{Service, http};
use tollgate_rig::{Prometheus, dashboard_queries};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: api, unit: hour, requests_per_unit: 2}}
  - {key: site, value: all, rate_limit: {name: site, unit: hour, requests_per_unit: 5}}
  - {key: e, concurrency: {name: slots, limit: 3, lease: 1h}}
  - {key: u, rate_limit: {name: up, quota: 100/s, algorithm: gcra}, adaptive: {follow: reports, min: 10/s}}
";

/// Queries of shared stores, which this service does not have.
const NEEDS_REDIS: &str = "tollgate_store_node_";

#[test]
fn every_query_of_the_service_dashboard_finds_series() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let prometheus = Prometheus::start(service.admin);
    let queries = dashboard_queries(include_str!("../../../../../docs/grafana/service.json"));
    assert!(queries.len() >= 20, "{}", queries.len());
    let (redis, others): (Vec<_>, Vec<_>) =
        queries.iter().partition(|query| query.contains(NEEDS_REDIS));
    for query in others {
        prometheus.finds(query, || {
            for _ in 0..4 {
                let _ = http(service.http, "GET", "/v1/check?policy=api&key=a", "");
            }
        });
    }
    for query in redis {
        assert!(prometheus.query(query).is_some(), "{query}");
    }
}
