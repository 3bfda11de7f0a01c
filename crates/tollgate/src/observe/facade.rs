//! The registry through the `metrics` facade.

use super::{
    Registry, Report, Sample,
    collector::{Point, PointValue},
};
use metrics::{Label, counter, gauge};

impl Registry {
    /// Hands the metrics of every limiter to the recorder of the `metrics` facade.
    ///
    /// Counters are set to their totals, so calls that come late or twice lose nothing and count
    /// nothing twice. Call it at regular times, and once at the end:
    ///
    /// ```
    /// # use std::{thread, time::Duration};
    /// # use tollgate::observe::Registry;
    /// # let _not_run = || {
    /// thread::spawn(|| loop {
    ///     Registry::global().flush_metrics();
    ///     thread::sleep(Duration::from_secs(10));
    /// });
    /// # };
    /// ```
    ///
    /// The facade has no histogram that is read, so waits are counters with the label `le`
    /// (`tollgate_wait_seconds_bucket`, `tollgate_wait_seconds_count`) and a gauge
    /// (`tollgate_wait_seconds_sum`): `histogram_quantile` works on them. What a limiter had when it was dropped stays
    /// in the recorder. A later limiter of the same name begins at zero, and a recorder keeps the larger total: until the
    /// new one has counted more, nothing is added. Give it another name where that matters.
    pub fn flush_metrics(&self) {
        for Report { name, samples, .. } in self.list() {
            for sample in &samples {
                flush(&name, sample);
            }
        }
    }
}

fn flush(limiter: &str, sample: &Sample) {
    for Point { suffix, label, value } in sample.points() {
        let name = format!("{}{suffix}", sample.family.name());
        let mut labels = vec![Label::new("limiter", limiter.to_owned())];
        labels.extend(label.map(|(name, value)| Label::new(name, value)));
        match value {
            PointValue::Count(count) => counter!(name, labels).absolute(count),
            PointValue::Float(value) => gauge!(name, labels).set(value),
        }
    }
}
