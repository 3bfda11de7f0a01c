//! Judges a run, without doing anything.

use std::{fmt, time::Duration};

/// The service at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Since the start of the run.
    pub(super) at: Duration,
    /// Resident memory in bytes.
    pub(super) resident: u64,
    pub(super) keys: u64,
}

/// A figure that the clients and the service have counted.
#[derive(Debug)]
pub(super) struct Counted {
    what: String,
    /// The clients' count, and how many calls without a response may be added.
    expected: (u64, u64),
    counted: u64,
}

impl Counted {
    /// Returns a row. Calls that were not answered may have been counted by the service, or not.
    pub(super) const fn up_to(what: String, expected: (u64, u64), counted: u64) -> Self {
        Self { what, expected, counted }
    }

    fn agrees(&self) -> bool {
        let (least, spare) = self.expected;
        (least..=least.saturating_add(spare)).contains(&self.counted)
    }
}

/// Runs below this length say nothing about memory: tables and buffers are still filling.
const LONG_ENOUGH: Duration = Duration::from_secs(300);

const MEBIBYTE: f64 = (1 << 20) as f64;

/// The line through the samples of resident memory after the warm-up, the first third of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    /// The line at its first and at its last sample, in bytes.
    first: f64,
    last: f64,
    samples: usize,
    is_long_enough: bool,
}

impl Memory {
    /// Fits a line by least squares; `None` if there are fewer than two samples after the warm-up.
    pub(super) fn of(samples: &[Sample], length: Duration) -> Option<Self> {
        let measured: Vec<(f64, f64)> = samples
            .iter()
            .filter(|sample| sample.at >= length / 3)
            .map(|sample| (sample.at.as_secs_f64(), sample.resident as f64))
            .collect();
        let (count, &(start, _), &(end, _)) =
            (measured.len() as f64, measured.first()?, measured.last()?);
        let mean_at = measured.iter().map(|(at, _)| at).sum::<f64>() / count;
        let mean = measured.iter().map(|(_, bytes)| bytes).sum::<f64>() / count;
        let spread = measured.iter().map(|(at, _)| (at - mean_at).powi(2)).sum::<f64>();
        let common =
            measured.iter().map(|(at, bytes)| (at - mean_at) * (bytes - mean)).sum::<f64>();
        let slope = (spread > 0.0).then(|| common / spread)?;
        let line = |at: f64| mean + slope * (at - mean_at);
        Some(Self {
            first: line(start),
            last: line(end),
            samples: measured.len(),
            is_long_enough: length >= LONG_ENOUGH,
        })
    }

    fn growth(&self) -> f64 {
        self.last - self.first
    }

    /// Returns how much it may grow: 2 % cover the noise of an allocator, and 1 MiB that of a small process.
    fn allowed(&self) -> f64 {
        (self.first * 0.02).max(MEBIBYTE)
    }

    fn is_flat(&self) -> bool {
        self.growth() <= self.allowed()
    }
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) seconds: f64,
    pub(super) calls: u64,
    pub(super) reloads: u64,
    pub(super) memory: Option<Memory>,
    pub(super) samples: Vec<Sample>,
    pub(super) rows: Vec<Counted>,
    /// The problems other than wrong counters.
    pub(super) problems: Vec<String>,
}

