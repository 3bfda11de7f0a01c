//! The builder of coalescers, and its errors.

use super::{
    Batch, Coalescer,
    machine::{CoalescerMachine, FlushRules, Fold},
};
use crate::{
    ConfigError, Driver, Limiter, OnDrop, Panicked,
    pace::Pace,
    sync::{AtomicU64, Ordering::Relaxed},
    wait::ActionOptions,
};
use std::{fmt, sync::Arc, time::Duration};

/// How many keys a batch has at most unless told otherwise: some hundred kilobytes of short keys.
const DEFAULT_MAX_SIZE: usize = 10_000;

/// Builds a [`Coalescer`]. Nothing is judged before [`start`](Self::start).
///
/// | I want a batch to leave | set |
/// |---|---|
/// | at a fixed time after its first key | [`window`](Self::window) |
/// | when the burst is over | [`quiet`](Self::quiet), with [`max_wait`](Self::max_wait) |
/// | when it is big enough | [`max_size`](Self::max_size) |
/// | not too often | and [`at_most_every`](Self::at_most_every), or [`limit`](Self::limit) |
#[must_use = "a builder does nothing until `start`"]
pub struct CoalescerBuilder<K, V> {
    window: Option<Duration>,
    quiet: Option<Duration>,
    max_wait: Option<Duration>,
    max_size: Option<usize>,
    interval: Option<Duration>,
    limiter: Option<Limiter>,
    fold: Fold<V>,
    options: ActionOptions,
    /// The size of the batch that was handed out last, for reports of panics.
    last_size: Arc<AtomicU64>,
    keys: std::marker::PhantomData<fn(K)>,
}

impl<K, V> CoalescerBuilder<K, V> {
    pub(super) fn new(fold: Fold<V>) -> Self {
        Self {
            window: None,
            quiet: None,
            max_wait: None,
            max_size: None,
            interval: None,
            limiter: None,
            fold,
            options: ActionOptions::new(OnDrop::Flush),
            last_size: Arc::default(),
            keys: std::marker::PhantomData,
        }
    }

