//! The `metrics` facade, OpenTelemetry and JSON.

use tollgate::{Clock, Limiter, Quota, observe::Registry};

fn counted() -> (Registry, Limiter) {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(5)).clock(clock).counted().build().unwrap();
    let registry = Registry::new();
    registry.add("api", &limiter).unwrap();
    (registry, limiter)
}

#[cfg(feature = "metrics")]
#[test]
fn flushing_to_the_facade_twice_counts_nothing_twice() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use std::time::Duration;
    let (registry, limiter) = counted();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let values = || {
        let all = snapshotter.snapshot().into_vec().into_iter();
        all.map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(metrics::Label::value).collect();
            (format!("{} {}", key.key().name(), labels.join(" ")), value)
        })
        .collect::<std::collections::BTreeMap<_, _>>()
    };
    metrics::with_local_recorder(&recorder, || {
        for round in 1..=3_u64 {
            (0..10).for_each(|_| drop(limiter.reserve_within(1, Duration::from_secs(9)).ok()));
            assert!(limiter.try_acquire_n(9).is_never());
            registry.flush_metrics();
            registry.flush_metrics();
            let values = values();
            let counts = limiter.counts();
            for (series, count) in [
                ("tollgate_decisions_total api allowed", counts.allowed),
                ("tollgate_decisions_total api denied_later", counts.denied_later),
                ("tollgate_decisions_total api denied_never", counts.denied_never),
                ("tollgate_permits_total api allowed", counts.allowed_cost),
                ("tollgate_permits_total api denied", counts.denied_cost),
            ] {
                assert_eq!(values[series], DebugValue::Counter(count), "{series}, round {round}");
            }
            let waits = limiter.waits();
            let all = &values["tollgate_wait_seconds_bucket api +Inf"];
            assert_eq!(*all, DebugValue::Counter(waits.count()));
            assert_eq!(values["tollgate_capacity api"], DebugValue::Gauge(5.0.into()));
        }
    });
}

#[cfg(feature = "otel")]
#[test]
fn each_export_of_opentelemetry_has_the_totals_of_that_moment() {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::{
        InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
        data::{AggregatedMetrics, MetricData},
    };
    use std::time::Duration;
    let (registry, limiter) = counted();
    let exporter = InMemoryMetricExporter::default();
    // Only `force_flush` exports within an hour.
    let reader = PeriodicReader::builder(exporter.clone());
    let reader = reader.with_interval(Duration::from_secs(3600)).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    registry.observe_with(&provider.meter("test"));
    for round in 1..=3_u64 {
        (0..10).for_each(|_| assert!(limiter.try_acquire_n(6).is_denied()));
        let _ = limiter.try_acquire();
        exporter.reset();
        provider.force_flush().unwrap();
        let exported = exporter.get_finished_metrics().unwrap();
        let mut found = Vec::new();
        let scopes = exported.iter().flat_map(|resource| resource.scope_metrics());
        for metric in scopes.flat_map(|scope| scope.metrics()) {
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                    found.extend(sum.data_points().map(|point| {
                        let labels: Vec<_> = point
                            .attributes()
                            .map(|label| format!("{}={}", label.key, label.value))
                            .collect();
                        (metric.name().to_owned(), labels.join(","), point.value() as f64)
                    }));
                }
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    found.extend(
                        gauge
                            .data_points()
                            .map(|point| (metric.name().to_owned(), String::new(), point.value())),
                    );
                }
                _ => {}
            }
        }
        let has = |name: &str, label: &str, value: f64| {
            found
                .iter()
                .any(|(it, labels, is)| it == name && labels.contains(label) && *is == value)
        };
        let denied = 10.0 * round as f64;
        assert!(has("tollgate_decisions_total", "outcome=denied_never", denied), "{found:#?}");
        assert!(has("tollgate_decisions_total", "outcome=allowed", round as f64), "{found:#?}");
        assert!(has("tollgate_decisions_total", "limiter=api", denied), "{found:#?}");
        assert!(has("tollgate_capacity", "", 5.0), "{found:#?}");
        assert!(has("tollgate_level", "", 5.0 - round as f64), "{found:#?}");
    }
    provider.shutdown().unwrap();
}

#[cfg(feature = "serde")]
#[test]
fn the_list_serialises() {
    let (registry, limiter) = counted();
    let _ = limiter.try_acquire();
    let json = serde_json::to_value(registry.list()).unwrap();
    let entry = &json[0];
    assert_eq!((&entry["name"], &entry["kind"]), (&"api".into(), &"limiter".into()));
    assert_eq!((&entry["quota"], &entry["health"]), (&"5/s".into(), &"unknown".into()));
    let samples = entry["samples"].as_array().unwrap();
    let level = samples.iter().find(|sample| sample["metric"] == "tollgate_level").unwrap();
    assert_eq!(level["value"], 4.0);
    let allowed = samples.iter().find(|sample| sample["label"] == "allowed").unwrap();
    assert_eq!(
        (&allowed["metric"], &allowed["value"]),
        (&"tollgate_decisions_total".into(), &1.into())
    );
}
