//! When calls arrive.

use fastrand::Rng;
use std::time::Duration;
use tollgate::Tick;

/// When calls arrive: phases one after the other.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_simulator::Workload;
///
/// let second = Duration::from_secs(1);
/// let workload = Workload::new().constant(10.0, second).silence(second).ramp(0.0, 20.0, second);
/// assert_eq!(workload.length(), 3 * second);
/// assert_eq!(workload.arrivals(7).count(), 20);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Workload {
    phases: Vec<Phase>,
}

#[derive(Clone, Copy, Debug)]
struct Phase {
    length: f64,
    pattern: Pattern,
}

/// Rates are calls per second, times are seconds.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Even { from: f64, to: f64 },
    Poisson { rate: f64 },
    OnOff { rate: f64, on: f64, off: f64 },
}

impl Workload {
    /// Returns a workload without phases.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the workload of Tollgate's comparison of algorithms: 100 calls in one second, silence
    /// for one, 100 calls in 100 ms, silence for 900 ms, 200 calls in one second.
    pub fn four_phases() -> Self {
        let ms = Duration::from_millis;
        let steady = Self::new().constant(100.0, ms(1000)).silence(ms(1000));
        steady.constant(1000.0, ms(100)).silence(ms(900)).constant(200.0, ms(1000))
    }

    /// Adds evenly spaced calls.
    pub fn constant(self, per_second: f64, length: Duration) -> Self {
        self.ramp(per_second, per_second, length)
    }

    /// Adds time without calls.
    pub fn silence(self, length: Duration) -> Self {
        self.constant(0.0, length)
    }

    /// Adds calls at random times, independent of each other: the gaps are exponential.
    pub fn poisson(self, per_second: f64, length: Duration) -> Self {
        self.phase(length, Pattern::Poisson { rate: per_second })
    }

    /// Adds calls whose rate moves from one to another in a straight line.
    pub fn ramp(self, from: f64, to: f64, length: Duration) -> Self {
        self.phase(length, Pattern::Even { from, to })
    }

    /// Adds evenly spaced calls for `on`, none for `off`, and so on.
    pub fn on_off(self, per_second: f64, on: Duration, off: Duration, length: Duration) -> Self {
        let (on, off) = (on.as_secs_f64(), off.as_secs_f64());
        self.phase(length, Pattern::OnOff { rate: per_second, on, off })
    }

    fn phase(mut self, length: Duration, pattern: Pattern) -> Self {
        self.phases.push(Phase { length: length.as_secs_f64(), pattern });
        self
    }

    /// Returns how long all phases take together.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.phases.iter().map(|phase| phase.length).sum())
    }

    /// Returns when calls arrive, in order.
    pub fn arrivals(&self, seed: u64) -> impl Iterator<Item = Tick> {
        let random = Rng::with_seed(seed);
        Arrivals { workload: self, random, phase: 0, began: 0.0, number: 0, last: 0.0 }
    }
}

struct Arrivals<'a> {
    workload: &'a Workload,
    random: Rng,
    /// The index of the phase, and when it began.
    phase: usize,
    began: f64,
    /// Calls of the phase so far, and when the last of them came, from the beginning of the phase.
    number: u64,
    last: f64,
}

impl Iterator for Arrivals<'_> {
    type Item = Tick;

    fn next(&mut self) -> Option<Tick> {
        loop {
            let phase = self.workload.phases.get(self.phase)?;
            let at = phase.next(self.number, self.last, &mut self.random);
            if at < phase.length {
                (self.number, self.last) = (self.number + 1, at);
                return Some(Tick::from_nanos(((self.began + at) * 1e9).round() as u64));
            }
            self.phase += 1;
            self.began += phase.length;
            (self.number, self.last) = (0, 0.0);
        }
    }
}

impl Phase {
    /// Returns when call `number` of the phase comes, in seconds from the phase's beginning. If the
    /// phase has no such call, returns a time beyond its end or NaN.
    fn next(&self, number: u64, last: f64, random: &mut Rng) -> f64 {
        let n = number as f64;
        match self.pattern {
            // The time t at which the integral of the rate, from t + c t^2, is n.
            Pattern::Even { from, to } => match (to - from) / (2.0 * self.length) {
                0.0 => n / from,
                c => ((from * from + 4.0 * c * n).sqrt() - from) / (2.0 * c),
            },
            Pattern::Poisson { rate } => last + exponential(random) / rate,
            Pattern::OnOff { rate, on, off } => n / rate + (n / rate / on).floor() * off,
        }
    }
}

/// Draws from the exponential distribution with mean 1.
pub(crate) fn exponential(random: &mut Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}
