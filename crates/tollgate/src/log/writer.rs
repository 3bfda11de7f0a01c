//! A writer that drops lines instead of blocking.
//!
//! Writes append to a buffer under a short lock. A thread swaps that buffer for an empty one and writes it out, without
//! the lock. A line that finds the buffer full is dropped, and so is what the output does not take; both are counted,
//! and the next batch begins with a line that says how many they were. Lines written plus lines dropped are all lines.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// An [`io::Write`] that never blocks on its output: a full disk or a slow reader costs lines, which are counted.
///
/// Each call of `write` is one line, as `tracing_subscriber::fmt` writes them. A thread writes to the output. Clones
/// share it; when the last one is dropped, the thread writes what is left and ends.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::log::LossyWriter;
/// use tracing_subscriber::fmt;
///
/// let log = LossyWriter::builder(std::io::stderr()).start()?;
/// let writer = log.clone();
/// let layer = fmt::layer::<tracing_subscriber::Registry>().with_writer(move || writer.clone());
/// # drop(layer);
/// log.flush_within(Duration::from_secs(1)); // at the end of `main`
/// assert_eq!(log.dropped(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct LossyWriter {
    handle: Arc<WriterHandle>,
}

impl LossyWriter {
    /// Returns a builder of a writer to this output.
    pub fn builder<W: Write + Send + 'static>(output: W) -> LossyWriterBuilder {
        LossyWriterBuilder {
            output: Box::new(output),
            capacity_bytes: 1 << 20,
            notice: Box::new(|lines| {
                format!("{lines} log lines dropped: the output is full or slow\n")
            }),
        }
    }

    /// Returns how many lines were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.handle.shared.lock().dropped
    }

    /// Returns how many lines the output has taken, notices not counted.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.handle.shared.lock().written
    }

    /// Waits until every line is written or dropped, at most so long. Tells whether that is so.
    #[allow(clippy::must_use_candidate, reason = "waiting is the point")]
    pub fn flush_within(&self, longest: Duration) -> bool {
        let shared = &self.handle.shared;
        let is_busy = |buffer: &mut Buffer| !buffer.is_idle;
        let waited = shared.idle.wait_timeout_while(shared.lock(), longest, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Write for LossyWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.is_empty() {
            return Ok(0);
        }
        let shared = &self.handle.shared;
        let mut buffer = shared.lock();
        let held = buffer.lines.bytes.len().saturating_add(buffer.being_written);
        if held.saturating_add(line.len()) > shared.capacity_bytes {
            buffer.dropped += 1; // OVERFLOW: a count of events.
        } else {
            buffer.lines.push(line);
        }
        // Also for a line that is dropped: the thread reports it.
        buffer.is_idle = false;
        shared.work.notify_one();
        Ok(line.len())
    }

    /// Does nothing: [`flush_within`](LossyWriter::flush_within) waits.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for LossyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, dropped) = (self.written(), self.dropped());
        f.debug_struct("LossyWriter")
            .field("written", &written)
            .field("dropped", &dropped)
            .finish_non_exhaustive()
    }
}

/// Builds a [`LossyWriter`].
#[must_use = "a builder does nothing until `start`"]
pub struct LossyWriterBuilder {
    output: Box<dyn Write + Send>,
    capacity_bytes: usize,
    notice: Box<dyn Fn(u64) -> String + Send>,
}

impl LossyWriterBuilder {
    /// Sets how many bytes wait for the output at most, by default 1 MiB: about 8000 lines. A longer line is dropped.
    pub fn capacity_bytes(mut self, bytes: usize) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Sets the line that reports how many lines were dropped, with its line break. By default a sentence.
    pub fn notice(mut self, notice: impl Fn(u64) -> String + Send + 'static) -> Self {
        self.notice = Box::new(notice);
        self
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the capacity is zero, or the system has no thread left.
    pub fn start(self) -> io::Result<LossyWriter> {
        let Self { output, capacity_bytes, notice } = self;
        if capacity_bytes == 0 {
            let text = "a capacity of 0 bytes would drop every line; use at least that of one line";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let shared = Arc::new(Shared {
            buffer: Mutex::new(Buffer { is_idle: true, ..Buffer::default() }),
            work: Condvar::new(),
            idle: Condvar::new(),
            capacity_bytes,
        });
        let worker =
            Worker { shared: Arc::clone(&shared), output, notice, reported: 0, is_torn: false };
        thread::Builder::new().name("log-writer".into()).spawn(move || worker.run())?;
        Ok(LossyWriter { handle: Arc::new(WriterHandle { shared }) })
    }
}

impl fmt::Debug for LossyWriterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossyWriterBuilder")
            .field("capacity_bytes", &self.capacity_bytes)
            .finish_non_exhaustive()
    }
}