    /// Flushes a batch this long after its first key. Later keys do not prolong it.
    ///
    /// Zero flushes as soon as the action is free: what comes while it runs is the next batch.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Flushes a batch when nothing was added for this long. A key that is there already counts as
    /// an add.
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = Some(quiet);
        self
    }

    /// Caps [`quiet`](Self::quiet): a batch leaves at the latest this long after its first key.
    ///
    /// By default there is no cap, so adds that never stop hold a batch until it is full.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Sets how many keys a batch has at most, by default 10,000; a full one leaves at once.
    ///
    /// At most two batches are in memory: the one under way, and the next one.
    pub fn max_size(mut self, max_size: usize) -> Self {
        self.max_size = Some(max_size);
        self
    }

    /// Lets at most one batch leave for each interval, from start to start. By default there is no
    /// such limit.
    ///
    /// A batch that waits for its turn still takes adds, as far as there is room.
    pub fn at_most_every(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Lets each batch wait for a permit of `limiter`. By default there is no such limit.
    ///
    /// A batch that waits has its permit booked, so it has its turn although others wait at the
    /// limiter all the time (a window cannot be booked: the coalescer tries again). It still takes adds, as
    /// far as there is room. The coalescer calls the limiter under its own lock, so an observer of the limiter
    /// must not call this coalescer. A budget that is used up holds the end back, too.
    pub fn limit(mut self, limiter: &Limiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Sets who runs the action, by default [`Driver::thread`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.options.driver = Some(driver);
        self
    }

    /// Sets what becomes of what is collected when the last handle is dropped, by default
    /// [`OnDrop::Flush`], so that nothing is lost.
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Sets a function that receives every panic of a flush, by default none. The coalescer goes on, without what
    /// the batch held.
    pub fn on_panic(mut self, report: impl Fn(&FlushPanicked) + Send + Sync + 'static) -> Self {
        let last_size = Arc::clone(&self.last_size);
        self.options.on_panic = Some(Arc::new(move |panicked: &Panicked| {
            // ORDERING: as in `CoalescerMachine::next`.
            let entries = last_size.load(Relaxed);
            report(&FlushPanicked { entries, panicked: panicked.clone() });
        }));
        self
    }
}

impl<K: Send + 'static, V: Send + 'static> CoalescerBuilder<K, V> {
    /// Starts a coalescer that gives its batches to `flush`, one at a time.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says what does not fit together.
    pub fn start(
        self,
        flush: impl FnMut(Batch<K, V>) + Send + 'static,
    ) -> Result<Coalescer<K, V>, ConfigError> {
        let (machine, options) = self.parts()?;
        Ok(Coalescer { engine: options.start(machine, flush) })
    }

    /// Starts a coalescer that awaits what `flush` returns, one batch at a time.
    ///
    /// Without [`driver`](Self::driver) it runs on the tokio runtime this is called in. If that
    /// runtime ends before the coalescer, what is collected is lost with it.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says what does not fit together, or that there is no runtime.
    #[cfg(feature = "tokio")]
    pub fn start_async<F>(
        self,
        flush: impl FnMut(Batch<K, V>) -> F + Send + 'static,
    ) -> Result<Coalescer<K, V>, ConfigError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (machine, options) = self.parts()?;
        let engine = options.start_async(machine, flush)?;
        Ok(Coalescer { engine })
    }

    fn parts(self) -> Result<(CoalescerMachine<K, V>, ActionOptions), ConfigError> {
        let rules = self.rules()?;
        let pace = Pace::new(self.interval, self.limiter)?;
        let mut machine = CoalescerMachine::new(rules, self.fold, pace);
        machine.last_size = self.last_size;
        Ok((machine, self.options))
    }

    fn rules(&self) -> Result<FlushRules, ConfigError> {
        let Self { window, quiet, max_wait, max_size, .. } = *self;
        if window.is_none() && quiet.is_none() && max_size.is_none() && max_wait.is_none() {
            return Err(ConfigError::new(
                "nothing decides when a batch is flushed; set `window`, `quiet` or `max_size`",
            ));
        }
        match (window, quiet, max_wait) {
            (Some(window), Some(quiet), _) => {
                return Err(ConfigError::new(format!(
                    "window {window:?} and quiet {quiet:?} are both set; use one of them, and cap \
                     quiet with `max_wait`"
                )));
            }
            (_, None, Some(max_wait)) => {
                return Err(ConfigError::new(format!(
                    "max_wait {max_wait:?} caps a quiet time, but none is set; set `quiet`, or use \
                     `window` instead"
                )));
            }
            (_, Some(Duration::ZERO), _) => {
                return Err(ConfigError::new(
                    "the quiet time is zero; set one above zero, or a `window` of zero to flush as \
                     soon as the action is free",
                ));
            }
            (_, Some(quiet), Some(max_wait)) if max_wait < quiet => {
                return Err(ConfigError::new(format!(
                    "max_wait {max_wait:?} is below quiet {quiet:?}, which would never be reached; \
                     raise max_wait, or use `window` instead"
                )));
            }
            _ => {}
        }
        let max_size = max_size.unwrap_or(DEFAULT_MAX_SIZE);
        ConfigError::check_range("max_size", max_size, 1..=Coalescer::<K, V>::SIZE_MAX)?;
        Ok(FlushRules { window, quiet, max_wait, max_size })
    }
}

impl<K, V> fmt::Debug for CoalescerBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalescerBuilder")
            .field("window", &self.window)
            .field("quiet", &self.quiet)
            .field("max_wait", &self.max_wait)
            .field("max_size", &self.max_size)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A flush has panicked. The coalescer goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushPanicked {
    entries: u64,
    panicked: Panicked,
}

impl FlushPanicked {
    /// Returns how many entries the batch had.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the message of the panic; empty if it had none.
    #[must_use]
    pub fn message(&self) -> &str {
        self.panicked.message()
    }
}

impl fmt::Display for FlushPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, message) = (self.entries, self.message());
        write!(
            f,
            "the flush of a batch of {entries} entries panicked: {message}; the next one runs \
             anyway"
        )
    }
}

impl std::error::Error for FlushPanicked {}
