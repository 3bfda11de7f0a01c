//! The registry as instruments of OpenTelemetry.

use super::{
    Registry, Report,
    collector::{Point, PointValue},
    family::{FAMILIES, Family, FamilyKind},
};
use crate::sync::{Mutex, lock};
use opentelemetry::{KeyValue, metrics::Meter};
use std::sync::Arc;

impl Registry {
    /// Creates an observable instrument of `meter` for each metric of this crate: at each export
    /// OpenTelemetry reads the totals from the registry, so nothing is lost between exports.
    ///
    /// Call it once for each meter. The instruments live as long as the meter's provider.
    /// OpenTelemetry has no observable histogram, so waits are counters with the attribute `le`.
    /// Metrics of collectors outside this crate are not among them.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::observe::Registry;
    ///
    /// let meter = opentelemetry::global::meter("my_service");
    /// Registry::global().observe_with(&meter);
    /// ```
    pub fn observe_with(&self, meter: &Meter) {
        let reports = Arc::new(CachedReports { registry: self.clone(), last: Mutex::default() });
        let mut number = 0;
        let mut instrument = |family: Family, suffix: &'static str| {
            number += 1; // OVERFLOW: below 64, see `Export::read_by`.
            Instrument { reports: Arc::clone(&reports), family, suffix, number: number - 1 }
        };
        for family in FAMILIES.iter().copied() {
            match family.kind {
                FamilyKind::Counter => instrument(family, "").count(meter),
                FamilyKind::Gauge => instrument(family, "").gauge(meter),
                FamilyKind::Histogram => {
                    instrument(family, "_bucket").count(meter);
                    instrument(family, "_count").count(meter);
                    instrument(family, "_sum").sum(meter);
                }
            }
        }
    }
}

/// One instrument: the points of a metric that have this suffix.
struct Instrument {
    reports: Arc<CachedReports>,
    family: Family,
    suffix: &'static str,
    number: u32,
}

impl Instrument {
    fn name(&self) -> String {
        format!("{}{}", self.family.name, self.suffix)
    }

    fn count(self, meter: &Meter) {
        let builder = meter.u64_observable_counter(self.name()).with_description(self.family.help);
        builder
            .with_callback(move |observer| {
                self.each(|value, attributes| {
                    if let PointValue::Count(count) = value {
                        observer.observe(count, attributes);
                    }
                });
            })
            .build();
    }

    fn gauge(self, meter: &Meter) {
        let builder = meter.f64_observable_gauge(self.name()).with_description(self.family.help);
        builder.with_callback(move |observer| self.floats(observer)).build();
    }

    fn sum(self, meter: &Meter) {
        let builder = meter.f64_observable_counter(self.name()).with_description(self.family.help);
        builder.with_callback(move |observer| self.floats(observer)).build();
    }

    fn floats(&self, observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>) {
        self.each(|value, attributes| match value {
            PointValue::Float(value) => observer.observe(value, attributes),
            PointValue::Count(_) => {}
        });
    }

    fn each(&self, mut observe: impl FnMut(PointValue, &[KeyValue])) {
        for Report { name, samples, .. } in &*self.reports.take(self.number) {
            for sample in samples.iter().filter(|sample| sample.family == self.family) {
                for Point { suffix, label, value } in sample.points() {
                    if suffix == self.suffix {
                        let mut attributes = vec![KeyValue::new("limiter", name.clone())];
                        attributes.extend(label.map(|(name, value)| KeyValue::new(name, value)));
                        observe(value, &attributes);
                    }
                }
            }
        }
    }
}

/// The reports of the registry, read once for all instruments of an export.
struct CachedReports {
    registry: Registry,
    /// `None` before the first export.
    last: Mutex<Option<Export>>,
}

struct Export {
    reports: Arc<Vec<Report>>,
    /// The instruments that have read them, a bit each. One that comes again begins a new export.
    read_by: u64,
}

impl CachedReports {
    fn take(&self, instrument: u32) -> Arc<Vec<Report>> {
        let bit = 1_u64 << instrument;
        let mut last = lock(&self.last);
        let new = || Export { reports: Arc::new(self.registry.list()), read_by: 0 };
        let mut export = last.take().filter(|export| export.read_by & bit == 0).unwrap_or_else(new);
        export.read_by |= bit;
        Arc::clone(&last.insert(export).reports)
    }
}