/// What the clones of a writer share. Dropping it ends the thread.
struct WriterHandle {
    shared: Arc<Shared>,
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_one();
    }
}

struct Shared {
    buffer: Mutex<Buffer>,
    /// There are lines to write, or no more will come.
    work: Condvar,
    /// Every line is written or dropped.
    idle: Condvar,
    capacity_bytes: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Buffer {
    lines: Lines,
    /// Bytes that the thread is writing.
    being_written: usize,
    /// Whether the thread has nothing to do.
    is_idle: bool,
    is_closed: bool,
    /// Lines that the output has taken.
    written: u64,
    /// Lines that it has not taken, or that found no room.
    dropped: u64,
}

/// Lines, and where each ends.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Lines {
    fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.ends.push(self.bytes.len());
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The thread's part.
struct Worker {
    shared: Arc<Shared>,
    output: Box<dyn Write + Send>,
    notice: Box<dyn Fn(u64) -> String + Send>,
    /// Dropped lines that a notice was written for.
    reported: u64,
    /// Whether the output ends in the middle of a line.
    is_torn: bool,
}

impl Worker {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut lines = Lines::default();
        loop {
            {
                let mut buffer = shared.lock();
                buffer.being_written = 0;
                lines.clear();
                while buffer.is_idle && !buffer.is_closed {
                    shared.idle.notify_all();
                    buffer = shared.work.wait(buffer).unwrap_or_else(PoisonError::into_inner);
                }
                if buffer.is_idle {
                    drop(buffer);
                    return self.write_notice();
                }
                std::mem::swap(&mut buffer.lines, &mut lines);
                buffer.being_written = lines.bytes.len();
            }
            self.write_notice();
            self.write_lines(&lines);
            // Lines were dropped meanwhile, and maybe none come any more.
            self.write_notice();
            let mut buffer = shared.lock();
            buffer.is_idle = buffer.lines.ends.is_empty();
        }
    }

    fn write_lines(&mut self, lines: &Lines) {
        let taken_bytes = self.write(&lines.bytes);
        let is_taken = |end: &usize| without_break(&lines.bytes[..*end]) <= taken_bytes;
        let taken = lines.ends.partition_point(is_taken);
        let mut buffer = self.shared.lock();
        // OVERFLOW: counts of events.
        buffer.written += taken as u64;
        buffer.dropped += (lines.ends.len() - taken) as u64;
    }

    /// Says how many lines were dropped, if any were since the last time.
    fn write_notice(&mut self) {
        let dropped = self.shared.lock().dropped;
        let lines = dropped.saturating_sub(self.reported);
        if lines == 0 {
            return;
        }
        let Ok(notice) = catch_unwind(AssertUnwindSafe(|| (self.notice)(lines))) else { return };
        if self.write(notice.as_bytes()) >= without_break(notice.as_bytes()) {
            self.reported = dropped;
        }
    }

    /// Writes until the output takes no more. Returns how many bytes it has taken.
    fn write(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        if self.is_torn {
            if self.take_some(b"\n") == 0 {
                return 0;
            }
            self.is_torn = false;
        }
        // INVARIANT: `at` is at most the length, and the byte before it is the last one that the output has taken.
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.take_some(rest) {
                0 => break,
                taken => at += taken.min(rest.len()),
            }
        }
        self.is_torn = at > 0 && bytes[at - 1] != b'\n';
        let _ = catch_unwind(AssertUnwindSafe(|| self.output.flush()));
        at
    }

    /// Returns how many bytes the output takes at once; 0 if it fails. One that panics fails as well: the thread lives on, so
    /// the lines that it holds are counted.
    fn take_some(&mut self, bytes: &[u8]) -> usize {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.output.write(bytes))) {
                Ok(Ok(taken)) => return taken,
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) | Err(_) => return 0,
            }
        }
    }
}

/// Returns the length without a line break at the end: a line is whole without it, because the next one adds it.
fn without_break(line: &[u8]) -> usize {
    line.strip_suffix(b"\n").unwrap_or(line).len()
}
