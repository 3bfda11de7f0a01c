//! How a figure is taken.
//!
//! The machine is shared and virtual, so wall time alone lies. Threads are pinned, one per
//! processor; a figure is made of short batches; and a batch counts only if
//!
//! - each thread's processor time is at least 95 % of its wall time (nobody took the processor), and
//! - the threads ran at the same time for at least 70 % of the batch.
//!
//! Where threads sleep while they wait for each other ([`Subject::waiting`]), a batch without a
//! preemption counts too, whatever its processor time.
//!
//! Of the batches that count, one thread takes the lower quartile and several take the median,
//! because with several the spread is contention and not only noise. A *round* measures every row
//! once; ratios are taken inside a round; what is printed is the median over rounds.

use crate::{machine, stats};
use std::{
    hint::spin_loop,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a subject runs before it is measured.
///
/// Caches and branches warm in microseconds; tollgate's own clock measures the processor's counter
/// for 20 ms before it relies on it.
const WARM_UP: Duration = Duration::from_millis(30);
/// How long a batch is meant to take: well below the 4 ms for which the scheduler takes a
/// processor away, so that it hits few of them.
const BATCH_NS: f64 = 1e6;
/// Batches per figure.
const BATCHES: usize = 30;
/// Batches that must count, or else the figure is tried again.
const BATCHES_MIN: usize = 10;
/// Tries before a figure is given up.
const TRIES: usize = 4;
const CPU_SHARE_MIN: f64 = 0.95;
const OVERLAP_MIN: f64 = 0.70;

/// Makes so many calls, one after the other.
pub(crate) type Runner = Box<dyn FnMut(u64)>;

/// Something to measure. Each thread gets a runner of its own; they share what is behind it.
pub(crate) struct Subject {
    start: Box<dyn Fn() -> Runner + Send + Sync>,
    /// Runs before each batch, outside the measured time.
    prepare: Option<Box<dyn Fn() + Send + Sync>>,
    /// The most calls between two preparations.
    calls_max: u64,
    /// Whether time in which a thread waits for another one counts.
    waits: bool,
}

impl Subject {
    /// Measures what the runners do.
    pub(crate) fn new(start: impl Fn() -> Runner + Send + Sync + 'static) -> Self {
        Self { start: Box::new(start), prepare: None, calls_max: u64::MAX, waits: false }
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

    /// Counts batches in which threads sleep until another one lets them go on, as they do at a
    /// mutex, as long as nobody else took their processors.
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

    /// Returns nanoseconds per call as each of `threads` threads sees them; nothing if the
    /// machine was too busy to tell.
    pub(crate) fn ns_per_call(&self, threads: usize) -> Option<f64> {
        (0..TRIES).find_map(|_| {
            let mut batches = self.batches(threads);
            let share = if threads == 1 { 0.25 } else { 0.5 };
            (batches.len() >= BATCHES_MIN).then(|| stats::quantile(&mut batches, share)).flatten()
        })
    }

    fn batches(&self, threads: usize) -> Vec<f64> {
        let (barrier, calls) = (SpinBarrier::new(threads), AtomicU64::new(0));
        let spans: Vec<Vec<Span>> = thread::scope(|scope| {
            let work = |index| {
                let (barrier, calls) = (&barrier, &calls);
                move || self.work(index, (threads, barrier, calls))
            };
            let workers: Vec<_> = (0..threads).map(|index| scope.spawn(work(index))).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_default();
            workers.into_iter().map(join).collect()
        });
        let calls = calls.load(SeqCst) as f64;
        (0..BATCHES)
            .filter_map(|batch| {
                let spans: Option<Vec<&Span>> =
                    spans.iter().map(|spans| spans.get(batch)).collect();
                Span::judge(&spans?, self.waits)
            })
            .map(|ns| ns / calls)
            .collect()
    }

    fn work(&self, index: usize, shared: (usize, &SpinBarrier, &AtomicU64)) -> Vec<Span> {
        let (threads, barrier, calls) = shared;
        machine::pin(index);
        let mut run = self.runner();
        barrier.wait();
        let ns = self.warm_up(&mut run, index == 0);
        if index == 0 {
            let most = self.calls_max / threads as u64;
            calls.store(((BATCH_NS / ns) as u64).clamp(64, most), SeqCst);
        }
        barrier.wait();
        let calls = calls.load(SeqCst);
        let batch = |_| {
            if index == 0 {
                self.ready();
            }
            barrier.wait();
            Span::of(|| run(calls))
        };
        (0..BATCHES).map(batch).collect()
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

    /// Returns million calls per second of `threads` threads together; nothing if the machine was
    /// too busy to tell.
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
            // With more threads than processors somebody has to make room.
            if spins > 10_000 {
                thread::yield_now();
            }
            spin_loop();
        }
    }
}

/// Says on standard error what is going on, on one line.
pub(crate) fn progress(text: &str) {
    static LAST: Mutex<usize> = Mutex::new(0);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    eprint!("\r{text:<width$}", width = *last);
    *last = text.chars().count();
}
