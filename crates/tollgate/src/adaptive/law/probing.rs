//! Guarded probing gradient: the default law when no target latency is known.
//!
//! Idea: measure now and then how fast the service is without a queue, by holding the limit at a
//! few calls for a moment (a probe). Between probes compare the usual round trip with that
//! baseline: grow while it is at most half as long again, shrink by the ratio when it is longer.
//! Envoy's adaptive concurrency filter, with a guard: no growth that nobody uses.
//!
//! ```text
//! per window (100 ms ± 10 %, at least 10 calls that began since the last change)
//! overloads > 10 %:   L = L x 0.9
//! g = clamp(baseline x (1 + buffer) / median, 0.5, 2), x = L x g
//! L = floor(x + sqrt(x)), but no growth while 2 x most in flight < L
//! per probe (every 60 s + 0 to 15 %, or after 5 windows at or below `floor`)
//! limit = min(L, probe_at) until 50 calls that began in the probe have ended, at most 60 s
//! baseline = their median, if at least 10 have ended; L as before
//! ```
//!
//! State: the limit, the baseline, counters, and a histogram of 7.5 KiB; its percentiles are off by
//! at most 1.6 %. Cost: a few additions per sample, a walk over the histogram per window. While no
//! time passes no window ends.
//!
//! Departures from Envoy: (1) the guard; (2) `min`, the probe's level and the floor that asks for a
//! new baseline are three settings, since one floor for all of them measures the baseline while
//! overloaded; (3) calls count for a window only if they began since the limit last changed; (4)
//! overloads lower the limit, and their round trips count nowhere, since a refusal is fast; (5) no
//! probe begins while a window takes ten times its length to fill: an idle service would stay in
//! it for long.
//!
//! How it fails: a probe refuses what does not fit into its level for 50 calls. A service that
//! others overload is measured with their queue in it. After a sudden but healthy slowdown the
//! limit is too low until it has come down to `floor` and the baseline was measured anew.

use super::{
    super::{
        Law, LimitReason, Sample,
        window::{Histogram, SampleWindow},
    },
    BoundedLimit, LawError, Range, range_setters,
};
use crate::{CallOutcome, Tick};
use std::time::Duration;

/// Windows at or below the floor that ask for a new baseline.
const WINDOWS_AT_FLOOR: u32 = 5;
/// A window that takes so many times its length to fill shows an idle service.
const IDLE: u32 = 10;

/// Guarded probing gradient: measures the latency without a queue, and allows half of it on top.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::{Law, LimitReason, law::ProbingGradient};
///
/// let law = ProbingGradient::builder().max(500).probe_at(4).seed(7).build()?;
/// assert_eq!((law.limit(), law.reason()), (20, LimitReason::Starting));
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProbingGradient {
    settings: Settings,
    limit: BoundedLimit,
    window: SampleWindow,
    round_trips: Histogram,
    /// The round trip without a queue, in nanoseconds.
    baseline_ns: Option<f64>,
    is_probing: bool,
    /// When the next probe is due; during a probe, when it gives up.
    next_probe: Tick,
    windows_at_floor: u32,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    min_samples: u64,
    probe_at: u64,
    probe_every: Duration,
    probe_samples: u64,
    floor: u64,
    buffer: f64,
    percentile: f64,
}

impl ProbingGradient {
    /// Starts a law with the defaults that [docs/adaptive.md] shows.
    ///
    /// [docs/adaptive.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/adaptive.md
    pub fn builder() -> ProbingGradientBuilder {
        ProbingGradientBuilder {
            range: Range { initial: 20, min: 1, max: 1000 },
            length: Duration::from_millis(100),
            seed: 0,
            settings: Settings {
                min_samples: 10,
                probe_at: 6,
                probe_every: Duration::from_secs(60),
                probe_samples: 50,
                floor: 6,
                buffer: 0.5,
                percentile: 50.0,
            },
        }
    }

    /// Returns the round trip without a queue as last measured; `None` before the first probe.
    #[must_use]
    pub fn baseline(&self) -> Option<Duration> {
        self.baseline_ns.map(|nanos| Duration::from_nanos(nanos as u64))
    }

    fn start_probe(&mut self, now: Tick) {
        self.is_probing = true;
        self.next_probe = now.saturating_add(self.settings.probe_every);
        self.windows_at_floor = 0;
        self.limit.reason = LimitReason::Probing;
        self.restart(now);
    }

    fn end_probe(&mut self, now: Tick) {
        self.is_probing = false;
        if self.round_trips.total() >= self.settings.min_samples.min(self.settings.probe_samples) {
            self.baseline_ns = self.round_trips.percentile(self.settings.percentile);
        }
        let stretch = 1.0 + 0.15 * self.window.jitter.fraction();
        self.next_probe = now.saturating_add(self.settings.probe_every.mul_f64(stretch));
        self.limit.reason = LimitReason::Holding;
        self.restart(now);
    }

    /// Counts only calls that begin from `now` on.
    fn restart(&mut self, now: Tick) {
        self.window.restart_from(now);
        self.round_trips.clear();
    }

    fn decide(&mut self, now: Tick) {
        let is_idle = self.window.age(now) > self.window.length * IDLE;
        let before = self.limit.whole();
        self.step();
        let is_low = self.limit.whole() <= self.settings.floor;
        self.windows_at_floor = if is_low { self.windows_at_floor + 1 } else { 0 };
        let is_due = now >= self.next_probe || self.windows_at_floor >= WINDOWS_AT_FLOOR;
        if is_due && !is_idle {
            self.start_probe(now);
        } else if self.limit.whole() == before {
            self.window.restart();
            self.round_trips.clear();
        } else {
            self.restart(now);
        }
    }

