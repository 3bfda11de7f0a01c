//! How a figure is measured.
//!
//! The machine is shared and virtual, so wall time alone misleads. Threads are pinned, one per
//! processor; a figure is made of short batches; and a batch counts only if
//!
//! - each thread's processor time is at least 95 % of its wall time (no other program took the
//!   processor), and
//! - the threads ran at the same time for at least 70 % of the batch.
//!
//! If threads sleep while they wait for each other ([`Subject::waiting`]), a batch without a
//! preemption counts too, whatever its processor time.
//!
//! Of the batches that count, one thread takes the lower quartile and several take the median,
//! because with several the spread is contention and not only noise. A *round* measures every row
//! once; ratios are taken inside a round; what is printed is the median over rounds.
//!
//! [`Compared`] goes further: it runs its subjects batch by batch in turn, and takes the median of
//! the ratios of batches that ran side by side.

use crate::{machine, stats};
use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use tollgate::observe::StripedCounter;

/// How long a subject runs before it is measured.
///
/// Caches and branches warm in microseconds; tollgate's own clock measures the processor's counter
/// for 20 ms before it relies on it.
const WARM_UP: Duration = Duration::from_millis(30);
/// How long a batch should take: well below the 4 ms for which the scheduler takes a processor
/// away, so that only few batches are hit.
const BATCH_NS: f64 = 1e6;
/// Batches per figure.
const BATCHES: usize = 30;
/// Batches that must count, or else the figure is tried again.
const BATCHES_MIN: usize = 10;
/// Tries before a figure is given up.
const TRIES: usize = 4;
/// The part of a batch that runs unmeasured before it, if another subject ran before.
const LEAD_IN: u64 = 4;
const CPU_SHARE_MIN: f64 = 0.95;
const OVERLAP_MIN: f64 = 0.70;

/// Makes this many calls, one after the other.
pub(crate) type Runner = Box<dyn FnMut(u64)>;

/// A subject to measure. Each thread gets a runner of its own; they share the state behind it.
pub(crate) struct Subject {
    start: Box<dyn Fn() -> Runner + Send + Sync>,
    /// Runs before each batch, outside the measured time.
    prepare: Option<Box<dyn Fn() + Send + Sync>>,
    /// The most calls between two preparations.
    calls_max: u64,
    /// Whether time in which a thread waits for another one counts.
    waits: bool,
    tally: Option<Arc<Tally>>,
}

/// How many calls there were, and how many of them passed. Threads that count do not disturb each
/// other.
#[derive(Default)]
pub(crate) struct Tally {
    calls: StripedCounter,
    admitted: StripedCounter,
}

impl Tally {
    pub(crate) fn add(&self, calls: u64, admitted: u64) {
        self.calls.add(calls);
        self.admitted.add(admitted);
    }
}