impl Verdict {
    /// Tells whether the service stayed as it was.
    pub(super) fn is_good(&self) -> bool {
        let grows = |memory: &Memory| memory.is_long_enough && !memory.is_flat();
        self.problems.is_empty()
            && self.rows.iter().all(Counted::agrees)
            && !self.memory.as_ref().is_some_and(grows)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, calls, reloads, samples, .. } = self;
        writeln!(
            f,
            "{calls} calls in {seconds:.0} s, {:.0}/s; {reloads} reloads",
            *calls as f64 / seconds.max(0.001)
        )?;
        let keys = samples.iter().map(|sample| sample.keys).max().unwrap_or_default();
        let highest = samples.iter().map(|sample| sample.resident).max().unwrap_or_default();
        writeln!(f, "most keys: {keys}; most memory: {:.1} MiB", highest as f64 / MEBIBYTE)?;
        let memory = match &self.memory {
            None => "unknown: too few samples".to_owned(),
            Some(memory) => {
                let [first, last, growth, allowed] =
                    [memory.first, memory.last, memory.growth(), memory.allowed()]
                        .map(|bytes| bytes / MEBIBYTE);
                let word = match (memory.is_long_enough, memory.is_flat()) {
                    (false, _) => "too short to judge; run at least 5m",
                    (true, true) => "flat",
                    (true, false) => "GROWS",
                };
                format!(
                    "{first:.2} to {last:.2} MiB after the first third, {growth:+.2} of {allowed:.2} MiB \
                     allowed, {} samples: {word}",
                    memory.samples
                )
            }
        };
        writeln!(f, "memory: {memory}\n\n{:<26}{:>14}{:>14}", "counter", "clients", "service")?;
        for row in &self.rows {
            let Counted { what, expected: (expected, spare), counted } = row;
            let open = if *spare > 0 { format!("  ({spare} unanswered)") } else { String::new() };
            let word = if row.agrees() { "" } else { "  DIFFERS" };
            writeln!(f, "{what:<26}{expected:>14}{counted:>14}{open}{word}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        let word = if self.is_good() { "passed" } else { "FAILED" };
        writeln!(f, "\nsoak {word}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of these samples of resident memory in MiB, one each second.
    fn memory(length_s: u64, resident: impl Fn(f64) -> f64) -> Memory {
        let sample = |at: u64| Sample {
            at: Duration::from_secs(at),
            resident: (resident(at as f64) * MEBIBYTE) as u64,
            keys: 7,
        };
        let samples: Vec<Sample> = (0..=length_s).map(sample).collect();
        Memory::of(&samples, Duration::from_secs(length_s)).unwrap()
    }

    #[test]
    fn a_line_that_rises_above_its_allowance_is_growth() {
        // memory in MiB by second, whether it is flat
        type Row = (fn(f64) -> f64, bool);
        for (row, (resident, flat)) in [
            ((|_| 40.0) as fn(f64) -> f64, true),
            // All of it in the warm-up.
            (|at| 40.0 + at.min(190.0), true),
            // 400 s at 2 KiB are 0.8 MiB, at 3 KiB 1.2 MiB.
            (|at| 40.0 + at * 2.0 / 1024.0, true),
            (|at| 40.0 + at * 3.0 / 1024.0, false),
            // 2 % of a large process.
            (|at| 1000.0 + at * 0.04, true),
            (|at| 1000.0 + at * 0.06, false),
            // It swings.
            (|at| 40.0 + (at % 7.0) * 3.0, true),
            (|at| 60.0 - at * 0.01, true),
        ]
        .into_iter()
        .enumerate()
            as std::iter::Enumerate<std::array::IntoIter<Row, 8>>
        {
            let memory = memory(600, resident);
            assert_eq!(memory.is_flat(), flat, "row {row}: {memory:?}");
            assert_eq!(memory.samples, 401);
        }
    }

    fn verdict(memory: Memory, counted: u64) -> Verdict {
        let rows = vec![
            Counted::up_to("http allowed".into(), (10, 2), 11),
            Counted::up_to("http denied".into(), (5, 0), counted),
        ];
        let sample = Sample { at: Duration::ZERO, resident: 3 << 20, keys: 9 };
        Verdict {
            seconds: 600.0,
            calls: 1200,
            reloads: 20,
            memory: Some(memory),
            samples: vec![sample],
            rows,
            problems: Vec::new(),
        }
    }

    #[test]
    fn one_figure_that_differs_fails_the_run() {
        let flat = memory(600, |_| 40.0);
        let good = verdict(flat, 5);
        assert!(good.is_good());
        assert_eq!(
            good.to_string(),
            "1200 calls in 600 s, 2/s; 20 reloads
most keys: 9; most memory: 3.0 MiB
memory: 40.00 to 40.00 MiB after the first third, +0.00 of 1.00 MiB allowed, 401 samples: flat

counter                          clients       service
http allowed                          10            11  (2 unanswered)
http denied                            5             5

soak passed
"
        );
        let differs = verdict(flat, 6);
        assert!(!differs.is_good() && differs.to_string().contains("5             6  DIFFERS"));
        let grows = verdict(memory(600, |at| at), 5);
        assert!(!grows.is_good() && grows.to_string().contains("GROWS"));
        let short = verdict(memory(30, |at| at), 5);
        assert!(short.is_good() && short.to_string().contains("too short to judge"));
        let problems = vec!["http: no answer".to_owned()];
        assert!(!Verdict { problems, ..verdict(flat, 5) }.is_good());
    }

    #[test]
    fn without_samples_nothing_is_known() {
        assert_eq!(Memory::of(&[], LONG_ENOUGH), None);
    }
}