    fn step(&mut self) {
        let (limit, samples) = (self.limit.value, self.window.samples);
        // OVERFLOW: counts of samples; 2^64 / 10 of them do not come in one window.
        if self.window.overloads * 10 > samples {
            return self.limit.move_to((limit * 0.9).floor(), LimitReason::Overload);
        }
        let rtt_ns = self.round_trips.percentile(self.settings.percentile);
        let (Some(baseline_ns), Some(rtt_ns)) = (self.baseline_ns, rtt_ns) else {
            return;
        };
        let gradient = (baseline_ns * (1.0 + self.settings.buffer) / rtt_ns).clamp(0.5, 2.0);
        let x = limit * gradient;
        let wanted = (x + x.sqrt()).floor();
        if wanted <= limit {
            let reason = if wanted < limit { LimitReason::Queueing } else { LimitReason::Holding };
            self.limit.move_to(wanted, reason);
        } else if self.limit.is_application_limited(self.window.max_in_flight) {
            self.limit.reason = LimitReason::ApplicationLimited;
        } else {
            self.limit.move_to(wanted, LimitReason::Growing);
        }
    }
}

impl Default for ProbingGradient {
    fn default() -> Self {
        let Ok(law) = Self::builder().build() else { unreachable!("the defaults are legal") };
        law
    }
}

impl Law for ProbingGradient {
    fn observe(&mut self, sample: &Sample) -> u64 {
        let (now, is_counted) = (sample.ended, self.window.add(sample));
        if is_counted && sample.outcome == CallOutcome::Success {
            // OVERFLOW: a difference of ticks fits.
            self.round_trips.add(sample.rtt().as_nanos() as u64);
        }
        if self.is_probing {
            // Calls that do not count show at least that time passes, so every probe ends.
            let is_measured = self.round_trips.total() >= self.settings.probe_samples;
            if is_measured || now >= self.next_probe {
                self.end_probe(now);
            }
        } else if is_counted
            && self.window.is_over(now)
            && self.window.samples >= self.settings.min_samples
        {
            self.decide(now);
        }
        self.limit()
    }

    fn limit(&self) -> u64 {
        match self.is_probing {
            true => self.limit.whole().min(self.settings.probe_at),
            false => self.limit.whole(),
        }
    }

    fn reason(&self) -> LimitReason {
        self.limit.reason
    }

    fn name(&self) -> &'static str {
        "probing_gradient"
    }
}

/// Builds a [`ProbingGradient`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ProbingGradientBuilder {
    range: Range,
    length: Duration,
    seed: u64,
    settings: Settings,
}

impl ProbingGradientBuilder {
    range_setters!(initial: 20, min: 1, max: 1000);

    /// Sets the length of the window, by default 100 ms.
    pub fn window(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets how many calls a window needs, by default 10: the window stays open until it has them.
    pub fn min_samples(mut self, min_samples: u64) -> Self {
        self.settings.min_samples = min_samples;
        self
    }

    /// Sets the limit during a probe, by default 6. It may lie below `min`: a probe needs a service
    /// without a queue.
    pub fn probe_at(mut self, limit: u64) -> Self {
        self.settings.probe_at = limit;
        self
    }

    /// Sets the time between probes, by default 60 s; up to 15 % are added at random. A probe that
    /// gets too few calls gives up after this time.
    pub fn probe_every(mut self, every: Duration) -> Self {
        self.settings.probe_every = every;
        self
    }

    /// Sets how many calls a probe measures, by default 50.
    pub fn probe_samples(mut self, samples: u64) -> Self {
        self.settings.probe_samples = samples;
        self
    }

    /// Sets the limit that is too low to be believed, by default 6: after five windows at or below
    /// it the law probes at once. 0 turns that off.
    pub fn floor(mut self, floor: u64) -> Self {
        self.settings.floor = floor;
        self
    }

    /// Sets how much longer than the baseline calls may take, as a share of it; by default 0.5.
    /// A larger one keeps more calls in the queue.
    pub fn buffer(mut self, buffer: f64) -> Self {
        self.settings.buffer = buffer;
        self
    }

    /// Sets which percentile of the round trips is compared, by default 50, the median.
    pub fn percentile(mut self, percent: f64) -> Self {
        self.settings.percentile = percent;
        self
    }

    /// Sets the seed of the jitter, by default 0. Give each instance its own, so that they do not
    /// probe one service at the same time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `min <= initial <= max` does not hold.
    pub fn build(self) -> Result<ProbingGradient, LawError> {
        let settings = self.settings;
        let buffer = "is not between 0 and 10; 0.5 allows half as long again";
        let percentile = "is not between 0 and 100; 50 is the median";
        LawError::check_count("min_samples", settings.min_samples)?;
        LawError::check_count("probe_at", settings.probe_at)?;
        LawError::check_count("probe_samples", settings.probe_samples)?;
        LawError::check_duration("probe_every", settings.probe_every)?;
        LawError::check("buffer", settings.buffer, 0.0..=10.0, buffer)?;
        LawError::check("percentile", settings.percentile, 0.0..=100.0, percentile)?;
        Ok(ProbingGradient {
            settings,
            limit: self.range.build()?,
            window: SampleWindow::new(LawError::check_duration("window", self.length)?, self.seed),
            round_trips: Histogram::new(),
            baseline_ns: None,
            is_probing: false,
            next_probe: Tick::ZERO,
            windows_at_floor: 0,
        })
    }
}