impl Subject {
    /// Measures the work of the runners.
    pub(crate) fn new(start: impl Fn() -> Runner + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
            prepare: None,
            calls_max: u64::MAX,
            waits: false,
            tally: None,
        }
    }

    /// The runners add to `tally`.
    pub(crate) fn tallied(mut self, tally: Arc<Tally>) -> Self {
        self.tally = Some(tally);
        self
    }

    /// Returns the share of the calls so far that passed, if the runners count them.
    pub(crate) fn admitted_share(&self) -> Option<f64> {
        let Tally { calls, admitted } = &**self.tally.as_ref()?;
        Some(admitted.sum() as f64 / calls.sum().max(1) as f64)
    }

    /// Calls `prepare` at least every `calls_max` calls, outside the measured time.
    pub(crate) fn prepared(
        mut self,
        calls_max: u64,
        prepare: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        self.prepare = Some(Box::new(prepare));
        self.calls_max = calls_max;
        self
    }

    /// Counts batches in which threads sleep until another one lets them continue, as they do at a
    /// mutex, if no other program took their processors.
    pub(crate) const fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Returns a runner for this thread.
    pub(crate) fn runner(&self) -> Runner {
        (self.start)()
    }

    fn ready(&self) {
        if let Some(prepare) = &self.prepare {
            prepare();
        }
    }

    /// Returns nanoseconds per call as each of `threads` threads sees them; `None` if the machine
    /// was too busy.
    pub(crate) fn ns_per_call(&self, threads: usize) -> Option<f64> {
        (0..TRIES).find_map(|_| {
            let batches = in_turn(&[self], threads);
            let mut batches: Vec<f64> = batches.into_iter().flatten().flatten().collect();
            let share = if threads == 1 { 0.25 } else { 0.5 };
            (batches.len() >= BATCHES_MIN).then(|| stats::quantile(&mut batches, share)).flatten()
        })
    }

    /// Runs for [`WARM_UP`] and returns nanoseconds per call, roughly.
    fn warm_up(&self, run: &mut Runner, prepares: bool) -> f64 {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < WARM_UP {
            if prepares {
                self.ready();
            }
            run(1000);
            calls += 1000;
        }
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    }

    /// Returns million calls per second of `threads` threads together; `None` if the machine was
    /// too busy.
    pub(crate) fn mega_calls_per_second(&self, threads: usize, time: Duration) -> Option<f64> {
        (0..TRIES).find_map(|_| self.throughput(threads, time))
    }

    fn throughput(&self, threads: usize, time: Duration) -> Option<f64> {
        let (barrier, stop) = (SpinBarrier::new(threads + 1), AtomicBool::new(false));
        let total = AtomicU64::new(0);
        let (ns, cpu_ns) = thread::scope(|scope| {
            for index in 0..threads {
                let (barrier, stop, total) = (&barrier, &stop, &total);
                scope.spawn(move || {
                    machine::pin(index);
                    let (mut run, mut calls) = (self.runner(), 0);
                    run(10_000);
                    barrier.wait();
                    while !stop.load(SeqCst) {
                        run(100);
                        calls += 100;
                    }
                    total.fetch_add(calls, SeqCst);
                });
            }
            barrier.wait();
            let (start, cpu) = (Instant::now(), machine::process_cpu_ns());
            thread::sleep(time);
            stop.store(true, SeqCst);
            (start.elapsed().as_nanos(), machine::process_cpu_ns() - cpu)
        });
        let processors = threads.min(machine::processors()) as f64;
        let busy = cpu_ns as f64 >= CPU_SHARE_MIN * processors * ns as f64;
        busy.then(|| total.load(SeqCst) as f64 * 1e3 / ns as f64)
    }
}

