//! The view that a stack has of a timeout layer.

use super::TimeoutLayer;
use std::time::Duration;

impl TimeoutLayer {
    /// Returns the bound of the whole call.
    pub(crate) fn total(&self) -> Option<Duration> {
        self.shared.total
    }

    /// Tells whether deadlines of callers are read.
    pub(crate) fn reads_deadline(&self) -> bool {
        self.shared.trust.is_some()
    }

    /// Returns the time after which a call that hangs ends at the latest, apart from its total.
    pub(crate) fn attempt(&self) -> Option<Duration> {
        let phases = [self.shared.attempt, self.shared.head, self.shared.body_idle];
        phases.into_iter().flatten().max()
    }

    /// Returns the settings in one line.
    pub(crate) fn summary(&self) -> String {
        let phases = [
            ("total", self.shared.total),
            ("attempt", self.shared.attempt),
            ("head", self.shared.head),
            ("body_idle", self.shared.body_idle),
        ];
        let bounds = phases.iter().filter_map(|(name, it)| Some(format!("{name} {:?}", (*it)?)));
        let reads = self.reads_deadline().then(|| "reads the caller's deadline".to_owned());
        let sends = self.shared.sends_deadline.then(|| "sends the deadline".to_owned());
        bounds.chain(reads).chain(sends).collect::<Vec<_>>().join(", ")
    }
}
