//! The guaranteed bounds of a configuration, in numbers.

use super::{LeaseSettings, terms::Terms};
use std::{fmt, time::Duration};
use tollgate::{Quota, store::Policy};

/// The effects of two tiers on one policy, as numbers and as a sentence (`Display`).
///
/// From [`TwoTier::bounds`](super::TwoTier::bounds). The numbers hold for each key of the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    policy: Box<str>,
    quota: Quota,
    processes: u32,
    terms: Option<Terms>,
    is_wanted: bool,
    deny_cap: Duration,
}

impl Bounds {
    pub(super) fn new(
        policy: &Policy,
        settings: Option<LeaseSettings>,
        processes: u32,
        deny_cap: Duration,
    ) -> Self {
        let quota = policy.quota();
        let settings = settings.filter(|_| !policy.is_ad_hoc());
        Self {
            policy: policy.name().into(),
            quota,
            processes,
            terms: settings.and_then(|settings| Terms::of(&quota, &settings, processes)),
            is_wanted: settings.is_some(),
            deny_cap,
        }
    }

    /// Tells whether the policy leases: it is meant to, and its quota is large enough.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.terms.is_some()
    }

    /// Returns the most permits that one process holds: min(burst / (2 processes), rate x sync).
    /// Zero without leases.
    #[must_use]
    pub fn lease_max(&self) -> u64 {
        self.terms.map_or(0, |terms| terms.lease_max)
    }

    /// Returns by how many permits more than the store would admit can pass in any window: what all
    /// processes hold together. It is moved in time, not added: over a long run it is zero.
    #[must_use]
    pub fn over_admission(&self) -> u64 {
        self.lease_max().saturating_mul(u64::from(self.processes))
    }

    /// Returns how many permits can be lost when traffic stops: the held ones that are not used.
    ///
    /// Leases shrink by what they lose, so traffic that keeps moving between processes loses about 6 %
    /// of the rate (`tests/leases/servers/tier_fleet.rs`).
    #[must_use]
    pub fn under_admission(&self) -> u64 {
        self.over_admission()
    }

    /// Returns how long permits are held: two sync periods.
    #[must_use]
    pub fn life(&self) -> Duration {
        self.terms.map_or(Duration::ZERO, |terms| Duration::from_nanos(2 * terms.sync_ns))
    }

    /// Returns how many permits a process takes with it that dies. They come back as all others do.
    #[must_use]
    pub fn lost_by_a_crash(&self) -> u64 {
        self.lease_max()
    }

    /// Returns the longest time by which a call can pass later than it might, because another process
    /// refunded, settled, reset or changed a quota.
    #[must_use]
    pub fn late_after_remote_refund(&self) -> Duration {
        let pace = self.terms.map_or(0, |terms| terms.pace_ns + terms.pace_ns / 10);
        self.deny_cap.max(Duration::from_nanos(pace))
    }

    /// Returns how many store calls a request of cost one is expected to need, when the processes
    /// share a load that is near the limit evenly: 1 / min(largest lease, rate x sync / processes).
    #[must_use]
    pub fn calls_per_request(&self) -> f64 {
        let Some(terms) = self.terms else { return 1.0 };
        let period = self.quota.period().as_nanos().max(1) as f64;
        let per_sync = self.quota.count() as f64 * terms.sync_ns as f64 / period;
        1.0 / (per_sync / f64::from(self.processes)).min(terms.lease_max as f64)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, quota, processes, .. } = self;
        write!(f, "policy \"{policy}\", {quota}, {processes} process{}: ", plural(*processes))?;
        match self.terms {
            None => {
                let why =
                    if self.is_wanted { "the quota is too small to lease" } else { "no leases" };
                write!(
                    f,
                    "{why}, the store decides every request, 0 over, 1 store call per request"
                )?;
            }
            Some(terms) => write!(
                f,
                "each holds at most {} permits of a key for {:?}; at most {} above the limit in any \
                 window and 0 in the long run; at most {} are lost when traffic stops, {} when a \
                 process dies, and about 6% of the rate while traffic keeps moving between processes; \
                 about {:.3} store calls per request near the limit",
                terms.lease_max,
                self.life(),
                self.over_admission(),
                self.under_admission(),
                self.lost_by_a_crash(),
                self.calls_per_request(),
            )?,
        }
        let late = self.late_after_remote_refund();
        if late.is_zero() {
            return f.write_str("; denials are not cached");
        }
        write!(f, "; a refund in another process is noticed within {late:?}")
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "es" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_has_its_sentence() {
        let leased = Some(LeaseSettings::new());
        let second = Duration::from_secs(1);
        // rate per second, settings, processes, cap, sentence
        for (rate, settings, processes, cap, expected) in [
            (
                1000,
                leased,
                1,
                Duration::ZERO,
                "policy \"p\", 1000/s, 1 process: each holds at most 100 permits of a key for 200ms; \
                 at most 100 above the limit in any window and 0 in the long run; at most 100 are lost \
                 when traffic stops, 100 when a process dies, and about 6% of the rate while traffic \
                 keeps moving between processes; about 0.010 store calls per request near the limit; a \
                 refund in another process is noticed within 110ms",
            ),
            (
                20,
                leased,
                8,
                second,
                "policy \"p\", 20/s, 8 processes: the quota is too small to lease, the store \
                 decides every request, 0 over, 1 store call per request; a refund in another \
                 process is noticed within 1s",
            ),
            (
                1000,
                None,
                8,
                Duration::ZERO,
                "policy \"p\", 1000/s, 8 processes: no leases, the store decides every request, 0 \
                 over, 1 store call per request; denials are not cached",
            ),
        ] {
            let policy = Policy::new("p", Quota::per_second(rate)).expect("a policy");
            let bounds = Bounds::new(&policy, settings, processes, cap);
            assert_eq!(bounds.to_string(), expected);
        }
    }
}
