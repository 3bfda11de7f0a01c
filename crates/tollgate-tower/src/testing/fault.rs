//! Which faults a call gets. Pure: the time, the number of the call and a seed decide.

use http::StatusCode;
use siphasher::sip::SipHasher13;
use std::{
    hash::{Hash, Hasher},
    ops::Range,
    time::Duration,
};

/// A fault that [`ChaosLayer`](super::ChaosLayer) injects: its kind, how often, and when.
///
/// # Examples
///
/// An outage from the tenth to the twentieth second, and one slow call of fifty at all times:
///
/// ```
/// use std::time::Duration;
/// use http::StatusCode;
/// use tollgate_tower::testing::Fault;
///
/// let second = Duration::from_secs(1);
/// let faults = [
///     Fault::status(StatusCode::SERVICE_UNAVAILABLE).during(10 * second..20 * second),
///     Fault::latency_between(second / 10..second).percent(2.0),
/// ];
/// # let _ = faults;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "it does nothing until a layer has it"]
pub struct Fault {
    kind: Kind,
    percent: f64,
    during: Range<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Latency(Range<Duration>),
    Status(StatusCode),
    Error,
    Hang,
}

impl Fault {
    /// Delays a call by this time before it reaches the service.
    pub const fn latency(delay: Duration) -> Self {
        Self::of(Kind::Latency(delay..delay))
    }

    /// Delays a call by a random time: at least the start, and less than the end.
    pub const fn latency_between(delays: Range<Duration>) -> Self {
        Self::of(Kind::Latency(delays))
    }

    /// Answers with this status and an empty body instead of calling the service.
    pub const fn status(status: StatusCode) -> Self {
        Self::of(Kind::Status(status))
    }

    /// Fails with the error of [`error_with`](super::ChaosBuilder::error_with) instead of calling the
    /// service.
    pub const fn error() -> Self {
        Self::of(Kind::Error)
    }

    /// Never answers, and holds the service that was ready, as a call that hangs would.
    pub const fn hang() -> Self {
        Self::of(Kind::Hang)
    }

    const fn of(kind: Kind) -> Self {
        Self { kind, percent: 100.0, during: Duration::ZERO..Duration::MAX }
    }

    /// Sets the share of the calls that gets the fault; above 0 and at most 100. The default is
    /// 100.
    pub const fn percent(mut self, percent: f64) -> Self {
        self.percent = percent;
        self
    }

    /// Sets when calls get the fault, counted from the moment at which the faults are set or
    /// switched on. By default they always do.
    pub const fn during(mut self, times: Range<Duration>) -> Self {
        self.during = times;
        self
    }

    /// Returns the fault in its settings, if there is one.
    pub(super) fn check(&self, has_errors: bool) -> Result<(), String> {
        if !(self.percent > 0.0 && self.percent <= 100.0) {
            let percent = self.percent;
            return Err(format!(
                "percent {percent} of a fault is out of range; use more than 0 and at most 100, or \
                 leave the fault out"
            ));
        }
        if self.during.is_empty() {
            let Range { start, end } = self.during;
            return Err(format!(
                "a fault during {start:?}..{end:?} never happens; let the end be after the start"
            ));
        }
        match &self.kind {
            Kind::Latency(Range { start, end }) if start > end || end.is_zero() => Err(format!(
                "a latency between {start:?} and {end:?} is none; let the end be after the start"
            )),
            Kind::Error if !has_errors => {
                Err("a fault is an error, but the layer cannot make one; \
                                               set `error_with`, or use `Fault::status`"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The faults of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Injection {
    pub(super) delay: Duration,
    pub(super) ending: Ending,
}

/// The result of a call after its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    #[default]
    Service,
    Status(StatusCode),
    Error,
    Hang,
}

/// Decides on the call with this number. Delays add up; of the other faults the first counts.
pub(super) fn inject(faults: &[Fault], elapsed: Duration, seed: u64, number: u64) -> Injection {
    let mut injection = Injection::default();
    for (place, fault) in faults.iter().enumerate() {
        let random = |draw: u8| fraction(&(seed, number, place, draw));
        if !fault.during.contains(&elapsed) || random(0) * 100.0 >= fault.percent {
            continue;
        }
        let ending = match &fault.kind {
            Kind::Latency(Range { start, end }) => {
                let delay = *start + end.saturating_sub(*start).mul_f64(random(1));
                injection.delay = injection.delay.saturating_add(delay);
                continue;
            }
            Kind::Status(status) => Ending::Status(*status),
            Kind::Error => Ending::Error,
            Kind::Hang => Ending::Hang,
        };
        if injection.ending == Ending::Service {
            injection.ending = ending;
        }
    }
    injection
}

/// Returns a number that looks random: at least 0 and below 1.
fn fraction(of: &impl Hash) -> f64 {
    let mut hasher = SipHasher13::new();
    of.hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_are_kept_and_faults_are_independent() {
        let faults = [
            Fault::latency_between(SECOND..3 * SECOND).percent(50.0),
            Fault::hang().percent(10.0),
            Fault::error().percent(10.0),
            Fault::status(StatusCode::BAD_GATEWAY).percent(0.5),
        ];
        let all: Vec<_> = (0..100_000).map(|call| inject(&faults, SECOND, 7, call)).collect();
        let share = |is: &dyn Fn(&Injection) -> bool| {
            all.iter().filter(|injection| is(injection)).count() as f64 / 100_000.0
        };
        for (name, found, expected) in [
            ("delayed", share(&|it| !it.delay.is_zero()), 0.5),
            ("below the middle", share(&|it| it.delay < 2 * SECOND && it.delay >= SECOND), 0.25),
            ("hang", share(&|it| it.ending == Ending::Hang), 0.1),
            ("error", share(&|it| it.ending == Ending::Error), 0.09),
            ("both", share(&|it| it.ending == Ending::Hang && !it.delay.is_zero()), 0.05),
        ] {
            assert!((found - expected).abs() < 0.005, "{name}: {found}");
        }
        let rare = share(&|it| matches!(it.ending, Ending::Status(_)));
        assert!((rare - 0.00405).abs() < 0.001, "{rare}");
        assert!(all.iter().all(|it| it.delay < 3 * SECOND));
        let again: Vec<_> = (0..100_000).map(|call| inject(&faults, SECOND, 7, call)).collect();
        assert_eq!(all, again, "a seed repeats");
        let other: Vec<_> = (0..100_000).map(|call| inject(&faults, SECOND, 8, call)).collect();
        assert_ne!(all, other);
    }

    #[test]
    fn a_script_follows_the_time() {
        let down = Fault::status(StatusCode::SERVICE_UNAVAILABLE);
        let faults = [
            down.during(10 * SECOND..20 * SECOND),
            Fault::latency(SECOND).during(15 * SECOND..30 * SECOND),
            Fault::latency(SECOND).during(18 * SECOND..19 * SECOND),
        ];
        for (at, delay, is_down) in [
            (0, 0, false),
            (9, 0, false),
            (10, 0, true),
            (15, 1, true),
            (18, 2, true),
            (19, 1, true),
            (20, 1, false),
            (30, 0, false),
        ] {
            let found = inject(&faults, at * SECOND, 1, u64::from(at));
            assert_eq!(found.delay, delay * SECOND, "at {at} s");
            assert_eq!(found.ending != Ending::Service, is_down, "at {at} s");
        }
        let long = [Fault::latency(Duration::MAX), Fault::latency(Duration::MAX)];
        assert_eq!(inject(&long, Duration::ZERO, 1, 1).delay, Duration::MAX);
    }
}