/// Runs [`BATCHES`] batches of each subject, a batch of one after a batch of the other, so that
/// anything that slows the machine down affects all of them. Returns, by subject, nanoseconds per
/// call of each batch; `None` for a batch that does not count.
fn in_turn(subjects: &[&Subject], threads: usize) -> Vec<Vec<Option<f64>>> {
    let barrier = SpinBarrier::new(threads);
    let calls: Vec<AtomicU64> = subjects.iter().map(|_| AtomicU64::new(0)).collect();
    // By thread, by subject, by batch.
    let spans: Vec<Vec<Vec<Span>>> = thread::scope(|scope| {
        let work = |index| {
            let (barrier, calls) = (&barrier, &calls);
            move || work(subjects, index, (threads, barrier, calls))
        };
        let workers: Vec<_> = (0..threads).map(|index| scope.spawn(work(index))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_default();
        workers.into_iter().map(join).collect()
    });
    let ns = |subject: usize, batch: usize| {
        let spans: Option<Vec<&Span>> =
            spans.iter().map(|spans| spans.get(subject)?.get(batch)).collect();
        let ns = Span::judge(&spans?, subjects[subject].waits)?;
        Some(ns / calls[subject].load(SeqCst) as f64)
    };
    let batches = |subject| (0..BATCHES).map(|batch| ns(subject, batch)).collect();
    (0..subjects.len()).map(batches).collect()
}

/// The work of one thread of [`in_turn`].
fn work(
    subjects: &[&Subject],
    index: usize,
    (threads, barrier, calls): (usize, &SpinBarrier, &[AtomicU64]),
) -> Vec<Vec<Span>> {
    machine::pin(index);
    let mut runners: Vec<Runner> = subjects.iter().map(|subject| subject.runner()).collect();
    for ((subject, run), calls) in subjects.iter().zip(&mut runners).zip(calls) {
        barrier.wait();
        let ns = subject.warm_up(run, index == 0);
        if index == 0 {
            let most = subject.calls_max / threads as u64;
            calls.store(((BATCH_NS / ns) as u64).clamp(64, most), SeqCst);
        }
    }
    barrier.wait();
    let mut spans = vec![Vec::with_capacity(BATCHES); subjects.len()];
    for _ in 0..BATCHES {
        for ((subject, run), (calls, spans)) in
            subjects.iter().zip(&mut runners).zip(calls.iter().zip(&mut spans))
        {
            let calls = calls.load(SeqCst);
            if subjects.len() > 1 {
                // The subject before this one has used the caches.
                run(calls / LEAD_IN);
            }
            if index == 0 {
                subject.ready();
            }
            barrier.wait();
            spans.push(Span::of(|| run(calls)));
        }
    }
    spans
}

/// Subjects that were measured in turn.
pub(crate) struct Compared {
    batches: Vec<Vec<Option<f64>>>,
}

impl Compared {
    /// Measures subjects in turn, until enough batches of all of them count or the machine has been
    /// too busy for too long.
    pub(crate) fn measure(subjects: &[&Subject], threads: usize) -> Self {
        let mut batches = vec![Vec::new(); subjects.len()];
        for _ in 0..TRIES {
            for (all, found) in batches.iter_mut().zip(in_turn(subjects, threads)) {
                all.extend(found);
            }
            let complete = |batch: &usize| batches.iter().all(|it| it[*batch].is_some());
            if (0..batches[0].len()).filter(complete).count() >= BATCHES_MIN {
                break;
            }
        }
        Self { batches }
    }

    /// Returns nanoseconds per call of a subject.
    pub(crate) fn ns(&self, subject: usize) -> Option<f64> {
        stats::median(self.batches[subject].iter().copied())
    }

    /// Returns the median of the ratios of one subject's batch to the other's batch beside it.
    pub(crate) fn ratio(&self, ours: usize, peer: usize) -> Option<f64> {
        stats::median_ratio(&self.batches[ours], &self.batches[peer])
    }
}

/// When a thread ran a batch, and how much processor time it got for it.
#[derive(Clone, Copy)]
struct Span {
    start: Instant,
    end: Instant,
    cpu_ns: u64,
    preemptions: i64,
}

impl Span {
    fn of(work: impl FnOnce()) -> Self {
        let (preempted, cpu) = (machine::preemptions(), machine::thread_cpu_ns());
        let start = Instant::now();
        work();
        let end = Instant::now();
        let cpu_ns = machine::thread_cpu_ns() - cpu;
        Self { start, end, cpu_ns, preemptions: machine::preemptions() - preempted }
    }

    fn wall_ns(&self) -> f64 {
        (self.end - self.start).as_nanos() as f64
    }

    /// Returns the mean length of one batch over its threads, if it counts.
    fn judge(spans: &[&Self], waits: bool) -> Option<f64> {
        let undisturbed = |span: &&Self| {
            span.cpu_ns as f64 >= CPU_SHARE_MIN * span.wall_ns() || waits && span.preemptions == 0
        };
        let first = spans.iter().map(|span| span.start).min()?;
        let last_start = spans.iter().map(|span| span.start).max()?;
        let first_end = spans.iter().map(|span| span.end).min()?;
        let last = spans.iter().map(|span| span.end).max()?;
        let together = first_end.saturating_duration_since(last_start).as_nanos() as f64;
        let overlap = together / (last - first).as_nanos() as f64;
        let counts = spans.iter().all(undisturbed) && overlap >= OVERLAP_MIN;
        let mean = spans.iter().map(|span| span.wall_ns()).sum::<f64>() / spans.len() as f64;
        counts.then_some(mean)
    }
}

/// A barrier that does not put its threads to sleep, so that they start together.
struct SpinBarrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl SpinBarrier {
    const fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let ticket = self.arrived.fetch_add(1, SeqCst);
        let goal = (ticket / self.threads + 1) * self.threads;
        for spins in 0_u64.. {
            if self.arrived.load(SeqCst) >= goal {
                return;
            }
            // With more threads than processors, this thread has to yield.
            if spins > 10_000 {
                thread::yield_now();
            }
            spin_loop();
        }
    }
}

/// Writes the progress to standard error, on one line.
pub(crate) fn progress(text: &str) {
    static LAST: Mutex<usize> = Mutex::new(0);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    eprint!("\r{text:<width$}", width = *last);
    *last = text.chars().count();
}
